"""The runs of an experiment: a simulation in, one row of JSON out; in a pool of processes, one at a time in each.

A folder holds ``runs.jsonl``: one line per finished run. The same experiment, started again, takes them from there and
repeats the runs that were interrupted: seconds to minutes each, or hours at the papers' sizes.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.durable import hold, replace_durably
from runtime.processes import end_with_parent, one_thread_each
from runtime.settings_keys import settings_keys
from runtime.text import finite
from sordino.lab.simulation.record import versions
from sordino.lab.simulation.run import simulate_study
from sordino.lab.simulation.settings import WAYS, SimulatedStudy, SimulationSettings
from wire.ending import ROUNDS_DONE

Row = dict[str, Any]

DONE, INFEASIBLE, UNAVAILABLE = ROUNDS_DONE, "infeasible", "unavailable"
NORMS: Final = ("0.1", "0.5", "0.9")
"""Quantiles of the norms before clipping that a row keeps."""
_KEPT: Final = (
    "reported",
    *("outcome", "rounds_completed", "aborted_attempts", "wall_s"),
    *("delta", "epsilon_released", "epsilon_coordinator"),
)
FORMAT: Final = 3
"""Raise this number by hand when the meaning of a setting changes."""
# How the work is done, not what comes out.
_WAYS: Final = WAYS | {"batched"}


@dataclass(frozen=True)
class Run:
    """One simulation of an experiment.

    Attributes:
        labels: for tables: words and numbers of JSON.
        settings: of the simulation, seed included. The model's initial weights, the partition, cohorts, dropouts and
            batch orders follow from it; noise is fresh.
        last: evaluated rounds at the end whose mean accuracy counts, >= 1.
    """

    labels: Mapping[str, Any]
    settings: SimulationSettings
    last: int = 1

    @cached_property
    def identity(self) -> str:
        """Equal for runs of the same settings, whatever their labels and however the work is shared.

        It changes with Sordino's version and with the form of the settings, so that rows kept before aren't used.
        """
        stated = {name: value for name, value in self.settings.to_json().items() if name not in _WAYS}
        text = json.dumps([stated, self.last, made_by()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def made_by() -> list[Any]:
    """Return what a row depends on besides its settings: the version, `FORMAT`, and a digest of the settings' form.

    The form is every field's name, type, range and default: a changed default makes another setting.
    """
    fields = SimulationSettings.model_fields
    form = [[name, str(one.annotation), repr(one.default)] for name, one in fields.items() if name != "study"]
    keys = settings_keys(SimulatedStudy)
    form += [[name, one.kind.__name__, *one.choices, one.range, repr(one.default)] for name, one in keys.items()]
    return [versions()["sordino"], FORMAT, hashlib.sha256(json.dumps(form).encode()).hexdigest()[:16]]


def play(run: Run) -> Row:
    """Simulate, and keep what tables and figures need.

    Returns one row under stable names, JSON values. ``outcome`` is that of the simulation; "infeasible" if no plan
    keeps the budget, "unavailable" if something isn't installed, both with a ``reason`` and without figures. Raises
    learning.options.OptionError, learning.blocks.DatasetError, SimulationError: a setting is invalid.
    """
    from learning.own_task import TaskUnavailable
    from mechanisms.plan import InfeasiblePlan

    row: Row = {"kind": "run", "id": run.identity, "labels": dict(run.labels), "seed": run.settings.seed}
    try:
        result = simulate_study(run.settings.changed(workers=1))
    except InfeasiblePlan as problem:
        return row | {"outcome": INFEASIBLE, "reason": problem.reason, "settings": run.settings.to_json()}
    except TaskUnavailable as problem:
        return row | {"outcome": UNAVAILABLE, "reason": str(problem)}
    summary, judged = result.summary, [one for one in result.rows if one["accuracy"] is not None]
    last = [one["accuracy"] for one in judged[-run.last :]]
    row |= {
        **{name: summary[name] for name in _KEPT},
        "accuracy": math.fsum(last) / len(last) if last else None,
        "accuracy_last": summary["accuracy"],
        "rounds": [one["round"] for one in judged],
        "accuracies": [one["accuracy"] for one in judged],
        "losses": [one["loss"] for one in judged],
        "norms": {share: [(one["update_norms"] or {}).get(share) for one in judged] for share in NORMS},
        "clips": [one["clips"] for one in judged],
        "diverged": sum(one["diverged"] for one in result.rows),
        "wrapped_share": max((one["wrapped_share"] for one in result.rows), default=None),
        "survivors": [one["survivors"] for one in result.rows],
        "epsilon_conditional": summary.get("epsilon_conditional"),
        "plan": result.configuration["plan"],
        "settings": result.configuration["settings"],
        "versions": versions(),
    }
    kept: Row = finite(row)
    return kept


def noise_multiplier(row: Row) -> float | None:
    """Return the noise deviation of a whole sum over the clip; None without noise."""
    plan = row.get("plan")
    if plan is None:
        return None
    clip = float(sum(value * value for value in plan["clipping"]["clips"]) ** 0.5)
    variance = float(Fraction(plan["local_variance"]) * plan["clients"])
    return float(plan["granularity"]) * math.sqrt(variance) / clip


FILE: Final = "runs.jsonl"
Item = TypeVar("Item")
Result = TypeVar("Result")


class ExperimentError(ValueError):
    """A file or an argument of an experiment can't be used; one sentence names what to change."""


