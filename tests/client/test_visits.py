"""A participant made anew for each message: what it keeps to itself, and what it refuses before anything is opened."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.behaviour import HONEST
from client.journal import ClientJournal
from client.owners_word import PAUSED, write_word
from client.saved_phases import SavedPhases
from client.visits import Home, Visit, Visitor, VisitRefused, _Carrier, answer, answer_statement, prove, sign_answer
from runtime.durable import StorageError
from runtime.failure import InputFailure
from secagg.keys import session_statement
from secagg.signatures import verify_signature
from tests.support.study_in_process import make_folder
from tests.wire.made_ledgers import own_row
from wire import coordinator_pb2 as pb
from wire.records.ledger import ChangedLedger, Found, head_file

STUDY: dict[str, Any] = {"participants": 9, "hosts": 9, "min_survivors": 6, "quorum": 6, "dataset": "own"}
EXTERNAL = STUDY | {"task": "external", "task_options": {"dim": 12}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("visits") / "study", **EXTERNAL)


def untrained(model: np.ndarray) -> np.ndarray:
    raise AssertionError("nothing trains here")


def test_a_proof_opens_one_session(folder: Path) -> None:
    home = Home.open(folder / "hosts" / "host-01")
    nonce = bytes(range(32))
    opened, proof = (kind.FromString(one) for kind, one in zip((pb.Open, pb.Proof), prove(home, nonce), strict=True))
    statement = session_statement(home.settings.study.name, opened.identity, opened.nonce, nonce)
    assert verify_signature(opened.identity, proof.signature, statement)
    again = pb.Open.FromString(prove(home, nonce)[0])
    assert again.nonce != opened.nonce


def test_an_answer_is_signed_with_what_it_answers(folder: Path) -> None:
    home = Home.open(folder / "hosts" / "host-01")
    name, identity = home.settings.study.name, home.identity.public
    signature = sign_answer(home, b"asked", [b"one", b"two"])
    assert verify_signature(identity, signature, answer_statement(name, identity, b"asked", [b"one", b"two"]))
    for asked, parts in ((b"other", [b"one", b"two"]), (b"asked", [b"onetwo"]), (b"asked", [b"two", b"one"])):
        assert not verify_signature(identity, signature, answer_statement(name, identity, asked, parts))


async def test_a_paused_node_refuses_an_attempt(folder: Path) -> None:
    home = Home.open(folder / "hosts" / "host-02")
    place = home.settings.host.journal.parent
    write_word(place, PAUSED)
    journal = ClientJournal(home.settings.host.journal, home.settings.host.ledger)
    with SavedPhases(home.states) as states, ThreadPoolExecutor(1) as executor:
        visitor = Visitor(home, journal, states, executor, untrained, HONEST)
        carrier: Any = _Carrier(Visit(b"", bytes(32), bytes(32), []))
        visitor._session.attach(carrier)
        await visitor._begin(pb.RoundStart(round=3, attempt=1))
        [refused] = [one.refusal for one in carrier.sent]
        assert (refused.round, refused.attempt, refused.code) == (3, 1, pb.REFUSAL_CODE_LOCAL_FAILURE)
    journal.close()


def test_a_message_of_no_attempt_and_a_study_of_another_kind(folder: Path, tmp_path: Path) -> None:
    home = Home.open(folder / "hosts" / "host-01")
    with pytest.raises(VisitRefused, match="a document that was announced didn't come along"):
        answer(home, Visit(b"", bytes(32), bytes(32), []), b"", b"", untrained)
    other = make_folder(tmp_path / "other", **STUDY, task="mean", task_options={"high": 1.0})
    with pytest.raises(InputFailure, match="a Flower node is one participant of a study with the task external"):
        Home.open(other / "hosts" / "host-01")


async def charged(home: Home, round_: int) -> Found | None:
    """One row more; what a process knows of the ledger then."""
    journal = ClientJournal(home.settings.host.journal, home.settings.host.ledger)
    await journal.charge(own_row(round_))
    journal.close()
    return journal.ledger.left


async def test_an_older_copy_of_the_ledger_is_refused_by_a_process_that_knows_more(
    folder: Path, tmp_path: Path
) -> None:
    home = Home.open(folder / "hosts" / "host-03")
    place, older = home.settings.host.journal.parent, tmp_path / "older"

    def visit() -> None:
        answer(home, Visit(b"", bytes(32), bytes(32), []), b"", b"", untrained)

    await charged(home, 1)
    shutil.copytree(place, older)
    await charged(home, 2)
    missing, gone = "a document that was announced didn't come along", "row 2 isn't the one that was read here before"
    with ThreadPoolExecutor(1) as other:

        async def refused(told: str) -> None:
            with pytest.raises((VisitRefused, StorageError), match=told):
                await asyncio.get_running_loop().run_in_executor(other, visit)

        await refused(missing)
        shutil.copytree(older, place, dirs_exist_ok=True)
        await refused(gone)
        journal = home.settings.host.journal
        journal.write_bytes(b"not a journal")
        await refused("can't be used as a database")
        shutil.copytree(older, place, dirs_exist_ok=True)
        await refused(gone)
        shutil.rmtree(place)
        await refused("is gone: 2 rows were read here before")
        shutil.copytree(older, place, dirs_exist_ok=True)
        home.ledgers.clear()  # as a new process would
        await refused(missing)


async def test_a_ledger_that_was_refused_once_is_read_again(folder: Path) -> None:
    """Rows that are added to what is known don't count twice, if a later check failed."""
    home = Home.open(folder / "hosts" / "host-04")
    ledger, beside = home.settings.host.ledger, head_file(home.settings.host.ledger)
    known = await charged(home, 1)
    await charged(home, 2)
    kept = beside.read_bytes()
    beside.unlink()
    with pytest.raises(ChangedLedger, match="is missing"):
        ClientJournal(home.settings.host.journal, ledger, known)
    beside.write_bytes(kept)
    journal = ClientJournal(home.settings.host.journal, ledger, known)
    journal.close()
    assert journal.ledger.head.rows == 2
