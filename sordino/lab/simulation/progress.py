"""Progress of a simulation, a moving line on a terminal and plain lines elsewhere, and its results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from learning.progress import Best
from mechanisms.statement import POISSON
from runtime.text import counted
from sordino.lab.simulation.record import ABORTED, ROUND
from sordino.reporting.statistic_text import figure_words, headline, table_rows
from sordino.reporting.study_text import best_text, reported_figures, reported_text
from wire.ending import ABORTED as ROUND_ABORTED
from wire.guarantee import unspent

_MOST_VALUES: Final = 32
_BETWEEN_LINES_S: Final = 1.0  # off a terminal, where a quick simulation would fill a log


class SimulationProgress:
    """Prints a simulation's start and its rows; a context manager. ``console``: for tests."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("round {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(bar_width=16, complete_style="cyan", finished_style="cyan"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left", style="bright_black"),
            console=self._console,
            disable=quiet or not self._console.is_terminal or self._console.is_dumb_terminal,
        )
        self._rounds = 0
        self._last_line = float("-inf")
        self._figures = ""
        self._done = 0

    @property
    def reached(self) -> str:
        """Return the progress in words: ``after round 3 of 10``."""
        return f"after round {self._done} of {self._rounds}" if self._done else "before the first round was done"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._bar.disable:  # a bar that isn't shown would still end with an empty line
            self._bar.stop()

    def start(self, configuration: Mapping[str, Any], done: int) -> None:
        """Print what is simulated, and how many rounds were done before."""
        self._rounds, self._done = int(configuration["settings"]["study"]["rounds"]), done
        if self._quiet:
            return
        for at, line in enumerate(heading(configuration)):
            style = "bold" if at == 0 else "bold red" if line.startswith("NOT PRIVATE") else ""
            self._console.print(Text(line, style=style))
        if done:
            sentence = (
                f"Goes on after round {done}." if done < self._rounds else "Finished before; nothing is run again."
            )
            self._console.print(Text(sentence))
        if done < self._rounds:
            self._task = self._bar.add_task("", total=self._rounds, completed=done, figures="")
            self._bar.start()

    def row(self, row: Mapping[str, Any]) -> None:
        if row["kind"] == ROUND:
            self._done = int(row["round"])
        if self._quiet:
            return
        if row["kind"] == ABORTED:
            self._console.print(Text(f"round {row['round']}, attempt {row['attempt']}: aborted, {row['reason']}"))
            return
        judged = figures_line(row)
        self._figures = judged or self._figures
        if not self._bar.disable:
            self._bar.update(self._task, completed=row["round"], figures=self._figures)
            return
        now, last = time.monotonic(), row["round"] == self._rounds
        if last or now - self._last_line >= _BETWEEN_LINES_S:
            self._last_line = now
            survived = f"{row['survivors']} of {row['participants']} survived"
            line = f"round {row['round']} of {self._rounds}: {self._figures}, {survived}, {row['wall_s']:.2f} s"
            self._console.print(Text(line))


def heading(configuration: Mapping[str, Any]) -> list[str]:
    """Return what is simulated, one line per fact."""
    settings = configuration["settings"]
    study = settings["study"]
    people = counted(study["participants"], "participant")
    if study["sampling"] != "none":
        people = f"{study['cohort']} of {people} a round ({study['sampling']})"
    noise = f"Privacy: {study['mechanism']}, {configuration['privacy']}."
    lines = [
        f"Simulation: {study['task']}, {people}, {counted(study['rounds'], 'round')}",
        noise if configuration["private"] else f"{configuration['privacy']}.",
        f"Secure aggregation: {configuration['secure_aggregation']}.",
    ]
    if settings["drop"]:
        how = "each by chance" if settings["drop_law"] == "independent" else "exactly"
        lines.append(f"Dropouts: {settings['drop'] * 100:g} % of a round, {how}.")
    return lines


def figures_line(row: Mapping[str, Any]) -> str:
    """Return accuracy, loss and errors, or statistic, and epsilon, where they exist."""
    found = []
    statistic = headline(row["released"])
    if row["accuracy"] is not None:
        found.append(f"accuracy {row['accuracy']:.4f}")
    elif row["loss"] is not None:
        found.append(f"loss {row['loss']:.4g}")
    found += [f"{name} {value}" for name, value in figure_words(row.get("figures", {}))]
    if row["reported"]:
        found.append(reported_text(row["reported"]))
    if statistic:
        found.append(statistic)
    epsilon = row["epsilon_coordinator"]
    found.append(f"epsilon {epsilon:.3f}" if epsilon is not None and epsilon != float("inf") else "no privacy")
    return ", ".join(found)


