"""The one error of plans that can't be kept."""


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
