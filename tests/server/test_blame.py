"""Of a dealer and a holder that says it has no share one has cheated: who is excluded for that, who is set aside, and
what of it outlives a restart or stands in a transcript.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.messages import MASK_KEY, SELF_MASK_SEED, UNMASKING
from secagg.roster import Roster, RosterEntry
from secagg.shamir import PRIME
from server.membership import Membership, SignedRoster
from server.transcripts import file_name
from sordino.reporting.transcript_text import lines
from tests.support.card_of_a_study import put_card
from tests.support.crooked_dealings import crooked_shares
from tests.support.rounds_on_record import coordinator_key, plan
from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, identities, make_folder, refuses
from wire import codec
from wire import coordinator_pb2 as pb
from wire.records.transcript import Excluded
from wire.records.transcript_checks import Chain, verify_transcript

CONFLICTS = "others say that it sealed rubbish, or are accused of that by it"

# ---------------------------------------------------------------- conflicts over changes of the roster


def roster_of(*people: int, version: int = 1) -> SignedRoster:
    """These participants, in this order; the signature isn't checked here."""
    entries = tuple(RosterEntry(one.to_bytes(32, "big"), f"host-{one}") for one in people)
    return SignedRoster(Roster("s", version, entries), b"")


def numbers(*people: int) -> dict[bytes, int]:
    """As the journal gives them, for good."""
    return {one.to_bytes(32, "big"): 100 + one for one in people}


def test_conflicts_follow_the_participant_and_not_its_position() -> None:
    """A participant joins at the first position. A naive count by position would name the wrong participant."""
    membership = Membership(plan(7), roster_of(*range(1, 8)), bytes(32), one_machine=False)
    membership.use(membership.signed, numbers(*range(1, 8)))
    membership.note_conflicts([(103, 105)])
    membership.note_conflicts([(106, 103)])  # by now as many as can collude
    assert membership.in_too_many_conflicts() == {}
    membership.use(roster_of(*range(8), version=2), numbers(*range(8)))
    assert membership.number(3) == 103
    assert membership.in_too_many_conflicts() == {}
    membership.note_conflicts([(105, 103)])  # the same two again
    assert membership.in_too_many_conflicts() == {}
    membership.note_conflicts([(100, 103)])  # who joined
    assert membership.in_too_many_conflicts() == {3: f"3 {CONFLICTS}"}


def test_who_is_set_aside_follows_the_participant_too() -> None:
    membership = Membership(plan(7), roster_of(*range(1, 8)), bytes(32), one_machine=False)
    membership.use(membership.signed, numbers(*range(1, 8)))
    membership.set_aside.add(membership.number(2))
    assert membership.members() == frozenset(range(7)) - {2}
    membership.use(roster_of(*range(8), version=2), numbers(*range(8)))
    assert membership.members() == frozenset(range(8)) - {3}
    assert membership.exclusions() == {}  # that is no verdict


# ---------------------------------------------------------------- over a restart


def seals_rubbish_for(holder: int) -> Any:
    """By its place among the neighbours."""

    def twist(peer: Peer, honest: pb.SealedShares) -> list[pb.ParticipantMessage]:
        honest.ciphertexts[holder] = bytes(112)
        return [peer.wrap(share_keys=honest)]

    return twist


def accuses_everybody(peer: Peer, honest: pb.UnmaskingReply) -> list[pb.ParticipantMessage]:
    for share in honest.shares:
        share.none.CopyFrom(pb.NoShare())
    return [peer.wrap(unmasking=honest)]


