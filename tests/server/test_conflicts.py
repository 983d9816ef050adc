"""Of a dealer and a holder that says it got rubbish one has cheated: when that is enough to know who, who is excluded
for that or set aside, and what of it outlives a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mechanisms.plan import Plan
from secagg.messages import UNMASKING
from secagg.parameters import assumed_colluders
from secagg.roster import Roster, RosterEntry
from server.exclusions import draw_consequences, restore_exclusions
from server.journal import Journal
from server.membership import Membership, SignedRoster, as_few_as_explain
from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, refuses
from wire import coordinator_pb2 as pb
from wire.study import plan_study

CONFLICTS = "others say that it sealed rubbish, or are accused of that by it"


def roster_of(*people: int, version: int = 1) -> SignedRoster:
    """These participants, in this order; the signature isn't checked here."""
    entries = tuple(RosterEntry(one.to_bytes(32, "big"), f"host-{one}") for one in people)
    return SignedRoster(Roster("s", version, entries), b"")


def numbers(*people: int) -> dict[bytes, int]:
    """As the journal gives them, for good: never positions."""
    return {one.to_bytes(32, "big"): 99 + one for one in people}


def membership(plan: Plan, people: int) -> Membership:
    """Participants 1 to ``people``, with numbers from 100 on."""
    signed = roster_of(*range(1, people + 1))
    found = Membership(plan, signed, bytes(32), bytes(32), one_machine=False)
    found.use(signed, numbers(*range(1, people + 1)))
    return found


def planned(clients: int, **others: object) -> Plan:
    chosen = {"dim": 8, "bits": 16, "clip": 1.0, "epsilon": 100.0, "delta": 1e-3, "rounds": 5, "max_dropout": 0.2}
    return plan_study(clients=clients, **(chosen | others))  # type: ignore[arg-type]


@pytest.mark.parametrize(("clients", "adversarial", "most"), [(7, 0.1, 2), (100, 0.05, 5)])
def test_more_than_can_collude(clients: int, adversarial: float, most: int) -> None:
    found = membership(planned(clients, adversarial=adversarial), clients)
    for other in range(1, most + 1):
        found.note_conflicts([(100, 100 + other)])
        found.note_conflicts([(100 + other, 100)])  # the two of them once, however often they accuse each other
    assert found.in_too_many_conflicts() == {}
    found.note_conflicts([(100 + most + 1, 100)])
    [(who, reason)] = found.in_too_many_conflicts().items()
    assert who == 0
    assert reason == f"{most + 1} {CONFLICTS}"
    found.excluded[found.numbers[0]] = reason
    assert found.in_too_many_conflicts() == {}
    assert 0 not in found.members()


def test_over_many_draws_somebody_honest_may_meet_all_colluders_of_the_roster() -> None:
    """The naive bound is A, which is for one cohort: it would exclude an honest participant."""
    plan = planned(50, adversarial=0.1, sampling="lottery", population=400)
    everywhere = assumed_colluders(400, plan.adversarial, plan.max_dropout)
    assert plan.colluders < everywhere == 40
    found = membership(plan, 400)
    for colluder in range(1, everywhere + 1):
        found.note_conflicts([(100 + colluder, 100)])
    assert len(found._conflicts[found.numbers[0]]) > plan.colluders
    assert found.in_too_many_conflicts() == {}
    found.note_conflicts([(100 + everywhere + 1, 100)])
    assert found.in_too_many_conflicts().keys() == {0}


def test_conflicts_follow_the_participant_and_not_its_position() -> None:
    """A participant joins at the first position. A naive count by position would name the wrong participant."""
    found = membership(planned(7, adversarial=0.1), 7)
    found.note_conflicts([(102, 104)])
    found.note_conflicts([(105, 102)])  # by now as many as can collude
    assert found.in_too_many_conflicts() == {}
    found.use(roster_of(*range(8), version=2), numbers(*range(8)))
    assert found.number(3) == 102
    assert found.in_too_many_conflicts() == {}
    found.note_conflicts([(104, 102)])  # the same two again
    assert found.in_too_many_conflicts() == {}
    found.note_conflicts([(99, 102)])  # who joined
    assert found.in_too_many_conflicts() == {3: f"3 {CONFLICTS}"}


def test_who_is_set_aside_follows_the_participant_too() -> None:
    found = membership(planned(7, adversarial=0.1), 7)
    found.set_aside.add(found.number(2))
    assert found.members() == frozenset(range(7)) - {2}
    found.use(roster_of(*range(8), version=2), numbers(*range(8)))
    assert found.members() == frozenset(range(8)) - {3}
    assert found.exclusions() == {}  # that is no verdict


def test_whoever_left_is_not_counted() -> None:
    """Others may collude in the place of those who were revoked."""
    found = membership(planned(7, adversarial=0.1), 7)
    for other in (1, 2, 3):
        found.note_conflicts([(100, 100 + other)])
    assert found.in_too_many_conflicts().keys() == {0}
    found.numbers[3] = 999  # another participant has this position now
    assert found.in_too_many_conflicts() == {}


