"""From an update to the integers that are masked, and from their sum back to the mean.

Client: clip by layer and scale, or sketch and clip -> append clip bits and evaluation -> rotate -> scale by 1 /
granularity -> conditional stochastic rounding -> noise of one share -> mod 2^B. Coordinator: centre -> scale back ->
rotate back -> divide by |u3| -> undo the layers' scales. Source: [KLS21] Algorithms 1 and 2; [AKL21] Algorithm 1 with
Skellam noise; bits and scales: `mechanisms.clip_rule`; evaluation: `mechanisms.evaluation`; sketch:
`mechanisms.sketch`. Both sides build the same `Encoder` from the same frozen plan, public seed and clips of the round.

With the mechanism "gaussian" participants add no noise; the coordinator, which is trusted, adds all of it. The wrap
modulo 2^B, masking and summing follow the noise and cost no privacy; a sum that wraps costs accuracy only, and
`Plan.k_stddevs` says how rarely that happens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.clipping import HAIR, clip_layers, clip_rows, layers_in
from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.evaluation import NO_METRICS, HeldOutMetrics, MeanMetrics
from mechanisms.lattice_noise import LatticeNoise
from mechanisms.plan import Plan
from mechanisms.randomness import KEY_BYTES, RandomBytes, RandomnessFailed
from mechanisms.rotation import Rotation
from mechanisms.rounding import RoundingFailed, conditional_round, conditional_round_rows
from mechanisms.skellam import skellam
from mechanisms.sketch import CountMeanSketch
from mechanisms.statement import GAUSSIAN, SKELLAM
from mechanisms.wrap_monitor import WrapEstimate, estimate_wrapping

__all__ = ["Decoded", "Encoder", "InvalidUpdate", "RoundingFailed", "word_dtype", "words_of_sum"]

Words = NDArray[np.unsignedinteger[Any]]

_WORDS: Final = (8, 16, 32, 64)


class InvalidUpdate(ValueError):
    """An update that cannot be encoded: wrong length or type, or a value that is infinite or not a number."""


def word_dtype(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest little-endian unsigned word that holds ``bits`` bits."""
    return np.dtype(f"<u{next(width for width in _WORDS if width >= bits) // 8}")


def words_of_sum(total: NDArray[np.uint64], bits: int) -> Words:
    """Sums modulo 2^64, as secure aggregation opens them, modulo 2^bits: a new array of `word_dtype`, same shape."""
    words = total.astype(word_dtype(bits))  # keeps the low bits, of which there are at least as many as asked for
    words &= words.dtype.type((1 << bits) - 1)
    return words


@dataclass(frozen=True)
class Decoded:
    """A decoded sum."""

    mean: NDArray[np.float64]  # (dim,) data units: of the survivors' clipped updates, with noise
    below: tuple[float, ...]  # by layer, noisy share of survivors of norm at most its clip; empty with fixed clips
    wrapping: WrapEstimate  # how much of the sum may have wrapped around
    stddev: float  # of the noise in one coordinate of ``mean``, at most, data units: see `mean_stddev`
    measured: MeanMetrics | None = None  # of the model; None where participants don't evaluate, or too few did


# The coordinator's Gaussian is drawn on a grid that much finer than its deviation, so that it is as good as continuous.
_FINE_STDDEV_BITS: Final = 25
_ROOM_BITS: Final = 61


def refinement(plan: Plan) -> tuple[int, Fraction]:
    """Halvings of the grid step before the coordinator adds its Gaussian, and the noise's variance on that grid."""
    variance = plan.local_variance * plan.h_min
    halvings = _FINE_STDDEV_BITS - math.floor(math.log2(math.sqrt(variance)))
    halvings = max(0, min(halvings, _ROOM_BITS - plan.bits))
    return halvings, variance * 4**halvings


