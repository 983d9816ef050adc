"""Bounds that make the command fail: a file of names and numbers."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

OUR_BOUNDS: Final = Path(__file__).with_name("bounds.toml")


@dataclass(frozen=True)
class Bounds:
    """``most``: path -> largest median ratio; ``least``: comparison -> smallest median ratio."""

    most: dict[str, float]
    least: dict[str, float]


def read_bounds(file: Path = OUR_BOUNDS) -> Bounds:
    """Read a bound file.

    Raises ValueError: unreadable, a table or a name that isn't known, or a bound that isn't a positive number.
    """
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file; sordino/lab/bench/bounds.toml is an example")
    known = None if file == OUR_BOUNDS else read_bounds()
    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{file}: not a bound file: {error}") from error
    tables: dict[str, dict[str, float]] = {"most": {}, "least": {}}
    for table, entries in content.items():
        if table not in tables or not isinstance(entries, dict):
            raise ValueError(f"{file}: [{table}] is not known; a bound file has the tables [most] and [least]")
        for name, value in entries.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{file}: {table}.{name} must be a number above 0, not {value!r}")
            if known is not None and name not in getattr(known, table):
                # A typing error would switch the check off.
                raise ValueError(f"{file}: {table}.{name} is not known; there are {', '.join(getattr(known, table))}")
            tables[table][name] = float(value)
    return Bounds(**tables)


def broken(ratios: dict[str, float], bounds: dict[str, float], largest: bool) -> list[str]:
    """One sentence for each ratio that breaks its bound; names without a bound break none.

    Args:
        ratios: name -> median.
        bounds: name -> bound.
        largest: whether bounds are the most a ratio may be, or else the least.
    """
    return [
        f"{name} is {ratio:.3g}, its bound is {'at most' if largest else 'at least'} {bounds[name]:g}"
        for name, ratio in ratios.items()
        if name in bounds and (ratio > bounds[name] if largest else ratio < bounds[name])
    ]
