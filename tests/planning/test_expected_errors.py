"""The error that is told before the budget is spent is the one that the result then states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from authority.new_study import new_study
from learning.make_task import make_task
from mechanisms.plan import Plan
from runtime.text import counted
from sordino.planning.expected_errors import expected_errors, expected_lines
from tests.support.commands import Run, output, refusal, words
from tests.support.rounds_in_memory import learner_of, rows, run_round

PEOPLE = 40


def planned(task: str, options: dict[str, Any], **others: Any) -> Plan:
    chosen: dict[str, Any] = {"participants": PEOPLE, "hosts": 1, "rounds": 1, "epsilon": 8.0, "bits": 20} | others
    return new_study(task=task, task_options=options, max_dropout=0.2, **chosen).study.plan()


def play(task: str, options: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """All rounds with all participants, with the encoder's own noise; what is released then."""
    made = make_task(task, options)
    learner = learner_of(made)
    people = [rows([[value] * 2] * 2, [int(value)] * 2) for value in np.linspace(3.0, 9.0, plan.clients)]
    for _ in range(plan.rounds):
        run_round(made, learner, plan, people)
    return json.loads(json.dumps(learner.released()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("sum", {"column": "0,1", "high": 12}),
        ("mean", {"column": "0,1", "high": "12,24", "count": False}),
        ("histogram", {}),
        ("histogram", {"column": 0, "high": 12, "bins": 6}),
    ],
)
def test_errors_that_do_not_depend_on_data_are_exact(task: str, options: dict[str, Any]) -> None:
    for rounds, mechanism in ((1, "ddgauss"), (3, "gaussian")):
        plan = planned(task, options, rounds=rounds, mechanism=mechanism)
        expected = expected_errors(plan, task, options)
        assert expected is not None
        told = play(task, options, plan)["values"]
        whole = expected["values_of_all_rounds"]
        whole = whole * len(told) if task == "histogram" else whole
        assert [one["standard_error"] for one in told] == pytest.approx([one["standard_error"] for one in whole])
        if rounds == 1:
            assert expected["values"] == expected["values_of_all_rounds"]


def test_a_counted_mean_lies_between_the_middle_and_the_bounds() -> None:
    options = {"high": 12}
    plan = planned("mean", options)
    [expected] = (expected_errors(plan, "mean", options) or {})["values"]
    [told] = play("mean", options, plan)["values"]
    share = told["value"] / 12
    measured = expected["standard_error"] * np.hypot(share, 1 - share)
    # All have a value; the result divides by their number with its noise, off by 5.2 deviations once in five million.
    assert told["standard_error"] == pytest.approx(measured, rel=8 * told["answered_error"])
    assert expected["standard_error_middle"] == pytest.approx(expected["standard_error"] / np.sqrt(2))


def test_a_quantiles_share_has_at_most_the_expected_error() -> None:
    options = {"high": 12, "bins": 64, "quantiles": "0.25,0.5"}
    plan = planned("quantile", options)
    expected = (expected_errors(plan, "quantile", options) or {})["values"]
    told = play("quantile", options, plan)
    for before, after in zip(expected, told["values"], strict=True):
        assert before["name"] == after["name"]
        # The largest over all bins, if all answered: the noised number of those who did stands in the result.
        assert after["share_error"] * told["answered"] <= before["share_error"] * (1 + 1e-9)
        assert after["share_error"] * told["answered"] > 0.5 * before["share_error"]
    asked = {"column": "0", "low": "0", "high": "12", "reduce": "mean", "quantiles": "0.25, 0.5", "bins": "64"}
    assert told["asked"] == asked


