"""Studies without a network: what they compute, what they spend, what they leave behind.

Noise is the operating system's. Tests that look at it state how often they would fail by chance.
"""

from __future__ import annotations

import math
import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from authority.new_study import make_local_study, new_study
from learning.device import chosen_threads
from learning.make_task import make_task
from learning.parameters import flatten, unflatten
from learning.partitions import hold_out
from learning.task import update_rng
from learning.tasks.softmax_regression import SoftmaxRegression
from mechanisms.accounting import Account, RoundCharge
from mechanisms.clipping import clip_l2
from secagg.errors import TooFewClients
from secagg.messages import UNMASKING
from server.study_file import load
from sordino import SimulationSettings, simulate_study
from sordino.lab.simulation import rounds as rounds_module
from sordino.lab.simulation.participants import load_data, shards_of
from sordino.lab.simulation.rounds import Rounds, cohort_of, survivors_of
from sordino.lab.simulation.secure_sum import SecureSum
from sordino.lab.simulation.settings import SimulationError, resized
from sordino.planning.alternatives import tighter_bounds
from tests.lab.small_simulation import NOISY, QUIET, STUDY, changed, same
from wire.ending import ABORTED, BUDGET_REACHED, NO_BETTER, ROUNDS_DONE
from wire.study import round_parameters

# ------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("batched", [False, True])
def test_without_noise_it_is_federated_averaging(batched: bool) -> None:
    """By hand: the survivors' updates, clipped, their mean with the server's momentum. Up to single precision."""
    settings = QUIET.changed(batched=batched)
    found = simulate_study(settings)
    task, data = settings.study.make_task(), load_data(settings.study)
    initial = task.initial_parameters()
    shapes = {name: array.shape for name, array in initial.items()}
    vector, velocity = flatten(initial).astype(np.float64), np.zeros(task.dim)
    for round_ in range(1, 5):
        who = survivors_of(settings, cohort_of(settings, round_), round_, 1)
        parameters = unflatten(vector, shapes)
        updates = [task.local_update(parameters, data.of(u), update_rng(1, round_, u), 1.0) for u in who.tolist()]
        mean = np.mean([clip_l2(flatten(update).astype(np.float64), 1.0) for update in updates], axis=0)
        velocity = STUDY.server_optimizer.momentum * velocity + mean
        vector = vector + velocity  # at the rate of FedAvg, 1
        assert found.rows[round_ - 1]["survivors"] == len(who)
        norms = sorted(float(np.linalg.norm(flatten(update))) for update in updates)
        assert found.rows[round_ - 1]["update_norms"]["1"] == pytest.approx(norms[-1], rel=1e-4)
        assert found.rows[round_ - 1]["exactly_below_clip"] == [np.mean(np.array(norms) <= 1.0)]
    assert np.allclose(flatten(found.parameters), vector, atol=1e-5)
    assert found.summary["accuracy"] == task.evaluate(found.parameters, data.test)["accuracy"] == found.accuracy
    assert found.summary["epsilon_coordinator"] == math.inf
    assert "NOT PRIVATE" in found.configuration["privacy"]


@pytest.mark.parametrize("batched", [False, True])
def test_weights_and_schedules_are_those_of_the_options(batched: bool) -> None:
    """By hand, up to single precision: from the last of three rounds on one clip that acts on some."""
    options = {"client_rate": 0.4, "client_schedule": "linear", "weight_cap": 160, "weight_mean": 120.0}
    study = {"task_options": options, "server_schedule": "cosine", "server_momentum": 0.0, "rounds": 3}
    settings = changed(QUIET.changed(batched=batched, drop=0.0), **study)
    found = simulate_study(settings)
    data, vector = load_data(settings.study), flatten(settings.study.make_task().initial_parameters())
    for round_, (client, server) in enumerate([(1, 1), (2 / 3, 0.75), (1 / 3, 0.25)], start=1):
        task = make_task("softmax-regression", {"client_rate": 0.4 * client})
        parameters, updates = unflatten(vector, task.contribution_shapes), []
        for one in range(40):
            examples = data.of(one)
            update = flatten(task.local_update(parameters, examples, update_rng(1, round_, one), 1.0))
            updates.append(update * min(len(examples), 160) / 120)
        vector = vector + server * np.mean([clip_l2(one.astype(np.float64), 1.0) for one in updates], axis=0)
    assert np.allclose(flatten(found.parameters), vector, atol=1e-5)
    assert min(map(len, map(data.of, range(40)))) < 160 < max(map(len, map(data.of, range(40))))


