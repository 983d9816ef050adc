"""[policy] in host.toml or in a file of its own: what is read, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.host_file import load
from client.policy_file import PolicyTable, load_policy
from client.settings import HostSettings, parse_window
from runtime.settings_file import ConfigurationError
from tests.client.conftest import LEAST

POLICY = "[policy]\nmax_epsilon = 4\nmin_honest_survivors = 5\n"
CHANGE = "lower the first or raise the second."
FULL = f"""{POLICY}
max_delta = 1e-6
max_epsilon_round = 1
max_epsilon_total = 9
max_delta_total = 1e-5
mechanisms = ["skellam", "ddgauss"]
min_cohort = 10
min_survivors = 9
min_colluders = 3
min_adversarial = 0.05
min_dropout = 0.1
max_clip = 2.5
min_bits = 8
max_bits = 20
max_dimension = 100_000
tasks = ["softmax-regression", "mlp"]
task_digests = ["{"AB" * 32}"]
study_digests = ["{"cd" * 32}"]
model_digests = ["{"ef" * 32}"]
max_rounds_per_day = 3
hours = ["22:00-06:00", "12:00-13:00"]
curious_coordinator = true
one_machine = true
"""


@pytest.fixture(autouse=True)
def policy_file(home: Path) -> Path:
    (home / "policy.toml").write_text(POLICY)
    return home / "policy.toml"


def with_policy(home: Path, table: str) -> None:
    """Put these lines in the place of [policy] in host.toml."""
    start, end = LEAST.index("[policy]"), LEAST.index("[data]")
    (home / "host.toml").write_text(LEAST[:start] + table + LEAST[end:])


def test_every_key(home: Path, policy_file: Path) -> None:
    policy_file.write_text(FULL)
    table = load_policy(home)
    assert load_policy(policy_file) == table
    policy = table.to_policy()
    assert policy.mechanisms == policy.accepted_mechanisms == ("skellam", "ddgauss")
    assert policy.task_digests == ("ab" * 32,)
    assert policy.hours == ("22:00-06:00", "12:00-13:00")
    assert policy.total_delta == 1e-5
    # Nothing is lost between the checked table and what the process runs with.
    assert {name: json.loads(json.dumps(value)) for name, value in vars(policy).items()} == json.loads(
        table.model_dump_json()
    )


def test_what_is_left_out(policy_file: Path) -> None:
    policy = load_policy(policy_file).to_policy()
    assert (policy.max_delta, policy.min_colluders) == (1e-5, 2)
    assert (policy.curious_coordinator, policy.one_machine) == (False, False)
    assert policy.accepted_mechanisms == ()
    assert policy.total_delta == policy.max_delta


FILES = [
    ("", "policy is missing. Add it."),
    ("max_epsilon = 4", "its keys are in no table: put [policy] on a line before them."),
    ("[policy]\nmax_epsilon = 4", "policy.min_honest_survivors is missing. Add it."),
    ("[policy", "not valid TOML"),
    ("policy = 3", "policy = 3"),
]
LINES = [
    ("max_epsilon_totl = 9", "policy.max_epsilon_totl is not a known key. Did you mean max_epsilon_total?"),
    ("colour = 1", "policy.colour is not a known key. Known here: max_epsilon, max_delta"),
    ("max_clip = -1", "policy.max_clip = -1 should be greater than 0."),
    ("max_clip = nan", "policy.max_clip = nan should be a finite number."),
    ("max_bits = 63", "policy.max_bits = 63 should be less than or equal to 62."),
    ("min_dropout = 1.0", "policy.min_dropout = 1.0 should be less than 1."),
    ("max_rounds_per_day = 0", "policy.max_rounds_per_day = 0 should be greater than or equal"),
    *(
        (f"{name} = []", f"policy.{name} = [] is empty, so nothing could be accepted: name at least one")
        for name in ("mechanisms", "key_agreements", "tasks", "task_digests", "study_digests", "model_digests", "hours")
    ),
    ('mechanisms = ["gauss"]', "policy.mechanisms[0] = 'gauss' should be 'ddgauss', "),
    (
        'mechanism = "skellam"\nmechanisms = ["ddgauss"]',
        "policy: mechanism and mechanisms are both set: keep only mechanisms.",
    ),
    ('task_digests = ["abc"]', "policy.task_digests[0] = 'abc'"),
    ("min_bits = 20\nmax_bits = 8", f"policy: min_bits = 20 is above max_bits = 8: {CHANGE}"),
    ("max_epsilon_round = 5", f"policy: max_epsilon_round = 5 is above max_epsilon = 4: {CHANGE}"),
    ("max_epsilon_total = 3", f"policy: max_epsilon = 4 is above max_epsilon_total = 3: {CHANGE}"),
    (
        "max_epsilon_total = 9\nmax_delta_total = 1e-7",
        f"policy: max_delta = 1e-05 is above max_delta_total = 1e-07: {CHANGE}",
    ),
    (
        "max_delta_total = 1e-5",
        "policy: max_delta_total is set without max_epsilon_total: add that key, or remove this one.",
    ),
    (
        'hours = ["22:00-25:00"]',
        "policy.hours[0] = '22:00-25:00' must hold times of day from 00:00 to 24:00, such as 22:00-06:00.",
    ),
    ('hours = ["night"]', "policy.hours[0] = 'night' must read HH:MM-HH:MM"),
    ('hours = ["06:00-06:00"]', "policy.hours[0] = '06:00-06:00' must not be empty: 00:00-24:00 is the whole day."),
]


@pytest.mark.parametrize(("text", "told"), [*FILES, *((POLICY + line, told) for line, told in LINES)])
def test_one_line_for_every_mistake(policy_file: Path, text: str, told: str) -> None:
    policy_file.write_text(text)
    with pytest.raises(ConfigurationError) as error:
        load_policy(policy_file)
    assert str(error.value).startswith(f"{policy_file}: {told}")
    assert "\n" not in str(error.value)


def test_no_file(policy_file: Path) -> None:
    policy_file.unlink()
    with pytest.raises(ConfigurationError, match=r"there is no such file. A policy file holds one table, \[policy\]"):
        load_policy(policy_file)


# ---------------------------------------------------------------- host.toml


def test_host_toml_names_a_file(home: Path) -> None:
    (home / "policy.toml").write_text(POLICY + "max_epsilon_total = 9\n")
    with_policy(home, '[policy]\nfile = "policy.toml"\n')
    read = load(home)
    assert read.policy == load_policy(home)
    # All the way to the process that runs.
    settings = HostSettings.from_json(read.settings().to_json())
    assert settings == read.settings()
    assert settings.policy.max_epsilon_total == 9


def test_a_policy_at_the_command_takes_its_place(home: Path) -> None:
    other = PolicyTable(max_epsilon=1, min_honest_survivors=7, hours=("22:00-06:00",))
    assert load(home, other).policy == other
    with_policy(home, "")
    assert load(home, other).policy == other
    with pytest.raises(ConfigurationError, match="policy is missing"):
        load(home)
    with_policy(home, '[policy]\nfile = "nowhere.toml"\n')
    assert load(home, other).policy == other


def test_the_environment_changes_single_keys_of_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_POLICY__MAX_EPSILON", "2")
    assert load(home).policy.max_epsilon == 2
    with_policy(home, '[policy]\nfile = "policy.toml"\n')
    assert load(home).policy.max_epsilon == 2
    assert load(home, PolicyTable(max_epsilon=1, min_honest_survivors=7)).policy.max_epsilon == 2


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            '[policy]\nfile = "policy.toml"\nmax_epsilon = 4\none_machine = true\n',
            "host.toml: policy.file and max_epsilon, one_machine are both set: keep the file, or the limits without it",
        ),
        ('[policy]\nfile = "other.toml"\n', "other.toml: there is no such file. A policy file holds one table"),
        ("[policy]\nfile = 3\n", "host.toml: policy.file must be the name of a policy file, such as 'policy.toml'."),
        ('[policy]\nfile = ""\n', "host.toml: policy.file must be the name of a policy file"),
        ("[policy]\nmax_epsilon = 4\nmin_honest_survivors = 1\nmax_epsilon_total = 3\n", "host.toml: policy: max_eps"),
        (
            '[policy]\nmax_epsilon = 4\nmin_honest_survivors = 1\ntasks = ["mlp"]\n',
            "policy.tasks doesn't hold 'softmax-regression', so this host would refuse its own study",
        ),
    ],
)
def test_mistakes_in_host_toml(home: Path, table: str, told: str) -> None:
    with_policy(home, table)
    with pytest.raises(ConfigurationError) as error:
        load(home)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_windows() -> None:
    assert parse_window("22:00-06:00") == (22 * 60, 6 * 60)
    assert parse_window("22:00-00:00") == parse_window("22:00-24:00")
    wrong = ["2:00-6:00", "22:00 - 06:00", "22:60-23:00", "24:00-24:00", "24:00-06:00", "00:00-24:01"]
    for bad in (*wrong, "\u0662\u0662:00-06:00"):
        with pytest.raises(ValueError, match="must"):
            parse_window(bad)
