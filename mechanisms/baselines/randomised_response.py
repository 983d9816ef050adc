"""k-ary randomised response: each participant randomises its own category before it sends anything.

It reports its category with probability e^eps0 / (e^eps0 + k - 1), else one of the others with equal chances ([War65]
for k = 2; [KBR16] for k categories). Any report is at most e^eps0 times likelier from one category than from another,
so eps0 needs no trust. The report is a one-hot vector modulo 2^B: the secure sum of one-hot vectors *is* the shuffled
histogram, and `mechanisms.baselines.shuffle` bounds the gain.

The probabilities are ratios of integers, A : D : ... : D with A / D just below e^eps0, drawn by an exactly uniform
integer: no floating point enters them, and the realised epsilon, ln(A / D), never exceeds eps0.

Adjacency: replace-one, one category against any other. The noised sums have the zero-out adjacency; their epsilons must
not share a column with these. Colluders may lie about anything but can't learn more than the figures say; a participant
that doesn't follow the protocol can bias the histogram (by up to 1 / (p - q) reports) or spoil it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.baselines.composition import (
    Composition,
    composed_epsilon,
    round_delta,
    round_epsilon,
    rules_of,
    theorems,
)
from mechanisms.baselines.shuffle import ShuffleBound, local_epsilon_for, shuffle_bound
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.randomness import RandomBytes, fresh_keystream, uniform_below
from mechanisms.refusals import KINDS, InfeasiblePlan, check_rules, check_types

NAME: Final = "randomised-response"

LARGEST_LOCAL_EPSILON: Final = 60.0
LARGEST_CATEGORIES: Final = 1 << 20
_DENOMINATOR: Final = 1 << 40
_MARGIN: Final = 1e-9


Words = NDArray[np.unsignedinteger[Any]]


class InvalidCategory(ValueError):
    """A value that is not one of the categories 0 .. k - 1."""


def response_weights(local_epsilon: float) -> tuple[int, int]:
    """(A, D): integer weights of the true category and of each other one, A / D <= e^eps0.

    D = 2^40 and A = floor(D e^eps0), from below in 60 digits, so ln(A / D) misses eps0 by at most 2^-40.

    Raises ValueError: eps0 outside (0, 60].
    """
    if not 0 < local_epsilon <= LARGEST_LOCAL_EPSILON:
        raise ValueError(f"local_epsilon must lie in (0, {LARGEST_LOCAL_EPSILON:g}]")
    context = Context(prec=60)
    grown = context.multiply(context.exp(Decimal(local_epsilon)), Decimal(_DENOMINATOR))
    below = context.multiply(grown, context.subtract(Decimal(1), Decimal("1e-55")))
    return max(int(below), _DENOMINATOR), _DENOMINATOR


@dataclass(frozen=True, kw_only=True)
class ResponsePlan:
    """Everything public about a study that asks for one category a round.

    Adjacency and trust: `mechanisms.mechanism.DESCRIPTIONS`. The central figure counts `h_min` reports, the fewest
    honest ones in a sum that is opened, whatever the number of participants.

    Raises InfeasiblePlan: the numbers contradict each other, a count may wrap, or the central epsilon of all rounds
    exceeds the target; TypeError: a field has another type than declared.
    """

    categories: int  # k >= 2
    clients: int  # N: the most reports one sum can hold
    bits: int  # B: counts are taken modulo 2^B, 2^B > N
    local_epsilon: float  # eps0 of one report, in (0, 60]
    epsilon: float  # target of the central epsilon, all rounds
    delta: float  # of all rounds
    rounds: int
    colluders: int  # A: reports that the adversary knows
    min_survivors: int  # the smallest |u3| that is opened
    composition: Composition  # "basic" or "advanced"

    def __post_init__(self) -> None:
        check_types(self, KINDS | {"Composition": str})
        rules = [
            (
                2 <= self.categories <= LARGEST_CATEGORIES,
                f"categories {self.categories} is out of range",
                f"use 2 to {LARGEST_CATEGORIES}",
            ),
            *rules_of(self, "reports"),
            (
                self.clients.bit_length() <= self.bits <= 62,
                f"counts up to {self.clients} do not fit {self.bits} bits",
                f"use {max(1, self.clients.bit_length())} to 62 bits",
            ),
            (
                0 < self.local_epsilon <= LARGEST_LOCAL_EPSILON,
                "local_epsilon is out of range",
                f"use above 0, at most {LARGEST_LOCAL_EPSILON:g}",
            ),
            (0 < self.epsilon < math.inf, "epsilon must be positive and finite", "use 0.1 to 10"),
        ]
        check_rules(rules)
        achieved = self.central_epsilon
        if not achieved <= self.epsilon:
            raise InfeasiblePlan(
                f"central epsilon {achieved:.6g} after {self.rounds} rounds exceeds the target {self.epsilon:g}",
                "use plan_response, a smaller local_epsilon or fewer rounds",
            )

    @property
    def adjacency(self) -> str:
        """What two neighbouring inputs are."""
        return DESCRIPTIONS[NAME].adjacency

    @property
    def trusts(self) -> str:
        """Whom each epsilon trusts."""
        return DESCRIPTIONS[NAME].trusts

    @property
    def h_min(self) -> int:
        """The fewest reports of a sum that the adversary doesn't know, the protected one included."""
        return self.min_survivors - self.colluders

    @property
    def round_bound(self) -> ShuffleBound:
        """What one round's secure sum guarantees at `h_min`, and by which theorem."""
        return shuffle_bound(self.local_epsilon, self.h_min, round_delta(self.delta, self.rounds, self.composition))

    @property
    def central_epsilon(self) -> float:
        """Of all rounds, replace-one, at ``delta``, against an adversary that sees the sums and knows A reports."""
        bound = self.round_bound
        return composed_epsilon(bound.epsilon, bound.delta, self.rounds, self.delta, self.composition)

    @property
    def keep_probability(self) -> Fraction:
        """p, the chance that a report is true: exactly what is drawn."""
        true, other = response_weights(self.local_epsilon)
        return Fraction(true, true + (self.categories - 1) * other)

    @property
    def flip_probability(self) -> Fraction:
        """q, the chance of each single other category: exactly what is drawn."""
        true, other = response_weights(self.local_epsilon)
        return Fraction(other, true + (self.categories - 1) * other)

    def standard_error(self, frequency: Any, survivors: int) -> Any:
        """Of estimated frequencies, when ``frequency`` (0 to 1, a number or array) of ``survivors`` hold a category.

        sqrt(f p (1 - p) + (1 - f) q (1 - q)) / (sqrt(n) (p - q)): the reports' randomness alone, about the
        survivors' true frequency.
        """
        keep, flip = float(self.keep_probability), float(self.flip_probability)
        spread = frequency * keep * (1 - keep) + (1 - frequency) * flip * (1 - flip)
        return np.sqrt(spread / survivors) / float(self.keep_probability - self.flip_probability)


