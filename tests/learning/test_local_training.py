"""Each method against a slow reference by hand: lists of floats, one step and one value at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from learning.datasets import load_part
from learning.local_training import (
    Arrays,
    Batch,
    blocks,
    kept_values,
    local_change,
    most_important,
    side_by_side,
    steps,
)
from learning.make_task import make_task
from learning.options import METHODS, OptionError, TrainingOptions
from learning.public_random import PublicRandom
from learning.task import BatchedTask, update_rng

SHAPES = {"first": (2, 3), "second": (4,)}
CENTRES = np.random.default_rng(3).normal(size=(11, 10))
CURVES = np.random.default_rng(4).uniform(0.2, 1.0, size=(11, 10))
START = np.random.default_rng(5).normal(size=10)


def flat(arrays: Arrays) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays.values()])


def named(vector: np.ndarray) -> Arrays:
    return {"first": vector[:6].reshape(2, 3).copy(), "second": vector[6:].copy()}


def gradient(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, int]:
    """Of the mean of sum_i curve_i / 2 (w_i - centre_i)^2 over the batch's examples."""
    slopes = CURVES[batch.rows] * (flat(model) - CENTRES[batch.rows])
    return named(slopes.mean(axis=0)), len(batch.rows)


def options(**values: object) -> TrainingOptions:
    return TrainingOptions.from_mapping({"client_rate": 0.3, "batch_size": 4, **values})


def change(of: TrainingOptions, l2_clip: float = math.inf) -> np.ndarray:
    start = named(START)
    result = local_change(
        start,
        named(START),
        of,
        l2_clip,
        (Batch(rows) for rows in steps(of, 11, PublicRandom(7))),
        lambda: (Batch(rows) for rows in blocks(of, 11)),
        gradient,
    )
    np.testing.assert_array_equal(flat(start), START)
    return flat(result)


def by_hand(
    batches: Iterable[Iterable[int]], rate: float, pull: Callable[[list[float]], float] = lambda drift: 0.0
) -> list[float]:
    """w <- w - rate (g + pull (w - w^t)), value by value."""
    weights = [float(value) for value in START]
    for rows in map(list, batches):
        drift = [weight - float(start) for weight, start in zip(weights, START, strict=True)]
        factor = pull(drift)
        for i in range(10):
            slope = sum(float(CURVES[row, i]) * (weights[i] - float(CENTRES[row, i])) for row in rows) / len(rows)
            weights[i] -= rate * (slope + factor * drift[i])
    return [weight - float(start) for weight, start in zip(weights, START, strict=True)]


def norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def ordered(of: TrainingOptions) -> list[list[int]]:
    return [rows.tolist() for rows in steps(of, 11, PublicRandom(7))]


# ------------------------------------------------------------------------------------------------ steps


