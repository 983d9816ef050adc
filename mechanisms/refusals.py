"""The one error of plans that can't be kept, and the checks of fields that all plans share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

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


def check_rules(rules: Iterable[tuple[bool, str, str]]) -> None:
    """Raise InfeasiblePlan for the first of the rules (holds, reason, suggestion) that doesn't hold."""
    for holds, reason, suggestion in rules:
        if not holds:
            raise InfeasiblePlan(reason, suggestion)
