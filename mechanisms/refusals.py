"""The one error of plans that can't be kept, and the checks of fields that all plans share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

Rule = tuple[bool, str, str]
"""(holds, reason, suggestion)"""
KINDS: Final[dict[str, type]] = {"str": str, "int": int, "float": float, "Fraction": Fraction}


class InfeasiblePlan(ValueError):
    """Parameters under which a promise would not hold.

    Attributes:
        reason: what does not hold, one sentence.
        suggestion: the nearest setting that works, or what to change, in words.
        change: the same as arguments of `mechanisms.plan.make_plan`, such as ``{"bits": 18}``; a value of None says
            that a smaller one has to be searched for. Empty where no single change is known to help.
    """

    def __init__(self, reason: str, suggestion: str, change: Mapping[str, float | None] | None = None) -> None:
        super().__init__(f"{reason}; {suggestion}" if suggestion else reason)
        self.reason = reason
        self.suggestion = suggestion
        self.change = dict(change or {})


def check_types(plan: Any, kinds: Mapping[str, type] = KINDS) -> None:
    """Raise TypeError unless each field of a dataclass has exactly the type that ``kinds`` gives for its annotation."""
    for field in fields(plan):
        kind = kinds[str(field.type)]
        if type(getattr(plan, field.name)) is not kind:
            raise TypeError(f"plan: {field.name} must be {kind.__name__}")


def known(what: str, name: object, names: Sequence[str]) -> Rule:
    """The rule that a name is one of those."""
    return name in names, f"unknown {what} {name!r}", f"use one of {names}"


def check_rules(rules: Iterable[Rule]) -> None:
    """Raise InfeasiblePlan for the first of the rules that doesn't hold."""
    for holds, reason, suggestion in rules:
        if not holds:
            raise InfeasiblePlan(reason, suggestion)


def nearest(
    bits: int, others: Sequence[int], epsilon: float, works: Callable[[int, float], bool]
) -> tuple[str, dict[str, float | None]]:
    """The nearest setting that works, in words and as a change: other bits, else the lowest epsilon.

    Args:
        others: numbers of bits to try, from the nearest on.
        works: whether a plan with (bits, epsilon) does.
    """
    for other in others:
        if works(other, epsilon):
            return f"{other} bits work", {"bits": other}
    for step in range(1, 25):
        larger = float(f"{epsilon * 1.25**step:.3g}")
        for one in (bits, *others[:8]):
            if works(one, larger):
                return f"epsilon {larger:g} with {one} bits works", {"epsilon": larger, "bits": one}
    return "use more clients, fewer rounds or a larger epsilon", {"rounds": None}