@pytest.mark.parametrize("task", ["softmax-regression", "cnn"])
def test_threads_change_nothing(task: str) -> None:
    """To the last bit; and they are this simulation's alone."""
    if task == "cnn":
        pytest.importorskip("torch")
    settings = changed(QUIET, task=task, rounds=2)
    one, three = (simulate_study(settings.changed(threads=count)) for count in (1, 3))
    assert same(one.parameters, three.parameters)
    assert chosen_threads() == 1
    assert settings.changed(threads=3).threads_here == 3
    assert settings.changed(workers=2).threads_here == max(1, len(os.sched_getaffinity(0)) // 2)
    assert settings.changed(engine="ray").threads_here == 1


def test_each_participant_of_what_has_a_model() -> None:
    study = {"task": "mean", "task_options": {"column": "label", "high": 9}, "clip": None, "rounds": 1}
    with pytest.raises(SimulationError, match="evaluate_each: task 'mean' has no model to evaluate"):
        simulate_study(changed(QUIET, **study).changed(evaluate_each=True))


@pytest.mark.parametrize("held", [False, True])
def test_each_participant_is_evaluated_at_the_end(held: bool) -> None:
    judged = {"evaluate": "participants"} if held else {}
    settings = changed(QUIET, rounds=2, **judged).changed(evaluate_each=True)
    found = simulate_study(settings)
    task, data = settings.study.make_task(), load_data(settings.study)
    parts = [hold_out(data.of(one), 0.2)[1] if held else data.of(one) for one in range(40)]
    figures = [task.evaluate(found.parameters, one) for one in parts]
    for name in ("accuracy", "loss"):
        values = [one[name] for one in figures]
        said = found.summary["of_each"][name]
        assert said == pytest.approx({f"{at:g}": np.quantile(values, at) for at in rounds_module.QUANTILES})
    assert "of each     accuracy" in str(found)
    assert not simulate_study(settings.changed(evaluate_each=False)).summary["of_each"]


def test_it_begins_from_a_model(tmp_path: Path) -> None:
    """Of its own checkpoint, or of any file that has the arrays; everything else is as from the initial weights."""
    file = tmp_path / "model.safetensors"
    before = simulate_study(changed(QUIET, rounds=1, server_momentum=0.0))
    before.model.save(file)
    found = simulate_study(changed(QUIET, rounds=1, server_momentum=0.0, start_from=str(file)))
    rows = found.rows[0]
    assert rows["update_norms"]["0.5"] < before.rows[0]["update_norms"]["0.5"]
    assert found.accuracy > before.accuracy
    save_file({"other": np.zeros(3, np.float16), **before.parameters}, file)
    assert same(
        simulate_study(changed(QUIET, rounds=1, server_momentum=0.0, start_from=str(file))).parameters, found.parameters
    )


def test_participants_report_what_they_hold_out() -> None:
    """Without noise exactly: the mean over the survivors of the model before the round; with noise within its error."""
    judged = {"evaluate": "participants", "evaluation_weight": 1.0, "evaluation_examples": 20, "rounds": 2}
    settings = changed(QUIET, **judged)
    found = simulate_study(settings)
    task, data = settings.study.make_task(), load_data(settings.study)
    who = survivors_of(settings, cohort_of(settings, 1), 1, 1)
    held = [hold_out(data.of(one), 0.2)[1] for one in who.tolist()]
    weights = [min(len(one), 20) for one in held]
    figures = [task.evaluate(task.initial_parameters(), one) for one in held]
    said = found.rows[0]["reported"]
    assert said["accuracy"] == pytest.approx(np.average([one["accuracy"] for one in figures], weights=weights))
    assert said["loss"] == pytest.approx(np.average([min(one["loss"], 4.0) for one in figures], weights=weights))
    assert said["weight"] == pytest.approx(np.mean(weights) / 20)
    assert found.summary["best"]["round"] == 1
    noisy = simulate_study(changed(NOISY, **judged, epsilon=100.0)).rows[0]["reported"]
    assert noisy["accuracy"] == pytest.approx(said["accuracy"], abs=5 * noisy["accuracy_stderr"])
    assert noisy["accuracy_stderr"] < 0.1


def test_a_simulation_ends_where_a_study_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that goes on after a stop: the rounds before count."""
    monkeypatch.setattr(SoftmaxRegression, "evaluate", lambda *_: {"accuracy": 0.5, "loss": 1.0})
    settings = changed(QUIET, rounds=30, patience=3)
    found = simulate_study(settings, output=tmp_path / "a.jsonl")
    assert (found.summary["outcome"], found.summary["rounds_completed"]) == (NO_BETTER, 4)
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:-1]))
    again = simulate_study(settings, output=tmp_path / "a.jsonl")
    assert again.summary["rounds_completed"] == 4


def means_of(settings: SimulationSettings, monkeypatch: pytest.MonkeyPatch) -> tuple[Rounds, np.ndarray]:
    """The mean that the learner is given in round 1."""
    rounds, means = Rounds(changed(settings, rounds=1)), []
    monkeypatch.setattr(rounds.learner, "learn", lambda mean, *_: means.append(mean))
    list(rounds.run())
    return rounds, means[0]


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "local-gaussian", "gaussian"])
def test_noise_of_a_sum_has_the_planned_deviation(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 errors: their deviation strays by 4.9 of its own deviations with probability 1e-6. Rounding adds to it."""
    quiet = means_of(QUIET.changed(drop=0.0), monkeypatch)[1]
    rounds, mean = means_of(changed(NOISY.changed(drop=0.0), mechanism=mechanism), monkeypatch)
    plan = rounds.plan
    assert plan is not None
    error = (mean - quiet) * 40
    highest = math.sqrt(plan.full_stddev**2 + 40 * plan.granularity**2 / 4)
    # Conditional rounding has a bias, of at most a grid step in all: far below the noise.
    spread = 4.9 / math.sqrt(2 * error.size)
    assert plan.full_stddev * (1 - spread) < error.std() < highest * (1 + spread)


@pytest.mark.parametrize(
    "coding",
    [
        {"clip_update": "geometric"},
        {"clip_by_layer": True, "clip_scaling": "least-noise"},
        {"sketch_rows": 5, "sketch_ratio": 2.0},
        {"clip_update": "linear", "clip_by_layer": True, "rotation": "hadamard-blocks"},
    ],
    ids=["adaptive", "layers", "sketch", "adaptive-layers"],
)
@pytest.mark.parametrize("mechanism", ["none", "skellam"])
def test_clips_and_codings_are_those_of_a_study(mechanism: str, coding: dict[str, Any]) -> None:
    found = simulate_study(changed(NOISY, mechanism=mechanism, epsilon=200.0, rounds=2, bits=24, **coding))
    first, second = found.rows
    assert first["next_clips"] == second["clips"]
    adapts = coding.get("clip_update") is not None
    assert (first["clips"] != second["clips"]) == adapts
    if adapts and mechanism == "none":
        assert first["below_clip"] == first["exactly_below_clip"]
    assert (first["exactly_below_clip"] is None) == ("sketch_rows" in coding and mechanism != "none")
    assert second["accuracy"] > 0.2  # 0.1 is chance; the worst of these reach 0.35 and more


def test_who_diverges_counts_as_zeros() -> None:
    for settings in (QUIET, NOISY):
        [row] = simulate_study(changed(settings, task_options={"client_rate": 3e38}, rounds=1)).rows
        assert row["diverged"] == row["survivors"]
        assert row["update_norms"] is None


def test_evaluation_every_few_rounds_and_in_the_last() -> None:
    found = simulate_study(changed(QUIET, rounds=5).changed(evaluate_every=2))
    assert [row["accuracy"] is not None for row in found.rows] == [False, True, False, True, True]
    early = changed(QUIET, rounds=30, min_survivors=31).changed(evaluate_every=30, drop=0.25)
    ended = simulate_study(early)
    assert 0 < ended.summary["rounds_completed"] < 30
    assert ended.summary["evaluated_after"] == ended.summary["rounds_completed"]
    assert ended.accuracy == early.study.make_task().evaluate(ended.parameters, load_data(early.study).test)["accuracy"]


def test_evaluation_on_some_examples_says_how_exact_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last; the same examples each time."""
    settings = changed(QUIET, rounds=3).changed(evaluate_on=200)
    found = simulate_study(settings)
    first, second, last = found.rows
    test = load_data(settings.study).test
    for one in (first, second):
        right = one["accuracy"] * 200
        assert right == pytest.approx(round(right))
        assert one["figures"]["accuracy_stderr"] == pytest.approx(
            (one["accuracy"] * (1 - one["accuracy"]) / 200) ** 0.5
        )
    assert not last["figures"]
    progress = Rounds(settings).progress
    for row in found.rows[:2]:
        progress.note(row["round"], row["accuracy"], None, {}, row["figures"]["accuracy_stderr"])
    best = max(found.rows[:2], key=lambda row: row["accuracy"])
    assert progress.best is not None
    assert progress.best.stderr == best["figures"]["accuracy_stderr"]
    alone = simulate_study(changed(settings, rounds=3).changed(evaluate_on=5))
    drawn = [row["figures"].get("accuracy_stderr", 0.0) for row in alone.rows]
    assert alone.summary["best"]["stderr"] == drawn[alone.summary["best"]["round"] - 1]
    assert last["accuracy"] == settings.study.make_task().evaluate(found.parameters, test)["accuracy"]
    early = changed(settings, rounds=30, patience=1)
    monkeypatch.setattr(rounds_module.Progress, "stalled", lambda self, patience: self._judged >= 2)
    ended = simulate_study(early)
    assert ended.summary["rounds_completed"] < 30
    assert not ended.summary["figures"]  # the last model is judged on all, whenever the end comes
    assert ended.accuracy == settings.study.make_task().evaluate(ended.parameters, test)["accuracy"]
    whole = simulate_study(settings.changed(evaluate_on=0)).rows
    assert [one["accuracy"] for one in whole[:2]] != [first["accuracy"], second["accuracy"]]
    assert abs(whole[0]["accuracy"] - first["accuracy"]) < 6 * first["figures"]["accuracy_stderr"]


def test_it_fits_a_pool_of_processes() -> None:
    found = simulate_study(QUIET)
    assert pickle.loads(pickle.dumps(found)).summary == found.summary
    assert pickle.loads(pickle.dumps(QUIET)) == QUIET
    assert same(simulate_study(QUIET).parameters, found.parameters)


# ------------------------------------------------------------------------------------------- who takes part


@pytest.mark.parametrize("sampling", ["lottery", "fixed"])
def test_cohorts_are_drawn_without_replacement(sampling: str) -> None:
    settings = changed(QUIET, participants=400, cohort=60, sampling=sampling)
    cohorts = [cohort_of(settings, round_) for round_ in range(1, 21)]
    assert all(len(set(one.tolist())) == 60 and np.all(np.diff(one) > 0) for one in cohorts)
    assert len({one.tobytes() for one in cohorts}) == 20
    assert np.array_equal(cohorts[0], cohort_of(settings, 1))
    counts = np.bincount(np.concatenate(cohorts), minlength=400)
    # Public draws from a fixed seed: the same in every run. Of 20 rounds each is in 3 on average.
    assert counts.max() <= 11
    assert np.count_nonzero(counts) > 370


def test_epochs_deal_everybody_once() -> None:
    drawn = {"participants": 430, "cohort": 60, "sampling": "epochs", "rounds": 14}
    settings = changed(NOISY.changed(drop=0.0), adversarial=0.0, max_dropout=0.0, **drawn)
    cohorts = [cohort_of(settings, round_) for round_ in range(1, 15)]
    for epoch in (cohorts[:7], cohorts[7:]):
        assert len(set(np.concatenate(epoch).tolist())) == 7 * 60  # ten have no turn
    assert not np.array_equal(cohorts[0], cohorts[7])
    found = simulate_study(settings).summary
    assert found["rounds_completed"] == 14
    assert found["epsilon_coordinator"] == found["epsilon_released"] <= settings.study.privacy.epsilon
    assert "epsilon_conditional" not in found


COINS = QUIET.changed(
    study=resized(STUDY, 0, mechanism="none", participants=400, cohort=40, sampling="poisson", server_momentum=0.0),
    drop=0.0,
)


def test_poisson_cohorts_are_independent_coins() -> None:
    """Public draws from a fixed seed. A draw that is cut at the mean has a mean size of 96, and a variance of 35."""
    settings = changed(COINS, participants=1000, population=1000, cohort=100)
    drawn = np.array([np.isin(np.arange(1000), cohort_of(settings, round_)) for round_ in range(1, 401)])
    sizes = drawn.sum(axis=1)
    assert 98.5 < sizes.mean() < 101.5
    assert 70 < sizes.var() < 110  # 90 for independent coins
    assert 0.07 < drawn.mean(axis=0).std() ** 2 * 400 < 0.11  # of each participant's rate: 0.09


@pytest.mark.parametrize("mechanism", ["none", "gaussian"])
def test_a_poisson_sum_is_divided_by_the_number_that_is_expected(mechanism: str) -> None:
    """The published figure needs it: who is left out must count as zero."""
    settings = changed(COINS, mechanism=mechanism, epsilon=1000.0, bits=24, rounds=1)
    settings = settings.changed(target="conditional", seed=92)  # a seed that draws more than 50
    found = simulate_study(settings)
    task, data, who = settings.study.make_task(), load_data(settings.study), cohort_of(settings, 1)
    initial = task.initial_parameters()
    updates = [task.local_update(initial, data.of(one), update_rng(92, 1, one), 1.0) for one in who.tolist()]
    total = np.sum([clip_l2(flatten(update).astype(np.float64), 1.0) for update in updates], axis=0)
    moved = flatten(found.parameters) - flatten(initial)
    divisor = (total @ total) / (moved @ total)  # of 500 values: their noise moves it by a hundredth
    assert divisor == pytest.approx(40, rel=1e-5 if mechanism == "none" else 0.05)
    assert len(who) > 50  # what a naive mean divides by


def test_a_round_whose_coins_draw_nobody_is_noise_alone() -> None:
    drawn = {"participants": 90, "population": 90, "cohort": 4, "rounds": 1, "epsilon": 60.0, "adversarial": 0.0}
    settings = changed(COINS, mechanism="gaussian", **drawn).changed(target="conditional", seed=60)
    for one in (settings, changed(settings, mechanism="none", clip_update="geometric")):
        found = simulate_study(one)
        assert (found.summary["outcome"], found.rows[0]["survivors"]) == (ROUNDS_DONE, 0)
        moved = flatten(found.parameters) - flatten(one.study.make_task().initial_parameters())
        assert np.any(moved) == one.private
        if not one.private:
            assert found.rows[0]["clips"] == found.rows[0]["next_clips"]
            assert found.rows[0]["exactly_below_clip"] is None


def test_the_figure_of_coins_depends_on_nothing_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that data or coins decide has no figure of its own: then it is that of all planned rounds."""
    settings = changed(COINS, mechanism="gaussian", rounds=6).changed(target="conditional")
    planned = settings.plan()
    assert planned is not None
    rows = simulate_study(settings).rows
    assert 0 < rows[0]["epsilon_conditional"] < rows[-1]["epsilon_conditional"] == planned.epsilon_conditional
    for stopping in (changed(settings, patience=2), settings.changed(target="coordinator")):
        plan = stopping.plan()
        first, *_ = simulate_study(stopping).rows
        assert plan is not None
        assert first["epsilon_conditional"] == plan.epsilon_conditional


@pytest.mark.parametrize(
    ("study", "simulation", "told"),
    [
        *(({"mechanism": one}, {}, 'made of their shares; use sampling "fixed"') for one in ("ddgauss", "skellam")),
        ({"mechanism": "gaussian"}, {"secagg": "real"}, 'secagg "ideal"'),
        ({}, {"drop": 0.1}, "use a smaller cohort, and drop 0"),
        ({"population": 50}, {}, "population is 50, and must be 400"),
        ({"evaluate": "participants"}, {}, "leave evaluate out"),
        ({"task": "mean", "task_options": {"high": 9.0}}, {}, 'a statistic takes one; use sampling "fixed"'),
    ],
)
def test_what_coins_cannot_draw_is_refused(study: dict[str, Any], simulation: dict[str, Any], told: str) -> None:
    with pytest.raises(SimulationError, match=told):
        Rounds(changed(COINS, **study).changed(**simulation))


def test_dropouts_are_independent_or_exact() -> None:
    settings = changed(QUIET.changed(drop=0.3), participants=200)
    cohort = cohort_of(settings, 1)
    by_chance = [len(survivors_of(settings, cohort, round_, 1)) for round_ in range(1, 101)]
    assert 136 < np.mean(by_chance) < 144  # deviation of the mean: 0.65
    assert 4.5 < np.std(by_chance) < 8.5  # 6.5
    exact = settings.changed(drop_law="exact")
    assert {len(survivors_of(exact, cohort, round_, 1)) for round_ in range(1, 101)} == {140}
    first, again = survivors_of(exact, cohort, 1, 1), survivors_of(exact, cohort, 1, 2)
    assert not np.array_equal(first, again)
    assert set(first.tolist()) <= set(cohort.tolist())


def test_too_few_survivors_abort_and_are_tried_again() -> None:
    settings = changed(NOISY.changed(drop=0.3), min_survivors=28, quorum=28, rounds=1)
    left = {
        seed: [len(survivors_of(settings.changed(seed=seed), np.arange(40), 1, attempt)) >= 28 for attempt in (1, 2, 3)]
        for seed in range(200)
    }
    second = next(seed for seed, good in left.items() if good[:2] == [False, True])
    found = simulate_study(settings.changed(seed=second))
    assert [row["attempt"] for row in found.aborted] == [1]
    assert "28 are needed" in found.aborted[0]["reason"]
    assert not found.aborted[0]["charged"]
    assert found.rows[0]["attempt"] == 2
    assert found.summary["outcome"] == ROUNDS_DONE
    never = next(seed for seed, good in left.items() if good == [False] * 3)
    found = simulate_study(settings.changed(seed=never))
    assert (len(found.rows), len(found.aborted), found.summary["outcome"]) == (0, 3, ABORTED)
    assert found.summary["epsilon_coordinator"] == 0  # nothing was opened


# ------------------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize(
    "study",
    [
        {},
        {"mechanism": "ddgauss"},
        {"mechanism": "gaussian"},
        {"mechanism": "local-gaussian"},
        {"participants": 200, "cohort": 40, "sampling": "lottery"},
    ],
    ids=["skellam", "ddgauss", "gaussian", "local", "lottery"],
)
def test_epsilons_are_those_of_the_account_of_a_served_study(study: dict[str, Any]) -> None:
    settings = changed(NOISY, **{"mechanism": "skellam", **study})
    found = simulate_study(settings)
    plan = settings.study.plan()  # what `sordino init` and `serve` make of the options
    assert found.configuration["plan_identity"] == plan.identity
    account = Account(plan)
    for row in found.rows:
        who = survivors_of(settings, cohort_of(settings, row["round"]), row["round"], row["attempt"])
        account.charge(RoundCharge(row["round"], row["attempt"], frozenset(who.tolist()), plan.identity))
        assert row["epsilon_coordinator"] == account.epsilon_coordinator()
        assert row["epsilon_released"] == account.epsilon_released()
    assert 0 < account.epsilon_coordinator() <= plan.budget_coordinator


