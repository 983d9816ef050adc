"""The whole pipeline: encode, add modulo 2^B, decode."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mechanisms.clip_rule import GEOMETRIC, ClipRule
from mechanisms.encoder import Encoder, InvalidUpdate, Room, word_dtype, words_of_sum
from mechanisms.plan import Plan
from mechanisms.randomness import RandomBytes, RandomnessFailed
from mechanisms.rotation import ROTATIONS, Rotation
from mechanisms.rounding import RoundingFailed, conditional_round, conditional_round_rows
from mechanisms.statement import VECTOR_MECHANISMS
from tests.mechanisms.conftest import keyed, plan_for

SEED = bytes(range(32))


def modular_sum(vectors: list[np.ndarray], bits: int) -> np.ndarray:
    total = np.zeros(vectors[0].size, object)
    for vector in vectors:
        total += vector.astype(object)
    return np.array([int(v) % (1 << bits) for v in total], word_dtype(bits))


def small_plan(**change: Any) -> Plan:
    stated = {"dim": 100, "bits": 20, "epsilon": 20.0, "min_survivors": 7, "quorum": 8, "max_dropout": 0.2}
    return plan_for(change.pop("clients", 10), **stated | change)


def test_words_are_the_smallest_that_fit() -> None:
    assert [word_dtype(b).str for b in (1, 8, 9, 16, 17, 32, 33, 62)] == [
        "|u1", "|u1", "<u2", "<u2", "<u4", "<u4", "<u8", "<u8",
    ]  # fmt: skip


@pytest.mark.parametrize("bits", [1, 8, 9, 32, 33, 62])
def test_a_sum_is_taken_modulo_a_power_of_two(bits: int) -> None:
    total = np.array([0, 1, 2**bits - 1, 2**bits, 2**bits + 5, 2**64 - 1], np.uint64)
    words = words_of_sum(total, bits)
    assert words.dtype == word_dtype(bits)
    assert words.tolist() == [number % 2**bits for number in total.tolist()]
    assert int(total[-1]) == 2**64 - 1  # left as it is


@pytest.mark.parametrize("bits", [12, 16, 17, 24])
def test_the_mean_comes_back_with_the_planned_noise(bits: int) -> None:
    """Errors of 10 x 128 coordinates: their deviation within 4.9 standard errors of the plan's; fixed key."""
    plan = small_plan(bits=bits, dim=128)
    source = keyed(f"mean {bits}")
    errors = []
    for trial in range(10):
        encoder = Encoder(plan, bytes([trial]) * 32)
        updates = np.random.default_rng(trial).normal(size=(10, 128)).astype(np.float32)
        updates *= 0.999 / np.linalg.norm(updates, axis=1, keepdims=True).max()
        seeds = [tuple(source(32) for _ in range(plan.noise_parts)) for _ in updates]
        encoded = [encoder.encode(u, source, own) for u, own in zip(updates, seeds, strict=True)]
        assert all(e.dtype == word_dtype(bits) and e.shape == (128,) and int(e.max()) < 1 << bits for e in encoded)
        # All survive and take back all parts.
        opened = encoder.without_surplus(modular_sum(encoded, bits), 10, seeds)
        errors.append(encoder.decode_sum(opened, 10) - updates.mean(axis=0))
    error = np.concatenate(errors) * 10
    # Rounding adds at most a quarter of a squared grid step a client.
    lowest, highest = plan.full_stddev, math.sqrt(plan.full_stddev**2 + 10 * plan.granularity**2 / 4)
    spread = 4.9 / math.sqrt(2 * error.size)
    assert lowest * (1 - spread) < error.std() < highest * (1 + spread)
    assert abs(error.mean()) < 4.9 * highest / math.sqrt(error.size)


def test_encoding_is_unbiased() -> None:
    """2,000 sums of one client's update; every coordinate within 5.5 standard errors, fixed key.

    Over 100 coordinates a fresh key would fail with probability 4e-6. beta = 0: the conditioning itself is a
    bias.
    """
    plan = small_plan(beta=0.0, clients=2, min_survivors=1, quorum=1, epsilon=50.0)
    source, encoder = keyed("unbiased encoder"), Encoder(plan, SEED)
    update = np.linspace(-0.1, 0.1, 100)
    total = np.zeros(100)
    for _ in range(2000):
        total += encoder.decode_sum(encoder.encode(update, source), 1)
    error = total / 2000 - update
    deviation = math.sqrt(plan.local_stddev**2 + plan.granularity**2 / 4) / math.sqrt(2000)
    assert np.max(np.abs(error)) < 5.5 * deviation


def test_two_encodings_of_an_update_differ() -> None:
    encoder, source = Encoder(small_plan(), SEED), keyed("differ")
    update = np.full(100, 0.05)
    first, second = encoder.encode(update, source), encoder.encode(update, source)
    assert np.mean(first == second) < 0.1
    assert np.array_equal(Encoder(small_plan(), SEED).encode(update, keyed("differ")), first)


