"""The plan of a study under binomial noise: what is stated, what has to hold, and the least noise that keeps it.

Theorem and trust are those of `mechanisms.baselines.binomial`, whose plan this is; delta is split over the rounds as
`composition.round_delta` says, and every round is charged at h_min, because both composition theorems want the
rounds' epsilons fixed in advance.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Final

from mechanisms.baselines.binomial_noise import LARGEST_ROUND_EPSILON, LARGEST_TRIALS, binomial_epsilon, sensitivities
from mechanisms.baselines.composition import (
    Composition,
    composed_epsilon,
    round_delta,
    round_epsilon,
    rules_of,
    theorems,
)
from mechanisms.lattice_noise import SAMPLER_DISTANCE
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.privacy_curves import HAIR
from mechanisms.refusals import KINDS, InfeasiblePlan, Rule, check_rules, check_types, known, nearest
from mechanisms.rotation import ROTATIONS, default_rotation, rotation_layout
from mechanisms.rounding import LARGEST_NORM

NAME: Final = "binomial"

LARGEST_EPSILON: Final = 100.0
LARGEST_BITS: Final = 62

# Planning stops this much before each limit, so that another machine's logarithms still find that they hold.
_MARGIN: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class BinomialStatement:
    """What a study owner states: the stated part of a `BinomialPlan`.

    Raises InfeasiblePlan: the numbers contradict each other; TypeError: a field has another type than declared; nothing
    is converted.
    """

    clients: int  # N: the most inputs one sum can hold
    dim: int  # values in an update
    rotation: str  # "hadamard" or "hadamard-blocks"
    bits: int  # B: sums are taken modulo 2^B
    clip: float  # L2 norm of one update, data units
    epsilon: float  # target, all rounds
    delta: float  # all rounds
    rounds: int
    colluders: int  # A: noise shares that the adversary knows
    min_survivors: int  # the smallest |u3| that is opened
    composition: Composition  # "basic" or "advanced"; delta is split by `composition.round_delta`
    beta: float  # bias of conditional rounding, 0 = unconditional
    k_stddevs: float  # standard deviations that fit before a coordinate wraps

    def __post_init__(self) -> None:
        check_types(self, KINDS | {"Composition": str})
        check_rules(self._rules())
        if self.delta_budget <= 0:
            raise InfeasiblePlan("the sampler's distance uses up delta", "use a larger delta or fewer coordinates")

    def _rules(self) -> list[Rule]:
        return [
            *rules_of(self, "noise"),
            (1 <= self.dim <= 1 << 28, f"dim {self.dim} is out of range", f"use 1 to {1 << 28}"),
            known("rotation", self.rotation, ROTATIONS),
            (1 <= self.bits <= LARGEST_BITS, f"bits {self.bits} is out of range", f"use 1 to {LARGEST_BITS}"),
            (1e-30 <= self.clip <= 1e30, f"clip {self.clip} is out of range", "use a clip in 1e-30 to 1e30"),
            (0 < self.epsilon <= LARGEST_EPSILON, f"epsilon {self.epsilon} is out of range", "use 0.1 to 10"),
            (0 <= self.beta <= 0.9, "beta must lie in [0, 0.9]", "use exp(-1/2) = 0.6065"),
            (1 <= self.k_stddevs < math.inf, "k_stddevs below 1 lets ordinary sums wrap", "use 4"),
        ]

    @property
    def h_min(self) -> int:
        """The fewest noise shares of a sum that the adversary does not know."""
        return self.min_survivors - self.colluders

    @property
    def padded_dim(self) -> int:
        """Coordinates of an encoded vector."""
        return rotation_layout(self.dim, self.rotation)[1]

    @property
    def delta_budget(self) -> float:
        """delta less what the sampler's distance may cost, (1 + e^epsilon) for each coordinate drawn; 0 if that takes
        half of it.
        """
        draws = self.clients * self.padded_dim * self.rounds
        cost = (1 + math.exp(self.epsilon)) * draws * SAMPLER_DISTANCE * (1 + HAIR)
        return self.delta - cost if cost < self.delta / 2 else 0.0


@dataclass(frozen=True, kw_only=True)
class BinomialPlan(BinomialStatement):
    """Everything public about a study under binomial noise. One that exists keeps its promises.

    Raises InfeasiblePlan: the numbers contradict each other, the theorem's condition fails, sums may wrap, or epsilon
    of all rounds at h_min exceeds the target; TypeError: a field has another type than declared; nothing is converted.
    """

    granularity: float  # data units per grid step
    trials_per_share: int  # m, even

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.granularity <= self.clip or self.clip_grid + math.sqrt(self.padded_dim) >= LARGEST_NORM:
            raise InfeasiblePlan("granularity must be positive, at most the clip, and norms fit 64 bits", "other bits")
        if not 2 <= self.trials_per_share <= LARGEST_TRIALS or self.trials_per_share % 2:
            raise InfeasiblePlan("trials_per_share must be even, 2 to 2^34", "use plan_binomial")
        if self.wrap_load > 1:
            raise InfeasiblePlan(f"sums may wrap within {self.k_stddevs:g} standard deviations", "use more bits")
        try:
            achieved = self.planned_epsilon
        except ValueError as problem:
            raise InfeasiblePlan(str(problem), "use plan_binomial") from None
        if not achieved <= self.epsilon:
            raise InfeasiblePlan(
                f"epsilon {achieved:.6g} after {self.rounds} rounds exceeds the target {self.epsilon:g}",
                "add noise, or plan fewer rounds",
                {"rounds": None},
            )

    @property
    def adjacency(self) -> str:
        """What two neighbouring inputs are."""
        return DESCRIPTIONS[NAME].adjacency

    @property
    def clip_grid(self) -> float:
        """The clip in grid units."""
        return self.clip / self.granularity

    @property
    def sensitivities(self) -> tuple[float, float, int]:
        """Bounds on the L1, L2 and largest coordinate of the rounded update, grid units; see `sensitivities`."""
        return sensitivities(self.clip_grid, self.padded_dim, self.beta)

    @property
    def central_stddev(self) -> float:
        """Of the unknown noise in the smallest sum that is opened, data units."""
        return math.sqrt(self.h_min * self.trials_per_share) / 2 * self.granularity

    @property
    def wrap_load(self) -> Fraction:
        """k_stddevs deviations of one coordinate of the sum over half the modulus, squared; must be <= 1.

        As for the other noised sums ([KLS21] section 4): all n updates alike, spread within one rotation block.
        """
        n, block = self.clients, rotation_layout(self.dim, self.rotation)[0]
        signal = (Fraction(self.clip) / Fraction(self.granularity)) ** 2 * n * n / block
        noise = Fraction(n, 4) + Fraction(n * self.trials_per_share, 4)
        return Fraction(self.k_stddevs) ** 2 * (signal + noise) / Fraction(2) ** (2 * self.bits - 2)

    def round_cost(self, honest: int) -> tuple[float, float]:
        """(epsilon, delta) of one round whose sum holds ``honest`` = |u3| - A unknown shares.

        Raises ValueError: fewer than `h_min`, more than there can be, or the theorem does not hold.
        """
        if not self.h_min <= honest <= self.clients - self.colluders:
            raise ValueError(f"{honest} honest shares: the plan covers {self.h_min} to {self.clients - self.colluders}")
        delta = round_delta(self.delta_budget, self.rounds, self.composition)
        return _epsilon(self, honest * self.trials_per_share, self.clip_grid, delta), delta

    @property
    def planned_epsilon(self) -> float:
        """Epsilon at ``delta`` after all rounds, each at h_min: the composition theorem needs them fixed."""
        epsilon, delta = self.round_cost(self.h_min)
        return composed_epsilon(epsilon, delta, self.rounds, self.delta_budget, self.composition)


def _epsilon(stated: BinomialStatement, trials: int, clip_grid: float, delta: float) -> float:
    """`binomial_epsilon` of one sum with ``trials`` unknown trials a coordinate."""
    l1, l2, linf = sensitivities(clip_grid, stated.padded_dim, stated.beta)
    return binomial_epsilon(
        trials=trials, dim=stated.padded_dim, l1_bound=l1, l2_bound=l2, linf_bound=linf, delta=delta
    )


class _Search:
    """The least noise for one statement and one composition theorem.

    The unknowns are m and the clip in grid units, r. For given m the wrap bound fixes the longest r that fits B bits;
    more trials and the shorter r both lower epsilon, so the least m is found by bisection. Where not even the largest
    share suffices because the grid is too fine, r is shortened instead.
    """

    def __init__(self, stated: BinomialStatement) -> None:
        self.stated = stated
        self.block, self.padded = rotation_layout(stated.dim, stated.rotation)
        self.delta = round_delta(stated.delta_budget, stated.rounds, stated.composition)
        share = round_epsilon(stated.epsilon, stated.delta_budget, stated.rounds, stated.composition)
        self.target = min(share, LARGEST_ROUND_EPSILON) * (1 - _MARGIN)

    def longest(self, bits: int, half: int) -> float:
        """The longest clip, grid units, that 2 half trials a share leave room for; 0 if none."""
        n = self.stated.clients
        room = Fraction(4**bits, 4) / Fraction(self.stated.k_stddevs) ** 2 - Fraction(n, 4) - Fraction(n * half, 2)
        if room <= 0:
            return 0.0
        return min(
            math.sqrt(room * self.block) / n * (1 - _MARGIN), (LARGEST_NORM - math.sqrt(self.padded)) * (1 - _MARGIN)
        )

    def meets(self, half: int, clip_grid: float) -> bool:
        try:
            return _epsilon(self.stated, 2 * half * self.stated.h_min, clip_grid, self.delta) <= self.target
        except ValueError:  # the theorem's condition fails or epsilon is beyond it: more trials are needed
            return False

    def solve(self, bits: int) -> tuple[int, float] | None:
        """(trials of a share, clip in grid units), or None if nothing fits."""
        high = LARGEST_TRIALS // 2
        if self.longest(bits, high) < 1:  # the most noise that leaves room for one grid step of signal
            high = bisect_left(range(1, high), True, key=lambda half: self.longest(bits, half) < 1)
        if high < 1:
            return None
        if not self.meets(high, self.longest(bits, high)):
            return self._coarser(high, self.longest(bits, high)) if high == LARGEST_TRIALS // 2 else None
        least = 1 + bisect_left(range(1, high), True, key=lambda half: self.meets(half, self.longest(bits, half)))
        return 2 * least, self.longest(bits, least)

    def _coarser(self, half: int, too_long: float) -> tuple[int, float] | None:
        low, high = 1.0, too_long
        if not self.meets(half, low):
            return None
        while low < (middle := math.sqrt(low * high)) < high:
            low, high = (middle, high) if self.meets(half, middle) else (low, middle)
        return 2 * half, low


def plan_binomial(
    *,
    clients: int,
    dim: int,
    bits: int,
    clip: float,
    epsilon: float,
    delta: float,
    rounds: int,
    colluders: int,
    min_survivors: int,
    composition: Composition | None = None,
    rotation: str | None = None,
    beta: float = math.exp(-0.5),
    k_stddevs: float = 4.0,
) -> BinomialPlan:
    """The least noise whose epsilon, over all rounds at h_min, is at most the target.

    Args:
        composition: the theorem that allows the less noise if None.
        rotation: `rotation.default_rotation` if None.
        The others: fields of `BinomialStatement`.

    Raises InfeasiblePlan: nothing fits, with the reason and the nearest setting that works; TypeError: a field of
    another type.
    """
    if rotation is None:
        rotation = default_rotation(dim) if type(dim) is int and dim > 0 else "hadamard"  # refused below
    found: list[BinomialPlan] = []
    for kind in theorems(composition, rounds):
        one = BinomialStatement(
            clients=clients,
            dim=dim,
            rotation=rotation,
            bits=bits,
            clip=float(clip),
            epsilon=float(epsilon),
            delta=float(delta),
            rounds=rounds,
            colluders=colluders,
            min_survivors=min_survivors,
            composition=kind,
            beta=float(beta),
            k_stddevs=float(k_stddevs),
        )
        solved = _Search(one).solve(bits)
        if solved is not None:
            granularity = one.clip / solved[1]
            found.append(BinomialPlan(**asdict(one), trials_per_share=solved[0], granularity=granularity))
    if not found:

        def works(bits: int, epsilon: float) -> bool:
            return epsilon <= LARGEST_EPSILON and _Search(replace(one, epsilon=epsilon)).solve(bits) is not None

        raise InfeasiblePlan(
            f"no binomial noise that fits {one.bits} bits reaches epsilon {one.epsilon:g} over {rounds} rounds with "
            f"{one.h_min} honest survivors",
            *nearest(one.bits, range(one.bits + 1, LARGEST_BITS + 1), one.epsilon, works),
        )
    return min(found, key=lambda plan: plan.central_stddev)
