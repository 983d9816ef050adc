"""Reading the few pickles in which public data sets are published, without running anything that they name.

A pickle is a program. Here it may build dictionaries, lists, strings and numbers, and two kinds of thing beside them:
numpy arrays, as ``Array`` records that this module turns into arrays itself, and pandas tables, as columns by name. No
class or function of numpy, pandas or anything else is looked up or called: a few of their names stand for pieces of
this module, which a pickle can call and not change; whatever else it names, it is refused. What comes of a pickle is no
larger than the pickle, up to a small factor.

Sets are prepared with it, from packages whose SHA-256 is pinned; and a participant or a coordinator who names a folder
of CIFAR-10's Python batches (``cifar10:FOLDER``) has them read with it at each start of a study.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_TYPE: Final = re.compile(r"[biuf][1248]|O8?")
_LARGEST: Final = 1 << 31  # bytes of one array, and numbers along one of its axes
_MOST_AXES: Final = 8
_INTEGER_BYTES: Final = 9  # uint64 with a sign
_SCALARS: Final = (bytes, str, int, float, bool, type(None))


class PickleRefused(ValueError):
    """A pickle holds something that no data set needs, or is damaged."""


def read_pickle(content: bytes) -> Any:
    """The object in ``content``: dictionaries, lists, tuples, bytes, strings, numbers and numpy arrays.

    Strings that Python 2 wrote come back as bytes, as in the batches of CIFAR-10.

    Raises:
        PickleRefused: it names anything else, or isn't a pickle.
    """
    try:
        return _Plain(len(content)).of(_load(content, encoding="bytes"))
    except PickleRefused:
        raise
    except Exception as error:  # what a damaged pickle raises is not bounded: KeyError, EOFError, TypeError, ...
        raise PickleRefused(f"not a pickle of plain data ({type(error).__name__}: {error})") from None


def read_table(content: bytes) -> dict[str, NDArray[Any]]:
    """The columns of a pickled pandas DataFrame by name: numbers as they are, text and mixtures as objects.

    Raises:
        PickleRefused: it is something else.
    """
    try:
        return _columns(_load(content, encoding="ASCII"))
    except PickleRefused:
        raise
    except Exception as error:
        raise PickleRefused(f"not a pickled table ({type(error).__name__}: {error})") from None


def _load(content: bytes, encoding: str) -> Any:
    """What the program builds, once it was read through without being run."""
    for opcode, argument, _ in pickletools.genops(content):
        if not isinstance(argument, int):
            continue
        # The memo is a table as long as its largest number.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= argument <= len(content):
            raise PickleRefused("it numbers what it remembers by more than its length")
        if (argument.bit_length() + 7) // 8 > _INTEGER_BYTES:
            raise PickleRefused("it holds an integer of more than 64 bits")
    return _Restricted(content, encoding).load()


class _Type:
    """What stands for ``numpy.dtype``: the name of a number's type or of objects, and its byte order."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if not isinstance(text, str) or not _TYPE.fullmatch(text):
            raise PickleRefused(f"an array of type {text!r}")
        self.name, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        # (version, order, subarray, names, fields, ...): a plain number has neither of these.
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise PickleRefused("an array of structures")
        self.order = order

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.name) if self.name[0] != "O" else np.dtype(object)


class _Budget:
    """What may be made of things that stand in the pickle once and are referred to often: as much as it has bytes."""

    def __init__(self, most: int) -> None:
        self._left = most

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise PickleRefused(_GROWS)


class Array:
    """What stands for a numpy array until the whole pickle is read."""

    def __init__(self, objects: _Budget) -> None:
        self.value: NDArray[Any] | None = None
        self._objects = objects

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.value = _array(content, kind, shape, "F" if fortran else "C", self._objects)


def _array(content: Any, kind: Any, shape: Any, order: str, objects: _Budget) -> NDArray[Any]:
    if not isinstance(kind, _Type) or not isinstance(shape, tuple) or len(shape) > _MOST_AXES:
        raise PickleRefused("a malformed array")
    if not all(type(extent) is int and 0 <= extent <= _LARGEST for extent in shape):
        raise PickleRefused("a malformed array")
    dtype = kind.dtype()
    size = math.prod(shape)
    if dtype.hasobject:
        if not isinstance(content, list) or len(content) != size:
            raise PickleRefused("a malformed array of objects")
        if any(type(one) not in _SCALARS for one in content):
            raise PickleRefused("an array of other things than numbers and text")
        objects.spend(size)
        values = np.empty(size, dtype=object)
        values[:] = content
    else:
        if not isinstance(content, bytes | bytearray) or len(content) != size * dtype.itemsize or size > _LARGEST:
            raise PickleRefused("an array whose length is not that of its shape")
        values = np.frombuffer(content, dtype=dtype)
    return values.reshape(shape, order=order)  # type: ignore[call-overload, no-any-return]


