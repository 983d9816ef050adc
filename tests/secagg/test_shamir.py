"""Shamir sharing against plain Python integers, and the hiding it promises shown by exhaustion."""

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from secagg import shamir
from secagg.shamir import PRIME, combine, combine_each, lagrange_at_zero, random_symbols, split
from tests.reference import sharing as reference
from tests.support.attempts_in_memory import keyed_source

steady = settings(derandomize=True, deadline=None)


def script(symbols: Sequence[int]) -> Callable[[int], bytes]:
    """A source that serves these 16-bit words and no more."""
    return reference.Stream(np.asarray(symbols, dtype="<u2").tobytes()).take


def reference_split(secret: Sequence[int], threshold: int, xs: Sequence[int], random_bytes) -> list[list[int]]:
    """As `tests.reference.sharing.share`, of some holders only."""
    width = len(secret)
    fresh = reference.random_symbols((threshold - 1) * width, SimpleNamespace(take=random_bytes))
    polynomials = [[secret[i], *fresh[i::width]] for i in range(width)]
    return [[sum(c * x**j for j, c in enumerate(polynomial)) % PRIME for polynomial in polynomials] for x in xs]


def reference_weights(xs: Sequence[int]) -> list[int]:
    return [reference.lagrange_weight(xs, i) for i in range(len(xs))]


points = st.lists(st.integers(1, PRIME - 1), min_size=2, max_size=12, unique=True)


@given(xs=points, data=st.data())
@steady
def test_split_and_combine_agree_with_integers(xs: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, len(xs)))
    secret = data.draw(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=16))
    seed = data.draw(st.text(max_size=4))
    shares = split(np.array(secret, dtype=np.uint16), threshold, xs, keyed_source(seed))
    assert shares.dtype == np.uint16
    assert shares.tolist() == reference_split(secret, threshold, xs, keyed_source(seed))

    chosen = data.draw(st.permutations(range(len(xs))))[:threshold]
    rebuilt = combine([xs[i] for i in chosen], shares[chosen], threshold)
    assert rebuilt.tolist() == secret
    assert rebuilt.tolist() == reference.rebuild([xs[i] for i in chosen], shares[chosen].tolist(), threshold)


def test_vector() -> None:
    # f(x) = 7 + 11 x + 13 x^2 and g(x) = 65520 + x + 65520 x^2, worked out by hand.
    shares = split(np.array([7, 65520], dtype=np.uint16), 3, [1, 2, 3, 100], script([11, 1, 13, 65520]))
    assert shares.tolist() == [[31, 65520], [81, 65518], [157, 65514], [65, 55620]]
    assert combine([100, 3, 1], shares[[3, 2, 0]], 3).tolist() == [7, 65520]


def test_two_secrets_and_a_thousand_holders() -> None:
    xs = range(1, 1001)
    secrets = random_symbols(32, keyed_source("many")).reshape(2, 16)
    shares = split(secrets, 667, xs, keyed_source("many coefficients"))
    late = random.Random(1).sample(range(1000), 667)
    assert shares.shape == (1000, 2, 16)
    assert combine([xs[i] for i in late], shares[late], 667).tolist() == secrets.tolist()
    for kind in range(2):  # two independent sharings
        assert combine([xs[i] for i in late], shares[late, kind], 667).tolist() == secrets[kind].tolist()
    assert shares.reshape(1000, 32)[[0, 499, 999], :2].tolist() == [
        row[:2]
        for row in reference_split(secrets.reshape(-1).tolist(), 667, [1, 500, 1000], keyed_source("many coefficients"))
    ]


@pytest.mark.parametrize("threshold", [2, 67, 1500])
def test_the_largest_numbers_stay_exact(threshold: int) -> None:
    # The largest partial sums there are at this threshold: every coefficient and every power p - 1 or close to it.
    xs = [PRIME - 1, PRIME - 2, *range(1, threshold)]
    top = [PRIME - 1] * (threshold - 1)
    shares = split(np.array([PRIME - 1], dtype=np.uint16), threshold, xs, script(top))
    coefficients = [PRIME - 1, *top]
    for x, share in list(zip(xs, shares.tolist(), strict=True))[:8]:
        assert share == [sum(c * pow(x, j, PRIME) for j, c in enumerate(coefficients)) % PRIME]
    assert combine(xs, shares, threshold).tolist() == [PRIME - 1]
    assert combine(xs, np.full((len(xs), 3), PRIME - 1, dtype=np.uint16), threshold).tolist() == [PRIME - 1] * 3


