"""The base of torch tasks, and those that ship: sizes, one start for all, every method, many at once."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning import device
from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import METHODS, TrainingOptions
from learning.parameters import flatten
from learning.task import BatchedTask, Classifier, update_rng
from tests.learning.digests import parameters_digest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is
from torch.nn import functional  # noqa: E402

from learning.tasks.dropout import Dropout  # noqa: E402
from learning.tasks.shared_step import shareable  # noqa: E402
from learning.tasks.torch_task import IGNORED, TorchTask  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SIZES = (5, 1, 9, 4)


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions):
    client_rate: float = 0.1
    dropout: bool = True
    initial_seed: int = 0


class Small(TorchTask):
    """A convolution, dropout by value and by channel, group norm, a linear layer."""

    Options = Options
    name = "small"
    classes = 3
    example_shape = (6, 6)

    def inputs(self, features: Any) -> Any:
        return super().inputs(features).unsqueeze(1)

    def module(self) -> nn.Module:
        share = 0.5 if self.options.dropout else 0.0
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(1, 4),  # pairs of channels would have biases that tie, and LUS would keep either
            nn.ReLU(),
            nn.Dropout2d(share),
            nn.Flatten(),
            nn.Dropout(share),
            nn.Linear(64, 3),
        )


def small(**options: object) -> Small:
    return Small(Options.from_mapping(options))


def images(count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.integers(0, 256, (count, 6, 6), dtype=np.uint8), rng.integers(0, 3, count))


def words(count: int, seed: int = 0, length: int = 5, vocabulary: int = 7) -> Dataset:
    rng = np.random.default_rng(seed)
    features = rng.integers(1, vocabulary + 4, (count, length), dtype=np.int32)
    labels = rng.integers(1, vocabulary + 4, (count, length))
    if count > 1:
        labels[0, 2:] = 0
    return Dataset(features, labels)


SOME = [images(size, seed) for seed, size in enumerate(SIZES)]


def learnt(task: Any, data: Dataset) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The start, and the parameters after one local update."""
    start = task.initial_parameters()
    update = task.local_update(start, data, update_rng(0, 1, 0), 1.0)
    return start, {key: start[key] + update[key] for key in start}


def together(task: Any, start: dict[str, np.ndarray], data: list[Dataset], l2_clip: float = 0.1, **more: Any) -> Any:
    return task.local_updates(start, data, [update_rng(0, 1, place) for place in range(len(data))], l2_clip, **more)


# ------------------------------------------------------------------------------------------- those that ship


@pytest.mark.parametrize(
    ("name", "options", "dim"),
    [
        ("cnn", {}, 18_378),
        ("femnist-cnn", {}, 1_018_174),
        ("femnist-cnn", {"classes": 10}, 1_018_174 - 52 * 129),
        ("femnist-cnn", {"classes": 10, "side": 32, "channels": 3}, 896 + 18_496 + 64 * 13 * 13 * 128 + 128 + 1_290),
        ("resnet18", {}, 11_172_810),
        ("resnet18", {"channels": 3, "side": 32}, 11_173_962),
        ("lstm", {}, 4_050_748),
        ("lstm", {"vocabulary": 86, "embedding": 8, "hidden": 256}, 720 + 264 * 1024 + 1024 + 257 * 8 + 9 * 90),
    ],
)
def test_sizes_are_the_published_ones(name: str, options: dict[str, object], dim: int) -> None:
    task = make_task(name, options)
    assert task.dim == dim == sum(math.prod(shape) for shape in task.contribution_shapes.values())
    assert isinstance(task, BatchedTask)
    assert isinstance(task, Classifier)


