"""cpSGD: distributed mean estimation under binomial noise on the integer grid, a share from each participant.

Client: clip, rotate, scale, round conditionally, add Bin(m, 1/2) - m / 2 to each coordinate, wrap; coordinator: centre,
scale back, rotate back, divide. With h honest shares the sum's noise is binomial again, of N = h m trials.

Theorem: [ASY+18] Theorem 1 at p = 1/2, up to epsilon 1 a round (`mechanisms.baselines.binomial_noise` gives the
reason). No Renyi curve is known for it, so rounds compose by `mechanisms.baselines.composition`, each charged at h_min,
fixed in advance.

Adjacency: zero-out, one participant's update against zero, its noise share present. Trusts: the secure sum, and that at
least h_min = min_survivors - A honest participants added their shares; not the coordinator, which sees the sum alone.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mechanisms.baselines.binomial_noise import binomial
from mechanisms.baselines.binomial_plan import BinomialPlan
from mechanisms.clipping import clip_l2
from mechanisms.encoder import Words, centred_sum, checked_update
from mechanisms.randomness import RandomBytes
from mechanisms.rotation import Rotation
from mechanisms.rounding import RoundingFailed, conditional_round


class NotRenyi(ValueError):
    """A Renyi curve was asked of a mechanism that has none."""


def renyi_curve(plan: BinomialPlan, honest: int) -> NoReturn:
    """There is none. Raises NotRenyi: always, saying why."""
    raise NotRenyi(
        f"binomial noise ({plan.trials_per_share} trials a share) is bounded as (epsilon, delta) only, [ASY+18] "
        "Theorem 1: compose its rounds with basic or advanced composition, or use ddgauss or skellam for Renyi curves"
    )


class BinomialEncoder:
    """Encode updates and decode sums of one attempt; both sides build it from the same plan and public seed.

    ``rotation_seed``: 32 public bytes that no party chose.

    Raises ValueError: the seed has another length.
    """

    def __init__(self, plan: BinomialPlan, rotation_seed: bytes) -> None:
        self.plan = plan
        self._rotation = Rotation(rotation_seed, plan.dim, plan.rotation)
        self._noise = binomial(plan.trials_per_share)
        l2_bound, self._largest = plan.sensitivities[1:]
        self._squared_limit = math.floor(Fraction(l2_bound) ** 2)
        self._mask = np.int64((1 << plan.bits) - 1)
        self._dtype = np.min_scalar_type((1 << plan.bits) - 1).newbyteorder("<")

    def encode(self, update: NDArray[Any], random_bytes: RandomBytes) -> Words:
        """Clip, rotate, round, add one share of noise, wrap. Once per attempt; never resend under other noise.

        Args, returns and errors as `mechanisms.encoder.Encoder.encode`.
        """
        plan = self.plan
        values = checked_update(update, (plan.dim,))
        scaled = self._rotation.forward(clip_l2(values.astype(np.float64), plan.clip))
        scaled *= 1 / plan.granularity
        rounded = conditional_round(scaled, self._squared_limit, random_bytes)
        if int(np.abs(rounded).max()) > self._largest:
            raise RoundingFailed("a coordinate exceeds the clip; was the update clipped?")
        self._noise.add(rounded, random_bytes)
        rounded &= self._mask  # two's complement: the residue in [0, 2^bits)
        return rounded.astype(self._dtype)

    def decode_sum(self, total: Words, survivors: int) -> NDArray[np.float64]:
        """The mean of the survivors' updates, with the noise of all their shares: (dim,) float64, data units.

        Args and errors as `mechanisms.encoder.Encoder.decode`.
        """
        plan = self.plan
        planned = range(plan.min_survivors, plan.clients + 1)
        mean = self._rotation.inverse(centred_sum(total, survivors, planned, plan.padded_dim, plan.bits))
        mean *= plan.granularity / survivors
        return mean
