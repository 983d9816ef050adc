"""The record of a simulation: one JSON line for each round, and a checkpoint beside them to continue from.

The first line is the whole configuration; then come lines of kind ``round``, ``aborted`` and ``resumed``, and at the
end ``summary``. Figures that are infinite or no number are null there.

Rounds after the last checkpoint are repeated, and their lines are dropped. Their cost is not: their sums were opened,
and their figures could be read here. The line ``resumed`` lists them, and epsilon counts them beside their repetitions.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, TextIO

from learning.checkpoints import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from learning.learner import State
from learning.parameters import Parameters
from runtime.durable import hold, replace_durably
from runtime.text import finite
from sordino.lab.simulation.settings import SimulationError, difference

FORMAT: Final = 2
CONFIGURATION, ROUND, ABORTED, RESUMED, SUMMARY = "configuration", "round", "aborted", "resumed", "summary"
_READ: Final = {  # of kept lines, by their kind
    ROUND: ("round", "survivors", "diverged", "accuracy", "loss", "figures", "reported", "released", "seconds"),
    SUMMARY: ("outcome", "rounds_completed", "accuracy", "best", "reported", "released", "survivors", "seconds"),
}


def versions(*more: str) -> dict[str, str]:
    """Return the versions that the result depends on; ``more`` names further distributions."""
    found = {"python": platform.python_version()}
    for name in ("sordino", "numpy", *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@dataclass(frozen=True)
class Saved:
    """A simulation between two rounds; ``charges`` has (round, attempt) of every charged sum, as often as opened."""

    round: int
    clips: tuple[float, ...]
    charges: tuple[tuple[int, int], ...]
    parameters: Parameters
    state: State


class Record:
    """The file of one simulation, its only writer."""

    def __init__(self, path: Path, configuration: Mapping[str, Any]) -> None:
        """Begin a new file, or continue an existing one.

        Args:
            path: of the lines; the checkpoint is beside it, with ``.safetensors`` appended.
            configuration: the first line.

        Raises SimulationError: the file is damaged, or not this simulation's: names the setting that differs; OSError:
        it can't be written.
        """
        self.path, self.checkpoint = path, path.with_name(path.name + ".safetensors")
        self.rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] | None = None
        self.saved: Saved | None = None
        self.dropped: tuple[tuple[int, int], ...] = ()
        """(round, attempt) of charged sums that are neither in the checkpoint nor in a line."""
        self._resumed = 0
        study = configuration["settings"]["study"]
        self._of = {"study": study["name"], "task": study["task"]}
        begun = path.exists() and path.stat().st_size > 0
        if not begun and self.checkpoint.exists():
            raise SimulationError(f"{self.checkpoint} would be overwritten; name another file, or move that one")
        with self._held():
            if begun:
                self._take_up(configuration)
            else:
                self._write([configuration])
            self._file = None if self.summary is not None else self._held()  # which was written anew

    def _held(self) -> TextIO:
        """The file, to append to. Raises SimulationError: another process has it."""
        if not self.path.exists():
            self.path.touch()  # an empty file is a new one
        held = hold(self.path, os.O_WRONLY | os.O_APPEND)
        if held is None:
            raise SimulationError(f"{self.path} is being written by another process; wait, or name another")
        return open(held, "a", encoding="utf-8")

    def add(self, row: Mapping[str, Any]) -> None:
        assert self._file is not None  # noqa: S101  # a finished simulation has no more lines
        self._file.write(line_of(row))
        self._file.flush()

    def save(self, saved: Saved) -> None:
        """Write the checkpoint, durable when this returns, and the lines before it."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        about = {
            **self._of,
            "round": saved.round,
            "clips": list(saved.clips),
            "charges": [list(one) for one in saved.charges],
            "resumed": self._resumed,  # whose dropped charges are among these
        }
        save_checkpoint(self.checkpoint, Checkpoint(saved.parameters, saved.state, about))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _take_up(self, configuration: Mapping[str, Any]) -> None:
        try:
            self._go_on(configuration)
        except SimulationError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            again = f"remove it and {self.checkpoint.name} to begin anew"
            raise SimulationError(f"{self.path} is damaged; {again}") from error

    def _go_on(self, configuration: Mapping[str, Any]) -> None:
        lines = list(_lines(self.path))
        if not lines or lines[0].get("kind") != CONFIGURATION or lines[0].get("format") != FORMAT:
            raise SimulationError(
                f"{self.path} is no file of `sordino simulate`, or of another release; name another one, or remove it"
            )
        before, now = ({"settings": one["settings"], "plan": one["plan"]} for one in (lines[0], configuration))
        found = difference(before["settings"], json.loads(json.dumps(now["settings"])))
        if found is None and before["plan"] != json.loads(json.dumps(finite(now["plan"]))):
            found = "plan was made by another version of sordino"
        if found is not None:
            raise SimulationError(
                f"{self.path} was begun with other settings: {found}; change that back, or name another file"
            )
        if lines[-1]["kind"] == SUMMARY:
            _check(lines)
            self.rows, self.summary = lines[1:-1], lines[-1]
            self.saved = self._load()[0] if self.checkpoint.exists() else None
            return
        counted = 0
        if self.checkpoint.exists():
            self.saved, counted = self._load()
        last = 0 if self.saved is None else self.saved.round
        self.rows = [row for row in lines[1:] if row.get("round", 0) <= last]
        if [row["round"] for row in self.rows if row["kind"] == ROUND] != list(range(1, last + 1)):
            raise SimulationError(f"{self.path} lacks rounds that {self.checkpoint.name} is built on; remove both")
        _check(self.rows)
        dropped = self._charges_of([row for row in lines[1:] if row.get("round", 0) > last])
        mark = {"kind": RESUMED, "round": last, "charges": dropped, "versions": configuration["versions"]}
        self.rows.append(mark)
        resumed = [row for row in self.rows if row["kind"] == RESUMED]
        self.dropped = tuple((round_, attempt) for round_, attempt in self._charges_of(resumed[counted:]))
        self._resumed = len(resumed)
        # Dropped lines go and their charges come in one step: a stop here or later loses none and counts none twice.
        self._write([lines[0], *self.rows])

    def _charges_of(self, rows: Iterable[Mapping[str, Any]]) -> list[list[int]]:
        """Return [round, attempt] of all sums in the lines, with those that earlier lines had dropped."""
        found: list[list[int]] = []
        try:
            for row in rows:
                if row["kind"] == ROUND or (row["kind"] == ABORTED and row["charged"]):
                    found.append([int(row["round"]), int(row["attempt"])])
                elif row["kind"] == RESUMED:
                    found.extend([int(round_), int(attempt)] for round_, attempt in row["charges"])
        except (KeyError, TypeError, ValueError) as error:
            raise SimulationError(
                f"{self.path} is damaged: what a line of kind {row['kind']!r} spent can't be read; remove it and "
                f"{self.checkpoint.name} to begin anew"
            ) from error
        return found

    def _load(self) -> tuple[Saved, int]:
        """Return the checkpoint, and the number of lines of kind ``resumed`` whose charges it includes."""
        try:
            found = load_checkpoint(self.checkpoint)
            about = found.metadata
            saved = Saved(
                round=int(about["round"]),
                clips=tuple(map(float, about["clips"])),
                charges=tuple((int(round_), int(attempt)) for round_, attempt in about["charges"]),
                parameters=found.parameters,
                state=dict(found.optimizer_state),
            )
            return saved, int(about["resumed"])
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            raise SimulationError(f"{error}; remove it and {self.path} to begin anew") from error

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write all lines anew: any crash leaves the old file or the new one, never a part."""
        replace_durably(self.path, "".join(map(line_of, lines)).encode(), mode=None)


def line_of(row: Mapping[str, Any]) -> str:
    """One line of JSON, its newline included."""
    return json.dumps(finite(row), allow_nan=False) + "\n"


def _check(lines: Iterable[Mapping[str, Any]]) -> None:
    """Raises KeyError: a line lacks what is read of it."""
    for line in lines:
        if lacking := [name for name in _READ.get(line["kind"], ()) if name not in line]:
            raise KeyError(lacking[0])


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Yield whole lines; a cut-off line, or one that is no JSON, ends the file."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(text)
        except ValueError:
            return
        if not isinstance(row, dict) or "kind" not in row:
            return
        yield row
