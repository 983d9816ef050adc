"""What must be on disk before a participant sends a message, as another connection reads it then; and on a full disk a
participant refuses and sends nothing that it couldn't write.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import client.connection
from client.journal import ClientJournal
from secagg.messages import request_digest
from tests.client.conftest import refused
from tests.support.databases import query
from tests.support.host_in_process import Play, ledger_of, rows_of
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import codec, coordinator_pb2 as pb
from wire.study import StudyDocument


def on_disk(journal: Path, identity: bytes, number: tuple[int, int]) -> tuple[Any, ...] | None:
    """What was charged last, whether sets were signed, which request was answered; None before it was joined."""
    sql = "SELECT signed IS NOT NULL, answered FROM attempts WHERE identity = ? AND round = ? AND attempt = ?"
    found = query(journal, sql, (identity, *number))
    about = (identity.hex(), *number)
    costs = [one.cost for one in rows_of(ledger_of(journal)) if (one.identity, one.round, one.attempt) == about]
    return (costs[-1] if costs else None, *found[0]) if found else None


def test_the_order(played: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, requests, seen = [], {}, []
    honest_send, honest_upload = client.connection.Session.send, client.connection.Session.upload

    def prepare(where: Coordinator) -> None:
        plans.append(StudyDocument.from_bytes(where.study._study_bytes).plan)
        opened = where.study.sessions.open

        def note(identity: bytes) -> Any:
            session = opened(identity)
            tokens[session.token] = identity
            return session

        where.study.sessions.open = note  # type: ignore[method-assign]

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "unmasking_request":
            request = message.unmasking_request
            requests[request.round, request.attempt] = request_digest(codec.read_unmasking_request(request))
        return [message]

    tokens: dict[bytes, bytes] = {}
    numbers: dict[bytes, tuple[int, int]] = {}

    async def send(session: Any, message: pb.ParticipantMessage) -> None:
        if message.WhichOneof("message") == "phase":
            kind = message.phase.WhichOneof("message")
            identity = tokens[session.welcome.session_token]
            number = numbers[identity] = (message.phase.round, message.phase.attempt)
            row = on_disk(tmp_path / "journal.sqlite", identity, number)
            assert row is not None  # joined, before anything is said
            charged, signed, answered = row
            plan = plans[0]
            seen.append(kind)
            if kind in ("advertise_keys", "share_keys"):
                assert row == (None, 0, None)
            elif kind in ("masked_input", "consistency"):
                assert charged == pytest.approx(plan.round_cost(plan.h_min))
                assert signed == (kind == "consistency")
                assert answered is None
            else:
                assert answered == requests[number]
                # The exact cost takes the place of the worst one, since a quorum has signed that all are in the sum.
                assert charged == pytest.approx(plan.round_cost(PARTICIPANTS - plan.colluders))
        await honest_send(session, message)

    async def upload(session: Any, packed: bytes) -> bytes:
        identity = tokens[session.welcome.session_token]
        row = on_disk(tmp_path / "journal.sqlite", identity, numbers[identity])
        assert row is not None
        assert row[0] is not None
        seen.append("upload")
        return await honest_upload(session, packed)

    monkeypatch.setattr(client.connection.Session, "send", send)
    monkeypatch.setattr(client.connection.Session, "upload", upload)
    story = played(lie, prepare=prepare)
    assert story.ended == 0
    counts = {kind: seen.count(kind) for kind in seen}
    for kind in ("advertise_keys", "share_keys", "masked_input", "upload", "consistency"):
        assert counts[kind] == 2 * PARTICIPANTS
    assert counts["unmasking"] >= 2 * 5


NEEDS = {  # what the row must hold when a message of this kind leaves
    "advertise_keys": lambda charged, signed, answered: True,
    "share_keys": lambda charged, signed, answered: True,
    "masked_input": lambda charged, signed, answered: charged is not None,
    "consistency": lambda charged, signed, answered: signed,
    "unmasking": lambda charged, signed, answered: answered is not None,
}


@pytest.mark.parametrize("full_at", ["ready", "advertise_keys", "masked_input", "consistency"])
def test_a_disk_that_takes_no_more(played: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str) -> None:
    """From a kind of message on nothing can be written: a participant that can't write its next step refuses."""
    honest, journals, unwritten = client.connection.Session.send, [], []
    opened = ClientJournal.__init__
    identities: list[bytes] = []

    def remember(self: ClientJournal, path: Path, ledger: Path) -> None:
        opened(self, path, ledger)
        journals.append(self)

    def prepare(where: Coordinator) -> None:
        identities.extend(entry.identity for entry in where.study._membership.roster.entries)
        deliver = where.study.phase_message

        def arrived(session: Any, message: pb.PhaseMessage, size: int) -> None:
            kind = message.WhichOneof("message") or "nothing"
            identity = identities[session.participant]
            row = on_disk(tmp_path / "journal.sqlite", identity, (message.round, message.attempt))
            if row is None or not NEEDS[kind](*row):
                unwritten.append((session.participant, kind))
            deliver(session, message, size)

        where.study.phase_message = arrived  # type: ignore[method-assign]

    def no_room(*_: object) -> NoReturn:
        raise sqlite3.OperationalError("database or disk is full")

    async def send(session: Any, message: pb.ParticipantMessage) -> None:
        kind = message.WhichOneof("message")
        if full_at == (message.phase.WhichOneof("message") if kind == "phase" else kind):
            for store in (journals[0]._store, journals[0].ledger._store):
                if full_at == "ready":
                    store._connection.execute("PRAGMA query_only = 1")
                else:
                    store._apply = no_room  # type: ignore[method-assign]
        await honest(session, message)

    monkeypatch.setattr(ClientJournal, "__init__", remember)
    monkeypatch.setattr(client.connection.Session, "send", send)
    story = played(prepare=prepare)
    assert story.ended == 0
    assert unwritten == []
    assert story.codes() == {pb.REFUSAL_CODE_LOCAL_FAILURE}
    failed = [entry for entry in story.logs if entry["event"] == "failed"]
    assert {entry["error"] for entry in failed} == {"StorageError"}
    assert all(entry["reason"].startswith("nothing can be written down, so nothing is sent: ") for entry in failed)
    remedy = "see that this folder is there and writable" if full_at == "ready" else "disk is full; make room"
    assert all(f"{remedy}, and start join again" in entry["reason"] for entry in failed)
    assert story.of("round_completed") == []