def test_it_stops_where_the_budget_would() -> None:
    rounds = Rounds(NOISY)
    rounds.charge_again((1, attempt) for attempt in range(100, 112))
    assert list(rounds.run()) == []
    assert rounds.outcome == BUDGET_REACHED


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [("ddgauss", "fixed"), ("gaussian", "fixed"), ("gaussian", "poisson"), ("gaussian", "lottery")],
)
def test_a_conditional_target_is_compared_not_stopped(mechanism: str, sampling: str) -> None:
    drawn = resized(STUDY, 0, participants=400, cohort=40, sampling=sampling, mechanism=mechanism)
    settings = SimulationSettings(study=drawn, target="conditional")
    found = simulate_study(settings)
    assert found.summary["outcome"] == ROUNDS_DONE
    plan = settings.plan()
    assert plan is not None
    assert found.summary["epsilon_conditional"] == pytest.approx(plan.epsilon_conditional, rel=1e-9)
    assert found.summary["epsilon_conditional"] < found.summary["epsilon_coordinator"]
    shown = [row["epsilon_conditional"] for row in found.rows]
    assert all(0 < before < after for before, after in pairwise(shown))
    assert shown[-1] == found.summary["epsilon_conditional"]
    assert tighter_bounds(plan)["epsilon_pld"] == (
        shown[-1] if mechanism == "gaussian" and sampling != "lottery" else None
    )


