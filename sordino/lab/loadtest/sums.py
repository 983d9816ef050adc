"""What each sum of a load test must be: exactly that of known vectors, or noise of the planned size.

The vectors are pure functions of the seed, so the sum of any set of survivors is known exactly. They come from a
keystream made here, without `secagg.masking`, which the load test checks.

A sum of zero updates is only the survivors' noise shares: its d coordinates are draws from a law whose deviation the
plan states. The coordinator keeps the model after each round; the change of the model times the number of survivors is
the decoded sum.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from mechanisms.encoder import word_dtype
from mechanisms.plan import Plan
from sordino.lab.loadtest.faults import digest

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
_BLOCK: Final = 16


def identities_of(study: Path) -> list[bytes]:
    """Of all participants of a study's folder, in the order of the roster."""
    roster = json.loads((study / "roster.json").read_text())
    return [bytes.fromhex(entry["identity"]) for entry in roster["participants"]]


def vector(seed: int, round_: int, attempt: int, identity: bytes, *, dim: int, bits: int) -> Words:
    """One participant's vector: uniform modulo 2^bits, words of `mechanisms.encoder.word_dtype`.

    ``identity``: the participant's public key, 32 bytes; ``dim``: of the vector that is sent, padding included.
    """
    dtype = word_dtype(bits)
    key = digest(b"vector", seed, round_, attempt, identity)[:16]
    size = dim * dtype.itemsize
    stream = np.empty(size + _BLOCK, dtype=np.uint8)  # update_into requires room for one block more
    Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor().update_into(bytes(size), stream.data)
    words: Words = stream[:size].view(dtype)
    words &= dtype.type((1 << bits) - 1)
    return words


def plain_sum(seed: int, round_: int, attempt: int, identities: Iterable[bytes], *, dim: int, bits: int) -> Words:
    """The sum of these participants' vectors modulo 2^bits, without any mask."""
    dtype = word_dtype(bits)
    total: Words = np.zeros(dim, dtype=dtype)
    for identity in identities:
        total += vector(seed, round_, attempt, identity, dim=dim, bits=bits)  # wraps at the word, a multiple of 2^bits
    total &= dtype.type((1 << bits) - 1)
    return total


def sum_digest(total: Words) -> str:
    """SHA-256 of the words, hexadecimal: the field ``sum_sha256`` of `server.events.RoundCompleted`."""
    return hashlib.sha256(total.tobytes()).hexdigest()


_STDERRS: Final = 6.0
"""A right sum deviates by more once in five hundred million."""
_FLOAT32: Final = 1e-4  # what is lost where the model is kept


@dataclass(frozen=True)
class NoiseSeen:
    """Of one sum, under the names of result.json; deviations in data units.

    Attributes:
        h: |u3| - A: the noise shares that count.
        achieved_stddev: root mean square of the sum's coordinates.
        expected_stddev: of the noise that stays of all survivors.
        planned_central_stddev: the deviation that the accounting counts on, at h_min.
        planned_at_h: of what stays if all survivors take back what they can.
        ratio_stderr: standard error of ``ratio``.
    """

    round: int
    survivors: int
    h: int
    achieved_stddev: float
    expected_stddev: float
    planned_central_stddev: float
    planned_at_h: float
    ratio_stderr: float

    @property
    def ratio(self) -> float:
        return self.achieved_stddev / self.expected_stddev

    @property
    def fits(self) -> bool:
        """Whether the sum can consist of these noise shares only; a mask left in it would make it uniform."""
        return abs(self.ratio - 1) <= _STDERRS * self.ratio_stderr + _FLOAT32

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": round(self.ratio, 5), "ratio_stderr": round(self.ratio_stderr, 5)}


def noise_in(plan: Plan, round_: int, survivors: int, answers: int, total: NDArray[np.float64]) -> NoiseSeen:
    """Measure the noise in a decoded sum of zero updates.

    Args:
        answers: survivors that revealed their shares, and the seeds of their surplus noise.
        total: (dim,) data units.
    """
    honest = survivors - plan.colluders
    stays, whole = plan.share_variance(plan.local_variance, survivors), plan.local_variance
    return NoiseSeen(
        round=round_,
        survivors=survivors,
        h=honest,
        achieved_stddev=math.sqrt(float(np.mean(np.square(total)))),
        expected_stddev=plan.granularity * math.sqrt(stays * answers + whole * (survivors - answers)),
        planned_central_stddev=plan.central_stddev,
        planned_at_h=plan.granularity * math.sqrt(stays * max(honest, 0)),
        ratio_stderr=1 / math.sqrt(2 * len(total)),
    )


def decoded_sum(checkpoints: Path, round_: int, survivors: int) -> NDArray[np.float64]:
    """A round's sum in data units, from the models before and after it (`server_rate` 1, the first one zeros).

    Raises ValueError: a checkpoint is gone or damaged.
    """
    after = _model(checkpoints, round_)
    before = _model(checkpoints, round_ - 1) if round_ > 1 else np.zeros_like(after)
    return (after - before) * survivors


def figures(seen: Sequence[NoiseSeen]) -> Mapping[str, Any] | None:
    """Of all rounds together, and of each."""
    if not seen:
        return None
    ratio = math.sqrt(sum(one.ratio**2 for one in seen) / len(seen))
    excess = [(one.achieved_stddev / one.planned_central_stddev) ** 2 * one.h / one.survivors for one in seen]
    return {
        "ratio": round(ratio, 5),
        "ratio_stderr": round(seen[0].ratio_stderr / math.sqrt(len(seen)), 5),
        # Variance of the honest survivors' noise over what the plan needs.
        "honest_over_needed": [round(min(excess), 5), round(sum(excess) / len(seen), 5), round(max(excess), 5)],
        "rounds": [one.to_json() for one in seen],
    }


def _model(folder: Path, round_: int) -> NDArray[np.float64]:
    from learning.checkpoints import load_checkpoint
    from learning.parameters import flatten

    parameters = load_checkpoint(folder / f"round-{round_:06d}.safetensors").parameters
    return flatten(parameters).astype(np.float64)