@pytest.mark.long
def test_the_start_is_the_same_in_another_process() -> None:
    names = ("cnn", "femnist-cnn", "lstm")
    code = (
        "import torch; torch.manual_seed(5); torch.rand(3); from learning.make_task import make_task\n"
        "from tests.learning.digests import parameters_digest\n"
        f"for name in {names}:\n"
        "    before = torch.get_rng_state(); task = make_task(name, {'initial_seed': 7})\n"
        "    found = parameters_digest(task.initial_parameters()).hex()\n"
        "    print(found, torch.equal(before, torch.get_rng_state()), torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        digests = [parameters_digest(make_task(name, {"initial_seed": one}).initial_parameters()) for one in (7, 8)]
        assert line.split() == [digests[0].hex(), "True", "1"]
        assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes"),
    [
        ("cnn", {"side": 16, "channels": 3, "classes": 4}, (16, 16, 3), 4),
        ("femnist-cnn", {"side": 8, "classes": 5}, (8, 8), 5),
        ("resnet18", {"side": 8, "channels": 3, "groups": 32}, (8, 8, 3), 10),
    ],
)
def test_other_image_shapes(name: str, options: dict[str, object], shape: tuple[int, ...], classes: int) -> None:
    task = make_task(name, {**options, "client_rate": 0.001, "local_steps": 2, "batch_size": 6})
    rng = np.random.default_rng(0)
    data = Dataset(rng.integers(0, 256, (6, *shape), dtype=np.uint8), rng.integers(0, classes, 6))
    start, moved = learnt(task, data)
    assert task.evaluate(moved, data)["loss"] < task.evaluate(start, data)["loss"]
    predicted = task.predict(start, data.features)
    assert np.mean(predicted == data.labels) == task.evaluate(start, data)["accuracy"]
    assert task.options.from_mapping(task.options.to_mapping()) == task.options


def test_lstm_counts_words_alone() -> None:
    """Loss: all but padding. Accuracy: words of the vocabulary, 1 to 7; 8, 9 and 10 are special."""
    task = make_task("lstm", {"vocabulary": 7, "length": 4, "embedding": 3, "hidden": 5})
    data = Dataset(np.array([[9, 1, 2, 3], [9, 4, 8, 0]], dtype=np.int32), np.array([[1, 2, 3, 10], [4, 8, 10, 0]]))
    parameters = task.initial_parameters()
    module = task.module()
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.copy_(torch.from_numpy(parameters[name]))
        logs = functional.log_softmax(module(torch.from_numpy(data.features)), dim=-1).numpy()
    counted = [(row, place) for row in (0, 1) for place in range(4) if data.labels[row, place]]
    loss = -np.mean([logs[row, place, data.labels[row, place]] for row, place in counted])
    credited = [(row, place) for row, place in counted if data.labels[row, place] <= 7]
    accuracy = np.mean([logs[row, place].argmax() == data.labels[row, place] for row, place in credited])
    assert len(counted) == 7
    assert len(credited) == 4
    found = task.evaluate(parameters, data)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["accuracy"] == pytest.approx(accuracy)


def test_lstm_layer_is_the_one_of_the_textbook() -> None:
    """Against torch's own, whose second bias is set to zero."""
    task = make_task("lstm", {"vocabulary": 7, "length": 4, "embedding": 3, "hidden": 5})
    layer = task.module().lstm
    theirs = nn.LSTM(3, 5, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.from_input.T)
        theirs.weight_hh_l0.copy_(layer.from_state.T)
        theirs.bias_ih_l0.copy_(layer.bias)
        theirs.bias_hh_l0.zero_()
        sequence = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(layer(sequence), theirs(sequence)[0], atol=1e-6)


def test_lstm_learns_a_pattern_and_ignores_padding() -> None:
    task = make_task(
        "lstm", {"vocabulary": 4, "length": 6, "embedding": 6, "hidden": 12, "client_rate": 2.0, "local_steps": 150}
    )
    line = np.array([1, 2, 3, 4, 1, 2, 3])
    data = Dataset(np.tile(line[:6], (8, 1)).astype(np.int32), np.tile(line[1:], (8, 1)))
    start, moved = learnt(task, data)
    assert task.evaluate(moved, data)["accuracy"] == 1.0
    nothing = Dataset(data.features, np.zeros((8, 6), dtype=np.int64))
    assert not flatten(task.local_update(start, nothing, update_rng(0, 1, 0), 1.0)).any()


def test_lstm_refuses_what_are_no_words() -> None:
    task = make_task("lstm", {"vocabulary": 7, "length": 5})
    start = task.initial_parameters()
    for data, message in [
        (images(2), "int32"),
        (words(2, length=6), "words and as many labels"),
        (words(2, vocabulary=90), "this task takes 0 to 10"),
        (words(0), "without examples"),
    ]:
        with pytest.raises(ValueError, match=message):
            task.local_update(start, data, update_rng(0, 1, 0), 1.0)


# ------------------------------------------------------------------------------------------- by hand


