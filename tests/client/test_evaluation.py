"""Participants evaluate the model inside the secure sum: over real gRPC, on examples that they never train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.parameters import Parameters
from learning.tasks.softmax_regression import SoftmaxRegression
from server.events import from_json
from server.study_file import StudyConfiguration
from server.study_view import StudyView
from tests.client.conftest import refused
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS
from wire.ending import NO_BETTER

EVALUATED = {"evaluate": "participants", "evaluation_weight": 1.0, "evaluation_examples": 50}


def test_their_accuracy_comes_with_the_sum(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the model before the round, over held-out examples of all; none of them is ever trained on."""
    judged: list[tuple[int, Dataset, dict[str, float]]] = []
    trained: list[Dataset] = []
    evaluate, train = SoftmaxRegression.evaluate, SoftmaxRegression.local_update

    def evaluates(self: Any, parameters: Parameters, data: Dataset) -> dict[str, float]:
        found = evaluate(self, parameters, data)
        if len(data) != 2000:  # not the coordinator's
            judged.append((int(np.any(parameters["weights"])), data, found))
        return found

    def trains(self: Any, parameters: Parameters, data: Dataset, *others: Any) -> Parameters:
        trained.append(data)
        return train(self, parameters, data, *others)

    monkeypatch.setattr(SoftmaxRegression, "evaluate", evaluates)
    monkeypatch.setattr(SoftmaxRegression, "local_update", trains)
    story = played(made=EVALUATED)
    assert story.ended == 0
    rounds = story.of("round_completed")
    assert len(judged) == len(trained) == 2 * PARTICIPANTS
    for learnt, done in enumerate(rounds):
        said, exact = done["reported"], [(data, found) for when, data, found in judged if when == learnt]
        weights = [min(len(data), 50) for data, _ in exact]
        for name in ("accuracy", "loss"):
            mean = np.average([min(found[name], 4.0) for _, found in exact], weights=weights)
            assert said[name] == pytest.approx(mean, abs=5 * said[f"{name}_stderr"])
        assert said["accuracy_stderr"] < 0.1
    seen = {row.tobytes() for data in trained for row in data.features}
    assert not seen & {row.tobytes() for _, data, _ in judged for row in data.features}
    view = StudyView().apply_all(filter(None, map(from_json, story.events)))
    assert view.reported == rounds[1]["reported"]


def test_it_can_be_refused(played: Play) -> None:
    story = played(made=EVALUATED, policy={"max_held_out": 0.1})
    refused(story, "evaluation: participants evaluate the model on a share of 0.2")


def test_one_that_can_not_evaluate_trains_all_the_same(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says nothing of the model: a refusal would tell the coordinator about its examples."""

    def fails(self: Any, parameters: Parameters, data: Dataset) -> dict[str, float]:
        if len(data) == 2000:
            return {}
        raise ValueError("a secret of an example")

    monkeypatch.setattr(SoftmaxRegression, "evaluate", fails)
    story = played(made=EVALUATED)
    assert story.ended == 0
    assert [done["u3"] for done in story.of("round_completed")] == [PARTICIPANTS] * 2
    assert [done["reported"] for done in story.of("round_completed")] == [{}, {}]
    assert "evaluation failed, nothing is said of the model" in story.told()
    assert "zeros are sent" not in story.told()
    assert "secret" not in story.told()


def test_a_study_ends_when_its_model_gets_no_better(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SoftmaxRegression, "evaluate", lambda *_: {"accuracy": 0.5, "loss": 1.0})
    story = played(made={"rounds": 9, "patience": 2})
    assert story.ended == 0
    assert len(story.of("round_completed")) == 3
    assert story.of("study_finished")[0]["reason"] == NO_BETTER


def test_a_task_without_a_model_takes_part_in_no_evaluation(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the coordinator's own check says: such a participant would be charged for zeros."""
    monkeypatch.setattr(SoftmaxRegression, "judged", ())
    monkeypatch.setattr(StudyConfiguration, "_evaluation", lambda self, task: self.evaluation.of_plan())
    story = played(made=EVALUATED)
    refused(story, "participants are to evaluate, and the task has no model that they could judge")


@pytest.mark.parametrize("stated", [False, True])
def test_figures_that_a_task_does_not_give_are_no_figures(
    stated: bool, played: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss alone, where an accuracy was stated: half right would be said of it otherwise."""
    evaluate = SoftmaxRegression.evaluate

    def without_accuracy(self: Any, parameters: Parameters, data: Dataset) -> dict[str, float]:
        return {"loss": evaluate(self, parameters, data)["loss"]}

    monkeypatch.setattr(SoftmaxRegression, "evaluate", without_accuracy)
    if not stated:
        assert [done["reported"] for done in played(made=EVALUATED).of("round_completed")] == [{}, {}]
        return
    monkeypatch.setattr(SoftmaxRegression, "judged", ("loss",))
    for done in played(made=EVALUATED).of("round_completed"):
        assert set(done["reported"]) == {"loss", "loss_stderr", "weight"}
