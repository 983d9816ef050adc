"""How experiments choose hyper-parameters and compare accuracies: grids that are extended, and paired tests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from sordino.lab.experiments import bits
from sordino.lab.experiments.outcome import SEEDS, SMALL, Request, Stages
from sordino.lab.experiments.paired import LEVEL, POWER, detectable, holm, p_value
from sordino.lab.experiments.runs import Run
from sordino.lab.experiments.tables import Results, Share, compared
from sordino.lab.simulation.settings import SimulationSettings, simulated_study

# ---------------------------------------------------------------- choices


def made(*, seed: int, clip: float = 1.0, rate: float = 0.5, **labels: Any) -> SimulationSettings:
    """Settings that nobody runs; they differ with clip and rate, and with what else is named."""
    study = simulated_study(participants=30, clip=clip, task_options={"client_rate": rate}, seed=seed)
    return SimulationSettings(study=study, seed=seed, evaluate_every=1 + round(sum(labels.values())))


class Pretended:
    """A pool whose rows have the accuracies, by labels and seed, of a function; None is a run without a plan."""

    def __init__(self, judged: Callable[[dict[str, Any], int], float | None]) -> None:
        self.judged = judged
        self.runs: dict[str, Run] = {}

    def run(self, stage: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
        del stage
        self.runs |= {run.identity: run for run in runs}
        return [self._row(dict(run.labels), run.settings.seed) for run in runs]

    def _row(self, labels: dict[str, Any], seed: int) -> dict[str, Any]:
        found = self.judged(labels, seed)
        outcome = "infeasible" if found is None else "rounds done"
        row = {"labels": labels, "seed": seed, "outcome": outcome, "accuracy": found, "plan": None}
        return row | {"epsilon_released": None, "epsilon_coordinator": None}


def tuned(pool: Pretended, grid: dict[str, Any], of: dict[str, Any] | None = None) -> Any:
    stages = Stages(pool, (), 1)  # type: ignore[arg-type]
    return stages.tuned("S", grid, made, of)


def peak(**best: float) -> Callable[[dict[str, Any], int], float]:
    """Accuracy falls with the distance, in orders of magnitude, of each name from its best."""
    return lambda labels, seed: 0.9 - sum(abs(math.log(labels[name] / one)) for name, one in best.items()) / 100


def test_a_grid_is_extended_until_the_best_is_inside() -> None:
    """The naive choice is the end of what was asked: clip 1 and rate 0.1."""
    choice = tuned(pool := Pretended(peak(clip=11, rate=0.05)), {"clip": (0.1, 0.3, 1.0), "rate": (0.1, 0.2)})
    assert choice.taken() == {"clip": 11, "rate": 0.05}
    assert choice.grids[()] == {"clip": (0.1, 0.3, 1.0, 3.3, 11.0, 37.0), "rate": (0.1, 0.2, 0.05, 0.025)}
    assert choice.runs() == len(pool.runs) == 6 * 4 * len(SEEDS)
    assert {run.settings.seed for run in pool.runs.values()} == set(SEEDS)
    assert not set(SEEDS) & set(Request(()).seeds)
    assert len(Request(()).seeds) >= 10
    text = choice.table("t").text()
    assert "chosen of 48 runs\n" in text
    assert "Each choice is of 48 runs" in text
    assert choice.to_json()["chosen"][0]["runs"] == 48


def test_an_extension_ends() -> None:
    """At four values a side, which the table says; at a value that is no better, or has no plan."""
    far = tuned(Pretended(peak(clip=1e9)), {"clip": (1.0, 10.0)})
    assert far.grids[()]["clip"] == (1, 10, 1e2, 1e3, 1e4, 1e5)
    assert "chosen of 12 runs, clip at an end" in far.table("t").text()
    equal = tuned(Pretended(lambda labels, seed: min(labels["clip"], 1.0)), {"clip": (0.1, 1.0)})
    assert equal.taken() == {"clip": 1.0}
    assert "at an end" not in equal.table("t").text()
    none = tuned(Pretended(lambda labels, seed: labels["clip"] if labels["clip"] < 5 else None), {"clip": (0.1, 1.0)})
    assert none.taken() == {"clip": 1.0}
    for grid in ({"clip": (1.0,)}, {"sparsity": (0.1, 0.3)}):  # one value, and a scale with an end of its own
        make = Mock(side_effect=made)
        Stages(pool := Pretended(lambda labels, seed: 0.5), (), 1).tuned("S", grid, make)  # type: ignore[arg-type]
        assert len(make.call_args_list) == len(SEEDS) * len(next(iter(grid.values())))
        assert pool.runs


def test_each_value_has_an_extension_of_its_own() -> None:
    """What only one noise needs isn't run for the other, and each says its number of runs."""

    def judged(labels: dict[str, Any], seed: int) -> float:
        return peak(clip=0.3 if labels["epsilon"] == 8 else 0.03)(labels, seed)

    choice = tuned(Pretended(judged), {"clip": (0.1, 0.3, 1.0)}, {"epsilon": (2.0, 8.0)})
    assert (choice.taken(2.0)["clip"], choice.taken(8.0)["clip"]) == (0.033, 0.3)
    assert (choice.runs(2.0), choice.runs(8.0)) == (10, 6)
    assert "Each choice is of 6 to 10 runs" in choice.table("t").text()


