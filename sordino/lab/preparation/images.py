"""Image sets: MNIST and Fashion-MNIST from IDX files, and virtual writers over both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Block, DatasetError, Part
from learning.partitions import FEWEST_EXAMPLES, partition
from learning.tasks.inputs import IMAGE_SIDE
from sordino.lab.preparation.made import Made, in_memory
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.sources import Opened

IDX_FILES: Final[Mapping[Part, tuple[str, str]]] = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of MNIST and Fashion-MNIST, as published but for compression."""
IDX_COUNTS: Final[Mapping[Part, int]] = {"train": 60_000, "test": 10_000}
_Images = dict[Part, tuple[NDArray[np.uint8], NDArray[np.int64]]]


def mnist(opened: Sequence[Opened], _: Options) -> Made:
    """MNIST as published: 60,000 and 10,000 images in the order of the files."""
    return _as_published(opened[0], "", "mnist")


def fashion_mnist(opened: Sequence[Opened], _: Options) -> Made:
    """Fashion-MNIST as published ([XRV17])."""
    return _as_published(opened[0], ".gz", "fashion")


def femnist_shaped(opened: Sequence[Opened], options: Options) -> Made:
    """Virtual writers over MNIST and Fashion-MNIST: as many users as FEMNIST has, and nothing of FEMNIST in them.

    The training images of both sets, the second one's labels raised by 10, are cut into ``writers`` parts by
    ``learning.partitions.partition`` with labels skewed by a Dirichlet distribution. The test part is both test sets.
    """
    digits, clothes = _read(opened[0], ""), _read(opened[1], ".gz")
    clothes = {part: (images, labels + 10) for part, (images, labels) in clothes.items()}
    images = np.concatenate([digits["train"][0], clothes["train"][0]])
    labels = np.concatenate([digits["train"][1], clothes["train"][1]])
    cut = partition(labels, "dirichlet", options.writers, options.alpha, options.seed)
    width = len(str(options.writers - 1))
    train = [Block.of(images[rows], labels[rows], f"{writer:0{width}}") for writer, rows in enumerate(cut)]
    test = [Block.of(*digits["test"], "test"), Block.of(*clothes["test"], "test")]
    how = (
        "FEMNIST-shaped, not FEMNIST: no image here was written by the user who holds it. Classes 0 to 9 are MNIST's, "
        "10 to 19 Fashion-MNIST's",
        f"{options.writers} virtual writers, at least {FEWEST_EXAMPLES} images each, labels skewed by "
        f"Dirichlet({options.alpha:g}), public seed {options.seed}",
        "the test part is both published test sets, of one user that stands for no person",
    )
    return Made(in_memory({"train": train, "test": test}, "femnist-shaped"), how)


def _as_published(opened: Opened, suffix: str, name: str) -> Made:
    parts: dict[Part, list[Block]] = {part: [Block.of(*pair)] for part, pair in _read(opened, suffix).items()}
    return Made(in_memory(parts, name), ("as published: same images, same order, same test part",))


def _read(opened: Opened, suffix: str) -> _Images:
    names = [f"{name}{suffix}" for pair in IDX_FILES.values() for name in pair]
    held = opened.read_all(names)
    return {
        part: (
            _idx(held[f"{images}{suffix}"], (IDX_COUNTS[part], IMAGE_SIDE, IMAGE_SIDE), images),
            _idx(held[f"{labels}{suffix}"], (IDX_COUNTS[part],), labels).astype(np.int64),
        )
        for part, (images, labels) in IDX_FILES.items()
    }


def _idx(content: bytes, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """An IDX file of unsigned bytes of exactly this shape (LeCun's format: magic number, extents, values)."""
    header = bytes([0, 0, 8, len(shape)]) + b"".join(extent.to_bytes(4, "big") for extent in shape)
    if content[: len(header)] != header or len(content) != len(header) + int(np.prod(shape)):
        raise DatasetError(f"{name} is not an IDX file of shape {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)