def test_many_secrets_in_one_product_need_no_more_memory_at_once() -> None:
    secrets = random_symbols(16 * 3000, keyed_source("blocks")).reshape(3000, 16)
    shares = split(secrets, 5, [2, 4, 6, 8, 10, 12], keyed_source("blocks coefficients"))
    assert shares[0].size > shamir._BLOCK_ELEMENTS // 5  # more than one block
    assert np.array_equal(combine([2, 4, 6, 8, 10, 12], shares, 5), secrets)


def test_secrets_with_holders_of_their_own() -> None:
    rng = random.Random(7)
    sets = [rng.sample(range(1, PRIME), 9) for _ in range(2500)]  # 2500 * 81 differences: more than one block
    secrets = random_symbols(2500 * 2, keyed_source("own")).reshape(2500, 2)
    shares = np.stack([split(s, 9, xs, keyed_source(str(xs[0]))) for s, xs in zip(secrets, sets, strict=True)])
    assert np.array_equal(combine_each(sets, shares), secrets)


@given(xs=points)
@steady
def test_weights(xs: list[int]) -> None:
    weights = lagrange_at_zero(xs)
    assert weights.dtype == np.int64
    assert weights.tolist() == reference_weights(xs)
    assert lagrange_at_zero([xs, xs[::-1]]).tolist() == [weights.tolist(), weights[::-1].tolist()]


def test_weights_of_one_point_and_of_many() -> None:
    assert lagrange_at_zero([5]).tolist() == [1]
    xs = random.Random(3).sample(range(1, PRIME), 101)
    assert lagrange_at_zero(xs).tolist() == reference_weights(xs)


def test_a_wrong_share_gives_a_wrong_secret() -> None:
    # Weights are never 0, so any change of one symbol of one share changes that symbol of the secret.
    secret = random_symbols(16, keyed_source("wrong"))
    xs = [1, 5, 7, 65520]
    shares = split(secret, 4, xs, keyed_source("wrong coefficients"))
    for holder in range(4):
        for change in (1, 2, 30000, PRIME - 1):
            forged = shares.copy()
            forged[holder, 3] = (int(forged[holder, 3]) + change) % PRIME
            differs = combine(xs, forged, 4) != secret
            assert differs.tolist() == [i == 3 for i in range(16)]


# --- hiding -------------------------------------------------------------------------------------------------------


def test_one_share_of_two_fits_every_secret_equally_well() -> None:
    # Exhaustive: for the share y at x and each of the 65521 secrets there is exactly one coefficient. All are tried
    # at once, one symbol each, so that the code under test itself maps each pair to y.
    x, y = 7, 12345
    secrets = list(range(PRIME))
    coefficients = [(y - secret) * pow(x, -1, PRIME) % PRIME for secret in secrets]
    assert sorted(coefficients) == secrets  # each coefficient, uniform by rejection, belongs to one secret
    shares = split(np.array(secrets, dtype=np.uint16), 2, [x, 9], script(coefficients))
    assert (shares[0] == y).all()


def test_two_shares_of_three_fit_every_secret_equally_well() -> None:
    x1, y1, x2, y2 = 3, 40000, 11, 65520
    secrets = list(range(PRIME))
    inverse = pow(x1 * x2 * (x2 - x1), -1, PRIME)  # of the determinant of [[x1, x1^2], [x2, x2^2]]
    first = [((y1 - s) * x2**2 - (y2 - s) * x1**2) * inverse % PRIME for s in secrets]
    second = [((y2 - s) * x1 - (y1 - s) * x2) * inverse % PRIME for s in secrets]
    assert len(set(zip(first, second, strict=True))) == PRIME
    shares = split(np.array(secrets, dtype=np.uint16), 3, [x1, x2, 5], script([*first, *second]))
    assert (shares[0] == y1).all()
    assert (shares[1] == y2).all()


@pytest.mark.parametrize("threshold", [2, 3, 5, 8])
def test_the_coefficients_move_fewer_shares_anywhere(threshold: int) -> None:
    # The t - 1 shares are secret * (1, ..., 1) + M c with M = [x_i^j], j = 1 .. t - 1, and c uniform. M is invertible,
    # like a Vandermonde matrix of distinct points, so the shares are uniform whatever the secret is. M is
    # read off the code: one unit vector c for each column.
    xs = random.Random(threshold).sample(range(1, PRIME), threshold)
    for j in range(threshold - 1):
        unit = [int(i == j) for i in range(threshold - 1)]
        column = split(np.zeros(1, dtype=np.uint16), threshold, xs, script(unit))[:, 0]
        assert column.tolist() == [pow(x, j + 1, PRIME) for x in xs]
    assert prod([*xs, *(x - y for x, y in combinations(xs, 2))]) % PRIME != 0