@dataclass
class _Frame:
    """What stands for a DataFrame."""

    state: Any = None

    def __init__(self, *_: Any) -> None:
        self.state = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Manager(_Frame):
    """What stands for pandas' BlockManager: (blocks, axes)."""

    def __init__(self, *given: Any) -> None:
        self.state = given


@dataclass(frozen=True)
class _Index:
    values: Any


@dataclass(frozen=True)
class _Block:
    values: Any  # (columns, rows)
    places: slice | Any


class _Callable:
    """What a pickle may call. A function would take attributes from it, defaults too, for the whole process."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise PickleRefused("it changes what it may only call")


class _Reconstruct(_Callable):
    __slots__ = ("_objects",)

    def __init__(self, objects: _Budget) -> None:
        self._objects = objects

    def __call__(self, *_: Any) -> Array:
        return Array(self._objects)


class _FromBuffer(_Reconstruct):
    __slots__ = ()

    def __call__(self, content: Any, kind: Any, shape: Any, order: Any) -> Array:  # type: ignore[override]
        made = Array(self._objects)
        made.value = _array(content, kind, shape, "F" if order == "F" else "C", self._objects)
        return made


class _Encode(_Callable):
    """``codecs.encode`` to Latin-1: how Python 3 writes bytes for Python 2."""

    __slots__ = ("_characters",)

    def __init__(self, most: int) -> None:
        self._characters = _Budget(most)  # a text that is remembered may be encoded again and again

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise PickleRefused("a call of codecs.encode")
        self._characters.spend(len(text))
        return text.encode("latin-1")


class _MakeBlock(_Callable):
    __slots__ = ()

    def __call__(self, values: Any, places: Any, *_: Any) -> _Block:
        return _Block(values, places)


class _NewIndex(_Callable):
    __slots__ = ()

    def __call__(self, _: Any, state: Any) -> _Index:
        return _Index(state.get("data") if isinstance(state, dict) else None)


_GROWS: Final = "it grows when it is read: parts of it stand there many times"
_NDARRAY: Final = "ndarray"
_ENCODE: Final = ("_codecs", "encode")
_RECONSTRUCT: Final = tuple((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core"))
_FROM_BUFFER: Final = tuple((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core"))
_NUMPY: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "dtype"): _Type,
    ("numpy", _NDARRAY): _NDARRAY,
}
_PANDAS: Final[dict[tuple[str, str], Any]] = {
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.internals.managers", "BlockManager"): _Manager,
    ("pandas._libs.internals", "_unpickle_block"): _MakeBlock(),
    ("pandas.core.indexes.base", "_new_Index"): _NewIndex(),
    ("pandas.core.indexes.base", "Index"): "Index",
    ("pandas.core.indexes.range", "RangeIndex"): "RangeIndex",
    ("builtins", "slice"): slice,
}


class _Restricted(pickle.Unpickler):
    def __init__(self, content: bytes, encoding: str) -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)
        objects = _Budget(len(content))
        self._spending = {
            _ENCODE: _Encode(len(content)),
            **dict.fromkeys(_RECONSTRUCT, _Reconstruct(objects)),
            **dict.fromkeys(_FROM_BUFFER, _FromBuffer(objects)),
        }

    def find_class(self, module: str, name: str) -> Any:
        found = (self._spending | _NUMPY | _PANDAS).get((module, name))
        if found is None:
            raise PickleRefused(f"it names {module}.{name}, which no data set needs")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise PickleRefused("it refers to something outside itself")


class _Plain:
    """Takes plain data out of what was built, and no more things than the pickle has bytes.

    Each thing that stands there once takes a byte at least; a list of ten lists that are one, and so on, takes few.
    """

    def __init__(self, most: int) -> None:
        self._things = _Budget(most)

    def of(self, value: Any) -> Any:
        self._things.spend(1)
        if isinstance(value, Array) and value.value is not None:
            return value.value
        if type(value) is dict:
            return {self.of(key): self.of(one) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)([self.of(one) for one in value])
        if type(value) in _SCALARS:
            return value
        raise PickleRefused(f"it holds a {type(value).__name__}")


def _columns(frame: Any) -> dict[str, NDArray[Any]]:
    if type(frame) is not _Frame or not isinstance(frame.state, Mapping):
        raise PickleRefused("not a table")
    manager = frame.state["_mgr"]
    blocks, axes = manager.state[0], manager.state[1]
    names = [str(name) for name in axes[0].values.value]
    columns: dict[str, NDArray[Any]] = {}
    for block in blocks:
        values, places = block.values.value, block.places
        at = range(*places.indices(len(names))) if isinstance(places, slice) else [int(n) for n in places.value]
        for place, row in zip(at, values, strict=True):
            columns[names[place]] = row
    if set(columns) != set(names):
        raise PickleRefused("a table without some of its columns")
    return {name: columns[name] for name in names}
