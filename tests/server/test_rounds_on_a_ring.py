"""A study on the k-regular graph, with dropouts in every phase and one that cheats, over gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.encoder import Encoder
from tests.support.card_of_a_study import authority_of, put_card
from tests.support.rounds_on_record import coordinator_key
from tests.support.study_in_process import Peer, coordinator, identities, make_folder, refuses, sums_of
from wire import codec, coordinator_pb2 as pb
from wire.records.transcript_checks import Chain, verify_transcript
from wire.records.transcript_files import file_name

MEMBERS, LEAVE = 68, 4


@pytest.fixture(scope="module")
def ring_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As few as share on a ring although some leave; 64 must be in a sum."""
    folder = make_folder(
        tmp_path_factory.mktemp("rings") / "ring",
        name="ring",
        participants=MEMBERS,
        graph="harary",
        adversarial=0.03,
        max_dropout=0.01,
        min_survivors=MEMBERS - LEAVE,
        quorum=MEMBERS - LEAVE,
    )
    put_card(folder, coordinator_key())
    return folder


@dataclass
class Noted(Peer):
    """Remembers what it masks."""

    vectors: dict[int, NDArray[Any]] = field(default_factory=dict)  # by round
    neighbours: set[int] = field(default_factory=set)  # in u2 of the last

    async def on_neighbour_shares(self, message: pb.NeighbourShares) -> None:
        masking = self.phase.receive(codec.read_neighbour_shares(message))
        self.neighbours = {one.dealer for one in message.shares}
        vector = Encoder(self.document.plan, masking.cohort.context).encode(
            None, bytes_of(self.position), masking.noise_seeds
        )
        self.vectors[self.number[0]] = vector
        self.phase, masked = masking.mask(vector)
        self.packed = masked.packed
        await self.say("masked_input", pb.MaskedInputOffer(sha256=masked.sha256, signature=masked.signature))


def bytes_of(position: int) -> Any:
    """What is masked doesn't matter here, only that it differs."""
    return np.random.default_rng(position).bytes


def signs_nothing(peer: Peer, _: Any) -> list[pb.ParticipantMessage]:
    return [peer.wrap(consistency=pb.ConsistencySignature(signature=bytes(64)))]


# After AdvertiseKeys three, as many as a round on this ring bears wherever they stand: with a fourth, one ring in fifty
# would have a dealer next to all of them, with fewer shares than the threshold.
TWISTS: dict[int, dict[str, Any]] = {
    5: {"advertise_keys": refuses()},
    17: {"share_keys": refuses()},
    30: {"masked_input": refuses()},
    51: {"consistency": signs_nothing},
}


@pytest.mark.long
async def test_sums_are_right_after_dropouts(
    ring_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = sums_of(monkeypatch)
    async with coordinator(ring_folder, tmp_path / "state.sqlite", connections=2 * MEMBERS) as where:
        keys = identities(ring_folder)
        peers = [Noted(where, key, TWISTS.get(position, {})) for position, key in enumerate(keys)]
        outcome = await where.play(peers)
        assert outcome.rounds_completed == 2
        first, second = where.of("round_completed")
        assert (first["u1"], first["u2"], first["u3"]) == (MEMBERS - 1, MEMBERS - 2, MEMBERS - 3)
        # In both rounds 67 advertised and three more may leave: degree 10, threshold 7.
        assert {len(peer.neighbours) for peer in peers if 2 in peer.vectors} == {10}
        [cheat] = where.of("participant_excluded")
        assert cheat["participant"] == 51
        assert cheat["reason"] == "ConsistencyCheck: the signature doesn't cover these sets"
        assert (second["u1"], second["u3"], second["dropouts"]) == (MEMBERS - 1, MEMBERS - 1, 0)
        bits = where.study._plan.bits
        for round_, completed in enumerate(totals, 1):
            masked = [peers[who].vectors[round_].astype(np.uint64) for who in sorted(completed.u3)]
            assert (completed.total == np.sum(masked, axis=0) % (1 << bits)).all()
        assert totals[0].u3 == frozenset(range(MEMBERS)) - {5, 17, 30}
        planned = where.of("study_started")[0]["plan"]
        assert (planned["graph"], planned["adversary"]) == ("harary", "malicious")
    chain, authority = Chain(), authority_of(ring_folder).public_key().public_bytes_raw()
    for round_ in (1, 2):
        verified = verify_transcript((tmp_path / "transcripts" / file_name(round_)).read_bytes(), authority)
        chain.add(verified)
        stated = verified.contents.parameters
        assert (stated["graph"], stated["degree"], stated["threshold"]) == ("harary", 10, 7)
    assert [one.reason for one in verified.contents.excluded] == [
        "ConsistencyCheck: the signature doesn't cover these sets"
    ]