def test_no_coefficient_is_used_twice() -> None:
    drawn: list[int] = []

    def counting(count: int) -> bytes:
        drawn.append(count)
        return keyed_source(str(len(drawn)))(count)

    secret = np.zeros(16, dtype=np.uint16)
    first = split(secret, 5, range(1, 9), counting)
    assert sum(drawn) >= 2 * 16 * 4
    assert (split(secret, 5, range(1, 9), counting) != first).any()
    assert len({tuple(column) for column in first.T.tolist()}) == 16


def counts_over_all_words(draw: Callable[[Callable[[int], bytes]], np.ndarray]) -> np.ndarray:
    """How often each symbol comes out when the source serves every 16-bit word exactly once."""
    return np.bincount(draw(script(range(2**16 - 1, -1, -1))), minlength=PRIME)


def test_every_symbol_is_as_likely_as_any_other() -> None:
    assert (counts_over_all_words(lambda source: random_symbols(PRIME, source)) == 1).all()


def test_the_same_check_catches_a_remainder_instead_of_a_rejection() -> None:
    def naive(source: Callable[[int], bytes]) -> np.ndarray:
        return np.frombuffer(source(2 * 2**16), dtype="<u2") % PRIME

    counts = counts_over_all_words(naive)
    assert (counts[:15] == 2).all()
    assert (counts[15:] == 1).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"threshold": 0}, "at least 2"),
        ({"xs": [1, 2, 3, 4, PRIME + 1]}, "between 1 and 65520"),  # the same point as 1 modulo the prime
        ({"xs": [1, 2, 3, 4, -1]}, "between 1 and 65520"),
        ({"xs": [1, 2, 3, 4, 4.5]}, "integers"),
        ({"secret": np.array([5], dtype=np.int64)}, "uint16"),
        ({"random_bytes": lambda count: bytes(count + 1)}, "random source"),
        ({"random_bytes": lambda count: b""}, "random source"),
        ({"random_bytes": lambda count: b"\xff" * count}, "random source"),
    ],
)
def test_split_refuses(changed: dict[str, object], message: str) -> None:
    arguments = {
        "secret": np.ones(16, dtype=np.uint16),
        "threshold": 3,
        "xs": [1, 2, 3, 4, 5],
        "random_bytes": keyed_source("refusals"),
    }
    split(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        split(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"xs": [1, 2]}, "exceeds the 2 shares"),
        ({"xs": [1, 2, 3, 4]}, "same number of rows"),
        ({"shares": np.ones((3, 16), dtype=np.int32)}, "uint16"),
        ({"shares": np.ones(3, dtype=np.uint16)}, "same number of rows"),
    ],
)
def test_combine_refuses(changed: dict[str, object], message: str) -> None:
    arguments = {"xs": [1, 2, 3], "shares": np.ones((3, 16), dtype=np.uint16), "threshold": 3}
    combine(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        combine(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "xs",
    [
        *([], 3, [0, 1], [PRIME], [PRIME, 1], [-1, 2], [1, 1], [1.0, 2.0], [[1, 2], [4, 4]], [1, 2**70]),
        list(range(1, PRIME + 1)),
    ],
)
def test_weights_refuse(xs: object) -> None:
    with pytest.raises(ValueError, match="point"):
        lagrange_at_zero(xs)  # type: ignore[arg-type]


def test_combine_each_refuses_shapes_that_do_not_fit() -> None:
    shares = np.ones((2, 3, 16), dtype=np.uint16)
    combine_each([[1, 2, 3], [4, 5, 6]], shares)
    for bad in (shares[:1], shares[:, :2], shares[0]):
        with pytest.raises(ValueError, match="do not fit"):
            combine_each([[1, 2, 3], [4, 5, 6]], bad)
    with pytest.raises(ValueError, match="do not fit"):
        combine_each([1, 2, 3], shares[0])


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        random_symbols(-1, keyed_source("negative"))


def test_the_matrix_cache_is_bounded_and_read_only() -> None:
    for shift in range(5):
        split(np.ones(1, dtype=np.uint16), 2, [1 + shift, 2 + shift], keyed_source("cache"))
    information = shamir._powers.cache_info()
    assert information.maxsize is not None
    assert information.currsize <= information.maxsize <= 4
    assert not shamir._powers((1, 2), 2).flags.writeable
