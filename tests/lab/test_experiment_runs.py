"""Grids of simulations: the pool and its file, table arithmetic, selections, and each experiment in miniature."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import create_model

from learning.blocks import Block
from learning.datasets import Dataset, load_part
from learning.make_task import make_task
from learning.options import OptionError
from learning.prepared_data import write_prepared
from learning.tasks.votes import VoteLearner
from mechanisms.gaussian_exact import gaussian_epsilon
from sordino.lab.experiments import (
    bits,
    blur_lus,
    clipping,
    compression,
    dropout,
    runs as experiment_runs,
    sampling,
    word_pairs,
)
from sordino.lab.experiments.outcome import PAPER, SEEDS, SMALL, WORDS, Choice
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import FILE, ExperimentError, Run as OneRun, RunPool, Standing, noise_multiplier, play
from sordino.lab.experiments.setting import Sizes
from sordino.lab.experiments.tables import Mean, Share, Table, accuracy, gathered
from sordino.lab.preparation.made import in_memory
from sordino.lab.simulation.run import simulate_study
from sordino.lab.simulation.settings import SimulationSettings
from tests.support.commands import Run, says

pytestmark = pytest.mark.long

TINY = {"data": "fashion-mnist-subset", "participants": 30, "rounds": 2}


def tiny(seed: int = 1, **others: Any) -> SimulationSettings:
    """Two rounds of ten out of thirty; without noise equal settings give equal results."""
    size = TINY | {"task": "softmax-regression", "options": {"local_epochs": 1}, "cohort": 10, "evaluate_every": 1}
    size |= {"epsilons": (), "clips": (), "rates": (), "last": 1}
    size |= {name: others.pop(name) for name in size.keys() & others}
    given = {"data": TINY["data"], "rate": 0.3, "epsilon": None, "clip": 1.0, "seed": seed}
    return Sizes(**size).settings(**given | others)


# ---------------------------------------------------------------- runs


def test_a_row_is_what_the_simulation_itself_says() -> None:
    settings = tiny(rounds=4)
    row, result = play(OneRun({"a": 1}, settings, last=2)), simulate_study(settings)
    assert row["accuracies"] == [one["accuracy"] for one in result.rows]
    assert row["accuracy"] == pytest.approx((result.rows[-2]["accuracy"] + result.rows[-1]["accuracy"]) / 2)
    assert row["accuracy_last"] == result.accuracy
    assert row["norms"]["0.5"] == [one["update_norms"]["0.5"] for one in result.rows]
    assert row["labels"] == {"a": 1}
    assert row["settings"] == json.loads(json.dumps(settings.to_json()))


def test_with_noise_the_row_holds_the_account() -> None:
    settings = tiny(epsilon=4.0)
    row, result = play(OneRun({}, settings)), simulate_study(settings)
    for name in ("epsilon_coordinator", "epsilon_released", "epsilon_conditional", "delta"):
        assert row[name] == pytest.approx(result.summary[name])
    assert row["epsilon_conditional"] == pytest.approx(4.0, rel=1e-3)
    assert row["epsilon_conditional"] < row["epsilon_coordinator"]
    assert noise_multiplier(row) == pytest.approx(settings.plan().noise_multiplier, rel=0.01)
    assert json.dumps(row["survivors"]) == "[10, 10]"


def test_an_infeasible_run_is_a_row_too() -> None:
    row = play(OneRun({"bits": 4}, tiny(epsilon=4.0, bits=4)))
    assert row["outcome"] == "infeasible"
    assert "bits" in row["reason"]
    assert accuracy(row) is None


def test_the_identity_depends_on_settings_only() -> None:
    one = OneRun({"a": 1}, tiny())
    assert one.identity == OneRun({"b": 2}, tiny().changed(workers=3)).identity
    assert one.identity != OneRun({"a": 1}, tiny(seed=2)).identity
    assert one.identity != OneRun({"a": 1}, tiny(), last=2).identity


@pytest.mark.parametrize("changed", ["version", "format", "form"])
def test_rows_of_another_version_are_not_used(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = OneRun({}, tiny()).identity
    if changed == "version":
        monkeypatch.setattr(experiment_runs, "versions", lambda: {"sordino": "0.0.0"})
    elif changed == "format":
        monkeypatch.setattr(experiment_runs, "FORMAT", experiment_runs.FORMAT + 1)
    else:
        later = create_model("Later", __base__=SimulationSettings, more=(int, 3))
        monkeypatch.setattr(experiment_runs, "SimulationSettings", later)
    assert OneRun({}, tiny()).identity != before
    monkeypatch.undo()
    assert OneRun({}, tiny()).identity == before


def test_another_process_knows_a_run_by_the_same_name() -> None:
    """The next process looks for kept rows: the name may contain no address of an object."""
    code = "from sordino.lab.experiments.runs import made_by; import json; print(json.dumps(made_by()))"
    assert json.loads(subprocess.check_output([sys.executable, "-c", code])) == experiment_runs.made_by()


# ---------------------------------------------------------------- the pool


def test_finished_runs_are_kept_and_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def counting(run: OneRun) -> dict[str, Any]:
        played.append(run.settings.seed)
        if len(played) == 3:
            raise KeyboardInterrupt
        return play(run)

    monkeypatch.setattr(experiment_runs, "play", counting)
    runs = [OneRun({"seed": seed}, tiny(seed)) for seed in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        RunPool(tmp_path).run("first", runs)
    assert len((tmp_path / FILE).read_text().splitlines()) == 2
    told: list[Standing] = []
    rows = RunPool(tmp_path, progress=told.append).run("again", runs)
    assert played == [1, 2, 3, 3]
    assert [row["labels"]["seed"] for row in rows] == [1, 2, 3]
    assert (told[0].done, told[0].of, told[0].kept) == (2, 3, 2)
    assert (told[-1].done, told[-1].seconds_left) == (3, 0)
    before = (tmp_path / FILE).read_bytes()
    assert RunPool(tmp_path).run("once more", runs) == rows
    assert (tmp_path / FILE).read_bytes() == before


def test_a_folder_has_one_player(tmp_path: Path) -> None:
    runs = [OneRun({}, tiny(1))]

    def second(standing: Standing) -> None:
        with pytest.raises(ExperimentError, match="another process plays into"):
            RunPool(tmp_path).run("second", runs)

    RunPool(tmp_path, progress=second).run("first", runs)
    assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_a_line_that_was_cut_off_is_played_anew(tmp_path: Path) -> None:
    runs = [OneRun({}, tiny(seed)) for seed in (1, 2)]
    rows = RunPool(tmp_path).run("first", runs)
    file = tmp_path / FILE
    file.write_text(file.read_text()[:-40])
    again = RunPool(tmp_path).run("again", runs)
    assert [row["accuracies"] for row in again] == [row["accuracies"] for row in rows]
    assert len(file.read_text().splitlines()) == 2


def test_a_run_without_an_installed_package_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row "unavailable" is returned but not kept; one that an earlier version kept is ignored."""
    run = OneRun({}, tiny())
    gone = {"kind": "run", "id": run.identity, "labels": {}, "seed": 1, "outcome": "unavailable", "reason": "no torch"}
    with monkeypatch.context() as patched:
        patched.setattr(experiment_runs, "play", lambda run: gone)
        assert RunPool(tmp_path).run("first", [run]) == [gone]
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text(json.dumps(gone) + "\n")
    assert RunPool(tmp_path).run("again", [run])[0]["outcome"] == "rounds done"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind": "round"}\n{"kind": "run", "id": "x"}\n')
    with pytest.raises(ExperimentError, match="line 1"):
        RunPool(tmp_path)
    for kept in ('{"kind": "run", "id": "x"}\n{"id": 7}\n', '{"id": 7}', '{"kind": "run", "id": "\xff"}\n\xff\n'):
        (tmp_path / FILE).write_text(kept, encoding="latin-1")
        with pytest.raises(ExperimentError, match="is no run of an experiment"):
            RunPool(tmp_path)
        assert (tmp_path / FILE).read_text(encoding="latin-1") == kept


