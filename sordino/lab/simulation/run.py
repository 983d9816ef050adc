"""A whole simulation, for ``sordino simulate`` and experiments: settings in, rows out."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from learning.checkpoints import SavedModel
from learning.parameters import Parameters
from learning.task_names import WITHOUT_TORCH, trained_task
from sordino.lab.simulation import record
from sordino.lab.simulation.progress import closing, heading
from sordino.lab.simulation.record import Record, Saved, versions
from sordino.lab.simulation.rounds import Rounds, Row
from sordino.lab.simulation.settings import RAY, REAL, SimulationError, SimulationSettings
from sordino.planning.drawing import on_axes
from sordino.planning.expected_errors import beyond_bounds
from sordino.planning.shown import Shown, data_frame
from sordino.reporting.results import flat_round, rounds_axes
from wire.guarantee import guarantee

if TYPE_CHECKING:
    import matplotlib.axes
    from pandas import DataFrame

IDEAL_SUM: Final = "replaced by its ideal sum"
REAL_SUM: Final = "real: every key, share, mask and signature, in memory"
NOT_PRIVATE: Final = "NOT PRIVATE: no noise is added, epsilon is infinite"
SIMULATED: Final = (
    "a simulation: one process knows everybody's data; epsilons are those that the same study, served, would have spent"
)
_PATIENCE: Final = 5
_ASKED: Final = {
    "coordinator": "",
    "released": "; asked of epsilon_released: for readers of what is released",
    "conditional": "; asked of epsilon_conditional: if all were drawn independently",
}
KNOWN_ONLY_HERE: Final = ("update_norms", "exactly_below_clip", "diverged", "beyond_bounds", "of_each")


@dataclass(frozen=True, repr=False)
class SimulationResult(Shown):
    """Result of a simulation.

    Attributes:
        configuration: all settings, versions and the plan, as the first line of the file.
        rows: one for each round: ``round``, ``participants``, ``survivors``, ``accuracy``, ``loss``, ``figures``,
            ``released``, ``clips``, ``epsilon_coordinator``, ``epsilon_released``, ``wrapped_share``, ``seconds`` and
            more.
        aborted: attempts that had too few survivors.
        summary: ``outcome`` ("rounds done", "budget reached" or "round aborted"), figures of the last round and sums.
        parameters: the final model or statistic; empty if the file was finished before, and its checkpoint is gone.
    """

    configuration: Mapping[str, Any]
    rows: tuple[Row, ...]
    aborted: tuple[Row, ...]
    summary: Mapping[str, Any]
    parameters: Parameters

    @property
    def accuracy(self) -> float | None:
        """Return the final accuracy; None for a statistic."""
        found: float | None = self.summary["accuracy"]
        return found

    @property
    def model(self) -> SavedModel:
        """Return the final model or statistic, to be saved. Raises SimulationError: it isn't there any more."""
        if not self.parameters:
            raise SimulationError("the file was finished before, and the checkpoint beside it, its model, is gone")
        study = self.configuration["settings"]["study"]
        return SavedModel(self.parameters, study["name"], study["task"], self.summary["rounds_completed"])

    def to_frame(self) -> DataFrame:
        """Return one row per round: its plain figures and a statistic's values. Raises InputFailure: no pandas."""
        return data_frame(map(flat_round, self.rows))

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draw accuracy, loss or statistic by round, by default in a new figure. Raises InputFailure: no matplotlib."""
        return on_axes(rounds_axes(self.rows, heading(self.configuration)[0]), ax)

    def _lines(self) -> Sequence[str]:
        return [*heading(self.configuration), "", *closing(self.configuration, self.summary)]


def simulate_study(
    settings: SimulationSettings,
    *,
    output: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    on_row: Callable[[Row], None] | None = None,
    on_start: Callable[[Mapping[str, Any], int], None] | None = None,
) -> SimulationResult:
    """Run a study without a network: the same task, encoder, plan and accounting as a served one.

    Settings and result can be pickled, and only the data sets that were loaded last are kept between calls: a pool of
    processes runs many at once, ``pool.map(simulate_study, many_settings)``. Cohorts, dropouts, batch orders and
    rotations follow from the seed; noise and stochastic rounding are the operating system's, always fresh (on an
    accelerator a generator's that it seeds). Without noise ("none") equal settings give equal results.

    Args:
        output: file for a line of JSON per round, with a checkpoint beside it. If it exists with the same settings,
            the simulation continues, or returns the recorded result if it was complete. After a kill, rounds after the
            last checkpoint are repeated and charged both times.
        checkpoint_every: rounds, >= 1; Ctrl-C writes one, too.
        on_row: called with every row, aborted attempts included.
        on_start: called once with the configuration and the number of rounds done before.

    Returns all rows, also those of an earlier run.

    Raises:
        SimulationError: a setting or the file can't be used.
        mechanisms.plan.InfeasiblePlan: no plan keeps the budget and the protocol's rules.
        learning.options.OptionError, learning.own_task.TaskUnavailable, learning.blocks.DatasetError: task or data.
        KeyboardInterrupt: Ctrl-C, after the checkpoint is written.
    """
    began = time.perf_counter()
    if checkpoint_every < 1:
        raise SimulationError(f"checkpoint_every = {checkpoint_every}: it must be 1 or more")
    rounds = Rounds(settings)
    configuration = configuration_of(rounds)
    started = on_start or (lambda configuration, done: None)
    rows: list[Row] = []
    file = contextlib.nullcontext() if output is None else contextlib.closing(Record(Path(output), configuration))
    with file as kept:  # no other process may write it until then
        if kept is not None:
            rows = _read(kept.rows, settings)
            if kept.summary is not None:
                started(configuration, settings.study.study.rounds)
                parameters = {} if kept.saved is None else kept.saved.parameters
                return _result(configuration, rows, _read([kept.summary], settings)[0], parameters)
            if kept.saved is not None:
                rounds.restore(kept.saved)
            rounds.charge_again(kept.dropped)
            for row in rows:
                if row["kind"] == record.ROUND:
                    error = row["figures"].get("accuracy_stderr")
                    rounds.progress.note(row["round"], row["accuracy"], row["loss"], row["reported"], error)
        started(configuration, rounds.completed)
        saved = None if kept is None else rounds.saved()  # a copy of all of the state
        with contextlib.closing(rounds.run()) as attempts:
            try:
                for row in attempts:
                    if kept is not None:
                        kept.add(row)
                    if kept is not None and row["kind"] == record.ROUND:
                        saved = rounds.saved()
                        if row["round"] % checkpoint_every == 0:
                            kept.save(saved)
                    rows.append(row)
                    if on_row is not None:
                        on_row(row)
            except BaseException:  # Ctrl-C most of all; the last whole round is kept whatever ended it
                if kept is not None and saved is not None:
                    _keep(kept, saved)
                raise
        if kept is not None:
            kept.save(rounds.saved())  # before the last evaluations, which may take long
        summary = _summary(rounds, rows, time.perf_counter() - began)
        if kept is not None:
            kept.add(summary)
        return _result(configuration, rows, summary, rounds.learner.state()[0])


def configuration_of(rounds: Rounds) -> dict[str, Any]:
    """Return the first line: all that the result depends on except noise."""
    settings, study = rounds.settings, rounds.settings.study
    more = [] if trained_task(study.study.task, study.task) in WITHOUT_TORCH else ["torch"]
    more += ["ray"] if settings.engine == RAY else []
    plan = rounds.plan
    holds = None if plan is None else guarantee(plan.to_json())
    return {
        "kind": record.CONFIGURATION,
        "format": record.FORMAT,
        "what": SIMULATED,
        "private": settings.private,
        "privacy": NOT_PRIVATE
        if holds is None
        else f"epsilon {study.privacy.epsilon:g} at delta {study.privacy.delta:g}, {holds}{_ASKED[settings.target]}",
        "guarantee": holds,
        "secure_aggregation": REAL_SUM if settings.secagg == REAL else IDEAL_SUM,
        "never_known_to_a_real_study": list(KNOWN_ONLY_HERE),
        "settings": settings.to_json(),
        "versions": versions(*more),
        "plan": None if plan is None else plan.to_json(),
        "plan_identity": None if plan is None else plan.identity,
    }


def _keep(kept: Record, saved: Saved) -> None:
    """Write the checkpoint, even if Ctrl-C is pressed again meanwhile."""
    ours = threading.current_thread() is threading.main_thread()
    for _ in range(_PATIENCE):
        try:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ours else None
            try:
                kept.save(saved)
                kept.close()
            finally:
                if before is not None:
                    signal.signal(signal.SIGINT, before)
            return
        except KeyboardInterrupt:  # a second one, before the first line above
            continue


def _read(rows: list[Row], settings: SimulationSettings) -> list[Row]:
    """Restore the infinities that JSON lacks."""
    if settings.private:
        return rows
    spent = ("epsilon_coordinator", "epsilon_released")
    return [row | dict.fromkeys((name for name in spent if name in row), math.inf) for row in rows]


def _summary(rounds: Rounds, rows: list[Row], wall_s: float) -> dict[str, Any]:
    done = [row for row in rows if row["kind"] == record.ROUND]
    judged = [row for row in done if row["accuracy"] is not None or row["loss"] is not None or row.get("figures")]
    last = judged[-1] if judged else {}
    if done and (not last or last["round"] < rounds.completed or rounds.judged_by_some(last["round"])):
        found = rounds.judged_by_all()  # the end came early
        last = found if found["accuracy"] is not None or found["loss"] is not None or found["figures"] else {}
    kinds = done[-1]["seconds"] if done else {}
    return {
        "kind": record.SUMMARY,
        "outcome": rounds.outcome,
        "rounds_completed": rounds.completed,
        "accuracy": last.get("accuracy"),
        "loss": last.get("loss"),
        "figures": last.get("figures", {}),
        "evaluated_after": last.get("round"),
        "reported": done[-1]["reported"] if done else {},
        "best": None if rounds.progress.best is None else rounds.progress.best._asdict(),
        "released": done[-1]["released"] if done else {},
        **rounds.epsilons(),
        "delta": None if rounds.plan is None else rounds.plan.delta,
        "guarantee": None if rounds.plan is None else guarantee(rounds.plan.to_json()),
        "survivors": math.fsum(row["survivors"] for row in done) / len(done) if done else None,
        "diverged": sum(row["diverged"] for row in done),
        "of_each": rounds.of_each() if rounds.settings.evaluate_each and done else {},
        "beyond_bounds": beyond_bounds(rounds.task, map(rounds.data.of, range(len(rounds.data)))),
        "contributions": sum(row["survivors"] for row in done),
        "aborted_attempts": sum(row["kind"] == record.ABORTED for row in rows),
        "times_resumed": sum(row["kind"] == record.RESUMED for row in rows),
        "sums_dropped": sum(len(row["charges"]) for row in rows if row["kind"] == record.RESUMED),
        "seconds": {kind: round(math.fsum(row["seconds"][kind] for row in done), 3) for kind in kinds},
        "wall_s": round(wall_s, 3),
    }


def _result(
    configuration: Mapping[str, Any], rows: list[Row], summary: Mapping[str, Any], parameters: Parameters
) -> SimulationResult:
    done = tuple(row for row in rows if row["kind"] == record.ROUND)
    aborted = tuple(row for row in rows if row["kind"] == record.ABORTED)
    return SimulationResult(configuration, done, aborted, summary, parameters)
