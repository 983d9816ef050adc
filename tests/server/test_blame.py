"""Of a dealer and a holder that says it has no share one has cheated: who is excluded for that, who is set aside, and
what of it outlives a restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secagg.messages import UNMASKING
from secagg.roster import Roster, RosterEntry
from server.membership import Membership, SignedRoster
from tests.support.rounds_on_record import plan
from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, refuses
from wire import coordinator_pb2 as pb

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
