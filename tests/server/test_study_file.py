"""study.toml: what is read, what overrides it, and one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from authority.folder import AuthoritySettings
from client.host_file import HostConfiguration
from runtime.settings_file import TABLES, build, read_settings
from runtime.settings_keys import settings_keys, settings_toml
from server.study_file import ConfigurationError, StudyConfiguration, load
from tests.server.study_docs import PAGE, page

FILES = (
    *("coordinator/tls/server.pem", "coordinator/tls/server.key", "roster.json", "coordinator/authority.pub"),
    "tls/ca.pem",
)
LEAST = """
[study]
name = "clinic"
rounds = 10
task = "softmax-regression"
[privacy]
epsilon = 4
delta = 1e-6
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ab" * 32)
    (tmp_path / "study.toml").write_text(LEAST)
    return tmp_path


def refusal(study: Path) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(study)
    return str(error.value)


def test_least_file_and_defaults(study: Path) -> None:
    read = load(study)
    assert (read.study.name, read.study.rounds, read.privacy.epsilon) == ("clinic", 10, 4.0)
    assert read.privacy.min_survivors is None
    assert read.privacy.beta == pytest.approx(0.60653066)
    assert read.coordinator.roster == study / "roster.json"
    assert read.coordinator.state == study / "coordinator" / "state.sqlite"
    assert read.coordinator.state.is_absolute()
    assert read.coordinator.listen == "127.0.0.1:8443"
    assert read.read_authority_public_key() == bytes.fromhex("ab" * 32)
    assert load(study / "study.toml") == read
    with pytest.raises(ValidationError):
        read.privacy.epsilon = 9.0  # type: ignore[misc]


def test_data_is_found_from_the_folder(study: Path) -> None:
    (study / "study.toml").write_text(LEAST + '[data]\ndataset = "cifar10:shared/cifar"\ntest = "held-out.npz"\n')
    assert f"data.test: there is no file {study / 'held-out.npz'}" in refusal(study)
    (study / "held-out.npz").write_text("x")
    data = load(study).data
    assert (data.dataset, data.test) == (f"cifar10:{study / 'shared' / 'cifar'}", str(study / "held-out.npz"))
    (study / "study.toml").write_text(LEAST + '[data]\ndataset = "own"\n')
    assert (load(study).data.dataset, load(study).data.test) == ("own", "")


def test_environment_wins_over_the_file(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_PRIVACY__EPSILON", "2.5")
    monkeypatch.setenv("SORDINO_COORDINATOR__LISTEN", "[::1]:0")
    monkeypatch.setenv("SORDINO_TASK__CLIENT_RATE", "0.25")
    read = load(study)
    assert read.privacy.epsilon == 2.5
    assert read.privacy.delta == 1e-6
    assert read.coordinator.listen == "[::1]:0"
    assert dict(read.task) == {"client_rate": 0.25}


def test_a_bad_variable_is_named_itself(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_PRIVACY__DELTA", "3")
    assert refusal(study) == "environment variable SORDINO_PRIVACY__DELTA: privacy.delta = '3' should be less than 1."
    monkeypatch.setenv("SORDINO_PRVACY__EPSILON", "4")
    assert refusal(study) == (
        "environment variable SORDINO_PRVACY__EPSILON: there is no table [prvacy]. Did you mean privacy?"
    )
    monkeypatch.delenv("SORDINO_PRVACY__EPSILON")
    monkeypatch.setenv("SORDINO_AUTHORITY__COORDINATOR", "localhost:8444")  # of another file
    monkeypatch.setenv("SORDINO_PRIVACY", "epsilon")
    assert "Set single keys" in refusal(study)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epsilon = 4", "epsilon = -1", "privacy.epsilon = -1 should be greater than 0."),
        ("epsilon = 4", 'epsilon = "much"', "privacy.epsilon = 'much' should be a number"),
        ("epsilon = 4", "epsilon = nan", "privacy.epsilon = nan should be a finite number."),
        ("epsilon = 4", "epsilon = inf", "privacy.epsilon"),
        ("epsilon = 4", "", "privacy.epsilon is missing. Add it."),
        ("epsilon = 4", "epsilon = 4\nbits = 63", "privacy.bits = 63 should be less than or equal to 62."),
        ("epsilon = 4", "epsilon = 4\nmax_dropuot = 0.2", "is not a known key. Did you mean max_dropout?"),
        ("epsilon = 4", "epsilon = 4\nmin_survivors = 8\nquorum = 7", "Set quorum to 8 or more."),
        ("[privacy]", "participants = 9\n[privacy]\nquorum = 10", "quorum = 10 is above study.participants = 9. Set"),
        ("[privacy]", "participants = 9\n[privacy]\nmin_survivors = 10", "min_survivors = 10 is above study.pa"),
        (
            "[privacy]",
            'participants = 9\n[privacy]\nsampling = "lottery"\npopulation = 8',
            "study.participants = 9 is above privacy.population = 8. Set it to 8 or less.",
        ),
        ("rounds = 10", "rounds = 0", "study.rounds = 0 should be greater than or equal to 1."),
        ("rounds = 10", "rounds = 1.5", "study.rounds = 1.5 should be a whole number"),
        ('"softmax-regression"', '"gpt"', "study.task = 'gpt' is unknown. Use one of: softmax-regression"),
        ("epsilon = 4", "epsilon = 4\nclip_by_layer = 'maybe'", "clip_by_layer = 'maybe' should be true or false."),
        ('"clinic"', '"a b"', "study.name = 'a b'"),
        ("[privacy]", "[privcay]", "privcay is not a known key. Did you mean privacy?"),
        ("[study]", "[coordinator]\nlisten = 'here'\n[study]", "coordinator.listen = 'here' must read HOST:PORT"),
        ("[study]", "[coordinator]\nlisten = 'a:99999'\n[study]", "port between 0 and 65535"),
        ("[study]", "[deadlines]\nunmasking_s = 0\n[study]", "deadlines.unmasking_s = 0 should be greater than 0."),
        ("[study]", "[study", "not valid TOML"),
        ("[privacy]", "[privacy]\ngraph = auto", "not valid TOML: Invalid value (at line"),
        ("[privacy]", "[privacy]\ngraph = auto", "column 9) (text needs quotes)."),
    ],
)
def test_mistakes_are_told(study: Path, old: str, new: str, told: str) -> None:
    file = study / "study.toml"
    file.write_text(LEAST.replace(old, new, 1))
    message = refusal(study)
    assert told in message
    assert str(file) in message