def by_hand(task: Small, data: Dataset, rows: list[np.ndarray], l2_clip: float) -> dict[str, np.ndarray]:
    """Steps of ``torch.optim.SGD`` on the module itself, with what the method adds to the loss; no dropout."""
    module = task.module()
    start = task.initial_parameters()
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            tensor.copy_(torch.from_numpy(start[name]))
    anchors = [torch.from_numpy(array) for array in start.values()]
    optimizer = torch.optim.SGD(module.parameters(), lr=task.options.client_rate)
    features = torch.from_numpy(data.features).float().unsqueeze(1) / 255
    labels = torch.from_numpy(data.labels)
    for batch in rows:
        loss = functional.cross_entropy(module(features[batch]), labels[batch])
        drift = sum(((tensor - anchor) ** 2).sum() for tensor, anchor in zip(module.parameters(), anchors, strict=True))
        if task.options.method == "fedprox":
            loss = loss + task.options.proximal_weight / 2 * drift
        if "blur" in task.options.method:
            loss = loss + task.options.blur_weight / 2 * torch.clamp(drift - l2_clip**2, min=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    change = {name: (tensor.detach() - torch.from_numpy(start[name])) for name, tensor in module.named_parameters()}
    if "lus" in task.options.method:
        optimizer.zero_grad()
        functional.cross_entropy(module(features), labels).backward()
        for name, tensor in module.named_parameters():
            costs = (tensor.grad * change[name]).abs().flatten()
            kept = max(1, round((1 - task.options.sparsity) * costs.numel()))
            mask = torch.zeros_like(costs)
            mask[costs.topk(kept).indices] = 1
            change[name] = change[name] * mask.reshape(change[name].shape)
    return {name: tensor.numpy() for name, tensor in change.items()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_against_torchs_own_optimizer(method: str) -> None:
    """BLUR's penalty of Eq. 5 is differentiated by torch here."""
    task = small(method=method, dropout=False, batch_size=4, **({} if method == "dp-fedsgd" else {"local_epochs": 3}))
    data, order = images(9), update_rng(0, 1, 2)
    if method == "dp-fedsgd":
        rows = [np.arange(9)]
    else:
        order.permutation(64)  # the masks' seed comes first
        passes = [order.permutation(9) for _ in range(3)]
        rows = [one[start : start + 4] for one in passes for start in (0, 4, 8)]
    found = task.local_update(task.initial_parameters(), data, update_rng(0, 1, 2), 0.15)
    expected = by_hand(task, data, rows, 0.15)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=2e-6)
    if "blur" in method:
        plain = small(dropout=False, batch_size=4, local_epochs=3)
        free = plain.local_update(plain.initial_parameters(), data, update_rng(0, 1, 2), 0.15)
        assert np.linalg.norm(flatten(found)) < np.linalg.norm(flatten(free))


# ------------------------------------------------------------------------------------------- many at once


def start_and_alone(task: TorchTask, data: list[Dataset]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    start = task.initial_parameters()
    alone = [flatten(task.local_update(start, one, update_rng(0, 1, place), 0.1)) for place, one in enumerate(data)]
    return start, np.array(alone)


def options_of(method: str) -> dict[str, object]:
    return {"method": method, "batch_size": 4, **({} if method == "dp-fedsgd" else {"local_epochs": 2})}


@pytest.mark.parametrize("method", METHODS)
def test_threads_give_what_each_computes_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small(**options_of(method))
    start, alone = start_and_alone(task, SOME)
    for threads in (1, 3):
        monkeypatch.setattr(device, "_threads", threads)
        np.testing.assert_array_equal(together(task, start, SOME), alone)


class Shareable(Small):
    """Linear layers and convolutions alone: one of each kind, and one that is used twice."""

    def module(self) -> nn.Module:
        return Layers()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(4, 4, 2, groups=2, dilation=2)
        self.twice = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.25)
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, images: Any) -> Any:
        hidden = torch.tanh(self.second(torch.tanh(self.first(images)))).flatten(1)
        return self.last(self.dropout(torch.tanh(self.twice(torch.tanh(self.twice(hidden))))))


