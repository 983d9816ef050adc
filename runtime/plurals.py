"""Text for a terminal: counts with their nouns, and how wide lines are."""

from __future__ import annotations

import shutil
from typing import Final

NARROW: Final = 60
USUAL: Final = 80
WIDE: Final = 100


def counted(number: int, one: str, many: str | None = None) -> str:
    """``no rounds``, ``1 round``, ``3 rounds``.

    Args:
        one: of a single one.
        many: of several; by default ``one`` with an s.
    """
    return f"{number or 'no'} {one if number == 1 else many or one + 's'}"


def terminal_width() -> int:
    """Columns for everything that ``plan`` and ``init`` print about a plan: the terminal's, from 60 to 100."""
    return min(max(shutil.get_terminal_size((USUAL, 24)).columns, NARROW), WIDE)
