"""The outcome of an experiment: tables, figures, choices and notes, written into a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.lab.experiments.runs import ExperimentError
from sordino.lab.experiments.selection import Choice
from sordino.lab.experiments.tables import Table, shown
from sordino.planning.drawing import Picture, draw

SMALL, PAPER = "small", "paper"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment; notes are one line each, tables and pictures in reading order."""

    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    choices: Sequence[Choice] = ()

    def to_json(self) -> dict[str, Any]:
        """Return notes, choices unrounded, and tables as columns and rows of text."""
        return {
            "notes": list(self.notes),
            "tables": [
                {
                    "name": table.name,
                    "title": table.title,
                    "note": table.note,
                    "columns": list(table.columns),
                    "rows": [[shown(cell) for cell in row] for row in table.rows],
                }
                for table in self.tables
            ],
            "choices": [choice.to_json() for choice in self.choices],
        }


@dataclass(frozen=True)
class Request:
    """The choices of one call.

    Attributes:
        scale: "small" or "paper".
        seeds: of the results, one or more, none of `selection.SEEDS`.
        data: names of data sets by kind ("images", "colour", "text"); by default the scale's own.
        sizes: changes of the scale's numbers by name, for tests.
        parts: of the experiment; empty for all.
    """

    scale: str = SMALL
    seeds: Sequence[int] = (1, 2, 3)
    data: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def images(self, usual: str) -> str:
        """Return the requested data set of images, else the scale's own.

        Raises ExperimentError: the papers' size, without a data set.
        """
        found = self.data.get("images", usual)
        if not found:
            raise ExperimentError(
                "the papers' size takes FEMNIST, which can't be had here: get it and name it, --data femnist:PATH"
            )
        return found

    def partition(self, data: str) -> str:
        """Return "natural" for a data set that names the user of each example, else "dirichlet"."""
        from learning.datasets import load_users

        return "dirichlet" if load_users(data) is None else "natural"

    def wants(self, part: str) -> bool:
        """Return whether a part is requested."""
        return not self.parts or part in self.parts


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write each table as .txt, .csv and .md, and each figure as .svg; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for table in outcome.tables:
        for ending, text in (("txt", table.text()), ("csv", table.csv()), ("md", table.markdown())):
            file = folder / f"{table.name}.{ending}"
            file.write_text(text, encoding="utf-8")
            files.append(file)
    for picture in outcome.pictures:
        file = folder / f"{picture.name}.svg"
        draw(picture, file)
        files.append(file)
    return files
