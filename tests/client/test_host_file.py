"""host.toml: what is read, and one line for every mistake."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from client.held_data import declared_data_name, held_data
from client.host_file import HostConfiguration, load
from runtime.settings_file import ConfigurationError
from runtime.settings_keys import tables_toml
from tests.client.conftest import LEAST


def refusal(home: Path) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(home)
    return str(error.value)


def test_least_file_and_absolute_paths(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = load(home)
    assert read.coordinator.address == "localhost:8443"
    assert read.coordinator.ca == home / "ca.pem"
    assert read.host.journal == home / "journal.sqlite"
    assert read.host.ledger == home / "ledger.sqlite"
    assert [entry.key for entry in read.participants] == [home / "keys/a.key", home / "keys/b.key"]
    assert [entry.part for entry in read.participants] == [0, 9]
    assert read.study.authority_public_key == "ab" * 32
    assert read.policy.max_delta == 1e-5
    elsewhere = tmp_path_factory.mktemp("other") / "host"
    home.rename(elsewhere)  # the folder can be moved
    assert load(elsewhere).participants[0].key == elsewhere / "keys/a.key"
    monkeypatch.setenv("SORDINO_COORDINATOR__ADDRESS", "clinic.example:443")
    assert load(elsewhere).coordinator.address == "clinic.example:443"


def test_own_files(home: Path) -> None:
    text = LEAST.replace("parts = 10", 'dataset = "own"').replace("part = 0", 'data = "a.csv"')
    (home / "host.toml").write_text(text.replace("part = 9", 'data = "/elsewhere/b.npz"'))
    assert [entry.data for entry in load(home).participants] == [home / "a.csv", Path("/elsewhere/b.npz")]
    assert [entry.data for entry in load(home).settings().participants] == [home / "a.csv", Path("/elsewhere/b.npz")]
    (home / "host.toml").write_text(text.replace("part = 9", 'data = "a.csv"'))
    assert "two of them have data = a.csv. Give each participant its own data" in refusal(home)


def test_published_files_are_found_from_the_folder(home: Path) -> None:
    (home / "host.toml").write_text(LEAST.replace("parts = 10", 'dataset = "leaf:shared/femnist"\nparts = 10'))
    assert load(home).data.dataset == f"leaf:{home / 'shared' / 'femnist'}"
    (home / "host.toml").write_text(LEAST.replace("parts = 10", 'dataset = "shakespeare"\nparts = 10'))
    assert load(home).data.dataset == "shakespeare"


def test_what_an_app_loads_has_a_declared_identity(home: Path) -> None:
    text = LEAST.replace("parts = 10", 'dataset = "app"\nparts = 10')
    text = re.sub(r"(?m)^task = .*", 'task = "flower:my_app:app"', text)
    told = "participants[0]: with data.dataset = 'app' each participant declares data_identity = \"NAME\""
    (home / "host.toml").write_text(text)
    assert told in refusal(home)
    declared = text.replace("part = 0", 'part = 0\ndata_identity = "A"').replace(
        "part = 9", 'part = 9\ndata_identity = "B"'
    )
    (home / "host.toml").write_text(declared)
    held = held_data(load(home).settings())
    assert [dict(zip(data.columns, data.features[0], strict=True)) for data, _ in held] == [
        {"partition-id": 0, "num-partitions": 10},
        {"partition-id": 9, "num-partitions": 10},
    ]
    assert [name for _, name in held] == [declared_data_name("A"), declared_data_name("B")]
    assert declared_data_name("A") != declared_data_name("B")
    (home / "host.toml").write_text(declared.replace('"B"', '"A"'))
    assert "two of them have data_identity = A. Give each participant its own data" in refusal(home)
    (home / "host.toml").write_text(declared.replace('dataset = "app"', ""))
    assert "a task flower:MODULE:APP loads its data by itself, so it has dataset = 'app'" in refusal(home)
    (home / "host.toml").write_text(LEAST.replace("part = 0", 'part = 0\ndata_identity = "A"'))
    assert "participants[0]: with data.dataset = 'fashion-mnist-subset' each participant has no data_ident" in refusal(
        home
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("part = 9", "part = 10", "participants[1].part = 10 is outside the 10 parts of the data: use 0 to 9"),
        ("keys/b.key", "keys/a.key", "is listed twice"),
        ("part = 9", "part = 0", "two of them have part = 0. Give each participant its own data"),
        ("part = 9", "", "with data.dataset = 'fashion-mnist-subset' each participant has a part of the data set"),
        ("part = 9", 'part = 9\ndata = "b.csv"', "and no data"),
        ("parts = 10", "", "data.parts is missing"),
        ("parts = 10", 'dataset = "own"', "participants[0]: with data.dataset = 'own' each participant has a file"),
        ("parts = 10", 'parts = 10\ndataset = "MNIST?"', "data.dataset = 'MNIST?' is unknown"),
        ("parts = 10", 'parts = 10\npartition = "odd"', "data.partition = 'odd'"),
        ("part = 9", "prat = 9", "participants[1].prat is not a known key. Did you mean part?"),
        ("max_epsilon = 4", "max_epsilon = 0", "policy.max_epsilon = 0 should be greater than 0."),
        ("max_epsilon = 4", "", "policy.max_epsilon is missing. Add it."),
        ("ab" * 32, "abc", "study.authority_public_key"),
        ("[policy]", "[coordinator]\naddress = 'x:0'\n[policy]", "name the port that the coordinator listens on"),
        ("keys/b.key", "keys/c.key", "participants[1].key: there is no file"),
    ],
)
def test_a_mistake_is_reported(home: Path, old: str, new: str, told: str) -> None:
    (home / "host.toml").write_text(LEAST.replace(old, new, 1))
    assert told in refusal(home)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("_env_file = true", "host.toml: _env_file is not a known key."),
        ("_cli_parse_args = true", "host.toml: _cli_parse_args is not a known key."),
        ("x = auto", "not valid TOML: Invalid value (at line 1, column 5) (text needs quotes)."),
        ("x = 1 2", "not valid TOML: Expected newline or end of document after a statement (at line 1, column 7)."),
        ("x = " + "9" * 5000, "host.toml: not valid TOML: "),
        ("x = " + "[" * 5000, "host.toml: not valid TOML: lists or tables are nested too deeply."),
    ],
)
def test_lines_that_a_parser_takes_for_something_else(home: Path, line: str, told: str) -> None:
    """Options of the library that reads settings, and numbers and lists that it gives up on."""
    (home / "host.toml").write_text(line + "\n" + LEAST)
    assert told in refusal(home)


def test_no_participants_and_no_certificate(home: Path) -> None:
    (home / "ca.pem").unlink()
    assert "coordinator.ca: there is no file" in refusal(home)
    (home / "host.toml").write_text("participants = []\n" + LEAST.split("[[participants]]", 1)[0])
    assert "participants" in refusal(home)


def test_loads_nothing_of_the_server() -> None:
    code = "import client.host_file, sys; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ("server", "torch", "scipy", "matplotlib", "grpc", "numpy")
    out = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["plain", "two words", 'a"b', "a\nb = 1", ""])
def test_option_names_of_strangers_are_written_as_they_are(name: str) -> None:
    written = tables_toml(HostConfiguration, {"task": {name: 3}})
    assert tomllib.loads(written) == {"task": {name: 3}}
