"""The one error of plans that can't be kept."""

from __future__ import annotations

from collections.abc import Mapping


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