def test_long_updates_are_clipped_and_short_ones_are_not() -> None:
    plan = small_plan(bits=24, epsilon=60.0)
    encoder, source = Encoder(plan, SEED), keyed("clip")
    direction = np.ones(100) / 10

    def decoded(update: np.ndarray) -> np.ndarray:
        vectors = [encoder.encode(update, source) for _ in range(10)]
        return encoder.decode_sum(modular_sum(vectors, 24), 10)

    for length, expected in ((0.5, 0.5), (1.0, 1.0), (7.0, 1.0), (1e30, 1.0), (1e300, 1.0)):
        assert np.dot(decoded(direction * length), direction) == pytest.approx(expected, abs=0.2)


def test_what_is_noised_never_exceeds_the_accountants_norm(demo_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    encoder = Encoder(demo_plan, SEED)

    class Spy:
        def add(self, x: np.ndarray, random_bytes: RandomBytes) -> None:
            seen.append(sum(int(v) ** 2 for v in x))

    monkeypatch.setattr(encoder, "_noise", Spy())
    generator, source = np.random.default_rng(5), keyed("norm")
    for _ in range(50):
        encoder.encode(generator.normal(size=500) * 10.0 ** generator.integers(-3, 6), source)
    encoder.encode(np.zeros(500), source)
    assert max(seen) <= demo_plan.squared_norm_limit <= demo_plan.l2_bound_grid**2
    assert seen[-1] == 0
    # Without the inflated bound, that is at the clip itself, the check would be broken by ordinary updates.
    assert max(seen) > (demo_plan.clip / demo_plan.granularity) ** 2


def test_residues_are_centred_exactly() -> None:
    plan = small_plan(dim=4, bits=12, min_survivors=10, quorum=10)
    encoder = Encoder(plan, SEED)
    half = 1 << 11
    residues = np.array([0, half - 1, half, (1 << 12) - 1], np.uint16)
    centred = np.array([0, half - 1, -half, -1])
    back = encoder.decode_sum(residues, 10)
    again = encoder.rotation.forward(back) * 10 / plan.granularity
    assert np.allclose(again, centred, atol=1e-9)


def test_the_sum_wraps_where_python_wraps() -> None:
    """Word sums that overflow 2^B give the same mean as sums of integers."""
    plan = small_plan(bits=16)
    encoder, source = Encoder(plan, SEED), keyed("wrap")
    vectors = [encoder.encode(np.full(100, 0.01 * i), source) for i in range(10)]
    words = np.zeros(plan.padded_dim, np.uint16)
    for vector in vectors:
        words += vector
    assert np.array_equal(encoder.decode_sum(words, 10), encoder.decode_sum(modular_sum(vectors, 16), 10))


@pytest.mark.parametrize(
    "update",
    [
        np.zeros(99),
        np.zeros(101),
        np.zeros((100, 1)),
        np.zeros(100, np.int64),
        np.zeros(100, np.complex128),
        np.zeros(100, np.longdouble),
        np.zeros(100, bool),
        np.zeros(100, object),
        np.full(100, np.nan),
        np.r_[np.zeros(99), np.inf],
        np.r_[np.zeros(99), -np.inf].astype(np.float32),
        [0.0] * 100,
    ],
    ids=lambda u: f"{type(u).__name__} {getattr(u, 'dtype', '')} {getattr(u, 'shape', '')}",
)
def test_invalid_updates_are_refused(update: Any) -> None:
    with pytest.raises(InvalidUpdate):
        Encoder(small_plan(), SEED).encode(update, keyed("invalid"))


def test_the_update_is_left_alone() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        update = np.full(100, 3.0, dtype)
        Encoder(small_plan(), SEED).encode(update, keyed("alone"))
        assert np.all(update == 3.0)


def test_bad_sums_are_refused() -> None:
    plan = small_plan()
    encoder = Encoder(plan, SEED)
    good = np.zeros(100, np.uint32)
    for survivors in (6, 11, 0, -1):
        with pytest.raises(ValueError, match="survivors"):
            encoder.decode_sum(good, survivors)
    for total in (good[:99], good.astype(np.int64), good.astype(float), np.full(100, 1 << 20, np.uint32)):
        with pytest.raises(ValueError, match="sum"):
            encoder.decode_sum(total, 10)
    with pytest.raises(ValueError, match="seed"):
        Encoder(plan, bytes(16))


def test_a_broken_source_sends_nothing() -> None:
    with pytest.raises(RandomnessFailed):
        Encoder(small_plan(), SEED).encode(np.zeros(100), lambda n: b"")


def test_encoders_share_a_sampler_between_threads() -> None:
    plan = small_plan(dim=20_000, bits=20)
    update = np.full(20_000, 1e-3)

    def work(i: int) -> np.ndarray:
        return Encoder(plan, SEED).encode(update, keyed(f"thread {i}"))

    expected = [work(i) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(work, range(4))), expected)


