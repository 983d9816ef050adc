"""What the library is given: a mistake is one sentence, paths and NumPy's numbers are taken, nothing is ignored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sordino
from mechanisms.clip_rule import ClipRule
from sordino import SimulationSettings, partition, plan_study, simulate_study, simulated_study, sweep
from sordino.reporting.results import flat_round

PLAN: dict[str, Any] = {
    **{"clients": 20, "dim": 50, "bits": 16, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5, "rounds": 5},
    **{"max_dropout": 0.2, "adversarial": 0.05},
}
LABELS = np.arange(100) % 4


def study(**options: Any) -> SimulationSettings:
    return SimulationSettings(study=simulated_study(participants=20, rounds=1, **options))


def planned(**changed: Any) -> Callable[[], object]:
    return lambda: plan_study(**PLAN | changed)


def swept(**options: Any) -> Callable[[], object]:
    return lambda: sweep(study(mechanism="none"), **options)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (planned(clients=np.int64(20)), "clients = np.int64(20) is no int"),
        (planned(clients=10**7), "the cohort must have 2 to 65520 participants"),
        (planned(clients=math.nan), "clients = nan is no int"),
        (planned(max_dropout=None), "max_dropout = None must be a share"),
        (planned(adversarial=1.0), "adversarial = 1.0 must be a share"),
        (planned(budget_coordinator=9.0), "epsilon is the budget of the target; leave budget_coordinator out"),
        (planned(budget_released=0.0), "budget_released must be above 0"),
        (planned(clipping=ClipRule.flat(50, 1.0)), "clip and clipping are both stated"),
        (lambda: partition(LABELS, "natural", 2, users=np.arange(500)), "500 users for 100 labels"),
        (lambda: partition(np.where(LABELS, LABELS, np.nan), "dirichlet", 4), "some labels aren't finite"),
        (lambda: partition(LABELS, "iid", 4.5), "number of participants is 4.5; it must be a whole number from 1"),
        (lambda: simulated_study(client_rate=0.1), "options of its task go into task_options"),
        (lambda: simulated_study(drop=0.1), "drop is a setting of the simulation"),
        (lambda: simulated_study(shards=9), "--shards 9 needs a data set that is cut by --partition shards"),
        (lambda: simulated_study(task_options={"client_rate": math.nan}), "should be a text, true or false, or a fin"),
        (lambda: sordino.new_study(participants=9, shards=9), "--shards 9 needs a data set that is cut by --partition"),
        (swept(sketch_ratio=[2, 50]), "--sketch-ratio 2 needs --sketch-rows"),
        (swept(epsilon=[]), "values of each option"),
        (swept(seeds=3), "seeds such as range(3)"),
        (swept(seeds=[1, 1]), "a seed is named twice"),
        (swept(processes=0), "one process or more"),
        (lambda: simulate_study(study(), checkpoint_every=0), "checkpoint_every = 0"),
        (lambda: sordino.read_images(".", side=-1), "side = -1"),
        (lambda: sordino.Encoder(plan_study(**PLAN), bytes(32), survivors=2), "2 survivors; the plan has 12 to 20"),
    ],
)
def test_a_mistake_is_one_sentence(call: Callable[[], object], told: str) -> None:
    with pytest.raises((ValueError, sordino.Failure)) as error:
        call()
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_refusal_is_not_remembered_as_another_number() -> None:
    """Equal numbers of two types are one key of a cache."""
    with pytest.raises(ValueError, match="is no int"):
        plan_study(**PLAN | {"clients": np.int64(23)})
    assert plan_study(**PLAN | {"clients": 23}).clients == 23
    sordino.discrete_gaussian(Fraction(7, 2))
    with pytest.raises((TypeError, ValueError, AttributeError)):
        sordino.discrete_gaussian(3.5)  # type: ignore[arg-type]


def test_paths_are_texts_or_paths(tmp_path: Path) -> None:
    table, images, data = tmp_path / "a.csv", tmp_path / "images", tmp_path / "data"
    rows = "x,label\n" + "\n".join(f"{number},{number % 2}" for number in range(12))
    table.write_text(rows)
    for label, number in itertools.product("01", range(3)):
        (images / label).mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2)).save(images / label / f"{number}.png")
    data.mkdir()
    for number in range(10):
        (data / f"{number}.csv").write_text(f"{rows}\n{number},1")
    for kind in (str, Path):
        assert len(sordino.read_table(kind(table))) == 12
        assert len(sordino.read_images(kind(images))) == 6
        sordino.SavedPhases(kind(tmp_path / f"{kind.__name__}.sqlite"))
        sordino.make_local_study(kind(tmp_path / f"study-{kind.__name__}"), sordino.new_study(participants=5))
        own = simulated_study(
            participants=10, rounds=1, mechanism="none", dataset="own", test=kind(table), task_options={"features": 1}
        )
        settings = SimulationSettings(study=own, data=kind(data))
        assert simulate_study(settings, output=kind(tmp_path / f"{kind.__name__}.jsonl")).accuracy is not None


def test_numbers_of_numpy_are_numbers() -> None:
    found = sweep(study(mechanism="none"), client_rate=np.array([0.1, 0.2]), batch_size=np.int64(4), seeds=np.arange(2))
    assert [(row["client_rate"], row["batch_size"], row["seed"]) for row in found.rows] == [
        (rate, 4, seed) for rate in (0.1, 0.2) for seed in (0, 1)
    ]
    assert sordino.make_task("mlp", {"hidden": np.int64(8)}).dim > 0
    for call in (lambda: found.means("acuracy"), lambda: found.plot(figure="acuracy"), sweep(study()).plot):
        with pytest.raises(sordino.Failure, match=r"Did you mean accuracy\?|nothing was swept"):
            call()


def test_a_figure_of_the_model_hides_no_column() -> None:
    row = {
        "kind": "round",
        "round": 1,
        "epsilon_coordinator": 2.0,
        "figures": {"epsilon_coordinator": 0.0, "mine": 1.0},
    }
    assert flat_round(row) == {"round": 1, "epsilon_coordinator": 2.0, "mine": 1.0}