def mean_stddev(plan: Plan, survivors: int, clips: Sequence[float] | None = None, silent: int = 0) -> float:
    """Standard deviation of the noise in one coordinate of the mean of ``survivors`` updates, at most; data units.

    Noise of all shares, and of stochastic rounding at its largest: a value halfway between two grid steps has variance
    1/4. The rotation is orthogonal, so the figure holds before and after it. Where layers have different scales it is
    that of the noisiest; a sketch also carries its collisions, which depend on the updates and aren't counted. It needs
    no data, so it is known before anything is spent.

    ``clips``: of the round, one for each layer, data units; by default the plan's first ones. ``silent``: survivors
    that took no noise back.
    """
    held = plan.clipping.clips if clips is None else tuple(clips)
    return (
        coded_stddev(plan, survivors, held, silent) * max(plan.clipping.scales(held)) * math.sqrt(plan.sketch_rows or 1)
    )


def coded_stddev(plan: Plan, survivors: int, clips: Sequence[float], silent: int = 0) -> float:
    """As `mean_stddev`, of what is coded: before scales and a sketch are undone, and of clip bits and evaluations."""
    whole = plan.local_variance
    if plan.mechanism == GAUSSIAN:
        noise = whole * plan.h_min
    else:
        noise = plan.share_variance(whole, survivors) * (survivors - silent) + whole * silent
    variance = float(noise) + survivors / 4
    return math.sqrt(variance) * plan.granularity_at(clips) / survivors


class Room:
    """Memory for `Encoder.encode_many`, in simulations, with up to ``rows`` updates of a plan at once.

    Fresh pages cost long updates a fifth of their time. Threads need one each.
    """

    def __init__(self, plan: Plan, rows: int) -> None:
        self.rotated = np.empty((rows, plan.padded_dim))
        self.rounded = np.empty((rows, plan.padded_dim), np.int64)


