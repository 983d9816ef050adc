"""What an experiment leaves: tables, figures, choices and notes, written into a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sordino.lab.experiments.curves import Picture, draw
from sordino.lab.experiments.run_pool import ExperimentError
from sordino.lab.experiments.selection import Choice
from sordino.lab.experiments.tables import Table, shown

SMALL, PAPER = "small", "paper"
SCALES: Final = (SMALL, PAPER)


@dataclass(frozen=True)
class Outcome:
    """How an experiment came out.

    Attributes:
        notes: what was simulated and what figures mean, one line each.
        tables, pictures: in the order to be read.
        choices: hyper-parameters, with the grids that they come from.
    """

    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    choices: Sequence[Choice] = ()

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded; tables as columns and rows of text beside the CSV files."""
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
    """What was asked for.

    Attributes:
        scale: "small" or "paper".
        seeds: of the results, one or more, none of `selection.SEEDS`.
        data: names of data sets by kind ("images", "colour", "text"); what is left out takes the scale's own.
        sizes: changes of the scale's numbers by name, for tests.
        parts: of the experiment; empty for all.
    """

    scale: str = SMALL
    seeds: Sequence[int] = (1, 2, 3)
    data: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def images(self, usual: str) -> str:
        """The data set of images: what was asked for, else the scale's own.

        Raises:
            ExperimentError: the papers' size, and nobody has said where their data lie.
        """
        found = self.data.get("images", usual)
        if not found:
            raise ExperimentError(
                "the papers' size takes FEMNIST, which can't be had here: get it and name it, --data femnist:PATH"
            )
        return found

    def partition(self, data: str) -> str:
        """How a data set is cut: by its own users where it says whose each example is, else by Dirichlet."""
        from learning.datasets import load_users

        return "dirichlet" if load_users(data) is None else "natural"

    def wants(self, part: str) -> bool:
        """Whether a part is to be played."""
        return not self.parts or part in self.parts


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Each table as .txt, .csv and .md, and each figure as .svg.

    Returns:
        The files.
    """
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
