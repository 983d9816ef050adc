"""Participants that refuse: each is dropped with a reason, and the others' round goes on.

The scripts of tests/adversary hold the ways to break a rule, each also against a coordinator without the check.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, faults, identities, refuses
from wire import coordinator_pb2 as pb

# The message that participant 0 refuses in round 1, its phase, the code, and what the coordinator says about it.
ADVERTISE = "advertise_keys", "AdvertiseKeys"
CASES = {
    "by policy": (*ADVERTISE, pb.REFUSAL_CODE_POLICY, "policy or budget"),
    "without a known code": (*ADVERTISE, 77, "refused"),
    "sits out": ("share_keys", "ShareKeys", pb.REFUSAL_CODE_ALREADY_JOINED, "sits this attempt out"),
    "fails on its side": ("masked_input", "MaskedInputCollection", pb.REFUSAL_CODE_LOCAL_FAILURE, "own side"),
    "the sets": ("consistency", "ConsistencyCheck", pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED, "failed its checks"),
}


class Patient(Peer):
    """Answers the culprit's phase of round 1 when the culprit has been dropped: else the phase could end before."""

    waits_at = ""

    async def say(self, kind: str, content: Any) -> None:
        if kind == self.waits_at and self.number[0] == 1:
            await self.where.wait_for("participant_dropped")
        await super().say(kind, content)


@pytest.mark.parametrize(("kind", "phase", "code", "reason"), CASES.values(), ids=CASES)
async def test_dropped_and_the_round_goes_on(
    study_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, phase: str, code: int, reason: str
) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({0: {kind: refuses(code)}})
        peers[-2:] = patient = [Patient(where, key) for key in identities(study_folder)[-2:]]
        for peer in patient:
            peer.waits_at = kind
        assert (await where.play(peers)).rounds_completed == 2
        first, second = where.of("round_completed")
        [drop] = where.of("participant_dropped")
        assert (drop["round"], drop["participant"], drop["phase"]) == (1, 0, phase)
        assert reason in drop["reason"]
        assert first["dropouts"] == 1
        assert first["u3"] == PARTICIPANTS - (kind != "consistency")
        left_out = next(end for end in peers[0].heard("round_end") if end.round == 1)
        assert not left_out.completed
        assert left_out.reason.startswith("left out")
        # Nothing else is lost: an honest participant may refuse, and the same session takes part in the next round.
        assert where.of("participant_excluded") == []
        assert (second["u1"], second["u3"], second["dropouts"]) == (PARTICIPANTS, PARTICIPANTS, 0)
    assert faults(caplog) == []
