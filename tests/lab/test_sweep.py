"""A sweep: every combination of options, kept while it runs, with means over seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

import sordino
from sordino.lab.experiments.runs import Standing
from sordino.lab.simulation.settings import resized

mpl.use("Agg")


@pytest.fixture
def settings() -> sordino.SimulationSettings:
    return sordino.SimulationSettings(study=sordino.simulated_study(participants=20, rounds=1))


def test_every_combination_with_what_was_asked(settings: sordino.SimulationSettings) -> None:
    grid: dict[str, Any] = {"epsilon": [4, 8, 64], "client_rate": [0.1, 0.5], "drop": 0.1}
    found = sordino.sweep(settings, seeds=[1, 2], **grid)
    assert [(row["epsilon"], row["client_rate"], row["seed"]) for row in found.rows] == [
        (epsilon, rate, seed) for epsilon in (4, 8, 64) for rate in (0.1, 0.5) for seed in (1, 2)
    ]
    for run, row in zip(found.runs, found.rows, strict=True):
        made = run["settings"]
        study = made["study"]
        assert (study["epsilon"], study["task_options"]["client_rate"]) == (row["epsilon"], row["client_rate"])
        assert (made["drop"], made["seed"], study["seed"]) == (0.1, row["seed"], row["seed"])
        assert row["epsilon_coordinator"] <= row["epsilon"]
    mean = found.means()[4, 0.5, 0.1]
    assert mean.mean == pytest.approx(sum(row["accuracy"] for row in found.rows[2:4]) / 2)
    assert found.to_frame().groupby("epsilon").size().to_dict() == {4: 4, 8: 4, 64: 4}
    axes = found.plot("client_rate")
    curves = [text.get_text() for text in axes.get_legend().get_texts()]
    assert curves == [f"epsilon {one}, drop 0.1" for one in (4, 8, 64)]
    assert (axes.get_xscale(), found.plot().get_xscale()) == ("linear", "log")
    assert found._repr_html_().count("rounds done") == 6


def test_an_interrupted_sweep_continues(settings: sordino.SimulationSettings, tmp_path: Path) -> None:
    def interrupt(standing: Standing) -> None:
        if standing.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sordino.sweep(settings, folder=tmp_path, on_progress=interrupt, epsilon=[2, 4, 8])
    kept: list[int] = []
    found = sordino.sweep(settings, folder=tmp_path, on_progress=lambda one: kept.append(one.kept), epsilon=[2, 4, 8])
    assert kept == [2, 2]
    assert len(found.rows) == 3


def test_what_has_no_plan_is_an_outcome(settings: sordino.SimulationSettings) -> None:
    found = sordino.sweep(settings, participants=[20, 40], epsilon=[0.001])
    assert {row["outcome"] for row in found.rows} == {"infeasible"}
    assert "bits" in found.rows[0]["reason"]
    assert "infeasible" in found._repr_html_()


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"epsilonn": [1]}, "no option epsilonn to sweep. Did you mean epsilon?"),
        ({"epsilon": [-1]}, "privacy.epsilon = -1"),
        ({"drop": [2.0]}, "drop = 2.0"),
        ({"client_rate": ["x"]}, "client_rate"),
    ],
)
def test_a_wrong_option_is_one_sentence(settings: sordino.SimulationSettings, grid: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as error:
        sordino.sweep(settings, **grid)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        (sordino.simulated_study, {"epsilonn": 1}, "a study has no setting epsilonn; options of its task"),
        (sordino.new_study, {"epsilon": -1}, "privacy.epsilon = -1 should be greater than 0."),
        (sordino.SimulationSettings, {"sed": 1}, "a simulation has no setting sed. Did you mean seed?"),
        (sordino.SimulationSettings, {"rounds": 1}, "rounds is a setting of the study; use study=simulated_study("),
    ],
)
def test_a_wrong_setting_is_one_sentence(make: Callable[..., Any], given: dict[str, Any], says: str) -> None:
    with pytest.raises(sordino.Failure) as error:
        make(**given)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_cohort_is_drawn_by_a_lottery_unless_its_law_is_stated() -> None:
    whole, drawn = ("none", 100, None), ("lottery", 20, 100)
    epochs: tuple[Any, ...] = ("epochs", 20, 100)
    for before, change, wanted in [
        ({}, {}, whole),
        ({}, {"cohort": 20}, drawn),
        ({"cohort": 20}, {}, drawn),
        ({"cohort": 20, "sampling": "epochs"}, {}, epochs),
        ({"cohort": 50, "sampling": "epochs"}, {"cohort": 20}, epochs),
        ({"cohort": 20}, {"sampling": "epochs"}, epochs),
        ({"cohort": 20}, {"sampling": "none"}, whole),
        ({"cohort": 20}, {"participants": 200}, ("lottery", 20, 200)),
        ({"cohort": 20}, {"participants": 200, "population": 150}, ("lottery", 20, 150)),
    ]:
        found = resized(sordino.simulated_study(participants=100, **before), 100, **change)
        assert (found.privacy.sampling, found.study.participants, found.privacy.population) == wanted
    with pytest.raises(sordino.Failure, match="say how many with --cohort"):
        sordino.simulated_study(sampling="lottery")
