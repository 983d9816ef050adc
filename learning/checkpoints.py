"""Checkpoints of a study's model: one .npz file, written whole or not at all.

Layout, fixed by ``FORMAT``: ``header`` (UTF-8 JSON as bytes: format, parameter names in order, optimizer array names in
order, metadata), ``p0``, ``p1``, ... (parameters), ``o0``, ... (optimizer), ``digest`` (SHA-256 over the header and
every array's dtype, shape and bytes). Nothing in it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.parameters import Parameters
from runtime.durable import sync_folder

FORMAT: Final = 1


class CheckpointError(ValueError):
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
    try:
        header = json.dumps(
            {
                "format": FORMAT,
                "parameters": list(checkpoint.parameters),
                "optimizer": list(checkpoint.optimizer_state),
                "metadata": dict(checkpoint.metadata),
            },
            allow_nan=False,
        ).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the metadata of checkpoint {path} is not JSON: {error}") from error
    arrays: dict[str, NDArray[Any]] = {}
    for index, parameter in enumerate(checkpoint.parameters.values()):
        arrays[f"p{index}"] = parameter.astype("<f4", order="C", copy=False)
    for index, state in enumerate(checkpoint.optimizer_state.values()):
        arrays[f"o{index}"] = state.astype("<f8", order="C", copy=False)
    digest = _digest(header, arrays)
    arrays["header"] = np.frombuffer(header, dtype=np.uint8)
    arrays["digest"] = np.frombuffer(digest, dtype=np.uint8)
    _write_atomically(path, arrays)
    return digest.hex()


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check its digest.

    Raises FileNotFoundError: it doesn't exist: a study that has completed no round; CheckpointError: the file is
    damaged, of another format, or not a checkpoint.
    """
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
        header = members.pop("header").tobytes()
        digest = members.pop("digest").tobytes()
        if digest != _digest(header, members):
            raise CheckpointError(f"checkpoint {path} is damaged: its digest does not match its content")
        fields = json.loads(header)
        if fields["format"] != FORMAT:
            found = fields["format"]
            raise CheckpointError(f"checkpoint {path} has format {found}; this release reads {FORMAT}")
        parameters = {name: members.pop(f"p{index}") for index, name in enumerate(fields["parameters"])}
        state = {name: members.pop(f"o{index}") for index, name in enumerate(fields["optimizer"])}
        return Checkpoint(
            {name: array.astype(np.float32) for name, array in parameters.items()},
            {name: array.astype(np.float64) for name, array in state.items()},
            dict(fields["metadata"]),
        )
    except CheckpointError:
        raise
    except Exception as error:  # zipfile, numpy and json raise a dozen kinds over damaged bytes
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


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read the model that ``sordino serve`` or ``sordino simulate --output`` has written; the file is never unpickled.

    ``path``: such as ``my-study/coordinator/checkpoints/round-000040.npz``, or ``run.jsonl.npz``.

    Raises FileNotFoundError: there is no such file; CheckpointError: its digest shows that it is damaged, or it is no
    model of a study.
    """
    found = load_checkpoint(Path(path))
    about = found.metadata
    return SavedModel(
        found.parameters, str(about.get("study", "")), str(about.get("task", "")), int(about.get("round", 0))
    )


def _digest(header: bytes, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    digest = hashlib.sha256(f"sordino checkpoint {FORMAT} {len(header)} ".encode())
    digest.update(header)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _write_atomically(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Array by array, so that a large model isn't in memory once more as a file."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)  # the rename must survive a power cut too
