"""Participants that refuse, or send an empty chunk: each is dropped with a reason, and the others' round goes on.

The scripts of tests/adversary hold the other ways to break a rule, each also against a coordinator without the check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.study_in_process import (
    PARTICIPANTS,
    Coordinator,
    Peer,
    Twist,
    coordinator,
    faults,
    identities,
    refuses,
)
from wire import coordinator_pb2 as pb
from wire.transport import frame


async def with_an_empty_chunk(peer: Peer, packed: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await peer.upload([frame(packed[:100]), b"\x0a\x00", frame(packed[100:])])
    # It is answered while more is being sent: a write may fail first, and the answer is lost.
    assert error.value.code() == grpc.StatusCode.INTERNAL or "chunk" in (error.value.details() or "")


@dataclass(frozen=True)
class Case:
    """What participant 0 does in round 1, and what the coordinator says about it."""

    kind: str  # the message that it replaces
    phase: str
    reason: str
    twist: Twist | None = None
    uploader: Callable[[Peer, bytes], Awaitable[Any]] | None = None


ADVERTISE, OFFER = ("advertise_keys", "AdvertiseKeys"), ("masked_input", "MaskedInputCollection")
CASES = {
    "refuses": Case(*ADVERTISE, "policy or budget", refuses(pb.REFUSAL_CODE_POLICY)),
    "refuses without a known code": Case(*ADVERTISE, "refused", refuses(77)),
    "sits out": Case("share_keys", "ShareKeys", "sits this attempt out", refuses(pb.REFUSAL_CODE_ALREADY_JOINED)),
    "fails on its side": Case(*OFFER, "own side", refuses(pb.REFUSAL_CODE_LOCAL_FAILURE)),
    "refuses the sets": Case(
        "consistency", "ConsistencyCheck", "failed its checks", refuses(pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED)
    ),
    "empty chunk": Case(*OFFER, "upload failed", uploader=with_an_empty_chunk),
}


class Patient(Peer):
    """Answers the culprit's phase of round 1 when the culprit has been dropped: else the phase could end before."""

    waits_at = ""

    async def say(self, kind: str, content: Any) -> None:
        if kind == self.waits_at and self.number[0] == 1:
            await self.where.wait_for("participant_dropped")
        await super().say(kind, content)


def peers_of(where: Coordinator, case: Case) -> list[Peer]:
    """Seven peers; 0 misbehaves, the last two are patient."""
    keys = identities(where.folder)
    patient = [Patient(where, key) for key in keys[-2:]]
    for peer in patient:
        peer.waits_at = case.kind
    twists = {} if case.twist is None else {case.kind: case.twist}
    return [Peer(where, keys[0], twists, case.uploader), *(Peer(where, key) for key in keys[1:-2]), *patient]


@pytest.mark.parametrize("name", CASES)
async def test_dropped_and_the_round_goes_on(
    study_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    case = CASES[name]
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = peers_of(where, case)
        assert (await where.play(peers)).rounds_completed == 2
        first, second = where.of("round_completed")
        [drop] = where.of("participant_dropped")
        assert (drop["round"], drop["participant"], drop["phase"]) == (1, 0, case.phase)
        assert case.reason in drop["reason"]
        assert first["dropouts"] == 1
        assert first["u3"] == PARTICIPANTS - (case.kind != "consistency")
        left_out = next(end for end in peers[0].heard("round_end") if end.round == 1)
        assert not left_out.completed
        assert left_out.reason.startswith("left out")
        # Nothing else is lost: the same session takes part in the next round, unless it is excluded.
        excluded = where.of("participant_excluded")
        assert len(excluded) == (case.twist is None)  # an honest participant may refuse; it sends no empty chunk
        left = PARTICIPANTS - len(excluded)
        assert (second["u1"], second["u3"], second["dropouts"]) == (left, left, 0)
        for one in excluded:
            assert one["participant"] == 0
            assert one["reason"] == f"{case.phase}: {drop['reason'].removeprefix('upload failed: ')}"
            assert where.journal.excluded() == {0: one["reason"]}
    assert faults(caplog) == []
