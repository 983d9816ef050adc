"""Degree and threshold: the published values, the reference's slow rule, and what the malicious rule promises."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from secagg.errors import InvalidParameters
from secagg.sharing import (
    ADVERSARIES,
    CURIOUS,
    MALICIOUS,
    SEMI_MALICIOUS,
    Sharing,
    conditions,
    connected_degree,
    cut_chance,
    cut_pairs,
    exceeded_rarely,
    k_regular,
    published,
)
from tests.reference import degrees as reference

# n, adversarial, dropout, (k, t) for curious, for semi-malicious; of a public test suite, or of its rule written anew
# by somebody else. "-": not stated; None: infeasible.
PUBLISHED = [
    (10, 0.05, 0.05, (2, 2), (2, 2)),
    (16, 0.05, 0.05, (2, 2), (2, 2)),
    (100, 0.05, 0.05, (12, 6), (16, 11)),
    (1_000, 0.05, 0.05, (30, 17), (52, 37)),
    (10_000, 0.05, 0.05, (34, 20), (62, 44)),
    (1_000_000, 0.05, 0.05, (38, 22), (74, 52)),
    (100, 0.05, 0.33, (28, 6), (72, 39)),
    (1_000, 0.05, 0.33, (72, 24), (398, 223)),
    (1_000, 0.33, 0.05, (78, 60), (132, 109)),
    (1_000, 0.33, 0.33, (286, 150), None),
    (1_000, 0.30, 0.30, "-", (872, 584)),
    (64, 0.05, 0.10, (10, 4), (16, 10)),
    (128, 0.05, 0.10, (16, 7), (30, 19)),
    (256, 0.10, 0.10, (36, 20), (62, 43)),
    (500, 0.05, 0.10, (32, 17), (66, 44)),
    (500, 0.05, 0.30, (58, 20), (212, 119)),
    (1_000, 0.05, 0.10, (36, 19), (78, 52)),
    (1_000, 0.10, 0.30, (88, 36), (414, 247)),
    (10_000, 0.05, 0.10, (42, 22), (96, 64)),
]
OURS = [
    (100, 5, 10, 26, 16),
    (200, 10, 20, 42, 27),
    (500, 25, 50, 76, 51),
    (1_000, 50, 100, 150, 99),
    (10_000, 500, 1_000, 1_176, 673),
]


@pytest.mark.parametrize(("n", "adversarial", "dropout", "curious", "semi"), PUBLISHED)
def test_published_values(n: int, adversarial: float, dropout: float, curious: object, semi: object) -> None:
    for adversary, expected in ((CURIOUS, curious), (SEMI_MALICIOUS, semi)):
        if expected == "-":
            continue
        found = published(n, adversarial, dropout, adversary)
        assert (found and (found.degree, found.threshold)) == expected
        colluders, drops = math.floor(n * adversarial + 1e-9), math.floor(n * dropout + 1e-9)
        assert k_regular(n, colluders, drops, adversary) == found


@pytest.mark.parametrize(
    ("n", "adversarial", "dropout", "adversary"),
    [
        (1_000, 0.45, 0.46, CURIOUS),
        (1_000, 0.3, 0.301, SEMI_MALICIOUS),
        (1_000_001, 0.05, 0.05, CURIOUS),
        (3, 0.0, 0.0, CURIOUS),  # k = 2 isn't below n - 1
    ],
)
def test_beyond_the_published_guards(n: int, adversarial: float, dropout: float, adversary: str) -> None:
    assert published(n, adversarial, dropout, adversary) is None


def test_the_guard_is_of_the_shares_as_they_are_written() -> None:
    """0.3 + 2 x 0.3 is 0.8999... in floating point one way, 0.9000...1 another; and 7 members have 2 + 2 x 2 <= 6.3."""
    assert published(1_000, 0.3, 0.3, SEMI_MALICIOUS) == Sharing(872, 584)
    assert published(7, 0.4, 0.4, SEMI_MALICIOUS) is None
    assert published(1_000, 0.29, 0.1, CURIOUS) == k_regular(1_000, 290, 100, CURIOUS)  # 0.29 x 1000 is 289.99...


@pytest.mark.parametrize(("n", "colluders", "drops", "degree", "threshold"), OURS)
def test_malicious_values(n: int, colluders: int, drops: int, degree: int, threshold: int) -> None:
    """Those of docs/graph.md: a change here changes what participants compute."""
    assert k_regular(n, colluders, drops, MALICIOUS) == Sharing(degree, threshold)


BITS = (reference.SIGMA, reference.ETA, reference.GRINDING)


def by_reference(n: int, colluders: int, drops: int, adversary: str, *bits: int) -> Sharing | None:
    found = reference.k_regular(n, colluders, drops, adversary, *bits)
    return found and Sharing(*found)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_the_slow_rule_gives_the_same(adversary: str) -> None:
    found = 0
    for n, shares in itertools.product((5, 16, 47, 64, 90), itertools.product((0, 0.02, 0.1, 0.3), (0, 0.1, 0.3))):
        colluders, drops = (math.floor(n * share) for share in shares)
        for bits in (BITS, (3, 2, 1)):
            expected = by_reference(n, colluders, drops, adversary, *bits)
            sigma, eta, grinding = bits
            assert k_regular(n, colluders, drops, adversary, sigma=sigma, eta=eta, grinding=grinding) == expected
            found += expected is not None
    assert found > 40


def test_the_slow_rule_gives_the_same_where_little_is_missing_again_and_again() -> None:
    """Many degrees fail by a few answers, in steps of one and two."""
    for adversary, drops in itertools.product(ADVERSARIES, (40, 44, 48)):
        assert k_regular(130, 14, drops, adversary) == by_reference(130, 14, drops, adversary, *BITS)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_quantiles_are_exact(data: st.DataObject) -> None:
    """Also at ties, where neither rounding decides."""
    n = data.draw(st.integers(2, 60))
    marked, drawn, bits = data.draw(st.integers(0, n)), data.draw(st.integers(1, n)), data.draw(st.integers(0, 12))
    assert exceeded_rarely(n, marked, drawn, bits) == reference.exceeded_rarely(n, marked, drawn, bits)


def test_a_tie_counts_as_rare() -> None:
    """2 x Pr[Hypergeometric(2, 1, 1) > 0] is exactly 1, and 16 x Pr[Hypergeometric(16, 1, 1) > 0] too."""
    assert exceeded_rarely(2, 1, 1, 0) == 0
    assert exceeded_rarely(16, 1, 1, 0) == 0
    assert exceeded_rarely(16, 1, 1, 1) == 1


GRID = [
    (n, math.floor(n * adversarial), math.floor(n * dropout))
    for n in (64, 100, 257, 1_000, 3_000)
    for adversarial in (0, 0.01, 0.05, 0.2)
    for dropout in (0, 0.05, 0.1, 0.3)
]


@pytest.mark.parametrize("adversary", [SEMI_MALICIOUS, MALICIOUS])
@pytest.mark.long
def test_two_disjoint_sets_of_holders_cant_open_both_secrets(adversary: str) -> None:
    """2 t > k + corrupt neighbours; the curious rule, t > corrupt, would let them."""
    for n, colluders, drops in GRID:
        sharing = k_regular(n, colluders, drops, adversary)
        if sharing is None:
            continue
        security = 41 + (80 if adversary == MALICIOUS else 0)
        corrupt = exceeded_rarely(n, colluders, sharing.degree, security)
        assert 2 * sharing.threshold > sharing.degree + corrupt
        assert n * reference.at_least(n, colluders, sharing.degree, corrupt + 1) <= Fraction(1, 2**security)
    curious = k_regular(1_000, 50, 100, CURIOUS)
    assert curious is not None
    assert 2 * curious.threshold <= curious.degree + exceeded_rarely(1_000, 50, curious.degree, 41)


def test_no_pair_of_windows_can_be_emptied_by_choosing_drops() -> None:
    """The union bound keeps the budget for 2^80 rings; the published degrees don't keep it for one."""
    for n, colluders, drops in GRID:
        sharing = k_regular(n, colluders, drops, MALICIOUS)
        if sharing is None:
            continue
        assert sharing.degree > drops
        chance = cut_pairs(n, sharing.degree) * cut_chance(n, colluders, drops, sharing.degree, MALICIOUS)
        assert chance <= Fraction(1, 2**121)
        if sharing.degree == connected_degree(n, colluders, drops, MALICIOUS) and sharing.degree > 2:
            fewer = sharing.degree - 2
            assert cut_pairs(n, fewer) * cut_chance(n, colluders, drops, fewer, MALICIOUS) > Fraction(1, 2**121)
    semi = k_regular(1_000, 50, 100, SEMI_MALICIOUS)
    assert semi is not None
    assert cut_chance(1_000, 50, 100, semi.degree, MALICIOUS) == 1


