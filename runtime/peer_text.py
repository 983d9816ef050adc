"""Text that another machine wrote, before a person sees it: it must not steer her terminal or pass for ours."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 300


def printable(text: str) -> str:
    """Without control characters, escape sequences and marks that turn the direction of writing; lines stay."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def peer_text(text: str) -> str:
    """One line of at most `LONGEST` printable characters."""
    line = printable(" ".join(text[: 4 * LONGEST].split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
