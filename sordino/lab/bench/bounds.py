"""Bounds that make the command fail: a file of names and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from runtime.settings_file import ConfigurationError, Settings, read_settings

OUR_BOUNDS: Final = Path(__file__).with_name("bounds.toml")
_Table: TypeAlias = dict[str, Annotated[float, Field(gt=0, strict=True)]]


class Bounds(Settings):
    """``most``: path -> largest median ratio; ``least``: comparison -> smallest median ratio."""

    most: _Table = Field(default_factory=dict)
    least: _Table = Field(default_factory=dict)


def read_bounds(file: Path = OUR_BOUNDS) -> Bounds:
    """Read a bound file.

    Raises ConfigurationError: unreadable, a table or a name that isn't known, or a bound that isn't a positive number.
    """
    found = read_settings(Bounds, file, hint="sordino/lab/bench/bounds.toml is an example.")
    known = found if file == OUR_BOUNDS else read_bounds()
    for table, ours in (("most", known.most), ("least", known.least)):
        for name in getattr(found, table).keys() - ours:  # a typing error would switch the check off
            raise ConfigurationError(f"{file}: {table}.{name} is not known; there are {', '.join(ours)}")
    return found


def broken(ratios: dict[str, float], bounds: dict[str, float], largest: bool) -> list[str]:
    """One sentence for each ratio that breaks its bound; names without a bound break none.

    ``ratios``: name -> median; ``bounds``: name -> bound; ``largest``: whether bounds are the most a ratio may be, or
    else the least.
    """
    return [
        f"{name} is {ratio:.3g}, its bound is {'at most' if largest else 'at least'} {bounds[name]:g}"
        for name, ratio in ratios.items()
        if name in bounds and (ratio > bounds[name] if largest else ratio < bounds[name])
    ]
