"""`sordino bench training`: figures of both ways, and a way that gives other updates is told."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from learning.device import chosen_threads
from learning.tasks.softmax_regression import SoftmaxRegression
from sordino.cli.bench import app
from sordino.lab.bench.training import run

SMALL = ["training", "--task", "softmax-regression", "--participants", "4", "--examples", "5", "--runs", "1", "--json"]


def test_a_numpy_task_is_timed_both_ways() -> None:
    figures = json.loads(CliRunner().invoke(app, SMALL).stdout)
    assert set(figures["seconds"]) == {"one_by_one", "at_once"}
    assert (figures["same"], figures["limits"]) == (True, None)
    fastest = {way: times["minimum"] for way, times in figures["seconds"].items()}
    assert figures["speedup"] == pytest.approx(fastest["one_by_one"] / fastest["at_once"])


def test_a_torch_task_has_limits_besides() -> None:
    pytest.importorskip("torch")
    figures = run("cnn", {"side": 16, "local_epochs": 1}, participants=3, examples=4, threads=2, runs=1)
    assert set(figures["seconds"]) == {"one_by_one", "at_once", "one_by_one_torch_threads"}
    assert figures["same"] is True
    assert chosen_threads() == 1
    # Two convolutions and a linear layer on 12 images: forward, back for weights, and for values but at the bottom.
    products = 3 * 4 * (144 * 16 * 25 * 2 + 4 * 32 * 400 * 3 + 32 * 10 * 3)
    assert figures["limits"]["operations"] == 2 * products
    assert figures["limits"]["threads_2"]["seconds_at_the_faster"] > 0


def test_other_updates_at_once_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SoftmaxRegression.local_updates

    def wrong(self: SoftmaxRegression, *given: object, **named: object) -> np.ndarray:
        return real(self, *given, **named) + np.float32(0.01)  # type: ignore[arg-type]

    monkeypatch.setattr(SoftmaxRegression, "local_updates", wrong)
    assert run("softmax-regression", {}, 2, 3, 1, 1)["same"] is False


@pytest.mark.parametrize(
    ("name", "participants", "message"),
    [("lstm", 2, "takes no images"), ("mean", 2, "takes no images"), ("mlp", 100_000, "too many")],
)
def test_what_cannot_be_measured_is_refused(name: str, participants: int, message: str) -> None:
    if name == "lstm":
        pytest.importorskip("torch")
    options: dict[str, object] = {"low": 0.0, "high": 1.0} if name == "mean" else {}
    with pytest.raises(ValueError, match=message):
        run(name, options, participants, 1, 1, 1)
