"""What a study owner states: numbers, privacy target, threat assumptions; checked before anything else."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

from mechanisms import noise_parts
from mechanisms.clip_rule import ClipRule
from mechanisms.evaluation import NOT_EVALUATED, Evaluation
from mechanisms.refusals import KINDS, InfeasiblePlan, Rule, check_rules, check_types, known
from mechanisms.rotation import ROTATIONS, rotation_layout

DDGAUSS, SKELLAM, GAUSSIAN, LOCAL = "ddgauss", "skellam", "gaussian", "local-gaussian"
VECTOR_MECHANISMS: Final = (DDGAUSS, SKELLAM, GAUSSIAN, LOCAL)
COORDINATOR, RELEASED, CONDITIONAL = "coordinator", "released", "conditional"
TARGETS: Final = (COORDINATOR, RELEASED, CONDITIONAL)
NO_SAMPLING, LOTTERY, EPOCHS, POISSON, FIXED_SIZE = "none", "lottery", "epochs", "poisson", "fixed"
SAMPLINGS: Final = (NO_SAMPLING, LOTTERY, EPOCHS, POISSON, FIXED_SIZE)
DRAWN: Final = (LOTTERY, EPOCHS)
"""Cohorts are drawn by the authority's seeds, which every participant checks."""
LARGEST_BITS: Final = 62
# Above it the redraws of conditional rounding may take long (mechanisms/rounding.py).
LARGEST_BETA: Final = 0.9
LARGEST_DIM: Final = 1 << 28
_LARGEST_COUNT: Final = 1 << 40


def assumed_colluders(adversarial: float, participants: int) -> int:
    """floor(adversarial x participants), with ``adversarial`` read as the decimal that was written down.

    In binary floating point 0.29 x 100 is a hair below 29; the assumption must not shrink for that.
    """
    return math.floor(Fraction(repr(float(adversarial))) * participants)