def test_epochs_are_fresh_permutations_cut_into_batches() -> None:
    found = ordered(options(local_epochs=3))
    assert [len(rows) for rows in found] == [4, 4, 3] * 3
    passes = [[row for rows in found[place : place + 3] for row in rows] for place in (0, 3, 6)]
    source = PublicRandom(7)
    assert passes == [source.permutation(11).tolist() for _ in range(3)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_local_steps_take_as_many_passes_as_they_need(count: int) -> None:
    found = ordered(options(local_steps=count, local_epochs=9))
    assert len(found) == count
    assert found == ordered(options(local_epochs=9))[:count]


def test_no_permutation_is_drawn_before_it_is_due() -> None:
    source = PublicRandom(7)
    list(steps(options(local_steps=3), 11, source))
    again = PublicRandom(7)
    again.permutation(11)
    assert source.permutation(5).tolist() == again.permutation(5).tolist()


def test_blocks_hold_every_row_once() -> None:
    assert [rows.tolist() for rows in blocks(options(), 11)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_side_by_side_fills_up_and_marks_what_counts() -> None:
    first = [np.array([2, 0, 1]), np.array([3])]
    second = [np.array([1, 0])]
    one, two = side_by_side([first, second], [4, 2])
    assert one.counted.tolist() == [[True, True, True], [True, True, False]]
    assert one.rows[one.counted].tolist() == [2, 0, 1, 5, 4]
    assert two.counted.tolist() == [[True], [False]]
    assert two.rows[0].tolist() == [3]
    assert 4 <= two.rows[1, 0] < 6
    (whole,) = side_by_side([second, second], [2, 2])
    assert whole.counted is None


# ------------------------------------------------------------------------------------------------ methods


@pytest.mark.parametrize("counts", [{"local_epochs": 2}, {"local_steps": 5}])
def test_dp_fedavg(counts: dict[str, int]) -> None:
    of = options(**counts)
    np.testing.assert_allclose(change(of), by_hand(ordered(of), 0.3), atol=1e-12)


def test_dp_fedsgd_is_one_step_along_the_mean_over_all_examples() -> None:
    of = options(method="dp-fedsgd")
    np.testing.assert_allclose(change(of), by_hand([range(11)], 0.3), atol=1e-12)
    assert ordered(of) == []


def test_fedprox_always_draws_back() -> None:
    of = options(method="fedprox", proximal_weight=0.7, local_epochs=2)
    np.testing.assert_allclose(change(of), by_hand(ordered(of), 0.3, lambda drift: 0.7), atol=1e-12)
    plain = options(method="fedprox", proximal_weight=0.0, local_epochs=2)
    np.testing.assert_allclose(change(plain), change(options(local_epochs=2)), atol=1e-15)


def test_blur_acts_exactly_beyond_the_clip() -> None:
    """Eq. 7 step by step; the clip is one that some steps pass and others don't."""
    of = options(method="blur", blur_weight=1.5, local_steps=12)
    acted: list[bool] = []

    def pull(drift: list[float]) -> float:
        acted.append(norm(drift) > 1.2)
        return 1.5 if acted[-1] else 0.0

    np.testing.assert_allclose(change(of, 1.2), by_hand(ordered(of), 0.3, pull), atol=1e-12)
    first = acted.index(True)  # some step is beyond the clip
    assert first > 0
    assert not all(acted[first:])  # and it is drawn back inside


def test_blur_with_an_infinite_clip_never_acts() -> None:
    np.testing.assert_array_equal(change(options(method="blur")), change(options()))


def test_blur_of_a_step_at_the_clip_itself_does_not_act() -> None:
    """|| w - w^t || > S is strict: with S the norm after step 1, step 2 is a plain one."""
    one, two = options(method="blur", local_steps=1), options(method="blur", local_steps=2)
    reached = float(np.sqrt((change(one) ** 2).sum()))
    np.testing.assert_array_equal(change(two, reached * (1 + 1e-12)), change(two))
    assert not np.allclose(change(two, reached * (1 - 1e-9)), change(two))


def test_blur_discounts_earlier_gradients() -> None:
    """Unrolling Eq. 7: each step beyond S shrinks the whole drift so far by 1 - lambda eta.

    So a gradient's discount is (1 - lambda eta)^(later steps beyond S). Lemma 2 prints (1 - lambda eta)^q for step q:
    the same powers counted from the other end, as the second clip shows, where every step but the first is beyond S.
    """
    of = options(method="blur", blur_weight=0.8, local_steps=9)
    for l2_clip in (0.9, 1e-6):
        weights, gradients, beyond = START.copy(), [], []
        for rows in ordered(of):
            gradients.append((CURVES[rows] * (weights - CENTRES[rows])).mean(axis=0))
            beyond.append(norm(weights - START) > l2_clip)
            weights = weights - 0.3 * (gradients[-1] + 0.8 * beyond[-1] * (weights - START))
        discounts = [(1 - 0.8 * 0.3) ** sum(beyond[place + 1 :]) for place in range(len(beyond))]
        assert min(discounts) < max(discounts) == 1
        unrolled = -0.3 * sum(discount * slope for discount, slope in zip(discounts, gradients, strict=True))
        np.testing.assert_allclose(change(of, l2_clip), unrolled, atol=1e-12)
    assert discounts[::-1] == [(1 - 0.8 * 0.3) ** q for q in range(9)]


@pytest.mark.parametrize("method", ["lus", "blur-lus"])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.7, 0.95])
def test_lus_keeps_what_the_loss_would_miss(method: str, sparsity: float) -> None:
    of = options(method=method, sparsity=sparsity, local_epochs=2)
    dense = by_hand(ordered(of), 0.3, lambda drift: 0.4 if method == "blur-lus" and norm(drift) > 1.2 else 0.0)
    expected = list(dense)
    for begin, end in ((0, 6), (6, 10)):
        kept = max(1, round((1 - sparsity) * (end - begin)))
        costs = {}
        for i in range(begin, end):
            weight = float(START[i]) + dense[i]
            slope = sum(float(CURVES[row, i]) * (weight - float(CENTRES[row, i])) for row in range(11)) / 11
            costs[i] = abs(slope * dense[i])
        for i in sorted(costs, key=lambda i: costs[i])[: end - begin - kept]:
            expected[i] = 0.0
    found = change(of, 1.2)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.count_nonzero(found[:6]) == kept_values(6, sparsity)
    assert np.count_nonzero(found[6:]) == kept_values(4, sparsity)
    assert norm(found) <= norm(dense) + 1e-12


def test_lus_keeps_one_value_of_an_array_at_least() -> None:
    assert [kept_values(size, 0.99) for size in (1, 2, 10, 1000)] == [1, 1, 1, 10]
    assert [kept_values(size, 0.0) for size in (1, 2, 10)] == [1, 2, 10]