def test_few_of_many_colluders_settle_it() -> None:
    """Where no window can hold that many colluders, k is just above A + D: 64 participants, 4 + 20 of them."""
    assert connected_degree(64, 4, 20, MALICIOUS) == 26
    assert cut_chance(64, 4, 20, 26, MALICIOUS) == 0
    assert cut_chance(64, 4, 20, 24, MALICIOUS) > 0


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_more_colluders_or_drops_never_mean_fewer_neighbours(adversary: str) -> None:
    def degree(n: int, colluders: int, drops: int) -> int:
        sharing = k_regular(n, colluders, drops, adversary)
        return n if sharing is None else sharing.degree

    for n in (80, 300):
        for colluders, drops in itertools.product(range(0, n // 3, 7), range(0, n // 3, 7)):
            here = degree(n, colluders, drops)
            assert here <= degree(n, colluders + 1, drops)
            assert here <= degree(n, colluders, drops + 1)


def test_a_stronger_adversary_never_means_fewer_neighbours() -> None:
    for n, colluders, drops in GRID:
        found = [k_regular(n, colluders, drops, adversary) for adversary in ADVERSARIES]
        degrees = [n if sharing is None else sharing.degree for sharing in found]
        assert degrees == sorted(degrees)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_window_is_emptied_less_often_the_longer_it_is(adversary: str) -> None:
    """What the search for the connected degree rests on; the boundary is that of a linear search."""
    for n, colluders, drops in ((60, 6, 9), (90, 0, 12), (90, 20, 3)):
        chances = [
            cut_pairs(n, k) * cut_chance(n, colluders, drops, k, adversary) for k in range(2, colluders + drops + 3, 2)
        ]
        # Not above the number of pairs: before, every window can be emptied.
        assert all(after <= before for before, after in itertools.pairwise(chances))
        security = Fraction(1, 2 ** (4 + (3 if adversary == MALICIOUS else 0)))
        first = next(k for k, chance in zip(itertools.count(2, 2), chances, strict=False) if chance < security)
        assert connected_degree(n, colluders, drops, adversary, sigma=3, grinding=3) == first


def test_conditions_name_the_reasons() -> None:
    at = conditions(1_000, 50, 100, CURIOUS, 36)
    assert (at.corrupt, at.answering, at.threshold) == (18, 19, 19)
    before = conditions(1_000, 50, 100, CURIOUS, 34)
    assert before.threshold > before.answering


def test_large_cohorts_are_quick_enough_for_a_test() -> None:
    """The exact numbers have thousands of bits here, and degrees in the thousands fail before one passes."""
    assert k_regular(65_520, 3_276, 6_552, MALICIOUS) == Sharing(7_182, 3_899)
    assert k_regular(65_520, 26_208, 26_208, CURIOUS) == Sharing(1_386, 711)
    assert k_regular(65_520, 19_656, 19_656, SEMI_MALICIOUS) == Sharing(8_814, 5_902)


@pytest.mark.parametrize(
    ("n", "colluders", "drops", "adversary", "bits"),
    [
        (0, 0, 0, CURIOUS, {}),
        (10, 10, 0, CURIOUS, {}),
        (10, -1, 0, CURIOUS, {}),
        (10, 0, 10, CURIOUS, {}),
        (10, 0, -1, CURIOUS, {}),
        (10, 0, 0, "kind", {}),
        (10, 0, 0, MALICIOUS, {"sigma": -1}),
        (10, 0, 0, MALICIOUS, {"grinding": -1}),
    ],
)
def test_what_is_refused(n: int, colluders: int, drops: int, adversary: str, bits: dict[str, int]) -> None:
    with pytest.raises(InvalidParameters):
        k_regular(n, colluders, drops, adversary, **bits)


@pytest.mark.parametrize("wrong", [(0, 0.1, 0.1), (10, 1.0, 0.1), (10, -0.1, 0.1), (10, 0.1, 1.0), (10, math.nan, 0.1)])
def test_shares_that_are_none(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(InvalidParameters):
        published(*wrong, CURIOUS)
    with pytest.raises(InvalidParameters, match="published"):
        published(100, 0.1, 0.1, MALICIOUS)
