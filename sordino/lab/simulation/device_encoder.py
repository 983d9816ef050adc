"""The encoding of a shard of participants on the accelerator that trained them. FOR SIMULATIONS ALONE.

The steps are those of `mechanisms.encoder.Encoder.encode_many`: clip and scale by layer, append, rotate, divide by the
grid step, round under the norm bound, add each participant's own noise. What comes back is the sum, which the host's
`Encoder.decode` reads like any other. Modulo 2^64, so no vector is wrapped by itself: 2^64 is a multiple of every
modulus.

Noise and rounding come from torch's generator (Philox, a counter under 63 bits of the operating system's, on an
accelerator). It is no cryptographic one: what participants send anybody must never be encoded here. The laws:

- Noise: for each of a sampler's tables (`mechanisms.lattice_noise`) inversion of its exact integer weights, cumulated
  and rounded down to 63 bits, by uniform integers of 63 bits. A cell's probability is off by less than 2^-63 and a
  table has fewer than 2^15 cells: within total variation 2^-49 of the sampler's law for each table.
- Rounding: up with the probability of the fractional part, up to 2^-52; conditional as in `mechanisms.rounding`, a row
  above the bound drawn again by itself.

It imports torch; only a simulation whose task trains on an accelerator loads it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from learning.device import CPU
from mechanisms.clipping import HAIR
from mechanisms.encoder import Encoder
from mechanisms.evaluation import HeldOutMetrics
from mechanisms.lattice_noise import LatticeNoise, convolution_levels
from mechanisms.rotation import Rotation
from mechanisms.rounding import MOST_TRIES, RoundingFailed

_WORD_BITS: Final = 63
_RADIX: Final = 32


class DeviceEncoder:
    """Encodes and adds up updates for one round.

    Args:
        encoder: of the round, made with the number of its survivors; its plan has no sketch.
        device: where to compute.
        seed: in tests, of all that is drawn; else fresh.
    """

    def __init__(self, encoder: Encoder, device: torch.device, seed: int | None = None) -> None:
        self._encoder, self._device = encoder, device
        self._rotation = DeviceRotation(encoder.rotation, device)
        self._noise = [DeviceNoise.of(law, device) for law in encoder.laws]
        chosen = int.from_bytes(os.urandom(8)) >> 1 if seed is None else seed
        self._generator = torch.Generator(device).manual_seed(chosen)

    def place_for(self, count: int) -> Any:
        """Where tasks may write so many updates: (count, dim) float32 on the device; an array on the processor."""
        place = torch.empty(count, self._encoder.plan.dim, device=self._device)
        return place.numpy() if self._device.type == CPU else place

    def total(self, updates: Any, metrics: Sequence[HeldOutMetrics]) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Encode each update and add them up.

        A participant whose training diverged (a norm that is infinite or NaN) sends only noise, as in a study.

        Args:
            updates: (n, dim) float32 or float64, array or tensor, n >= 1, data units. Memory of the device: about 50
                bytes a value that is coded; `sordino.lab.simulation.participants.shards_of` bounds n.
            metrics: as `Encoder.encode` takes them, one for each row.

        Returns (total, norms): (padded_dim,) the sum modulo 2^64; and (n, layers) L2 norms before clipping, data units.

        Raises RoundingFailed: no rounding of a row met the bound.
        """
        encoder = self._encoder
        values, norms = self._clipped(updates, metrics)
        values = self._rotation.forward(values).mul_(1 / encoder.granularity)
        rounded = round_rows(values, encoder.plan.squared_norm_limit, self._generator)
        total = rounded.sum(0)
        for noise in self._noise:
            total += noise.draw(rounded.shape, self._generator).sum(0)
        return total.cpu().numpy().view(np.uint64), norms

    def _clipped(self, updates: Any, metrics: Sequence[HeldOutMetrics]) -> tuple[torch.Tensor, NDArray[np.float64]]:
        """(n, padded_dim) float64 as `Encoder.encode` rotates it, with zeros behind; norms as `total` returns them."""
        encoder, plan, dim = self._encoder, self._encoder.plan, self._encoder.plan.dim
        values = torch.zeros(len(updates), plan.padded_dim, dtype=torch.float64, device=self._device)
        values[:, :dim] = torch.as_tensor(updates).to(self._device)
        ends = np.cumsum(plan.clipping.layers).tolist()
        layers = [values[:, end - size : end] for end, size in zip(ends, plan.clipping.layers, strict=True)]
        norms = torch.stack([torch.linalg.vector_norm(layer, dim=1) for layer in layers], dim=1).cpu().numpy()
        clips = np.array(encoder.clips)
        with np.errstate(all="ignore"):  # a layer of zeros isn't clipped; rows that aren't finite are left out below
            factors = np.where(norms <= clips * HAIR, 1.0, clips * HAIR / norms) / np.array(encoder.scales)
        for layer, factor in zip(layers, torch.from_numpy(factors.T.copy()).to(self._device), strict=True):
            layer.mul_(factor[:, None])
        if plan.appended:
            rows = [encoder.appended(*one) for one in zip(norms, metrics, strict=True)]
            values[:, dim : dim + plan.appended] = torch.from_numpy(np.stack(rows)).to(self._device)
        for row in np.flatnonzero(~np.isfinite(np.linalg.norm(norms, axis=1))):
            values[row] = 0
        return values, norms