def test_runs_of_equal_settings_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[OneRun] = []
    monkeypatch.setattr(experiment_runs, "play", lambda run: played.append(run) or {"id": run.identity, "labels": {}})
    rows = RunPool(None).run("twice", [OneRun({"name": "a"}, tiny()), OneRun({"name": "b"}, tiny())])
    assert len(played) == 1
    assert [row["labels"]["name"] for row in rows] == ["a", "b"]


def test_processes_give_the_same_rows() -> None:
    runs = [OneRun({"seed": seed}, tiny(seed)) for seed in (1, 2)]
    alone, shared = RunPool(None).run("one", runs), RunPool(None, 2).run("two", runs)
    assert [row["accuracies"] for row in shared] == [row["accuracies"] for row in alone]


# ---------------------------------------------------------------- tables and choices


def test_means_and_errors() -> None:
    found = Mean.of([0.5, 0.6, 0.7])
    assert found.mean == pytest.approx(0.6)
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    assert Mean.of([0.5]) == Mean(0.5, None, 1)
    assert Mean.of([0.1 + 0.2, 0.3]).error == 0


def test_a_table_in_three_forms() -> None:
    rows = [["a", Share(Mean(0.74321, 0.00512, 3)), 1.5], ["bb", "infeasible", None]]
    table = Table("name", "Title", ("method", "accuracy", "x"), rows, "Note.")
    assert table.text().splitlines()[-2:] == ["a       74.32 ± 0.51  1.5", "bb        infeasible"]
    assert "| a | 74.32 ± 0.51 | 1.5 |" in table.markdown()
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["method", "accuracy", "accuracy: standard error", "accuracy: seeds", "x"],
        ["a", "0.74321", "0.00512", "3", "1.5"],
        ["bb", "infeasible", "", "", ""],
    ]


