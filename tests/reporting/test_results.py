"""Results as data frames, figures and HTML: of a plan, a simulation, a sweep, a served study and its ledger."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

import sordino
from mechanisms.plan import Plan
from runtime.failure import Failure, InputFailure
from server.events import RoundCompleted, StudyFinished, StudyStarted
from server.study_view import StudyView
from sordino.planning.alternatives import error_variance

mpl.use("Agg")
STATED: dict[str, Any] = {
    **{"clients": 100, "dim": 500, "bits": 16, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5, "rounds": 15},
    **{"max_dropout": 0.3, "adversarial": 0.05, "mechanism": "skellam"},
}


def text_of(result: Any) -> str:
    """What a notebook shows; it is one element, and holds no markup but ours."""
    html = result._repr_html_()
    assert re.findall(r"<[^>]*>", html) == [re.findall(r"<[^>]*>", html)[0], "<b>", "</b>", "</pre>"]
    assert html.startswith("<pre style=")
    text = re.sub(r"<[^>]*>", "", html)
    assert unescape(text) == repr(result)  # what `print` shows
    return unescape(html)


def lines_of(axes: Any) -> dict[str, list[tuple[float, float]]]:
    return {one.get_label(): list(zip(*map(list, one.lines[0].get_data()), strict=True)) for one in axes.containers}


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian", "local-gaussian"])
def test_a_plan_shows_its_utility_at_other_epsilons(mechanism: str) -> None:
    plan = sordino.plan_study(**STATED | {"mechanism": mechanism})
    assert Plan.from_json(plan.to_json()).identity == plan.identity
    assert plan.to_frame().loc[0, "h_min"] == plan.h_min
    assert "100 participants, 500 values" in text_of(plan)
    curve = dict(lines_of(plan.plot())["distributed Skellam"])
    other = sordino.plan_study(**STATED | {"epsilon": 4.0})
    assert curve[4.0] == pytest.approx(math.sqrt(error_variance(other)) / other.clients)


@pytest.fixture(scope="module")
def settings() -> sordino.SimulationSettings:
    return sordino.SimulationSettings(study=sordino.simulated_study(participants=30, rounds=3))


def test_a_simulation_as_rows_curve_and_file(settings: sordino.SimulationSettings, tmp_path: Path) -> None:
    result = sordino.simulate_study(settings)
    frame = result.to_frame()
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["accuracy"].iloc[-1] == result.accuracy
    assert lines_of(result.plot())["accuracy"] == [(row["round"], 100 * row["accuracy"]) for row in result.rows]
    assert f"accuracy    {result.accuracy:.4f} after round 3" in text_of(result)
    result.model.save(tmp_path / "model.safetensors")
    model = sordino.load_model(tmp_path / "model.safetensors")
    assert (model.task, model.round) == ("softmax-regression", 3)
    assert all(np.array_equal(model.parameters[name], one) for name, one in result.parameters.items())


def test_a_statistic_is_drawn_with_its_error() -> None:
    study = sordino.simulated_study(participants=30, rounds=2, task="mean", task_options={"high": 1.0, "column": 3})
    result = sordino.simulate_study(sordino.SimulationSettings(study=study))
    found = [row["released"]["values"][0]["value"] for row in result.rows]
    assert list(result.to_frame()["column 3"]) == found
    axes = result.plot()
    assert lines_of(axes) == {"column 3": [(1, found[0]), (2, found[1])]}
    assert axes.containers[0].has_yerr


def served(tmp_path: Path, name: str) -> sordino.ServedStudy:
    """A study whose coordinator was told of two rounds."""
    configuration = sordino.StudyConfiguration.model_construct(
        study=sordino.simulated_study().study.model_copy(update={"name": name}),
        coordinator=sordino.simulated_study().coordinator.model_copy(update={"state": tmp_path / "state.sqlite"}),
    )
    view = StudyView().apply_all(
        [
            StudyStarted(at=1.0, study=name, rounds=2, epsilon_target=8.0, delta=1e-5),
            *(RoundCompleted(at=2.0 + n, round=n, attempt=1, accuracy=n / 10, survivors=(0, 1)) for n in (1, 2)),
            StudyFinished(at=5.0, reason="rounds done", rounds_completed=2),
        ]
    )
    return sordino.ServedStudy(tmp_path, configuration, view)


def test_a_served_study(tmp_path: Path) -> None:
    study = served(tmp_path, "<script>alert(1)</script>")
    assert "<script>alert(1)</script>: Already finished" in text_of(study)
    assert list(study.to_frame()["accuracy"]) == [0.1, 0.2]
    assert lines_of(study.plot())["accuracy"] == [(1, 10.0), (2, 20.0)]
    assert (study.outcome, study.accuracy, study.model) == ("rounds done", 0.2, None)
    with pytest.raises(Failure, match="nothing is recorded yet"):
        study.ledger()
    nothing = replace(study, view=StudyView())
    with pytest.raises(InputFailure, match="nothing to draw"):
        nothing.plot()
    assert nothing.to_frame().empty


@pytest.mark.parametrize(("library", "show"), [("pandas", "to_frame"), ("matplotlib", "plot")])
def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, show: str
) -> None:
    study = served(tmp_path, "demo")
    for name in [name for name in sys.modules if name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputFailure, match=rf"^{library} isn't installed: run pip install {library}$"):
        getattr(study, show)()


def test_a_notebook_shows_a_failure_as_its_sentence() -> None:
    failure = InputFailure("the file is gone", "restore it")
    assert failure._render_traceback_() == ["InputFailure: the file is gone. restore it"]
