"""What of a module no update carries: frozen parameters, buffers, a backbone in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning import device
from learning.datasets import Dataset
from learning.options import METHODS, OptionError, TrainingOptions
from learning.own_task import RuleBroken, TaskUnavailable
from learning.parameters import Parameters, flatten
from learning.task import update_rng
from learning.tasks.backbone import BackboneOptions
from learning.tasks.personal import Personal

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402 - with torch
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from learning.tasks.torch_task import TorchTask  # noqa: E402

SIZES = (5, 1, 9, 4)
TRAINED = ["narrow.weight", "narrow.bias", "last.weight", "last.bias"]


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions):
    client_rate: float = 0.2
    dropout: float = 0.5


class Body(nn.Module):
    """Frozen: a convolution, a batch norm that rests, a linear layer between two that are trained; and a constant."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3).requires_grad_(False)
        self.norm = nn.BatchNorm2d(4).requires_grad_(False).eval()
        self.norm.running_mean.uniform_()
        self.norm.running_var.uniform_(0.5, 1)
        self.register_buffer("scale", torch.tensor([2.0]))
        self.narrow = nn.Linear(64, 5)
        self.dropout = nn.Dropout(dropout)
        self.between = nn.Linear(5, 5).requires_grad_(False)
        self.last = nn.Linear(5, 3)

    def forward(self, values: Any) -> Any:
        seen = torch.tanh(self.norm(self.first(values.unsqueeze(1)))).flatten(1)
        return self.last(torch.tanh(self.between(self.dropout(self.scale * self.narrow(seen)))))


class Tuned(TorchTask):
    Options = Options
    options: Options
    name = "tuned"
    classes = 3
    example_shape = (6, 6)

    def module(self) -> nn.Module:
        return Body(self.options.dropout)


def images(count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.integers(0, 256, (count, 6, 6), dtype=np.uint8), rng.integers(0, 3, count))


def rngs() -> list[Any]:
    return [update_rng(0, 1, place) for place in range(len(SIZES))]


SOME = [images(size, seed) for seed, size in enumerate(SIZES)]


def the_module(task: TorchTask, parameters: Parameters) -> nn.Module:
    """Torch's own, resting, with these parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = task.module()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in parameters.items()}, strict=False)
    return module.eval()


def test_only_what_requires_gradients_travels_and_only_that_moves() -> None:
    """Against torch's own optimizer on the module itself."""
    task, data = Tuned(Options(dropout=0.0, local_steps=4, batch_size=9)), SOME[2]
    start = task.initial_parameters()
    assert list(start) == list(task.contribution_shapes) == TRAINED
    assert task.dim == 64 * 5 + 5 + 5 * 3 + 3
    module = the_module(task, start)
    inputs, labels = torch.from_numpy(data.features).float() / 255, torch.from_numpy(data.labels)
    optimizer = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=0.2)
    for _ in range(4):
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    update = task.local_update(start, data, update_rng(0, 1, 2))
    expected = dict(module.named_parameters())
    for name, array in update.items():
        np.testing.assert_allclose(array, expected[name].detach().numpy() - start[name], atol=2e-6)
    moved = {name: start[name] + update[name] for name in start}
    with torch.no_grad():
        scores = the_module(task, moved)(inputs)
    figures = task.evaluate(moved, data)
    assert figures["loss"] == pytest.approx(float(functional.cross_entropy(scores, labels)), rel=1e-5)
    assert figures["loss"] < task.evaluate(start, data)["loss"]
    np.testing.assert_array_equal(task.predict(moved, data.features), scores.argmax(1).numpy())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["threads", "together", "side by side"])
