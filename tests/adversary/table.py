"""The suite's table: its runs, printed in a terminal and written to docs/threat_model.md."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.adversary.script import COORDINATOR, PARTICIPANT, Naive, Places, Script, Seen

PAGE = Path(__file__).parents[2] / "docs" / "threat_model.md"
BEGIN, END = "<!-- adversary suite: begin -->", "<!-- adversary suite: end -->"
TITLES = {COORDINATOR: "A coordinator that cheats", PARTICIPANT: "Participants that cheat"}
NAIVE = {COORDINATOR: "a client without the check", PARTICIPANT: "a coordinator without the check"}
HEADER = ("script", "what the cheat does", "what has to happen", "ends as")
NAME_WIDTH = 25
PAGE_WIDTH = 120
LONGEST = 140  # characters of one naive side's result
WIDE = 118  # columns; from here on there is room for sentences
# The outcomes, as the page explains them before the tables.
ENDS = {
    "refused": "the participant that was lied to refuses the attempt",
    "refused by policy": "the same, by its own policy",
    "leaves": "its client ends before any round",
    "sits it out": "it takes no part in an attempt that it has joined before, nor in an earlier one",
    "the same answer": "it repeats its earlier bytes, and sends nothing new",
    "no sum": "what was asked for is sent, and no sum opens with it",
    "sum": "all are in a sum, of this round or, if all refused it, the next",
    "sum of the others": "a sum opens without the participants that cheat or refused",
    "aborts, then sum of the others": "an attempt fails, and a later one opens such a sum",
    "shifted sum": "a sum is off by what the cheat added",
}
LAST_COLUMN = """\
**The last column** gives the result without the check: the first broken promise, or how the attempt continued.
*goes on*: what should be refused is accepted, and what is named here is sent. *crashes*, *fails*: an error of Python,
or of the client, instead of a refusal. —: the script does not test a single check. **(possible)** after a name: the
cheat succeeds, and the row gives its effect."""


@dataclass(frozen=True)
class Played:
    """A script with its results: on the real code, and on each naive side in the script's order."""

    script: Script
    seen: Seen
    naive: tuple[Seen, ...]

    @property
    def wrong(self) -> list[str]:
        """Return what is not as stated."""
        found = [self.script.wrong(self.seen)]
        found += [self.script.undetected(*pair) for pair in zip(self.script.check, self.naive, strict=True)]
        return [one for one in found if one is not None]


def play(scripts: Sequence[Script], places: Places, each: Callable[[Played], None] = lambda _: None) -> list[Played]:
    """Run every script, on the real code and on each naive side it names."""

    def once(script: Script, naive: Naive | None = None) -> Seen:
        try:
            return asyncio.run(script.perform(places, naive))
        except Exception as error:  # named in the table; the tests show where it was raised
            trouble = f"{type(error).__name__}: {error}"
            return Seen("ERROR", trouble) if naive is None else Seen(script.outcome, trouble)

    played: list[Played] = []
    for script in scripts:
        played.append(Played(script, once(script), tuple(once(script, naive) for naive in script.check)))
        each(played[-1])
    return played


def loss(seen: Seen) -> str:
    """Return the result of a naive run: the first promise that it breaks, or how it continued."""
    went_on = f"{seen.outcome}: {seen.detail}" if seen.detail else seen.outcome
    return textwrap.shorten(seen.broken[0] if seen.broken else went_on, LONGEST, placeholder=" …")


def losses(played: Played) -> str:
    """Return the results of all its naive sides, equal ones once."""
    return "; ".join(dict.fromkeys(map(loss, played.naive))) or "—"