def closing(configuration: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    """Return the results, one line per figure."""
    chosen = configuration["settings"]
    rounds = chosen["study"]["rounds"]
    lines = [f"{summary['outcome']}: {summary['rounds_completed']} of {rounds}"]
    if summary["outcome"] == ROUND_ABORTED:
        drop, planned = chosen["drop"], chosen["study"]["max_dropout"]
        sentence = "too few were left: lower min_survivors if it was chosen, else plan for a larger max_dropout"
        if drop > planned:
            sentence = f"--drop {drop:g} is above --max-dropout {planned:g}: plan for as many as leave"
        lines.append(f"            {sentence}")
    if summary["accuracy"] is not None:
        lines.append(f"accuracy    {summary['accuracy']:.4f} after round {summary['evaluated_after']}")
    if summary["loss"] is not None:
        lines.append(f"loss        {summary['loss']:.4f}")
    lines += [f"{name:<23} {value}" for name, value in figure_words(summary.get("figures", {}))]
    said = summary["reported"]
    if said:
        lines.append(f"reported    {', '.join(map(' '.join, reported_figures(said)))} at participants")
    for name, shares in summary.get("of_each", {}).items():
        lines.append(
            f"{'of each':<11} {name} at most {shares['0.1']:.4g} at a tenth of the participants, "
            f"{shares['0.5']:.4g} at half, {shares['0.9']:.4g} at nine tenths"
        )
    best = None if summary["best"] is None else Best(**summary["best"])
    if best is not None and 0 < best.round < summary["rounds_completed"]:
        lines.append(f"best        {best_text(best)}")
    for name, value, error in table_rows(summary["released"])[:_MOST_VALUES]:
        lines.append(f"{name:<11} {value} {error}".rstrip())
    # Only a simulation knows which values lie beyond a statistic's bounds, and how many trainings diverged.
    for one in summary.get("beyond_bounds", [])[:_MOST_VALUES]:
        lines.append(
            f"{'beyond':<11} {one['beyond']:,} of {one['values']:,} values of {one['name']} lie beyond its bounds and "
            "count as the bound"
        )
    if chosen["data"] is not None and not chosen["study"]["test"] and not summary["released"]:
        lines.append("evaluation  none: name a file to evaluate the model on with --test")
    if not configuration["private"]:
        lines.append("epsilon     infinite: NOT PRIVATE")
    else:
        at = f" at delta {summary['delta']:g}"
        spent, plan = summary["epsilon_coordinator"], configuration["plan"]
        lines += [f"epsilon     {_epsilon(spent)}{at},", f"            {configuration['guarantee']}"]
        if plan["target"] == "coordinator" and spent is not None and summary["rounds_completed"] == rounds:
            left = unspent(spent, plan["budget_coordinator"], plan)
            lines += [f"            of {plan['budget_coordinator']:g}: {left}"] if left else []
        coins = chosen["study"]["sampling"] == POISSON
        if summary["epsilon_released"] != summary["epsilon_coordinator"] and not coins:
            lines.append(f"            {_epsilon(summary['epsilon_released'])} for readers of what is released")
        if "epsilon_conditional" in summary:
            condition = "for readers of what is released" if coins else "if all were drawn independently"
            lines.append(f"            {_epsilon(summary['epsilon_conditional'])} {condition}")
    if summary["survivors"] is not None:
        aborted = summary["aborted_attempts"]
        lines.append(
            f"survivors   {summary['survivors']:.1f} a round"
            + (f"; {counted(aborted, 'attempt')} aborted" if aborted else "")
        )
    diverged, of = summary.get("diverged", 0), summary.get("contributions", 0)
    if diverged:
        step = "--client-rate" if "client_rate" in chosen["study"]["task_options"] else "the step of the task"
        lines.append(
            f"diverged    {'every one' if diverged == of else f'{diverged:,}'} of {of:,} local trainings gave NaN or "
            f"infinity and went in as zeros: lower {step}"
        )
    spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary["seconds"].items() if seconds >= 0.05)
    lines.append(f"seconds     {summary['wall_s']:.1f}" + (f"; of all rounds: {spent}" if spent else ""))
    return lines


def _epsilon(value: float | None) -> str:
    return "beyond what can be stated" if value is None or value == float("inf") else f"{value:.3f}"
