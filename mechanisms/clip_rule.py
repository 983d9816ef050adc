"""How updates are clipped: flat or by layer, with fixed clips or with clips that follow a quantile of the norms.

Layer l of an update is clipped to C_l and divided by s_l; the scaled vector then has norm at most S = sqrt(sum_l (C_l /
s_l)^2). Where clips adapt, one coordinate a x (+1/2 or -1/2) is appended for each layer, +1/2 when the layer's norm was
at most C_l, with a = kappa S: the norm of what is encoded is at most sqrt(S^2 + L a^2 / 4) = S sqrt(1 + L kappa^2 / 4).
The granularity of round t is the plan's times S_t / S_1, so that in grid units norms, bounds, noise and privacy are the
same in every round: the coordinator may choose clips freely, and no charge depends on them.

Sources: per-layer clipping and layer-wise noise [MRTZ18] section 2; quantile clipping [ATMR21], with the bit inside the
same sum in place of a noise split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from mechanisms.refusals import KINDS, InfeasiblePlan, check_rules, check_types, known

FIXED, GEOMETRIC, LINEAR = "fixed", "geometric", "linear"
UPDATES: Final = (FIXED, GEOMETRIC, LINEAR)
UNIFORM, PROPORTIONAL, LEAST_NOISE = "uniform", "proportional", "least-noise"
SCALINGS: Final = (UNIFORM, PROPORTIONAL, LEAST_NOISE)
MOST_LAYERS: Final = 4096
# Clips outside are refused at the start, and never left when clips adapt: their squares stay ordinary numbers.
SMALLEST_CLIP: Final = 1e-30
LARGEST_CLIP: Final = 1e30


def update_norm(clips: Sequence[float], sketch_rows: int) -> float:
    """Norm up to which clips leave an update unchanged, data units: the target of local training.

    The ball that holds all layers; a sketch of ``sketch_rows`` rows L has about 1 / sqrt(L) of the update's norm.
    """
    return math.hypot(*clips) * math.sqrt(sketch_rows or 1)


@dataclass(frozen=True, kw_only=True)
class ClipRule:
    """The part of a plan that says how updates are clipped.

    Raises InfeasiblePlan: a number is out of range (a `ValueError`); TypeError: a field has another type than declared;
    nothing is converted.
    """

    layers: tuple[int, ...]  # values of each layer, in the order of the update
    clips: tuple[float, ...]  # C_l of the first round, L2 norms in data units
    scaling: str = UNIFORM  # how s_l follows from C_l: see `scales`
    update: str = FIXED  # "fixed", "geometric" or "linear"
    quantile: float = 0.0  # share of norms that should lie below the clip; 0 with fixed clips
    rate: float = 0.0  # step of the update; 0 with fixed clips
    bit_weight: float = 0.0  # kappa; 0 with fixed clips

    def __post_init__(self) -> None:
        check_types(self, KINDS | {"tuple[int, ...]": tuple, "tuple[float, ...]": tuple})
        for name, values, kind in (("layers", self.layers, int), ("clips", self.clips, float)):
            if any(type(one) is not kind for one in values):
                raise TypeError(f"plan: {name} must be tuple[{kind.__name__}, ...]")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in ("quantile", "rate", "bit_weight"):
            if not math.isfinite(getattr(self, name)):
                raise InfeasiblePlan(f"clipping: {name} is infinite or not a number", "state finite numbers")
        if not all(math.isfinite(clip) for clip in self.clips):
            raise InfeasiblePlan("clip: infinite or not a number", "state a positive clip")
        adaptive = self.update != FIXED
        rules = [
            (1 <= len(self.layers) <= MOST_LAYERS, f"clipping: {len(self.layers)} layers", f"use 1 to {MOST_LAYERS}"),
            (min(self.layers, default=0) >= 1, "clipping: a layer without values", "leave it out"),
            (len(self.clips) == len(self.layers), "clipping: clips and layers differ in number", "state one for each"),
            (
                all(SMALLEST_CLIP <= clip <= LARGEST_CLIP for clip in self.clips),
                f"clip {', '.join(f'{clip:g}' for clip in self.clips[:3])} is out of range",
                f"use a positive clip from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}",
            ),
            known("scaling", self.scaling, SCALINGS),
            known("clip update", self.update, UPDATES),
            (
                not adaptive or 0 < self.quantile < 1,
                f"quantile {self.quantile:g} must lie strictly between 0 and 1",
                "use 0.5",
            ),
            (not adaptive or 0 < self.rate <= 10, f"clip rate {self.rate:g} is out of range", "use 0.2"),
            (not adaptive or 1e-3 <= self.bit_weight <= 1, f"bit weight {self.bit_weight:g}", "use 0.2"),
            (
                adaptive or self.quantile == self.rate == self.bit_weight == 0,
                "fixed clips have no quantile, rate or bit weight",
                "leave them out, or use a geometric update",
            ),
        ]
        check_rules(rules)

    @classmethod
    def flat(cls, dim: int, clip: float, **adaptive: Any) -> ClipRule:
        """One clip for the whole update."""
        return cls(layers=(dim,), clips=(float(clip),), **adaptive)

    @property
    def adaptive(self) -> bool:
        """Whether clips change, and bits are appended."""
        return self.update != FIXED

    @property
    def dim(self) -> int:
        """Values of an update."""
        return sum(self.layers)

    @property
    def bits(self) -> int:
        """Coordinates appended: one for each layer where clips adapt."""
        return len(self.layers) if self.adaptive else 0

    def scales(self, clips: Sequence[float]) -> tuple[float, ...]:
        """s_l for given clips. The noise of layer l in data units is proportional to s_l.

        "uniform": 1, the same noise everywhere. "proportional": C_l, noise in proportion to the clip whatever the
        layer's size. "least-noise": sqrt(C_l / sqrt(d_l)), which minimises sum_l d_l s_l^2, the noise of the whole
        update, subject to sum_l (C_l / s_l)^2 = const.
        """
        if self.scaling == PROPORTIONAL:
            return tuple(clips)
        if self.scaling == LEAST_NOISE:
            return tuple(math.sqrt(clip / math.sqrt(size)) for clip, size in zip(clips, self.layers, strict=True))
        return (1.0,) * len(self.layers)

    def bound(self, clips: Sequence[float]) -> float:
        """S = sqrt(sum_l (C_l / s_l)^2): the norm of a clipped and scaled update, at most."""
        return math.hypot(*(clip / scale for clip, scale in zip(clips, self.scales(clips), strict=True)))

    def bit_size(self, clips: Sequence[float]) -> float:
        """a = kappa S: an appended coordinate is +a/2 or -a/2."""
        return self.bit_weight * self.bound(clips)

    def encoder_bound(self, clips: Sequence[float]) -> float:
        """Norm of what is rotated and rounded, at most: sqrt(S^2 + L a^2 / 4) = S sqrt(1 + L kappa^2 / 4)."""
        return self.bound(clips) * math.sqrt(1 + self.bits * self.bit_weight**2 / 4)

    def checked(self, clips: Sequence[float]) -> tuple[float, ...]:
        """Check clips of a round that came from elsewhere.

        Raises ValueError: not one clip for each layer, one out of range, or other than the first ones where clips are
        fixed.
        """
        if len(clips) != len(self.layers):
            raise ValueError(f"{len(clips)} clips for {len(self.layers)} layers")
        if not all(type(clip) is float and SMALLEST_CLIP <= clip <= LARGEST_CLIP for clip in clips):
            raise ValueError(f"a clip must lie between {SMALLEST_CLIP:g} and {LARGEST_CLIP:g}")
        if not self.adaptive and tuple(clips) != self.clips:
            raise ValueError("the plan's clips are fixed, but a round came with others")
        return tuple(clips)

    def updated(self, clips: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
        """Clips of the next round; fixed clips stay.

        geometric: C exp(-rate (b - quantile)); linear: C - rate (b - quantile), at least C / 10, since a clip must stay
        positive.

        Args:
            clips: of the round.
            below: b_l, estimated share of participants whose layer's norm was at most C_l, in [0, 1].
        """
        if not self.adaptive:
            return tuple(clips)
        found = []
        for clip, share in zip(clips, below, strict=True):
            step = self.rate * (share - self.quantile)
            new = clip * math.exp(-step) if self.update == GEOMETRIC else max(clip - step, clip / 10)
            found.append(min(max(new, SMALLEST_CLIP), LARGEST_CLIP))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """One entry per field; tuples as lists."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"layers": list(self.layers), "clips": list(self.clips)}

    @classmethod
    def from_json(cls, source: object) -> ClipRule:
        """Parse what `to_json` gave. Raises ValueError, TypeError: a field is unknown, missing or malformed."""
        names = {field.name for field in fields(cls)}
        if not isinstance(source, Mapping) or set(source) != names:
            raise ValueError("plan: clipping has unknown or missing fields")
        values = dict(source)
        for name in ("layers", "clips"):
            if not isinstance(values[name], list):
                raise ValueError(f"plan: clipping.{name} must be a list")
            values[name] = tuple(values[name])
        return cls(**values)
