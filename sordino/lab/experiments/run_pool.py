"""Plays many runs in a pool of processes, one at a time in each, and keeps those that are finished.

A folder holds ``runs.jsonl``: one line for each finished run. The same experiment, started again, takes them from
there. What is under way when it is stopped begins anew; runs take seconds to minutes, or at the papers' sizes hours.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runtime.durable import replace_durably
from runtime.processes import end_with_parent, one_thread_each
from sordino.lab.experiments.runs import UNAVAILABLE, Row, Run, play

FILE: Final = "runs.jsonl"


class ExperimentError(ValueError):
    """A file or an argument of an experiment can't be used; one sentence that names what to change."""


@dataclass(frozen=True)
class Standing:
    """How far a stage of an experiment is.

    Attributes:
        stage: what is being found out, one line.
        done, of: runs of this stage.
        kept: of them, those that were taken from the file.
        seconds_left: of this stage, from its runs so far; None before the first one is done.
    """

    stage: str
    done: int
    of: int
    kept: int
    seconds_left: float | None


class RunPool:
    """Where an experiment's runs are played.

    Args:
        folder: for ``runs.jsonl``, which is taken up where it is there; None keeps nothing.
        workers: processes; 1 works in this one.
        told: called whenever a run has ended.
        device: of models that train with torch: "cpu", "cuda" or "auto".
    """

    def __init__(
        self,
        folder: Path | None,
        workers: int = 1,
        told: Callable[[Standing], None] = lambda standing: None,
        device: str = "cpu",
    ) -> None:
        """
        Raises:
            ExperimentError: the file holds something else.
            OSError: it can't be read or written.
        """
        self._file = None if folder is None else folder / FILE
        self._workers, self._told, self._device = workers, told, device
        self._rows: dict[str, Row] = {}
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._take_up(self._file)

    def run(self, stage: str, runs: Sequence[Run]) -> list[Row]:
        """Play what hasn't been played.

        Args:
            stage: what is being found out.
            runs: in any order; two of the same settings are played once.

        Returns:
            A row each, in the order of ``runs``, with their labels.
        """
        names = [run.identity for run in runs]
        missing = {
            name: replace(run, settings=replace(run.settings, device=self._device))
            for name, run in zip(names, runs, strict=True)
            if name not in self._rows
        }
        # Those of the same data one after the other: a process keeps what it has loaded last.
        waiting = sorted(missing.values(), key=_data_of)
        kept, began = len(set(names)) - len(waiting), time.monotonic()
        self._told(Standing(stage, kept, kept + len(waiting), kept, None))
        for done, (run, row) in enumerate(_played(waiting, self._workers), start=1):
            self._keep(row | {"id": run.identity})  # as it is known here, whatever a process has loaded since
            left = (time.monotonic() - began) / done * (len(waiting) - done)
            self._told(Standing(stage, kept + done, kept + len(waiting), kept, left))
        return [{**self._rows[name], "labels": dict(run.labels)} for name, run in zip(names, runs, strict=True)]

    def _keep(self, row: Row) -> None:
        self._rows[row["id"]] = row
        # What wasn't installed today may be tomorrow: such a row is for this time only.
        if self._file is not None and row.get("outcome") != UNAVAILABLE:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row, allow_nan=False) + "\n")

    def _take_up(self, file: Path) -> None:
        if not file.exists():
            return
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            row = _row(line)
            if row is None and number == len(lines):  # cut off while it was written
                replace_durably(file, "".join(one + "\n" for one in lines[:-1]).encode(), mode=None)
            elif row is None:
                raise ExperimentError(
                    f"{file}, line {number}, is no run of an experiment: remove the line, or name another folder"
                )
            elif row.get("outcome") != UNAVAILABLE:  # of a version that kept them
                self._rows[row["id"]] = row


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("kind") == "run" and isinstance(row.get("id"), str) else None


def _data_of(run: Run) -> tuple[Any, ...]:
    study, data = run.settings.study, run.settings.study.data
    return (data.dataset, data.partition, data.seed, study.places, data.alpha)


def _played(runs: Sequence[Run], workers: int) -> Iterator[tuple[Run, Row]]:
    """Runs with their rows as they come, in any order."""
    if workers == 1 or len(runs) < 2:
        for run in runs:
            yield run, play(run)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed

    one_thread_each()
    # Spawned: libraries that run threads don't survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(workers, len(runs)), mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),)
    ) as pool:
        futures = {pool.submit(play, run): run for run in runs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:  # a run may take hours: none is waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def labels_of(row: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Some of a row's labels, in the order asked for."""
    return tuple(row["labels"][name] for name in names)
