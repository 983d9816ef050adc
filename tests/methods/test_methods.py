"""A few of the studies of `make methods`, and that none is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from learning.options import METHODS
from learning.task_names import SERVER_OPTIMIZERS, TASKS
from mechanisms.clip_rule import SCALINGS, UPDATES
from tests.methods.served import Unserved, serve
from tests.methods.studies import LARGE, STUDIES

EVERY = {**STUDIES, **LARGE}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blur-lus, numpy"])
@pytest.mark.long
def test_a_study_by_its_command_line(name: str, tmp_path: Path) -> None:
    done = serve(tmp_path / "study", STUDIES[name], longest_s=90)
    assert len(done.view.rounds) == 2
    assert done.report["accuracy"] > 0.15  # of ten classes; sum of two noisy rounds at epsilon 41
    assert 0 < done.report["epsilon_coordinator"] <= 50


def test_what_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unserved, match="'gpt' is unknown"):
        serve(tmp_path / "study", ("--task", "gpt"), longest_s=10)


def test_every_name_is_in_a_study() -> None:
    options = [word for study in EVERY.values() for word in study]
    defaults = {"dp-fedavg", "fedavg", "fixed", "uniform", "softmax-regression"}
    # Of no user; of other programs; of a text that has to be fetched; of numbers, in tests/learning/test_regression.py.
    others = {"synthetic", "external", "lstm", "regression"}
    named = {*METHODS, *SERVER_OPTIMIZERS, *UPDATES, *SCALINGS, *TASKS}
    assert named - defaults - others <= set(options)
