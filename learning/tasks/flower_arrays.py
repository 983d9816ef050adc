"""Arrays in Flower's messages, for `sordino.flower` and `learning.tasks.flower_app`. Import this only where Flower is.

Raises learning.own_task.TaskUnavailable: there is no Flower, or an older release.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.own_task import TaskUnavailable

if TYPE_CHECKING:
    from flwr.app import RecordDict

Arrays = dict[str, NDArray[Any]]
ROUND_KEY: Final = "server-round"
"""The round's number in a configuration, as Flower's strategies write it."""
_OLDEST: Final = (1, 41)

try:
    found = version("flwr")
except PackageNotFoundError:
    found = ""
if tuple(map(int, re.findall(r"\d+", found)[:2])) < _OLDEST:
    there = f"flwr {found} is installed" if found else "it is not installed"
    instead = "pip install '.[flower]' in the checkout"
    raise TaskUnavailable(f"a Flower app needs flwr 1.41 or later, and {there}: {instead}")


def arrays_of(content: RecordDict) -> tuple[str, Arrays]:
    """The one record of arrays, with its key. Raises ValueError: there is another number of them."""
    if len(content.array_records) != 1:
        raise ValueError(f"the app's messages must hold one ArrayRecord, not {len(content.array_records)}")
    [(key, record)] = content.array_records.items()
    return key, {name: one.numpy() for name, one in record.items()}


def check_arrays(arrays: Arrays) -> None:
    """Raises ValueError: one of them isn't of floats, so that no mean of updates fits it."""
    other = [name for name, one in arrays.items() if not np.issubdtype(one.dtype, np.floating)]
    if other:
        raise ValueError(
            f"the model's array {other[0]} has no floats, and only floats can be averaged with noise: leave it out of "
            "the ArrayRecord, or use layers without counters, such as GroupNorm for BatchNorm"
        )
