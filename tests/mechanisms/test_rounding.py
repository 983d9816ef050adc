"""Conditional rounding: exact means, a norm bound that always holds, failing closed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from mechanisms.clipping import clip_l2
from mechanisms.privacy_curves import rounded_l2_bound
from mechanisms.randomness import Keystream, RandomBytes
from mechanisms.rounding import RoundingFailed, _Scratch, conditional_round, conditional_round_rows, squared_norm
from tests.mechanisms.conftest import keyed

VECTORS = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-50, 50))


def stochastic_round_block(values: np.ndarray, source: Keystream) -> np.ndarray:
    """One rounding, whatever its norm."""
    rounded = np.empty(values.size, np.int64)
    _Scratch(values.size).round(values, source, rounded)
    return rounded


def key_source(number: int) -> RandomBytes:
    return lambda n: number.to_bytes(n, "little")


@given(VECTORS, st.floats(0.01, 100), st.sampled_from([0.0, 0.1, math.exp(-0.5), 0.9]), st.integers(0, 2**32))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_norm_bound_always_holds(values: np.ndarray, clip: float, beta: float, key: int) -> None:
    clipped = clip_l2(values, clip)
    limit = math.floor(rounded_l2_bound(clip, values.size, beta) ** 2)
    rounded = conditional_round(clipped, limit, key_source(key))
    assert rounded.dtype == np.int64
    assert sum(int(v) ** 2 for v in rounded) <= limit
    assert np.all(np.abs(rounded - clipped) < 1)


def test_unconditional_rounding_exceeds_the_bound() -> None:
    """The naive encoder rounds once. In few dimensions it breaks the conditional bound at once."""
    values = np.full(4, 0.5)
    limit = math.floor(rounded_l2_bound(1.0, 4, 0.9) ** 2)
    once = [squared_norm(stochastic_round_block(values, Keystream(bytes([i]) * 32))) for i in range(64)]
    assert max(once) > limit
    always = [squared_norm(conditional_round(values, limit, key_source(i))) for i in range(64)]
    assert max(always) <= limit


def test_it_fails_closed() -> None:
    with pytest.raises(RoundingFailed, match="clipped"):
        conditional_round(np.full(8, 3.0), 71, key_source(1))  # norm^2 is 72, whatever is drawn
    assert squared_norm(conditional_round(np.full(8, 3.0), 72, key_source(1))) == 72
    for bad in (math.nan, math.inf, 2.0**31, 1e300):
        with pytest.raises(RoundingFailed, match="too long"):
            conditional_round(np.array([0.5, bad]), 10**30, key_source(1))


def test_the_bound_is_checked_at_beta_zero_too() -> None:
    """A vector a hair too long for the worst case is refused, never sent."""
    limit = math.floor(rounded_l2_bound(10.0, 1, 0.0) ** 2)
    with pytest.raises(RoundingFailed):
        conditional_round(np.array([12.0]), limit, key_source(1))


@given(hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(-(2**30), 2**30)), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_integers_are_kept(values: np.ndarray, key: int) -> None:
    source = Keystream(key.to_bytes(32, "little"))
    assert np.array_equal(stochastic_round_block(values.astype(np.float64), source), values)


def test_the_zero_vector_is_kept() -> None:
    """Adjacency is against zero, so zero must encode to exactly zero before the noise."""
    assert not conditional_round(np.zeros(100), 0, key_source(9)).any()
    assert not conditional_round(-np.zeros(100), 0, key_source(9)).any()


def test_rounding_is_unbiased() -> None:
    """2^20 roundings a value; 4.9 standard deviations (two-sided 1e-6 each), fixed key."""
    source = Keystream(keyed("unbiased")(32))
    for value in (0.5, -0.5, 0.001, -0.001, 7.3, -7.3, 12345.999, 1e-5):
        n = 1 << 20
        rounded = stochastic_round_block(np.full(n, value), source)
        assert set(np.unique(rounded)) <= {math.floor(value), math.ceil(value)}
        up = value - math.floor(value)
        assert abs(rounded.mean() - value) < 4.9 * math.sqrt(up * (1 - up) / n)


def test_nearest_rounding_fails_the_same_test() -> None:
    assert abs(np.rint(np.full(1 << 20, 7.3)).mean() - 7.3) > 4.9 * math.sqrt(0.21 / (1 << 20))


class Words:
    """A source that plays words of 32 bits, one for each value, then words of 53 bits."""

    def __init__(self, first: list[int], others: list[int]) -> None:
        self.left = [np.array(first, np.uint32).tobytes(), *((word << 11).to_bytes(8, "little") for word in others)]

    def fill(self, out: np.ndarray) -> None:
        out[:] = np.frombuffer(self.left.pop(0), np.uint8)


LAST = 2**32 - 1


@pytest.mark.parametrize(
    ("value", "words", "result"),
    [
        # floor(v + U): 0.5 goes up if the first bit of U is one. At either edge a further word is drawn.
        (0.5, [2**31 - 1, 0], 0),
        (0.5, [2**31, 0], 1),
        (-0.5, [2**31 - 1, 0], -1),
        (-0.5, [2**31, 0], 0),
        (7.25, [3 * 2**30 - 1, 0], 7),
        (7.25, [3 * 2**30, 0], 8),
        (-7.25, [2**30 - 1, 0], -8),
        (-7.25, [2**30, 0], -7),
        (2.0**-32, [LAST - 1, 0], 0),
        (2.0**-32, [LAST, 0], 1),
        (-(2.0**-32), [0, 0], -1),
        (-(2.0**-32), [1, 0], 0),
        # Finer than 32 bits: one word alone leaves it open, and the next ones decide by the bits that follow.
        (2.0**-33, [LAST - 1], 0),
        (2.0**-33, [LAST, 2**52 - 1], 1),
        (2.0**-33, [LAST, 2**52], 0),
        (-(2.0**-33), [0, 2**52 - 1], -1),
        (-(2.0**-33), [0, 2**52], 0),
        (-(2.0**-33), [1], 0),
        # The edge on a value's other side changes nothing.
        (-(2.0**-33), [LAST, 0], 0),
        (2.0**-33, [0, 0], 0),
        # Rests above 1/2: cut towards zero, not to the nearest.
        (0.75 * 2.0**-32, [LAST - 1], 0),
        (0.75 * 2.0**-32, [LAST, 3 * 2**51 - 1], 1),
        (0.75 * 2.0**-32, [LAST, 3 * 2**51], 0),
        (-0.75 * 2.0**-32, [0, 3 * 2**51 - 1], -1),
        (-0.75 * 2.0**-32, [0, 3 * 2**51], 0),
        (0.25 + 2.0**-34, [3 * 2**30 - 1, 2**51 - 1], 1),
        (0.25 + 2.0**-34, [3 * 2**30 - 1, 2**51], 0),
        (0.25 + 2.0**-34, [3 * 2**30, 0], 1),
        (-0.25 - 2.0**-34, [2**30, 2**51 - 1], -1),
        (-0.25 - 2.0**-34, [2**30, 2**51], 0),
        # Finer than 32 and 53 bits.
        (2.0**-92, [LAST, 0, 2**46 - 1], 1),
        (2.0**-92, [LAST, 0, 2**46], 0),
        (-(2.0**-92), [0, 0, 2**46 - 1], -1),
        (5e-324, [LAST, *[0] * 19, 2**18 - 1], 1),
        (5e-324, [LAST, *[0] * 19, 2**18], 0),
        # Integers have no rest.
        (3.0, [LAST, 0], 3),
        (-3.0, [0, 0], -3),
        (0.0, [LAST, 0], 0),
        (2.0**31 - 1 - 2.0**-21, [2**11 - 1, 0], 2**31 - 2),
        (2.0**31 - 1 - 2.0**-21, [2**11, 0], 2**31 - 1),
        (-(2.0**31) + 1 + 2.0**-21, [LAST - 2**11, 0], -(2**31) + 1),
        (-(2.0**31) + 1 + 2.0**-21, [LAST - 2**11 + 1, 0], -(2**31) + 2),
    ],
)
def test_thresholds_are_exact_to_the_last_bit(value: float, words: list[int], result: int) -> None:
    source = Words(words[:1], words[1:])
    assert int(stochastic_round_block(np.array([value]), source)[0]) == result
    assert not source.left


def test_each_edge_is_settled_at_its_own_place() -> None:
    source = Words([0, LAST, 5, 0], [2**52 - 1, 2**51 - 1])
    values = np.array([0.5, 2.0**-33, 0.25, -(2.0**-34)])
    assert stochastic_round_block(values, source).tolist() == [0, 1, 0, -1]
    assert not source.left


@pytest.mark.parametrize("several", [False, True])
def test_values_whose_sum_with_a_word_would_overflow_are_refused(several: bool) -> None:
    def rounded(value: float) -> np.ndarray:
        if several:
            return conditional_round_rows(np.array([[value]]), 2**62, key_source(1))[0]
        return conditional_round(np.array([value]), 2**62, key_source(1))

    for sign in (1, -1):
        assert abs(rounded(sign * (2.0**31 - 1 - 2.0**-22))[0]) in (2**31 - 2, 2**31 - 1)
        for value in (2.0**31 - 1, 2.0**31 - 0.5):
            with pytest.raises(RoundingFailed, match="too long"):
                rounded(sign * value)


def test_squared_norms_are_exact_beyond_doubles() -> None:
    assert squared_norm(np.array([2**31 - 1, 3], np.int64)) == (2**31 - 1) ** 2 + 9


def naive_norm(values: np.ndarray) -> int:
    """Squares added up in floating point, whatever their size."""
    return int(np.dot(values.astype(float), values.astype(float)))


# 94,906,265 is the largest integer whose square is below 2^53.
AROUND_2_53 = [[94_906_265], [94_906_266], [94_906_267, 1], [94_906_265, 10_885, 133, 6, 3, 1, 1], [2**30, 1, 1, 1]]


@pytest.mark.parametrize("values", [*AROUND_2_53, [2**26] * 2, [*[2**25 + 1] * 8, 1], [-(2**26) - 1, 3]])
def test_the_norm_that_is_checked_is_the_exact_one(values: list[int]) -> None:
    vector, exact = np.array(values, np.float64), sum(v * v for v in values)
    assert squared_norm(conditional_round(vector, exact, key_source(1))) == exact
    with pytest.raises(RoundingFailed):
        conditional_round(vector, exact - 1, key_source(1), most_tries=1)


@pytest.mark.parametrize("dim", [10, 1 << 15])
@pytest.mark.parametrize("values", AROUND_2_53)
def test_the_norms_of_rows_are_exact(values: list[int], dim: int) -> None:
    rows, exact = np.zeros((2, dim)), sum(v * v for v in values)
    rows[1, : len(values)] = values
    assert squared_norm(conditional_round_rows(rows, exact, key_source(1))[1]) == exact
    with pytest.raises(RoundingFailed):
        conditional_round_rows(rows, exact - 1, key_source(1), most_tries=1)


def test_norms_in_floating_point_would_not_be_exact() -> None:
    assert any(naive_norm(np.array(values)) < sum(v * v for v in values) for values in AROUND_2_53)


def test_blocks_add_up() -> None:
    """Several blocks, the last one short: against one rounding of the whole from the same stream."""
    values = np.random.default_rng(1).normal(0, 5, 100_003)
    rounded = conditional_round(values, 10**9, key_source(5))
    assert np.array_equal(rounded, stochastic_round_block(values, Keystream((5).to_bytes(32, "little"))))
    exact = sum(int(v) ** 2 for v in rounded)
    assert np.array_equal(conditional_round(values, exact, key_source(5), most_tries=1), rounded)
    with pytest.raises(RoundingFailed):
        conditional_round(values, exact - 1, key_source(5), most_tries=1)
