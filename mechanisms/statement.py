"""What a study owner states: numbers, privacy target, threat assumptions; checked before anything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Final

from mechanisms.rotation import padded_dimension

MECHANISMS: Final = ("ddgauss",)
TARGETS: Final = ("coordinator",)
LARGEST_BITS: Final = 62
# Above it the redraws of conditional rounding may take long (mechanisms/rounding.py).
LARGEST_BETA: Final = 0.9
_LARGEST_DIM: Final = 1 << 28
_LARGEST_COUNT: Final = 1 << 40
_KINDS: Final[Mapping[str, type]] = {"str": str, "int": int, "float": float, "Fraction": Fraction}


class InfeasiblePlan(ValueError):
    """Parameters under which a promise would not hold.

    Attributes:
        reason: what does not hold, one sentence.
        suggestion: the nearest setting that works, or what to change.
    """

    def __init__(self, reason: str, suggestion: str) -> None:
        super().__init__(f"{reason}; {suggestion}" if suggestion else reason)
        self.reason = reason
        self.suggestion = suggestion


def assumed_colluders(adversarial: float, participants: int) -> int:
    """floor(adversarial x participants), with ``adversarial`` read as the decimal that was written down.

    In binary floating point 0.29 x 100 is a hair below 29; the assumption must not shrink for that.
    """
    return math.floor(Fraction(repr(float(adversarial))) * participants)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The stated part of a `mechanisms.plan.Plan`.

    Raises:
        InfeasiblePlan: the numbers contradict each other or the theorems (a `ValueError`).
        TypeError: a field has another type than declared; nothing is converted.
    """

    mechanism: str  # "ddgauss"
    clients: int  # N: the most inputs one sum can hold; the wrap bound uses it
    dim: int  # values in an update
    padded_dim: int  # the next power of two
    bits: int  # B: sums are taken modulo 2^B
    clip: float  # L2 norm of one update, data units
    epsilon: float  # target for all rounds, of `target`
    delta: float
    rounds: int  # planned rounds
    target: str  # whose epsilon is bounded: "coordinator"
    max_dropout: float  # assumed share that leaves in a round, as stated
    adversarial: float  # assumed share that colludes, as stated
    colluders: int  # A: noise shares that the adversary knows
    min_survivors: int  # the smallest |u3| that is opened
    quorum: int  # the smallest |u1| and |u2|
    beta: float  # bias of conditional rounding, 0 = unconditional
    k_stddevs: float  # standard deviations that fit before a coordinate wraps

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = _KINDS[str(field.type)]
            if type(getattr(self, field.name)) is not kind:
                raise TypeError(f"plan: {field.name} must be {kind.__name__}")
        self._check_ranges()

    def _check_ranges(self) -> None:
        finite = all(math.isfinite(getattr(self, f.name)) for f in fields(self) if f.type == "float")
        rules = [
            (
                self.mechanism in MECHANISMS,
                f"unknown mechanism {self.mechanism!r}",
                f"use one of {MECHANISMS}",
            ),
            (self.target in TARGETS, f"unknown target {self.target!r}", f"use one of {TARGETS}"),
            (finite, "a number is infinite or not a number", "state finite numbers"),
            (1 <= self.dim <= _LARGEST_DIM, f"dim {self.dim} is out of range", f"use 1 to {_LARGEST_DIM}"),
            (1 <= self.bits <= LARGEST_BITS, f"bits {self.bits} is out of range", f"use 1 to {LARGEST_BITS}"),
            (2 <= self.clients < 1 << 32, f"clients {self.clients} is out of range", "use at least 2"),
            (1 <= self.rounds <= _LARGEST_COUNT, f"rounds {self.rounds} is out of range", "use at least 1"),
            (1e-30 <= self.clip <= 1e30, f"clip {self.clip} is out of range", "use a clip in 1e-30 to 1e30"),
            (self.epsilon > 0, "epsilon must be positive", "use 0.1 to 10"),
            (0 < self.delta < 1, "delta must lie strictly between 0 and 1", "use less than 1 / clients"),
            (0 <= self.max_dropout < 1, "max_dropout must lie in [0, 1)", "use 0 to 0.5"),
            (0 <= self.adversarial < 1, "adversarial must lie in [0, 1)", "use 0 to 0.3"),
            (
                0 <= self.beta <= LARGEST_BETA,
                f"beta must lie in [0, {LARGEST_BETA}]",
                "use exp(-1/2) = 0.6065",
            ),
            (self.k_stddevs >= 1, "k_stddevs below 1 lets ordinary sums wrap", "use 4"),
        ]
        for holds, reason, suggestion in rules:
            if not holds:
                raise InfeasiblePlan(reason, suggestion)
        if self.padded_dim != padded_dimension(self.dim):
            raise InfeasiblePlan("padded_dim is not the next power of two", f"use {padded_dimension(self.dim)}")
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
    def h_min(self) -> int:
        """The fewest noise shares of a sum that the adversary does not know."""
        return self.min_survivors - self.colluders
