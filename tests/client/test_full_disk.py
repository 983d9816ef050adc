"""A disk that is really full when a charge is to be written: nothing is sent that wasn't written down, no row is lost,
and the log says what to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.journal import ClientJournal
from tests.support.host_in_process import Play, rows_of
from tests.support.study_in_process import PARTICIPANTS
from wire import coordinator_pb2 as pb
from wire.records.ledger import read_ledger

ROOM = 512 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte, where this user may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this user may not mount a file system; the test with a limit on file sizes covers the ledger")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "filler", "ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


def test_a_charge_that_finds_no_room(played: Play, small_disk: Path) -> None:
    ledger = small_disk / "ledger.sqlite"
    before: list[int] = []

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        """The disk fills up after round 2 has begun, before any vector is requested."""
        if message.WhichOneof("message") == "cohort_keys" and message.cohort_keys.round == 2 and not before:
            before.append(len(rows_of(ledger)))
            fill(small_disk)
        return [message]

    def prepare(where: Any) -> None:
        where.study._deadlines_s["MaskedInputCollection"] = 5.0

    story = played(lie, prepare=prepare, host={"ledger": ledger})
    assert story.ended == 0
    assert [event["round"] for event in story.of("round_completed")] == [1]
    second = {message.WhichOneof("message") for _, message in story.messages if message.round == 2}
    assert second <= {"advertise_keys", "share_keys"}
    assert story.codes() == {pb.REFUSAL_CODE_LOCAL_FAILURE}
    told = [entry for entry in story.logs if entry["event"] == "failed"]
    assert PARTICIPANTS >= len(told) >= len(story.refusals) >= 3  # the study is over before the last are heard
    for entry in told:
        assert entry["reason"].startswith("nothing can be written down, so nothing is sent: ")
        assert "ledger.sqlite" in entry["reason"]
        assert "make room and start join again" in entry["reason"]
    # What round 1 cost is all there, whole, though the disk is still full.
    rows = rows_of(ledger)
    assert len(rows) == before[0] >= PARTICIPANTS
    assert {row.round for row in rows} == {1}
    # With room it goes on where it ended.
    (small_disk / "filler").unlink()
    journal = ClientJournal(story.journal, ledger)
    assert journal.ledger.totals.pace.within_a_day(0.0) == 1
    journal.close()
    assert read_ledger(ledger)[1].rows == before[0]


LIMITED = """
import asyncio, json, resource, signal, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
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
    here = Path(__file__).parent
    paths = json.dumps([str(here.parents[1])])
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, paths, str(tmp_path)],
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
