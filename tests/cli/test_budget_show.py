"""``sordino budget show --participant``: what was spent and what the policy allows, as a participant types it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from authority.new_study import make_local_study, new_study
from client.host_file import load
from client.journal import ClientJournal
from client.policy import epsilon_in_total
from mechanisms.plan import Plan
from server.journal import Journal
from sordino.reporting.budget_limits import limit_lines
from tests.support.attempts_in_memory import make_config
from tests.support.commands import Run, output, refusal, words
from tests.support.rounds_on_record import plan as plan_of
from wire.guarantee import UNRECORDED
from wire.records.ledger import COORDINATOR, About, Ledger, read_ledger
from wire.records.ledger_rows import LedgerEntry, make_entry
from wire.study import StudyDocument

ME, OTHER = bytes(range(32)), bytes(range(1, 33))
MIDNIGHT = "22:00-06:00"


def plan(mechanism: str = "ddgauss", adversary: str = "malicious") -> Plan:
    return plan_of(20, mechanism, adversary=adversary, epsilon=8.0, delta=1e-5, rounds=4)


def entry(study: str, round_: int, who: bytes | None = ME, mechanism: str = "ddgauss", **others: Any) -> LedgerEntry:
    """A row of a participant, or with ``who`` None of a coordinator."""
    participant = {} if who is None else {"identity": who, "data": (others.pop("data", b"") or who).hex()}
    of = others.pop("of", plan(mechanism))
    values: dict[str, Any] = {"study_sha256": hashlib.sha256(study.encode()).digest()} | participant | others
    return make_entry(of, study=study, round=round_, attempt=1, **values)


def append(home: Path, *entries: LedgerEntry) -> None:
    host = load(home).host
    journal = ClientJournal(host.journal, host.ledger)
    for one in entries:
        journal.ledger.append(one).result()
    journal.close()


def spend(home: Path, study: str, rounds: int, who: bytes = ME, mechanism: str = "ddgauss", data: bytes = b"") -> None:
    append(home, *(entry(study, number, who, mechanism, data=data) for number in range(1, rounds + 1)))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "small"
    make_local_study(folder, new_study(name="small", participants=10, hosts=2, rounds=2, epsilon=20.0))
    return folder


@pytest.fixture
def home(study: Path, tmp_path: Path) -> Path:
    """A host's folder with a policy file, and two studies in its ledger."""
    place = shutil.copytree(study / "hosts" / "host-01", tmp_path / "host-01")
    text = (place / "host.toml").read_text()
    start, end = text.index("[policy]"), text.index("[task]")
    (place / "host.toml").write_text(text[:start] + '[policy]\nfile = "policy.toml"\n\n' + text[end:])
    (place / "policy.toml").write_text(
        "[policy]\nmax_epsilon = 9\nmin_honest_survivors = 3\nmax_epsilon_total = 12\nmax_rounds_per_day = 5\n"
        f'hours = ["{MIDNIGHT}"]\n'
    )
    spend(place, "clinic", 2)
    spend(place, "clinic", 1, OTHER)
    spend(place, "registry", 1)
    return place


def test_in_the_hosts_folder(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    out = output(run, "budget", "show", "--participant")
    lines = out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.startswith("  ") and "attempts" not in line}
    assert rows["clinic"][1] == "2"
    assert rows["clinic"][4:] == ["9"]
    assert rows["registry"][1] == "1"
    [total] = [line for line in lines if "all studies together" in line]
    assert total.split()[-1] == "12"
    assert float(total.split()[3]) > float(rows["clinic"][2]) > float(rows["registry"][2])
    assert "Attempts charged within the last 24 hours: 3 of 5." in out
    assert f"Rounds are taken part in at {MIDNIGHT}, local time." in out
    condition = f"zero-out, if at most 2 collude; {UNRECORDED}"
    for name in ("clinic", "registry"):  # a row holds no adversary, and no study document is here
        assert f"{name}: {condition}" in " ".join(out.split())
    assert "4 rows, nothing changed; compared with ledger.sqlite.head and journal.sqlite." in out
    assert "round  attempt" not in out  # in short


