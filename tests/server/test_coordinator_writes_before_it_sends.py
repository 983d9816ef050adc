"""What must be on disk before a message leaves the coordinator, read by another connection when it is sent; and
a disk that takes nothing more.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import server.sessions
from runtime.durable import StorageError
from server.journal import check_ledger
from tests.support.databases import query
from tests.support.study_in_process import PARTICIPANTS, coordinator, playing
from wire import coordinator_pb2 as pb

ON_DISK = "SELECT u2, u3, length(masked_sum), unmasking_request, outcome FROM attempts WHERE round = ? AND attempt = ?"


async def test_the_order(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state.sqlite"
    seen: dict[str, int] = {}
    honest = server.sessions.Session.send

    def send(session: server.sessions.Session, data: bytes) -> None:
        message = pb.CoordinatorMessage.FromString(data)
        kind = message.WhichOneof("message")
        content = getattr(message, kind)
        if kind in ("round_start", "survivor_sets", "unmasking_request", "round_end"):
            number = (content.round, content.attempt)
            [row] = query(state, ON_DISK, number)
            charges = [row for row in check_ledger(state) if (row.entry.round, row.entry.attempt) == number]
            u2, u3, size, request, outcome = row
            seen[kind] = seen.get(kind, 0) + 1
            if kind == "round_start":
                assert row == (None, None, None, None, None)
            if kind == "survivor_sets":
                assert json.loads(u2) == json.loads(u3) == list(range(PARTICIPANTS))
                assert size == 2 * 512  # the whole sum, in words of 16 bits
                assert charges == []
            if kind == "unmasking_request":
                assert [row.entry.participants for row in charges] == [tuple(range(PARTICIPANTS))]
                assert request == content.SerializeToString()
            if kind == "round_end":
                assert outcome == "completed"
        honest(session, data)

    monkeypatch.setattr(server.sessions.Session, "send", send)
    async with coordinator(study_folder, state) as where:
        assert (await where.play()).rounds_completed == 2
    assert seen == dict.fromkeys(("round_start", "survivor_sets", "unmasking_request", "round_end"), 2 * PARTICIPANTS)


@pytest.mark.parametrize(
    ("full_at", "never", "file"),
    [
        ("round_start", "survivor_sets", "state"),
        ("survivor_sets", "unmasking_request", "state"),
        ("survivor_sets", "unmasking_request", "ledger"),
        ("welcome", "round_start", "state"),
    ],
)
async def test_a_disk_that_takes_no_more(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: str, never: str, file: str
) -> None:
    """The study stops with the file's name before it says anything that it couldn't write down."""
    state = tmp_path / "state.sqlite"
    sent: set[str] = set()
    honest = server.sessions.Session.send
    async with coordinator(study_folder, state) as where:
        store = where.journal._store if file == "state" else where.journal.ledger._store

        def send(session: server.sessions.Session, data: bytes) -> None:
            kind = pb.CoordinatorMessage.FromString(data).WhichOneof("message")
            sent.add(kind)
            if kind == full_at:
                # As a full disk does: what there is can be read, every write fails.
                store._connection.execute("PRAGMA query_only = 1")
            honest(session, data)

        monkeypatch.setattr(server.sessions.Session, "send", send)
        async with playing(where.peers()):
            where.start()
            with pytest.raises(StorageError, match=rf"{file}\.sqlite"):
                await where.finish()
        store._connection.execute("PRAGMA query_only = 0")
    assert full_at in sent
    assert never not in sent