TIE = [2.0, 0.0, 0.0, -1.0, 0.0, 0.0], [1.0, 0.1, -0.4, 1.0, 0.2, 0.3]
EQUAL = [2.0, 1.0, -1.0, 1.0, 0.5, 1.0], [1.0, 1.0, 1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("slopes", "moved", "sparsity", "expected"),
    [
        *((*TIE, 1 / 6, "101111"), (*TIE, 0.5, "101100"), (*TIE, 5 / 6, "100000")),  # the smallest changes go first
        *((*EQUAL, 0.5, "111000"), (*EQUAL, 2 / 3, "110000"), (*EQUAL, 0.17, "111101")),  # the first ones stay
        ([1.0] * 15, [0.0] * 15, 0.7, "1" * 5 + "0" * 10),  # also where nothing has changed
        ([1.0, np.nan, 3.0, 4.0, 5.0], [1.0, 1.0, np.nan, 1.0, 1.0], 0.6, "01100"),  # NaN is kept, and so seen
    ],
)
def test_which_of_a_tie_are_kept(slopes: list[float], moved: list[float], sparsity: float, expected: str) -> None:
    kept = most_important(np.array(slopes), np.array(moved), sparsity)
    assert "".join(str(int(one)) for one in kept) == expected


def test_of_units_that_are_off_only_what_never_changed_is_lost() -> None:
    """Of a rectified network more weights matter nothing to the loss than are removed; alone and side by side alike.

    Participants of one class each: in an array with enough weights that never changed, all that did are kept.
    """
    shared = {"hidden": 32, "local_steps": 30, "client_rate": 0.1, "batch_size": 16}
    plain, sparse = (make_task("mlp", shared | more) for more in ({}, {"method": "lus", "sparsity": 0.1}))
    train = load_part("fashion-mnist-subset", "train")
    data = [train.take(np.flatnonzero(train.labels == one)[:20]) for one in range(3)]
    start, rngs = sparse.initial_parameters(), [update_rng(0, 1, place) for place in range(3)]
    assert isinstance(sparse, BatchedTask)
    together = sparse.local_updates(start, data, rngs, 1.0)
    enough = 0
    for place, one in enumerate(data):
        dense = plain.local_update(start, one, update_rng(0, 1, place), 1.0)
        alone = sparse.local_update(start, one, update_rng(0, 1, place), 1.0)
        np.testing.assert_allclose(together[place], flat(alone), atol=1e-5)
        for name, array in dense.items():
            removed = array.size - kept_values(array.size, 0.1)
            if 0 < removed <= np.count_nonzero(array == 0):
                np.testing.assert_array_equal(alone[name], array)
                enough += 1
    assert enough


def test_importance_is_by_participant_where_they_stand_side_by_side() -> None:
    rng = np.random.default_rng(0)
    slopes, moved = rng.normal(size=(4, 3, 5)), rng.integers(-2, 3, (4, 3, 5)).astype(float)
    together = most_important(slopes, moved, 0.6, leading=1)
    for place in range(4):
        np.testing.assert_array_equal(together[place], most_important(slopes[place], moved[place], 0.6))
        assert together[place].sum() == 6


def test_tensors_give_the_same_as_arrays() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    slopes, moved = rng.integers(-1, 2, (2, 3, 7)) * rng.normal(size=(2, 3, 7)), rng.normal(size=(2, 3, 7)).round()
    for sparsity in (0.0, 0.4, 0.9):
        for leading in (0, 1):
            tensors = most_important(torch.tensor(slopes), torch.tensor(moved), sparsity, leading)
            np.testing.assert_array_equal(tensors.numpy(), most_important(slopes, moved, sparsity, leading))


@pytest.mark.parametrize("method", METHODS)
def test_without_a_slope_nothing_changes(method: str) -> None:
    of = TrainingOptions(method=method, client_rate=0.3)

    def nothing(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, int]:
        return {name: np.zeros_like(array) for name, array in model.items()}, len(batch.rows)

    rows = [Batch(np.arange(3))]
    found = local_change(named(START), named(START), of, 1.0, rows, lambda: rows, nothing)
    assert not flat(found).any()


# ------------------------------------------------------------------------------------------------ options


def test_what_dp_fedsgd_has_no_use_for_is_refused_and_left_out() -> None:
    for name in ("local_epochs", "local_steps"):
        with pytest.raises(OptionError, match=f"'{name}' counts for the method"):
            options(method="dp-fedsgd", **{name: 2})
    assert "local_epochs" not in options(method="dp-fedsgd").to_mapping()
    assert options(method="dp-fedsgd") == TrainingOptions.from_mapping(options(method="dp-fedsgd").to_mapping())


def test_blur_weight_obeys_lemma_2() -> None:
    with pytest.raises(OptionError, match=r"below 1 / client_rate = 3\.33333"):
        options(method="blur", blur_weight=3.4)
    assert options(method="blur", blur_weight=3.3).blur_weight == 3.3
