"""The measurements measure what they say: right sums, the right law, the same updates, bounds that fail the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning.device import chosen_threads
from learning.tasks.softmax_regression import SoftmaxRegression
from mechanisms.lattice_noise import LatticeNoise
from secagg.server_phases import MaskedInputCollection
from sordino.lab.bench import noise, paths, primitives, secagg, training
from sordino.lab.bench.text import draw_comparisons, draw_ratios
from sordino.lab.bench.timing import BOUNDS, Spread, beside, broken, seconds_each
from tests.support.commands import Run, in_a_process, output
from wire.study import upload_bytes

SMALL = {"clients": 12, "dim": 1000, "bits": 20}


@pytest.mark.parametrize("at", secagg.PHASE_NAMES)
def test_an_attempt_ends_in_the_right_sum(at: str) -> None:
    figures = secagg.run_attempt(secagg.Setting(**SMALL, drop=0.25, at=at))
    assert figures["sum_ok"]
    counted = at in ("consistency-check", "unmasking")
    assert figures["survivors"] == 12 - (0 if counted else 3)
    assert figures["degree"] == (8 if at == "advertise-keys" else 11)
    client, server = (sum(phase[side] for phase in figures["phases"].values()) for side in ("client", "server"))
    assert figures["cpu_s"] == pytest.approx(client + server)
    assert figures["server_cpu_s"] == pytest.approx(server)
    assert min(figures["client_cpu_s"], server) > 0


def test_bytes_are_those_of_the_wire() -> None:
    assert secagg.run_attempt(secagg.Setting(**SMALL))["upload_bytes"] == upload_bytes(12, 1000, 20)


def test_a_wrong_sum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = MaskedInputCollection.receive

    def adds_one(self: MaskedInputCollection, sender: int, message: Any) -> None:
        receive(self, sender, message)
        self._accumulator[7] += 1

    monkeypatch.setattr(MaskedInputCollection, "receive", adds_one)
    assert not secagg.run_attempt(secagg.Setting(**SMALL))["sum_ok"]


def test_threads_open_the_same_sum() -> None:
    # Long enough that the masks are divided among threads.
    assert secagg.run_attempt(secagg.Setting(clients=12, dim=200_000, bits=20, drop=0.25), threads=2)["sum_ok"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"drop": 0.6}, "lower --drop"),
        ({"drop": 1.0}, "drop\n"),
        ({"at": "lunch"}, "at\n"),
        ({"clients": 2}, "clients\n"),
        ({"clients": 10**9}, "clients\n"),
        ({"dim": 0}, "dim\n"),
        ({"dim": 10**14}, "dim\n"),
        ({"adversarial": 1.0}, "adversarial\n"),
        ({"bits": 63}, "bits\n"),
        ({"dropout": -1.0}, "dropout\n"),
        ({"degree": 4, "threshold": 3, "graph": "complete"}, "complete has no degree: leave out"),
        ({"degree": 5, "threshold": 3}, "--degree 5 is no ring's: take an even number from 2 to 10"),
        ({"degree": 4}, "--degree without --threshold"),
        ({"threshold": 3}, "--threshold without --degree"),
        ({"degree": 4, "threshold": 5}, "--threshold 5 is out of range"),
        ({"clients": 3, "degree": 2, "threshold": 2}, "3 clients are no ring"),
    ],
)
def test_settings_that_cannot_end_in_a_sum(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        secagg.Setting(**(SMALL | changed))


@pytest.mark.parametrize("stddev", [0.5, 1.0, 10.0, 1e5])
@pytest.mark.parametrize("law", noise.LAWS)
def test_the_draws_are_of_the_law(law: str, stddev: float) -> None:
    figures = noise.run(law, stddev, 20_000, runs=1)
    assert figures["law_ok"]
    assert figures["ns_per_sample"] > 0


@pytest.mark.parametrize("law", noise.LAWS)
def test_another_law_is_seen(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = LatticeNoise.add

    def wider(self: LatticeNoise, x: Any, random_bytes: Any) -> None:
        add(self, x, random_bytes)
        np.multiply(x, 2, out=x)

    monkeypatch.setattr(LatticeNoise, "add", wider)
    assert not noise.run(law, 3.0, 20_000, runs=1)["law_ok"]


@pytest.mark.parametrize("arguments", [("poisson", 1.0, 10), ("gaussian", 1e-3, 10), ("gaussian", 1.0, 0)])
def test_noise_that_cannot_be(arguments: tuple[str, float, int]) -> None:
    with pytest.raises(ValueError, match="--"):
        noise.run(*arguments)


def test_times_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]
    monkeypatch.setattr("time.process_time", lambda: spent[-1])
    assert seconds_each(lambda: spent.append(spent[-1] + 0.002), 0.05) == pytest.approx(0.002)
    assert spent[-1] < 0.5  # as many calls as fill the time, and not many more
    values = iter(range(1, 100))
    ours, limit, ratio = beside(lambda: float(next(values)), lambda: 2.0, 3)  # the first isn't counted
    assert (ours, limit, ratio) == (Spread(2, 3, 4), Spread(2, 2, 2), Spread(1, 1.5, 2))


def test_every_path_has_a_bound_and_every_bound_a_path() -> None:
    assert {path.key for path in paths._paths()} == set(BOUNDS["most"])
    assert set(BOUNDS["least"]) == {"flower_secagg", "opendp_noise"}


def test_broken_bounds() -> None:
    found = broken({"a": 2.0, "b": 1.0, "c": 9.0}, {"a": 1.5, "b": 1.5}, largest=True)
    assert found == ["a is 2, its bound is at most 1.5"]
    assert broken({"a": 2.0}, {"a": 3.0}, largest=False) == ["a is 2, its bound is at least 3"]


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_a_broken_bound_fails_the_command(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = tmp_path / "figure.svg"
    arguments = ("bench", "all", "--only", "share", "--runs", 1, "--figure", figure, "--json")
    monkeypatch.setitem(BOUNDS["most"], "share", 0.001)
    code, text, errors = run(*arguments)
    assert code == 1
    assert "share is" in errors
    assert json.loads(text)["broken"]
    monkeypatch.setitem(BOUNDS["most"], "share", 1000)
    passed = json.loads(output(run, *arguments))
    assert passed["broken"] == []
    assert passed["paths"][0]["ratio"]["median"] > 0
    assert "share two secrets" in figure.read_text()


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
@pytest.mark.long
def test_the_command_prints_the_figures_of_the_design() -> None:
    asked = ("bench", "secagg", "--clients", 10, "--dim", 50, "--drop", 0.2)
    figures = json.loads(in_a_process(*asked, "--json").stdout)
    names = "sum_ok degree threshold survivors client_cpu_s server_cpu_s wall_s upload_bytes download_bytes"
    assert {*names.split(), "peak_rss_mb", "phases"} <= set(figures)
    for law in noise.LAWS:
        figures = json.loads(in_a_process("bench", "noise", "--law", law, "--dim", 1000, "--runs", 1, "--json").stdout)
        assert {"ns_per_sample", "setup_ms"} <= set(figures)
        assert figures["law"] == law
    assert "min_survivors" in in_a_process(*asked[:4], "--drop", 0.9, code=2).stderr
    told = in_a_process(*asked, "--graph", "harary").stdout
    assert "sum of 8 of 10 participants is right" in told
    assert "below 64 participants there is no ring" in " ".join(told.split())
    told = in_a_process(*asked, "--degree", 8, "--threshold", 5).stdout
    assert "another system's setting: our rules ask for the complete graph, threshold 7" in " ".join(told.split())


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_primitives_are_all_measured() -> None:
    rows = primitives.run(runs=1)
    assert len({row["name"] for row in rows}) == len(rows) == 22
    assert all(row["median"] > 0 for row in rows)
    assert {"GB/s", "ns/value", "us", "ms", "ms/MB"} == {row["unit"] for row in rows}


def test_figures_are_drawn(tmp_path: Path) -> None:
    one = {"minimum": 1.0, "median": 2.0, "maximum": 3.0}
    row = {"path": "masks", "name": "expand", "ratio": one}
    draw_ratios([row], {"masks": 4.0}, "a machine", tmp_path / "ratios.png")
    peer = {"name": "round", "peer_name": "Other", "unit": "CPU s", "ours": one, "peers": one, "ratio": one}
    draw_comparisons([peer], "a machine", tmp_path / "peers.svg")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")
    assert "Other" in (tmp_path / "peers.svg").read_text()


# ---------------------------------------------------------------- training


def test_a_numpy_task_is_timed_both_ways(run: Run) -> None:
    small = ("--task", "softmax-regression", "--participants", 4, "--examples", 5, "--runs", 1)
    figures = json.loads(output(run, "bench", "training", *small, "--json"))
    assert set(figures["seconds"]) == {"one_by_one", "at_once"}
    assert (figures["same"], figures["limits"]) == (True, None)
    fastest = {way: times["minimum"] for way, times in figures["seconds"].items()}
    assert figures["speedup"] == pytest.approx(fastest["one_by_one"] / fastest["at_once"])


def test_a_torch_task_has_limits_besides() -> None:
    pytest.importorskip("torch")
    figures = training.run("cnn", {"side": 16, "local_epochs": 1}, participants=3, examples=4, threads=2, runs=1)
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
    assert training.run("softmax-regression", {}, 2, 3, 1, 1)["same"] is False


@pytest.mark.parametrize(
    ("name", "participants", "message"),
    [("lstm", 2, "takes no images"), ("mean", 2, "takes no images"), ("mlp", 100_000, "too many")],
)
def test_what_cannot_be_measured_is_refused(name: str, participants: int, message: str) -> None:
    if name == "lstm":
        pytest.importorskip("torch")
    options: dict[str, object] = {"low": 0.0, "high": 1.0} if name == "mean" else {}
    with pytest.raises(ValueError, match=message):
        training.run(name, options, participants, 1, 1, 1)
