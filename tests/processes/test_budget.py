"""`sordino budget` on the ledgers of a real study, whole and tampered with; and `sordino serve` at the budget."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.databases import execute
from tests.support.forked_commands import Commands
from tests.support.running_study import RunningStudy, line, running_study

pytestmark = pytest.mark.slow

ROUNDS = 2
CHANGED, BUDGET, BAD_INPUT = 41, 40, 2
Budget = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def budget(sordino: Commands) -> Budget:
    return functools.partial(sordino, "budget")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, budget: Budget) -> Iterator[RunningStudy]:
    """Killed once its first sum was charged, and served to its end. Its ledger is read while it runs."""
    with running_study(tmp_path_factory.mktemp("studies") / "study", rounds=ROUNDS) as study:
        gate = study.folder / "go"
        first = study.start_coordinator(SORDINO_DEADLINES__RESUME_S="0")  # no attempt outlives its coordinator
        hosts = study.start_host(list(range(7)), [line(1, "before unmasking", "hold", gate)])
        study.wait_for("phase_started", round=1, phase="Unmasking")
        beside = budget("verify", study.folder, "--json")
        assert beside.returncode == 0, beside.stderr
        assert json.loads(beside.stdout)["rows"] == 1
        published.append(json.loads(beside.stdout)["head"])
        first.kill()
        assert study.code_of(first) == -signal.SIGKILL
        killed = budget("verify", study.folder)
        assert killed.returncode == 0, killed.stderr
        gate.touch()
        second = study.start_coordinator()
        # A charge too many: whether the budget lasts for the second round is the plan's affair.
        assert study.code_of(second) in (0, BUDGET)
        assert study.code_of(hosts) == 0
        yield study


published: list[str] = []  # heads


@pytest.fixture
def folder(study: RunningStudy, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(study.folder, tmp_path / "study"))


def test_show(study: RunningStudy, budget: Budget) -> None:
    ended = budget("show", study.folder, "--json")
    assert ended.returncode == 0, ended.stderr
    body = json.loads(ended.stdout)
    [told] = body["studies"]
    plan = study.study.plan
    [end] = study.events("study_finished")[-1:]
    assert body["study"] == told["study"] == "seven"
    assert (told["budget"], told["delta"], told["A"]) == (50.0, plan.delta, plan.colluders)
    assert (told["mechanism"], told["adjacency"]) == (plan.mechanism, plan.adjacency)
    for name in ("epsilon_coordinator", "epsilon_released"):
        assert body[name] == pytest.approx(end[name])
    assert {one["participant"]: one["charges"] for one in told["participants"]} == dict.fromkeys(range(7), body["rows"])
    assert [(row["round"], row["attempt"]) for row in told["charges"]][:2] == [(1, 1), (1, 2)]
    one = json.loads(budget("show", study.folder, "--participant", 3, "--json").stdout)
    assert [entry["participant"] for entry in one["studies"][0]["participants"]] == [3]
    text = budget("show", study.folder)
    assert text.returncode == 0
    assert f"Head {body['head']}" in text.stdout
    assert f"of 50 spent at delta {plan.delta:g}, the largest of all participants" in text.stdout
    assert f"  ddgauss, if at most {plan.colluders} collude; exact Gaussian filter\n" in text.stdout
    assert "mu^2/2" in text.stdout
    nobody = budget("show", study.folder, "--participant", 7)
    assert nobody.returncode == BAD_INPUT
    assert "--participant 7: name its number in this ledger, from 0 to 6 (kept when" in nobody.stderr
    # Whom a row is about: identity and host beside the number, and either finds it.
    entries = {one["participant"]: one for one in told["participants"]}
    identity, host = entries[3]["identity"], entries[3]["host"]
    assert host == study.study.hosts[0].name
    row = next(words for words in map(str.split, text.stdout.splitlines()) if words[:1] == ["3"])
    assert row[-2:] == [identity[:8], host]
    assert json.loads(budget("show", study.folder, "--participant", identity[:8], "--json").stdout) == one
    # Without the study's settings nobody knows the hosts; the journal still knows the identities.
    bare = json.loads(budget("show", study.folder / "coordinator", "--json").stdout)
    assert [(p["identity"], p["host"]) for p in bare["studies"][0]["participants"] if p["participant"] == 3] == [
        (identity, None)
    ]
    # The log of events has the head of every charge that was acted upon.
    heads = {event["ledger_head"] for event in study.events("survivors_frozen")}
    assert heads == {row["hash"] for row in told["charges"]}


def test_report_names_the_ledger(folder: Path, sordino: Commands, budget: Budget) -> None:
    assert sordino("report", folder).returncode == 0
    head = json.loads(budget("verify", folder, "--json").stdout)["head"]
    assert f"nothing changed; head {head}." in (folder / "report.html").read_text()


def test_show_of_a_participant(study: RunningStudy, budget: Budget) -> None:
    host = study.study.hosts[0]
    ended = budget("show", host, "--json")
    assert ended.returncode == 0, ended.stderr
    body = json.loads(ended.stdout)
    [told] = body["studies"]
    assert (body["side"], len(told["participants"])) == ("participant", 7)
    who = told["participants"][0]["participant"]
    one = json.loads(budget("show", host, "--participant", who[:12], "--json").stdout)
    assert {row["kind"] for row in one["studies"][0]["charges"]} <= {"charge", "exact"}
    [together] = body["all_studies"]
    assert together["epsilon"] > 0
    assert together["adjacency"] == told["adjacency"]
    text = budget("show", host).stdout
    assert "nothing changed" in text
    assert "the largest of all data here, all its identities together" in text
    # Every row says whose it is, by as many digits as --participant takes.
    rows = [line.split() for line in text.partition("  row  participant  round")[2].splitlines()[1:] if "Z" in line]
    assert [row[1] for row in rows] == [row["participants"][:11] for row in told["charges"]]
    refused = budget("show", host, "--participant", "zz")
    assert refused.returncode == BAD_INPUT
    assert "--participant zz" in refused.stderr


def test_verify(study: RunningStudy, budget: Budget) -> None:
    ended = budget("verify", study.folder, "--head", published[0])
    assert ended.returncode == 0, ended.stderr
    assert "rows, nothing changed; compared with ledger.sqlite.head and state.sqlite." in ended.stdout
    assert "is that of row 1" in ended.stdout
    assert budget("verify", study.state.with_name("ledger.sqlite")).returncode == 0
    never = budget("verify", study.folder, "--head", "ab" * 32)
    assert never.returncode == CHANGED
    assert "never had the head abababab" in never.stderr
    wrong = budget("verify", study.folder, "--head", "abc")
    assert wrong.returncode == BAD_INPUT
    assert "--head abc" in wrong.stderr


def sql(*statements: str) -> Callable[[Path], None]:
    unlocked = "DROP TRIGGER rows_stay", "DROP TRIGGER rows_are_kept"
    return lambda folder: execute(folder / "coordinator" / "ledger.sqlite", *unlocked, *statements)


def without(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / "coordinator" / name).unlink()

    return damage


SHORTER = "UPDATE head SET rows = rows - 1, hash = (SELECT hash FROM rows ORDER BY number DESC LIMIT 1)"
LAST = "DELETE FROM rows WHERE number = (SELECT max(number) FROM rows)"
TAMPERED: dict[str, tuple[Callable[[Path], None], int, int | None, str]] = {
    "a cost is changed": (
        sql("UPDATE rows SET body = CAST(replace(body, '\"cost\":', '\"cost\":1') AS BLOB) WHERE number = 2"),
        CHANGED,
        2,
        "row 2 was changed",
    ),
    "the end is removed": (sql(LAST, SHORTER), CHANGED, None, "is missing: ledger.sqlite.head says"),
    "the ledger is gone": (without("ledger.sqlite"), CHANGED, None, "ledger.sqlite: is missing"),
    "the state is gone": (without("state.sqlite"), CHANGED, None, "of which state.sqlite knows nothing"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_verify_after_tampering(folder: Path, name: str, sordino: Commands, budget: Budget) -> None:
    damage, code, row, told = TAMPERED[name]
    damage(folder)
    ended = budget("verify", folder, "--json")
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    body = json.loads(ended.stdout)
    assert (body["exit_code"], told in body["error"]) == (code, True)
    if row is not None:
        assert body["row"] == row
        assert budget("show", folder).returncode == code  # no totals of a ledger that is wrong
        refused = sordino("report", folder)  # and no page
        assert refused.returncode == code
        assert "no report is written, the ledger was changed." in refused.stderr
        assert told in refused.stderr
        assert not (folder / "report.html").exists()


def test_serve_at_the_budget(tmp_path: Path, budget: Budget) -> None:
    """One round is planned, and its first attempt was charged and came to nothing: the next one is refused."""
    with running_study(tmp_path / "study", rounds=1) as study:
        gate = tmp_path / "go"
        first = study.start_coordinator(SORDINO_DEADLINES__RESUME_S="0")  # no attempt outlives its coordinator
        hosts = study.start_host(list(range(7)), [line(1, "before unmasking", "hold", gate)])
        study.wait_for("phase_started", round=1, phase="Unmasking")
        first.kill()
        assert study.code_of(first) == -signal.SIGKILL
        gate.touch()
        second = study.start_coordinator()
        assert study.code_of(second) == BUDGET, study.story()
        assert study.code_of(hosts) == 0  # they came back, and heard that it is over
        assert len(study.events("attempt_started")) == 1
        assert study.events("study_finished")[-1]["reason"] == "budget reached"
        assert "budget reached; no further round is run" in study.logs("serve")
        assert len(study.charges()) == 1
        assert study.code_of(study.start_coordinator()) == BUDGET  # and again, at once: all have heard
        assert "waiting for participants" not in study.logs("04-serve")
        (study.state.parent / "told.json").unlink()
        fourth = study.start_coordinator()  # they may not have heard: they are waited for, unless it is told to stop
        study.until(
            lambda: "waiting for participants that haven't received the end" in study.logs("05-serve"), "the wait"
        )
        fourth.send_signal(signal.SIGTERM)
        assert study.code_of(fourth) == BUDGET
        assert budget("verify", study.folder).returncode == 0
