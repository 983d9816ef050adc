"""Checkpoints of a study's model: one .safetensors file, written whole or not at all.

Parameters have their own names, arrays of the server's optimizer have ``optimizer/`` before theirs. The format's
metadata has one entry, ``sordino``: JSON with ``format``, both lists of names in order, the study's metadata, and
``digest``, SHA-256 over all of these and every array's dtype, shape and bytes. Nothing in the file is ever unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.parameters import Parameters, Shapes, described, shapes_of
from runtime.durable import sync_folder
from runtime.failure import InputFailure

FORMAT: Final = 2
_ABOUT: Final = "sordino"
_STATE: Final = "optimizer/"


class CheckpointError(InputFailure, ValueError):
    """A checkpoint file is damaged or not a checkpoint; the message names it."""


@dataclass(frozen=True)
class Checkpoint:
    """The model after some round.

    Attributes:
        parameters: float32 arrays, in the order of the flat vector.
        optimizer_state: what the server optimizer's ``state`` returned.
        metadata: JSON values (round, study, task, ...); no NaN or infinity.
    """

    parameters: Parameters
    optimizer_state: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> str:
    """Write a checkpoint and return its SHA-256 digest in hex; the same content makes the same bytes.

    The file is written beside ``path``, synced and renamed over it, and the folder synced: after a power cut there is
    the old file or the new one, never a part.

    Raises CheckpointError: metadata that is not JSON; OSError: the folder cannot be written; an older file at ``path``
    stays.
    """
    arrays: dict[str, NDArray[Any]] = {
        name: np.ascontiguousarray(one, "<f4") for name, one in checkpoint.parameters.items()
    }
    state = {_STATE + name: np.ascontiguousarray(one, "<f8") for name, one in checkpoint.optimizer_state.items()}
    if arrays.keys() & state.keys():
        raise CheckpointError(f"a parameter for checkpoint {path} is named like an array of the optimizer: rename it")
    arrays |= state
    about = {
        "format": FORMAT,
        "parameters": list(checkpoint.parameters),
        "optimizer": list(checkpoint.optimizer_state),
        "metadata": dict(checkpoint.metadata),
    }
    try:
        about["digest"] = _digest(about, arrays)
        text = json.dumps(about, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the metadata of checkpoint {path} is not JSON: {error}") from error
    _write_atomically(path, arrays, text)
    return str(about["digest"])


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check its digest.

    Raises FileNotFoundError: it doesn't exist: a study that has completed no round; CheckpointError: the file is
    damaged, of another format, or not a checkpoint.
    """
    from safetensors import safe_open

    if not path.exists():  # the library's own error names no file
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if path.suffix == ".npz":
        return _load_npz(path)
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()[_ABOUT])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        if about["format"] != FORMAT:
            found = about["format"]
            raise CheckpointError(f"checkpoint {path} has format {found}; this release reads {FORMAT}")
        if about.pop("digest") != _digest(about, arrays):
            raise CheckpointError(f"checkpoint {path} is damaged: its digest does not match its content")
        if any(array.dtype not in ("<f4", "<f8") for array in arrays.values()):
            raise CheckpointError(f"checkpoint {path} holds other values than float32 and float64")
        return Checkpoint(
            {name: arrays[name].astype(np.float32, copy=False) for name in about["parameters"]},
            {name: arrays[_STATE + name].astype(np.float64, copy=False) for name in about["optimizer"]},
            dict(about["metadata"]),
        )
    except CheckpointError:
        raise
    except Exception as error:  # the library and json raise several kinds over damaged bytes
        raise CheckpointError(f"checkpoint {path} is damaged or not a checkpoint") from error


@dataclass(frozen=True)
class SavedModel:
    """What a study has learned, for use elsewhere.

    Attributes:
        parameters: float32 arrays by their names, in the order of the task's ``initial_parameters``; of a statistic the
            mean contribution.
        study: its name.
        task: as ``--task`` names it.
        round: after whose sum it was written, from 1.
    """

    parameters: Parameters
    study: str
    task: str
    round: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as .safetensors, for `load_model` and other readers of the format. Raises as `save_checkpoint`."""
        about = {"study": self.study, "task": self.task, "round": self.round}
        save_checkpoint(Path(path), Checkpoint(self.parameters, {}, about))


def load_arrays(path: Path, shapes: Shapes) -> Parameters:
    """Read those arrays of a .safetensors file that have these names, float32, in this order; others may be there too.

    Raises CheckpointError: it can't be read, or an array is missing, of another shape, or not of finite numbers.
    """
    from safetensors.numpy import load_file

    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        found = load_file(path)
    except Exception as error:  # the library raises several kinds over damaged bytes
        raise CheckpointError(f"{path} is no .safetensors file of float16, float32 or float64, or damaged") from error
    arrays = {name: found[name].astype(np.float32, copy=False) for name in shapes if name in found}
    if shapes_of(arrays) != {name: tuple(shape) for name, shape in shapes.items()}:
        raise CheckpointError(f"{path} has {described(shapes_of(found))}; the model has {described(shapes)}")
    if not all(np.isfinite(one).all() for one in arrays.values()):
        raise CheckpointError(f"{path} holds NaN or infinity")
    return arrays


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read the model that ``sordino serve`` or ``sordino simulate --output`` has written; the file is never unpickled.

    ``path``: such as ``my-study/coordinator/checkpoints/round-000040.safetensors``, or ``run.jsonl.safetensors``.

    Raises CheckpointError: there is no such file, its digest shows that it is damaged, or it is no model of a study.
    """
    try:
        found = load_checkpoint(Path(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    about, round_ = found.metadata, found.metadata.get("round", 0)
    if type(round_) is not int:
        raise CheckpointError(f"{path} is no model of a study: its round is no whole number")
    return SavedModel(found.parameters, str(about.get("study", "")), str(about.get("task", "")), round_)


def _load_npz(path: Path) -> Checkpoint:
    """What releases before .safetensors wrote: a study that one of them began goes on from it.

    Members: ``header`` (JSON), ``p0``, ``p1``, ... (parameters), ``o0``, ... (optimizer) and ``digest``.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
        header, stated = members.pop("header").tobytes(), members.pop("digest").tobytes()
        digest = hashlib.sha256(f"sordino checkpoint 1 {len(header)} ".encode() + header)
        for name, array in sorted(members.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        if digest.digest() != stated:
            raise ValueError("its digest does not match its content")
        about = json.loads(header)
        return Checkpoint(
            {name: members[f"p{at}"].astype(np.float32) for at, name in enumerate(about["parameters"])},
            {name: members[f"o{at}"].astype(np.float64) for at, name in enumerate(about["optimizer"])},
            dict(about["metadata"]),
        )
    except Exception as error:  # zipfile, numpy and json raise a dozen kinds over damaged bytes
        raise CheckpointError(f"checkpoint {path} of an earlier release is damaged or not a checkpoint") from error


def _digest(about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, allow_nan=False).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write_atomically(path: Path, arrays: Mapping[str, NDArray[Any]], about: str) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    part = path.with_name(f".{path.name}.part")
    try:
        try:
            save_file(dict(arrays), part, {_ABOUT: about})
        except SafetensorError as error:  # the library hides the operating system's
            if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(0o600)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)  # the rename must survive a power cut too