class Encoder:
    """Encode updates and decode sums of one attempt.

    Args:
        plan: the public plan.
        rotation_seed: 32 public bytes that no party chose, a hash of the cohort's context.
        clips: the round's, one for each layer, data units; by default the plan's first ones.
        survivors: in simulations, where they are known beforehand: parts of the noise that so many would take back
            are not added.

    Attributes: ``granularity``, grid step of this round, units of what is rotated; ``scales``, of the layers.

    Raises ValueError: the seed has another length, or clips or survivors don't fit the plan.
    """

    def __init__(
        self, plan: Plan, rotation_seed: bytes, clips: Sequence[float] | None = None, survivors: int | None = None
    ) -> None:
        self.plan = plan
        self.clips = plan.clipping.checked(plan.clipping.clips if clips is None else tuple(clips))
        self.scales = plan.clipping.scales(self.clips)
        self.granularity = plan.granularity_at(self.clips)
        self.rotation = Rotation(rotation_seed, plan.coded_dim, plan.rotation)
        self._sketch: CountMeanSketch | None = None
        if plan.sketch_rows:
            seed = hashlib.sha256(b"sordino/v1/sketch\x00" + rotation_seed).digest()
            self._sketch = CountMeanSketch(seed, plan.dim, plan.sketch_rows, plan.sketch_width)
        self._noise, self._parts = noise_laws(plan)
        if survivors is not None and plan.noise_parts and not plan.min_survivors <= survivors <= plan.clients:
            raise ValueError(f"{survivors} survivors; the plan has {plan.min_survivors} to {plan.clients}")
        self._left_out = 0 if survivors is None else plan.released_parts(survivors)
        self._dtype = word_dtype(plan.bits)
        self._mask = np.int64((1 << plan.bits) - 1)

    def encode(
        self,
        update: NDArray[Any] | None,
        random_bytes: RandomBytes,
        noise_seeds: Sequence[bytes] = (),
        metrics: HeldOutMetrics = NO_METRICS,
    ) -> Words:
        """Clip, rotate, round, add one noise share, wrap. Call it once per attempt; never resend under other
        noise.

        None is the zero contribution: no update, nothing appended, only the noise share, by the same work. "Zero-out"
        compares a contribution with this one, so whether it was sent is hidden too, from a clock as well. The encoding
        of an update of zeros differs where clips adapt: its bits say that the update was short.

        Args:
            update: (dim,) float16, float32 or float64, data units, finite; or None.
            random_bytes: private randomness, ``os.urandom`` in deployment; 64 bytes are drawn.
            noise_seeds: 32 fresh private bytes for each of the plan's ``noise_parts``, which can be taken back by
                revealing them; without seeds these parts are drawn like the rest.
            metrics: the participant's figures of the model, where the plan has participants evaluate.

        Returns (padded_dim,) words of `word_dtype`, values in [0, 2^bits).

        Raises InvalidUpdate: wrong length or dtype, NaN or infinity; RoundingFailed: no rounding met the norm bound;
        nothing may be sent; RandomnessFailed: the source gave a wrong length; ValueError: another number of seeds.
        """
        if len(noise_seeds) not in (0, self.plan.noise_parts):
            raise ValueError(f"the plan has {self.plan.noise_parts} parts of noise, not {len(noise_seeds)}")
        stand_in = np.ones(self.plan.dim, np.float32)  # encoded, and then left out, where there is no update
        with np.errstate(all="ignore"):  # a task may have told numpy to raise
            rotated = self._clipped(stand_in if update is None else update, metrics)
            self.rotation.rotate(rotated)
            rotated *= 1 / self.granularity
            limit, keep = self.plan.squared_norm_limit, update is not None
            rounded = conditional_round(rotated, limit, random_bytes, keep=keep)
            return self._noised(rounded, random_bytes, noise_seeds).astype(self._dtype)

    def encode_many(
        self,
        updates: NDArray[Any],
        random_bytes: RandomBytes,
        metrics: Sequence[HeldOutMetrics] | None = None,
        room: Room | None = None,
    ) -> Words:
        """`encode` of several participants' updates at once, for simulations: the same law, each with its own noise.

        Each row is clipped by itself, drawn again by itself where its rounded norm is above the bound, and gets a noise
        share of its own. Only the keystreams are shared: one key rounds all rows, one draws all their noise. A deployed
        participant has one update, and no use for this.

        Args:
            updates: (n, dim), n >= 1, as ``encode`` takes them. Memory: about 40 bytes a value that is coded.
            random_bytes: 64 bytes are drawn in all.
            metrics: as ``encode`` takes them, one for each row.
            room: memory to work in. The words returned lie in it, as uint64, until the next call with it.

        Returns (n, padded_dim) words. From the same random bytes a single row's are those of ``encode``, up to the
        order of additions in norm and rotation.

        Raises InvalidUpdate, RoundingFailed, RandomnessFailed: as ``encode``, for any; nothing may be used then.
        """
        if not isinstance(updates, np.ndarray) or updates.ndim != 2 or not len(updates):
            raise InvalidUpdate("several updates are an array of one row each")
        figures = (NO_METRICS,) * len(updates) if metrics is None else metrics
        with np.errstate(all="ignore"):
            values = checked_update(updates, (len(updates), self.plan.dim))
            if self._sketch is not None:
                values = self._sketch.encode_many(values)
            count, size = values.shape
            taken = room or Room(self.plan, count)
            rotated, rounded = taken.rotated[:count], taken.rounded[:count]
            rotated[:, size:] = 0
            _, norms = clip_rows(values, self.plan.clipping.layers, self.clips, self.scales, rotated[:, :size])
            for row, *one in zip(rotated, norms, figures, strict=True):
                row[size : self.plan.coded_dim] = self.appended(*one)
            self.rotation.rotate(rotated)
            rotated *= 1 / self.granularity
            conditional_round_rows(rotated, self.plan.squared_norm_limit, random_bytes, out=rounded)
            words = self._noised(rounded.reshape(-1), random_bytes).reshape(rounded.shape)
            return words if room else words.astype(self._dtype)

    def without_surplus(self, total: Words, survivors: int, revealed: Iterable[Sequence[bytes]]) -> Words:
        """A sum without the noise that its survivors have taken back: a new array.

        ``total``: (padded_dim,) words below 2^bits; ``revealed``: for each survivor that has answered the seeds of the
        parts of `Plan.released_parts`, ascending.

        Raises ValueError: another number of seeds.
        """
        released = self.plan.released_parts(survivors)
        parts = [part for number, part in enumerate(self._parts) if released >> number & 1]
        surplus = np.zeros(self.plan.padded_dim if parts else 0, np.int64)
        for seeds in revealed:
            for part, seed in zip(parts, seeds, strict=True):
                part.add(surplus, _keyed_by(seed))
        if not parts:
            return total.copy()
        np.subtract(total.astype(np.int64), surplus, out=surplus)
        surplus &= self._mask
        return surplus.astype(self._dtype)

    def _noised(
        self, values: NDArray[np.int64], random_bytes: RandomBytes, noise_seeds: Sequence[bytes] = ()
    ) -> NDArray[np.uint64]:
        """Add one noise share to ``values`` and wrap them, in place."""
        if self._noise is not None:
            self._noise.add(values, random_bytes)
        for number, part in enumerate(self._parts):
            if not self._left_out >> number & 1:
                part.add(values, _keyed_by(noise_seeds[number]) if noise_seeds else random_bytes)
        values &= self._mask  # two's complement: the residue in [0, 2^bits)
        return values.view(np.uint64)

    def _clipped(self, update: NDArray[Any], metrics: HeldOutMetrics = NO_METRICS) -> NDArray[np.float64]:
        """(padded_dim,) float64 of norm at most `Plan.encoder_clip`, in proportion to these clips; then zeros."""
        values = checked_update(update, (self.plan.dim,))
        if self._sketch is not None:
            values = self._sketch.encode(values)
        coded = np.zeros(self.plan.padded_dim)
        _, norms = clip_layers(values, self.plan.clipping.layers, self.clips, self.scales, coded[: values.size])
        coded[values.size : self.plan.coded_dim] = self.appended(norms, metrics)
        return coded

    def appended(self, norms: NDArray[np.float64], metrics: HeldOutMetrics = NO_METRICS) -> NDArray[np.float64]:
        """What stands behind a clipped update before it is rotated: (`Plan.appended`,) clip bits, then the evaluation.

        ``norms``: (layers,) before clipping, data units.
        """
        rule, evaluation = self.plan.clipping, self.plan.evaluation
        # The same hair below its bound as the clipped layers: however large these are, rounding errors stay inside.
        coded = [np.zeros(0)]
        if rule.adaptive:
            half = rule.bit_size(self.clips) / 2 * HAIR
            coded.append(np.where(norms <= np.array(self.clips), half, -half))
        if evaluation:
            coded.append(evaluation.coordinates(metrics) * (evaluation.weight * rule.bound(self.clips) * HAIR))
        return np.concatenate(coded)

    @property
    def laws(self) -> list[LatticeNoise]:
        """Of the noise in one vector: a draw of each is added to each coordinate."""
        kept = [part for number, part in enumerate(self._parts) if not self._left_out >> number & 1]
        return kept if self._noise is None else [self._noise, *kept]

    def decode_sum(self, total: Words, survivors: int, random_bytes: RandomBytes | None = None) -> NDArray[np.float64]:
        """`decode`, the mean alone."""
        return self.decode(total, survivors, random_bytes).mean

    def decode(self, total: Words, survivors: int, random_bytes: RandomBytes | None = None, silent: int = 0) -> Decoded:
        """The mean of the survivors' updates, with the noise that stays of their shares.

        Args:
            total: (padded_dim,) sum of encoded vectors, reduced mod 2^bits, unsigned integers.
            survivors: ``|u3|``, how many vectors the sum holds.
            random_bytes: the coordinator's private randomness, where it adds the noise ("gaussian").
            silent: survivors that took no noise back; it only counts for the stated deviation.

        Raises ValueError: wrong length or dtype, a value not reduced, survivors outside min_survivors..clients, or no
        randomness where noise is to be added.
        """
        plan, rule = self.plan, self.plan.clipping
        planned = range(plan.min_survivors, plan.clients + 1)
        centred = centred_sum(total, survivors, planned, plan.padded_dim, plan.bits)
        step, halvings = self.granularity, 0
        if plan.mechanism == GAUSSIAN:
            halvings = self._add_central_noise(centred, random_bytes)
            step /= 1 << halvings
        # After the coordinator's noise: an estimate from the sum without it would be a figure about exact data.
        wrapping = estimate_wrapping(centred, plan.bits + halvings)
        wrapping = replace(wrapping, stddev=wrapping.stddev / (1 << halvings))
        values = self.rotation.inverse(centred)
        values *= step / survivors
        below: tuple[float, ...] = ()
        measured = None
        if plan.evaluation:
            size = plan.evaluation.weight * rule.bound(self.clips)
            spread = coded_stddev(plan, survivors, self.clips, silent) / size
            last = -plan.evaluation.values
            measured, values = plan.evaluation.measured((values[last:] / size).tolist(), spread), values[:last]
        if rule.adaptive:
            mean_bits = values[-rule.bits :] / rule.bit_size(self.clips)
            below = tuple(float(share) for share in np.clip(mean_bits + 0.5, 0.0, 1.0))
            values = values[: -rule.bits]
        for layer, scale in zip(layers_in(values, rule.layers), self.scales, strict=True):
            if scale != 1.0:
                layer *= scale
        if self._sketch is not None:
            values = self._sketch.decode_mean(values)
        return Decoded(values, below, wrapping, mean_stddev(plan, survivors, self.clips, silent), measured)

    def _add_central_noise(self, centred: NDArray[np.int64], random_bytes: RandomBytes | None) -> int:
        """Refine the grid, add the coordinator's noise; return how often the grid step was halved.

        Modulo 2^B like the sum itself: the result is the noised sum, wrapped, and reveals no more than that. If only
        the sum were reduced, one update that carries it across half the modulus would move it by all of 2^B.
        """
        if random_bytes is None:
            raise ValueError('the mechanism "gaussian" needs randomness to decode: the coordinator adds the noise')
        halvings, variance = refinement(self.plan)
        centred <<= halvings
        discrete_gaussian(variance).add(centred, random_bytes)
        width = self.plan.bits + halvings
        half = np.int64(1 << (width - 1))
        centred += half
        centred &= np.int64((1 << width) - 1)
        centred -= half
        return halvings