@pytest.mark.parametrize("drawn", [{"min_survivors": 30}, {"sampling": "lottery", "cohort": 20, "participants": 50}])
def test_a_studys_file_is_simulated_with_the_plan_that_is_served(tmp_path: Path, drawn: dict[str, Any]) -> None:
    given = {"rounds": 4, "bits": 18, "clip": 1.0, "server_optimizer": "fedadam", "server_rate": 0.1} | drawn
    made = make_local_study(tmp_path / "study", new_study(**{"participants": 40, "hosts": 2} | given))
    found = resized(load(tmp_path / "study"), 0)
    settings = SimulationSettings(study=found)
    plan = settings.plan()
    assert plan is not None
    assert plan.identity == made.plan.identity
    assert (found.server_optimizer, found.data) == (made.study.server_optimizer, made.study.data)
    assert settings.to_json()["study"]["task_options"] == dict(settings.study.make_task().options.to_mapping())
    assert simulate_study(changed(settings, rounds=1)).summary["rounds_completed"] == 1


# ------------------------------------------------------------------------------------------- secure aggregation


@pytest.mark.parametrize("adversary", ["malicious", "curious"])
@pytest.mark.parametrize("graph", ["complete", "harary"])
@pytest.mark.long
def test_real_secure_aggregation_opens_the_ideal_sum(graph: str, adversary: str) -> None:
    plan = resized(STUDY, 0, participants=50, graph=graph, adversary=adversary, max_dropout=0.2).plan()
    members = tuple(range(100, 200, 2))
    attempt = SecureSum(round_parameters(plan), members, 3, 2)
    draw = np.random.default_rng(1)
    left = [who for at, who in enumerate(members) if at % 6]
    words = {who: draw.integers(0, 1 << plan.bits, plan.padded_dim, dtype=np.uint32) for who in left}
    done = attempt.finish(words)
    expected = sum(one.astype(np.uint64) for one in words.values()) & np.uint64((1 << plan.bits) - 1)
    assert np.array_equal(done.total, expected)
    assert done.u3 == frozenset(left)
    assert done.cohort_context == attempt.context