def test_a_wide_table_is_broken_into_several_on_a_terminal() -> None:
    columns = ("leave", *(f"planned for {share} %" for share in range(0, 60, 10)))
    rows = [[f"{at} %", *(float(at + place) for place in range(6))] for at in range(3)]
    table = Table("name", "Title", columns, rows, "A note of some length, " * 8)
    assert max(map(len, table.text().splitlines())) > 100
    lines = table.text(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if "planned for" in line] == ["leave"] * 2
    says(table.text(80), *columns[1:])
    assert table.text(1000).count("leave") == 1


def rows_of(values: dict[tuple[float, int], float]) -> list[dict[str, Any]]:
    """Rows of a grid of clips: (clip, seed) to the accuracy."""
    return [
        {"labels": {"clip": clip}, "seed": seed, "outcome": "rounds done", "accuracy": value}
        for (clip, seed), value in values.items()
    ]


def test_the_greatest_mean_is_chosen_and_failed_runs_are_not() -> None:
    rows = rows_of({(0.1, 1): 0.5, (0.1, 2): 0.7, (1.0, 1): 0.65, (1.0, 2): 0.66})
    rows.append({"labels": {"clip": 3.0}, "seed": 1, "outcome": "round aborted", "accuracy": 0.9})
    means = gathered(rows, ["clip"], accuracy)
    assert means[(0.1,)].mean == pytest.approx(0.6)
    choice = Choice("S", (), {(): {"clip": (0.1, 1.0, 3.0)}}, means)
    assert choice.chosen == {(): {"clip": 1.0}}
    grid = choice.to_json()["grid"]
    assert [one["clip"] for one in grid] == [0.1, 1.0]
    assert "chosen" in choice.table("t").text().splitlines()[-1]


# ---------------------------------------------------------------- models of the experiments


def test_the_pooled_perceptron_learns_from_averaged_pixels() -> None:
    task = make_task(POOLED_MLP, {"hidden": 8, "pooling": 4})
    assert task.contribution_shapes["hidden_weights"] == (49, 8)
    images = np.full((2, 28, 28), 255, np.uint8)
    images[1] = 0
    assert task.inputs(images) == pytest.approx(np.repeat([[1.0], [-1.0]], 49, axis=1))  # type: ignore[attr-defined]
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28)).astype(np.uint8)
    data, start = Dataset(images, np.arange(7)), task.initial_parameters()
    rngs = [np.random.default_rng(1), np.random.default_rng(2)]
    one = task.local_update(start, data, np.random.default_rng(1), math.inf)
    two = task.local_updates(start, [data, data.take([0, 1])], rngs, math.inf)  # type: ignore[attr-defined]
    assert np.concatenate([part.ravel() for part in one.values()]) == pytest.approx(two[0], abs=1e-6)


