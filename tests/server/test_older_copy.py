"""A coordinator that runs on an older copy of its state learns it from its participants, and opens no sum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from runtime.failure import ExitCode, Failure
from tests.support.study_in_process import Peer, coordinator
from wire import coordinator_pb2 as pb


def joined(round_: int) -> Any:
    """A refusal that says that the participant has joined this round."""

    def refuse(peer: Peer, _: Any) -> Iterable[pb.ParticipantMessage]:
        number = {"round": peer.number[0], "attempt": peer.number[1]}
        refusal = pb.Refusal(
            **number, code=pb.REFUSAL_CODE_ALREADY_JOINED, joined_round=round_, joined_attempt=number["attempt"]
        )
        return [pb.ParticipantMessage(refusal=refusal)]

    return refuse


async def test_most_participants_are_ahead(study_folder: Path, tmp_path: Path) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({who: {"advertise_keys": joined(9 - (who == 0))} for who in range(3)})
        with pytest.raises(Failure, match="answered round 8, and this copy of the study ends with round 0") as told:
            await where.play(peers)
        assert told.value.code == ExitCode.LEDGER
        assert where.of("survivors_frozen") == []  # nothing was charged
        assert [one["reason"] for one in where.of("study_finished")] == ["stopped"]  # participants come back


@pytest.mark.parametrize("round_", [1, 9])
async def test_a_restart_or_two_liars_are_no_proof(study_folder: Path, tmp_path: Path, round_: int) -> None:
    """Two of seven may lie; and any number may have been started again within the attempt."""
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({who: {"advertise_keys": joined(round_)} for who in range(2)})
        assert (await where.play(peers)).rounds_completed == 2