def test_a_journal_that_cannot_take_the_study(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ClientJournal.__init__

    def full(self: ClientJournal, path: Path, ledger: Path) -> None:
        opened(self, path, ledger)
        self._store._connection.execute("PRAGMA query_only = 1")

    monkeypatch.setattr(ClientJournal, "__init__", full)
    story = played()
    refused(story, "nothing can be written down, so nothing is sent")
    assert "journal.sqlite" in str(story.ended)


LIMITED = """
import asyncio, json, resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.client.policies import charge, document
from client.journal import ClientJournal
from runtime.durable import StorageError

home = Path(sys.argv[2])
journal = ClientJournal(home / "journal.sqlite", home / "ledger.sqlite")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
charged, told = 0, []
for round_ in range(1, 100):
    try:
        asyncio.run(journal.charge(charge(document(), round_)))
        charged = round_
    except StorageError as error:
        told.append(str(error))
        if len(told) == 2:
            break
print(json.dumps({"charged": charged, "told": told}))
"""


def test_charges_up_to_the_last_that_fits(tmp_path: Path) -> None:
    """Files of this process can't grow beyond a limit. Every charge that was acknowledged is there, and none beside."""
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, str(Path(__file__).parents[2]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    body = json.loads(ended.stdout)
    assert 3 <= body["charged"] < 99
    # From the first failure on nothing is charged until the ledger is opened again.
    assert body["told"][0] == body["told"][1]
    assert "ledger.sqlite" in body["told"][0]
    rows = rows_of(tmp_path / "ledger.sqlite")
    assert [row.round for row in rows] == list(range(1, body["charged"] + 1))
    journal = ClientJournal(tmp_path / "journal.sqlite", tmp_path / "ledger.sqlite")
    assert journal.ledger.head.rows == body["charged"]
    journal.close()
