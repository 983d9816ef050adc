"""What a study learns: as participants fetch it, changed by each sum, kept as a checkpoint."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learning.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from learning.learner import Learner
from learning.parameters import flatten
from learning.task import Task, reported_of
from mechanisms.encoder import Decoded, Encoder
from mechanisms.plan import Plan
from mechanisms.statement import GAUSSIAN
from runtime.failure import InputFailure
from secagg.server_unmasking import Completed
from wire.round_model import model_sha256, write_model, write_step


@dataclass(frozen=True)
class Learned:
    """The result of one sum."""

    sum_sha256: bytes | None  # None where the sum holds no noise: then not even its digest is revealed
    decoded: Decoded
    evaluation: dict[str, float]
    released: dict[str, Any]  # the statistic so far, where the study seeks one
    clips: tuple[float, ...]  # that the sum was made with
    next_clips: tuple[float, ...]  # of the next round
    reported: dict[str, float]  # what participants say of the model that the round began from


class TrainedModel:
    """Learner and clips between rounds. Its methods compute or write; none of them on the event loop."""

    def __init__(self, study: str, task: Task, learner: Learner, plan: Plan, folder: Path) -> None:
        """``folder``: that of the checkpoints."""
        self._study, self._task, self._learner, self._plan, self._folder = study, task, learner, plan, folder
        self.clips = plan.clipping.clips  # of the next round
        self._shown = b""  # the SHA-256 of what was serialised last
        self._step = b"", b"", b""  # the SHA-256 before, that of now, and the step between them

    def serialised(self) -> tuple[bytes, bytes]:
        """The model with the clips of the next round, as participants fetch it, and its SHA-256."""
        data = write_model(flatten(self._learner.broadcast()), self.clips, self._plan.clipping)
        sha256, step = hashlib.sha256(data).digest(), self._learner.step()
        if sha256 != self._shown:  # else of a further attempt
            written = b"" if step is None else write_step(step, self.clips, self._plan.clipping)
            self._step = self._shown, sha256, written if len(written) < len(data) else b""
            self._shown = sha256
        return data, sha256

    def step(self, before: bytes, sha256: bytes) -> bytes:
        """What makes the model of one SHA-256 from that of another (`wire.round_model`); empty where it isn't known."""
        return self._step[2] if self._step[:2] == (before, sha256) else b""

    def sha256(self) -> bytes:
        """Of what `serialised` gives, without making those bytes."""
        return model_sha256(flatten(self._learner.broadcast()), self.clips, self._plan.clipping)

    def learn(self, completed: Completed) -> Learned:
        """Decode a sum, apply it, and evaluate the outcome on the coordinator's own data."""
        # Little-endian words of secagg.masking.word_dtype, as the core makes them. Not even the digest
        # of a sum without noise is revealed, since the sum could be guessed from it.
        bare = self._plan.mechanism == GAUSSIAN
        encoder, survivors = Encoder(self._plan, completed.cohort_context, self.clips), len(completed.u3)
        total = encoder.without_surplus(completed.total, survivors, completed.noise_seeds.values())
        sum_sha256 = None if bare else hashlib.sha256(total.data).digest()
        # The operating system's randomness is drawn on only where the coordinator adds the noise.
        decoded = encoder.decode(total, survivors, os.urandom, survivors - len(completed.noise_seeds))
        self._learner.learn(decoded.mean, len(completed.u3), decoded.stddev)
        decoded = replace(decoded, mean=decoded.mean[:0].copy())
        clips, self.clips = self.clips, self._plan.clipping.updated(self.clips, decoded.below)
        reported = reported_of(self._task, decoded.measured)
        return Learned(
            sum_sha256, decoded, self._learner.evaluate(), self._learner.released(), clips, self.clips, reported
        )

    def save(self, round_: int) -> str:
        """Write a checkpoint, durable when this returns; its name."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"round-{round_:06d}.safetensors"
        about = {"study": self._study, "task": self._task.name, "round": round_}
        save_checkpoint(self._folder / name, Checkpoint(*self._learner.state(), about))
        return name

    def restore(self, name: str, clips: tuple[float, ...]) -> None:
        """Go on from a checkpoint.

        ``clips``: of the next round; empty where the journal doesn't have them, as the plan's are used.

        Raises InputFailure: it is gone, damaged, or another task's.
        """
        try:
            self.clips = self._plan.clipping.checked(clips or self.clips)
            loaded = load_checkpoint(self._folder / name)
            self._learner.load_state(loaded.parameters, loaded.optimizer_state)
        except ValueError as error:
            raise InputFailure(str(error)) from error
