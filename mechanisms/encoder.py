"""From an update to the integers that are masked, and from their sum back to the mean.

Client: clip -> rotate -> scale by 1 / granularity -> conditional stochastic rounding -> discrete Gaussian
noise -> mod 2^B. Coordinator: centre -> scale back -> rotate back -> divide by |u3|. Source: [KLS21]
Algorithms 1 and 2. Both sides build the same `Encoder` from the same frozen plan and public seed.

The wrap modulo 2^B, masking and summing happen after the noise and cost no privacy; a sum that wraps costs
accuracy only, and `Plan.k_stddevs` says how rarely it does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.clipping import clip_l2
from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.plan import Plan
from mechanisms.randomness import RandomBytes
from mechanisms.rotation import Rotation
from mechanisms.rounding import RoundingFailed, conditional_round

__all__ = ["Encoder", "InvalidUpdate", "RoundingFailed", "word_dtype"]

Words = NDArray[np.unsignedinteger[Any]]

_WORDS: Final = (8, 16, 32, 64)


class InvalidUpdate(ValueError):
    """An update that cannot be encoded: wrong length or type, or a value that is infinite or not a number."""


def word_dtype(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest little-endian unsigned word that holds ``bits`` bits."""
    return np.dtype(f"<u{next(width for width in _WORDS if width >= bits) // 8}")


class Encoder:
    """Encode updates and decode sums of one attempt.

    Args:
        plan: the public plan.
        rotation_seed: 32 public bytes that nobody chose, a hash of the cohort's context.

    Raises:
        ValueError: the seed has another length.
    """

    def __init__(self, plan: Plan, rotation_seed: bytes) -> None:
        self.plan = plan
        self._rotation = Rotation(rotation_seed, plan.dim)
        self._noise = discrete_gaussian(plan.local_variance)
        self._dtype = word_dtype(plan.bits)
        self._mask = np.int64((1 << plan.bits) - 1)

    def encode(self, update: NDArray[Any], random_bytes: RandomBytes) -> Words:
        """Clip, rotate, round, add one noise share, wrap. Call it once per attempt; never resend under other
        noise.

        Args:
            update: (dim,) float16, float32 or float64, data units, finite.
            random_bytes: private randomness, ``os.urandom`` in deployment; 64 bytes are drawn.

        Returns:
            (padded_dim,) words of `word_dtype`, values in [0, 2^bits).

        Raises:
            InvalidUpdate: wrong length or dtype, NaN or infinity.
            RoundingFailed: no rounding met the norm bound; nothing may be sent.
            RandomnessFailed: the source gave a wrong length.
        """
        vector = self._checked(update)
        scaled = self._rotation.forward(clip_l2(vector, self.plan.clip))
        scaled *= 1 / self.plan.granularity
        values = conditional_round(scaled, self.plan.squared_norm_limit, random_bytes)
        self._noise.add(values, random_bytes)
        values &= self._mask  # two's complement: the residue in [0, 2^bits)
        return values.astype(self._dtype)

    def decode_sum(self, total: Words, survivors: int) -> NDArray[np.float64]:
        """The mean of the survivors' updates, with the noise of all their shares.

        Args:
            total: (padded_dim,) sum of encoded vectors, reduced mod 2^bits, unsigned integers.
            survivors: |u3|, how many vectors the sum holds.

        Returns:
            (dim,) float64, data units.

        Raises:
            ValueError: wrong length or dtype, a value not reduced, or survivors outside
                min_survivors..clients.
        """
        plan = self.plan
        if not plan.min_survivors <= survivors <= plan.clients:
            raise ValueError(f"{survivors} survivors: the plan covers {plan.min_survivors} to {plan.clients}")
        if total.shape != (plan.padded_dim,) or total.dtype.kind != "u":
            raise ValueError(f"a sum is a vector of {plan.padded_dim} unsigned integers")
        if int(total.max()) >> plan.bits:
            raise ValueError(f"a sum holds values below 2^{plan.bits}")
        centred = total.astype(np.int64)
        centred[centred >= 1 << (plan.bits - 1)] -= 1 << plan.bits
        mean = self._rotation.inverse(centred.astype(np.float64))
        mean *= plan.granularity / survivors
        return mean

    def _checked(self, update: NDArray[Any]) -> NDArray[np.float64]:
        if not isinstance(update, np.ndarray) or update.dtype.kind != "f" or update.dtype.itemsize > 8:
            raise InvalidUpdate("an update is an array of float16, float32 or float64")
        if update.shape != (self.plan.dim,):
            raise InvalidUpdate(f"the update has shape {update.shape}, the plan needs ({self.plan.dim},)")
        if not np.all(np.isfinite(update)):
            raise InvalidUpdate("the update holds NaN or infinite values")
        return update.astype(np.float64)