def test_encoding_takes_a_few_vectors_of_memory() -> None:
    """A client with 10^5 parameters must fit 100 MB with everything else: at most 10 MB here."""
    plan = small_plan(dim=100_000)
    encoder, source = Encoder(plan, SEED), keyed("memory")
    update = np.ones(100_000, np.float32)
    tracemalloc.start()
    encoder.encode(update, source)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20


# ---------------------------------------------------------------- several at once: the law of encoding them one by one


def plan_of(mechanism: str = "ddgauss", **changes: object) -> Plan:
    stated = {"dim": 100, "bits": 20, "epsilon": 8.0, "rounds": 3, "min_survivors": 2, "quorum": 2}
    return plan_for(40, mechanism=mechanism, **stated | changes)


CODINGS: list[dict[str, object]] = [
    {},
    {"rotation": "hadamard"},
    {"clip": None, "clipping": ClipRule.flat(100, 1.0, update=GEOMETRIC, quantile=0.5, rate=0.3, bit_weight=0.3)},
    {"clip": None, "clipping": ClipRule(layers=(60, 40), clips=(0.5, 2.0), scaling="proportional")},
    {"sketch": (5, 4)},
]


@pytest.mark.parametrize("mechanism", VECTOR_MECHANISMS)
@pytest.mark.parametrize("coding", CODINGS, ids=["flat", "padded", "adaptive", "layers", "sketch"])
def test_one_row_equals_encode(mechanism: str, coding: dict[str, object]) -> None:
    """The same keys, hence the same words; only where an addition's last bit decided a rounding could they differ."""
    encoder = Encoder(plan_of(mechanism, **coding), SEED)
    room = Room(encoder.plan, 2)
    for trial in range(20):
        update = np.random.default_rng(trial).normal(size=(1, 100)) * 10.0 ** (trial % 3 - 2)
        one = encoder.encode(update[0], keyed(f"single {trial}"))
        many = encoder.encode_many(update, keyed(f"single {trial}"))
        assert many.shape == (1, *one.shape)
        assert many.dtype == one.dtype
        assert np.array_equal(many[0], one)
        assert np.array_equal(encoder.encode_many(update, keyed(f"single {trial}"), room=room), many)
        encoder.encode_many(np.full((2, 100), 1e3), keyed("leaves the room full"), room=room)


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "local-gaussian"])
@pytest.mark.long
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


@pytest.mark.parametrize(("count", "dim"), [(200, 100), (60, 40_000)])
def test_every_row_keeps_the_bound_and_only_long_ones_are_drawn_again(count: int, dim: int) -> None:
    """Values of 1/2 everywhere round to squared norms about dim / 2: with that limit half of all tries fail."""
    values, limit = np.full((count, dim), 0.5), dim // 2
    rounded = conditional_round_rows(values, limit, keyed("rows"))
    squares = np.einsum("ij,ij->i", rounded, rounded)
    assert squares.max() <= limit
    unconditional = conditional_round_rows(values, dim, keyed("rows"))
    first = np.einsum("ij,ij->i", unconditional, unconditional)
    assert 0.3 < np.mean(first <= limit) < 0.8
    assert np.array_equal(rounded[first <= limit], unconditional[first <= limit])
    for row in range(20):
        one = conditional_round(values[row], limit, keyed(f"row {row}"))
        assert np.array_equal(conditional_round_rows(values[row : row + 1], limit, keyed(f"row {row}"))[0], one)


def test_rows_have_their_own_clip_bits() -> None:
    """A trusted coordinator's Gaussian, so without noise: the last coordinate says which of two updates was short."""
    rule = ClipRule.flat(100, 1.0, update=GEOMETRIC, quantile=0.5, rate=0.3, bit_weight=0.3)
    encoder = Encoder(plan_of("gaussian", clip=None, clipping=rule), SEED)
    updates = np.repeat([[0.1], [10.0]], 100, axis=1) / 10
    words = encoder.encode_many(updates, keyed("bits")).astype(np.int64)
    short, long = (encoder.rotation.inverse(row)[-1] for row in (words << 44) >> 44)
    assert short > 0 > long


def test_rows_fail_closed() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        conditional_round_rows(np.zeros((2, 10)), 1, keyed("closed"), out=np.zeros((2, 20), np.int64)[:, :10])
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
    padded = np.zeros(expected.shape)
    padded[:, :dim] = vectors
    rotation.rotate(padded)
    assert np.allclose(padded, expected, rtol=0, atol=1e-12 * math.sqrt(dim))


@pytest.mark.parametrize("wrong", [np.zeros(100), np.zeros((0, 100)), np.zeros((2, 99)), np.full((2, 100), np.nan)])
def test_what_is_no_row_of_updates_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InvalidUpdate):
        Encoder(plan_of(), SEED).encode_many(wrong, keyed("refused"))