def test_somebody_excluded_does_not_stop_a_lottery() -> None:
    """The rate refers to the whole roster: an excluded participant is drawn, and absent. Not counting it is naive."""
    plan = planned(50, adversarial=0.1, sampling="lottery", population=400)
    found = membership(plan, 400)
    found.excluded[found.numbers[7]] = "cheated"
    found.set_aside.add(found.numbers[8])
    assert len(found.members()) == 398 < plan.population
    assert found.missing() == 0
    assert membership(plan, 398).missing() == 2


def test_who_is_excluded_is_missing_where_everybody_is_invited() -> None:
    plan = planned(7, adversarial=0.1)
    found = membership(plan, 7)
    found.excluded |= dict.fromkeys(found.numbers[: 8 - plan.quorum], "cheated")
    assert found.missing() == 1


@pytest.mark.parametrize(
    ("conflicts", "aside"),
    [
        pytest.param({}, set(), id="nobody"),
        pytest.param({3: {0}}, {3}, id="one against one: the dealer"),
        pytest.param({3: {0, 1}}, {3}, id="two against one"),
        pytest.param({3: {0}, 4: {0}, 5: {1}, 6: {1}}, {0, 1}, id="two liars, each with victims of its own"),
        pytest.param({3: {0, 1}, 4: {0, 1}, 5: {0, 1}, 6: {0, 1}}, {0, 1}, id="two liars together"),
        pytest.param({0: {3, 4}, 5: {1}, 6: {1}}, {0, 1}, id="a dealer of rubbish, and a liar"),
        pytest.param({3: {3, 0}}, {3}, id="itself doesn't count"),
    ],
)
def test_as_few_are_set_aside_as_explain_the_conflicts(conflicts: dict[int, set[int]], aside: set[int]) -> None:
    """All starved dealers, the naive rule, are four honest ones where two liars have two victims each."""
    assert as_few_as_explain({dealer: frozenset(holders) for dealer, holders in conflicts.items()}) == aside


# ---------------------------------------------------------------- over restarts of the coordinator


@dataclass
class Found:
    """What an attempt has shown."""

    conflicts: dict[int, frozenset[int]]
    starved: frozenset[int] = frozenset()
    cheats: dict[int, str] = field(default_factory=dict)
    config: Any = field(default_factory=lambda: SimpleNamespace(round=1))


def after(path: Path, *attempts: Found) -> Membership:
    """A coordinator that starts, sees these attempts and stops."""
    found = membership(planned(7, adversarial=0.1), 7)

    async def run() -> None:
        journal = Journal(path)
        await journal.open_study("s", b"document")
        restore_exclusions(found, journal)
        for one in attempts:
            await draw_consequences(one, found, journal, lambda event: None)  # type: ignore[arg-type]
        journal.close()

    asyncio.run(run())
    return found


def test_conflicts_of_attempts_before_a_restart_count(tmp_path: Path) -> None:
    """Else a cheat that seals rubbish for two others in each attempt could go on over restarts of the coordinator."""
    path = tmp_path / "state.sqlite"
    assert after(path, Found({0: frozenset({1, 2})}), Found({0: frozenset({0, 2})})).members() == frozenset(range(7))
    assert after(path, Found({0: frozenset({3})})).excluded.keys() == {100}
    assert after(path).members() == frozenset(range(1, 7))
    # A coordinator that remembers nothing sees one conflict.
    assert after(tmp_path / "new.sqlite", Found({0: frozenset({3})})).members() == frozenset(range(7))


def test_where_more_than_can_be_cheats_are_accused_nobody_is_and_nothing_is_noted(tmp_path: Path) -> None:
    """A coordinator that damages what it passes on, or a third liar: the naive rule left out all seven for good."""
    path = tmp_path / "state.sqlite"
    everybody = {dealer: frozenset(range(7)) - {dealer} for dealer in range(7)}
    assert after(path, Found(everybody)).members() == frozenset(range(7))
    assert after(path).in_too_many_conflicts() == {}
    liars = {dealer: frozenset({0, 1, 2}) - {dealer} for dealer in range(7)}
    assert after(path, Found(liars, cheats={6: "and this one sent nonsense"})).excluded == {}
    two = {dealer: frozenset({0, 1}) - {dealer} for dealer in range(7)}  # as many as can be cheats
    assert after(path, Found(two)).excluded.keys() == {100, 101}


def test_the_same_conflict_again_is_the_holders_turn(tmp_path: Path) -> None:
    """By the naive rule two liars had the same two honest dealers set aside after every restart, for nothing."""
    path = tmp_path / "state.sqlite"
    accused = {4: frozenset({0}), 5: frozenset({1})}

    def starved() -> Found:
        return Found(dict(accused), starved=frozenset(accused))

    assert after(path, starved()).set_aside == {104, 105}
    assert after(path, starved()).set_aside == {100, 101}
    assert after(path, starved()).set_aside == {100, 101}
    assert as_few_as_explain(accused) == {4, 5}


def test_who_was_set_aside_is_invited_again_where_too_few_others_are_left() -> None:
    found = membership(planned(7, adversarial=0.1), 7)
    found.set_aside |= {104, 105}
    assert found.members() == frozenset(range(7)) - {4, 5}
    assert found.readmit()
    assert found.members() == frozenset(range(7))
    assert not found.readmit()


# ---------------------------------------------------------------- over real gRPC


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