@dataclass(frozen=True)
class Standing:
    """Progress of one stage of an experiment.

    Attributes:
        stage: what it finds out, one line.
        done, of: runs of this stage.
        kept: runs among them that were taken from the file.
        seconds_left: estimated from the runs so far; None before the first one is done.
    """

    stage: str
    done: int
    of: int
    kept: int
    seconds_left: float | None


class RunPool:
    """Runs an experiment's simulations.

    Args:
        folder: for ``runs.jsonl``, which is continued if it exists; None keeps nothing.
        workers: processes; 1 works in this one.
        progress: called whenever a run has ended.
        device: of models that train with torch: "cpu", "cuda" or "auto".

    Raises ExperimentError: the file holds something else; OSError: it can't be read or written.
    """

    def __init__(
        self,
        folder: Path | None,
        workers: int = 1,
        progress: Callable[[Standing], None] = lambda standing: None,
        device: str = "cpu",
    ) -> None:
        self._file = None if folder is None else folder / FILE
        self._workers, self._progress, self._device = workers, progress, device
        self._rows: dict[str, Row] = {}
        if self._file is not None:
            self._take_up(self._file)

    def run(self, stage: str, runs: Sequence[Run]) -> list[Row]:
        """Run what hasn't been run; two runs of the same settings count once.

        Returns one row per run, in the order of ``runs``, with their labels. Raises ExperimentError: another process
        plays into the same folder.
        """
        if self._file is None:
            return self._run(stage, runs)
        folder = self._file.parent
        folder.mkdir(parents=True, exist_ok=True)  # only now: a refused option leaves none
        if (lock := hold(folder, os.O_RDONLY)) is None:
            raise ExperimentError(f"another process plays into {folder}: wait for it, or name another folder")
        try:
            return self._run(stage, runs)
        finally:
            os.close(lock)

    def _run(self, stage: str, runs: Sequence[Run]) -> list[Row]:
        names = [run.identity for run in runs]
        missing = {
            name: replace(run, settings=run.settings.changed(device=self._device))
            for name, run in zip(names, runs, strict=True)
            if name not in self._rows
        }
        # Those of the same data one after the other: a process keeps what it has loaded last.
        waiting = sorted(missing.values(), key=_data_of)
        kept, began = len(set(names)) - len(waiting), time.monotonic()
        self._progress(Standing(stage, kept, kept + len(waiting), kept, None))
        for done, (run, row) in enumerate(spread(play, waiting, self._workers), start=1):
            self._keep(row | {"id": run.identity})  # as it is known here, whatever a process has loaded since
            left = (time.monotonic() - began) / done * (len(waiting) - done)
            self._progress(Standing(stage, kept + done, kept + len(waiting), kept, left))
        return [{**self._rows[name], "labels": dict(run.labels)} for name, run in zip(names, runs, strict=True)]

    def _keep(self, row: Row) -> None:
        self._rows[row["id"]] = row
        # A package that isn't installed now may be installed tomorrow: such a row counts only this time.
        if self._file is not None and row.get("outcome") != UNAVAILABLE:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, allow_nan=False) + "\n")

    def _take_up(self, file: Path) -> None:
        if not file.exists():
            return
        text = file.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            row = _row(line)
            cut_off = number == len(lines) and not text.endswith("\n") and _BEGINS.startswith(line[: len(_BEGINS)])
            if row is None and cut_off:  # while it was written
                replace_durably(file, "".join(one + "\n" for one in lines[:-1]).encode(), mode=None)
            elif row is None:
                raise ExperimentError(
                    f"{file}, line {number}, is no run of an experiment: remove the line, or name another folder"
                )
            elif row.get("outcome") != UNAVAILABLE:  # of a version that kept them
                self._rows[row["id"]] = row


_BEGINS: Final = '{"kind": "run"'


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("kind") == "run" and isinstance(row.get("id"), str) else None


def _data_of(run: Run) -> tuple[Any, ...]:
    study, data = run.settings.study, run.settings.study.data
    return (data.dataset, data.partition, data.seed, study.places, data.alpha)


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order of completion; a single worker runs in this process."""
    if workers == 1 or len(items) < 2:
        for item in items:
            yield item, work(item)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    one_thread_each()
    # Spawned: libraries that run threads don't survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(items)), mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),)
    ) as pool:
        futures = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:  # a run may take hours: wait for none
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def labels_of(row: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Return some of a row's labels, in the given order."""
    return tuple(row["labels"][name] for name in names)
