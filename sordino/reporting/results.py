"""A study that was served, as a result: how it ended, its rounds as a data frame and a figure, its model and ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning.checkpoints import SavedModel, load_model
from runtime.failure import InputFailure
from server.events import body_of
from server.journal import read_events
from server.study_file import StudyConfiguration, load
from server.study_view import StudyView, waiting
from sordino.planning.drawing import Axes, Series, on_axes
from sordino.planning.shown import Shown, data_frame
from sordino.reporting.budget import Contents, of_study, read
from sordino.reporting.statistic_text import values_of
from sordino.reporting.study_text import closing_lines, newest_model

if TYPE_CHECKING:
    import matplotlib.axes
    from pandas import DataFrame

_FEW, _MANY = 12, 40  # rounds up to which each is named at the axis, and from which on none has a mark of its own


@dataclass(frozen=True)
class _Value:
    """`sordino.planning.drawing.Estimate`."""

    mean: float
    error: float | None


def flat_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round's plain figures, further ones of its model, those that participants report (``reported_accuracy``), and
    the values of its statistic by their names; lists and other tables are left out.
    """
    held = {name: one for name, one in row.items() if name != "kind"}
    plain = {name: one for name, one in held.items() if one is None or isinstance(one, str | int | float)}
    plain = dict(row.get("figures") or {}) | plain
    plain |= {f"reported_{name}": one for name, one in (row.get("reported") or {}).items()}
    return plain | {str(one["name"]): one.get("value") for one in values_of(row.get("released") or {})}


def rounds_axes(rows: Sequence[Mapping[str, Any]], title: str) -> Axes:
    """Accuracy round by round; without one the loss, or the first value of a statistic with its standard error.

    Raises InputFailure: no round has any of them.
    """
    for name in ("accuracy", "loss"):
        points: dict[Any, Any] = {row["round"]: float(row[name]) for row in rows if row.get(name) is not None}
        if points:
            break
    else:
        first = {row["round"]: values_of(row.get("released") or {})[:1] for row in rows}
        found = {number: one[0] for number, one in first.items() if one and one[0].get("value") is not None}
        points = {at: _Value(float(one["value"]), one.get("standard_error")) for at, one in found.items()}
        name = next((str(one["name"]) for one in found.values()), "")
    if not points:
        raise InputFailure("there is nothing to draw: no round has a figure")
    share = name == "accuracy"
    series = Series(name, points, 1, marks=len(points) < _MANY)
    ticks = sorted(points) if len(points) <= _FEW else ()
    return Axes(title, "round", "accuracy, %" if share else name, [series], ticks=ticks, percent=share)


@dataclass(frozen=True, repr=False)
class ServedStudy(Shown):
    """A study as far as it was served.

    Attributes:
        folder: its folder, or its study.toml.
        configuration: what that says.
        view: its state, from every event that its coordinator has recorded.
    """

    folder: Path
    configuration: StudyConfiguration
    view: StudyView

    @classmethod
    def read(cls, study: str | os.PathLike[str]) -> ServedStudy:
        """From the folder of a study that is or was served; raises Failure: it can't be read."""
        configuration = load(Path(study))
        return cls(Path(study), configuration, StudyView().apply_all(read_events(configuration.coordinator.state)))

    @property
    def outcome(self) -> str:
        """A reason of `wire.ending`, such as ``rounds done``; empty while it is served."""
        return "" if self.view.finished is None else self.view.finished.reason

    @property
    def accuracy(self) -> float | None:
        """After the last round; None before the first, and where there is no model."""
        return self.view.accuracy

    @property
    def model(self) -> SavedModel | None:
        """After the last round, None before the first. Raises learning.checkpoints.CheckpointError: it is damaged."""
        newest = newest_model(self.configuration.coordinator.state)
        return None if newest is None else load_model(newest)

    def ledger(self) -> Contents:
        """What was spent, checked against the journal; raises as `sordino.reporting.budget.read`."""
        return read(of_study(self.configuration))

    def to_frame(self) -> DataFrame:
        """One row a round, with the plain figures of `server.events.RoundCompleted` and a statistic's values.

        Raises InputFailure: no pandas.
        """
        return data_frame(flat_round(body_of(done)) for done in self.view.rounds)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """`rounds_axes` on ``ax``, by default on that of a new figure; raises InputFailure: no matplotlib."""
        return on_axes(rounds_axes([body_of(done) for done in self.view.rounds], self.view.started.study), ax)

    def _lines(self) -> Sequence[str]:
        title = f"{self.configuration.study.name}: {waiting(self.view)}"
        return [title, "", *closing_lines(self.view, self.folder, self.configuration.coordinator.state)]
