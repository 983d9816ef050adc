"""Exact Gaussian cost: the steps of the proof in docs/privacy.md, and charges beside an independent numerical epsilon.

``python -m tests.mechanisms.test_gaussian_cost`` plays 1,000 random plans.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray
from scipy.special import ive  # type: ignore[import-untyped]

from mechanisms.accounting import Account, RoundCharge
from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.privacy_curves import gaussian_cost, rdp_to_epsilon
from tests.mechanisms.conftest import DEMO, plan_for
from tests.mechanisms.published_bounds import gaussian_epsilon
from wire.records.ledger_rows import price

MILLION = {"clients": 1000, "dim": 10**6, "bits": 18, "colluders": 50, "min_survivors": 640, "quorum": 650}


def steepest(variance: int) -> mpmath.mpf:
    """The largest increment of Phi^-1(F(k)) of Skellam noise, squared, within 14 deviations.

    To 30 digits: tails are summed from their small end, and the claim is about the fifth digit.
    """
    with mpmath.workdps(30):
        last = int(14 * math.sqrt(variance))
        weights = [mpmath.besseli(k, variance) for k in (last + 300, last + 299)]
        for k in range(last + 299, 0, -1):
            weights.append(weights[-2] + weights[-1] * 2 * k / variance)
        tail, at = mpmath.mpf(0), []
        for weight in weights:
            tail += weight * mpmath.exp(-variance)
            at.append(tail)
        at.reverse()  # P[X >= k]
        deviates, z = [], mpmath.mpf(0)
        for chance in at[1 : last + 1]:
            for _ in range(6):  # from the deviate before
                beyond = mpmath.erfc(z / mpmath.sqrt(2)) / 2
                z += mpmath.log(beyond / chance) * beyond * mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(z * z / 2)
            assert abs(beyond / chance - 1) < 1e-25
            deviates.append(z)
        return max(2 * deviates[0], *(b - a for a, b in pairwise(deviates))) ** 2


@pytest.mark.parametrize("variance", [128, 300, 2000])
def test_skellam_noise_is_no_steeper_than_a_gaussian_of_six_less_variance(variance: int) -> None:
    found = steepest(variance)
    assert 1 / mpmath.mpf(variance) < found  # the naive cost, D2^2 / 2v, is too low
    assert found <= 1 / (mpmath.mpf(variance) - 1.5)


def test_the_bound_on_the_curvature_of_skellam_noise() -> None:
    """y = x I'(x) / I(x) is at least s - x^2 / 2s^2 - 1 / 6s from x = 5 on."""
    for order in range(40):
        for x in (5, 6, 9, 20, 100, 3000):
            y = x * mpmath.besseli(order, x, derivative=1) / mpmath.besseli(order, x)
            s = mpmath.hypot(x, order)
            assert y >= s - mpmath.mpf(x) ** 2 / (2 * s**2) - 1 / (6 * s), (order, x)


@pytest.mark.parametrize(("a", "b", "close"), [(12, 12, True), (12, 500, True), (3, 3, False)])
def test_two_discrete_gaussians_add_up_to_one(a: int, b: int, close: bool) -> None:
    with mpmath.workdps(90):
        one, other, whole = (
            {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * v)) for k in range(-500, 501)} for v in (a, b, a + b)
        )
        scale = mpmath.fsum(whole.values()) / mpmath.fsum(one.values()) / mpmath.fsum(other.values())
        summed = {k: scale * mpmath.fsum(p * other.get(k - j, 0) for j, p in one.items()) for k in range(-9, 10)}
        furthest = max(abs(summed[k] / whole[k] - 1) for k in summed)
        assert (furthest < mpmath.mpf(2) ** -166) == close


def test_a_discrete_gaussian_is_a_rounded_continuous_one() -> None:
    """The kernel at g is the discrete Gaussian around g of variance 6; the law differs by its normalisation alone."""
    with mpmath.workdps(90):
        sums = [
            mpmath.fsum(mpmath.exp(-((j - g) ** 2) / 12) for j in range(-70, 71))
            for g in (mpmath.mpf(0), mpmath.mpf(0.5))
        ]
        assert (sums[0] - sums[1]) / sums[1] <= mpmath.mpf(2) ** -168


# ---------------------------------------------------------------- an independent epsilon

# It shares no code with the accounting: laws from scipy's Bessel functions and plain exponentials, convolved share by
# share, losses rounded towards a smaller epsilon and composed by Fourier transforms, so a charge below it is unsound.
# The contribution is the worst that one coordinate can hold, or is spread over several.
Floats = NDArray[np.float64]


