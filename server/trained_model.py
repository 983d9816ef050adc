"""The model that a study trains: as participants fetch it, changed by each sum, kept as a checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from learning.datasets import Dataset
from learning.parameters import flatten, shapes_of, unflatten
from learning.server_optimizers import FedAvg
from learning.task import Task
from mechanisms.clip_rule import ClipRule
from mechanisms.encoder import Decoded, Encoder
from mechanisms.plan import Plan
from mechanisms.statement import GAUSSIAN
from secagg.unmasking import Completed
from wire.round_model import write_model


@dataclass(frozen=True)
class Learned:
    """What a sum taught."""

    sum_sha256: bytes | None  # None where the sum holds no noise: nobody is told of it, not even by a digest
    decoded: Decoded
    evaluation: dict[str, float]
    clips: tuple[float, ...]  # that the sum was made with


class TrainedModel:
    """Model, clips and optimiser between rounds. Its methods compute or write; none of them on the event loop."""

    def __init__(
        self, study: str, task: Task, test_data: Dataset, plan: Plan, optimizer: FedAvg, folder: Path
    ) -> None:
        """Args: folder is that of the checkpoints."""
        self._study, self._task, self._test_data, self._plan = study, task, test_data, plan
        self._optimizer, self._folder = optimizer, folder
        self._shapes = shapes_of(task.initial_parameters())
        self.vector: NDArray[np.float32] = flatten(task.initial_parameters())
        self.clips = plan.clipping.clips  # of the next round

    def serialised(self) -> tuple[bytes, bytes]:
        """The model with the clips of the next round, as participants fetch it, and its SHA-256."""
        return serialised(self.vector, self.clips, self._plan.clipping)

    def learn(self, completed: Completed) -> Learned:
        """Decode a sum, apply it, and evaluate the outcome on the coordinator's own data."""
        # Little-endian words of secagg.masking.word_dtype, as the core makes them. A sum without its noise is told to
        # nobody, not even as a digest, by which it could be guessed.
        bare = self._plan.mechanism == GAUSSIAN
        sum_sha256 = None if bare else hashlib.sha256(completed.total).digest()
        # The operating system's randomness is drawn on only where the coordinator adds the noise.
        encoder = Encoder(self._plan, completed.cohort_context, self.clips)
        decoded = encoder.decode(completed.total, len(completed.u3), os.urandom)
        self.vector = self._optimizer.apply(self.vector, decoded.mean)
        clips, self.clips = self.clips, self._plan.clipping.updated(self.clips, decoded.below)
        evaluation = self._task.evaluate(unflatten(self.vector, self._shapes), self._test_data)
        return Learned(sum_sha256, decoded, evaluation, clips)

    def save(self, round_: int) -> str:
        """Write a checkpoint, durable when this returns; its name."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"round-{round_:06d}.npz"
        about = {"study": self._study, "task": self._task.name, "round": round_}
        parameters = unflatten(self.vector, self._shapes)
        save_checkpoint(self._folder / name, Checkpoint(parameters, self._optimizer.state(), about))
        return name

    def restore(self, name: str, figures: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Args:
            figures: of the round that it was written after.

        Raises:
            ValueError: it is gone or damaged.
        """
        self.clips = self._plan.clipping.checked(tuple(figures.get("next_clips", self.clips)))
        loaded = load_checkpoint(self._folder / name)
        self.vector = flatten(loaded.parameters)
        self._optimizer.load_state(loaded.optimizer_state)


def serialised(model: NDArray[np.float32], clips: Sequence[float], rule: ClipRule) -> tuple[bytes, bytes]:
    """A model as participants fetch it, and its SHA-256."""
    data = write_model(model, clips, rule)
    return data, hashlib.sha256(data).digest()
