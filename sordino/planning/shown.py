"""How results show in a notebook: as text in HTML, and as data frames. Libraries for that are imported when asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.failure import InputFailure

if TYPE_CHECKING:
    from pandas import DataFrame


_STYLE = "font-family: monospace; line-height: 1.35; white-space: pre; overflow-x: auto"  # else Jupyter chooses others


def library(name: str) -> Any:
    """A module of a library that only shown results need. Raises InputFailure: it isn't installed."""
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InputFailure(f"{package} isn't installed: run pip install {package}") from None


def data_frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A data frame of rows; columns in the order of their first appearance. Raises InputFailure: no pandas."""
    frame: DataFrame = library("pandas").DataFrame([dict(row) for row in rows])
    return frame


class Shown(ABC):
    """A result that prints as the aligned lines that a notebook shows, the first one as their title."""

    @abstractmethod
    def _lines(self) -> Sequence[str]: ...

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        title, _, rest = escape(repr(self)).partition("\n")
        return f'<pre style="{_STYLE}"><b>{title}</b>\n{rest}</pre>'
