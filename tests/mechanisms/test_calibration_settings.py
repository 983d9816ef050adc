"""Calibration over the settings that the design names, against an independent high-precision solution.

44 settings: one round and 1,500, sampling rates 1 to 3e-4, 10 to 20 bits, 250 to 2^22 values, both distributed
mechanisms, all three readers. The independent side shares no code with the plan: its own formulas from the papers, in
30 digits; without sampling the exact Gaussian figure, else every order (all real ones where the theorem allows, all
integers up to 96 otherwise).

A calibration is right if the independent epsilon at the planned noise is the target, and best if a millionth less
noise, on the grid that goes with it, already exceeds it: the independent solution then lies less than a millionth
below the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import mpmath
import pytest

from mechanisms.plan import Plan
from tests.mechanisms.conftest import plan_for
from tests.mechanisms.published_bounds import fixed_size, gaussian_epsilon, poisson

mpf = mpmath.mpf
Curve = Callable[[mpmath.mpf], mpmath.mpf]
ORDERS = range(2, 97)
DELTA = 1e-5
K_STDDEVS = 4


@dataclass(frozen=True)
class Case:
    mechanism: str
    clients: int
    dim: int
    bits: int
    epsilon: float
    rounds: int
    population: int  # the same as clients: all are in every round
    sampling: str = "poisson"

    @property
    def reader(self) -> str:
        if self.population == self.clients:
            return "coordinator"
        return "conditional" if self.sampling == "poisson" else "released"

    def plan(self) -> Plan:
        sampled = self.population > self.clients
        return plan_for(
            self.clients,
            **{"mechanism": self.mechanism, "population": self.population, "target": self.reader, "dim": self.dim},
            **{"bits": self.bits, "clip": 0.03, "epsilon": self.epsilon, "delta": DELTA, "rounds": self.rounds},
            sampling=self.sampling if sampled else "none",
            k_stddevs=float(K_STDDEVS),
        )


CASES = [
    Case(mechanism, *rest)
    for mechanism in ("ddgauss", "skellam")
    for rest in (
        (100, 250, 10, 0.75, 1, 100),
        (100, 250, 16, 6.0, 1, 100),
        (1000, 250, 14, 3.0, 1, 1000),
        (1000, 250, 12, 6.0, 1, 1000),
        (100, 1 << 20, 20, 1.0, 1, 100),
        (50, 1 << 22, 13, 10.0, 1, 50),
        (20, 64, 9, 10.0, 1, 20),  # on a grid too coarse for exact Gaussian costs
        (100, 5000, 18, 8.0, 1500, 100),
        (1000, 1 << 22, 20, 10.0, 1500, 1000),
        (100, 250, 12, 4.0, 1, 3400),
        (100, 1 << 20, 14, 5.0, 1500, 3400),
        (100, 1 << 20, 12, 10.0, 1500, 3400),
        (100, 4_000_000, 18, 5.0, 1500, 342_477),
        (100, 1 << 22, 13, 2.5, 1500, 342_477),
        (100, 1 << 20, 16, 20.0, 1500, 342_477),
        (1000, 1 << 22, 18, 10.0, 1500, 342_477),
        (100, 250, 20, 2.0, 1500, 333_334),
        (100, 10_000, 10, 8.0, 1500, 100_000),
        (100, 250, 16, 1.0, 1, 2000, "lottery"),
        (100, 50_000, 14, 4.0, 15, 10_000, "lottery"),
        (200, 250, 16, 0.5, 1, 400, "fixed"),
        (100, 50_000, 18, 2.0, 100, 10_000, "fixed"),
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.long
def test_noise_and_granularity_are_those_of_an_independent_solution(case: Case) -> None:
    plan = case.plan()
    assert 0.999 * case.epsilon <= plan.planned_epsilon <= case.epsilon
    assert plan.sampling_rate == pytest.approx(case.clients / case.population)
    at_plan, below, granularity = independent(case, plan)
    assert case.epsilon * (1 - 1e-6) <= at_plan <= case.epsilon * (1 + 1e-9)
    assert below > case.epsilon
    assert granularity <= 1 + 1e-6


def independent(case: Case, plan: Plan) -> tuple[float, float, float]:
    """Epsilon at the plan's noise, epsilon at a millionth less noise on its own grid, and the plan's granularity over
    the independent one for the same noise.
    """
    with mpmath.workdps(30):
        variance = plan.local_variance
        exact = mpf(variance.numerator) / variance.denominator
        length, less = mpf(plan.clip) / plan.granularity, exact * (1 - mpf("1e-6")) ** 2
        own = longest_clip(case, plan.block_dim, exact)
        return (
            float(epsilon_of(case, plan.padded_dim, exact, length)),
            float(epsilon_of(case, plan.padded_dim, less, longest_clip(case, plan.block_dim, less))),
            float(own / length),
        )


def longest_clip(case: Case, block: int, variance: mpmath.mpf) -> mpmath.mpf:
    """clip / granularity when k deviations of one value of the sum just fill half the modulus."""
    n, half = mpf(case.clients), mpf(2) ** (case.bits - 1)
    return mpmath.sqrt(((half / K_STDDEVS) ** 2 - n / 4 - n * variance) * block) / n


def epsilon_of(case: Case, d: int, variance: mpmath.mpf, length: mpmath.mpf) -> mpmath.mpf:
    """All rounds at delta, at the best order. ``length`` is the clip in grid units."""
    rate = mpf(case.clients) / case.population
    worst = length + mpmath.sqrt(d)
    likely = mpmath.sqrt(
        length**2 + mpf(d) / 4 + length + mpmath.sqrt(d) / 2
    )  # beta = exp(-1/2): sqrt(2 ln e^(1/2)) = 1
    l2 = min(worst, likely)
    l1 = min(mpmath.sqrt(d) * l2, l2**2)

    least = 0 if case.mechanism == "skellam" else 12
    found = [mpmath.inf]
    if case.reader != "conditional" and case.clients * variance >= 128 and variance >= least:
        exact = mpmath.sqrt((case.clients * variance - 6) / case.rounds) / l2
        found = [gaussian_epsilon(exact, DELTA)]  # for any reader
        if case.reader == "coordinator":
            return found[0]

    def once(times: int) -> Curve:
        if case.mechanism == "ddgauss":
            return ddgauss(case.clients, d, variance, times * l1, times * l2)
        return skellam(case.clients * variance, times * l1, times * l2)

    def converted(a: mpmath.mpf, cost: mpmath.mpf) -> mpmath.mpf:
        return case.rounds * cost + mpmath.log(1 - 1 / a) - (mpmath.log(mpf(DELTA)) + mpmath.log(a)) / (a - 1)

    def published(bound: Callable[..., mpmath.mpf], curve: Curve) -> list[mpmath.mpf]:
        """At every whole order, or the unsampled cost where that is less."""
        cost = [curve(mpf(a)) for a in ORDERS]
        return [converted(mpf(a), min(one, bound(a, cost, rate))) for a, one in zip(ORDERS, cost, strict=True)]

    if case.reader == "conditional":
        return min(published(poisson, once(1)))
    if case.sampling == "fixed":
        found += published(fixed_size, once(2))
    curve = once(1)

    def at(a: mpmath.mpf) -> mpmath.mpf:  # every reader knows at most who took part: rate 1
        grown = mpmath.expm1((a - 1) * curve(a)) * rate
        return converted(a, mpmath.log1p(grown) / (a - 1))

    whole = {a: at(mpf(a)) for a in ORDERS}
    found += whole.values()
    if case.mechanism == "ddgauss":  # all real orders: around the best integer
        best = min(whole, key=lambda a: whole[a])
        low, high = max(mpf("1.001"), mpf(best - 1)), mpf(best + 1)
        for _ in range(80):
            first, second = low + (high - low) / 3, high - (high - low) / 3
            if at(first) < at(second):
                high = second
            else:
                low = first
        found.append(at(low))
    return min(found)


def ddgauss(n: int, d: int, variance: mpmath.mpf, l1: mpmath.mpf, l2: mpmath.mpf) -> Curve:
    """[KLS21] Theorem 1: the smallest of three."""
    tau = 10 * mpmath.fsum(mpmath.exp(-2 * mpmath.pi**2 * variance * k / (k + 1)) for k in range(1, n))
    s1, s2 = l1 / mpmath.sqrt(n * variance), l2 / mpmath.sqrt(n * variance)
    return lambda a: min(
        a * s2**2 / 2 + tau * d, a / 2 * (s2**2 + 2 * s1 * tau + tau**2 * d), a / 2 * (s2 + mpmath.sqrt(d) * tau) ** 2
    )


def skellam(variance: mpmath.mpf, l1: mpmath.mpf, l2: mpmath.mpf) -> Curve:
    """[AKL21], main theorem, integer orders."""
    return lambda a: (
        a * l2**2 / (2 * variance) + min(((2 * a - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    )


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam"])
def test_a_sampling_rate_of_one_costs_nothing(mechanism: str) -> None:
    """The naive plan keeps to the integer orders of the sampling theorem, and adds noise for it."""
    unsampled = Case(mechanism, 100, 250, 16, 8.0, 1, 100).plan()
    for sampling, target in (("poisson", "conditional"), ("lottery", "released"), ("fixed", "released")):
        reader = {"population": 100, "sampling": sampling, "target": target}
        plan = plan_for(100, mechanism=mechanism, dim=250, bits=16, clip=0.03, epsilon=8.0, delta=DELTA, **reader)
        assert float(plan.local_variance) == pytest.approx(float(unsampled.local_variance), rel=1e-7)


def test_the_independent_side_would_see_noise_that_is_too_small() -> None:
    """The naive calibration forgets that rounding lengthens an update: its noise is caught as too little."""
    case = CASES[0]
    plan = case.plan()
    with mpmath.workdps(30):
        naive = plan.local_variance * Fraction(math.floor(1e6 * (plan.clip / plan.inflated_clip) ** 2), 10**6)
        variance = mpf(naive.numerator) / naive.denominator
        length = longest_clip(case, plan.block_dim, variance)
        assert epsilon_of(case, plan.padded_dim, variance, length) > case.epsilon * 1.001