@dataclass(frozen=True)
class FrequencyEstimate:
    """Unbiased frequencies of the categories among the survivors."""

    frequencies: NDArray[np.float64]  # (k,) sum 1; single ones may fall outside [0, 1]
    standard_errors: NDArray[np.float64]  # (k,) of the randomisation, at the estimate clamped to [0, 1]
    survivors: int  # reports in the sum


class ResponseEncoder:
    """Randomise categories and decode histograms of one study. Both sides build it from the same plan."""

    def __init__(self, plan: ResponsePlan) -> None:
        self.plan = plan
        self._true, self._other = response_weights(plan.local_epsilon)
        self._dtype = np.min_scalar_type((1 << plan.bits) - 1).newbyteorder("<")

    def respond(self, category: int, random_bytes: RandomBytes) -> int:
        """The randomised category. Exact law: weights A for the truth, D for each other category.

        Raises InvalidCategory: not an integer in [0, k); RandomnessFailed: the source gave a wrong length.
        """
        categories = self.plan.categories
        whole = isinstance(category, (int, np.integer)) and not isinstance(category, bool)
        if not whole or not 0 <= category < categories:
            raise InvalidCategory(f"a category is an integer from 0 to {categories - 1}")
        draw = uniform_below(self._true + (categories - 1) * self._other, fresh_keystream(random_bytes))
        if draw < self._true:
            return int(category)
        other = (draw - self._true) // self._other
        return other + (other >= category)

    def encode(self, category: int, random_bytes: RandomBytes) -> Words:
        """The report of one round: `respond` as a one-hot vector, (k,) words. Draw once per round: a second report of
        the same round costs a second eps0.

        ``random_bytes``: private randomness, ``os.urandom`` in deployment; 32 bytes are drawn.

        Raises InvalidCategory, RandomnessFailed: see `respond`.
        """
        report = np.zeros(self.plan.categories, self._dtype)
        report[self.respond(category, random_bytes)] = 1
        return report

    def decode_sum(self, total: Words, survivors: int) -> FrequencyEstimate:
        """(counts / n - q) / (p - q): unbiased over the reports' randomness ([KBR16]).

        ``total``: (k,) sum of reports, reduced mod 2^bits, unsigned integers; ``survivors``: |u3|, how many it holds.

        Raises ValueError: wrong length or dtype, survivors outside min_survivors..clients, or counts that do not add up
        to survivors: then a report was no one-hot vector.
        """
        plan = self.plan
        if not plan.min_survivors <= survivors <= plan.clients:
            raise ValueError(f"{survivors} survivors: the plan covers {plan.min_survivors} to {plan.clients}")
        if total.shape != (plan.categories,) or total.dtype.kind != "u":
            raise ValueError(f"a histogram is a vector of {plan.categories} unsigned integers")
        if int(total.max()) > survivors or int(total.astype(np.uint64).sum()) != survivors:
            raise ValueError(f"the counts do not add up to {survivors}: a report was not one-hot")
        gain = float(plan.keep_probability - plan.flip_probability)
        frequencies = (total.astype(np.float64) / survivors - float(plan.flip_probability)) / gain
        errors = plan.standard_error(np.clip(frequencies, 0.0, 1.0), survivors)
        return FrequencyEstimate(frequencies, errors, survivors)


