"""A load test on the terminal: a plain line for each round, and a last table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from runtime.cpu_split import KINDS
from runtime.text import counted, folded
from secagg.messages import PHASES
from sordino.lab.loadtest.summary import BETWEEN, CAUSES, GROWTH, UNPLANNED, UNSEEN, EndedRound, round_name, seconds_in

_DIM: Final = "bright_black"
_MOST_ROWS: Final = 30
_MOST_REASONS: Final = 3
_SHORT: Final = ("Keys", "Shares", "Input", "Check", "Unmask", "between")
WIDTH: Final = 80
_INDENT: Final = 20


def round_line(ended: EndedRound) -> str:
    again = f", attempt {ended.attempt}" if ended.attempt > 1 else ""
    planned = counted(sum(ended.drops_expected.values()), "planned dropout")
    drops = f"{sum(ended.drops_observed.values())} of {planned} seen" if ended.drops_expected else planned
    if not ended.completed:
        return f"round {ended.round}{again}: aborted after {ended.seconds:.2f} s, {ended.reason}; {drops}"
    verdict = "the sum is right" if ended.sum_ok else "THE SUM IS WRONG"
    return f"round {ended.round}{again}: sum of {ended.survivors} in {ended.seconds:.2f} s, {verdict}; {drops}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style=_DIM)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def round_table(result: Mapping[str, Any]) -> Table:
    """Seconds of each phase, round by round, with what came of it; `final_lines` has the reasons of those aborted."""
    table = _table("round", "inputs", *_SHORT)
    table.add_column("seconds", justify="right", style="bold")
    table.add_column("")
    rounds = result["rounds"]
    for one in rounds[:_MOST_ROWS]:
        phases = one["phase_seconds"]
        verdict = "aborted" if not one["completed"] else "sum right" if one["sum_ok"] else "SUM WRONG"
        table.add_row(
            round_name(one),
            str(one["survivors"]) if one["completed"] else "",
            *(f"{phases[name]:.2f}" if name in phases else "" for name in PHASES),
            f"{seconds_in(one, BETWEEN):.2f}",
            f"{one['seconds']:.2f}",
            Text(verdict, style="cyan" if one["sum_ok"] else "yellow" if one["sum_ok"] is None else "red"),
        )
    if len(rounds) > _MOST_ROWS:
        table.add_row(*[""] * 9, Text(f"and {len(rounds) - _MOST_ROWS} more", style=_DIM))
    table.add_section()
    times = [result["phase_s"][name] for name in (*PHASES, BETWEEN)] + [result["round_s"]]
    for share in ("p50", "p95") if result["rounds_completed"] else ():
        table.add_row(Text(share, style=_DIM), "", *(f"{one[share]:.2f}" for one in times), "")
    return table


def cpu_table(result: Mapping[str, Any]) -> Table:
    """Seconds of the coordinator's CPU in a round, by what spends them and by phase; empty without a sum.

    What follows a phase, until the next one begins, is counted with it.
    """
    table = _table("CPU s a round", *_SHORT[: len(PHASES)], "all")
    table.columns[0].justify = "left"
    for label, kinds in (*((kind, (kind,)) for kind in KINDS), ("all", KINDS)):
        values = [sum(spent[kind] for kind in kinds) for spent in result["phase_cpu_s"].values()]
        table.add_row(label, *(f"{value:.2f}" for value in (*values, sum(values))))
    return table


def final_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    return [
        line
        for label, text in (*_usual_lines(result), *_fault_lines(result))
        for line in folded(text, WIDTH, first=label.ljust(_INDENT), rest=" " * _INDENT)
    ]


def _usual_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    options, plan, drops, lag = result["options"], result["plan"], result["drops"], result["loop_lag_ms"]
    done, aborted = result["rounds_completed"], result["rounds_aborted"]
    graph = "complete" if plan["graph"] == "complete" else f"ring of {plan['degree']}"
    right = "right" if not options["noise"] else "just the noise of its survivors"
    sums = f"{result['sums_ok']} of {counted(done, 'sum')} {right}" if done else "no sums"
    thin = "; thin: they do none of their own work" if options["thin"] else ""
    processes = counted(options["processes"], "process", "processes")
    yield "participants", f"{options['clients']} in {processes}, a TLS channel each{thin}"
    yield (
        "plan",
        f"min_survivors {plan['min_survivors']}, A {plan['A']}; graph {graph}, threshold {plan['threshold']}; keys "
        f"{options['key_agreement']}",
    )
    padded = f"; {plan['padded_dim']:,} travel, as it is padded" if plan["padded_dim"] != options["dim"] else ""
    yield "vector", f"{options['dim']:,} values of {counted(options['bits'], 'bit')}{padded}"
    yield "rounds", f"{done} completed, {aborted} aborted; {sums}"
    for reason, count in result["reasons"].items():
        yield "aborted", f"{count} x {reason}"
    yield (
        "dropouts",
        f"{drops['observed']} of {drops['expected']} planned seen ({options['drop_style']}, at {options['at']}), "
        f"{drops['unplanned']} unplanned{_reasons(drops, UNPLANNED)}",
    )
    if drops["unseen"]:  # with those observed they are all that were planned
        reasons = "; ".join(f"{number} {UNSEEN[name]}" for name, number in drops["unseen"].items())
        yield "", f"{sum(drops['unseen'].values())} unseen: {reasons}"
    if drops["by_cause"]:
        causes = (
            f"{number} {CAUSES[name][number > 1]}{_reasons(drops, name)}" for name, number in drops["by_cause"].items()
        )
        yield "", f"dropped besides: {'; '.join(causes)}"
    yield "", f"{drops['absent']} not back when the next round began"
    if done + aborted < options["rounds"]:
        yield "ended", f"after {done + aborted} of {counted(options['rounds'], 'round')}: {result['study_ended']}"
    if done:
        seconds, up = result["round_s"], result["upload_bytes"]
        yield "round", f"p50 {seconds['p50']:.2f} s, p95 {seconds['p95']:.2f} s, max {seconds['max']:.2f} s"
        yield "upload", f"{up:,} bytes a participant a round, of it the vector {result['vector_bytes']:,}"
        yield "download", f"{result['download_bytes']:,} bytes a participant a round"
    yield (
        "coordinator",
        f"{result['server_cpu_s']:.1f} s CPU, of it {result['server_cpu_s_before_rounds']:.1f} s before the first "
        f"round; {result['server_peak_rss_mb']:.0f} MB at most",
    )
    if lag is not None:
        yield "event loop", f"late by p50 {lag['p50']:.1f} ms, p99 {lag['p99']:.1f} ms, max {lag['max']:.1f} ms"
    yield (
        "client processes",
        f"{result['client_cpu_s']:.1f} s CPU, the largest {result['client_peak_rss_mb']:.0f} MB; "
        f"{result['wall_s']:.0f} s from start to end",
    )
    if (mean := result["round_mean"]) is not None:
        engine = f"its gateways and workers {mean['engine_cpu_s']:.2f} s, " if mean["engine_cpu_s"] else ""
        yield (
            "a round",
            f"takes {mean['wall_s']:.2f} s: the coordinator {mean['server_cpu_s']:.2f} s CPU, {engine}the client "
            f"processes {mean['client_cpu_s']:.2f} s ({mean['participant_cpu_ms']:.1f} ms a participant)",
        )


def _reasons(drops: Mapping[str, Any], cause: str) -> str:
    """Why the coordinator dropped them, in parentheses: the most frequent reasons, and where they differ how often."""
    reasons = [*drops["reasons_by_cause"].get(cause, {}).items()]
    if not reasons:
        return ""
    words = [f"{many} x {why}" if len(reasons) > 1 else why for why, many in reasons[:_MOST_REASONS]]
    if others := sum(many for _, many in reasons[_MOST_REASONS:]):
        words.append(f"{others} for other reasons")
    return f" ({', '.join(words)})"


def _fault_lines(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The effects of the other faults."""
    options, cheats, noise, kills = result["options"], result["cheats"], result["noise"], result["kills"]
    if result["late_answers"]:
        yield "late answers", f"{result['late_answers']}"
    if result["resumed"] or options["resume_s"]:
        resets = result["connections"]["resets"]
        yield "connections", f"{result['resumed']} broke and went on in their round; {resets} were reset by proxies"
    for one in result["disturbances"]:
        if one["seconds"] is not None:
            end = f", all back after {one['seconds']:.1f} s, {one['server_cpu_s']:.1f} s CPU"
        else:
            end = f", {one['back']} of them came back" if one["lost"] else ": no connection broke over it"
        yield one["what"], f"round {one['round']}: {one['struck']} connected, {one['lost']} lost{end}"
    if (grown := result["growth"]) is not None and options["max_growth"] is not None:
        figures = [f"{unit} {grown[name][0]:g} and {grown[name][1]:g}" for name, (unit, _) in GROWTH.items()]
        yield "growth", f"in the second tenth of the rounds and in the last: {', '.join(figures)}"
    if killed := result["engine_kills"]:
        yield "engine's kills", _listed(killed)
    if kills["number"]:
        again = kills["serving_again_s"]
        yield "kills", f"{kills['number']} of the coordinator: {_listed(kills['by_phase'])}"
        yield (
            "",
            f"{kills['attempts_resumed']} of {counted(kills['attempts_hit'], 'attempt')} that were hit after "
            f"MaskedInputCollection began ended in a sum; serving again in {again['p50']:.2f} s (p50), "
            f"{again['max']:.2f} s (max)",
        )
    if cheats["participants"]:
        yield (
            "cheats",
            f"{cheats['participants']}, of them {cheats['excluded']} excluded; of the others "
            f"{len(cheats['honest_excluded'])} excluded, {len(cheats['honest_set_aside'])} set aside",
        )
        ways = (f"{way} {one['excluded']} of {one['participants']} excluded" for way, one in cheats["by_way"].items())
        yield "", "; ".join(ways)
    if noise is not None:
        least, _, most = noise["honest_over_needed"]
        yield (
            "noise",
            f"{noise['ratio']:.4f} times what its shares add up to (standard error {noise['ratio_stderr']:.4f}); "
            f"variance of the honest part over what is needed {least:.3f} to {most:.3f}",
        )
    crashed = kills["number"] or any(one["what"] == "crash" for one in result["disturbances"])
    if result["ledger_rows"] is not None and crashed:
        yield "ledger", f"{counted(result['ledger_rows'], 'row')}, verified"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {number}" for what, number in counts.items())