def test_word_pairs_have_the_gradient_of_their_loss() -> None:
    """Central differences in double precision, also for padding, words out of vocabulary and filled-up rows."""
    task = make_task(word_pairs.NAME, {"vocabulary": 5, "length": 3, "embedding": 2})
    draw = np.random.default_rng(1)
    model = {name: draw.normal(size=shape) for name, shape in task.contribution_shapes.items()}
    words, labels = draw.integers(0, 9, (6, 3)), draw.integers(0, 9, (6, 3))
    counted = np.array([True] * 4 + [False] * 2)

    def loss(at: dict[str, Any]) -> float:
        scores = task.scores(at, words)  # type: ignore[attr-defined]
        logs = np.log(np.exp(scores).sum(-1)) - np.take_along_axis(scores, labels[..., None], -1)[..., 0]
        return float(logs[(labels >= 1) & (labels <= 5) & counted[:, None]].mean())

    slopes = task.slopes(model, words, labels, counted)  # type: ignore[attr-defined]
    for name, array in model.items():
        for place in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {key: value.copy() for key, value in model.items()}
                moved[name][place] += step
                sides.append(loss(moved))
            assert slopes[name][place] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6)


def test_word_pairs_train_side_by_side_as_alone() -> None:
    task = make_task(word_pairs.NAME, {"vocabulary": 5, "length": 3, "batch_size": 2, "client_rate": 0.5})
    draw = np.random.default_rng(3)
    sets = [Dataset(draw.integers(0, 9, (n, 3)).astype(np.int32), draw.integers(0, 9, (n, 3))) for n in (5, 3)]
    start = task.initial_parameters()
    alone = [task.local_update(start, one, np.random.default_rng(at), math.inf) for at, one in enumerate(sets)]
    together = task.local_updates(start, sets, [np.random.default_rng(at) for at in range(2)])  # type: ignore[attr-defined]
    for one, row in zip(alone, together, strict=True):
        assert np.concatenate([part.ravel() for part in one.values()]) == pytest.approx(row, abs=1e-6)
    found = task.evaluate(start, sets[0])  # type: ignore[attr-defined]
    assert found["loss"] == pytest.approx(math.log(9))
    words, labels = sets[0].features, sets[0].labels
    task.check_form(sets[0])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="takes int32"):
        task.check_form(Dataset(words, labels[:, 0]))  # type: ignore[attr-defined]
    model = {name: draw.normal(size=shape).astype(np.float32) for name, shape in task.contribution_shapes.items()}
    right = task.scores(model, words).argmax(-1) == labels  # type: ignore[attr-defined]
    counted = (labels >= 1) & (labels <= 5)  # padding and words out of the vocabulary never count
    assert task.evaluate(model, sets[0])["accuracy"] == right[counted].mean()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="this task takes 0 to 8"):
        task.evaluate(start, Dataset(sets[0].features + 9, sets[0].labels))  # type: ignore[attr-defined]


# ---------------------------------------------------------------- dropouts that are ignored


def test_ignoring_dropouts_costs_more_than_is_claimed() -> None:
    """Nobody leaves: what is spent is the plan. Half leave: half the variance, so by z = clip / deviation sqrt(2) z.

    The reference is the exact figure of two rounds of a Gaussian.
    """

    def gaussian(z: float) -> float:
        return gaussian_epsilon(1 / (z * math.sqrt(2)), 1 / 30)

    low, high = 0.01, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian(middle) < 4 else (low, middle)

    def settings(leaving: float) -> SimulationSettings:
        return tiny(epsilon=4.0, cohort=30).changed(drop=leaving, drop_law="exact")

    assert dropout.spent_unnoticed(settings(0.0)) == pytest.approx(4.0, rel=1e-3)
    assert dropout.spent_unnoticed(settings(0.5)) == pytest.approx(gaussian(low * math.sqrt(2)), rel=0.01)
    with pytest.raises(ValueError, match="plans without dropouts only"):
        dropout.spent_unnoticed(tiny(epsilon=4.0, cohort=30, max_dropout=0.3))