@pytest.mark.parametrize(
    ("task", "options", "people", "epsilon", "warned"),
    [
        ("quantile", {"high": 12}, 5, 1.0, "hides even whether any of the 5 participants answered"),
        ("quantile", {"high": 12}, 60, 1.5, ""),
        ("quantile", {"high": 12, "quantiles": "0.5"}, 50, 0.7, "may be any of the 50 participants', the smallest or"),
        ("mean", {"high": 12}, 5, 1.0, "hides even whether any of the 5 participants answered"),
        ("mean", {"high": 12, "count": False, "column": "0,1"}, 5, 1.0, "(column 0 and column 1): its standard error"),
        ("mean", {"high": 12}, 60, 4.0, ""),
        ("sum", {"high": 12}, 5, 1.0, "larger than that of a guess anywhere between the bounds"),
        ("histogram", {"bins": 60}, 60, 2.0, "spread evenly, each class holds 1 of 60 participants, less than"),
        ("histogram", {"bins": 5}, 60, 2.0, ""),
    ],
)
def test_answers_of_noise_warn(task: str, options: dict[str, Any], people: int, epsilon: float, warned: str) -> None:
    expected = expected_errors(planned(task, options, participants=people, epsilon=epsilon), task, options)
    assert expected is not None
    assert len(expected["warnings"]) == bool(warned)
    assert warned in " ".join(expected["warnings"])
    assert max(map(len, expected_lines(expected, 80))) <= 100


def test_models_have_no_such_figure() -> None:
    assert expected_errors(planned("softmax-regression", {}), "softmax-regression", {}) is None


def test_the_commands_tell_it(run: Run, tmp_path: Path) -> None:
    asked = ("--task", "quantile", "--task-option", "high=12", "--task-option", "bins=120", "--rounds", 1)
    shared = ("--epsilon", 1, "--max-dropout", 0, "--bits", 18, *asked)
    out = output(run, "init", tmp_path / "sleep", "--dataset", "own", "--participants", 5, "--hosts", 1, *shared)
    assert "Expected standard error after the round" in out
    assert "Warning: The answer would be nothing but noise" in " ".join(out.split())
    place = tmp_path / "sleep" / "hosts" / "host-01" / "data" / "participant-001.csv"
    assert "".join(str(place).split()) in "".join(out.split())
    enrolling = ("--dataset", "own", "--participants", 0, "--enrol", 40, *shared)
    assert "--code CODE --data FILE" in run("init", tmp_path / "enrolling", *enrolling)[1]
    assert "Warning: The answer would be nothing but noise" in words(run, "plan", "--clients", 5, *shared)
    figures = json.loads(output(run, "plan", "--clients", 5, *shared, "--json"))
    assert (figures["dim"], figures["task"]) == (120, "quantile")
    _, out, _ = run("init", tmp_path / "b", "--dataset", "own", "--participants", 5, "--hosts", 1, *shared, "--json")
    made = json.loads(out)
    assert made["expected"] == figures["expected"]
    assert [Path(one).name for one in made["data"]] == [f"participant-{number:03}" for number in range(1, 6)]


def test_a_plan_for_a_task_takes_its_values_and_clip(run: Run) -> None:
    planned = json.loads(output(run, "plan", "--task", "mlp", "--task-option", "hidden=8", "--json"))
    assert (planned["dim"], planned["expected"]) == (795 * 8 + 10, None)
    for wrong, told in (
        (("--task", "mean", "--dim", 3), "--task mean states how many values are sent: leave --dim out"),
        (("--task-option", "high=3"), "--task-option needs a task: name it with --task"),
        (("--task", "median"), "--task median is unknown."),
        (("--task", "mean", "--clip", 0.5), "a clip of 0.5 would distort the sum"),
    ):
        assert told in refusal(run, "plan", *wrong)


def test_one_round_is_not_one_rounds(run: Run) -> None:
    assert [counted(number, "round") for number in (0, 1, 2)] == ["no rounds", "1 round", "2 rounds"]
    assert counted(1, "process", "processes") == "1 process"
    said = words(run, "plan", "--dim", 1, "--rounds", 1, "--clients", 20)
    assert "1 value sent as" in said or "1 value of 16 bits" in said
    for wrong in (" 1 rounds", " 1 values", " 1 participants"):
        assert wrong not in said
    for rotation in ("auto", "hadamard"):
        assert run("plan", "--rotation", rotation, "--rounds", 1)[0] == 0
    assert "Use one of: auto, hadamard" in run("plan", "--rotation", "none")[2]
