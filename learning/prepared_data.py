"""A prepared set: a folder with an ``.npy`` file for each array and ``manifest.json``, by ``sordino data prepare``.

Separate files and not one ``.npz``, since they can be mapped into memory: a process holds only the rows that it asks
for. Nothing in them is ever unpickled. The manifest says where the examples come from, under which licence, how they
were made, and the SHA-256 of every array; each array is checked against it before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Blocks, DatasetError, Part, file_sha256
from learning.data_names import BUILT_IN, OWN, PREPARABLE, data_folder
from runtime.durable import whole_folder
from runtime.text import did_you_mean

MANIFEST: Final = "manifest.json"
FORMAT: Final = "sordino prepared data 1"
_TYPES: Final = ("uint8", "float32", "int32", "int64")


@dataclass(frozen=True)
class PreparedSet:
    """A set as it lies on this machine.

    Attributes:
        folder: absolute.
        manifest: as read; see ``write_prepared``.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        """Digest of all arrays: two machines with the same one hold the same examples in the same order."""
        return str(self.manifest["sha256"])

    def known_by(self) -> str:
        return self.sha256

    def has(self, part: Part) -> bool:
        return f"{part}_labels" in self.manifest["arrays"]

    def count(self, part: Part) -> int:
        return int(self.manifest["arrays"][f"{part}_labels"]["shape"][0])

    def labels(self, part: Part) -> NDArray[np.int64]:
        """int64 (n,) or (n, L), mapped from the file."""
        labels: NDArray[np.int64] = self._array(f"{part}_labels")
        return labels

    def users(self, part: Part) -> NDArray[np.int32] | None:
        """(n,) the user of each example; None in a set without users."""
        return self._array(f"{part}_users") if f"{part}_users" in self.manifest["arrays"] else None

    def rows(self, part: Part, wanted: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Features and labels at ``wanted`` (None: all), in that order, as arrays of their own."""
        at: Any = slice(None) if wanted is None else wanted
        return np.array(self._array(f"{part}_features")[at]), np.array(self.labels(part)[at])

    def _array(self, member: str) -> NDArray[Any]:
        """An array, mapped, after its digest was checked: the file is read through once, a piece at a time.

        Raises DatasetError: the file is missing or isn't what the manifest says.
        """
        path, entry = self.folder / f"{member}.npy", self.manifest["arrays"][member]
        try:
            if file_sha256(path) != entry["sha256"]:
                raise self._damaged(path, "damaged (wrong SHA-256)")
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise self._damaged(path, (error.strerror or "unreadable").lower()) from error
        except DatasetError:
            raise
        except ValueError as error:
            raise self._damaged(path, "not an array") from error
        if str(array.dtype) != entry["dtype"] or list(array.shape) != entry["shape"] or entry["dtype"] not in _TYPES:
            raise self._damaged(path, f"an array of {array.dtype}{list(array.shape)}")
        return array

    def _damaged(self, path: Path, why: str) -> DatasetError:
        again = f"make it again: sordino data prepare {self.folder.name}"
        return DatasetError(f"data set file {path} is {why}; {again}")


def open_prepared(name: str, folder: Path | None = None) -> PreparedSet:
    """The set of this name in ``folder``, by default ``learning.data_names.data_folder``.

    Raises DatasetError: it doesn't exist, or its manifest can't be read.
    """
    base = (data_folder() if folder is None else folder).absolute()
    path = base / name / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        others = [one.folder.name for one in prepared_sets(base)]
        if name in PREPARABLE:
            raise DatasetError(
                f"data set {name!r} is not prepared in {base} yet. Make it: sordino data prepare {name}"
            ) from None
        known = (*dict.fromkeys((*BUILT_IN, *others, *PREPARABLE)), OWN)
        raise DatasetError(
            f"data set {name!r} is unknown.{did_you_mean(name, known)} Use one of {', '.join(known)}, or "
            "FORMAT:PATH; sordino data list describes them"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} can't be read ({error}); make it again: sordino data prepare {name}") from error
    try:
        if manifest["format"] != FORMAT:
            raise KeyError("format")
        arrays = {str(member): entry["sha256"] for member, entry in manifest["arrays"].items()}
        if manifest["sha256"] != _digest_of_all(arrays):
            raise KeyError("sha256")
        _check_parts(manifest)
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise DatasetError(
            f"{path} is not the manifest of a prepared set ({error}); make it again: sordino data prepare {name}"
        ) from None
    return PreparedSet(base / name, manifest)


def _check_parts(manifest: Mapping[str, Any]) -> None:
    """Whether there is a part to train with, and each part's arrays and figures are of one length.

    Raises KeyError, TypeError: not so; it names what.
    """
    arrays = manifest["arrays"]
    for part in ("train", "test"):
        if part == "test" and not any(f"test_{what}" in arrays for what in ("features", "labels", "users")):
            continue
        count = manifest[part]["examples"]
        for member in (f"{part}_features", f"{part}_labels", *([f"{part}_users"] if f"{part}_users" in arrays else [])):
            shape = arrays[member]["shape"]
            sound = isinstance(shape, list) and all(type(extent) is int and extent >= 0 for extent in shape)
            if not sound or shape[:1] != [count] or arrays[member]["dtype"] not in _TYPES:
                raise KeyError(member)
        for figure in ("users", "classes"):
            if type(manifest[part].get(figure, 0)) is not int:
                raise KeyError(figure)


def prepared_sets(folder: Path) -> list[PreparedSet]:
    """Every set in a folder, by name; what can't be read is left out."""
    found = []
    for path in sorted(folder.glob(f"*/{MANIFEST}")):
        try:
            found.append(open_prepared(path.parent.name, folder))
        except DatasetError:
            continue
    return found


def write_prepared(folder: Path, blocks: Blocks, about: Mapping[str, Any]) -> PreparedSet:
    """Write a set; readers see the old one or the new one, whole.

    Args:
        folder: to make or to replace; its name is the set's.
        about: further keys of the manifest, JSON values: title, source, licence, how it was made.

    Raises OSError: it can't be written; ValueError: blocks of one part differ in type or shape.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent)
    with beside as old, whole_folder(folder) as work:
        arrays: dict[str, Any] = {}
        figures: dict[str, Any] = {}
        for part in blocks.parts:
            made, figures[part] = _write_part(work, part, blocks)
            arrays |= made
        digests = {member: entry["sha256"] for member, entry in arrays.items()}
        manifest = dict(about) | figures | {"format": FORMAT, "arrays": arrays, "sha256": _digest_of_all(digests)}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        work.chmod(0o755)
        if folder.exists():
            os.replace(folder, Path(old) / "old")
    return open_prepared(folder.name, folder.parent)


def _write_part(work: Path, part: Part, blocks: Blocks) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays of a part, and its figures for the manifest."""
    count = blocks.count(part)
    targets: dict[str, Any] = {}
    classes = np.zeros(0, dtype=np.int64)
    row = 0
    for block in blocks.parts[part]():
        features, labels = np.asarray(block.features()), np.asarray(block.labels(), dtype=np.int64)
        for member, values in (("features", features), ("labels", labels)):
            if member not in targets:
                targets[member] = np.lib.format.open_memmap(
                    work / f"{part}_{member}.npy", mode="w+", dtype=values.dtype, shape=(count, *values.shape[1:])
                )
            target = targets[member]
            if values.dtype != target.dtype or values.shape != (block.count, *target.shape[1:]):
                raise ValueError(f"a block of {part} {member} is {values.dtype}{list(values.shape)}")
            target[row : row + block.count] = values
        classes = np.union1d(classes, labels)
        row += block.count
    for target in targets.values():
        target.flush()
    figures: dict[str, Any] = {"examples": count}
    users = blocks.users(part)
    if users is not None:
        np.save(work / f"{part}_users.npy", users.astype(np.int32), allow_pickle=False)
        figures["users"] = len(np.unique(users))
    figures["classes"] = len(classes)
    arrays = {}
    for path in sorted(work.glob(f"{part}_*.npy")):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays[path.stem] = {"dtype": str(array.dtype), "shape": list(array.shape), "sha256": file_sha256(path)}
    return arrays, figures


def _digest_of_all(arrays: Mapping[str, str]) -> str:
    lines = "".join(f"{member} {sha256}\n" for member, sha256 in sorted(arrays.items()))
    return hashlib.sha256(f"{FORMAT}\n{lines}".encode()).hexdigest()
