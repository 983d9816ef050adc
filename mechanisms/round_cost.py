"""What one round of a stated plan costs, by mechanism, and what all planned rounds cost, by reader.

Costs are Renyi divergences at given orders, or at order 1 exact Gaussian costs (`privacy_curves.gaussian_cost`), which
sampling doesn't amplify. Adjacency is that of the mechanism (`mechanisms.mechanism`); for the
three that add noise to a sum it is one participant's update against zero, its noise share present.

- coordinator: every round that holds the participant, unamplified; with epochs, for every reader, one of each epoch.
- released: readers of the released models only, who don't know who took part: amplified by the prior rate q with
  `amplification.sampled_rdp`. With "fixed" sampling the owner also states that leaving is independent of identity, and
  `amplification.fixed_size_rdp` may be the smaller one.
- conditional: the published figure, `amplification.poisson_rdp`, or `amplification.sampled_rdp` where that is smaller:
  it holds if all had been drawn independently and the noise didn't depend on who was, which no outsider can check. Of a
  central Gaussian the smaller of it and `pld.poisson_gaussian_epsilon`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from mechanisms.amplification import fixed_size_rdp, poisson_rdp, sampled_rdp
from mechanisms.lattice_noise import SAMPLER_DISTANCE
from mechanisms.pld import poisson_gaussian_epsilon, poisson_gaussian_multiplier
from mechanisms.privacy_curves import (
    GAUSSIAN_ORDER,
    HAIR,
    SMALLEST_GAUSSIAN_PART,
    Curve,
    Floats,
    ddgauss_rdp,
    epsilon_with_sampler_error,
    gaussian_cost,
    order_grid,
    rounded_l1_bound,
    rounded_l2_bound,
    skellam_rdp,
)
from mechanisms.statement import (
    CONDITIONAL,
    COORDINATOR,
    DDGAUSS,
    FIXED_SIZE,
    GAUSSIAN,
    LOCAL,
    POISSON,
    RELEASED,
    SKELLAM,
    Statement,
    participations,
)

LARGEST_SAMPLED_ORDER: Final = 1024
"""The sums of the amplification theorems have as many terms as the order."""


LARGEST_ORDER: Final = 2.0**20

# The share of delta that pays for the lattice on which a central Gaussian is drawn, where losses are composed.
_SET_ASIDE: Final = 2.0**-20
# Of a schedule, at which `conditional_epsilon` composes privacy loss distributions: that takes a quarter of a second.
_CHECKPOINTS: Final = 10


class Noise(NamedTuple):
    """The calibrated part of a plan: granularity in data units, variance of one share in grid units squared."""

    granularity: float
    local_variance: Fraction


def sensitivity(stated: Statement, granularity: float) -> tuple[float, float]:
    """Rounded (L2, L1) bounds of one clipped update, grid units."""
    l2_bound = rounded_l2_bound(stated.encoder_clip / granularity, stated.padded_dim, stated.beta)
    return l2_bound, rounded_l1_bound(l2_bound, stated.padded_dim)


def round_curve(stated: Statement, noise: Noise, honest: int, times: int = 1) -> Curve:
    """The cost of one unsampled sum with ``honest`` unknown noise shares at given orders, order 1 included.

    Args:
        honest: |u3| - A. More honest noise is post-processing, while tau may make the formula worse: the smaller of
            the bounds at ``honest`` and at h_min. Noise of the coordinator or of oneself doesn't depend on it.
        times: multiplies the sensitivity; 2 turns zero-out into replace-one.
    """
    l2_bound, l1_bound = (times * bound for bound in sensitivity(stated, noise.granularity))
    variance = noise.local_variance
    if stated.noise_parts:
        variance = stated.share_variance(variance, honest + stated.colluders)
    central = variance * honest
    if stated.mechanism == DDGAUSS:
        bounds: dict[str, Any] = {"l2_bound": l2_bound, "l1_bound": l1_bound, "local_variance": variance}

        def renyi(orders: Floats) -> Floats:
            costs = partial(ddgauss_rdp, orders, **bounds, dim=stated.padded_dim)
            found = [costs(shares=shares) for shares in {honest, stated.h_min}]
            return np.minimum(found[0], found[-1])

    elif stated.mechanism == SKELLAM:
        renyi = partial(skellam_rdp, l2_bound=l2_bound, l1_bound=l1_bound, central_variance=central)
    else:
        # One discrete Gaussian: [CKS20] Theorem 4, summed over the coordinates. Against local noise the whole report is
        # replaced, not removed: no other noise hides that it exists.
        central = variance if stated.mechanism == LOCAL else variance * stated.h_min
        l2_bound *= 2 if stated.mechanism == LOCAL else 1
        slope = l2_bound * l2_bound / (2 * float(central)) * (1 + HAIR)

        def renyi(orders: Floats) -> Floats:
            return orders * slope

    gaussian = gaussian_cost(l2_bound, central)
    if stated.mechanism == DDGAUSS and smallest_part(stated, noise.local_variance) < SMALLEST_GAUSSIAN_PART:
        gaussian = math.inf

    return _with_exact(renyi, lambda orders: np.full(orders.shape, gaussian))


def smallest_part(stated: Statement, local_variance: Fraction) -> Fraction:
    """The smallest variance that is drawn as one, grid units squared: of a whole share, of its base, or of a part."""
    if not stated.noise_parts:
        return local_variance
    part = stated.noise_unit(local_variance)
    return min(part, local_variance - ((1 << stated.noise_parts) - 1) * part)


def reader_curve(stated: Statement, noise: Noise, reader: str, honest: int) -> Curve:
    """The cost of one round for a reader, "coordinator", "released" or "conditional", at given orders.

    The amplified ones take the curve at h_min whatever ``honest`` is: how many left may depend on who was drawn. At
    order 1 nothing is amplified.
    """
    if not _amplified(stated, reader):
        return round_curve(stated, noise, honest)
    base, rate = round_curve(stated, noise, stated.h_min), stated.sampling_rate

    def at(orders: Floats) -> Floats:
        given = np.atleast_1d(np.asarray(orders, dtype=np.float64))
        found = np.array(sampled_rdp(given, base, rate))
        whole = (given == np.floor(given)) & (given >= 2) & (given <= LARGEST_SAMPLED_ORDER)
        if whole.any() and _has_theorem(stated, reader):
            if reader == CONDITIONAL:
                theorem = poisson_rdp(given[whole], base, rate)
            else:
                theorem = fixed_size_rdp(given[whole], round_curve(stated, noise, stated.h_min, times=2), rate)
            found[whole] = np.minimum(found[whole], theorem)
        return found.reshape(np.shape(orders))

    return _with_exact(at, base)


def _with_exact(renyi: Curve, exact: Curve) -> Curve:
    """The one at orders above 1, the other at `GAUSSIAN_ORDER`."""

    def at(orders: Floats) -> Floats:
        given = np.asarray(orders, dtype=np.float64)
        found, above = np.empty(given.shape), given > GAUSSIAN_ORDER
        for curve, some in ((renyi, above), (exact, ~above)):
            if some.any():
                found[some] = curve(given[some])
        return found

    return at


def drawn_coordinates(stated: Statement, rounds: int) -> int:
    """Noise coordinates in the sums of ``rounds`` rounds, if all survive."""
    return rounds * stated.clients * stated.padded_dim


def planned_epsilon(
    stated: Statement, noise: Noise, reader: str, orders: Floats | float, rounds: int | None = None
) -> float:
    """Epsilon of the first ``rounds`` planned rounds, by default all, at h_min: the smallest over ``orders``, the
    sampler's error included.
    """
    given = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    rounds = stated.rounds if rounds is None else rounds
    times = participations(stated.sampling, stated.clients, stated.population, rounds)
    rdp = times * reader_curve(stated, noise, reader, stated.h_min)(given)
    # A hair more draws, so that a plan at the largest epsilon that can be stated is not beyond it when it is run.
    draws = drawn_coordinates(stated, rounds)
    return epsilon_with_sampler_error(given, rdp, stated.delta, draws + (draws >> 20) + 1)


def has_losses(stated: Statement) -> bool:
    """Whether the conditional figure may be by privacy loss distributions: of a central Gaussian whose cohorts
    independent coins draw, or would draw (Poisson and fixed-size sampling).

    A lottery's plans keep the Renyi bound: they are served, and a participant, which has no dp-accounting, must find
    the figures that the coordinator shows.
    """
    coins = stated.sampling in (POISSON, FIXED_SIZE) and _amplified(stated, CONDITIONAL)
    return stated.mechanism == GAUSSIAN and coins


def loss_multiplier(stated: Statement, noise: Noise) -> float:
    """Deviation over sensitivity of the continuous Gaussian that stands for what is drawn; 0 if none does.

    A sum with a contribution and one without are one randomised function of two such Gaussians (docs/privacy.md, "Exact
    Gaussian cost", step 2), up to what `SAMPLER_DISTANCE` covers: so are mixtures of them.
    """
    cost = gaussian_cost(sensitivity(stated, noise.granularity)[0], noise.local_variance * stated.h_min)
    return 1 / math.sqrt(2 * cost)


def least_loss_multiplier(stated: Statement, epsilon: float) -> float:
    """The `loss_multiplier` at which `pld_epsilon` of all planned rounds is at most ``epsilon``; infinite if none."""
    delta = stated.delta * (1 - _SET_ASIDE)
    return poisson_gaussian_multiplier(epsilon, stated.sampling_rate, stated.rounds, delta)


def pld_epsilon(stated: Statement, noise: Noise, rounds: int) -> float:
    """Conditional epsilon of the first ``rounds`` rounds by privacy loss distributions; infinite where it has none or
    can't be stated.
    """
    z = loss_multiplier(stated, noise) if has_losses(stated) else 0.0
    if z == 0:
        return math.inf
    epsilon = poisson_gaussian_epsilon(z, stated.sampling_rate, rounds, stated.delta * (1 - _SET_ASIDE))
    distance = drawn_coordinates(stated, rounds) * SAMPLER_DISTANCE
    stateable = epsilon < 600 and (1 + math.exp(epsilon)) * distance <= stated.delta * _SET_ASIDE
    return epsilon if stateable else math.inf


def conditional_epsilon(stated: Statement, noise: Noise, order: float, rounds: int) -> float:
    """The published figure of the first ``rounds`` rounds: the Renyi bound at ``order``, or `pld_epsilon` where it is
    smaller; between tenths of the schedule that of the next one.
    """
    step = -(-stated.rounds // _CHECKPOINTS)
    following = -(-rounds // step) * step
    composed = min(following, stated.rounds) if rounds <= stated.rounds else following
    return min(planned_epsilon(stated, noise, CONDITIONAL, order, rounds), pld_epsilon(stated, noise, composed))


def best_order(stated: Statement, noise: Noise, reader: str) -> float:
    """The order at which all planned rounds convert to the smallest epsilon: first on a grid, then close around it."""
    exactly = planned_epsilon(stated, noise, reader, GAUSSIAN_ORDER)
    if exactly < math.inf and not _amplified(stated, reader):
        return GAUSSIAN_ORDER  # where it is proved, no other order is as close to the truth
    order = _best_renyi_order(stated, noise, reader)
    return GAUSSIAN_ORDER if exactly < planned_epsilon(stated, noise, reader, order) else order


def _best_renyi_order(stated: Statement, noise: Noise, reader: str) -> float:
    curve = reader_curve(stated, noise, reader, stated.h_min)

    def best(orders: Floats) -> int:
        converted = (
            stated.participations * curve(orders)
            + np.log1p(-1 / orders)
            - (math.log(stated.delta) + np.log(orders)) / (orders - 1)
        )
        return int(np.argmin(converted))

    fractions, whole = _order_grids(stated, reader)
    around: list[Floats] = []
    for grid, between in ((fractions, _fractions_between), (whole, _whole_between)):
        if grid.size:
            at = best(grid)
            around += [grid[at : at + 1], between(grid[max(at - 1, 0)], grid[min(at + 1, grid.size - 1)])]
    found = np.concatenate(around)
    return float(found[best(found)])


def _fractions_between(low: float, high: float) -> Floats:
    return 1 + np.geomspace(low - 1, high - 1, 401)


def _whole_between(low: float, high: float) -> Floats:
    return np.unique(np.ceil(np.linspace(low, high, min(int(high - low), 4096) + 1)))


def _amplified(stated: Statement, reader: str) -> bool:
    """Whether a sampling theorem takes part. At rate 1 it would only keep to fewer orders."""
    return reader != COORDINATOR and stated.amplified and stated.clients < stated.population


def _has_theorem(stated: Statement, reader: str) -> bool:
    """Whether a sampling theorem that holds for integers only takes part."""
    theorem = reader == CONDITIONAL or (reader == RELEASED and stated.sampling == FIXED_SIZE)
    return theorem and _amplified(stated, reader)


def coarse_orders(stated: Statement, reader: str) -> Floats:
    """Orders to begin a search with, ascending: all that the theorems of this reader's figure allow, thinned out."""
    return np.append(GAUSSIAN_ORDER, np.unique(np.concatenate(_order_grids(stated, reader))))


def _order_grids(stated: Statement, reader: str) -> tuple[Floats, Floats]:
    """Those of any size and whole ones, each ascending, or none."""
    only_whole = stated.mechanism == SKELLAM
    fractions = np.empty(0) if only_whole else order_grid()
    if not only_whole and not _has_theorem(stated, reader):
        return fractions, np.empty(0)
    last, steps = (LARGEST_SAMPLED_ORDER, 48) if _amplified(stated, reader) else (10**6, 400)
    return fractions, np.concatenate([np.arange(2.0, 65.0), np.round(np.geomspace(66, last, steps))])
