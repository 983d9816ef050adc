"""A load test on the terminal: a plain line for each round, and a last table."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from runtime.cpu_split import KINDS
from runtime.text import counted
from secagg.messages import PHASES
from sordino.lab.loadtest.summary import BETWEEN, CAUSES, UNPLANNED, UNSEEN, EndedRound, round_name, seconds_in

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


def round_table(result: Mapping[str, Any]) -> Table:
    """Seconds of each phase, round by round, with what came of it; `final_lines` has the reasons of those aborted."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style=_DIM)
    table.add_column("round", justify="right")
    table.add_column("inputs", justify="right")
    for name in _SHORT:
        table.add_column(name, justify="right")
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
    times = result["phase_s"]
    for share in ("p50", "p95"):
        if result["round_s"][share] is not None:
            table.add_row(
                Text(share, style=_DIM),
                "",
                *(f"{times[name][share]:.2f}" for name in (*PHASES, BETWEEN)),
                f"{result['round_s'][share]:.2f}",
                "",
            )
    return table


def cpu_table(result: Mapping[str, Any]) -> Table:
    """Seconds of the coordinator's CPU in a round, by what spends them and by phase; empty without a sum.

    What follows a phase, until the next one begins, is counted with it.
    """
    split = result["phase_cpu_s"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style=_DIM)
    table.add_column("CPU s a round")
    for name in (*_SHORT[: len(PHASES)], "all"):
        table.add_column(name, justify="right")
    for label, kinds in (*((kind, (kind,)) for kind in KINDS), ("all", KINDS)):
        values = [sum(spent[kind] for kind in kinds) for spent in split.values()]
        table.add_row(label, *(f"{value:.2f}" for value in (*values, sum(values))))
    return table


def final_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    options, plan, drops, lag = result["options"], result["plan"], result["drops"], result["loop_lag_ms"]
    done, aborted = result["rounds_completed"], result["rounds_aborted"]
    graph = "complete" if plan["graph"] == "complete" else f"ring of {plan['degree']}"
    right = "right" if not options["noise"] else "just the noise of its survivors"
    sums = f"{result['sums_ok']} of {counted(done, 'sum')} {right}" if done else "no sums"
    lines = [
        f"participants        {options['clients']} in {counted(options['processes'], 'process', 'processes')}, "
        f"a TLS channel each{'; thin: they do none of their own work' if options['thin'] else ''}",
        f"plan                min_survivors {plan['min_survivors']}, A {plan['A']}; graph {graph}, threshold "
        f"{plan['threshold']}; keys {options['key_agreement']}",
        f"vector              {options['dim']:,} values of {counted(options['bits'], 'bit')}"
        + (f"; {plan['padded_dim']:,} travel, as it is padded" if plan["padded_dim"] != options["dim"] else ""),
        f"rounds              {done} completed, {aborted} aborted; {sums}",
        *(f"aborted             {count} x {reason}" for reason, count in result["reasons"].items()),
        f"dropouts            {drops['observed']} of {drops['expected']} planned seen ({options['drop_style']}, "
        f"at {options['at']}), {drops['unplanned']} unplanned{_reasons(drops, UNPLANNED)}",
        *_unseen_lines(drops),
        *_cause_lines(drops),
        f"                    {drops['absent']} not back when the next round began",
    ]
    if done + aborted < options["rounds"]:
        asked = counted(options["rounds"], "round")
        lines.append(f"ended               after {done + aborted} of {asked}: {result['study_ended']}")
    if done:
        seconds = result["round_s"]
        lines += [
            f"round               p50 {seconds['p50']:.2f} s, p95 {seconds['p95']:.2f} s, max {seconds['max']:.2f} s",
            f"upload              {result['upload_bytes']:,} bytes a participant a round, of it the vector "
            f"{result['vector_bytes']:,}",
            f"download            {result['download_bytes']:,} bytes a participant a round",
        ]
    lines.append(
        f"coordinator         {result['server_cpu_s']:.1f} s CPU, of it {result['server_cpu_s_before_rounds']:.1f} s "
        f"before the first round; {result['server_peak_rss_mb']:.0f} MB at most"
    )
    if lag is not None:
        lines.append(
            f"event loop          late by p50 {lag['p50']:.1f} ms, p99 {lag['p99']:.1f} ms, max {lag['max']:.1f} ms"
        )
    lines.append(
        f"client processes    {result['client_cpu_s']:.1f} s CPU, the largest {result['client_peak_rss_mb']:.0f} MB; "
        f"{result['wall_s']:.0f} s from start to end"
    )
    if (mean := result["round_mean"]) is not None:
        engine = f"its gateways and workers {mean['engine_cpu_s']:.2f} s, " if mean["engine_cpu_s"] else ""
        lines.append(
            f"a round             takes {mean['wall_s']:.2f} s: the coordinator {mean['server_cpu_s']:.2f} s CPU, "
            f"{engine}the client processes {mean['client_cpu_s']:.2f} s "
            f"({mean['participant_cpu_ms']:.1f} ms a participant)"
        )
    lines += _fault_lines(result)
    return [part for line in lines for part in _folded(line)]


