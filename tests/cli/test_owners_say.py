"""``sordino join`` with --status, --pause, --resume, --leave and --export: what is said, and bad input."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from authority.new_study import make_local_study, new_study
from client.credentials import load_identity
from client.host_file import load
from client.journal import ClientJournal
from client.owners_word import WORD_FILE
from tests.support.commands import Run, one_clear_error, output
from tests.support.rounds_on_record import plan
from wire.records.ledger_rows import EXCLUDED, make_entry

TERMS = bytes(range(32))
LATEST = 24


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_local_study(tmp_path / "study", new_study(name="small", participants=10, hosts=10, rounds=2, epsilon=20.0))
    return tmp_path / "study" / "hosts" / "host-01"


@pytest.fixture
def used(home: Path) -> Path:
    """A host that joined attempts: all but the first are charged, and the last charge is taken back."""
    settings = load(home).settings()
    me = load_identity(settings.participants[0].key).public
    journal = ClientJournal(settings.host.journal, settings.host.ledger)

    async def take_part() -> None:
        for round_ in range(1, LATEST + 1):
            await journal.join(TERMS.hex(), me, round_, 1)
            values = {"study_sha256": TERMS, "identity": me, "data": "ab" * 32, "round": round_, "attempt": 1}
            charge = make_entry(plan(20, rounds=30), study="small", **values)
            if round_ > 1:
                await journal.charge(charge)
        await journal.charge(make_entry(plan(20, rounds=30), study="small", kind=EXCLUDED, **values))

    asyncio.run(take_part())
    journal.close()
    return home


def test_before_anything_was_sent(home: Path, run: Run) -> None:
    said = output(run, "join", "--home", home, "--status")
    assert "Host host-01 of the study small: it takes part while `sordino join` runs." in said
    assert "Nothing was charged yet." in said
    assert not (home / "journal.sqlite").exists()
    one_clear_error(
        run, "nothing to export: no attempt was joined here yet", "join", "--home", home, "--export", home / "x"
    )


def test_before_it_has_joined(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.joining.folder.unfinished", lambda place: Mock(shown_identity="ab12"))
    one_clear_error(
        run,
        "identity ab12, hasn't joined its study yet, and --pause is for a host that has",
        *("join", "--home", home, "--pause"),
    )
    assert not (home / WORD_FILE).exists()


def test_what_was_sent(used: Path, run: Run) -> None:
    said = output(run, "join", "--home", used, "--status").splitlines()
    [first, *_, last] = [line for line in said if " UTC " in line]
    assert "uploaded, outcome unknown: charged at most" in first
    assert "uploaded, not in the sum: charge cancelled" in last
    assert any("and 4 earlier attempts: --json has all" in line for line in said)
    body = json.loads(output(run, "join", "--home", used, "--status", "--json"))
    assert [one["round"] for one in body["attempts"]] == list(range(1, LATEST + 1))
    assert body["attempts"][0]["uploaded"] is None
    spent = [one["epsilon"] for one in body["attempts"][1:]]
    assert spent[:-1] == sorted(spent[:-1])
    assert spent[-1] == spent[-2] == body["limits"]["studies"][0]["epsilon"]


def test_the_records_are_written_once(used: Path, tmp_path: Path, run: Run) -> None:
    [file, *_] = output(run, "join", "--home", used, "--export", tmp_path / "records").splitlines()
    exported = json.loads(Path(file).read_bytes())
    assert len(exported["attempts"]) == LATEST
    assert "ab" * 32 not in Path(file).read_text()  # the data's name
    one_clear_error(run, "can't be written: File exists", "join", "--home", used, "--export", tmp_path / "records")


def test_the_owners_word(home: Path, run: Run) -> None:
    assert "finishes an attempt under way" in output(run, "join", "--home", home, "--pause")
    assert "its owner paused it on" in output(run, "join", "--home", home, "--status")
    assert "takes part in small again" in output(run, "join", "--home", home, "--resume")
    me = load_identity(load(home).settings().participants[0].key).public.hex()
    assert me in output(run, "join", "--home", home, "--leave")
    one_clear_error(run, "this host left the study on", "join", "--home", home, "--pause")
    assert json.loads(output(run, "join", "--home", home, "--status", "--json"))["state"] == "left"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--pause", "--resume"], "--pause takes only --home DIR and --json: leave out the other options."),
        (["--status", "localhost:8443"], "--status takes only --home DIR and --json"),
        (["--leave", "--service"], "--leave takes only --home DIR and --json"),
        (["--export", "x", "--data", "y"], "--export takes only --home DIR and --json"),
    ],
)
def test_options_that_contradict(home: Path, arguments: list[str], told: str, run: Run) -> None:
    one_clear_error(run, told, "join", "--home", home, *arguments)
    assert not (home / WORD_FILE).exists()
