"""Checkpoints: exact round trip, the old file or the new one, damage refused."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from learning.checkpoints import Checkpoint, CheckpointError, load_arrays, load_checkpoint, load_model, save_checkpoint
from learning.parameters import flatten
from learning.server_optimizers import ServerOptimizer
from tests.support.ends_and_full_disks import no_room


def _checkpoint(seed: int = 0) -> Checkpoint:
    rng = np.random.default_rng(seed)
    parameters = {"weights": rng.normal(size=(5, 3)).astype(np.float32), "bias": rng.normal(size=3).astype(np.float32)}
    return Checkpoint(parameters, {"velocity": rng.normal(size=18)}, {"round": seed, "study": "a/b", "x": [1.5]})


def _assert_same(first: Checkpoint, second: Checkpoint) -> None:
    assert list(first.parameters) == list(second.parameters)
    for name in first.parameters:
        np.testing.assert_array_equal(first.parameters[name], second.parameters[name])
        assert second.parameters[name].dtype == np.float32
    assert first.metadata == second.metadata
    np.testing.assert_array_equal(first.optimizer_state["velocity"], second.optimizer_state["velocity"])


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    digest = save_checkpoint(path, _checkpoint())
    loaded = load_checkpoint(path)
    _assert_same(_checkpoint(), loaded)
    ServerOptimizer().load_state(loaded.optimizer_state)
    assert len(digest) == 64
    first_bytes = path.read_bytes()
    assert save_checkpoint(path, loaded) == digest
    assert path.read_bytes() == first_bytes
    assert save_checkpoint(path, _checkpoint(1)) != digest
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    save_checkpoint(path, Checkpoint(_checkpoint().parameters))
    assert load_checkpoint(path).optimizer_state == {}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, _checkpoint(1))
    monkeypatch.setattr(os, call, no_room)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, _checkpoint(2))
    monkeypatch.undo()
    _assert_same(_checkpoint(1), load_checkpoint(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_disk_without_room_is_an_error_of_the_system(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, _checkpoint(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*model\.safetensors'"):
            save_checkpoint(path, Checkpoint({"weights": np.zeros(1 << 16, np.float32)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _assert_same(_checkpoint(1), load_checkpoint(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tmp_path / "none" / "model.safetensors", _checkpoint())


def test_content_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        calls.append("fsync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync file")
        fsync(descriptor)

    def record_replace(source: str, target: Path) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    save_checkpoint(tmp_path / "model.safetensors", _checkpoint())
    assert calls == ["fsync file", "replace", "fsync folder"]


def test_every_cut_and_flip_is_refused_or_harmless(tmp_path: Path) -> None:
    """A flipped byte either raises one kind of error or touches nothing that is read (padding)."""
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, _checkpoint())
    content = path.read_bytes()
    refused = 0
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load_checkpoint(path)
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        try:
            _assert_same(_checkpoint(), load_checkpoint(path))
        except CheckpointError:
            refused += 1
    assert refused > len(range(0, len(content), 3)) / 2


def test_other_programs_read_it_and_change_nothing_unseen(tmp_path: Path) -> None:
    path, made = tmp_path / "model.safetensors", _checkpoint()
    save_checkpoint(path, made)
    arrays = load_file(path)
    assert arrays.keys() == {"weights", "bias", "optimizer/velocity"}
    np.testing.assert_array_equal(arrays["weights"], made.parameters["weights"])
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
    save_file(arrays, path, about)
    _assert_same(made, load_checkpoint(path))
    save_file(arrays | {"bias": arrays["bias"] + 1}, path, about)
    with pytest.raises(CheckpointError, match="digest"):
        load_checkpoint(path)
    save_file(arrays, path)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        load_checkpoint(path)


def test_arrays_to_begin_from(tmp_path: Path) -> None:
    """By name, in the order asked for; half precision too."""
    path, shapes = tmp_path / "model.safetensors", {"bias": (3,), "weights": (5, 3)}
    made = _checkpoint().parameters
    save_file({name: one.astype(np.float16) for name, one in made.items()} | {"more": np.zeros(2)}, path)
    found = load_arrays(path, shapes)
    assert list(found) == ["bias", "weights"]
    np.testing.assert_array_equal(found["bias"], made["bias"].astype(np.float16))
    assert {one.dtype for one in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"bias": np.zeros(3)}, r"model.safetensors has bias \[3\]; the model has bias \[3\], weights \[5, 3\]"),
        ({"bias": np.zeros(3), "weights": np.zeros((3, 5))}, r"has bias \[3\], weights \[3, 5\]"),
        ({"bias": np.full(3, np.nan), "weights": np.zeros((5, 3))}, "holds NaN or infinity"),
        (None, "is no .safetensors file of float16, float32 or float64"),
    ],
)
def test_arrays_that_are_not_the_models(tmp_path: Path, arrays: dict[str, np.ndarray] | None, told: str) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match=f"there is no file {path}"):
        load_arrays(path, {"bias": (3,)})
    if arrays is None:
        path.write_bytes(b"\x80\x04pickle")
    else:
        save_file(arrays, path)
    with pytest.raises(CheckpointError, match=told):
        load_arrays(path, {"bias": (3,), "weights": (5, 3)})


def test_names_that_a_file_cannot_hold(tmp_path: Path) -> None:
    parameters = {"optimizer/velocity": np.zeros(1, np.float32)}
    with pytest.raises(CheckpointError, match="rename"):
        save_checkpoint(tmp_path / "model.safetensors", Checkpoint(parameters, {"velocity": np.zeros(1)}))
    (tmp_path / "round-000001.npz").touch()
    with pytest.raises(CheckpointError, match="earlier release"):
        load_checkpoint(tmp_path / "round-000001.npz")


def test_missing_file_and_bad_metadata(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.safetensors")
    for value in (float("nan"), object(), b"bytes"):
        with pytest.raises(CheckpointError, match="not JSON"):
            save_checkpoint(tmp_path / "m.safetensors", Checkpoint(_checkpoint().parameters, {}, {"value": value}))
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_read_by_name_and_says_where_it_comes_from(tmp_path: Path) -> None:
    path, made = tmp_path / "model.safetensors", _checkpoint()
    about = {"study": "clinics", "task": "rows:Rows", "round": 40}
    save_checkpoint(path, Checkpoint(made.parameters, made.optimizer_state, about))
    model = load_model(str(path))
    assert (model.study, model.task, model.round) == ("clinics", "rows:Rows", 40)
    assert list(model.parameters) == list(made.parameters)
    model.save(tmp_path / "mine.safetensors")
    again = load_model(tmp_path / "mine.safetensors")
    assert (again.study, again.task, again.round) == (model.study, model.task, model.round)
    np.testing.assert_array_equal(flatten(again.parameters), flatten(made.parameters))
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(made.parameters["bias"].tobytes())] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(path)


@pytest.mark.parametrize("round_", ["x", None, [1], 1.5, True])
def test_a_model_of_no_round_is_no_model(round_: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, Checkpoint({"a": np.zeros(2, np.float32)}, {}, {"round": round_}))
    with pytest.raises(CheckpointError, match="its round is no whole number"):
        load_model(path)
