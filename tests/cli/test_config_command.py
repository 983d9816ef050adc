"""``sordino config``: mistakes, effective values with their origins, schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.host_file import HostConfiguration
from mechanisms.statement import LARGEST_BETA
from runtime.settings_file import ConfigurationError, Settings, Table, read_settings
from runtime.settings_keys import key, settings_keys
from server.study_file import StudyConfiguration
from tests.support.commands import Run, one_clear_error, output, refusal


def test_whole_files_have_no_mistake(run: Run, small_study: Path) -> None:
    for place in (small_study, small_study / "study.toml", small_study / "hosts" / "host-01"):
        assert output(run, "config", "check", place).endswith("no mistake found.\n")
    assert json.loads(run("config", "check", small_study, "--json")[1])["ok"] is True


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("max_dropout =", "max_dropuot =", "privacy.max_dropuot is not a known key. Did you mean max_dropout?"),
        ("max_dropout =", "connect_s =", "privacy.connect_s is not a known key. It stands in another table: dead"),
        ("rounds = 2 ", "rounds = 0 ", "study.rounds = 0 should be greater than or equal to 1."),
        ('"roster.json"', '"elsewhere.json"', "coordinator.roster: there is no file"),
        ("client_rate =", "client_rat =", "wrong.toml: [task]: unknown option 'client_rat'. Did you mean client_rate?"),
        ("client_rate = 0.5", "client_rate = -1", "wrong.toml: [task]: option 'client_rate' is -1.0; it must be"),
        ('name = "small"', 'name = "a b"', "study.name = 'a b' should be letters, digits, . _ - after a first"),
        ("rounds = 2 ", 'rounds = "two" ', "study.rounds = 'two' should be a whole number."),
    ],
)
def test_each_mistake_is_a_line(run: Run, small_study: Path, old: str, new: str, told: str) -> None:
    wrong = small_study / "wrong.toml"
    wrong.write_text((small_study / "study.toml").read_text().replace(old, new, 1))
    one_clear_error(run, told, "config", "check", wrong)
    assert run("config", "show", wrong)[0] == (0 if "[task]" in told else 2)


def test_a_renamed_key_is_answered_with_its_name(tmp_path: Path) -> None:
    class Renamed(Table):
        epsilon: float = key(1.0, help="budget", formerly=("budget",))

    class File(Settings):
        privacy: Renamed = Renamed()

    file = tmp_path / "file.toml"
    file.write_text("[privacy]\nbudget = 3\n")
    with pytest.raises(ConfigurationError, match=r"is not a known key\. It is called privacy\.epsilon now\."):
        read_settings(File, file, hint="")


def test_values_come_with_their_origin(run: Run, small_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_PRIVACY__EPSILON", "4")
    text = (small_study / "study.toml").read_text()
    (small_study / "shorter.toml").write_text(text.replace("resume_s =", "# resume_s ="))
    shown = json.loads(run("config", "show", small_study / "shorter.toml", "--json")[1])
    assert shown["privacy.epsilon"] == {"value": 4.0, "origin": "environment variable SORDINO_PRIVACY__EPSILON"}
    assert shown["deadlines.resume_s"] == {"value": 2.0, "origin": "default"}
    assert shown["study.rounds"] == {"value": 2, "origin": "shorter.toml"}
    assert shown["coordinator.roster"]["value"] == str(small_study / "roster.json")
    lines = run("config", "show", small_study / "shorter.toml", "--origin")[1].splitlines()
    assert [line.split() for line in lines if "resume_s" in line] == [["deadlines.resume_s", "=", "2", "#", "default"]]
    assert "#" not in run("config", "show", small_study / "shorter.toml")[1]


def test_a_policy_in_a_separate_file_is_named(run: Run, small_study: Path) -> None:
    host = small_study / "hosts" / "host-01"
    text = (host / "host.toml").read_text()
    before, rest = text.split("[policy]", 1)
    (host / "host.toml").write_text(before + '[policy]\nfile = "policy.toml"\n\n[task]' + rest.split("[task]", 1)[1])
    (host / "policy.toml").write_text("[policy]\nmax_epsilon = 20\nmin_honest_survivors = 5\n")
    shown = json.loads(run("config", "show", host, "--json")[1])
    assert shown["policy.max_epsilon"] == {"value": 20.0, "origin": "policy.toml"}
    assert shown["participants[0].part"] == {"value": 0, "origin": "host.toml"}
    assert shown["conditions.idle"] == {"value": False, "origin": "default"}


@pytest.mark.parametrize(("which", "model"), [("study", StudyConfiguration), ("host", HostConfiguration)])
def test_schemas_hold_range_and_meaning_of_every_key(run: Run, which: str, model: type[Settings]) -> None:
    schema = json.loads(run("config", "schema", which)[1])
    assert schema == json.loads(run("config", "schema", which, "--json")[1])
    tables = schema["$defs"]
    for one in settings_keys(model).values():
        if one.table:
            said = tables[schema["properties"][one.table]["$ref"].rpartition("/")[2]]["properties"][one.name]
            assert said["description"] == one.about.help
    assert "study, host" in refusal(run, "config", "schema", "policy")


def test_a_range_is_that_of_the_mechanism() -> None:
    assert settings_keys(StudyConfiguration)["beta"].range == f"0 to {LARGEST_BETA}"