def test_a_ledger_is_named_without_detours(home: Path, run: Run) -> None:
    """Settings name ledgers that hosts share relative to themselves: host-01/../ours.sqlite."""
    text = (home / "host.toml").read_text()
    (home / "host.toml").write_text(text.replace('ledger = "ledger.sqlite"', 'ledger = "../host-01/ledger.sqlite"'))
    assert "../host-01" in (home / "host.toml").read_text()
    for more in ((), ("--participant",)):
        out = output(run, "budget", "show", home, *more)
        assert str(home / "ledger.sqlite") in out
        assert ".." not in out


def test_the_ways_to_type_it(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    own = run("budget", "show", "--participant")
    assert run("budget", "show", ".", "--participant") == own
    assert run("budget", "show", "--participant", ".") == own
    monkeypatch.chdir(home.parent)
    there = run("budget", "show", "host-01", "--participant")
    assert there[0] == 0
    assert there[1].splitlines()[2:] == own[1].splitlines()[2:]  # less the ledger's path
    assert run("budget", "show", "--participant", "host-01") == there
    body = json.loads(run("budget", "show", "host-01", "--participant", "--json")[1])
    assert json.loads(run("budget", "show", "--participant", "--json", "host-01")[1]) == body
    assert [one["study"] for one in body["limits"]["studies"]] == ["clinic", "registry"]
    assert body["limits"]["together"][0]["allowed"] == 12
    # One identity, by how it begins; its rows and the policy's limits.
    out = output(run, "budget", "show", "host-01", "--participant", OTHER.hex()[:8])
    assert "registry" not in out.partition("Against this host's policy:")[0]
    assert "round  attempt" in out
    err = refusal(run, "budget", "show", "host-01", "--participant", "zz")
    assert "--participant zz: no identity in this ledger begins so." in err


def test_the_figure_is_the_one_that_is_held_against_the_limit(home: Path, run: Run) -> None:
    shown = json.loads(run("budget", "show", home, "--participant", "--json")[1])["limits"]["together"][0]["epsilon"]
    totals = read_ledger(home / "ledger.sqlite")[2]
    asked = epsilon_in_total(plan(), totals, entry("registry", 2), delta=1e-5)
    assert asked > shown
    append(home, entry("registry", 2))
    body = json.loads(run("budget", "show", home, "--participant", "--json")[1])
    assert body["limits"]["together"][0]["epsilon"] == pytest.approx(asked, rel=1e-9)
    assert body["all_studies"][0]["epsilon"] == pytest.approx(asked, rel=1e-9)


def test_identities_over_the_same_data(home: Path, run: Run) -> None:
    """A participant joined again with a new code: what both identities spent is one figure, not the larger of two."""
    before = json.loads(run("budget", "show", home, "--json")[1])
    spend(home, "clinic", 2, bytes(32), data=ME)
    body = json.loads(run("budget", "show", home, "--json")[1])
    [was, now] = [one["studies"][0] for one in (before, body)]
    assert [one["charges"] for one in now["data"]] == [4, 1]
    assert now["data"][0]["identities"] == sorted((bytes(32).hex(), ME.hex()))
    assert now["data"][0]["renyi"] == pytest.approx(2 * was["data"][0]["renyi"])
    assert now["epsilon_coordinator"] == now["data"][0]["epsilon"] > was["epsilon_coordinator"]
    mine = json.loads(run("budget", "show", home, "--participant", ME.hex()[:8], "--json")[1])
    clinic, asked = (one["limits"]["studies"][0] for one in (body, mine))
    assert (clinic["participants"], clinic["data"], clinic["attempts"]) == (3, 2, 4)
    assert clinic["epsilon"] == asked["epsilon"] == now["epsilon_coordinator"]
    assert asked["attempts"] == 4
    assert body["all_studies"][0]["epsilon"] > before["all_studies"][0]["epsilon"]
    told = run("budget", "show", home)[1]
    [together] = [line for line in told.splitlines() if line.startswith("  together ")]
    assert together.split()[1] == "4"
    assert f"one data: {bytes(32).hex()[:11]}, {ME.hex()[:11]}" in together
    lines = run("budget", "show", home, "--participant")[1].splitlines()
    assert ["clinic", "4"] in [line.split()[:2] for line in lines]


def test_guarantees_of_two_kinds_stand_apart(home: Path, run: Run) -> None:
    spend(home, "trusted", 1, mechanism="gaussian")
    out = output(run, "budget", "show", home, "--participant")
    together = [line for line in out.splitlines() if line.startswith("  together (")]
    assert len(together) == 2
    assert "coordinator trusted" in together[1]
    assert "Guarantees of different kinds are never added up" in out
    assert "trusted: zero-out, if the coordinator is trusted" in out


def test_a_total_below_its_part_is_explained() -> None:
    said = "The total is stated at another order than a study's figure and can be a little lower."
    part = {"study": "clinic", "attempts": 2, "epsilon": 3.0, "delta": 1e-5, "allowed": 9, "holds": "zero-out"}
    kind = {"studies": ["clinic"], "adjacency": "zero-out", "coordinator_trusted": False, "delta": 1e-5, "allowed": 12}
    found = {"policy": {}, "studies": [part], "attempts_in_24_hours": 2, "max_rounds_per_day": None, "hours": None}
    for epsilon, told in ((2.9, True), (3.1, False), (None, False)):
        assert (said in limit_lines({**found, "together": [{**kind, "epsilon": epsilon}]})) is told


def test_a_ledger_without_its_host(home: Path, run: Run) -> None:
    assert "name the host's folder to see it" in output(run, "budget", "show", home / "ledger.sqlite", "--participant")
    assert "Against this host's policy" not in run("budget", "show", home / "ledger.sqlite")[1]


def test_nothing_here(study: Path, home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = study / "hosts" / "host-02"
    assert "nothing is recorded yet" in refusal(run, "budget", "show", host, "--participant")
    for name in ("ledger.sqlite", "ledger.sqlite.head", "journal.sqlite"):
        (home / name).unlink()
    ClientJournal(home / "journal.sqlite", home / "ledger.sqlite").close()
    assert "Nothing was charged yet." in output(run, "budget", "show", home, "--participant")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    err = refusal(run, "budget", "show", "--participant")
    assert "there is no ledger here. Name a study's folder, a host's folder, or the file." in err


def test_a_coordinators_ledger_is_no_participants(study: Path, run: Run, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path / "study")
    path = tmp_path / "study" / "coordinator" / "ledger.sqlite"
    Ledger(path, About(COORDINATOR, "small", "ab"), create=True).close()
    err = refusal(run, "budget", "show", path, "--participant")
    assert "is a coordinator's ledger: --participant without a name asks for a host's own." in err
    host = tmp_path / "study" / "hosts" / "host-01"
    assert f"Run it on a host's folder: `sordino budget show {host} --participant`." in err


@pytest.mark.parametrize("adversary", ["malicious", "curious"])
def test_a_coordinators_condition_is_that_of_its_study_document(adversary: str, run: Run, tmp_path: Path) -> None:
    """No row says what the coordinator may do: the naive line is the same for both."""
    of = plan(adversary=adversary)
    document = StudyDocument(study="clinic", task="softmax-regression", task_options={}, plan=of).to_bytes()
    row = entry("clinic", 1, None, of=of, study_sha256=hashlib.sha256(document).digest(), participants=range(20))

    async def charged() -> None:
        journal = Journal(tmp_path / "state.sqlite")
        await journal.open_study("clinic", document)
        await journal.begin_attempt(make_config(20), frozenset(range(20)))
        await journal.charge(row, b"")
        journal.close()

    asyncio.run(charged())
    out = output(run, "budget", "show", tmp_path)
    trusted = " and the coordinator doesn't lie" if adversary == "curious" else ""
    assert f"  ddgauss, if at most 2 collude{trusted}; exact Gaussian filter" in out
    assert json.loads(run("budget", "show", tmp_path, "--json")[1])["studies"][0]["adversary"] == adversary
    # The ledger alone, as it is handed on.
    (tmp_path / "alone").mkdir()
    for file in tmp_path.glob("ledger.sqlite*"):
        shutil.copy(file, tmp_path / "alone")
    alone = words(run, "budget", "show", tmp_path / "alone")
    assert f"ddgauss, if at most 2 collude; {UNRECORDED}; exact Gaussian filter" in alone
    assert json.loads(run("budget", "show", tmp_path / "alone", "--json")[1])["studies"][0]["adversary"] is None