def sentence(text: str) -> str:
    """Return the text with a capital and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


# ---------------------------------------------------------------- for a terminal


def print_table(console: Console, played: Iterable[Played]) -> None:
    """Print one table for each side, with sentences only where there is room; the page has them all."""
    played = list(played)
    wide = console.width >= WIDE
    for cheat, title in TITLES.items():
        rows = [one for one in played if one.script.cheat == cheat]
        if not rows:
            continue
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_lines=wide)
        table.add_column("script", width=NAME_WIDTH, no_wrap=True)
        if wide:
            table.add_column("what the cheat does", ratio=9)
            table.add_column("has to happen", ratio=8)
            table.add_column("seen", ratio=4)
        else:
            table.add_column("seen, as it has to be", max_width=18)
        table.add_column(NAIVE[cheat], ratio=7)
        for one in rows:
            script, ok = one.script, not one.wrong
            name = f"{script.name} (possible)" if script.documented_as_possible else script.name
            came_out = one.seen.outcome if ok else "; ".join((one.seen.outcome, one.seen.detail, *one.seen.broken))
            if wide:
                middle = [sentence(script.does), f"{script.outcome}: {sentence(script.must)}", came_out]
            else:
                middle = [came_out if ok else f"{came_out} (has to be: {script.outcome})"]
            cells = ["\n".join(textwrap.wrap(name, NAME_WIDTH)), *middle, losses(one)]
            table.add_row(*map(escape, cells), style="" if ok else "bold red")
        console.print(table)
    for one in played:
        for wrong in one.wrong:
            console.print(f"[bold red]wrong[/] {escape(wrong)}")
    naive = sum(len(one.naive) for one in played)
    bad = sum(1 for one in played if one.wrong)
    console.print(
        f"{len(played)} scripts, {naive} runs with a check taken out: "
        + ("all as stated." if not bad else f"[bold red]{bad} not as stated.[/]")
    )
    if not wide:
        console.print(f"What each of them does: docs/threat_model.md, or a terminal of {WIDE} columns.")


# ---------------------------------------------------------------- for the page


def plain(text: str) -> str:
    """Return the text as a cell of Markdown, without what differs from run to run."""
    text = re.sub(r"\bparticipants? \d+( and \d+)?", "a participant", text)
    text = re.sub(r"\b(signature|channel key|mask key) of \d+\b(?! bytes)", r"\1 of a participant", text)
    return " ".join(text.replace("|", "\\|").split())


def static_cells(script: Script) -> tuple[str, str, str, str]:
    """Return the cells that follow from the script alone."""
    name = f"`{script.name}`" + (" (possible)" if script.documented_as_possible else "")
    return name, plain(sentence(script.does)), plain(sentence(script.must)), script.outcome


def legend() -> str:
    """Explain the words in the last two columns."""
    ends = "; ".join(f"*{word}*: {meaning}" for word, meaning in ENDS.items())
    return textwrap.fill(f"**Ends as**: {ends}.", PAGE_WIDTH, break_on_hyphens=False) + f"\n\n{LAST_COLUMN}"


def markdown(scripts: Iterable[Script], last: Mapping[str, str]) -> str:
    """Return the generated part of the page; ``last`` holds the last cell of each row by the script's name."""
    scripts = list(scripts)
    lines = [*legend().splitlines(), ""]
    for cheat, title in TITLES.items():
        rows = [one for one in scripts if one.cheat == cheat]
        if rows:
            lines += [f"### {title}: {len(rows)} scripts", ""]
            lines += [f"| {' | '.join((*HEADER, NAIVE[cheat]))} |", "|---" * (len(HEADER) + 1) + "|"]
            lines += [f"| {' | '.join((*static_cells(one), last[one.name]))} |" for one in rows]
            lines.append("")
    return "\n".join(lines)


def on_page() -> dict[str, list[str]]:
    """The cells of each row between the markers, by the script's name."""
    text = PAGE.read_text(encoding="utf-8")
    part = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("| `")]
    return {row[0].split("`")[1]: [cell.strip() for cell in row] for row in rows}


def write(scripts: Iterable[Script], played: Iterable[Played]) -> None:
    """Put the generated part into the page; scripts that were not played keep what the page says of them.

    Raises:
        KeyError: the page says nothing of one that was not played.
    """
    last = {name: cells[-1] for name, cells in on_page().items()}
    last |= {one.script.name: plain(losses(one)) for one in played}
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n{markdown(scripts, last)}\n{after}", encoding="utf-8")
