"""Text that processes print: counts, widths, near names, JSON and its values, and what another machine wrote."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

NARROW, USUAL, WIDE = 60, 80, 100
LONGEST: Final = 300


def counted(number: int, one: str, many: str | None = None) -> str:
    """``no rounds``, ``1 round``, ``3 rounds``; ``many``: the plural, by default ``one`` with an s."""
    return f"{f'{number:,}' if number else 'no'} {one if number == 1 else many or one + 's'}"


def several(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``; ``most``: how many names are shown."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def terminal_width() -> int:
    """Columns for everything that ``plan`` and ``init`` print about a plan: the terminal's, from 60 to 100."""
    return min(max(shutil.get_terminal_size((USUAL, 24)).columns, NARROW), WIDE)


def say(line: str, stream: TextIO) -> None:
    """A plain line with the time, and with the date too where it may be kept: not on a terminal."""
    when = time.strftime("%H:%M:%S" if stream.isatty() else "%Y-%m-%d %H:%M:%S")
    print(f"{when}  {line}", file=stream, flush=True)


def rewritable() -> bool:
    """Whether standard error is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def folded(text: str, width: int | None = None, first: str = "", rest: str = "") -> list[str]:
    """Lines of a paragraph, by default as wide as `terminal_width`; ``first`` and ``rest``: what they begin with."""
    width = terminal_width() if width is None else width
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def aligned(rows: list[tuple[str, str, str]], width: int) -> list[str]:
    """Three columns of which the last is folded under itself."""
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    margin = first + second + 4
    lines: list[str] = []
    for what, much, meaning in rows:
        words = folded(meaning, max(20, width - margin)) or [""]
        lines.append(f"{what:<{first}}  {much:<{second}}  {words[0]}".rstrip())
        lines += [" " * margin + more for more in words[1:]]
    return lines


def did_you_mean(given: object, known: Collection[str]) -> str:
    """`` Did you mean mnist?``, with the blank before it; empty where no known name is near, or begins nearly so."""
    from difflib import get_close_matches  # only in an error

    word = str(given)[:80].lower()
    begins = {name[: len(word) + 1]: name for name in sorted(known, key=len, reverse=True)}
    near = [begins[one] for one in get_close_matches(word, begins, 1, 0.8)] or get_close_matches(word, known, 1)
    return f" Did you mean {near[0]}?" if near else ""


def duration(seconds: float) -> str:
    """``3 days``, ``5 hours``, ``2 minutes``, ``41 s``, ``0.7 s``: in the largest unit that gives at least two."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.{seconds < 9.95:d}f} s"


def clock_text(seconds: float) -> str:
    """``0:45``, ``3:07``, ``2:05:00``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def minute(seconds: float) -> str:
    """``2026-05-03 14:07 UTC``, of seconds since 1970."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {seconds:.0f} since 1970"


def printable(text: str) -> str:
    """Without control characters, escape sequences and marks that change the direction of writing; keeps lines.

    Text from another machine must not control a terminal, nor look like a line of ours.
    """
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def peer_text(text: str) -> str:
    """One line of at most `LONGEST` printable characters, for text that another machine wrote."""
    line = printable(" ".join(text[: 4 * LONGEST].split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def json_line(event: str, body: Mapping[str, Any], *, level: str = "info", at: float | None = None) -> str:
    """One JSON object that a verb prints while it runs, with the three keys that the lines of the logs have.

    ``timestamp`` (ISO 8601, UTC; ``at``: seconds since 1970, default now), ``level`` and ``event`` come first, then the
    body.
    """
    when = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    head = {"timestamp": when.isoformat(timespec="microseconds").replace("+00:00", "Z"), "level": level, "event": event}
    return json.dumps(head | dict(body) | head)


def finite(value: Any) -> Any:
    """What JSON has words for: null in the place of numbers that are infinite or none, lists for tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


def dotted(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of nested tables by its path: ``{"plan.clip": 1.0}``."""
    found: dict[str, Any] = {}
    for name, value in tables.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
