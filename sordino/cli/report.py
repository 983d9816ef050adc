"""``sordino report``: write a study's report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from runtime.failure import ExitCode
from runtime.text import counted
from sordino.cli.verbs import Json, answer, argument, epilog, option

HELP = (
    "Write a study's report.html from what its coordinator recorded.\n\nIt shows accuracy or the statistic, the "
    "privacy spent and on which assumptions, dropouts, phase times, and the plan in plain words. The page is one file, "
    "needs no network, and can be printed. It may be written while the study runs; a study whose ledger was changed "
    "gets none."
)
_FIGURES = ("accuracy", "errors", "released", "epsilon_coordinator", "epsilon_released")
EPILOG = epilog("report my-study", ExitCode.LEDGER)


def run(
    directory: Annotated[Path, argument("DIR", "The study's folder, or its study.toml.")],
    output: Annotated[Path | None, option("FILE", "Where to write.", shown="DIR/report.html")] = None,
    as_json: Json = False,
) -> int:
    from mechanisms.mechanism import DESCRIPTIONS
    from sordino.reporting.report import write_report

    path, view = write_report(directory, output)
    described = DESCRIPTIONS.get(str(view.started.plan.get("mechanism", "")))
    body = {
        "report": str(path.resolve()),
        "rounds": len(view.rounds),
        **{name: getattr(view, name) for name in _FIGURES},
        "delta": view.started.delta,
        "mechanism": view.started.plan.get("mechanism"),
        "adjacency": None if described is None else described.adjacency,
        "A": view.started.plan.get("colluders"),
    }
    return answer(as_json, body, [f"Wrote {path} ({len(view.rounds)} of {counted(view.started.rounds, 'round')})."])
