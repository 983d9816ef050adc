"""Bounds that make the command fail: `bounds.toml` beside this file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

BOUNDS: Final[dict[str, dict[str, float]]] = tomllib.loads(Path(__file__).with_name("bounds.toml").read_text())
"""``most``: path -> largest median ratio; ``least``: comparison -> smallest median ratio."""


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