def epoch_rounds(sampling: str, clients: int, population: int) -> int:
    """Rounds of one draw: with epochs a draw deals the roster to the cohorts of as many rounds as it fills."""
    return max(1, population // max(clients, 1)) if sampling == EPOCHS else 1


def participations(sampling: str, clients: int, population: int, rounds: int) -> int:
    """K: the rounds that may hold one participant: with epochs one of each epoch, else all."""
    return -(-rounds // epoch_rounds(sampling, clients, population))


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The stated part of a `mechanisms.plan.Plan`.

    Raises InfeasiblePlan: the numbers contradict each other or the theorems (a `ValueError`); TypeError: a field has
    another type than declared; nothing is converted.
    """

    mechanism: str  # "ddgauss", "skellam", "gaussian" or "local-gaussian"
    clients: int  # N: the most inputs one sum can hold; the wrap bound uses it
    population: int  # participants that those of a round are drawn from; N without sampling
    sampling: str  # "none", "lottery", "epochs", "poisson" or "fixed"
    dim: int  # values in an update
    clipping: ClipRule
    sketch_rows: int  # of a count-mean sketch that is sent instead of the update; 0: none
    sketch_width: int
    rotation: str  # "hadamard" or "hadamard-blocks"
    padded_dim: int  # values that travel
    bits: int  # B: sums are taken modulo 2^B
    epsilon: float  # target for all rounds, of `target`
    delta: float
    rounds: int  # planned rounds
    target: str  # whose epsilon is bounded: "coordinator", "released" or "conditional"
    max_dropout: float  # assumed share that leaves in a round, as stated
    adversarial: float  # assumed share that colludes, as stated
    colluders: int  # A: noise shares that the adversary knows
    min_survivors: int  # the smallest |u3| that is opened
    quorum: int  # the smallest |u1| and |u2|
    beta: float  # bias of conditional rounding, 0 = unconditional
    k_stddevs: float  # standard deviations that fit before a coordinate wraps
    noise_parts: int = 0  # L: parts of a noise share that survivors may take back (`mechanisms.noise_parts`)
    evaluation: Evaluation = NOT_EVALUATED  # what participants say of the model in the same sum

    def __post_init__(self) -> None:
        check_types(self, KINDS | {"ClipRule": ClipRule, "Evaluation": Evaluation})
        check_rules((*self._ranges(), *self._sampling_rules(), *self._shape_rules()))
        self._check_counts()

    def _ranges(self) -> list[Rule]:
        endless = [f.name for f in fields(self) if f.type == "float" and not math.isfinite(getattr(self, f.name))]
        return [
            known("mechanism", self.mechanism, VECTOR_MECHANISMS),
            known("target", self.target, TARGETS),
            known("sampling", self.sampling, SAMPLINGS),
            known("rotation", self.rotation, ROTATIONS),
            (not endless, f"{', '.join(endless)}: infinite or not a number", "state finite numbers"),
            (1 <= self.dim <= LARGEST_DIM, f"dim {self.dim} is out of range", f"use 1 to {LARGEST_DIM}"),
            (1 <= self.bits <= LARGEST_BITS, f"bits {self.bits} is out of range", f"use 1 to {LARGEST_BITS}"),
            (2 <= self.clients < 1 << 32, f"clients {self.clients} is out of range", "use at least 2"),
            (1 <= self.rounds <= _LARGEST_COUNT, f"rounds {self.rounds} is out of range", "use at least 1"),
            (self.epsilon > 0, "epsilon must be positive", "use 0.1 to 10"),
            (0 < self.delta < 1, "delta must lie strictly between 0 and 1", "use less than 1 / clients"),
            (0 <= self.max_dropout < 1, "max_dropout must lie in [0, 1)", "use 0 to 0.5"),
            (0 <= self.adversarial < 1, "adversarial must lie in [0, 1)", "use 0 to 0.3"),
            (0 <= self.beta <= LARGEST_BETA, f"beta must lie in [0, {LARGEST_BETA}]", "use exp(-1/2) = 0.6065"),
            (self.k_stddevs >= 1, "k_stddevs below 1 lets ordinary sums wrap", "use 4"),
            (
                not self.noise_parts
                or (
                    0 < self.noise_parts <= noise_parts.MOST_PARTS
                    and self.mechanism in (DDGAUSS, SKELLAM)
                    and self.min_survivors < self.clients <= noise_parts.LARGEST_COHORT
                ),
                f"{self.noise_parts} parts of noise can't be taken back here",
                "use make_plan",
            ),
        ]

    def _sampling_rules(self) -> list[Rule]:
        sampled = self.sampling != NO_SAMPLING
        return [
            (
                self.clients <= self.population < 1 << 40,
                f"{self.clients} clients a round cannot come from a population of {self.population}",
                f"use a population of at least {self.clients}",
            ),
            (
                sampled or self.population == self.clients,
                "without sampling the whole population is invited",
                f"use a population of {self.clients}, or lottery sampling",
            ),
            (
                self.amplified or self.target != CONDITIONAL,
                "a conditional target needs sampling",
                "use poisson sampling and a population",
            ),
            (
                self.sampling != EPOCHS or self.epoch_rounds > 1,
                f"a population of {self.population} fills the cohorts of one round, which is no epoch",
                f"use a population of at least {2 * self.clients}, or smaller cohorts",
            ),
        ]

    def _shape_rules(self) -> list[Rule]:
        sketched = self.sketch_rows != 0 or self.sketch_width != 0
        coded = self.coded_dim
        expected = rotation_layout(coded, self.rotation)[1] if self.rotation in ROTATIONS and coded >= 1 else 0
        return [
            (
                self.clipping.dim == coded - self.appended,
                f"the layers hold {self.clipping.dim} values, but {coded - self.appended} are clipped",
                "the sizes of the layers must add up to dim; a sketch is clipped as one layer of rows x width",
            ),
            (
                not sketched or (1 <= self.sketch_rows <= 1024 and self.sketch_width >= 1),
                f"a sketch of {self.sketch_rows} rows and {self.sketch_width} columns",
                "use 15 rows and dim / (15 x ratio) columns",
            ),
            (not sketched or len(self.clipping.layers) == 1, "a sketch mixes the layers", "clip a sketch as one layer"),
            (1 <= coded <= LARGEST_DIM, f"{coded} values are coded", f"use 1 to {LARGEST_DIM}"),
            (self.padded_dim == expected, "padded_dim is not what the rotation makes of it", f"use {expected}"),
        ]

    def _check_counts(self) -> None:
        if not 0 <= self.colluders < self.min_survivors <= self.quorum <= self.clients:
            raise InfeasiblePlan(
                f"0 <= colluders ({self.colluders}) < min_survivors ({self.min_survivors}) "
                f"<= quorum ({self.quorum}) <= clients ({self.clients}) does not hold",
                "some honest noise must always remain: raise min_survivors or state fewer colluders",
            )
        assumed = assumed_colluders(self.adversarial, self.clients)
        if self.colluders < assumed:
            raise InfeasiblePlan(
                f"{self.colluders} colluders are fewer than {self.adversarial:g} of {self.clients} clients",
                f"use at least {assumed}",
            )

    @property
    def coded_dim(self) -> int:
        """Values that are clipped and rotated: the update or its sketch, and what is appended."""
        return (self.sketch_rows * self.sketch_width or self.dim) + self.appended

    @property
    def appended(self) -> int:
        """Values after the update: clip bits, then the evaluation."""
        return self.clipping.bits + self.evaluation.values

    @property
    def block_dim(self) -> int:
        """Values of one block of the rotation: what one coordinate's worst case is spread over."""
        return rotation_layout(self.coded_dim, self.rotation)[0]

    @property
    def clip(self) -> float:
        """S of the first round: L2 norm of an update after clipping and scaling, at most."""
        return self.clipping.bound(self.clipping.clips)

    @property
    def encoder_clip(self) -> float:
        """Like `clip`, what is appended included."""
        return math.hypot(self.clipping.encoder_bound(self.clipping.clips), self.evaluation.norm(self.clip))

    @property
    def h_min(self) -> int:
        """The fewest noise shares of a sum that the adversary does not know."""
        return self.min_survivors - self.colluders

    def released_parts(self, survivors: int) -> int:
        """The noise parts that each of so many survivors takes back, as bits; see `mechanisms.noise_parts.released`."""
        return noise_parts.released(survivors, **self._parts)

    def noise_unit(self, local_variance: Fraction) -> Fraction:
        """Variance of the smallest part of a share of this variance, grid units squared; 0 without parts."""
        return noise_parts.unit(local_variance, **self._parts)

    def share_variance(self, local_variance: Fraction, survivors: int) -> Fraction:
        """What stays of one share if so many survive, grid units squared."""
        return local_variance - self.released_parts(survivors) * self.noise_unit(local_variance)

    @property
    def shares_in_sum(self) -> Fraction:
        """The most noise in an opened sum, in shares before anything is taken back."""
        return noise_parts.largest_sum(**self._parts)[0]

    @property
    def _parts(self) -> dict[str, int]:
        names = {"clients": self.clients, "min_survivors": self.min_survivors, "colluders": self.colluders}
        return {**names, "parts": self.noise_parts}

    @property
    def drawn(self) -> bool:
        """Whether cohorts are drawn by the authority's seeds."""
        return self.sampling in DRAWN

    @property
    def amplified(self) -> bool:
        """Whether a reader that doesn't know who took part is charged less than one that does."""
        return self.sampling not in (NO_SAMPLING, EPOCHS)

    @property
    def by_coins(self) -> bool:
        """Whether independent coins draw each cohort. A round then holds any number; its noise and its divisor, the
        expected number, don't depend on the draw. It needs a trusted coordinator. Source: the fixed-denominator
        estimator of [MRTZ18].
        """
        return self.sampling == POISSON and self.mechanism == GAUSSIAN

    @property
    def epoch_rounds(self) -> int:
        """Rounds of one draw of cohorts; with epochs each participant is in at most one of them."""
        return epoch_rounds(self.sampling, self.clients, self.population)

    @property
    def draws(self) -> int:
        """Draws of cohorts in all planned rounds: with epochs one for each epoch, else one for each round."""
        return self.participations  # with a lottery one for each round, and all of them may hold the same participant

    @property
    def participations(self) -> int:
        """K: the planned rounds that may hold one participant."""
        return participations(self.sampling, self.clients, self.population, self.rounds)

    @property
    def sampling_rate(self) -> float:
        """q: the prior rate at which a participant is in a round."""
        return self.clients / self.population