async def test_a_restart_keeps_exclusions_and_forgives_setting_aside(study_folder: Path, tmp_path: Path) -> None:
    """0 seals rubbish for 4 and is gone at the end; 1 accuses everybody. 4 has met both, and is honest."""
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state) as where:
        cheats = {"share_keys": seals_rubbish_for(3), "unmasking": refuses()}
        await where.play(where.peers({0: cheats, 1: {"unmasking": accuses_everybody}}))
        [aborted] = where.of("attempt_aborted")
        assert (aborted["round"], aborted["attempt"], aborted["phase"]) == (1, 1, UNMASKING)
        assert [(one["participant"], one["host"]) for one in where.of("participant_set_aside")] == [(0, "host-01")]
        [excluded] = where.of("participant_excluded")
        assert excluded["participant"] == 1
        assert CONFLICTS in excluded["reason"]
        assert where.journal.excluded() == {1: excluded["reason"]}
        assert where.of("round_completed")[0]["survivors"] == [2, 3, 4, 5, 6]
    async with coordinator(study_folder, state) as where:
        membership = where.study._membership
        assert membership.excluded == {1: excluded["reason"]}
        assert membership.set_aside == set()
        assert membership.members() == frozenset(range(PARTICIPANTS)) - {1}


# ---------------------------------------------------------------- on record


class Crooked(Peer):
    """Commits to one share of its seed, that of the participant after it, that doesn't fit the others."""

    async def on_cohort_keys(self, message: pb.CohortKeys) -> None:
        symbols = {0: self.phase._keys.mask_key_symbols}
        self.phase, answer = self.phase.receive(codec.read_cohort_keys(message))
        if self.number[0] == 1:

            def change(shares: NDArray[np.uint16]) -> None:
                assert (MASK_KEY, SELF_MASK_SEED) == (0, 1)
                shares[1, SELF_MASK_SEED] = (shares[1, SELF_MASK_SEED].astype(int) + 1) % PRIME

            attempt = SimpleNamespace(phases={0: self.phase}, mask_key_symbols=symbols)
            answer = crooked_shares(attempt, 0, change)  # type: ignore[arg-type]
        await self.say("share_keys", codec.write_sealed_shares(answer))


class Patient(Peer):
    """Reveals its shares once participant 1 has, so that the inconsistent one is among those that are used."""

    async def say(self, kind: str, content: Any) -> None:
        while kind == "unmasking" and not self.has_revealed(1):
            await asyncio.sleep(0.002)
        await super().say(kind, content)

    def has_revealed(self, who: int) -> bool:
        attempt = self.where.study._attempt
        return attempt is None or (attempt._phase_name == UNMASKING and who in attempt._answered)


async def test_a_dealer_whose_inconsistent_shares_cost_nothing_is_caught_on_record(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", name="caught")
    put_card(folder, coordinator_key())
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        first, second, *others = identities(folder)
        peers = [Crooked(where, first), Peer(where, second), *(Patient(where, key) for key in others)]
        assert (await where.play(peers)).rounds_completed == 2
    assert where.of("attempt_aborted") == where.of("participant_set_aside") == []
    assert [one["participant"] for one in where.of("participant_excluded")] == [0]
    authority = bytes.fromhex((folder / "authority" / "authority.pub").read_text())
    chain = Chain()
    files = [tmp_path / "transcripts" / file_name(round_) for round_ in (1, 2)]
    verified = [verify_transcript(file.read_bytes(), authority) for file in files]
    for one in verified:
        chain.add(one)
    named = Excluded(identities(folder)[0].public, "1 of the shares it committed to don't fit the others")
    first, second = (one.contents for one in verified)
    assert (first.caught, first.excluded) == ((named,), ())
    assert 0 in first.u3  # its input is in the sum
    assert (second.caught, second.excluded) == ((), (named,))
    assert 0 not in second.u1
    said = [" ".join(" ".join(lines(one, authority_known=True)).split()) for one in verified]
    told = f"{named.identity.hex()[:12]}…, says the coordinator: {named.reason}"
    assert f"Caught in this attempt: {told}" in said[0]
    assert "Not invited" not in said[0]
    assert f"Not invited any more: {told}" in said[1]
    assert "Caught" not in said[1]
