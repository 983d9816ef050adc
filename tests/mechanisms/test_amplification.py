"""Each bound against its formula in high precision, against exact divergences, and against dp-accounting.

"Exact" divergences of mixtures of one-dimensional Gaussians are integrated on a fine grid (the trapezoidal rule
converges exponentially here). No test draws random numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import mpmath
import numpy as np
import pytest

from mechanisms.amplification import fixed_size_rdp, poisson_rdp, sampled_rdp
from mechanisms.privacy_curves import Curve, Floats
from tests.mechanisms import published_bounds

BOUNDS = (sampled_rdp, fixed_size_rdp, poisson_rdp)
INTEGER_BOUNDS = (fixed_size_rdp, poisson_rdp)
RATES = (1e-12, 1e-6, 1e-3, 0.05, 0.5, 0.99)


def gaussian(sensitivity: float, stddev: float = 1.0) -> Curve:
    return lambda orders: orders * (sensitivity / stddev) ** 2 / 2


def skewed(orders: Floats) -> Floats:
    """A curve that is no straight line: a linear part, an offset, and a kink."""
    return np.minimum(0.01 * orders + 1e-3, 0.1 + 0.004 * orders**1.3)


# --------------------------------------------------------------- against the formulas, in 50 digits


def linear_bound(order: float, curve: Curve, q: float) -> mpmath.mpf:
    rate, a = mpmath.mpf(q), mpmath.mpf(order)
    value = mpmath.mpf(float(curve(np.array([order]))[0]))
    return mpmath.log(1 - rate + rate * mpmath.exp((a - 1) * value)) / (a - 1)


def published(bound: Callable[..., mpmath.mpf]) -> Callable[[int, Curve, float], mpmath.mpf]:
    """A bound over whole orders, of a curve."""
    return lambda order, curve, q: bound(
        order, [mpmath.mpf(float(cost)) for cost in curve(np.arange(2.0, order + 1))], mpmath.mpf(q)
    )


@pytest.mark.parametrize("q", RATES)
@pytest.mark.parametrize(
    ("bound", "formula", "orders"),
    [
        (sampled_rdp, linear_bound, [1.001, 1.5, 2, 7.25, 300]),
        (fixed_size_rdp, published(published_bounds.fixed_size), [2, 3, 9, 300]),
        (poisson_rdp, published(published_bounds.poisson), [2, 3, 9, 300]),
    ],
    ids=["sampled", "fixed size", "poisson"],
)
def test_each_bound_is_its_formula_and_never_below(
    bound: Callable[..., Floats], formula: Callable[..., mpmath.mpf], orders: list[float], q: float
) -> None:
    curves: list[Curve] = [skewed, *(gaussian(math.sqrt(2 * rho)) for rho in (1e-14, 1e-8, 1e-3, 0.2, 9.0, 1e4))]
    with mpmath.workdps(50):
        for curve in curves:
            for order, ours in zip(orders, bound(np.array(orders), curve, q), strict=True):
                unsampled = float(curve(np.array([float(order)]))[0])
                truth = min(formula(order, curve, q), mpmath.mpf(unsampled))
                assert ours <= unsampled
                assert truth <= ours or ours == unsampled
                assert ours <= truth * (1 + mpmath.mpf("1e-10"))


@pytest.mark.parametrize("bound", BOUNDS)
def test_rates_zero_and_one(bound: Callable[..., Floats]) -> None:
    orders = np.array([2.0, 5.0, 64.0])
    assert np.array_equal(bound(orders, skewed, 0.0), np.zeros(3))
    assert np.array_equal(bound(orders, skewed, 1.0), skewed(orders))


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.filterwarnings("error")
def test_huge_and_infinite_costs_do_not_overflow(bound: Callable[..., Floats]) -> None:
    orders = np.array([2.0, 3.0, 1024.0])
    for scale in (1e3, 1e80, 1e300):
        cost = bound(orders, lambda a, scale=scale: scale * a, 0.01)
        assert np.all(np.isfinite(cost))
        assert np.all(cost <= scale * orders)
        assert np.all(cost >= scale * orders * 0.99)
    # Nothing is known from order 3 on: order 2 is still bounded.
    cost = bound(orders, lambda a: np.where(a > 2, np.inf, a), 0.01)
    assert np.array_equal(np.isinf(cost), [False, True, True])
    assert np.array_equal(bound(orders, lambda a: 0.0 * a, 0.01), np.zeros(3))


@pytest.mark.parametrize("bound", BOUNDS)
def test_costs_grow_with_the_rate_and_keep_the_shape(bound: Callable[..., Floats]) -> None:
    orders = np.array([[2.0, 33.0], [7.0, 500.0]])
    rates = np.concatenate([np.geomspace(1e-9, 0.5, 12), [0.7, 0.9, 1.0]])
    costs = [bound(orders, gaussian(0.3), float(q)) for q in rates]
    assert all(cost.shape == (2, 2) for cost in costs)
    assert all(np.all(low <= high) for low, high in itertools.pairwise(costs))
    assert bound(2, gaussian(0.3), 0.1).shape == ()
    assert bound(np.array([]), gaussian(0.3), 0.1).shape == (0,)


@pytest.mark.parametrize("bound", INTEGER_BOUNDS)
def test_the_curve_is_asked_once_and_orders_may_come_in_any_order(bound: Callable[..., Floats]) -> None:
    asked = []

    def curve(orders: Floats) -> Floats:
        asked.append(orders)
        return skewed(orders)

    mixed = bound(np.array([1024, 2, 17, 2]), curve, 0.02)
    assert len(asked) == 1
    assert np.array_equal(asked[0], np.arange(2.0, 1025))
    whole = bound(np.arange(2, 1025), skewed, 0.02)
    assert np.array_equal(mixed, whole[[1022, 0, 15, 0]])


@pytest.mark.parametrize("bound", BOUNDS)
def test_bad_arguments_are_refused(bound: Callable[..., Floats]) -> None:
    for order in (1.0, 0.5, math.nan, -3.0):
        with pytest.raises(ValueError, match="orders"):
            bound(order, skewed, 0.1)
    for q in (-1e-9, 1.0 + 1e-9, math.nan, math.inf):
        with pytest.raises(ValueError, match="rate q"):
            bound(2.0, skewed, q)
    for curve in (lambda a: -a, lambda a: a * math.nan, lambda a: 1.0, lambda a: np.ones(a.size + 1)):
        with pytest.raises(ValueError, match="curve"):
            bound(np.array([2.0, 4.0]), curve, 0.1)


@pytest.mark.parametrize("bound", INTEGER_BOUNDS)
def test_bounds_for_integers_refuse_fractional_orders(bound: Callable[..., Floats]) -> None:
    for order in (2.5, 1.5, math.inf):
        with pytest.raises(ValueError, match="integer"):
            bound(np.array([2.0, order]), skewed, 0.1)


# ------------------------------------------------------------------------- against exact divergences

GRID = np.linspace(-80.0, 80.0, 80_001)
STEP = 160.0 / 80_000


def normal(mean: float, stddev: float = 1.0) -> Floats:
    """Log density on the grid."""
    return -((GRID - mean) ** 2) / (2 * stddev**2) - math.log(stddev * math.sqrt(2 * math.pi))


def mixture(parts: Iterable[tuple[float, Floats]]) -> Floats:
    return np.logaddexp.reduce([math.log(weight) + log_density for weight, log_density in parts], axis=0)


def divergence(order: float, p: Floats, q: Floats) -> float:
    """D_order(P || Q) of two log densities on the grid."""
    exponents = order * p + (1 - order) * q
    top = float(exponents.max())
    assert max(exponents[0], exponents[-1]) < top - 60
    return (top + math.log(float(np.exp(exponents - top).sum()) * STEP)) / (order - 1)


def larger(order: float, p: Floats, q: Floats) -> float:
    return max(divergence(order, p, q), divergence(order, q, p))


def test_the_integration_knows_the_gaussian() -> None:
    for order in (1.2, 2.0, 9.0):
        assert divergence(order, normal(1.0), normal(0.0)) == pytest.approx(order / 2, rel=1e-11)


@pytest.mark.parametrize("q", [0.01, 0.1, 0.5, 0.9])
def test_the_linear_bound_holds_whatever_the_sum_without_the_participant(q: float) -> None:
    """Other sums far away or close by, and noisier or quieter ones: the participant's noise share leaves with it."""
    closest = math.inf
    for mean, stddev in itertools.product((-3.0, -1.0, 0.0, 1.0, 4.0), (0.6, 1.0, 1.3)):
        without = normal(mean, stddev)
        with_content, with_zero = (mixture([(1 - q, without), (q, normal(m))]) for m in (1.0, 0.0))
        for order in (1.3, 2.0, 4.0, 8.0):
            exact = larger(order, with_content, with_zero)
            bound = float(sampled_rdp(order, gaussian(1.0), q))
            assert exact <= bound * (1 + 1e-9)
            closest = min(closest, bound / exact)
    assert closest < 1.02  # somewhere it is all but reached