# ---------------------------------------------------------------- each experiment in miniature


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every experiment in a few seconds."""
    one = {**TINY, "last": 1}
    small = {**one, "cohort": 10, "evaluate_every": 1, "task": "softmax-regression", "rates": (0.1,)}
    large_clip = {**small, "clips": (1.0,)}
    left = {**one, "cohort": 30, "planned": (0.0, 0.3), "leaving": (0.0, 0.5), "clips": (1.0,), "rates": (0.3,)}
    steps = {"batch_size": 8, "steps": 2, "step_counts": (1,), "cohorts": (10,), "round_counts": (2,)}
    steps |= {"voter_steps": (2,), "voter_rates": (0.1,), "labelled_epochs": 2, "labelled_rates": (0.1,)}
    steps |= {"voted": (2.0, 8.0), "queries": (5,), "full_rates": (0.1,), "full_clips": (1.0,)}
    methods = {"alphas": (1.0,), "weights": (0.4,), "sparsities": (0.3,), "table_sparsities": (0.5,)}
    changes: list[tuple[Any, Any, dict[str, Any]]] = [
        (dropout, SMALL, {**left, "surplus": (4.0, None), "surplus_cohort": 20}),
        (sampling, SMALL, {**large_clip, "epsilons": (4.0,)}),
        (clipping, SMALL, {**large_clip, "epsilons": (4.0,), "middle": 4.0, "first_clips": (0.1, 1.0)}),
        (bits, (SMALL, "images"), {**large_clip, "epsilons": (4.0, 8.0), "bits": (4, 20)}),
        (compression, SMALL, {**large_clip, "options": {}, "epsilons": (4.0,), "ratios": (1.0, 5.0)}),
        (blur_lus, SMALL, {**large_clip, **steps, **methods, "epsilons": (2.0, 8.0), "middle": 8.0}),
    ]
    for module, key, values in changes:
        monkeypatch.setitem(module.SIZES, key, dataclasses.replace(module.SIZES[key], **values))


def _cohorts_of_coins_vary_at_the_same_epsilon(folder: Path) -> None:
    (row,) = csv.DictReader((folder / "sampling-laws.csv").open())
    assert (row["sampling"], row["epsilon (conditional)"]) == ("poisson", "4.0")
    _says_what_epsilon_is((folder / "sampling-laws.csv").read_text(), _rows(folder))
    drawn = [row for row in _rows(folder) if row["labels"]["sampling"] in ("fixed", "poisson")]
    assert len({row["plan"]["local_variance"] for row in drawn}) == 1
    numbers = {law: set() for law in ("fixed", "poisson")}
    for row in drawn:
        numbers[row["labels"]["sampling"]] |= set(row["survivors"])
    assert numbers["fixed"] == {10}
    assert len(numbers["poisson"]) > 2


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def _says_what_epsilon_is(text: str, rows: list[dict[str, Any]]) -> None:
    """No table calls the published figure "epsilon", and each has, beside it, what its runs provably cost."""
    lines = list(csv.DictReader(text.splitlines()))
    assert not {"epsilon", "epsilon_conditional"} & set(lines[0])
    for name in ("epsilon_released", "epsilon_coordinator"):
        told = {float(line[name]) for line in lines if line[name]}
        spent = [row[name] for row in rows if row["outcome"] == "rounds done" and row[name] is not None]
        assert told
        assert all(min(abs(one - known) for known in spent) < 1e-9 for one in told)
    assert all(
        float(line["epsilon_released"]) > float(line.get("epsilon (conditional)") or 0)
        for line in lines
        if line["epsilon_released"]
    )


def _bits_say_where_no_plan_holds(folder: Path) -> None:
    read = list(csv.DictReader((folder / "bits-images-ddgauss.csv").open()))
    assert {row["4 bits"] for row in read} == {"infeasible"}
    assert all(0 < float(row["20 bits"]) < 1 for row in read)
    noise = list(csv.DictReader((folder / "bits-images-noise.csv").open()))
    assert {row["4 bits"] for row in noise} == {"infeasible"}
    for row in noise:  # the encoding alone differs; the central Gaussian's own accountant is tighter
        assert float(row["20 bits"]) == pytest.approx(float(row["central, same noise"]), rel=2e-3)
        assert 1.1 < float(row["20 bits"]) / float(row["central, same epsilon"]) < 1.3
    beside = list(csv.DictReader((folder / "bits-images-ddgauss-compared.csv").open()))
    assert {row["less central, same noise"] for row in beside if row["bits"] == "4"} == {"infeasible"}
    assert {row["finding"] for row in beside if row["bits"] == "20"} == {"too few seeds to find any"}


def _a_plan_for_no_dropout_aborts_and_the_other_goes_on(folder: Path) -> None:
    first, second = list(csv.DictReader((folder / "dropout-epsilon.csv").open()))
    assert float(first["spent, plan for 0 %"]) == pytest.approx(float(first["spent, ignoring"]), rel=1e-3)
    assert second["spent, plan for 0 %"] == "round aborted"
    assert float(second["spent, ignoring"]) > 1.2 * float(second["claimed, ignoring"])


def _votes_and_averaging_cost_the_coordinator_the_same(folder: Path) -> None:
    """Everybody is in each round, of which votes have one; both methods have what was asked for, and no sampling."""
    lines = list(csv.DictReader((folder / "blur-lus-votes.csv").open()))
    assert [float(line["epsilon_coordinator"]) for line in lines] == pytest.approx([2, 8], rel=1e-3)
    assert [float(line["epsilon (coordinator)"]) for line in lines] == [2, 8]
    rows = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    voted = [row for row in rows if row["settings"]["study"]["task"] == "votes"]
    assert voted
    assert all((row["survivors"], row["settings"]["study"]["sampling"]) == ([30], "none") for row in voted)
    (beyond, *_) = csv.DictReader((folder / "blur-lus-bound.csv").open())
    assert float(beyond["shorter by at most, %"]) == pytest.approx(0.4 * 0.03 / 2)  # of two steps, of equal gradients
    assert 0 < float(beyond["shorter by, %"]) < 0.01
    assert 0.99 < float(beyond["cosine to the plain update"]) <= 1


FOUND = {
    "bits": _bits_say_where_no_plan_holds,
    "sampling": _cohorts_of_coins_vary_at_the_same_epsilon,
    "dropout": _a_plan_for_no_dropout_aborts_and_the_other_goes_on,
    "blur-lus": _votes_and_averaging_cost_the_coordinator_the_same,
}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("miniature")
@pytest.mark.parametrize(
    ("name", "more", "tables", "figures"),
    [
        ("dropout", (), ("dropout-accuracy", "dropout-epsilon", "dropout-surplus"), ("dropout",)),
        ("sampling", (), ("sampling", "sampling-compared", "sampling-laws", "sampling-laws-choice"), ()),
        ("clipping", ("--parts", "images"), ("clipping", "clipping-first"), ("clipping", "clipping-clips")),
        ("bits", ("--parts", "images"), ("bits-images-ddgauss", "bits-images-skellam"), ("bits",)),
        (
            "compression",
            (),
            ("compression", "compression-compared", "compression-bits", "compression-adaptive"),
            ("compression", "compression-adaptive"),
        ),
        (
            "blur-lus",
            (),
            (
                *(
                    "blur-lus-epsilon",
                    "blur-lus-epsilon-gain",
                    "blur-lus-votes",
                    "blur-lus-votes-gain",
                    "blur-lus-alpha",
                ),
                *("blur-lus-sparsity", "blur-lus-own-rates", "blur-lus-bound", "blur-lus-votes-choice-4"),
                *("blur-lus-clips", "blur-lus-clips-gain", "blur-lus-weights"),
            ),
            (
                *("blur-lus-epsilon", "blur-lus-epsilon-norms", "blur-lus-rounds", "blur-lus-steps"),
                *("blur-lus-active", "blur-lus-rates", "blur-lus-clips", "blur-lus-clips-norms", "blur-lus-weights"),
            ),
        ),
    ],
)
def test_each_experiment_writes_its_tables_and_figures(
    run: Run, tmp_path: Path, name: str, more: tuple[str, ...], tables: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    folder = tmp_path / name
    command = ("experiment", name, "--seeds", "1,2", "--workers", 1, "--output", folder, *more)
    code, out, err = run(*command)
    assert (code, "not charged to epsilon" in out) == (0, True), err
    for table in tables:
        for ending in ("txt", "csv", "md"):
            assert (folder / f"{table}.{ending}").stat().st_size
    for figure in figures:
        assert (folder / f"{figure}.svg").read_text().lstrip().startswith("<?xml")
    runs, rows = (folder / FILE).read_text(), _rows(folder)
    assert {row["seed"] for row in rows} == {1, 2, *SEEDS}
    FOUND.get(name, lambda _: None)(folder)
    for table in {"clipping": tables, "bits": tables}.get(name, tables[:1]):
        if name not in ("dropout", "sampling"):  # whose epsilon is the coordinator's
            _says_what_epsilon_is((folder / f"{table}.csv").read_text(), rows)
    code, out, _ = run(*command, "--json")
    body = json.loads(out)
    assert (code, body["experiment"], body["seeds"]) == (0, name, [1, 2])
    assert all(choice["grid"] and choice["chosen"] for choice in body["choices"])
    assert (folder / FILE).read_text() == runs  # nothing was played again
    assert json.loads((folder / "outcome.json").read_text())["tables"] == body["tables"]


def test_norms_of_layers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clips by layer, which follow the medians; of words at random."""
    pytest.importorskip("torch")
    words = np.random.default_rng(1).integers(1, 20, (40, 20, 6))
    roles = [Block.of(rows[:, :5].astype(np.int32), rows[:, 1:], str(role)) for role, rows in enumerate(words)]
    made = in_memory({"train": roles[:30], "test": roles[30:]}, WORDS)
    write_prepared(tmp_path / WORDS, made, {"name": WORDS, "vocabulary": [str(word) for word in range(20)]})
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path))
    options = {"vocabulary": 20, "length": 5, "embedding": 3, "hidden": 4, "local_steps": 2, "client_rate": 1.0}
    tiny = {"options": options, "participants": 30, "cohort": 10, "rounds": 3, "evaluate_every": 1, "last": 1}
    tiny |= {"clips": (1.0,), "rates": (0.5, 1.0)}
    monkeypatch.setitem(clipping.TEXT, SMALL, dataclasses.replace(clipping.TEXT[SMALL], **tiny))
    folder = tmp_path / "out"
    command = ("experiment", "clipping", "--parts", "layers", "--seeds", "1,2", "--workers", 1, "--output", folder)
    code, _, err = run(*command)
    assert code == 0, err
    lines = list(csv.DictReader((folder / "clipping-layers.csv").open()))
    rows = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    for rate in (0.5, 1.0):
        found = [row["clips"][-1] for row in rows if row["labels"]["rate"] == rate]
        assert len(found) == 2
        assert len(found[0]) == len(lines) == 8
        last = [float(line[f"last clip, rate {rate:g}"]) for line in lines]
        assert last == pytest.approx(np.mean(found, axis=0), rel=1e-9)
    assert lines[0]["values"] == str(3 * 24)
    assert (folder / "clipping-layers.svg").stat().st_size


