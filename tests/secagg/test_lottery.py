"""The lottery: only the authority's seeds choose a cohort, and all find the same winners."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from secagg.context import winners
from secagg.lottery import MAX_DRAWS, Draws, InvalidTicket, Lottery, Ticket
from secagg.parameters import LOTTERY_FAILURE, assumed_colluders, colluders_in_cohort
from secagg.roster import Roster, RosterEntry
from tests.support.attempts_in_memory import make_config, roster_of

ROSTER = roster_of(20)
DRAWS = Draws.draw("test", 1, 7, np.random.default_rng(1).bytes)
DRAWN = replace(ROSTER, lottery=DRAWS.lottery)


def by_hand(roster: Roster, round_: int, seed: bytes, cohort: int) -> frozenset[int]:
    """The definition, without any function of ours."""

    def field(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    def value(identity: bytes) -> bytes:
        label = field(b"sordino/v1/lottery") + (5).to_bytes(8, "little")
        fields = (
            *(roster.study.encode(), roster.version.to_bytes(8, "little"), round_.to_bytes(8, "little")),
            *(seed, identity),
        )
        return hashlib.sha256(label + b"".join(map(field, fields))).digest()

    ranked = sorted(range(len(roster)), key=lambda who: value(roster.identity(who)))
    return frozenset(ranked[:cohort])


@pytest.mark.parametrize("round_", range(1, 8))
@pytest.mark.parametrize("cohort", [1, 8, 19, 20])
def test_the_winners_are_those_of_the_definition(round_: int, cohort: int) -> None:
    won = winners(DRAWN, round_, DRAWS.ticket(round_), cohort)
    assert len(won) == cohort
    assert won == by_hand(DRAWN, round_, DRAWS.seeds[round_ - 1], cohort)


def test_every_round_is_another_draw_and_every_version_too() -> None:
    again = Draws("test", 2, DRAWS.seeds)
    later = Roster("test", 2, ROSTER.entries, again.lottery)
    drawn = [winners(DRAWN, round_, DRAWS.ticket(round_), 8) for round_ in range(1, 8)]
    assert len(set(drawn)) == 7
    assert winners(later, 1, again.ticket(1), 8) != drawn[0]  # although the seed is the same
    assert again.lottery.root != DRAWS.lottery.root


def test_an_epoch_deals_the_roster_to_its_rounds() -> None:
    """Nobody is in two rounds of one, and each round's cohort is the definition's next part."""
    dealt = [winners(DRAWN, round_, DRAWS.ticket(round_, 3), 6, 3) for round_ in range(1, 7)]
    for epoch in (0, 1):
        before: frozenset[int] = frozenset()
        for place, cohort in enumerate(dealt[3 * epoch : 3 * epoch + 3], 1):
            assert len(cohort) == 6
            assert not cohort & before
            before |= cohort
            assert before == by_hand(DRAWN, epoch + 1, DRAWS.seeds[epoch], 6 * place)
    assert dealt[:3] != dealt[3:]
    with pytest.raises(InvalidTicket, match="not the one that the authority drew"):
        winners(DRAWN, 4, DRAWS.ticket(3, 3), 6, 3)  # of the epoch before: a second turn for its first cohort
    with pytest.raises(InvalidTicket, match="draws for 21 rounds, this is round 22"):
        winners(DRAWN, 22, DRAWS.ticket(3), 6, 3)
    with pytest.raises(InvalidTicket, match="a roster of 20 can't be dealt to 3 cohorts of 7"):
        winners(DRAWN, 1, DRAWS.ticket(1, 3), 7, 3)


TICKET = DRAWS.ticket(3)
FALSE_TICKETS = {
    "a seed of the coordinator's own": replace(TICKET, seed=b"c" * 32),
    "the seed of another round": DRAWS.ticket(4),
    "another round's path": replace(TICKET, path=DRAWS.ticket(4).path),
    "a short seed": replace(TICKET, seed=b"c" * 31),
    "an empty seed": Ticket(b"", TICKET.path),
    "no path": replace(TICKET, path=()),
    "a longer path": replace(TICKET, path=(*TICKET.path, bytes(32))),
    "hashes of odd length": replace(TICKET, path=tuple(one[:-1] for one in TICKET.path)),
    "draws of the coordinator's own": Draws.draw("test", 1, 7, np.random.default_rng(2).bytes).ticket(3),
    "another study's draws": Draws("tesu", 1, DRAWS.seeds).ticket(3),
    "another version's draws": Draws("test", 2, DRAWS.seeds).ticket(3),
}


@pytest.mark.parametrize("how", FALSE_TICKETS)
def test_no_other_draw_is_taken(how: str) -> None:
    with pytest.raises(InvalidTicket, match="not the one that the authority drew"):
        winners(DRAWN, 3, FALSE_TICKETS[how], 8)


def test_a_coordinator_that_grinds_its_own_seed_fills_the_cohort_with_colluders() -> None:
    """Why the root is signed: with its own seed the coordinator soon has seven of eight places."""
    colluders = frozenset(range(10))

    def naive(seed: bytes) -> frozenset[int]:
        draws = Draws("test", 1, (seed,))
        return winners(replace(ROSTER, lottery=draws.lottery), 1, draws.ticket(1), 8)

    tried = (number.to_bytes(32, "little") for number in range(5_000))  # 1.1 % of seeds will do
    assert any(len(naive(seed) & colluders) >= 7 for seed in tried)


@pytest.mark.parametrize("round_", [0, 8, -1])
def test_rounds_without_a_draw(round_: int) -> None:
    with pytest.raises(InvalidTicket, match="draws for 7 rounds"):
        winners(DRAWN, round_, TICKET, 8)


def test_a_roster_without_a_lottery() -> None:
    with pytest.raises(InvalidTicket, match="without a lottery"):
        winners(ROSTER, 3, TICKET, 8)


def test_every_attempt_of_a_round_has_the_same_cohort() -> None:
    """Where each attempt is drawn anew, a coordinator aborts until colluders have seven of eight places."""
    config = replace(make_config(8, roster=20), roster=DRAWN, round=3, ticket=TICKET)
    assert len({replace(config, attempt=attempt).invited for attempt in range(1, 2_000)}) == 1

    def naive(attempt: int) -> frozenset[int]:
        seed = hashlib.sha256(DRAWS.seeds[2] + attempt.to_bytes(8, "little")).digest()
        return by_hand(DRAWN, 3, seed, 8)

    colluders = frozenset(range(10))
    assert len(config.invited & colluders) < 7
    assert any(len(naive(attempt) & colluders) >= 7 for attempt in range(1, 2_000))


@pytest.mark.parametrize("seeds", [(), (b"s" * 31,), (b"s" * 33,)])
def test_draws_are_checked(seeds: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="seeds of 32 bytes"):
        Draws("test", 1, seeds)


@pytest.mark.parametrize(("draws", "root"), [(0, b"r" * 32), (MAX_DRAWS + 1, b"r" * 32), (5, b"r" * 31)])
def test_a_lottery_is_checked(draws: int, root: bytes) -> None:
    with pytest.raises(ValueError, match="a lottery has"):
        Lottery(draws, root)


def test_seeds_are_not_shown() -> None:
    assert DRAWS.seeds[0].hex() not in repr(DRAWS)
    assert repr(DRAWS.seeds[0])[2:-1] not in repr(DRAWS)


def cohorts_of_50(rounds: int, seed: int) -> Iterator[frozenset[int]]:
    """Winners among 200 participants."""
    source = np.random.default_rng(seed).bytes
    roster = Roster("test", 1, tuple(RosterEntry(identity, "h") for identity in sorted(source(32) for _ in range(200))))
    draws = Draws.draw("test", 1, rounds, source)
    drawn = replace(roster, lottery=draws.lottery)
    return (winners(drawn, one, draws.ticket(one), 50) for one in range(1, rounds + 1))


def test_everybody_wins_as_often_as_chance_says() -> None:
    """2,000 draws of 50 out of 200: every count within six standard deviations (false alarms: 200 x 2e-9)."""
    won = Counter(who for cohort in cohorts_of_50(2000, 11) for who in cohort)
    spread = math.sqrt(2000 * 0.25 * 0.75)
    assert all(abs(won[who] - 500) < 6 * spread for who in range(200))


def test_colluders_who_were_fixed_before_the_draw_stay_below_the_assumed_number() -> None:
    """3,000 draws: never more than A, and more than their share in nearly half of all rounds (the naive count)."""
    colluders = frozenset(range(assumed_colluders(200, 0.1, 0.3)))
    found = [len(cohort & colluders) for cohort in cohorts_of_50(3000, 12)]
    assert LOTTERY_FAILURE == 2.0**-40
    assert max(found) <= colluders_in_cohort(200, 50, 0.1, 0.3, 3000 * 4096)
    assert sum(count > 5 for count in found) > 1000
