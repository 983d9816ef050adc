"""Copies of phases: comparable ones, to tell whether a refused message changed anything, and twins to be used up."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from secagg.commitments import MerkleForest
from secagg.context import RoundConfig
from tests.support.naive_variants import CLIENT, SERVER

_FIXED = {bytes, int, str, bool, type(None), RoundConfig}  # nothing in them can change; `freeze` adds to them
_SEQUENCES = frozenset({list, tuple})
_SCALARS = {"bytes", "int", "str", "bool", "tuple[bytes, ...]", "tuple[int, ...]"}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def _is_fixed(kind: Any) -> bool:
    """Most of what a phase holds are frozen messages of bytes and numbers."""
    how = kind.__dataclass_params__
    return how.frozen and how.eq and all(one.type in _SCALARS for one in fields(kind))


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
        if _is_fixed(kind):
            _FIXED.add(kind)
            return value
        return (kind.__name__, *[freeze(getattr(value, name)) for name in _names(kind)])
    if hasattr(value, "__dict__"):
        return (type(value).__name__, freeze(vars(value)))
    return value


PHASE_MODULES = frozenset(module.__name__ for module in (*CLIENT.modules, *SERVER.modules))


def twin(value: Any) -> Any:
    """Copy a phase so that the copy can be used up: mutable containers are copied, immutable values are not."""
    if isinstance(value, set | Counter | np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: twin(one) for key, one in value.items()}
    if isinstance(value, list):
        return [twin(one) for one in value]
    if type(value) is MerkleForest or type(value).__module__ in PHASE_MODULES:
        again = copy.copy(value)
        if not hasattr(value, "__dataclass_fields__"):
            vars(again).update({name: twin(one) for name, one in vars(value).items()})
        return again
    return value


def held(phase: Any) -> Any:
    """All that a participant's phase holds, except the mark that it is over."""
    return freeze({name: value for name, value in vars(phase).items() if name != "_left"})
