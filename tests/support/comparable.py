"""Comparable copies of phases, to tell whether a refused message changed anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from secagg.context import RoundConfig

_FIXED = frozenset({bytes, int, str, bool, type(None), RoundConfig})  # nothing in them can change
_SEQUENCES = frozenset({list, tuple})


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def freeze(value: Any) -> Any:
    """Return a comparable copy of an object and everything it holds."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is dict or (kind not in _SEQUENCES and isinstance(value, Mapping)):
        return tuple([(freeze(key), one if type(one) in _FIXED else freeze(one)) for key, one in value.items()])
    if kind in _SEQUENCES or isinstance(value, list | tuple):
        return tuple([one if type(one) in _FIXED else freeze(one) for one in value])
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, set | frozenset):
        return frozenset([freeze(one) for one in value])
    if isinstance(value, bytes | int | str | float | None | type | ModuleType) or callable(value):
        return value
    if is_dataclass(value):
        return (kind.__name__, *[freeze(getattr(value, name)) for name in _names(kind)])
    if hasattr(value, "__dict__"):
        return (type(value).__name__, freeze(vars(value)))
    return value
