"""Updates of several participants encoded at once: the law of encoding them one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechanisms.clip_rule import GEOMETRIC, ClipRule
from mechanisms.encoder import Encoder, InvalidUpdate
from mechanisms.plan import Plan
from mechanisms.rotation import ROTATIONS, Rotation
from mechanisms.rounding import RoundingFailed, conditional_round, conditional_round_rows
from mechanisms.statement import VECTOR_MECHANISMS
from tests.mechanisms.conftest import keyed, plan_for

SEED = bytes(range(32))


def plan_of(mechanism: str = "ddgauss", **changes: object) -> Plan:
    stated = {"dim": 100, "bits": 20, "epsilon": 8.0, "rounds": 3, "min_survivors": 2, "quorum": 2}
    return plan_for(40, mechanism=mechanism, **stated | changes)


CODINGS: list[dict[str, object]] = [
    {},
    {"rotation": "hadamard-blocks"},
    {"clip": None, "clipping": ClipRule.flat(100, 1.0, update=GEOMETRIC, quantile=0.5, rate=0.3, bit_weight=0.3)},
    {"clip": None, "clipping": ClipRule(layers=(60, 40), clips=(0.5, 2.0), scaling="proportional")},
    {"sketch": (5, 4)},
]


@pytest.mark.parametrize("mechanism", VECTOR_MECHANISMS)
@pytest.mark.parametrize("coding", CODINGS, ids=["flat", "blocks", "adaptive", "layers", "sketch"])
def test_one_row_equals_encode(mechanism: str, coding: dict[str, object]) -> None:
    """The same keys, hence the same words; only where an addition's last bit decided a rounding could they differ."""
    encoder = Encoder(plan_of(mechanism, **coding), SEED)
    for trial in range(20):
        update = np.random.default_rng(trial).normal(size=(1, 100)) * 10.0 ** (trial % 3 - 2)
        one = encoder.encode(update[0], keyed(f"single {trial}"))
        many = encoder.encode_many(update, keyed(f"single {trial}"))
        assert many.shape == (1, *one.shape)
        assert many.dtype == one.dtype
        assert np.array_equal(many[0], one)


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "local-gaussian"])
def test_sum_of_many_has_the_planned_deviation(mechanism: str) -> None:
    """60 sums of 40, by a fixed key: 6,000 errors, whose deviation strays by 4.9 sigma with probability 1e-6."""
    plan = plan_of(mechanism)
    encoder, source, errors = Encoder(plan, SEED, survivors=40), keyed("many " + mechanism), []
    for trial in range(60):
        updates = np.random.default_rng(trial).normal(size=(40, 100)).astype(np.float32)
        updates *= 0.999 / np.linalg.norm(updates, axis=1, keepdims=True).max()
        total = encoder.encode_many(updates, source).astype(np.uint64).sum(axis=0) & np.uint64((1 << plan.bits) - 1)
        errors.append(encoder.decode_sum(total, 40) - updates.mean(axis=0))
    error = np.concatenate(errors) * 40
    lowest, highest = plan.full_stddev, math.sqrt(plan.full_stddev**2 + 40 * plan.granularity**2 / 4)
    spread = 4.9 / math.sqrt(2 * error.size)
    assert lowest * (1 - spread) < error.std() < highest * (1 + spread)
    assert abs(error.mean()) < 4.9 * highest / math.sqrt(error.size)


def test_rows_have_independent_noise_and_rounding() -> None:
    """Equal updates: correlations of 40 rows over 128 coordinates; each beyond 6 sigma with probability 2e-9."""
    encoder = Encoder(plan_of(), SEED)
    words = encoder.encode_many(np.zeros((40, 100)), keyed("independent")).astype(np.int64)
    words -= (words >> 19) << 20  # centred
    correlation = np.corrcoef(words)
    assert np.max(np.abs(correlation[~np.eye(40, dtype=bool)])) < 6 / math.sqrt(128)


def test_every_row_keeps_the_bound_and_only_long_ones_are_drawn_again() -> None:
    """Values of 1/2 everywhere round to squared norms about 50 +- 5: with a limit of 50 half of all tries fail."""
    values = np.full((200, 100), 0.5)
    rounded = conditional_round_rows(values, 50, keyed("rows"))
    squares = np.einsum("ij,ij->i", rounded, rounded)
    assert squares.max() <= 50
    unconditional = conditional_round_rows(values, 100, keyed("rows"))
    first = np.einsum("ij,ij->i", unconditional, unconditional)
    assert 60 < np.count_nonzero(first <= 50) < 160
    assert np.array_equal(rounded[first <= 50], unconditional[first <= 50])
    for row in range(20):
        one = conditional_round(values[row], 50, keyed(f"row {row}"))
        assert np.array_equal(conditional_round_rows(values[row : row + 1], 50, keyed(f"row {row}"))[0], one)


def test_rows_fail_closed() -> None:
    values = np.zeros((3, 10))
    values[1] = 5.0
    with pytest.raises(RoundingFailed, match="in 7 tries"):
        conditional_round_rows(values, 100, keyed("closed"), most_tries=7)
    for wrong in (np.nan, np.inf, 2.0**31):
        values[1, 3] = wrong
        with pytest.raises(RoundingFailed, match="too long"):
            conditional_round_rows(values, 100, keyed("closed"))


@pytest.mark.parametrize("kind", ROTATIONS)
@pytest.mark.parametrize("dim", [1, 2, 100, 500, 70_000])
def test_rows_are_rotated_as_vectors_are(kind: str, dim: int) -> None:
    rotation, vectors = Rotation(SEED, dim, kind), np.random.default_rng(dim).normal(size=(3, dim))
    expected = np.stack([rotation.forward(vector) for vector in vectors])
    assert np.allclose(rotation.forward_rows(vectors), expected, rtol=0, atol=1e-12 * math.sqrt(dim))


@pytest.mark.parametrize("wrong", [np.zeros(100), np.zeros((0, 100)), np.zeros((2, 99)), np.full((2, 100), np.nan)])
def test_what_is_no_row_of_updates_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InvalidUpdate):
        Encoder(plan_of(), SEED).encode_many(wrong, keyed("refused"))