def checked_update(update: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
    """Return the update, or several. Raises InvalidUpdate: it has another shape, or holds anything but finite float16,
    float32 or float64 values.
    """
    if not isinstance(update, np.ndarray) or update.dtype.kind != "f" or update.dtype.itemsize > 8:
        raise InvalidUpdate("an update is an array of float16, float32 or float64")
    if update.shape != shape:
        raise InvalidUpdate(f"the update has shape {update.shape}, the plan needs {shape}")
    if not np.all(np.isfinite(update)):
        raise InvalidUpdate("the update holds NaN or infinite values")
    return update  # widened piece by piece where it is read


def centred_sum(total: Words, survivors: int, planned: range, dim: int, bits: int) -> NDArray[np.int64]:
    """A sum modulo 2^bits with its values in [-2^(bits-1), 2^(bits-1)); errors as `Encoder.decode`.

    ``planned`` holds the numbers of survivors that the plan covers.
    """
    if survivors not in planned:
        raise ValueError(f"{survivors} survivors: the plan covers {planned[0]} to {planned[-1]}")
    if total.shape != (dim,) or total.dtype.kind != "u":
        raise ValueError(f"a sum is a vector of {dim} unsigned integers")
    if int(total.max()) >> bits:
        raise ValueError(f"a sum holds values below 2^{bits}")
    centred = total.astype(np.int64)
    unused = 64 - bits
    centred <<= unused  # the residue's top bit becomes the sign, and the shift back extends it
    centred >>= unused
    return centred


def noise_laws(plan: Plan) -> tuple[LatticeNoise | None, list[LatticeNoise]]:
    """The law of what is always kept, and those of the parts that can be taken back."""
    if plan.mechanism == GAUSSIAN:
        return None, []
    law = skellam if plan.mechanism == SKELLAM else discrete_gaussian
    unit = plan.noise_unit(plan.local_variance)
    parts = [unit * (1 << number) for number in range(plan.noise_parts)]
    return law(plan.local_variance - sum(parts)), [law(part) for part in parts]


def _keyed_by(seed: bytes) -> RandomBytes:
    """The one key that a part's noise is made from, another hash of the seed than its commitment."""
    if len(seed) != KEY_BYTES:
        raise RandomnessFailed(f"a part of the noise needs a seed of {KEY_BYTES} bytes")
    key = hashlib.sha256(b"sordino/v1/noise-part\x00" + seed).digest()
    return lambda _: key
