"""The window attack: exact on small rings, below the bound where it succeeds, in vain at the real parameters."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from secagg.sharing import ADVERSARIES, CURIOUS, MALICIOUS, SEMI_MALICIOUS, k_regular
from sordino.lab.bench.ring_attack import Setting, cuttable, draw, most_in_two_windows, neighbours_among, play, within


@cache
def parted(members: int, half: int) -> list[int]:
    """Sets of places, as bits, that don't hang together where each is tied to the ``half`` next on either side."""
    ties = [
        sum(1 << ((place + step) % members) for step in range(-half, half + 1) if step % members)
        for place in range(members)
    ]
    found = []
    for left in range(1, 1 << members):
        seen = frontier = left & -left
        while frontier:
            reached = 0
            while frontier:
                place = (frontier & -frontier).bit_length() - 1
                frontier &= frontier - 1
                reached |= ties[place]
            frontier = reached & left & ~seen
            seen |= frontier
        if seen != left:
            found.append(left)
    return found


@pytest.mark.parametrize(("members", "half"), [(5, 1), (6, 2), (8, 1), (9, 2), (10, 3), (12, 1), (12, 2), (12, 4)])
def test_two_windows_are_the_only_way_to_part_a_ring(members: int, half: int) -> None:
    """The fewest drops that part the honest survivors, over all sets of drops, beside the window criterion."""
    everybody = (1 << members) - 1
    for size in range(4):
        for others in itertools.combinations(range(1, members), size - 1) if size else [()]:
            places = (0, *others) if size else ()
            corrupt = sum(1 << place for place in places)
            honest = everybody & ~corrupt
            needed = min(
                ((honest & ~left).bit_count() for left in parted(members, half) if not left & corrupt), default=None
            )
            lost = np.zeros(members, dtype=np.bool_)
            lost[list(places)] = True
            by_windows = next((drops for drops in range(members) if cuttable(lost, half, drops)), None)
            assert by_windows == needed, (places, needed)


def test_two_windows_and_neighbours_by_hand() -> None:
    generator = np.random.default_rng(6)
    for members, half in ((9, 1), (14, 3), (31, 5), (12, 5)):
        marked = generator.random((20, members)) < 0.4
        most, around = most_in_two_windows(marked, half), neighbours_among(marked, half)
        for ring in range(20):
            line = marked[ring]
            windows = [sum(line[(first + step) % members] for step in range(half)) for first in range(members)]
            pairs = [
                windows[first] + windows[(first + half + gap) % members]
                for first in range(members)
                for gap in range(1, members - 2 * half)
            ]
            assert len(pairs) == members * (members - 2 * half - 1)  # each pair twice: n(n - k - 1)/2 of them
            assert most[ring] == max(pairs)
            for place in range(members):
                steps = [step for step in range(-half, half + 1) if step]
                assert around[ring, place] == sum(line[(place + step) % members] for step in steps)


def test_places_are_random_and_as_many_as_asked_for() -> None:
    setting = Setting(members=50, colluders=7, drops=5, adversary=CURIOUS, degree=10, threshold=4)
    corrupt, gone = draw(setting, 20_000, np.random.default_rng(7))
    assert (corrupt.sum(axis=1) == 7).all()
    assert (gone.sum(axis=1) == 5).all()
    assert not (corrupt & gone).any()
    for places, share in ((corrupt, 7 / 50), (gone, 5 / 50)):
        assert np.abs(places.mean(axis=0) - share).max() < 6 * (share * (1 - share) / 20_000) ** 0.5
    # Neighbouring places don't attract each other.
    together = (corrupt & np.roll(corrupt, 1, axis=1)).mean()
    assert together == pytest.approx(7 / 50 * 6 / 49, rel=0.05)


# A degree far too small for n, A and D, at which the attack succeeds now and then, and by what factor at most the bound
# is above its rate. The bound counts each pair of windows by itself, and where one can be emptied so can those beside
# it: the more so the larger the windows are.
WEAK = [
    (MALICIOUS, 1_000, 50, 100, 120, 300),
    (MALICIOUS, 500, 50, 25, 40, 25),
    (MALICIOUS, 200, 30, 20, 34, 25),
    (MALICIOUS, 200, 30, 20, 36, 25),
    (CURIOUS, 200, 20, 50, 10, 4),
    (CURIOUS, 200, 20, 50, 12, 4),
    (CURIOUS, 1_000, 50, 250, 14, 4),
    (SEMI_MALICIOUS, 500, 50, 150, 14, 5),
]


@pytest.mark.parametrize(("adversary", "members", "colluders", "drops", "degree", "factor"), WEAK)
@pytest.mark.long
def test_successes_agree_with_it(
    adversary: str, members: int, colluders: int, drops: int, degree: int, factor: int
) -> None:
    setting = Setting(members, colluders, drops, adversary, degree, threshold=degree // 2 + 1)
    found = play(setting, 10_000, np.random.default_rng(11))
    assert found["ok"]
    assert found["cuts"] > 0
    assert found["cut_bound"] / factor < found["cut_rate"] < found["cut_bound"] < 1


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_corrupt_neighbours_agree_with_the_bound(adversary: str) -> None:
    """The rule with five bits in all: some neighbourhoods do open, no more than allowed, and no fewer than a 20th."""
    weak = k_regular(1_000, 50, 100, adversary, sigma=4, grinding=0)
    assert weak is not None
    found = play(Setting(1_000, 50, 100, adversary, weak.degree, weak.threshold), 6_000, np.random.default_rng(3))
    assert found["ok"]
    assert found["open_bound"] <= 2**-5
    assert found["open_bound"] / 20 < found["opened"] / 6_000 <= found["open_bound"]


def test_real_parameters_hold() -> None:
    sharing = k_regular(1_000, 50, 100, MALICIOUS)
    assert sharing is not None
    found = play(Setting(1_000, 50, 100, MALICIOUS, sharing.degree, sharing.threshold), 3_000)
    assert found["cuts"] == found["opened"] == 0
    assert found["fewest_honest"] > 110
    assert found["most_corrupt_neighbours"] < found["corrupt_to_open"]
    assert max(found["cut_bound"], found["open_bound"]) < 2**-121
    assert found["ok"]


@pytest.mark.parametrize("members", [100, 1_000])
def test_the_published_degree_is_cut_on_every_ring_by_whoever_chooses_the_drops(members: int) -> None:
    """The naive version: connectivity for random drops, against a coordinator that picks them."""
    colluders, drops = members // 20, members // 3
    sharing = k_regular(members, colluders, drops, CURIOUS)
    assert sharing is not None
    naive = Setting(members, colluders, drops, MALICIOUS, sharing.degree, sharing.threshold)
    assert play(naive, 200)["cuts"] == 200


def test_too_many_successes_are_told() -> None:
    assert [within(found, 1_000, 0.0) for found in (0, 1)] == [True, False]
    assert [within(found, 1_000, 0.1) for found in (130, 180)] == [True, False]