def test_real_secure_aggregation_refuses_too_few() -> None:
    plan = STUDY.plan()
    words = {who: np.zeros(plan.padded_dim, np.uint32) for who in range(plan.min_survivors - 1)}
    with pytest.raises(TooFewClients):
        SecureSum(round_parameters(plan), tuple(range(40)), 1, 1).finish(words)


def test_a_simulation_with_real_secure_aggregation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum that is decoded is that of the very vectors that were encoded."""
    checked = []

    class Checked(SecureSum):
        def finish(self, vectors: Any) -> Any:
            done = super().finish(vectors)
            total = sum(one.astype(np.uint64) for one in vectors.values()) & np.uint64((1 << 18) - 1)
            checked.append(np.array_equal(done.total, total) and done.u3 == frozenset(vectors))
            return done

    monkeypatch.setattr(rounds_module, "SecureSum", Checked)
    settings = changed(NOISY, rounds=2, epsilon=60.0).changed(secagg="real")
    found = simulate_study(settings)
    assert checked == [True, True]
    assert found.configuration["secure_aggregation"].startswith("real: every key")
    ideal = simulate_study(settings.changed(secagg="ideal"))
    assert ideal.configuration["secure_aggregation"] == "replaced by its ideal sum"
    assert [row["survivors"] for row in ideal.rows] == [row["survivors"] for row in found.rows]
    assert ideal.summary["epsilon_coordinator"] == found.summary["epsilon_coordinator"]


def test_an_attempt_that_fails_after_its_survivors_are_fixed_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a study: the charge is on record before anything is opened, and a budget of one round is spent by it."""
    failed = []

    class Failing(SecureSum):
        def finish(self, vectors: Any) -> Any:
            if not failed:
                failed.append(frozenset(vectors))
                raise TooFewClients(UNMASKING, 3, 5)
            return super().finish(vectors)

    monkeypatch.setattr(rounds_module, "SecureSum", Failing)
    settings = changed(NOISY, rounds=1).changed(secagg="real")
    found = simulate_study(settings)
    assert [(row["attempt"], row["charged"]) for row in found.aborted] == [(1, True)]
    plan = settings.study.plan()
    account = Account(plan, [RoundCharge(1, 1, failed[0], plan.identity)])
    assert found.summary["epsilon_coordinator"] == account.epsilon_coordinator() > 0
    assert found.summary["outcome"] == BUDGET_REACHED
    assert found.rows == ()


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"drop": math.nan}, "drop = nan should be a finite number"),
        ({"workers": 0}, "workers = 0 should be greater than or equal to 1"),
        ({"seed": -1}, "seed = -1 should be greater than or equal to 0"),
        ({"evaluate_every": 0}, "evaluate_every = 0 should be greater than or equal to 1"),
        ({"target": "conditional"}, "needs sampling"),
        ({"secagg": "real", "engine": "ray"}, "runs in one process"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(SimulationError, match=told):
        SimulationSettings(**{"study": STUDY, **wrong})


def test_shards_hold_everybody_once_and_depend_on_nothing_else() -> None:
    survivors = list(range(0, 3000, 3))
    for dim, at_once, most in ((500, True, 256), (500, False, 32), (1 << 22, True, 4), (1 << 30, True, 1)):
        parts = shards_of(survivors, dim, at_once)
        assert [who for part in parts for who in part] == survivors
        assert max(map(len, parts)) <= most