# ---------------------------------------------------------------- comparisons


def test_the_sign_flip_test_by_hand() -> None:
    """(1, 2, 3): 2 of 8 patterns are as far from zero; (1, 2, -1): 6; ten of one sign: 2 of 1,024."""
    assert p_value([1, 2, 3]) == 2 / 8
    assert p_value([1, 2, -1]) == 6 / 8
    assert p_value([0.1 + 0.2 - 0.3, 0.0]) == 1
    assert p_value([0.01 * one for one in range(1, 11)]) == 2 / 1024
    assert p_value([-0.5] * 9 + [0.1]) == 4 / 1024
    assert p_value([0.01] * 20) == 1 / 4096  # drawn
    with np.errstate(all="raise"):
        assert p_value([0.0] * 10) == 1


def test_p_values_are_corrected_for_their_number() -> None:
    """By hand: 4 x 0.01, then 3 x 0.02, then 2 x 0.03 and 0.04, which may not fall below the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_the_size_that_would_be_found() -> None:
    """Ten normal pairs at 5 %: the t-test's (2.262 + 0.883) / sqrt(10), of which a sign-flip test is close.

    On other draws the size is found in 80 % of 2,000: 4 deviations are 3.6 %.
    """
    size = detectable(10, LEVEL)
    assert size == pytest.approx((2.262 + 0.883) / math.sqrt(10), rel=0.05)
    draws = np.random.default_rng(1234567).standard_normal((2000, 10)) + size
    assert np.mean([p_value(one) <= LEVEL for one in draws]) == pytest.approx(POWER, abs=0.05)
    assert detectable(10, LEVEL / 18) > 1.7 * size
    assert detectable(5, LEVEL) == math.inf  # 2 of 32 patterns are 6 %


def compared_rows(values: dict[str, list[float]]) -> Results:
    return Results(
        [
            {"labels": {"name": name}, "seed": seed, "outcome": "rounds done", "accuracy": value}
            for name, each in values.items()
            for seed, value in enumerate(each, start=1)
        ],
        "name",
    )


def test_differences_are_paired() -> None:
    """Seeds differ by 30 points, settings by one: the error of independent means, 4 points, would hide it."""
    seeds = [0.5 + 0.03 * at for at in range(10)]
    rise = [0.01 + 0.0001 * at for at in range(10)]
    found = compared_rows(
        {"plain": seeds, "more": [one + by for one, by in zip(seeds, rise, strict=True)], "few": seeds[:2]}
    )
    more, less = ("more",), ("plain",)
    ((gain, p, words),) = compared(found, [(more, less)])
    assert isinstance(gain, Share)
    assert gain.of.mean == pytest.approx(0.01045)
    assert gain.of.error == pytest.approx(0.0001 * math.sqrt(55 / 6) / math.sqrt(10))
    assert math.hypot(found.means[more].error or 0, found.means[less].error or 0) > 0.03
    assert (p, words) == (2 / 1024, "above")
    assert compared(found, [(less, more)])[0][2] == "below"
    assert compared(found, [(("few",), less)])[0][2] == "too few seeds to find any"
    assert compared(found, [(("absent",), less), (more, less)])[0] == ["not run", None, ""]


def test_a_finding_pays_for_the_number_of_comparisons() -> None:
    """Alone 6 of 1,024 patterns are a finding, among nine they aren't; what isn't found says what would have been."""
    draw = np.random.default_rng(5)
    base = [0.7] * 10
    near = [0.7 + by for by in (0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.009, -0.001)]
    noise = {f"n{at}": list(0.7 + 0.01 * draw.standard_normal(10)) for at in range(8)}
    found = compared_rows({"base": base, "near": near, **noise})
    alone = compared(found, [(("near",), ("base",))])[0]
    assert (alone[1], alone[2]) == (4 / 1024, "above")
    pairs = [((name,), ("base",)) for name in ("near", *noise)]
    cells = compared(found, [*pairs, *pairs[1:]])
    assert cells[0][1] == pytest.approx(17 * 4 / 1024)
    words = str(cells[1][2])
    assert words.startswith("no difference found; ")
    gain = cells[1][0]
    assert isinstance(gain, Share)
    assert gain.of.error is not None
    size = 100 * detectable(10, LEVEL / 17) * gain.of.error * math.sqrt(10)
    assert float(words.split()[3]) == pytest.approx(size, rel=0.05)
    assert size > 2 * 100 * detectable(10, LEVEL) * gain.of.error


# ---------------------------------------------------------------- bits


def test_bits_tunes_each_noise_and_the_same_noise_has_the_distributed_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clip and rate for all noises would give every run the first of these clips."""
    best = {("gaussian", 4.0): 1.0, ("gaussian", 8.0): 2.0, ("ddgauss", 4.0): 0.5, ("ddgauss", 8.0): 0.25}
    sizes = {
        "participants": 30,
        "rounds": 2,
        "cohort": 10,
        "task": "softmax-regression",
        "epsilons": (4.0, 8.0),
        "bits": (10, 20),
    }
    small = dataclasses.replace(bits.SIZES[SMALL, "images"], **sizes, rates=(0.1,), clips=(0.25, 0.5, 1.0, 2.0))
    monkeypatch.setitem(bits.SIZES, (SMALL, "images"), small)

    def judged(labels: dict[str, Any], seed: int) -> float:
        noise = (labels.get("mechanism", ""), labels.get("epsilon", 0.0))
        return peak(clip=best.get(noise, 4.0))(labels, seed) if "clip" in labels else 0.5

    pool = Pretended(judged)
    outcome = bits.play(pool, Request(("images",), seeds=(1, 2)))  # type: ignore[arg-type]
    for run in pool.runs.values():
        mechanism, epsilon = run.labels.get("mechanism", "none"), run.labels.get("epsilon")
        if run.settings.seed not in SEEDS:
            noise = (mechanism if mechanism == "gaussian" else "ddgauss", epsilon)
            assert run.settings.study.privacy.clip == (4.0 if mechanism == "none" else best[noise])
    counts = {seed: sum(run.settings.seed == seed for run in pool.runs.values()) for seed in (1, 2)}
    assert counts == {1: 2 * (2 * 2 + 2) + 1, 2: 2 * (2 * 2 + 2) + 1}
    *_, noised, plain = outcome.tables
    assert "Each choice is of 8 to 10 runs" in noised.note  # a clip below 0.25 for one, one above 2 for another
    assert "Each choice is of 12 runs" in plain.note
