"""A study whose participants train a head on a frozen backbone: real processes, one of them with another file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learning.checkpoints import load_model
from runtime.failure import ExitCode
from server.study_file import StudyConfiguration
from tests.support.running_study import RunningStudy, running_study

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.long]

FILE = "body.safetensors"
TASK = f"""
from dataclasses import dataclass
from torch import nn
from sordino import BackboneOptions, TorchTask

@dataclass(frozen=True, kw_only=True)
class Options(BackboneOptions):
    backbone: str = "{FILE}"

class Tuned(TorchTask):
    Options = Options
    example_shape = (28, 28)
    classes = 10

    def module(self):
        body = nn.Linear(784, 16).requires_grad_(False)
        body.load_state_dict(self.backbone(), assign=True)
        return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(16, 10))
"""


def write_backbone(folder: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    drawn = torch.Generator().manual_seed(seed)
    weights = {"weight": torch.randn(16, 784, generator=drawn) / 28, "bias": torch.zeros(16)}
    save_file(weights, folder / FILE)


def join(study: RunningStudy, home: int, cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sordino", "join", "--home", str(study.study.hosts[home])]
    return study._start(command, f"join-{home}", {}, cwd)


def test_only_hosts_with_the_studys_backbone_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        (folder / "tuned.py").write_text(TASK)
        write_backbone(folder, seed=int(folder == elsewhere))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = {
        "participants": 8,
        "hosts": 2,
        "together": [0],
        "rounds": 2,
        "max_dropout": 0.0,
        "min_survivors": 8,
        "quorum": 8,
    }
    with running_study(
        tmp_path / "study", task="tuned:Tuned", partition="iid", task_options={"client_rate": 0.1}, **options
    ) as study:
        monkeypatch.delitem(sys.modules, "tuned")
        told: StudyConfiguration = study.study.study
        digest = str(told.task["backbone_sha256"])
        assert told.document().task_options["backbone_sha256"] == digest  # so the terms' digest depends on it
        assert study.study.plan.dim == 170

        study.start_coordinator()
        first = join(study, 0, tmp_path)
        study.wait_for("participant_connected")
        refused = join(study, 1, elsewhere)
        assert study.code_of(refused) == ExitCode.INPUT
        [line] = study.logs("join-1").splitlines()
        assert f"{elsewhere / FILE} has the SHA-256" in line
        assert f"the study's has {digest}: put the study's file in its place" in line
        (elsewhere / FILE).unlink()
        assert study.code_of(join(study, 1, elsewhere)) == ExitCode.INPUT
        assert f"put the study's file with the SHA-256 {digest} there" in study.logs("join-1").splitlines()[-1]
        assert len(study.events("participant_connected")) == 4  # those of the first host

        write_backbone(elsewhere, seed=0)
        second = join(study, 1, elsewhere)
        rounds = study.wait_for("round_completed", round=2)
        assert rounds[-1]["u3"] == 8
        assert [study.code_of(one) for one in (first, second)] == [0, 0]
        model = load_model(study.folder / "coordinator" / "checkpoints" / "round-000002.safetensors")
    assert {name: array.shape for name, array in model.parameters.items()} == {"3.weight": (10, 16), "3.bias": (10,)}
    assert np.isfinite(model.parameters["3.weight"]).all()