def test_each_mistake_has_its_line(study: Path) -> None:
    text = LEAST.replace("epsilon = 4", "epsilon = 0").replace("delta = 1e-6", "delta = 1").replace("10", "0")
    (study / "study.toml").write_text(text)
    lines = refusal(study).splitlines()
    assert [line.split(": ", 1)[1].split(" ")[0] for line in lines] == [
        "study.rounds",
        "privacy.epsilon",
        "privacy.delta",
    ]


def test_files_that_cannot_be_read(study: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    assert "there is no such file" in refusal(empty)
    assert "sordino init" in refusal(empty / "nowhere")
    (study / "study.toml").write_bytes(b"\xff\xfe\x00")
    assert "not a UTF-8 text file" in refusal(study)


def test_missing_files_are_named_by_key(study: Path) -> None:
    (study / "roster.json").unlink()
    (study / "coordinator/tls/server.key").unlink()
    message = refusal(study)
    assert "coordinator.roster: there is no file" in message
    assert "coordinator.tls_key: there is no file" in message


def test_a_damaged_authority_key_is_refused(study: Path) -> None:
    (study / "coordinator/authority.pub").write_text("not a key")
    with pytest.raises(ConfigurationError, match="64 hexadecimal digits"):
        load(study).read_authority_public_key()


def test_the_docs_hold_every_key() -> None:
    """Run `make study-docs` after a key has changed."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_key_is_said_once_and_has_an_option_or_none_on_purpose() -> None:
    keys = settings_keys(StudyConfiguration)
    helps = [one.about.help for one in keys.values()]
    assert len(set(helps)) == len(helps)
    assert all(one.about.help for one in keys.values())


def test_the_written_file_reads_back_as_it_was(tmp_path: Path) -> None:
    """All keys at other values than their defaults, where the type allows it."""
    changed = {"in_a_round": 9, "epsilon": 3.0, "clip": 0.25, "task_options": {"client_rate": 0.5}, "one_machine": True}
    study = build(StudyConfiguration, changed)
    file = tmp_path / "study.toml"
    file.write_text(settings_toml(study, ["A study."], comments={"client_rate": "step"}))
    assert read_settings(StudyConfiguration, file, hint="") == study
    assert "client_rate = 0.5  # step" in file.read_text()


def test_every_table_may_be_named_by_a_variable() -> None:
    models = (StudyConfiguration, HostConfiguration, AuthoritySettings)
    assert {table for model in models for table in model.model_fields} == TABLES