@pytest.mark.parametrize("q", [0.01, 0.1, 0.5, 0.9])
def test_the_poisson_bound_holds_where_the_noise_stays(q: float) -> None:
    for stddev in (0.7, 1.0, 2.0, 5.0):
        zero = normal(0.0, stddev)
        sampled = mixture([(1 - q, zero), (q, normal(1.0, stddev))])
        for order in (2, 3, 4, 8):
            assert larger(order, sampled, zero) <= float(poisson_rdp(order, gaussian(1.0, stddev), q)) * (1 + 1e-9)


def fixed_size_law(updates: tuple[float, ...], cohort: int) -> Floats:
    cohorts = list(itertools.combinations(updates, cohort))
    return mixture([(1 / len(cohorts), normal(sum(chosen))) for chosen in cohorts])


@pytest.mark.parametrize(("roster", "cohort"), [(2, 1), (4, 1), (4, 2), (5, 3), (10, 1), (3, 3)])
@pytest.mark.long
def test_the_fixed_size_bound_holds_for_every_pattern_of_updates(roster: int, cohort: int) -> None:
    """An update against zero and against its opposite; the others hold any pattern of extremes."""
    for size in (0.3, 1.0):
        for positives in range(roster):
            others = (size,) * positives + (-size,) * (roster - 1 - positives)
            laws = [fixed_size_law((own, *others), cohort) for own in (size, 0.0, -size)]
            for order in (2, 3, 8):
                bound = float(fixed_size_rdp(order, gaussian(2 * size), cohort / roster))
                for p, q in itertools.permutations(laws, 2):
                    assert divergence(order, p, q) <= bound * (1 + 1e-9) + 1e-12


