"""Foreign data: files of a participant or a coordinator, published formats, prepared sets.

HDF5 is not included: h5py reads it. Packages of ``sordino data prepare`` are pinned by SHA-256 before they are read.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from learning.blocks import Block, Blocks, DatasetError
from learning.datasets import Dataset
from learning.own_data import content_sha256, read_held, read_own, unread_told
from learning.prepared_data import MANIFEST, open_prepared, write_prepared
from learning.published import cifar10, leaf
from tests.fuzz.file_targets import _folder, _put
from tests.fuzz.mutations import change_bytes, change_encoded, compact, json_mutation
from tests.fuzz.target import Choices, Target, must
from tests.support.published_files import CIFAR_BATCHES

# ---------------------------------------------------------------- CIFAR-10


def read_records(data: bytes) -> None:
    """Binary records of CIFAR-10: images, or `DatasetError`."""
    folder = _folder("cifar")
    for name in CIFAR_BATCHES[1:]:
        if not (folder / name).exists():
            _put(folder / name, next(record_seeds()))
    _put(folder / CIFAR_BATCHES[0], data)
    for part in ("train", "test"):
        _look_at(lambda: cifar10(folder), part, lambda shape, kind: shape == (32, 32, 3) and kind == "uint8")


def record_seeds() -> Iterator[bytes]:
    yield bytes([7]) + bytes(range(256)) * 12
    yield (bytes([0]) + bytes(3072)) * 2


def _look_at(open_: Callable[[], Blocks], part: Any, fits: Callable[[tuple[int, ...], str], bool]) -> None:
    """Read all blocks of a part: each is what it says, or there is `DatasetError`."""
    try:
        blocks = open_()
        if part not in blocks.parts:
            return
        for block in blocks.parts[part]():
            features, labels = np.asarray(block.features()), np.asarray(block.labels())
            must(len(features) == len(labels) == block.count > 0, "a block of another length")
            must(labels.dtype == np.int64, "labels of another type")
            must(fits(features.shape[1:], str(features.dtype)), f"{features.dtype}{list(features.shape)} were read")
    except DatasetError as error:
        must(bool(str(error)), "an error without a word")


# ---------------------------------------------------------------- LEAF


def read_leaf(data: bytes) -> None:
    """A file of LEAF's JSON: rows or images, or `DatasetError`."""
    path = _put(_folder("leaf") / "all.json", data)
    _look_at(
        lambda: leaf(path),
        "train",
        lambda shape, kind: (shape == (28, 28) and kind == "uint8") or (len(shape) == 1 and kind == "float32"),
    )


def leaf_seeds() -> Iterator[bytes]:
    users = {"u": {"x": [[0.5, 1.0], [2, -3e4]], "y": [1, 0]}, "nobody": {"x": [], "y": []}}
    yield compact({"users": ["u", "nobody"], "num_samples": [2, 0], "hierarchies": [], "user_data": users})
    image = {"w": {"x": [[1.0] * 783 + [0.25]], "y": [61]}}
    yield compact({"users": ["w"], "num_samples": [1], "user_data": image})


# ---------------------------------------------------------------- one's own


def _read_own(suffix: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        """Examples, read the same for statistics and for models, or `DatasetError` that names the file."""
        path = _put(_folder("own") / f"mine{suffix}", data)
        readings = [partial(read_own, task="mlp"), partial(read_held, task="mlp"), partial(read_held, task="mean")]
        found: list[Dataset | None] = []
        for read in readings:
            try:
                found.append(read(path))
            except DatasetError as error:
                must(path.name in str(error), "an error that doesn't name the file")
                found.append(None)
        strict, model, gaps = found
        if model is None or gaps is None:
            must(strict is model is gaps is None, "a participant's file was refused by its values")
            return
        for one in (model, gaps) if strict is None else (strict, model, gaps):
            must(strict is None or content_sha256(one) == content_sha256(strict), "gaps allowed change what was read")
            must(len(one.features) == len(one.labels) and len(one.form()) == 1, "examples without labels")
            must(one.columns == () or one.features.shape[1:] == (len(one.columns),), "columns that aren't there")
        must(len(gaps) == len(model) + model.unread.rows, "rows that nobody counted")
        must(bool(unread_told("mlp", None, model, path)) >= bool(model.unread.rows), "rows left out without a word")
        if model.features.dtype.kind == "f":
            must(bool(np.isfinite(model.features).all()), "a gap where none may be")

    return run


CSV_SEEDS: Final = b"age,weight,label\n41,70.5,1\n8,-2e1,0\n", b'\xef\xbb\xbf"a ",b\r\n,nan\r\n"1",2\r\n', b"hours\n"


def npz_seeds() -> Iterator[bytes]:
    for members in (
        {"features": np.arange(6, dtype=np.float64).reshape(2, 3), "labels": np.array([1, 0])},
        {"features": np.array([[np.nan]], dtype=np.float32)},
        {"features": np.zeros((1, 2, 2), np.uint8), "labels": np.zeros((1, 2), np.uint8)},
    ):
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:  # always the same bytes, where numpy writes the time
            for name, array in members.items():
                inner = io.BytesIO()
                np.save(inner, array, allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), inner.getvalue())
        yield made.getvalue()


