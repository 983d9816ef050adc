"""Wrong shares of a secret are found as long as they can be, and what is found rebuilds the secret."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from secagg import shamir
from secagg.inconsistent_shares import inconsistent_points
from secagg.shamir import PRIME, SYMBOLS, Symbols
from tests.support.attempts_in_memory import keyed_source


def dealt(holders: int, threshold: int, name: str = "") -> tuple[Symbols, list[int], Symbols]:
    """A secret, the points of its holders in any order, and their shares: row i from the holder at ``xs[i]``."""
    source = keyed_source(f"rotten {holders} {threshold} {name}")
    rng = random.Random(f"{holders} {threshold} {name}")
    xs = sorted(rng.sample(range(1, 4 * holders), holders))
    secret = shamir.random_symbols(SYMBOLS, source)
    return secret, xs, shamir.split(secret[None], threshold, xs, source)[:, 0]


def spoil(shares: Symbols, rows: list[int], rng: random.Random, symbols: int = SYMBOLS) -> Symbols:
    """Some rows with that many wrong symbols each, at random places."""
    spoilt = shares.copy()
    for row in rows:
        for column in rng.sample(range(SYMBOLS), symbols):
            spoilt[row, column] = (int(spoilt[row, column]) + rng.randrange(1, PRIME)) % PRIME
    return spoilt


def rebuilt(xs: list[int], shares: Symbols, wrong: frozenset[int], threshold: int) -> Symbols:
    good = [row for row, x in enumerate(xs) if x not in wrong]
    return shamir.combine([xs[row] for row in good], shares[good], threshold)


def found_and_put_right(xs: list[int], shares: Symbols, threshold: int, wrong: Iterable[int], secret: Symbols) -> None:
    """Exactly these rows are found, and the others rebuild the secret."""
    found = inconsistent_points(xs, shares, threshold)
    assert found == {xs[row] for row in wrong}
    np.testing.assert_array_equal(rebuilt(xs, shares, found, threshold), secret)


@pytest.mark.parametrize(("holders", "threshold"), [(6, 2), (7, 5), (9, 6), (12, 5), (20, 11), (31, 20), (60, 33)])
def test_as_many_as_can_be_found_are_found(holders: int, threshold: int) -> None:
    secret, xs, shares = dealt(holders, threshold)
    rng = random.Random(holders)
    for count in range((holders - threshold) // 2 + 1):
        rows = rng.sample(range(holders), count)
        spoilt = spoil(shares, rows, rng)
        found_and_put_right(xs, spoilt, threshold, rows, secret)


def test_wherever_they_stand() -> None:
    secret, xs, shares = dealt(9, 5)
    for rows in combinations(range(9), 2):
        spoilt = spoil(shares, list(rows), random.Random(str(rows)))
        found_and_put_right(xs, spoilt, 5, rows, secret)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    threshold=st.integers(2, 12),
    spare=st.integers(0, 9),
    seed=st.integers(0, 2**32),
    wrong=st.integers(0, 8),
    symbols=st.integers(1, SYMBOLS),
)
def test_any_wrong_symbols_of_so_few(threshold: int, spare: int, seed: int, wrong: int, symbols: int) -> None:
    """One wrong symbol counts like all: the wrong rows of all symbols are found together."""
    holders, rng = threshold + spare, random.Random(seed)
    secret, xs, shares = dealt(holders, threshold, str(seed % 5))
    rows = rng.sample(range(holders), min(wrong, spare // 2))
    spoilt = spoil(shares, rows, rng, symbols)
    if spare < 2:
        assert inconsistent_points(xs, spoilt, threshold) is None
        return
    found_and_put_right(xs, spoilt, threshold, rows, secret)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(threshold=st.integers(2, 9), spare=st.integers(2, 8), seed=st.integers(0, 2**32), more=st.integers(1, 5))
def test_too_many_errors_never_give_the_secret(threshold: int, spare: int, seed: int, more: int) -> None:
    """Random errors beyond the bound: None, or another polynomial with enough shares on it.

    That one doesn't rebuild the secret, as the commitment shows.
    """
    holders, rng = threshold + spare, random.Random(seed)
    secret, xs, shares = dealt(holders, threshold, str(seed % 5))
    rows = rng.sample(range(holders), min(spare // 2 + more, holders))
    spoilt = spoil(shares, rows, rng)
    found = inconsistent_points(xs, spoilt, threshold)
    if found is not None:
        good = [row for row, x in enumerate(xs) if x not in found]
        for some in (good[:threshold], good[-threshold:]):
            again = shamir.combine([xs[row] for row in some], spoilt[some], threshold)
            np.testing.assert_array_equal(again, rebuilt(xs, spoilt, found, threshold))
            assert (again != secret).any()


@pytest.mark.parametrize(("holders", "threshold"), [(7, 5), (9, 6), (12, 5), (20, 11)])
def test_one_more_than_can_be_found_is_not_taken_for_none(holders: int, threshold: int) -> None:
    """The linear system has a solution even then, with a locator that is zero nowhere: N / E is no polynomial."""
    _, xs, shares = dealt(holders, threshold)
    for seed in range(10):
        rng = random.Random(seed)
        rows = rng.sample(range(holders), (holders - threshold) // 2 + 1)
        assert inconsistent_points(xs, spoil(shares, rows, rng), threshold) is None


@pytest.mark.parametrize(("holders", "threshold"), [(7, 5), (9, 6), (12, 6), (13, 6)])
def test_one_more_made_to_fit_another_polynomial_leads_to_that_one(holders: int, threshold: int) -> None:
    """A dealer may take many shares from a second polynomial: then what comes out isn't what it committed to."""
    secret, xs, shares = dealt(holders, threshold)
    other, _, theirs = dealt(holders, threshold, "other")
    theirs = shamir.split(other[None], threshold, xs, keyed_source("second"))[:, 0]
    most = (holders - threshold) // 2
    for count in range(holders - most, holders + 1):
        mixed = np.concatenate([theirs[:count], shares[count:]])
        found_and_put_right(xs, mixed, threshold, range(count, holders), other)
        assert (other != secret).any()


