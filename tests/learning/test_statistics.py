"""Sums, means and histograms against plain numpy, with the encoder's noise and without."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from learning.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from learning.datasets import Dataset
from learning.learner import Learner
from learning.make_task import make_task
from learning.tasks.histogram import nearest_histogram
from tests.support.rounds_in_memory import NOBODY, SIGMAS, learner_of, plan_of, released, rows, run_round

RNG = np.random.default_rng(20)
TABLES = [RNG.normal(50 + 20 * RNG.standard_normal(), 5, size=(RNG.integers(1, 9), 2)) for _ in range(60)]
PEOPLE = [rows(table, RNG.integers(0, 6, size=len(table))) for table in TABLES]


def columns_of(data: list[Dataset], column: int, reduce: Any, low: float, high: float) -> NDArray[np.float64]:
    """One value a participant, the plain way."""
    return np.array([np.clip(reduce(one.features[:, column].astype(np.float64)), low, high) for one in data])


@pytest.mark.parametrize("reduce", ["mean", "sum", "median", "min", "max"])
def test_sums_and_means_without_noise(reduce: str) -> None:
    function = getattr(np, reduce)
    options = {"column": "0,1", "low": -10, "high": "100,80", "reduce": reduce}
    truth = [columns_of(PEOPLE, column, function, -10, high) for column, high in ((0, 100), (1, 80))]
    sums = released("sum", options, PEOPLE)["values"]
    assert [value["value"] for value in sums] == pytest.approx([values.sum() for values in truth], rel=1e-6)
    for count in (True, False):
        means = released("mean", options | {"count": count}, PEOPLE)["values"]
        assert [value["value"] for value in means] == pytest.approx([values.mean() for values in truth], rel=1e-6)
        assert [value["standard_error"] for value in means] == [0.0, 0.0]


def test_first_last_and_count() -> None:
    data = [rows([3.0, 5.0, np.nan]), rows([np.inf, 4.0]), rows([])]
    found = {
        reduce: released("sum", {"high": 10, "reduce": reduce}, data)["values"][0]["value"]
        for reduce in ("first", "last", "count")
    }
    assert found == pytest.approx({"first": 7.0, "last": 9.0, "count": 3.0})


def test_a_mean_is_over_those_who_have_a_value() -> None:
    data = [rows([[1.0, np.nan]]), rows([[3.0, 2.0]]), rows([[np.nan, np.nan]]), rows([[0.0, 0.0]]).take([])]
    first, second = released("mean", {"column": "0,1", "high": 4}, data)["values"]
    assert (first["value"], first["answered"]) == pytest.approx((2.0, 0.5))
    assert (second["value"], second["answered"]) == pytest.approx((2.0, 0.25))
    nobody = released("mean", {"high": 4}, [rows([]), rows([])])["values"][0]
    assert (nobody["value"], nobody["answered"]) == (None, 0.0)


def test_a_participant_counts_once_whatever_its_number_of_rows() -> None:
    data = [rows([1.0] * 1000), rows([3.0])]
    assert released("mean", {"high": 4}, data)["values"][0]["value"] == pytest.approx(2.0)


def test_histogram_of_classes() -> None:
    spread = released("histogram", {"bins": 6}, PEOPLE)["values"]
    weights = [np.bincount(one.labels, minlength=6) / len(one) for one in PEOPLE]
    assert [value["value"] for value in spread] == pytest.approx(np.sum(weights, axis=0), abs=1e-4)
    assert sum(value["share"] for value in spread) == pytest.approx(1.0)
    for reduce, pick in (("first", lambda one: one.labels[0]), ("last", lambda one: one.labels[-1])):
        found = released("histogram", {"bins": 6, "reduce": reduce}, PEOPLE)["values"]
        assert [value["value"] for value in found] == pytest.approx(np.bincount([pick(one) for one in PEOPLE]))
    modes = released("histogram", {"bins": 6, "reduce": "mode"}, PEOPLE)["values"]
    truth = np.bincount([np.bincount(one.labels).argmax() for one in PEOPLE], minlength=6)
    assert [value["value"] for value in modes] == pytest.approx(truth)


def test_classes_out_of_range_are_left_out() -> None:
    data = [rows([0, 0, 0], [1, 7, -1]), rows([0], [9])]
    assert [value["value"] for value in released("histogram", {"bins": 2}, data)["values"]] == [0.0, 1.0]


def test_histogram_of_values() -> None:
    found = released("histogram", {"column": 0, "low": 0, "high": 100, "bins": 8, "reduce": "mean"}, PEOPLE)
    truth, edges = np.histogram(columns_of(PEOPLE, 0, np.mean, 0, 100), bins=8, range=(0, 100))
    assert [value["value"] for value in found["values"]] == pytest.approx(truth)
    assert found["edges"] == pytest.approx(edges)
    outside = released("histogram", {"column": 0, "bins": 2}, [rows([-9.0]), rows([9.0]), rows([1.0]), rows([0.5])])
    assert [value["value"] for value in outside["values"]] == [1.0, 3.0]


def test_nearest_histogram() -> None:
    assert nearest_histogram(np.array([0.5, 0.6, -0.2]), 1.0) == pytest.approx([0.45, 0.55, 0.0])
    assert nearest_histogram(np.array([-1.0, -2.0]), 0.0) == pytest.approx([0.0, 0.0])
    values = RNG.normal(0.1, 0.3, 12)
    nearest = nearest_histogram(values, 0.7)
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(0.7)
    other = RNG.dirichlet(np.ones(12), 500) * 0.7  # nothing else that can be is nearer
    assert (np.linalg.norm(other - values, axis=1) >= np.linalg.norm(nearest - values) - 1e-12).all()


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian"])
def test_with_noise_the_figures_are_as_exact_as_they_say(mechanism: str) -> None:
    """All figures of two rounds within 5.2 of their standard errors: false alarm rate below 1e-6 a mechanism."""
    for name, options, truth in (
        ("sum", {"high": 100, "reduce": "mean"}, columns_of(PEOPLE, 0, np.mean, 0, 100).sum()),
        ("mean", {"high": 100}, columns_of(PEOPLE, 0, np.mean, 0, 100).mean()),
        ("mean", {"high": 100, "count": False}, columns_of(PEOPLE, 0, np.mean, 0, 100).mean()),
    ):
        task = make_task(name, options)
        learner, plan = learner_of(task), plan_of(task, len(PEOPLE), rounds=2, mechanism=mechanism)
        for _ in range(2):
            run_round(task, learner, plan, PEOPLE)
        [value] = learner.released()["values"]
        assert abs(value["value"] - truth) < SIGMAS * value["standard_error"], (name, options)
        assert learner.released()["rounds"] == 2


def test_standard_errors_are_those_of_the_noise() -> None:
    """Over 1,200 noised bins, all of them empty, squares of value over standard error add up to about their number.

    Their sum is chi-square with 1,200 degrees of freedom but for the rounding, whose variance of 1/4 is the largest
    there can be: its deviation is 49, and 0.77 to 1.21 lie 5.2 of them from 1 and below what rounding may save.
    """
    task = make_task("histogram", {"bins": 1200})
    learner, plan = learner_of(task), plan_of(task, 20)
    run_round(task, learner, plan, [NOBODY] * 20)
    values = learner.released()["values"]
    ratio = np.mean([(value["value"] / value["standard_error"]) ** 2 for value in values])
    assert 0.77 < ratio < 1.21


def test_errors_fall_with_rounds_and_survivors_weigh() -> None:
    task = make_task("sum", {"high": 1})
    learner = learner_of(task)
    learner.learn(np.array([0.5]), 10, 0.3)
    learner.learn(np.array([0.2]), 30, 0.1)
    [value] = learner.released()["values"]
    assert value["per_participant"] == pytest.approx((0.5 * 10 + 0.2 * 30) / 40)
    assert value["value"] == pytest.approx(20 * value["per_participant"])  # 20 took part on average
    assert value["standard_error"] == pytest.approx(20 * np.hypot(10 * 0.3, 30 * 0.1) / 40)
    assert learner.released()["participants"] == 30


@pytest.mark.parametrize(
    ("name", "options"), [("sum", {}), ("mean", {"column": "0,1"}), ("histogram", {}), ("quantile", {"bins": 8})]
)
def test_going_on_from_a_checkpoint(name: str, options: dict[str, Any], tmp_path: Any) -> None:
    task = make_task(name, options)
    learner = learner_of(task)
    assert learner.released() == {}
    learner.learn(RNG.normal(0.4, 0.1, task.dim), 12, 0.01)
    save_checkpoint(tmp_path / "round.safetensors", Checkpoint(*learner.state(), {}))
    loaded = load_checkpoint(tmp_path / "round.safetensors")
    again = learner_of(task)
    again.load_state(loaded.parameters, loaded.optimizer_state)
    assert again.released() == learner.released()
    more = RNG.normal(0.4, 0.1, task.dim)
    for one in (learner, again):
        one.learn(more, 11, 0.02)
    assert again.released() == learner.released()
    json.dumps(learner.released(), allow_nan=False)
    with pytest.raises(ValueError, match="another statistic"):
        learner_of(make_task("histogram", {"bins": 77})).load_state(loaded.parameters, loaded.optimizer_state)


def test_a_mean_that_is_no_mean_changes_nothing() -> None:
    learner: Learner = learner_of(make_task("sum"))
    for mean in (np.array([np.nan]), np.zeros(2)):
        with pytest.raises(ValueError, match="1 finite numbers"):
            learner.learn(mean, 3, 0.1)
    assert learner.released() == learner.evaluate() == {}


def test_pixels_are_columns_too() -> None:
    images = Dataset(np.full((2, 4, 4), 200, dtype=np.uint8), np.zeros(2, dtype=np.int64))
    found = released("mean", {"column": 15, "high": 255}, [images])["values"]
    assert found[0]["value"] == pytest.approx(200, abs=1e-3)


def test_the_documents_defaults_are_the_tasks() -> None:
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    table = page.partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| [^|]* \| ([^|]+) \|", table, flags=re.MULTILINE)
    told: dict[str, dict[str, str]] = {}
    for options, defaults in rows:
        names = re.findall(r"`(\w+)`", options)
        if defaults == "–":  # said in the row before
            continue
        for name, default in zip(names, defaults.split(",") if len(names) > 1 else [defaults], strict=True):
            usual, *others = re.findall(r"`([\w.]+)`(?!:)", default)
            tasks = re.findall(r"`(\w+)`:", default)
            told.setdefault(name, {"": usual} | dict(zip(tasks, others, strict=True)))
    assert {"column", "low", "high", "reduce", "count", "bins", "quantiles"} <= set(told)
    for task in ("sum", "mean", "histogram", "quantile"):
        known = make_task(task, {}).options
        for field in fields(known):
            default = told[field.name].get(task, told[field.name][""])
            assert str(field.default).lower() == default, (task, field.name)
