"""init, study.toml and serve: the clip is the task's own bound where it has one, and nothing that would distort it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import server.study_file
from authority.new_study import LocalStudy, make_local_study, new_study
from runtime.failure import Failure
from server.opening import open_study
from tests.support.commands import Run, one_clear_error, output
from tests.support.signed_rosters import sign_terms


def make(folder: Path, **options: Any) -> LocalStudy:
    return make_local_study(folder, new_study(participants=10, hosts=2, **options))


FEW = ("--participants", 10, "--hosts", 2, "--rounds", 2, "--epsilon", 20)


@pytest.mark.parametrize(
    ("arguments", "clip"),
    [
        (("--task", "histogram", "--task-option", "bins=20"), 1),
        (("--task", "mean", "--task-option", "column=0-3"), 2),
        (("--task", "sum", "--clip", 3), 3),
        (("--task", "votes", "--task-option", "queries=25"), 5),
        ((), 1),
    ],
)
def test_init_takes_the_bound(run: Run, tmp_path: Path, arguments: tuple[object, ...], clip: int) -> None:
    out = output(run, "init", tmp_path / "study", *FEW, *arguments)
    assert f"\nclip = {clip}\n" in (tmp_path / "study" / "study.toml").read_text()
    told = "the bound that the task keeps by itself" in " ".join(out.split())
    assert told == (bool(arguments) and "--clip" not in arguments)
    for home in (tmp_path / "study" / "hosts").iterdir():
        assert 'task = "' in (home / "host.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--task", "histogram", "--clip", 0.5), "a clip of 0.5 would distort the sum: leave the clip out"),
        (("--task", "mean", "--clip-update", "geometric"), "clips that adapt would distort the sum"),
        (("--task", "sum", "--sketch-rows", 15), "is exact where a sketch is not"),
        (("--task", "quantile", "--method", "fedprox"), "--task quantile: --method is unknown"),
        (("--task", "votes", "--task-option", "queries=600"), "2 rounds of 600 queries need 1200 public examples"),
        (("--task", "votes", "--dataset", "own"), "it has none: name a file of them"),
        (("--task", "votes", "--task-option", "of=histogram"), "task 'histogram' doesn't"),
        (("--method", "ae-dpfl", "--task", "mlp"), "is now the task votes, whose option 'of' names the classifier"),
    ],
)
def test_init_refuses_what_would_distort(run: Run, tmp_path: Path, arguments: tuple[object, ...], told: str) -> None:
    one_clear_error(run, told, "init", tmp_path / "study", *FEW, *arguments)
    assert not list(tmp_path.iterdir())


def test_serve_reads_a_file_without_a_clip(tmp_path: Path) -> None:
    made = make(tmp_path / "study", rounds=2, epsilon=20.0, task="mean", task_options={"column": "0,1"})
    file = tmp_path / "study" / "study.toml"
    written = file.read_text()
    file.write_text(re.sub(r"^clip = .*\n", "", written, flags=re.MULTILINE))
    configuration = server.study_file.load(tmp_path / "study")
    assert configuration.privacy.clip is None
    study, journal = open_study(configuration)
    assert study.terms.plan == made.plan  # the same as with the clip that init writes
    study.close()
    journal.close()
    file.write_text(re.sub(r"^clip = .*\n", "clip = 1.0\n", written, flags=re.MULTILINE))
    with pytest.raises(Failure, match=r"bounds each contribution to norm 1\.41421 by itself, and a clip of 1 would"):
        open_study(server.study_file.load(tmp_path / "study"))


def test_serve_counts_the_public_examples_too(tmp_path: Path) -> None:
    """init has looked, but study.toml can be changed: as many rounds as the pool holds, and not one more."""
    make(tmp_path / "study", rounds=10, epsilon=40.0, task="votes", task_options={"queries": 100})
    file = tmp_path / "study" / "study.toml"
    file.write_text(file.read_text().replace("rounds = 10 ", "rounds = 11 "))
    sign_terms(tmp_path / "study")
    with pytest.raises(Failure, match="11 rounds of 100 queries need 1100 public examples; the coordinator has 10"):
        open_study(server.study_file.load(tmp_path / "study"))
