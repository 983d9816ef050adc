"""Bounds on a load test's result; a broken bound ends with exit code 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.text import counted
from sordino.lab.loadtest.options import LoadOptions


def broken_bounds(result: Mapping[str, Any], options: LoadOptions) -> list[str]:
    """One sentence for each broken bound, with the bound and the figure.

    A wrong sum is always one, and so are a ledger that doesn't verify and an honest participant that was excluded.
    """
    return [*_always(result), *_asked_for(result, options)]


def _always(result: Mapping[str, Any]) -> Iterator[str]:
    if wrong := result["sums_wrong"]:
        sums = counted(result["rounds_completed"], "sum")
        what = "not the noise of" if result["options"]["noise"] else "not that of"
        rounds = ", ".join(map(str, wrong))
        yield f"{len(wrong)} of {sums} {'is' if len(wrong) == 1 else 'are'} {what} the survivors: round {rounds}"
    if result.get("ledger_error"):
        yield f"the coordinator's ledger doesn't verify: {result['ledger_error']}"
    if honest := result["cheats"]["honest_excluded"]:
        participants, were = counted(len(honest), "participant"), "was" if len(honest) == 1 else "were"
        yield f"{participants} that didn't cheat {were} excluded: number {', '.join(map(str, honest))}"


def _asked_for(result: Mapping[str, Any], options: LoadOptions) -> Iterator[str]:
    p95, done = result["round_s"]["p95"], result["rounds_completed"]
    if options.max_p95_s is not None:
        bound = f"{options.max_p95_s:g} s"
        if p95 is None:
            yield f"--max-p95 asks for rounds of at most {bound}, and no round was completed"
        elif p95 > options.max_p95_s:
            yield f"the p95 round took {p95:g} s, --max-p95 allows {bound}"
    rounds = counted(options.rounds, "round")
    if options.min_completed is not None and done < options.min_completed:
        yield f"{done} of {rounds} completed, --min-completed asks for {options.min_completed}"
    if options.min_share is not None and done < options.min_share * options.rounds - 1e-9:
        yield f"{done} of {rounds} completed, --min-share asks for {100 * options.min_share:g} %"
    peak = result["server_peak_rss_mb"]
    if options.max_rss_mb is not None and peak > options.max_rss_mb:
        yield f"the coordinator took {peak:g} MB, --max-rss allows {options.max_rss_mb:g} MB"
    unplanned = result["drops"]["unplanned"]
    if options.max_unplanned is not None and unplanned > options.max_unplanned:
        yield f"{counted(unplanned, 'unplanned dropout')}, --max-unplanned allows {options.max_unplanned}"
    if options.noise_within is not None:
        noise = result["noise"]
        if noise is None:
            yield "--noise-within asks for noise that can be measured, and no round was completed"
        elif abs(noise["ratio"] - 1) > options.noise_within:
            yield (
                f"the noise is {noise['ratio']:g} times what was planned (standard error {noise['ratio_stderr']:g}), "
                f"--noise-within allows {options.noise_within:g} either way"
            )
