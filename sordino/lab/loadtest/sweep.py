"""The same load with 5, 10, 20 and 30 % leaving at each single phase, as one table for each way to leave."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.failure import ExitCode, Failure
from runtime.text import counted
from sordino.lab.loadtest.display import LoadDisplay
from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.run import run_load_test
from sordino.lab.loadtest.schedule import PHASE_NAMES

SHARES: Final = (0.05, 0.1, 0.2, 0.3)


def run_sweep(options: LoadOptions, display: LoadDisplay, styles: Sequence[str] = ()) -> dict[str, Any]:
    """Run every combination, each with processes of its own; ``options.out`` gets one folder for each and the table.

    A run that is cut short ends the sweep.

    Args:
        options: ``drop`` and ``at`` are replaced.
        display: shows each in turn; entered by the caller.
        styles: ways to leave, one after the other; by default that of the options.

    Returns:
        ``runs`` as of `run_load_test`; ``broken`` and ``incomplete`` as there, each naming its row; ``exit_code``.

    Raises:
        Failure: as `run_load_test`, for the first run.
        KeyboardInterrupt: in the first run, before any process was started.
    """
    out = options.out
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Failure(ExitCode.INPUT, f"{out} is not empty. Name a folder that is new or empty.")
    results: list[dict[str, Any]] = []
    incomplete, code = None, int(ExitCode.OK)
    styles = styles or (options.drop_style,)
    for style, at, share in itertools.product(styles, PHASE_NAMES, SHARES):
        row = _row(style if len(styles) > 1 else "", at, share)
        name = f"{at}-{round(100 * share)}" if len(styles) == 1 else f"{style}-{at}-{round(100 * share)}"
        folder = None if out is None else out / name
        display.say(f"{100 * share:g} % {style} at {at}")
        try:
            result = run_load_test(
                dataclasses.replace(options, drop_style=style, at=at, drop=share, out=folder), display
            )
        except (Failure, KeyboardInterrupt) as error:
            if not results:
                raise
            incomplete = f"{row}: {error.message if isinstance(error, Failure) else 'interrupted'}"
            code = int(error.code if isinstance(error, Failure) else ExitCode.INTERRUPTED)
            break
        results.append(result)
        if result["incomplete"] is not None:
            incomplete, code = f"{row}: {result['incomplete']}", result["exit_code"]
            break
    broken = [
        f"{_row(one['options']['drop_style'] if len(styles) > 1 else '', one['options']['at'], one['options']['drop'])}"
        f": {sentence}"
        for one in results
        for sentence in one["broken"]
    ]
    if broken and incomplete is None:
        code = int(ExitCode.BOUND)
    sweep = {"runs": results, "broken": broken, "incomplete": incomplete, "exit_code": code}
    if out is not None:
        (out / "sweep.md").write_text(markdown(results, incomplete) + "\n")
        (out / "sweep.json").write_text(json.dumps(sweep, indent=1) + "\n")
    return sweep


def _row(style: str, at: str, share: float) -> str:
    return ", ".join(filter(None, (style, at, f"{100 * share:g} %")))


def markdown(results: Sequence[Mapping[str, Any]], incomplete: str | None = None) -> str:
    """A table of runs for each way to leave, one a row, under a line that says what they have in common.

    ``incomplete`` is why there are no more of them, and stands below.

    Raises:
        ValueError: no runs.
    """
    if not results:
        raise ValueError("no runs")
    lines: list[str] = []
    for _, runs in itertools.groupby(results, lambda one: one["options"]["drop_style"]):
        lines += [*([""] if lines else []), *_table(list(runs))]
    if incomplete is not None:
        lines += ["", f"Incomplete. {incomplete}."]
    return "\n".join(lines)


def _table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    common, plan = results[0]["options"], results[0]["plan"]
    lines = [
        f"{common['clients']} participants in {counted(common['processes'], 'process', 'processes')}, "
        f"{common['dim']:,} values of {counted(common['bits'], 'bit')}"
        + (f" ({plan['padded_dim']:,} travel), " if plan["padded_dim"] != common["dim"] else ", ")
        + f"{counted(common['rounds'], 'round')} a row; drop style "
        f"{common['drop_style']}, deadline of each phase {common['deadline_s']:g} s. *Seen* is what the coordinator "
        "noted as dropouts: the consistency check goes on as soon as enough have signed, unmasking as soon as enough "
        "shares are there.",
        "",
        "| leave at | share | rounds completed | sums right | aborted, with the reason | dropouts seen / planned "
        "| round p50 s | p95 s |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for result in results:
        options, seconds, drops = result["options"], result["round_s"], result["drops"]
        reasons = ", ".join(f"{count} x {reason}" for reason, count in result["reasons"].items())
        cells = (
            options["at"],
            f"{100 * options['drop']:g} %",
            f"{result['rounds_completed']} of {options['rounds']}",
            str(result["sums_ok"]),
            reasons or "none",
            f"{drops['observed']} / {drops['expected']}",
            *("-" if seconds[share] is None else f"{seconds[share]:.2f}" for share in ("p50", "p95")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines
