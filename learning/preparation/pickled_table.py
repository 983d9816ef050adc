"""Reading a pickled table of pandas without pandas.

A pickle is a program. These come from packages whose content is held against a pinned SHA-256 before it is read
(`learning.preparation.sources.Opened`). Besides, a pickle may name nothing but what an array of numpy needs, and the
parts of a table, for which `_Part` stands.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

from numpy.typing import NDArray


class PickleRefused(ValueError):
    """A pickle is damaged, is no table, or names something that no table needs."""


class _Part:
    """Stands for an object of pandas: keeps what it is made of."""

    given: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


_NUMPY: Final = {
    *(("numpy", "dtype"), ("numpy", "ndarray"), ("_codecs", "encode"), ("builtins", "slice")),
    *(("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer")),
}
_PANDAS: Final = {
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.internals.managers", "BlockManager"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PANDAS:
            return _Part
        module = module.replace("numpy.core.", "numpy._core.")  # as it was called before numpy 2
        if (module, name) in _NUMPY:
            return super().find_class(module, name)
        raise PickleRefused(f"it names {module}.{name}, which no table needs")


def read_table(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the columns of a pickled DataFrame by name: numbers as they are, text and mixtures as objects.

    Raises PickleRefused: it is something else.
    """
    try:
        manager = _Unpickler(io.BytesIO(content)).load().state["_mgr"]
        blocks, (columns, _) = manager.given  # a block is (values, places, axes), an index (class, its state)
        names = [str(name) for name in columns.given[1]["data"]]
        found: dict[str, NDArray[Any]] = {}
        for block in blocks:
            values, places = block.given[:2]
            at = range(len(names))[places] if isinstance(places, slice) else places
            found |= {names[place]: row for place, row in zip(at, values, strict=True)}
        return {name: found[name] for name in names}
    except PickleRefused:
        raise
    except Exception as error:  # what a damaged pickle raises is not bounded: KeyError, EOFError, TypeError, ...
        raise PickleRefused(f"not a pickled table ({type(error).__name__}: {error})") from None