def test_no_more_is_voted_on_than_there_are_public_examples() -> None:
    """Of what ships with Sordino, which is all that there is on a fresh machine."""
    sizes, data = blur_lus.SIZES[SMALL], "fashion-mnist-subset"

    def begin(queries: int) -> None:
        voted = make_task("votes", {"queries": queries})
        VoteLearner(voted, load_part(data, "test")).prepare(1)

    asked = blur_lus._asked(sizes, data)
    for queries in sizes.queries:
        if queries in asked:
            begin(queries)
        else:
            with pytest.raises(OptionError, match="public examples"):
                begin(queries)
    assert 1 < len(asked) < len(sizes.queries)


def test_plans_of_the_papers_sizes_hold() -> None:
    """All that can be said of them without playing them."""
    pytest.importorskip("torch")
    sketch = {"sketch_rows": compression.ROWS, "sketch_ratio": 50.0, "mechanism": "skellam"}
    colour = dataclasses.replace(blur_lus.SIZES[PAPER], **blur_lus.COLOUR)
    for sizes, dim, more in (
        (clipping.SIZES[PAPER], 1_018_174, {"clip_by_layer": True, "clip_update": "geometric"}),
        (compression.SIZES[PAPER], 1_018_174, sketch),
        (blur_lus.SIZES[PAPER], 1_018_174, {"mechanism": "gaussian"}),
        (colour, 1_405_258, {}),
        (bits.SIZES[PAPER, "text"], 4_050_748, {"bits": 16}),
    ):
        same = {name: getattr(sizes, name) for name in ("task", "participants", "cohort", "rounds")}
        options = getattr(sizes, "options", {})
        plan = tiny(**same, options=options, clip=sizes.clips[0], epsilon=8.0, **more).plan()
        assert plan is not None
        assert plan.dim == dim
        assert plan.sampling_rate == pytest.approx(sizes.cohort / sizes.participants)