def test_different_symbols_may_be_wrong_at_different_holders() -> None:
    """Each symbol alone could be put right; all shares that are wrong anywhere must still leave a threshold of others.

    Of 9 shares with threshold 5 two of each symbol can be wrong; here five holders are, in two symbols each at most.
    """
    _, xs, shares = dealt(9, 5)
    spoilt = shares.copy()
    for symbol, rows in enumerate([(0, 1), (2, 3), (4, 0)]):
        for row in rows:
            spoilt[row, symbol] = (int(spoilt[row, symbol]) + 1) % PRIME
    assert inconsistent_points(xs, spoilt, 5) is None
    assert inconsistent_points(xs, spoilt[:, 2:], 5) == {xs[4], xs[0]}


def test_the_ends_of_the_field() -> None:
    """The largest symbols and points: products stay within 64 bits."""
    xs = [*range(PRIME - 8, PRIME - 4), *range(PRIME - 4, PRIME)]
    secret = np.full(SYMBOLS, PRIME - 1, np.uint16)
    shares = shamir.split(secret[None], 4, xs, keyed_source("ends"))[:, 0]
    spoilt = spoil(shares, [0, 7], random.Random(1))
    spoilt[7] = PRIME - 1 - spoilt[7]
    assert inconsistent_points(xs, spoilt, 4) == {xs[0], xs[7]}


@pytest.mark.parametrize(("holders", "threshold"), [(5, 5), (6, 5), (3, 2), (2, 2)])
def test_without_two_shares_to_spare_nothing_is_said(holders: int, threshold: int) -> None:
    _, xs, shares = dealt(holders, threshold)
    assert inconsistent_points(xs, shares, threshold) is None
