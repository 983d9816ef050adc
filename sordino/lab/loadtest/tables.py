"""Print the load-test tables of docs/operations.md: 5, 10, 20 and 30 % leave at each single phase, in both styles.

    python -m sordino.lab.loadtest.tables [OPTION ...]

Each row is a separate run of ``sordino loadtest --json`` with these options and its --drop, --at and --drop-style.
Rounds and broken bounds go to standard error. An interrupted run ends the tables, and the rows so far are printed. The
exit code is that of the last run, or 1 where an earlier run broke a bound.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.text import counted
from sordino.lab.loadtest.faults import PHASE_NAMES

STYLES: Final = ("disconnect", "silent")
SHARES: Final = (0.05, 0.1, 0.2, 0.3)
_OK, _BOUND = 0, 1


def main(arguments: Sequence[str]) -> int:
    """Run every row and print the tables; returns the exit code."""
    signal.signal(signal.SIGINT, lambda number, frame: None)  # the run under way ends with the result so far
    results: list[dict[str, Any]] = []
    code = _OK
    for style, at, share in itertools.product(STYLES, PHASE_NAMES, SHARES):
        print(f"{style}, {at}, {100 * share:g} %", file=sys.stderr, flush=True)
        row = ["--drop-style", style, "--at", at, "--drop", str(share)]
        command = [sys.executable, "-m", "sordino", "loadtest", "--json", *arguments, *row]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        code = ended.returncode or code
        result = json.loads(ended.stdout or "{}")
        if "rounds_completed" in result:
            results.append(result)
        if ended.returncode not in (_OK, _BOUND):
            print(f"Incomplete: this run ended with code {code}.", file=sys.stderr)
            break
    by_style = itertools.groupby(results, lambda result: result["options"]["drop_style"])
    print("\n\n".join(table(list(runs)) for _, runs in by_style))
    return code


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Runs as a Markdown table, one in each row, below a line with what they have in common.

    ``results``: of `run_load_test`, at least one.
    """
    common, plan = results[0]["options"], results[0]["plan"]
    padded = f" ({plan['padded_dim']:,} sent)" if plan["padded_dim"] != common["dim"] else ""
    lines = [
        f"{common['clients']} participants in {counted(common['processes'], 'process', 'processes')}, "
        f"{common['dim']:,} values of {counted(common['bits'], 'bit')}{padded}, {counted(common['rounds'], 'round')} a "
        f"row; drop style {common['drop_style']}, deadline of each phase {common['deadline_s']:g} s. *Seen* are those "
        "that the coordinator recorded as dropouts: the consistency check ends as soon as enough participants have "
        "signed, unmasking as soon as enough shares have arrived.",
        "",
        "| leave at | share | rounds completed | sums right | aborted, with the reason | dropouts seen / planned "
        "| round p50 s | p95 s |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for result in results:
        options, seconds, drops = result["options"], result["round_s"], result["drops"]
        cells = (
            options["at"],
            f"{100 * options['drop']:g} %",
            f"{result['rounds_completed']} of {options['rounds']}",
            str(result["sums_ok"]),
            ", ".join(f"{count} x {reason}" for reason, count in result["reasons"].items()) or "none",
            f"{drops['observed']} / {drops['expected']}",
            *("-" if seconds[share] is None else f"{seconds[share]:.2f}" for share in ("p50", "p95")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