def log_law(mechanism: str, variance: float, shares: int, reach: int) -> Floats:
    """ln P[X = k], k = -reach..reach, of a sum of ``shares`` with this variance each.

    Up to some 1e-10; a wide sum of discrete Gaussians, whose convolution would only add rounding errors, as one.
    """
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    central = variance * shares
    if mechanism == "skellam":
        with np.errstate(divide="ignore"):
            near = np.log(ive(k, central))
        # Uniform asymptotic expansion of I_k(v), where the library underflows.
        order = np.abs(k)
        root = np.hypot(order, central)
        far = root - order * np.arcsinh(order / central) - central - np.log(2 * math.pi * root) / 2
        t = order / root
        far += np.log1p((3 * t - 5 * t**3) / 24 / np.maximum(order, 1))
        return np.where(np.isfinite(near) & (near > -600), near, far)
    if central > 2000 or shares == 1:
        logs = -(k**2) / (2 * central)
    else:
        one = np.exp(-(k**2) / (2 * variance))
        size = 1 << (4 * reach).bit_length()
        spectrum = np.fft.rfft(np.fft.ifftshift(np.pad(one / one.sum(), (size // 2 - reach, size // 2 - reach - 1))))
        summed = np.fft.fftshift(np.fft.irfft(spectrum**shares, size))[size // 2 - reach : size // 2 + reach + 1]
        logs = np.log(np.maximum(summed, 1e-300))
        trusted = summed > 1e-9 * summed.max()
        logs = np.where(trusted, logs, -(k**2) / (2 * central) - np.log(np.exp(-(k**2) / (2 * central)).sum()))
    return np.asarray(logs - np.log(np.exp(logs - logs.max()).sum()) - logs.max(), dtype=np.float64)


def lower_epsilon(rounds: Sequence[tuple[Floats, int]], shift: int, delta: float, points: int = 4000) -> float:
    """epsilon at ``delta`` of sums that are shifted in one coordinate, by law and number: never above the truth.

    The library moves 1e-15 of the mass to infinity, which is taken off here.
    """
    losses, spread = [], 0.0
    for log_p, copies in rounds:
        loss = log_p[:-shift] - log_p[shift:]
        mass = np.exp(log_p[:-shift])  # where the unshifted law has its mass; the shifted one beside it
        losses.append((loss[mass > 0], mass[mass > 0], copies))
        spread = max(spread, math.sqrt(float(np.sum(mass * loss**2))))
    step = max(spread / points * 8, 1e-12)
    whole: DensePLDPmf | None = None
    for loss, mass, copies in losses:
        cells = np.floor(loss / step).astype(np.int64)
        low = int(cells.min())
        pmf = DensePLDPmf(step, low, np.bincount(cells - low, weights=mass), 0.0, False)
        pmf = pmf.self_compose(copies) if copies > 1 else pmf
        whole = pmf if whole is None else whole.compose(pmf)
    assert whole is not None
    return float(whole.get_epsilon_for_delta(delta + 1e-14))


# ---------------------------------------------------------------- charges beside it


def random_plan(number: int) -> Plan | None:
    """Laws, survivors, rounds, dimensions, bits and targets at random; None: not feasible."""
    draw = random.Random(number)
    clients = draw.choice([10, 30, 100, 400, 1000])
    fewest = draw.randint(clients * 6 // 10, clients)
    colluders = draw.randint(0, clients // 10)
    try:
        return plan_for(
            clients,
            mechanism=draw.choice(["skellam", "ddgauss"]),
            dim=draw.choice([1, 50, 500, 10**4, 10**6]),
            bits=draw.randint(8, 19),
            epsilon=draw.choice([0.5, 1.0, 2.0, 4.0, 8.0]),
            delta=draw.choice([1e-4, 1e-5, 1e-7]),
            rounds=draw.choice([1, 3, 15, 100]),
            **{"min_survivors": fewest, "quorum": fewest, "colluders": colluders, "max_dropout": 0.4},
        )
    except InfeasiblePlan:
        return None


def kept(plan: Plan, survivors: int) -> float:
    """What stays of a share, by the formulas of docs/decisions/0017 and not by the plan's own."""
    variance, levels = plan.local_variance, 2**plan.noise_parts - 1
    if not levels:
        return float(variance)
    n, m, k = (number - plan.colluders for number in (plan.clients, plan.min_survivors, survivors))
    part = Fraction(int(variance * (n - m) / (n * levels) * 2**28), 2**28)
    return float(variance - part * (levels * (k - m) * n // (k * (n - m))))


def charged_over_independent(plan: Plan, survivors: list[int]) -> float:
    """Of rounds with these survivors: the smallest quotient over contributions in one coordinate or in several."""
    account = Account(plan)
    for number, left in enumerate(survivors):
        account.charge(RoundCharge(number, 1, frozenset(range(left)), plan.identity))
    charged, quotients = account.epsilon_coordinator(), []
    for spread in (1, 4, 64):
        shift = math.floor(plan.l2_bound_grid / math.sqrt(spread))
        if spread > plan.padded_dim or shift < 1:
            continue
        rounds = []
        for left, copies in Counter(survivors).items():
            honest, variance = left - plan.colluders, kept(plan, left)
            reach = math.ceil(14 * math.sqrt(variance * honest)) + shift
            rounds.append((log_law(plan.mechanism, variance, honest, reach), copies * spread))
        least = lower_epsilon(rounds, shift, plan.delta)
        quotients.append(charged / least if least > 0 else math.inf)
    return min(quotients)


def check(number: int) -> float | None:
    plan = random_plan(number)
    if plan is None:
        return None
    draw = random.Random(-number)
    same = [draw.randint(plan.min_survivors, plan.clients)] * min(plan.rounds, 20)
    some = [draw.randint(plan.min_survivors, plan.clients) for _ in range(3)]
    mixed = [draw.choice(some) for _ in range(min(plan.rounds, 20))]
    found = min(charged_over_independent(plan, same), charged_over_independent(plan, mixed))
    assert found >= 1, (number, plan, found)
    return found


@pytest.mark.long
def test_random_plans_are_never_charged_less_than_an_independent_epsilon() -> None:
    found = [one for number in range(15) if (one := check(number)) is not None]
    assert len(found) > 6


@pytest.mark.parametrize("mechanism", ["skellam", "ddgauss"])
@pytest.mark.parametrize("change", [{}, MILLION], ids=["demo", "million"])
@pytest.mark.long
def test_a_charge_is_close_to_the_independent_epsilon(mechanism: str, change: dict[str, int]) -> None:
    plan = plan_for(**{**DEMO, "mechanism": mechanism, **change})
    found = charged_over_independent(plan, [plan.min_survivors] * plan.rounds)
    assert 1 <= found <= 1.015
    by_renyi = rdp_to_epsilon(4.0, plan.rounds * plan.round_cost(plan.h_min, 4.0), plan.delta)
    assert by_renyi > 1.05 * plan.epsilon_coordinator  # what was charged before, at the best whole order


@pytest.mark.parametrize("bits", [22, 24, 30, 32])
def test_an_exact_charge_is_never_above_the_one_at_h_min(bits: int) -> None:
    """A participant's ledger refuses a row that is, and where all survive both are equal but for the last digit."""
    for sampling in ({}, {"sampling": "lottery", "population": 1000}):
        plan = plan_for(**{**DEMO, "bits": bits, **sampling})
        most = price(plan, plan.h_min)
        for honest in range(plan.h_min, plan.clients - plan.colluders + 1):
            found = price(plan, honest)
            assert found.cost <= most.cost
            assert all(cost <= limit for (_, cost), (_, limit) in zip(found.curve, most.curve, strict=True))


def test_where_nothing_is_proved_nothing_is_charged_exactly() -> None:
    assert gaussian_cost(3.0, Fraction(127)) == math.inf
    assert gaussian_cost(3.0, Fraction(134)) == pytest.approx(9 / 256)
    few_bits = plan_for(20, dim=64, bits=9, epsilon=10.0)
    assert few_bits.order > 1
    assert few_bits.round_cost(20, 1.0) == math.inf
    small_shares = plan_for(100, dim=64, bits=9, epsilon=20.0)
    assert small_shares.local_variance < 12 or small_shares.order == 1


def test_costs_of_adaptive_rounds_convert_by_their_sum() -> None:
    costs = np.array([0.3, 0.01, 0.7])
    with mpmath.workdps(40):
        whole = gaussian_epsilon(1 / mpmath.sqrt(2 * mpmath.mpf(float(costs.sum()))), 1e-6)
    assert rdp_to_epsilon(1.0, costs.sum(), 1e-6) == pytest.approx(float(whole), rel=1e-9)
    assert rdp_to_epsilon(1.0, 0.0, 1e-6) == 0.0


if __name__ == "__main__":
    quotients = [one for number in range(1600) if (one := check(number)) is not None][:1000]
    middle = sorted(quotients)[len(quotients) // 2]
    print(f"{len(quotients)} plans: charged / independent at least {min(quotients):.6f}, median {middle:.4f}")