class DeviceRotation:
    """The map of `mechanisms.rotation.Rotation`, up to the order of additions."""

    def __init__(self, rotation: Rotation, device: torch.device) -> None:
        self._size = rotation.block_dim
        self._blocks = [(first, torch.from_numpy(diagonal).to(device)) for first, diagonal in rotation.diagonals()]
        self._matrices = {radix: _hadamard(radix).to(device) for radix in _radices(self._size)}

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(n, padded_dim) float64, with zeros as padding: rotate each row in place, and return them."""
        for first, diagonal in self._blocks:
            block, inner = values[:, first : first + self._size] * diagonal, 1
            for radix in _radices(self._size):  # each mixes that many values, ``inner`` places apart
                matrix = self._matrices[radix]  # symmetric; beside one another, values take one product for all
                mixed = block.reshape(-1, radix, inner)
                block = mixed[..., 0] @ matrix if inner == 1 else matrix @ mixed
                inner *= radix
            values[:, first : first + self._size] = block.reshape(-1, self._size)
        return values


class DeviceNoise:
    """A noise law as tables to search, one for each level; a draw is the sum of one from each."""

    def __init__(self, law: LatticeNoise, device: torch.device) -> None:
        laws = [(law.weights(variance, step), step) for variance, step in convolution_levels(law.variance)]
        self._levels = [(_thresholds(half).to(device), len(half) - 1, step) for half, step in laws]

    @staticmethod
    @lru_cache(maxsize=16)  # a share and its parts, from one round to the next
    def of(law: LatticeNoise, device: torch.device) -> DeviceNoise:
        return DeviceNoise(law, device)

    def draw(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, int32: `LatticeNoise` keeps within its range."""
        words = torch.empty(shape, dtype=torch.int64, device=generator.device)
        drawn = torch.zeros(shape, dtype=torch.int32, device=generator.device)
        for thresholds, reach, step in self._levels:
            words.random_(generator=generator)  # uniform on all that int64 holds from 0 on: 63 bits
            place = torch.searchsorted(thresholds, words, right=True, out_int32=True)
            drawn += place.sub_(reach).mul_(step)
        return drawn


def round_rows(
    values: torch.Tensor, squared_limit: int, generator: torch.Generator, most_tries: int = MOST_TRIES
) -> torch.Tensor:
    """As `mechanisms.rounding.conditional_round_rows`, for norms below 2^31, which plans keep: (n, d) int64."""
    rounded = torch.empty_like(values, dtype=torch.int64)
    left = torch.arange(len(values), device=values.device)
    for _ in range(most_tries):
        rows = values[left]
        whole = rows.floor()
        draws = torch.rand(rows.shape, generator=generator, dtype=rows.dtype, device=rows.device)
        found = whole.to(torch.int64).add_(draws < rows.sub_(whole))
        rounded[left] = found
        left = left[found.square_().sum(1) > squared_limit]
        if not left.numel():
            return rounded
    raise RoundingFailed(f"no rounding within the norm bound in {most_tries} tries; was the update clipped?")


def _thresholds(half: Sequence[int]) -> torch.Tensor:
    """Where each value but the last of -J .. J ends among the integers below 2^63, from weights of 0 .. J: (2 J,)."""
    sums = list(accumulate([*half[:0:-1], *half]))
    return torch.tensor([(below << _WORD_BITS) // sums[-1] for below in sums[:-1]], dtype=torch.int64)


def _radices(size: int) -> list[int]:
    """Powers of two, at most `_RADIX`, whose product is the power of two ``size``."""
    whole, rest = divmod(size.bit_length() - 1, _RADIX.bit_length() - 1)
    return [_RADIX] * whole + ([1 << rest] if rest else [])


def _hadamard(order: int) -> torch.Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < order:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
    return matrix