def _cause_lines(drops: Mapping[str, Any]) -> list[str]:
    """Dropouts that other faults explain."""
    if not drops["by_cause"]:
        return []
    causes = "; ".join(
        f"{number} {CAUSES[name][number > 1]}{_reasons(drops, name)}" for name, number in drops["by_cause"].items()
    )
    return [" " * _INDENT + f"dropped besides: {causes}"]


def _reasons(drops: Mapping[str, Any], cause: str) -> str:
    """Why the coordinator dropped them, in parentheses: the most frequent reasons, and where they differ how often."""
    reasons = [*drops["reasons_by_cause"].get(cause, {}).items()]
    if not reasons:
        return ""
    words = [f"{many} x {why}" if len(reasons) > 1 else why for why, many in reasons[:_MOST_REASONS]]
    if others := sum(many for _, many in reasons[_MOST_REASONS:]):
        words.append(f"{others} for other reasons")
    return f" ({', '.join(words)})"


def _fault_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the effects of the other faults, one line each; empty without faults."""
    options, cheats, noise = result["options"], result["cheats"], result["noise"]
    lines = []
    if result["late_answers"]:
        lines.append(f"late answers        {result['late_answers']}")
    if result["resumed"] or options["resume_s"]:
        lines.append(
            f"connections         {result['resumed']} broke and went on in their round; "
            f"{result['connections']['resets']} were reset by proxies"
        )
    for one in result["disturbances"]:
        when = f"{one['what']:<19} round {one['round']}: {one['struck']} connected, {one['lost']} lost"
        if one["seconds"] is not None:
            lines.append(f"{when}, all back after {one['seconds']:.1f} s, {one['server_cpu_s']:.1f} s CPU")
        elif not one["lost"]:
            lines.append(f"{when}: no connection broke over it")
        else:
            lines.append(f"{when}, {one['back']} of them came back")
    if (grown := result["growth"]) is not None and options["max_growth"] is not None:
        figures = [
            f"{label} {grown[name][0]:g} and {grown[name][1]:g}"
            for name, label in (
                ("server_rss_mb", "MB"),
                ("server_files", "files"),
                ("server_tasks", "tasks"),
                ("seconds", "seconds a round"),
                ("journal_bytes", "bytes of journal a round"),
            )
        ]
        lines.append(f"growth              in the second tenth of the rounds and in the last: {', '.join(figures)}")
    if killed := result["engine_kills"]:
        lines.append("engine's kills      " + ", ".join(f"{what} {number}" for what, number in killed.items()))
    if (kills := result["kills"])["number"]:
        again = kills["serving_again_s"]
        lines.append(
            f"kills               {kills['number']} of the coordinator: "
            + ", ".join(f"{phase} {number}" for phase, number in kills["by_phase"].items())
        )
        lines.append(
            " " * _INDENT + f"{kills['attempts_resumed']} of {counted(kills['attempts_hit'], 'attempt')} that were hit "
            f"after MaskedInputCollection began ended in a sum; serving again in {again['p50']:.2f} s (p50), "
            f"{again['max']:.2f} s (max)"
        )
    if cheats["participants"]:
        lines.append(
            f"cheats              {cheats['participants']}, of them {cheats['excluded']} excluded; of the others "
            f"{len(cheats['honest_excluded'])} excluded, {len(cheats['honest_set_aside'])} set aside"
        )
        ways = "; ".join(
            f"{way} {found['excluded']} of {found['participants']} excluded" for way, found in cheats["by_way"].items()
        )
        lines.append(" " * _INDENT + ways)
    if noise is not None:
        least, _, most = noise["honest_over_needed"]
        lines.append(
            f"noise               {noise['ratio']:.4f} times what its shares add up to (standard error "
            f"{noise['ratio_stderr']:.4f}); variance of the honest part over what is needed {least:.3f} to {most:.3f}"
        )
    if result["ledger_rows"] is not None and (
        kills["number"] or any(one["what"] == "crash" for one in result["disturbances"])
    ):
        lines.append(f"ledger              {counted(result['ledger_rows'], 'row')}, verified")
    return lines


def _folded(line: str) -> list[str]:
    """Under its second column, where it is longer than a terminal is wide."""
    head, text = line[:_INDENT], line[_INDENT:]
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT, break_on_hyphens=False)


def _unseen_lines(drops: Mapping[str, Any]) -> list[str]:
    """Return what happened to the planned dropouts that were not observed; observed and unobserved add up to all
    planned.
    """
    if not drops["unseen"]:
        return []
    reasons = "; ".join(f"{number} {UNSEEN[name]}" for name, number in drops["unseen"].items())
    return [" " * _INDENT + f"{sum(drops['unseen'].values())} unseen: {reasons}"]
