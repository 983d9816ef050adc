"""How many of what: the one place that knows that 1 round is not 1 rounds."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """``no rounds``, ``1 round``, ``3 rounds``.

    Args:
        one: of a single one.
        many: of several; by default ``one`` with an s.
    """
    return f"{number or 'no'} {one if number == 1 else many or one + 's'}"