@pytest.mark.parametrize(
    "options",
    [
        {"local_epochs": 1, "batch_size": 9},
        {"local_steps": 1, "batch_size": 3},
        {"method": "dp-fedsgd", "batch_size": 9},
        {"method": "fedprox", "local_steps": 1, "batch_size": 9},
        {"method": "blur", "local_steps": 1, "batch_size": 4},
    ],
    ids=str,
)
def test_one_step_together_equals_steps_alone(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    task = Shareable(Options.from_mapping(options))
    start, alone = start_and_alone(task, SOME)
    monkeypatch.setattr(task, "_train", None)  # no participant steps alone
    for rows in (1, 6, 80):
        monkeypatch.setattr("learning.tasks.torch_task._ROWS_TOGETHER", rows)
        np.testing.assert_allclose(together(task, start, SOME), alone, rtol=1e-3, atol=1e-7)
    assert alone.any(axis=1).all()


@pytest.mark.parametrize(
    "options",
    [{"local_epochs": 2, "batch_size": 9}, {"local_epochs": 1, "batch_size": 4}, {"method": "lus", "local_steps": 1}],
    ids=str,
)
def test_more_than_one_step_is_taken_alone(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    task = Shareable(Options.from_mapping(options))
    start, alone = start_and_alone(task, SOME)
    monkeypatch.setattr(task, "_step_together", None)
    np.testing.assert_array_equal(together(task, start, SOME), alone)


def test_weights_outside_of_linear_layers_and_convolutions_are_not_shared() -> None:
    assert shareable(small()._template) is None
    assert shareable(nn.Linear(2, 2)) is None  # it has no name to be put in the place of
    assert shareable(nn.Sequential(nn.Conv2d(1, 1, 3, padding="same"))) is None
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert shareable(tied) is None
    assert shareable(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Tanh(), nn.Linear(2, 2))) is not None


def test_updates_are_written_where_there_is_room_for_them() -> None:
    task, data = small(), [images(3, 0), images(4, 1)]
    room = np.ones((2, task.dim), dtype=np.float32)
    assert together(task, task.initial_parameters(), data, 1.0, out=room) is room
    np.testing.assert_array_equal(room, start_and_alone(task, data)[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["images", "words"])
def test_models_side_by_side_give_what_each_computes_alone(method: str, kind: str) -> None:
    """What an accelerator does, on the processor: dropout, and participants with fewer examples, included."""
    task: Any
    if kind == "images":
        task, data = small(**options_of(method)), SOME
    else:
        sizes = {"vocabulary": 7, "length": 5, "embedding": 3, "hidden": 4}
        task = make_task("lstm", {**options_of(method), **sizes})
        data = [words(size, seed) for seed, size in enumerate(SIZES)]
    start, alone = start_and_alone(task, data)
    found = np.empty_like(alone)
    tensors = {name: torch.from_numpy(array) for name, array in start.items()}
    task._train_side_by_side(tensors, data, [update_rng(0, 1, place) for place in range(4)], 0.1, found)
    np.testing.assert_allclose(found, alone, rtol=2e-3, atol=3e-6)
    assert alone.any(axis=1).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_small_recurrent_networks_stand_side_by_side(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups of participants of like sizes; a large one takes its steps alone."""
    sizes = {"vocabulary": 7, "length": 5, "embedding": 3, "hidden": 4, "local_epochs": 2, "batch_size": 4}
    task: Any = make_task("lstm", sizes)
    data = [words(size, seed) for seed, size in enumerate((9, 2, 5, 9, 1))]
    start, alone = start_and_alone(task, data)
    monkeypatch.setattr(device, "_threads", threads)
    monkeypatch.setattr("learning.tasks.torch_task._SMALL_SIDE_BY_SIDE", 2)
    with monkeypatch.context() as changed:
        changed.setattr(task, "_train", None)
        np.testing.assert_allclose(together(task, start, data), alone, rtol=2e-3, atol=3e-6)
    monkeypatch.setattr("learning.tasks.torch_task._SMALL", task.dim - 1)
    np.testing.assert_array_equal(together(task, start, data), alone)


def test_without_an_accelerator_asking_for_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    task = small()
    monkeypatch.setattr(device, "_chosen", "cuda")
    with pytest.raises(ImportError, match="torch finds none: choose cpu or auto"):
        task.local_updates(task.initial_parameters(), [images(2)], [update_rng(0, 1, 0)])
    monkeypatch.setattr(device, "_chosen", "auto")
    assert task.local_updates(task.initial_parameters(), [images(2)], [update_rng(0, 1, 0)]).any()


def test_evaluation_in_blocks_and_on_threads_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = small(), images(23)
    start = task.initial_parameters()
    whole, classes = task.evaluate(start, data), task.predict(start, data.features)
    monkeypatch.setattr(Small, "rows_a_block", 4)
    monkeypatch.setattr(device, "_threads", 3)
    cut = task.evaluate(start, data)
    assert cut["accuracy"] == whole["accuracy"] == np.mean(classes == data.labels)
    assert cut["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    np.testing.assert_array_equal(task.predict(start, data.features), classes)


# ------------------------------------------------------------------------------------------- randomness


def test_dropout_comes_from_the_source_of_the_order_alone() -> None:
    task, data = small(local_epochs=3), images(9)
    start = task.initial_parameters()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = flatten(task.local_update(start, data, update_rng(0, 1, 0), 1.0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, flatten(task.local_update(start, data, update_rng(0, 1, 0), 1.0)))
    assert (first != flatten(task.local_update(start, data, update_rng(0, 1, 1), 1.0))).any()
    plain = small(local_epochs=3, dropout=False)
    assert (first != flatten(plain.local_update(start, data, update_rng(0, 1, 0), 1.0))).any()
    assert task.evaluate(start, data) == plain.evaluate(start, data)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_a_mask_keeps_what_it_says_and_keeps_the_mean(share: float) -> None:
    """Five standard errors of a fixed draw."""
    layer = Dropout(share)
    layer.shape = (50, 40)
    mask = layer.draw(10, torch.Generator().manual_seed(0))
    assert mask.shape == (10, 50, 40)
    kept = mask[mask != 0].numpy()
    np.testing.assert_allclose(kept, 1 / (1 - share) if share < 1 else 0, rtol=1e-4)
    assert float((mask == 0).float().mean()) == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / 20_000))


def test_a_mask_by_channel_has_one_value_a_channel() -> None:
    layer = Dropout(0.5, by_channel=True)
    layer(torch.zeros(2, 8, 3, 3))
    assert layer.draw(4, torch.Generator().manual_seed(0)).shape == (4, 8, 1, 1)


# ------------------------------------------------------------------------------------------- a user's own


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)

    def forward(self, values: Any) -> Any:
        return functional.dropout(self.linear(values.flatten(1)), 0.5, self.training)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: nn.Sequential(nn.Flatten()), "must have parameters"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3).requires_grad_(False)), "that require gradients"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3).double()), r"1.weight is torch.float64.*\.float\(\)"),
        (Functional, "take modules nn.Dropout"),
    ],
)
def test_a_module_that_cannot_be_trained_here_is_refused(module: Any, message: str) -> None:
    class Wrong(Small):
        inputs = TorchTask.inputs

        def module(self) -> nn.Module:
            return module()  # type: ignore[no-any-return]

    with pytest.raises(TypeError, match=message):
        Wrong(Options())


def test_a_shape_that_is_a_number_says_how_it_is_written() -> None:
    class Wrong(Small):
        example_shape = 8  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"its example_shape is 8: write \(8,\)"):
        Wrong(Options())


def test_one_weight_in_two_layers() -> None:
    class Task(Small):
        def inputs(self, features: Any) -> Any:
            return super().inputs(features).flatten(1)

        def module(self) -> nn.Module:
            made = nn.Sequential(nn.Linear(36, 36), nn.Tanh(), nn.Linear(36, 36), nn.Tanh(), nn.Linear(36, 3))
            made[2].weight = made[0].weight
            return made

    task = Task(Options(local_steps=1))
    assert task.dim == 36 * 36 + 2 * 36 + 3 * 37
    data = [images(5), images(4, 1)]
    start, alone = start_and_alone(task, data)
    assert list(start) == list(task.contribution_shapes)
    np.testing.assert_allclose(together(task, start, data), alone, rtol=1e-3, atol=1e-7)


def test_one_array_under_two_names_and_one_that_nothing_uses() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
            self.unused = nn.Parameter(torch.ones(2))

        def forward(self, values: Any) -> Any:
            return values.flatten(1)[:, :3] * 0 + (self.first + self.second)

    class Task(Small):
        def module(self) -> nn.Module:
            return Odd()

    task = Task(Options(batch_size=9, local_epochs=1, client_rate=1.0))
    update = task.local_update(task.initial_parameters(), images(9), update_rng(0, 1, 0), 1.0)
    np.testing.assert_array_equal(update["first"], update["second"])
    assert np.bincount(images(9).labels, minlength=3) / 9 - 1 / 3 == pytest.approx(update["first"], abs=1e-6)
    assert not update["unused"].any()


def test_ignored_labels_count_nowhere() -> None:
    task = small()
    outputs, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, IGNORED])
    assert float(task.loss(outputs, labels)) == pytest.approx(
        float(functional.cross_entropy(outputs[:3], labels[:3])), rel=1e-6
    )
    assert float(task.loss(outputs, torch.full((4,), IGNORED))) == 0
