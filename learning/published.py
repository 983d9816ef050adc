"""Published formats by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from learning.blocks import Blocks
from learning.published_images import cifar10, femnist, leaf
from learning.published_text import stackoverflow

_READERS: Final[Mapping[str, Callable[[Path], Blocks]]] = {
    "cifar10": cifar10,
    "femnist": femnist,
    "leaf": leaf,
    "stackoverflow": stackoverflow,
}


def open_published(kind: str, path: Path) -> Blocks:
    """The set at ``path``, not read yet.

    Args:
        kind: one of ``learning.data_names.FORMATS``.

    Raises:
        learning.blocks.DatasetError: there is nothing of this format; while reading, that a file isn't in it.
    """
    return _READERS[kind](path)
