"""A folder of PNG and JPEG images as examples, read with Pillow.

Each image is in a subfolder named after its class, or named in a file ``labels.csv`` with the columns ``file`` and
``label``; images that lie in the folder itself, without such a file, have no labels. They are taken in the order of
their paths, those of ``labels.csv`` in its order.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError, library
from learning.datasets import LABEL, Dataset, Unread
from learning.table_files import Missing, dataset_of, named_in_errors, number

LABELS_FILE: Final = "labels.csv"
_SUFFIXES: Final = (".png", ".jpg", ".jpeg")
_DEEP: Final = ("I", "I;16", "I;16B")  # sixteen bits a pixel
_GREY: Final = ("1", "L", "LA", *_DEEP)


def read_images(
    folder: str | os.PathLike[str],
    *,
    classes: Sequence[str] = (),
    side: int = 0,
    channels: int = 0,
    numeric_labels: bool = False,
) -> Dataset:
    """All images of a folder that can be read; how many can't is in ``unread`` of the result.

    Args:
        folder: see the module; it needs Pillow.
        classes: names of the classes, for labels from 0 in that order. Empty: subfolders and labels are numbers.
        side: images are cut to their central square and resized to so many pixels. 0: they are taken as they are, and
            have one size.
        channels: 1 makes them grey, 3 colours. 0: colours where one of them has some.
        numeric_labels: labels of ``labels.csv`` are numbers to predict, float32.

    Returns features uint8 (n, height, width), of colours (n, height, width, 3), of 16 bits a pixel the upper 8.

    Raises learning.blocks.DatasetError: no images, several sizes, or subfolders that name no class.
    """
    if side < 0 or channels not in (0, 1, 3):
        raise DatasetError(f"side = {side}, channels = {channels}: a side is 0 or more, and channels are 0, 1 or 3")
    with named_in_errors(folder := Path(folder)):
        return images(folder, Missing.LEFT_OUT, classes, side, channels, numeric_labels=numeric_labels)


def images(
    folder: Path,
    missing: Missing,
    classes: Sequence[str] = (),
    side: int = 0,
    channels: int = 0,
    *,
    numeric_labels: bool,
) -> Dataset:
    """As `read_images`, with missing values as ``missing`` says, and errors that don't name the folder."""
    files, texts = _listed(folder) if (folder / LABELS_FILE).is_file() else _in_subfolders(folder, classes)
    if not files:
        raise DatasetError(f"it holds no images: put {', '.join(_SUFFIXES)} there, in a subfolder for each class")
    found = [_pixels(file, side, channels) for file in files]
    readable = np.array([one is not None for one in found])
    pixels = [one for one in found if one is not None]
    damaged = len(files) - len(pixels)
    if not pixels or (damaged and missing is Missing.REFUSED):
        raise DatasetError(f"{damaged} of its {len(files)} images can't be read: replace them, or take them away")
    sizes = sorted({one.shape[1::-1] for one in pixels})
    if len(sizes) > 1:
        shown = ", ".join(f"{width} x {height}" for width, height in sizes[:3])
        raise DatasetError(
            f"its images have {len(sizes)} sizes ({shown}), and a model takes one: resize them, or read them by "
            "sordino.read_images(path, side=N) in the task's own read"
        )
    if len({one.ndim for one in pixels}) > 1:
        pixels = [one if one.ndim == 3 else np.repeat(one[..., None], 3, axis=2) for one in pixels]
    labels = np.zeros(len(files), np.int64) if texts is None else np.array([_label(text, classes) for text in texts])
    data = dataset_of(np.stack(pixels), labels[readable], (), texts is not None, missing, numeric_labels=numeric_labels)
    if not damaged:
        return data
    return replace(data, unread=Unread((("image", damaged), *data.unread.cells), rows=data.unread.rows + damaged))


def _in_subfolders(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[str] | None]:
    """Images and the names of their subfolders; None where they are in no subfolder."""
    here = [one for one in folder.iterdir() if one.suffix.lower() in _SUFFIXES]
    below = [one for one in folder.glob("*/*") if one.suffix.lower() in _SUFFIXES]
    if here and below:
        raise DatasetError("it holds images beside subfolders with images: put each into the subfolder of its class")
    names = {one.parent.name for one in below}
    if other := sorted(names.difference(classes) if classes else (name for name in names if not name.isdecimal())):
        expected = ", ".join(classes) if classes else "numbers of classes from 0"
        raise DatasetError(
            f"its subfolders {', '.join(other)} name no class: they must be {expected}; names of classes are given by "
            "sordino.read_images(path, classes=(...)) in the task's own read"
        )
    files = sorted(here or below)
    return files, None if here else [file.parent.name for file in files]


def _listed(folder: Path) -> tuple[list[Path], list[str]]:
    """Images of ``labels.csv`` and their labels."""
    with (folder / LABELS_FILE).open(encoding="utf-8-sig", errors="replace", newline="") as file:
        csv.field_size_limit(sys.maxsize)  # a long cell is a file that isn't there, not the end of all
        rows = csv.DictReader(file, restval="", skipinitialspace=True)
        if not {"file", LABEL} <= set(rows.fieldnames or ()):
            raise DatasetError(f"the first line of its {LABELS_FILE} must name the columns file and {LABEL}")
        held = [(folder / row["file"], row[LABEL].strip()) for row in rows]
    return [path for path, _ in held], [text for _, text in held]


def _label(text: str, classes: Sequence[str]) -> float:
    """A label: infinite if it is none, NaN if it is empty."""
    if not classes or not text:
        return number(text)
    return float(classes.index(text)) if text in classes else np.inf


def _pixels(file: Path, side: int, channels: int) -> NDArray[Any] | None:
    """(height, width), or (height, width, 3), uint8; None where the image can't be read."""
    image_module, ops = (library(f"PIL.{name}", "images", "a folder of images") for name in ("Image", "ImageOps"))
    try:
        with image_module.open(file, formats=("PNG", "JPEG")) as opened:
            image = ops.exif_transpose(opened)
            grey = image.mode in _GREY if not channels else channels == 1
            if image.mode in _DEEP:  # a plain conversion would cut every bright pixel to white
                image = image_module.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
            image = image.convert("L" if grey else "RGB")
            return np.asarray(ops.fit(image, (side, side)) if side else image)
    except MemoryError:
        raise
    except Exception:  # what a damaged file raises is not bounded, and which one it is decides nothing
        return None
