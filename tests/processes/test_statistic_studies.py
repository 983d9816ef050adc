"""Studies without training as they are used: `sordino serve` and `sordino join`, stopped once in between."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.host_file import load as load_host
from learning.checkpoints import Checkpoint, load_checkpoint
from learning.datasets import load_labels
from learning.partitions import partition
from sordino.reporting.report import write_report
from tests.support.running_study import RunningStudy, running_study

pytestmark = [pytest.mark.slow, pytest.mark.long]

PARTICIPANTS, ROUNDS = 7, 8
SIGMAS = 6.0
"""Ten figures of normal noise are all nearer than that, but for 2e-8."""


def checkpoint(study: RunningStudy, round_: int) -> Checkpoint:
    return load_checkpoint(study.folder / "coordinator" / "checkpoints" / f"round-{round_:06d}.safetensors")


def served_with_a_stop(study: RunningStudy) -> list[dict[str, Any]]:
    """Serve, stop after the first round, go on to the end; the rounds' events."""
    first = study.start_coordinator()
    home = str(study.study.hosts[0])
    host = study._fork(["sordino", "join", "--home", home], "join", {})
    study.wait_for("round_completed", round=1)
    first.send_signal(signal.SIGTERM)
    assert study.code_of(first) == 0
    assert study.events("study_finished")[0]["reason"] == "stopped"
    second = study.start_coordinator()
    assert study.code_of(second) == 0, study.story()
    assert study.code_of(host) == 0, study.logs("join")
    rounds = study.events("round_completed")
    assert [event["round"] for event in rounds] == list(range(1, ROUNDS + 1))
    return rounds


def labels_by_part(study: RunningStudy) -> list[Any]:
    """The labels that each participant holds, cut again by the hosts' own file."""
    data = load_host(study.study.hosts[0]).data
    labels = load_labels(data.dataset)
    return [labels[part] for part in partition(labels, data.partition, data.parts, data.alpha, data.seed)]


def test_a_histogram_of_labels(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"task": "histogram", "task_options": {"bins": 10}}
    with running_study(
        tmp_path / "study", together=[0], hosts=1, participants=PARTICIPANTS, rounds=ROUNDS, **chosen
    ) as study:
        assert 'task = "histogram"' in (study.folder / "study.toml").read_text()
        assert "\nclip = 1\n" in (study.folder / "study.toml").read_text()
        rounds = served_with_a_stop(study)
        released = rounds[-1]["released"]
        parts = labels_by_part(study)
        page, view = write_report(study.folder)
    assert all(event["accuracy"] is None and event["loss"] is None for event in rounds)
    assert [event["released"]["rounds"] for event in rounds] == list(range(1, ROUNDS + 1))
    everybody = [event["u3"] == PARTICIPANTS for event in rounds]
    if all(everybody):  # nobody was slow: the sums are of all of them
        truth = np.sum([np.bincount(part, minlength=10) / len(part) for part in parts], axis=0)
        for value, true in zip(released["values"], truth, strict=True):
            assert abs(value["value"] - true) < SIGMAS * value["standard_error"]
    assert released["values"][0]["standard_error"] < rounds[0]["released"]["values"][0]["standard_error"]
    assert view.accuracy is None
    text = page.read_text()
    assert "class 9" in text
    assert "Accuracy" not in text


def test_votes_on_public_images(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"task": "votes", "task_options": {"queries": 25, "client_rate": 0.5}}
    with running_study(
        tmp_path / "study", together=[0], hosts=1, participants=PARTICIPANTS, rounds=ROUNDS, epsilon=60.0, **chosen
    ) as study:
        assert "\nclip = 5\n" in (study.folder / "study.toml").read_text()
        rounds = served_with_a_stop(study)
        before = checkpoint(study, 1).optimizer_state["labels"]
        after = checkpoint(study, ROUNDS).optimizer_state["labels"]
        page, view = write_report(study.folder)
    assert after.shape == (25 * ROUNDS,)
    assert after[:25].tolist() == before.tolist()  # the second start went on with the labels of the first
    assert [event["released"]["labelled"] for event in rounds] == [25 * number for number in range(1, ROUNDS + 1)]
    assert rounds[-1]["accuracy"] == view.accuracy
    assert rounds[-1]["accuracy"] > 0.3  # 25 runs in memory: 0.545, deviation 0.04; that is six below
    assert "200 of 200 queries labelled by votes" in page.read_text()
