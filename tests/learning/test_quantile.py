"""Quantiles against plain numpy, their intervals, and why the distribution function is asked for in this way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from learning.make_task import make_task
from learning.tasks.quantile import nearest_monotone, root_coefficients
from tests.support.rounds_in_memory import learner_of, plan_of, released, rows, run_round, run_without_noise

ROOT = Path(__file__).resolve().parents[2]

RNG = np.random.default_rng(11)


def triangle(count: int) -> NDArray[np.float64]:
    return np.tril(np.ones((count, count)))


def toeplitz(coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    count = len(coefficients)
    return np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(count)] for i in range(count)])


def test_the_root_of_the_triangle_of_ones() -> None:
    root = toeplitz(root_coefficients(40))
    assert root @ root == pytest.approx(triangle(40))
    assert root_coefficients(5) == pytest.approx([math.comb(2 * k, k) / 4**k for k in range(5)])


@pytest.mark.parametrize("bins", [2, 16, 256, 4096])
def test_the_norm_grows_with_the_logarithm(bins: int) -> None:
    task = make_task("quantile", {"bins": bins})
    assert task.l2_sensitivity is not None
    assert task.l2_sensitivity**2 <= 1 + (1 + math.log(bins)) / math.pi


def test_the_bounds_that_the_documents_state() -> None:
    [row] = [line for line in (ROOT / "docs/statistics.md").read_text().splitlines() if line.startswith("| `quantile`")]
    for bins in (120, 256, 4096):
        bound = make_task("quantile", {"bins": bins}).l2_sensitivity
        assert f"{bound:.2f} with {bins:,}" in row


def test_less_noise_than_bins_and_than_a_tree() -> None:
    """The figures in the module's docstring: errors of the numbers at or below each bin, for the same budget."""
    bins = 256
    sums = triangle(bins)
    squares = np.cumsum(root_coefficients(bins) ** 2)
    ours = np.sqrt(squares[-1] * squares)
    counted = np.sqrt(np.arange(1, bins + 1))
    sizes = [2**level for level in range(8)]  # intervals of 1 to 128 bins, each participant in eight of them
    intervals = np.vstack([np.kron(np.eye(bins // size), np.ones(size)) for size in sizes])
    covariance = len(sizes) * np.linalg.inv(intervals.T @ intervals)
    tree = np.sqrt(np.diag(sums @ covariance @ sums.T))

    def figures(errors: NDArray[np.float64]) -> tuple[float, float]:
        return round(float(np.sqrt(np.mean(errors[:-1] ** 2))), 2), round(float(errors[:-1].max()), 2)

    assert figures(ours) == (2.67, 2.83)
    assert figures(tree) == (3.15, 3.96)
    assert figures(counted) == (11.31, 15.97)


def test_quantiles_without_noise() -> None:
    values = RNG.gamma(3.0, 10.0, 400)
    shares = (0.1, 0.25, 0.5, 0.9)
    options = {"high": 200, "bins": 1000, "quantiles": ",".join(map(str, shares))}
    result = released("quantile", options, [rows([value]) for value in values])
    found = {value["name"]: value["value"] for value in result["values"]}
    assert list(found) == ["quantile 0.1", "quantile 0.25", "median", "quantile 0.9"]
    nearest = [np.quantile(values, share, method="inverted_cdf") for share in shares]
    assert list(found.values()) == pytest.approx(nearest, abs=0.21)  # a bin is 0.2 wide
    below = [np.mean(values < edge) for edge in result["edges"][1:]]
    assert result["cumulative"][:-1] == pytest.approx(below[:-1], abs=1e-5)
    assert result["answered"] == pytest.approx(1.0)


def test_rows_share_the_weight_of_their_participant() -> None:
    data = [rows([1.0] * 99 + [9.0]), rows([9.0]), rows([9.0])]
    found = released("quantile", {"high": 10, "bins": 10, "reduce": "spread", "quantiles": "0.3"}, data)
    assert 1 < found["values"][0]["value"] < 2  # 0.33 of the weight lies in the bin from 1 to 2


def test_those_without_a_value_are_not_counted() -> None:
    found = released("quantile", {"high": 10, "bins": 10}, [rows([4.5]), rows([]), rows([]), rows([])])
    assert found["values"][0]["value"] == pytest.approx(4.5)
    assert found["answered"] == pytest.approx(0.25, abs=1e-6)
    nobody = released("quantile", {"high": 10, "bins": 10}, [rows([]), rows([])])
    assert (nobody["values"][0]["value"], nobody["cumulative"]) == (None, None)


def test_nearest_monotone() -> None:
    assert nearest_monotone(np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx([1.0, 2.5, 2.5, 4.0])
    values = RNG.normal(size=60)
    nearest = nearest_monotone(values)
    assert (np.diff(nearest) >= 0).all()
    others = np.sort(RNG.normal(size=(300, 60)), axis=1)  # nothing else that rises is nearer
    assert (np.linalg.norm(others - values, axis=1) >= np.linalg.norm(nearest - values)).all()


def test_the_error_of_a_share_is_that_of_the_quotient() -> None:
    """Against 4,000 seeded draws of noise: the deviation of 4,000 is known to 1.1 %, so 6 % are five deviations."""
    bins, stddev, share, place = 32, 0.003, 0.5, 15
    task: Any = make_task("quantile", {"bins": bins})
    noise = np.random.default_rng(5).normal(0, stddev, (4000, bins))
    numbers = noise @ toeplitz(root_coefficients(bins)).T  # errors of the number at or below each bin
    measured = np.std((share + numbers[:, place]) / (1 + numbers[:, -1]))
    assert task._share_errors(share, 1.0, stddev)[place] == pytest.approx(measured, rel=0.06)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """400 studies over the same people with seeded noise: a true coverage of 95 % gives fewer than 355 right ones
    with probability below 1e-6. Making the function monotone can only help."""
    values = np.random.default_rng(3).normal(50, 15, 300).clip(0, 100)
    task = make_task("quantile", {"high": 100, "bins": 128, "quantiles": "0.25,0.5"})
    exact = learner_of(task)
    run_without_noise(task, exact, [rows([value]) for value in values])
    mean = exact.estimate().mean
    truths = [value["value"] for value in exact.released()["values"]]
    noise = np.random.default_rng(4)
    right = np.zeros(2, dtype=int)
    for _ in range(400):
        learner = learner_of(task)
        learner.learn(mean + noise.normal(0, 0.02, task.dim), 300, 0.02)
        for place, (value, truth) in enumerate(zip(learner.released()["values"], truths, strict=True)):
            right[place] += value["low"] <= truth <= value["high"]
    assert (right >= 355).all(), right


def test_with_the_encoders_noise() -> None:
    """The share of people at or below the released median is within 5.2 standard errors of a half (and a bin):
    false alarm rate below 1e-6."""
    values = np.random.default_rng(8).normal(50, 15, 80).clip(0, 100)
    task = make_task("quantile", {"high": 100, "bins": 64})
    learner, plan = learner_of(task), plan_of(task, 80, epsilon=20.0)
    run_round(task, learner, plan, [rows([value]) for value in values])
    [median] = learner.released()["values"]
    width = 100 / 64
    slack = 5.2 * median["share_error"]
    assert np.mean(values <= median["value"] - width) <= 0.5 + slack
    assert np.mean(values <= median["value"] + width) >= 0.5 - slack
