"""The live panel of ``demo`` and ``serve`` on a terminal; plain lines elsewhere. For 100 x 30, and fits 80 x 24."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from runtime.text import clock_text, counted, say
from secagg.messages import PHASES
from server.events import Event, ParticipantDropped
from server.study_view import StudyView, waiting
from sordino.reporting.statistic_text import HISTOGRAM, figure_words, headline, values_of
from sordino.reporting.study_text import PlainLines, dropout_groups, people, reported_figures, size_text
from wire.guarantee import guarantee

_ENROLLED: Final = "participant-"  # prefix of the names of hosts that enrolled without a name
_HOST_ROWS: Final = 10
_LOW_ROWS: Final = 5
_CELLS: Final = 24
_DROPOUT_ROWS: Final = 5
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_STYLE: Final = {"connected": "cyan", "resting": "blue", "dropped": "yellow", "lost": "red", "unseen": "bright_black"}
_DIM: Final = "bright_black"
# Not by colour alone: who is gone has another sign too.
_GLYPH: Final = {"connected": "■", "resting": "▪", "dropped": "◧", "lost": "□"}
_SHORT: Final = {
    "AdvertiseKeys": "Keys",
    "ShareKeys": "Shares",
    "MaskedInputCollection": "Masked input",
    "ConsistencyCheck": "Consistency",
    "Unmasking": "Unmasking",
}
_ROOMY: Final = (96, 30)


class StudyPanel:
    """A study as one screen. Thread-safe: events may come from another thread than the one that draws.

    Attributes:
        without_noise: accuracy of the same training without noise, by round; may grow while it is shown.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Args: clock: unix seconds."""
        self.view, self.remark = StudyView(), ""
        self.without_noise: list[float] = []
        self._clock = clock
        self._lock = threading.Lock()

    def apply(self, event: Event) -> None:
        with self._lock:
            self.view.apply(event)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            yield self._draw(self._clock(), console.width, console.height)

    def _draw(self, now: float, width: int, height: int) -> RenderableType:
        started = self.view.started
        narrow, low = width < _ROOMY[0], height < _ROOMY[1]
        blank = [] if low else [Text()]
        body = Group(
            self._rounds(now, width),
            *blank,
            self._phases(narrow),
            self._waiting(now, narrow),
            Text(),
            self._columns(narrow, low),
            *blank,
            *self._dropouts(narrow, low),
        )
        title = Text.assemble((f" {started.study or 'sordino'} ", "bold"), f"· {started.task} " if started.task else "")
        holds = guarantee(started.plan)
        said = [f"{started.plan['mechanism']}, {holds}" if holds else "", started.address]
        said += [f"page on {started.page}"] if started.page else []
        if holds and sum(map(len, said)) > width - 9:  # under which condition epsilon holds is never cut short
            said = said[:1] if len(said[0]) <= width - 6 else [holds]
        foot = Text(f" {' · '.join(part for part in said if part)} " if any(said) else "", style=_DIM)
        return Panel(
            body,
            title=title,
            title_align="left",
            subtitle=foot,
            subtitle_align="right",
            box=box.ROUNDED,
            border_style=_DIM,
            padding=(0 if low else 1, 2),
        )

    def _rounds(self, now: float, width: int) -> RenderableType:
        view = self.view
        done, planned = view.completed, max(view.started.rounds, 1)
        line = Table.grid(expand=True)
        line.add_column(width=22)
        line.add_column(ratio=1)
        line.add_column(width=8, justify="right")
        elapsed = clock_text(now - view.started.at) if view.started_at is not None else ""
        shown = f"Round {view.round} of {view.started.rounds}" if view.round else "Before round 1"
        line.add_row(
            Text(shown if view.started.rounds else "Starting", style="bold"),
            _bar(done / planned, 62 if width >= 100 else max(8, width - 42), "cyan"),
            Text(elapsed, style=_DIM),
        )
        return line

    def _phases(self, narrow: bool) -> RenderableType:
        """The five phases side by side, and under each how long it took."""
        view, times_s = self.view, self.view.current.phase_seconds
        grid = Table.grid(padding=(0, 4 if narrow else 5, 0, 0))
        names: list[Text] = []
        times: list[Text] = []
        for name in PHASES:
            grid.add_column(no_wrap=True)
            running = view.phase == name
            done = name in times_s
            shown = _SHORT[name] if narrow else name
            names.append(Text(shown, style="bold cyan" if running else "" if done else _DIM))
            times.append(Text(f"{times_s[name]:.1f} s" if done else "now" if running else "", style=_DIM))
        grid.add_row(*names)
        grid.add_row(*times)
        return grid

    def _waiting(self, now: float, narrow: bool) -> RenderableType:
        phase, line = self.view.phase, waiting(self.view, now)
        if phase is not None and narrow:
            line = line.replace(phase, _SHORT[phase])
        # One line whatever it says, so that the panel never changes its height.
        return Text(line, no_wrap=True, overflow="ellipsis")

    def _columns(self, narrow: bool, low: bool) -> RenderableType:
        columns = Table.grid(expand=True, padding=(0, 2 if narrow else 4, 0, 0), pad_edge=False)
        columns.add_column(width=36 if narrow else 37)
        columns.add_column(ratio=1)
        columns.add_row(Group(*self._participants(low)), Group(*self._figures(narrow, low)))
        return columns

    def _participants(self, low: bool) -> list[RenderableType]:
        view = self.view
        states = {number: view.state_of(number) for number in view.hosts}
        unseen = max(0, view.participants - len(states))
        counts = Counter(states.values())
        # One line whatever it says; those who never came stand beside the heading, where there is room.
        summary = Text(no_wrap=True, overflow="ellipsis")
        shown = [state for state in _GLYPH if counts[state] or state == "connected"]
        gap = " " * (3 if sum(len(f"{counts[state]} {state}   ") for state in shown) <= 39 else 1)
        for state in shown:
            summary.append(gap if summary else "")
            summary.append(f"{counts[state]}", style=_STYLE[state])
            summary.append(f" {state}")
        heading = Text("Participants", style="bold", no_wrap=True)
        if unseen:
            heading = Text.assemble(heading, (f"   {unseen} not seen yet", _STYLE["unseen"]))
        lines: list[RenderableType] = [heading, summary]
        hosts = view.hosts_in_order()
        if not hosts:
            return lines
        members = {host: view.members(host) for host in hosts}
        largest = max(len(numbers) for numbers in members.values())
        rows = _LOW_ROWS if low else _HOST_ROWS
        # On a low terminal the hosts stand in two columns where they fit.
        columns = 2 if low and len(hosts) > rows else 1
        labels = {host: _label(host, 12) for host in hosts}
        if columns == 2:
            labels = {host: _label(host.removeprefix("host-"), 16 - largest) for host in hosts}
        width = max(len(label) for label in labels.values())
        if len(hosts) <= rows * columns and largest <= (_CELLS if columns == 1 else 14):
            height = rows if columns == 2 else len(hosts)
            for start in range(height):
                row = Text()
                for host in hosts[start::height]:
                    row.append(" " * (19 - len(row)) if row else "")
                    row.append(f"{labels[host]:<{width}}" + " " * (3 - columns))
                    row.append(_glyphs(states[number] for number in members[host]))
                lines.append(row)
        else:
            numbers = sorted(states)[: rows * 36]
            for start in range(0, len(numbers), 36):
                lines.append(_glyphs(states[number] for number in numbers[start : start + 36]))
            if len(states) > len(numbers):
                lines[-1] = Text(f"and {len(states) - len(numbers) + 36} more", style=_DIM)
        return lines

    def _figures(self, narrow: bool, low: bool) -> list[RenderableType]:
        view = self.view
        last = view.rounds[-1] if view.rounds else None
        grid = self._grid(narrow)

        def row(name: str = "", value: str = "", more: RenderableType = "") -> None:
            grid.add_row(*((name, value) if narrow else (name, value, more)))

        target = view.started.epsilon_target
        for name, value in (
            ("epsilon_coordinator", view.epsilon_coordinator),
            ("epsilon_released", view.epsilon_released),
        ):
            share = value / target if target else 0.0
            style = "red" if share > 0.95 else "cyan"
            row(name, f"{value:.2f} of {target:.2f}", _bar(share, 15, style))
        if not low:
            row()
        accuracies = [done.accuracy for done in view.rounds if done.accuracy is not None]
        statistic: list[RenderableType] = []
        if view.seeks_statistic:
            statistic = [grid, *self._statistic(narrow)]
            grid = self._grid(narrow)
        elif view.errors:
            name, error = figure_words(view.errors)[0]
            errors = [done.figures.get(next(iter(view.errors)), math.nan) for done in view.rounds]
            row(name, error, Text(_spark([one for one in errors if math.isfinite(one)]), style="cyan"))
        else:
            row("accuracy", f"{accuracies[-1]:.3f}" if accuracies else "", Text(_spark(accuracies), style="cyan"))
            for _, figure in reported_figures(view.reported)[:1]:
                row("  at participants", figure, Text(f"after round {view.completed - 1}", style=_DIM))
        if self.without_noise:
            reached = min(len(accuracies), len(self.without_noise))
            shown = self.without_noise[reached - 1] if reached else None
            row("  without noise", "" if shown is None else f"{shown:.3f}")
        if not low:
            row()
        if last is not None:
            row("last round", f"{last.seconds:.1f} s", Text(f"sum of {last.u3}", style=_DIM))
            row("key to sum", f"{last.key_to_sum_s:.1f} s")
            row("upload", size_text(last.upload_bytes), Text("a participant", style=_DIM))
            row("download", size_text(last.download_bytes), Text("a participant", style=_DIM))
        heading = Text.assemble(("Privacy and progress", "bold"), (f"   delta {view.started.delta:g}", _DIM))
        return [heading, *statistic, grid]

    def _statistic(self, narrow: bool) -> list[RenderableType]:
        """Two lines, whatever is known: the figure, and the others or what it is over."""
        released = self.view.released
        values = [value.get("value") for value in values_of(released)]
        known = [float(value) for value in values if isinstance(value, int | float)]
        found, *others = headline(released).split(", ", 1) if len(values) > 1 else [headline(released)]
        lines = [Text(found or "no result yet", style="" if found else _DIM, no_wrap=True)]
        if len(known) > 1 and released.get("statistic") == HISTOGRAM:
            width = 32 if narrow else 46
            at_once = -(-len(known) // width)  # neighbours are added up until at most that many are left
            pooled = [sum(known[start : start + at_once]) for start in range(0, len(known), at_once)]
            lines.append(Text(_blocks(pooled, 0.0), style="cyan", no_wrap=True))
        elif others:
            lines.append(Text(others[0], no_wrap=True))
        else:
            count = released.get("rounds")
            note = f"of {counted(count, 'round')} together" if found and count else ""
            lines.append(Text(note, style=_DIM, no_wrap=True))
        for line in lines:
            line.overflow = "ellipsis"
        return [*lines]

    @staticmethod
    def _grid(narrow: bool) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=19)
        grid.add_column(width=14)  # of an epsilon of two digits and its budget
        if not narrow:
            grid.add_column(no_wrap=True)
        return grid

    def _dropouts(self, narrow: bool, low: bool) -> list[RenderableType]:
        view = self.view
        entries: list[tuple[int, str, str, str]] = [
            (number, phase, _who(members, narrow), reason.replace("refused: the round breaks its", "refused by its"))
            for number, phase, reason, members in dropout_groups(view)
        ]
        entries += [(end.round, end.phase, f"attempt {end.attempt} aborted", end.reason) for end in view.aborted]
        entries.sort(key=lambda entry: entry[0])
        rows = 3 if low else _DROPOUT_ROWS
        remark = f"   {self.remark}" if self.remark else ""
        heading = Text.assemble(("Dropouts", "bold"), (remark, _DIM), no_wrap=True, overflow="ellipsis")
        # Always as many lines, so that the panel never changes its height.
        blank = [Text()] * (rows - max(1, min(len(entries), rows)))
        if not entries:
            return [heading, Text("none so far", style=_DIM), *blank]
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        longest = max(len(str(number)) for number, *_ in entries[-rows:])
        grid.add_column(width=6 + longest, no_wrap=True)
        # On a narrow screen only as wide as what stands there: the rest is the reason's.
        phases = max(len(_SHORT.get(phase, phase)) for _, phase, _, _ in entries[-rows:])
        grid.add_column(width=phases if narrow else 21)
        widest = max(len(who) for _, _, who, _ in entries[-rows:])
        grid.add_column(width=min(28, widest) if narrow else 34, no_wrap=True, overflow="ellipsis")
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for number, phase, who, reason in entries[-rows:]:
            grid.add_row(
                f"round {number}",
                _SHORT.get(phase, phase) if narrow else phase,
                Text(who, style="yellow"),
                Text(reason, style=_DIM),
            )
        return [heading, grid, *blank]


def _glyphs(states: Iterable[str]) -> Text:
    return Text.assemble(*((_GLYPH[state], _STYLE[state]) for state in states))


def _label(host: str, width: int) -> str:
    """A host's name in at most ``width`` characters. Names that an authority gives differ at the end, which is kept."""
    name = host.removeprefix(_ENROLLED)
    return name if len(name) <= width else "…" + name[max(1, len(name) - width + 1) :]