def change_csv(data: bytes, choose: Choices) -> bytes:
    """One cell, a line, or the text."""
    lines = data.split(b"\n")
    at = choose.below(len(lines))
    cells = lines[at].split(b",")
    match choose.below(5):
        case 0:
            return b"\n".join([*lines[: at + 1], *lines[at:]])
        case 1 | 2:
            cells[choose.below(len(cells))] = _CELLS[choose.below(len(_CELLS))]
        case 3:
            cells.pop()
        case _:
            return change_encoded(data, choose)
    return b"\n".join([*lines[:at], b",".join(cells), *lines[at + 1 :]])


_CELLS: Final = (
    *(b"", b"nan", b"-inf", b"1e39", b"1e400", b"0.5", b"9" * 30, b"9007199254740993", b"1_0", b"\xd9\xa3", b"label"),
    *(b'"', b'"a\nb"', b"\x00", b" 1 ", b"0x1p3", b"True", b"-0.0", b"a;b", b"\xff"),
)


# ---------------------------------------------------------------- prepared sets


def read_manifest(data: bytes) -> None:
    """A manifest beside good arrays: a set whose arrays are what they say, or `DatasetError`."""
    folder = _folder("prepared")
    if not (folder / "small").exists():
        _small(folder)
    _put(folder / "small" / MANIFEST, data)
    try:
        found = open_prepared("small", folder)
        for part in ("train", "test"):
            if found.has(part):  # type: ignore[arg-type]  # one of the two
                features, labels = found.rows(part, None)  # type: ignore[arg-type]
                must(len(features) == len(labels) == found.count(part), "a part of another length")  # type: ignore[arg-type]
                found.users(part)  # type: ignore[arg-type]
    except DatasetError as error:
        must(bool(str(error)), "an error without a word")


def _small(folder: Path) -> bytes:
    block = Block.of(np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 1]), "somebody")
    made = write_prepared(folder / "small", Blocks({"train": lambda: iter([block])}, ""), {"title": "Small"})
    return (made.folder / MANIFEST).read_bytes()


@cache
def _manifest() -> bytes:
    return _small(_folder("prepared-made"))


def manifest_seeds() -> Iterator[bytes]:
    yield _manifest()
    tree = json.loads(_manifest())
    yield compact({**tree, "arrays": {**tree["arrays"], "test_labels": tree["arrays"]["train_labels"]}})


_NUMBERS: Final = (b"nan", b"inf", b"1e39", b"label", b",", b'"', b"\r\n", b"\x00")
_MEMBERS: Final = (b"\x93NUMPY", b"'descr': '<f4'", b"'shape': (3,)", b"PK\x03\x04", b"features.npy", b"labels.npy")
TARGETS: Final = (
    Target("cifar_records", read_records, record_seeds, change_bytes, 8192),
    Target("leaf_json", read_leaf, leaf_seeds, json_mutation(compact), 8192),
    Target("own_csv", _read_own(".csv"), lambda: CSV_SEEDS, change_csv, 2048, _NUMBERS),
    Target("own_npz", _read_own(".npz"), npz_seeds, change_bytes, 4096, _MEMBERS),
    Target("prepared_manifest", read_manifest, manifest_seeds, json_mutation(compact), 4096),
)