def plan_response(
    *,
    categories: int,
    clients: int,
    epsilon: float,
    delta: float,
    colluders: int,
    min_survivors: int,
    rounds: int = 1,
    bits: int | None = None,
    composition: Composition | None = None,
) -> ResponsePlan:
    """The largest eps0, so the most accurate report, whose central epsilon over all rounds meets the target.

    Args:
        bits: as few as hold every count if None.
        composition: the one that allows the larger eps0 if None.
        The others: fields of `ResponsePlan`.

    Raises InfeasiblePlan: the numbers contradict each other (`ResponsePlan`); TypeError: a field of another type.
    """
    if type(clients) is not int or type(rounds) is not int:
        raise TypeError("plan: clients and rounds must be int")
    found = []
    for kind in theorems(composition, rounds):
        # What is wrong with the numbers themselves is found here, before any search.
        first = ResponsePlan(
            categories=categories,
            clients=clients,
            bits=clients.bit_length() if bits is None else bits,
            local_epsilon=min(1.0, float(epsilon)) / max(1, rounds) / 2 if epsilon > 0 else 1.0,
            epsilon=float(epsilon),
            delta=float(delta),
            rounds=rounds,
            colluders=colluders,
            min_survivors=min_survivors,
            composition=kind,
        )
        share = round_epsilon(first.epsilon, first.delta, rounds, kind)
        largest = local_epsilon_for(share * (1 - _MARGIN), first.h_min, round_delta(first.delta, rounds, kind))
        found.append(replace(first, local_epsilon=min(largest, LARGEST_LOCAL_EPSILON)))
    return max(found, key=lambda plan: plan.local_epsilon)