def test_every_path_leaves_the_rest_as_it_is(method: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    several = {"local_epochs": 2} if way != "together" else {"local_steps": 1}
    task = Tuned(
        Options(method=method, batch_size=9 if way == "together" else 4, **({} if method == "dp-fedsgd" else several))
    )
    start = task.initial_parameters()
    fixed = {name: tensor.clone() for name, tensor in task._fixed.items()}
    assert sorted(fixed) == sorted(set(task.module().state_dict()) - set(TRAINED))
    alone = np.array([flatten(task.local_update(start, one, rng, 0.1)) for one, rng in zip(SOME, rngs(), strict=True)])
    if way == "side by side":
        found = np.empty_like(alone)
        tensors = {name: torch.from_numpy(array) for name, array in start.items()}
        task._train_side_by_side(tensors, SOME, rngs(), 0.1, found)
    else:
        monkeypatch.setattr(device, "_threads", 3)
        if way == "together" and "lus" not in method:
            monkeypatch.setattr(task, "_train", None)  # no participant steps alone
        found = task.local_updates(start, SOME, rngs(), 0.1)
    np.testing.assert_allclose(found, alone, rtol=2e-3, atol=3e-6)
    assert alone.any(axis=1).all()
    assert all(torch.equal(tensor, fixed[name]) for name, tensor in task._fixed.items())


class Remembers(nn.Module):
    """A running mean of what it sees, which zeros, as the trial has them, leave at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("mean", torch.zeros(36))

    def forward(self, values: Any) -> Any:
        self.mean.mul_(0.9).add_(0.1 * values.detach().flatten(1).mean(0))
        return self.linear(values.flatten(1) - self.mean)


def task_of(module: Callable[[], nn.Module], options: TrainingOptions | None = None) -> Tuned:
    class Wrong(Tuned):
        def module(self) -> nn.Module:
            return module()

    return Wrong(Options() if options is None else options)


def of_rows(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 4), *layers, nn.Linear(4, 3))


def test_a_module_whose_buffers_change_is_refused() -> None:
    message = r"training changes .*\(2.running_mean, 2.running_var, .*\).*nn.GroupNorm .*track_running_stats=False"
    with pytest.raises(RuleBroken, match=message):
        task_of(lambda: of_rows(nn.BatchNorm1d(4)))
    task = task_of(Remembers)
    with pytest.raises(RuleBroken, match=r"training changes .*\(mean\)"):
        task.local_update(task.initial_parameters(), SOME[0], update_rng(0, 1, 0))
    for norm in (
        lambda: nn.BatchNorm1d(4).eval(),
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        lambda: nn.GroupNorm(2, 4),
    ):
        usable = task_of(lambda norm=norm: of_rows(norm()))  # type: ignore[misc]
        assert flatten(usable.local_update(usable.initial_parameters(), SOME[0], update_rng(0, 1, 0))).any()


def test_batch_norm_of_one_participant_sees_no_others_examples() -> None:
    options = Options(local_steps=1, batch_size=9)
    task = task_of(lambda: of_rows(nn.BatchNorm1d(4, affine=False, track_running_stats=False)), options)
    some = [one for one in SOME if len(one) > 1]
    start = task.initial_parameters()
    alone = [flatten(task.local_update(start, one, rng)) for one, rng in zip(some, rngs(), strict=False)]
    np.testing.assert_allclose(task.local_updates(start, some, rngs()[:3]), alone, rtol=1e-3, atol=1e-7)


# ------------------------------------------------------------------------------------------- a backbone in a file


@dataclass(frozen=True, kw_only=True)
class FileOptions(BackboneOptions):
    backbone: str = "body.safetensors"


class WithFile(Tuned):
    Options: Any = FileOptions

    def module(self) -> nn.Module:
        body = nn.Linear(36, 8).requires_grad_(False)
        body.load_state_dict(self.backbone(), assign=True)
        return nn.Sequential(nn.Flatten(), body, nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_file(nn.Linear(36, 8).state_dict(), "body.safetensors")
    return tmp_path / "body.safetensors"


def test_a_backbone_is_held_against_its_digest(file: Path) -> None:
    task = WithFile(FileOptions())  # as at `init`
    digest = task.options.to_mapping()["backbone_sha256"]
    again = WithFile(FileOptions.from_mapping(task.options.to_mapping()))
    weights = [one._fixed["1.weight"] for one in (task, again)]
    assert torch.equal(*weights)
    assert task.dim == 27
    assert flatten(again.local_update(again.initial_parameters(), SOME[0], update_rng(0, 1, 0))).any()
    assert len(str(digest)) == 64

    partly = Personal(WithFile(FileOptions(personal="3.bias")))  # the terms name the file there too
    assert partly.options.to_mapping()["backbone_sha256"] == digest

    save_file(nn.Linear(36, 8).state_dict(), file)
    with pytest.raises(TaskUnavailable, match=rf"{file} has the SHA-256 \w+, and the study's has {digest}: put"):
        WithFile(again.options)
    file.unlink()
    with pytest.raises(
        TaskUnavailable, match=rf"{file} can't be read \(No such .*study's file with the SHA-256 {digest}"
    ):
        WithFile(again.options)


def test_a_backbone_that_cannot_be_used_is_refused(file: Path) -> None:
    file.write_bytes(b"\x80\x05a pickle, say")
    with pytest.raises(OptionError, match="is no safetensors file"):
        WithFile(FileOptions())
    with pytest.raises(OptionError, match="'backbone' is empty"):
        WithFile(FileOptions(backbone=""))
    for name in ("/etc/passwd", "../body.safetensors", "a\0b"):
        with pytest.raises(OptionError, match="name of a file, without a folder"):
            FileOptions(backbone=name)
    with pytest.raises(OptionError, match="64 digits"):
        FileOptions(backbone_sha256="ab")
    with pytest.raises(RuleBroken, match=r"derive them from sordino\.BackboneOptions"):
        WithFile(Options())