def _who(members: Sequence[ParticipantDropped], narrow: bool) -> str:
    """As `people`; on a narrow screen without hosts that are named after the participant."""
    if narrow and all(member.host.startswith(_ENROLLED) for member in members):
        return f"participant {members[0].participant}" if len(members) == 1 else f"{len(members)} participants"
    return people(members)


def _bar(share: float, width: int, style: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * filled, style), ("━" * (width - filled), _DIM))


def _blocks(values: Sequence[float], low: float) -> str:
    """Values as a line of blocks, scaled from ``low`` to their greatest; what is below is ``low``."""
    span = max([*values, low]) - low
    steps = (0.0 if span < 1e-9 else max(value - low, 0.0) / span for value in values)
    return "".join(_SPARKS[round(step * (len(_SPARKS) - 1))] for step in steps)


def _spark(values: Sequence[float]) -> str:
    """The last 15 figures as a line of blocks."""
    return _blocks(values[-15:], min(values[-15:], default=0.0))


class Display:
    """Shows a study while it runs: a live panel on a terminal, else one plain line for each thing that matters.

    A context manager; ``show`` takes events from any thread. ``plain``: plain lines on a terminal too; ``stream``:
    standard error by default, since standard output is the verb's answer; ``also`` is given each plain line.
    """

    def __init__(
        self,
        panel: StudyPanel,
        *,
        plain: bool = False,
        stream: TextIO | None = None,
        also: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.panel, self._lines, self._also = panel, PlainLines(panel.view), also
        self._stream = stream if stream is not None else sys.stderr
        self._console = Console(file=self._stream)
        self._live: Live | None = None
        if self._console.is_terminal and not plain:
            self._live = Live(panel, console=self._console, refresh_per_second=4, vertical_overflow="crop")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: Event) -> None:
        self.panel.apply(event)
        if self._live is None:
            for line in self._lines.of(event):
                self.say(line)
                self._also(line)

    def remark(self, text: str) -> None:
        """A word of the demo itself, such as which processes it has just killed."""
        self.panel.remark = text
        if self._live is None:
            self.say(text)

    def say(self, line: str) -> None:
        say(line, self._stream)
