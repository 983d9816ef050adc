"""How clips, scales and bounds hang together, and how clips follow a quantile through the real encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechanisms.clip_rule import FIXED, GEOMETRIC, LINEAR, SCALINGS, ClipRule, update_norm
from mechanisms.encoder import Encoder
from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.randomness import RandomBytes
from tests.mechanisms.conftest import each, keyed, plan_for

SEED = bytes(range(32))
CLIPS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6)


@given(clips=CLIPS, scaling=st.sampled_from(SCALINGS), kappa=st.floats(0.01, 1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_bound_is_that_of_the_longest_vector(clips: list[float], scaling: str, kappa: float) -> None:
    layers = tuple(range(1, len(clips) + 1))
    rule = ClipRule(layers=layers, clips=tuple(clips), scaling=scaling, **ADAPTING, bit_weight=kappa)
    scales, a = rule.scales(clips), rule.bit_size(clips)
    squares = sum((clip / scale) ** 2 for clip, scale in zip(clips, scales, strict=True))
    assert rule.bound(clips) == pytest.approx(math.sqrt(squares))
    assert a == pytest.approx(kappa * rule.bound(clips))
    assert rule.encoder_bound(clips) == pytest.approx(math.sqrt(squares + len(clips) * a**2 / 4))


def test_least_noise_is_least() -> None:
    """Noise energy sum d_l s_l^2 at sum (C_l / s_l)^2 = 1, beside every other choice of scales nearby."""
    rule = ClipRule(layers=(1000, 10, 1), clips=(1.0, 2.0, 0.1), scaling="least-noise")

    def energy(scales: Sequence[float]) -> float:
        bound = sum((clip / scale) ** 2 for clip, scale in zip(rule.clips, scales, strict=True))
        return bound * sum(size * scale**2 for size, scale in zip(rule.layers, scales, strict=True))

    best = energy(rule.scales(rule.clips))
    for layer in range(3):
        for factor in (0.5, 0.9, 1.1, 2.0):
            changed = [s * (factor if at == layer else 1) for at, s in enumerate(rule.scales(rule.clips))]
            assert energy(changed) > best
    for scaling in ("uniform", "proportional"):
        assert energy(replace(rule, scaling=scaling).scales(rule.clips)) > best


def test_updates_as_published() -> None:
    rule = ClipRule.flat(4, 2.0, update=GEOMETRIC, quantile=0.5, rate=0.2, bit_weight=0.2)
    assert rule.updated((2.0,), (0.8,)) == (pytest.approx(2 * math.exp(-0.2 * 0.3)),)
    linear = replace(rule, update=LINEAR)
    assert linear.updated((2.0,), (0.8,)) == (pytest.approx(2 - 0.2 * 0.3),)
    assert linear.updated((0.01,), (1.0,)) == (pytest.approx(0.001),)  # never negative, never zero
    assert ClipRule.flat(4, 2.0).updated((2.0,), ()) == (2.0,)
    assert replace(rule, clips=(1e-30,)).updated((1e-30,), (1.0,)) == (1e-30,)


def test_what_fits_within_the_clips() -> None:
    assert update_norm((3.0, 4.0), 0) == 5
    assert update_norm((2.0,), 9) == 6  # a sketch of 9 rows has about a third of the norm
    assert plan_with(ClipRule(layers=(3, 1), clips=(3.0, 4.0))).update_norm((3.0, 4.0)) == 5


GOOD: dict[str, Any] = {"update": GEOMETRIC, "quantile": 0.5, "rate": 0.2, "bit_weight": 0.2}
BAD: list[dict[str, Any]] = [
    *each("layers", (), (4, 0), (3, 3)),
    *each("clips", (0.0,), (-1.0,), (math.nan,), (math.inf,), (1e31,)),
    *({"scaling": "other"}, {"update": "other"}, {"update": FIXED, "quantile": 0.5}),
    *(GOOD | one for one in (*each("quantile", 0.0, 1.0, math.nan), {"rate": 0.0}, {"bit_weight": 0.0})),
]


@pytest.mark.parametrize("change", BAD, ids=str)
def test_bad_rules_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InfeasiblePlan) as caught:
        ClipRule(**{"layers": (4,), "clips": (1.0,)} | change)
    assert caught.value.reason
    assert caught.value.suggestion


def test_types_are_not_converted() -> None:
    for change in ({"layers": [4]}, {"layers": (4.0,)}, {"clips": (1,)}, {"clips": [1.0]}, {"rate": 0}, {"update": 1}):
        with pytest.raises(TypeError):
            ClipRule(**{"layers": (4,), "clips": (1.0,)} | change)


def plan_with(rule: ClipRule, **changes: Any) -> Plan:
    wanted = {"dim": rule.dim, "bits": 20, "clipping": rule, "epsilon": 40.0, "rounds": 60}
    return plan_for(100, **wanted | changes)


ADAPTING: dict[str, Any] = {"update": GEOMETRIC, "quantile": 0.5, "rate": 0.2}


def test_grid_norms_are_the_same_whatever_the_clips_are() -> None:
    """So no charge depends on clips, and the rounded norm is held to the same bound at every clip."""
    rule = ClipRule(layers=(300, 200), clips=(1.0, 2.0), update=GEOMETRIC, quantile=0.5, rate=0.2, bit_weight=0.2)
    plan = plan_with(rule)
    update = np.random.default_rng(1).normal(size=500)
    for clips in ((1.0, 2.0), (1e-20, 3e-20), (1e20, 1e3), (5.0, 1e-9)):
        encoder = Encoder(plan, SEED, clips)
        bound = rule.encoder_bound(clips) / plan.granularity_at(clips)
        assert bound == pytest.approx(plan.encoder_clip / plan.granularity, rel=1e-12)
        assert float(np.linalg.norm(encoder._clipped(update))) <= rule.encoder_bound(clips) * (1 + 1e-12)
        encoder.encode(update, keyed("clips"))  # within the norm bound, or it would have raised


@pytest.mark.parametrize(("layers", "kappa"), [((512,), 0.3), ((50,) * 10, 0.3), ((50,) * 10, 1.0), ((1,) * 64, 1.0)])
def test_a_whole_contribution_is_within_what_is_accounted(layers: tuple[int, ...], kappa: float) -> None:
    """The adjacency's distance, on the integers that get noise: update and bits against nothing, at any norms.

    An update of zeros is no neighbour: its bits say "short", and lie up to a away from those of a long one. Whoever has
    nothing to send, because training failed, sends the zero contribution instead.
    """
    clips = tuple(1.0 + at / 10 for at in range(len(layers)))
    rule = ClipRule(layers=layers, clips=clips, scaling="proportional", **ADAPTING, bit_weight=kappa)
    plan = plan_with(rule)
    rng = np.random.default_rng(5)
    for size in (0.0, 1e-3, 1.0, 1e3):
        update = size * rng.normal(size=rule.dim)
        encoder = Encoder(plan, SEED)
        encoder._noise = None
        integers = centred(encoder.encode(update, keyed("contribution")), plan.bits)
        assert math.sqrt(float(np.dot(integers, integers))) <= plan.l2_bound_grid
        if size == 0.0 and kappa * math.sqrt(len(layers)) > 0.5:
            assert np.abs(integers).max() > 0  # which is why zeros are not the zero contribution
        assert not encoder.encode(None, keyed("nothing")).any()


def centred(words: np.ndarray, bits: int) -> np.ndarray:
    values = words.astype(np.int64)
    return np.where(values >= 1 << (bits - 1), values - (1 << bits), values)


def test_no_update_and_no_clips_make_encoding_fail() -> None:
    """A refusal would be an answer about the data, free of noise and charge. The finest grid that plans allow, bits at
    their heaviest, and clips of which one is far above the others: rounding errors must stay inside the bound.
    """
    rule = ClipRule(layers=(1,) * 512, clips=(1.0,) * 512, scaling="uniform", **ADAPTING, bit_weight=1.0)
    finest = None
    for bits in range(30, 45):
        try:
            finest = plan_with(rule, bits=bits, epsilon=60.0, rounds=1)
        except InfeasiblePlan:
            break
    assert finest is not None
    rng = np.random.default_rng(9)
    for trial in range(40):
        clips = tuple(float(clip) for clip in 10.0 ** rng.uniform(-30, 3, size=512))
        encoder = Encoder(finest, bytes([trial]) * 32, clips)
        update = np.array(clips) * rng.choice([0.0, 0.5, 1.0, 2.0, 1e30], size=512)
        encoder.encode(update.astype(np.float64), keyed(f"fails {trial}"))


def test_clips_of_a_round_are_checked() -> None:
    adaptive = plan_with(ClipRule.flat(50, 1.0, update=GEOMETRIC, quantile=0.5, rate=0.2, bit_weight=0.2))
    for clips in ((), (1.0, 1.0), (0.0,), (math.nan,), (-1.0,), (math.inf,), (1,)):
        with pytest.raises(ValueError, match="clip"):
            Encoder(adaptive, SEED, clips)
    with pytest.raises(ValueError, match="fixed"):
        Encoder(plan_with(ClipRule.flat(50, 1.0)), SEED, (2.0,))


def one_round(
    plan: Plan, clips: tuple[float, ...], updates: np.ndarray, random_bytes: RandomBytes
) -> tuple[np.ndarray, tuple[float, ...]]:
    """Mean and clips of the next round, through encoder, sum modulo 2^B and decoder."""
    encoder = Encoder(plan, SEED, clips)
    total = encoder.encode_many(updates, random_bytes).astype(np.uint64).sum(axis=0)
    decoded = encoder.decode(total & np.uint64(2**plan.bits - 1), len(updates))
    return decoded.mean, plan.clipping.updated(clips, decoded.below)


@pytest.mark.parametrize("start", [100.0, 0.01])
@pytest.mark.parametrize("layers", [(64,), (40, 24)], ids=["flat", "by layer"])
@pytest.mark.long
def test_the_clip_reaches_its_quantile(start: float, layers: tuple[int, ...]) -> None:
    """Within 5 % of the quantile's value after 60 rounds, from 100 times too large and too small, with noise.

    Norms are log-normal with a spread of half a unit, the same 100 participants in each round; the noise multiplier is
    about 1.4. The keyed source makes the outcome the same in every run.
    """
    rng = np.random.default_rng(7)
    norms = np.exp(0.5 * rng.normal(size=(100, len(layers))))
    wanted = np.quantile(norms, 0.5, axis=0)
    first = tuple(start * float(one) for one in wanted)
    adapting = ADAPTING | {"rate": 0.3, "bit_weight": 0.3}
    rule = ClipRule(layers=layers, clips=first, scaling="proportional", **adapting)
    plan, clips = plan_with(rule), rule.clips
    random_bytes = keyed(f"quantile {start} {layers}")
    for _ in range(60):
        parts = []
        for at, size in enumerate(layers):
            direction = rng.normal(size=(100, size))
            parts.append(norms[:, at : at + 1] * direction / np.linalg.norm(direction, axis=1, keepdims=True))
        _, clips = one_round(plan, clips, np.concatenate(parts, axis=1), random_bytes)
    assert np.allclose(clips, wanted, rtol=0.05)


def test_dropouts_do_not_pull_the_estimate() -> None:
    """Bits are +-1/2 and divided by |u3|. A count divided by the expected participants would read 0.7 as 0.49."""
    rule = ClipRule.flat(32, 1.0, update=GEOMETRIC, quantile=0.5, rate=0.2, bit_weight=1.0)
    plan = plan_with(rule, min_survivors=70, epsilon=69.0, rounds=1)
    encoder = Encoder(plan, SEED)
    total = np.zeros(plan.padded_dim, np.uint64)
    for who in range(70):
        update = np.full(32, (0.1 if who < 49 else 10.0) / math.sqrt(32))
        total += encoder.encode(update, keyed(f"drop {who}"))
    (below,) = encoder.decode(total & np.uint64(2**plan.bits - 1), 70).below
    assert below == pytest.approx(0.7, abs=0.05)


def test_noise_follows_the_scales() -> None:
    """Layer l's noise in data units is proportional to s_l: zero updates show it. False alarm below 1e-6 a layer."""
    rule = ClipRule(layers=(4096, 4096), clips=(1.0, 10.0), scaling="proportional")
    plan = plan_with(rule)
    mean, _ = one_round(plan, rule.clips, np.zeros((100, 8192)), keyed("scales"))
    expected = plan.full_stddev / 100  # of a layer with s = 1; rounding adds at most a quarter of a grid step squared
    for layer, scale in ((mean[:4096], 1.0), (mean[4096:], 10.0)):
        assert float(np.std(layer)) == pytest.approx(expected * scale, rel=5 / math.sqrt(2 * 4096) + 0.01)


def test_json_keeps_every_field() -> None:
    adapting = {"update": LINEAR, "quantile": 0.9, "rate": 0.1, "bit_weight": 0.2}
    rule = ClipRule(layers=(3, 2), clips=(0.1, 0.2), scaling="least-noise", **adapting)
    assert ClipRule.from_json(rule.to_json()) == rule
    for change in ({"layers": 5}, {"surprise": 1}, {"clips": (0.1, 0.2)}, {"clips": [1, 2]}):
        with pytest.raises((ValueError, TypeError)):
            ClipRule.from_json(rule.to_json() | change)