def test_fixed_size_at_one_times_the_sensitivity_is_unsound() -> None:
    """Naive version: Theorem 9 with the curve of content against zero. Two participants, one of them drawn.

    One holds 1, the other one -1: a large value shows which one was drawn.
    """
    with_content, with_zero = fixed_size_law((1.0, -1.0), 1), fixed_size_law((0.0, -1.0), 1)
    exact = divergence(4, with_content, with_zero)
    naive = float(fixed_size_rdp(4, gaussian(1.0), 0.5))
    assert exact == pytest.approx(1.7549, abs=1e-3)
    assert naive < 0.85 * exact
    assert exact <= float(fixed_size_rdp(4, gaussian(2.0), 0.5))
    assert exact <= float(sampled_rdp(4, gaussian(1.0), 0.5))


def test_the_quadratic_bound_is_unsound_where_the_sampler_follows_identity() -> None:
    """Naive version: Zhu-Wang for any sampling at rate q. Here another one takes the place of one that is out."""
    without = normal(-1.0)
    with_content, with_zero = (mixture([(0.9, without), (0.1, normal(m))]) for m in (1.0, 0.0))
    exact = divergence(2, with_content, with_zero)
    assert float(poisson_rdp(2, gaussian(1.0), 0.1)) < 0.2 * exact
    assert exact <= float(sampled_rdp(2, gaussian(1.0), 0.1))


@pytest.mark.parametrize("shares", [1, 2, 5, 20])
def test_the_quadratic_bound_is_unsound_where_participants_bring_shares_of_the_noise(shares: int) -> None:
    """Naive version: Zhu-Wang for distributed noise, even with honest coins.

    ``shares`` others add noise of variance 1 each, and so does the participant when it is in.
    """
    stddev, q = math.sqrt(shares + 1), 0.01
    without = normal(0.0, math.sqrt(shares))
    with_content, with_zero = (mixture([(1 - q, without), (q, normal(m, stddev))]) for m in (1.0, 0.0))
    exact = larger(2, with_content, with_zero)
    assert float(poisson_rdp(2, gaussian(1.0, stddev), q)) < exact
    assert exact <= float(sampled_rdp(2, gaussian(1.0, stddev), q))


# --------------------------------------------------------------------------------- against dp-accounting


def oracle(event: object, relation: str, orders: list[int]) -> Floats:
    accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(orders, getattr(accounting.NeighboringRelation, relation))
    return np.asarray(accountant.compose(event).rdp)


def test_the_poisson_bound_lies_above_the_exact_curve_of_dp_accounting() -> None:
    """Theirs is exact for the Gaussian; ours pays at most ln(3) / (order - 1) for holding in general."""
    accounting = pytest.importorskip("dp_accounting")
    orders = [2, 3, 5, 16, 64, 256]
    for z, q in itertools.product((0.7, 1.0, 4.0), (1e-3, 0.03, 0.4)):
        event = accounting.PoissonSampledDpEvent(q, accounting.GaussianDpEvent(z))
        theirs = oracle(event, "REPLACE_SPECIAL", orders)
        ours = poisson_rdp(np.array(orders), gaussian(1.0, z), q)
        assert np.all(theirs <= ours * (1 + 1e-9))
        assert ours[0] == pytest.approx(theirs[0], rel=1e-9)  # at order 2 both are exact
        assert np.all(ours <= (theirs + math.log(3) / (np.array(orders) - 1)) * (1 + 1e-9))


def test_the_fixed_size_bound_agrees_with_dp_accounting() -> None:
    """Theirs takes z as deviation over the replace-one sensitivity, so half of ours; it is Theorem 9 above order
    256 and at order 2, and a variant for the Gaussian (Theorem 27) that is tighter in between."""
    accounting = pytest.importorskip("dp_accounting")
    orders = [2, 3, 5, 16, 64, 257, 300]
    for z, sampled in itertools.product((1.0, 4.0, 30.0), (1, 30, 400)):
        event = accounting.SampledWithoutReplacementDpEvent(1000, sampled, accounting.GaussianDpEvent(z / 2))
        theirs = oracle(event, "REPLACE_ONE", orders)
        curve = gaussian(2.0, z)
        ours = fixed_size_rdp(np.array(orders), curve, sampled / 1000)
        unsampled = curve(np.array(orders, dtype=np.float64))
        assert np.all(np.minimum(theirs, unsampled) <= ours * (1 + 1e-9))
        for index in (0, 5, 6):
            assert ours[index] == pytest.approx(min(theirs[index], unsampled[index]), rel=1e-8)
