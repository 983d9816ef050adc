"""Which round's model is the best so far, and whether a study still gets better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

JUDGED: Final = ("accuracy", "loss")
"""Figures of a model that participants report, the more telling first."""


class Best(NamedTuple):
    """The round after which the model was the best; its ``figure``, an accuracy or a loss, with its standard error."""

    round: int
    name: str
    figure: float
    stderr: float


class Progress:
    """Follows one study.

    Attributes:
        by_participants: whether what they report counts, or the coordinator's own figures.
        best: so far, by its figure; None before the first one.
    """

    def __init__(self, by_participants: bool) -> None:
        self.by_participants = by_participants
        self.best: Best | None = None
        self._judged = 0  # the last round whose model has a figure
        self._gained: Best | None = None  # the last one that was better by more than the standard error of its figure

    def note(
        self,
        round_: int,
        accuracy: float | None,
        loss: float | None,
        reported: Mapping[str, float | None],
        accuracy_stderr: float | None = None,
    ) -> None:
        """Take in what a round found: the coordinator judges the model after it, participants the one before it."""
        found: Mapping[str, float | None] = {"accuracy": accuracy, "loss": loss, "accuracy_stderr": accuracy_stderr}
        if self.by_participants:
            found, round_ = reported, round_ - 1
        for name in JUDGED:
            figure = found.get(name)
            if figure is not None:
                self._judge(Best(round_, name, figure, found.get(f"{name}_stderr") or 0.0))
                return

    def _judge(self, new: Best) -> None:
        self._judged, sign = new.round, 1 if new.name == "accuracy" else -1
        if self.best is None or sign * (new.figure - self.best.figure) >= 0:
            self.best = new
        if self._gained is None or sign * (new.figure - self._gained.figure) > new.stderr:
            self._gained = new

    def stalled(self, patience: int) -> bool:
        """Whether for ``patience`` rounds no model was better by more than its standard error; 0: never."""
        return patience > 0 and self._gained is not None and self._judged - self._gained.round >= patience
