"""Prepared sets: what is written is what is read, a part at a time, and no change goes unseen."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from learning import datasets
from learning.blocks import Block, Blocks, DatasetError
from learning.partitions import cut_dataset
from learning.prepared_data import PreparedSet, open_prepared, prepared_sets, write_prepared

ABOUT = {"title": "A set", "licence": "CC0", "source": {"what": "made up"}}


def some_blocks(users: int = 6, side: int = 4) -> Blocks:
    def train() -> object:
        for user in range(users):
            count = user + 5
            images = np.full((count, side, side), user, np.uint8)
            yield Block.of(images, np.arange(count, dtype=np.int64) % 3, f"user {user}")

    def test() -> object:
        yield Block.of(np.zeros((2, side, side), np.uint8), np.array([1, 1]), "user 99")

    return Blocks({"train": train, "test": test}, "made up")  # type: ignore[dict-item]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedSet:
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path))
    return write_prepared(tmp_path / "my-set", some_blocks(), ABOUT)


def test_what_was_written_is_read(prepared: PreparedSet) -> None:
    blocks = some_blocks()
    train, test = datasets.load_dataset("my-set")
    features, labels = blocks.rows("train", None)
    np.testing.assert_array_equal(train.features, features)
    np.testing.assert_array_equal(train.labels, labels)
    np.testing.assert_array_equal(datasets.load_users("my-set"), blocks.users("train"))
    np.testing.assert_array_equal(datasets.load_labels("my-set", "test"), [1, 1])
    assert len(test) == 2
    some = datasets.load_partition("my-set", [7, 0, 7])
    np.testing.assert_array_equal(some.features, features[[7, 0, 7]])
    assert some.features.base is None  # a copy: the file may go
    with pytest.raises(DatasetError, match="has 45 rows"):
        datasets.load_partition("my-set", [45])


def test_the_manifest_says_what_is_there(prepared: PreparedSet) -> None:
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    assert manifest["train"] == {"examples": 45, "users": 6, "classes": 3}
    assert manifest["test"] == {"examples": 2, "users": 1, "classes": 1}
    assert manifest["title"] == "A set"
    assert manifest["arrays"]["train_features"]["shape"] == [45, 4, 4]
    assert (prepared.folder.stat().st_mode & 0o777) == 0o755
    assert datasets.dataset_identity("my-set") == manifest["sha256"] == prepared.sha256


def test_equal_content_has_an_equal_digest_and_other_content_another(prepared: PreparedSet, tmp_path: Path) -> None:
    again = write_prepared(tmp_path / "elsewhere", some_blocks(), {"title": "Another title"})
    assert again.sha256 == prepared.sha256
    assert write_prepared(tmp_path / "elsewhere", some_blocks(users=7), ABOUT).sha256 != prepared.sha256
    assert [one.folder.name for one in prepared_sets(tmp_path)] == ["elsewhere", "my-set"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "my-set"]  # no work folder is left


def test_a_failed_preparation_leaves_the_old_set(prepared: PreparedSet, tmp_path: Path) -> None:
    uneven = [Block.of(np.zeros((2, size), np.float32), np.zeros(2, np.int64)) for size in (3, 4)]
    with pytest.raises(ValueError, match=r"a block of train features is float32\[2, 4\]"):
        write_prepared(tmp_path / "my-set", Blocks({"train": lambda: iter(uneven)}, ""), ABOUT)
    assert open_prepared("my-set").sha256 == prepared.sha256
    assert [path.name for path in tmp_path.iterdir()] == ["my-set"]


def test_a_set_without_users_or_test(prepared: PreparedSet, tmp_path: Path) -> None:
    rows = Block.of(np.zeros((9, 2), np.float32), np.zeros(9, np.int64))
    write_prepared(tmp_path / "plain", Blocks({"train": lambda: iter([rows])}, ""), ABOUT)
    assert datasets.load_users("plain") is None
    assert not datasets.has_part("plain", "test")
    with pytest.raises(DatasetError, match="no part 'test'"):
        datasets.load_part("plain", "test")
    with pytest.raises(ValueError, match="needs a data set that says whose each example is"):
        cut_dataset("plain", "natural", 1)


@pytest.mark.parametrize("member", ["train_features", "train_labels", "train_users"])
def test_one_changed_bit_is_seen(prepared: PreparedSet, member: str) -> None:
    file = prepared.folder / f"{member}.npy"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{member}\.npy is damaged .* make it again: sordino data prepare my-set"):
        datasets.load_part("my-set", "train") if member != "train_users" else datasets.load_users("my-set")
    file.unlink()
    with pytest.raises(DatasetError, match=rf"{member}\.npy is no such file or directory"):
        datasets.load_part("my-set", "train") if member != "train_users" else datasets.load_users("my-set")


@pytest.mark.parametrize(
    ("array", "key", "value"),
    [
        ("train_labels", "shape", None),
        ("train_labels", "shape", [-1]),
        ("train_features", "shape", [2.0, 3]),
        ("train_users", "shape", [10**30]),
        ("test_features", "dtype", "object"),
    ],
)
def test_a_manifest_whose_arrays_are_none(prepared: PreparedSet, array: str, key: str, value: object) -> None:
    """Found by fuzzing: a manifest without a shape ended whatever opened the set."""
    file = prepared.folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["arrays"][array] = {**manifest["arrays"][array], key: value}
    file.write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match=rf"manifest\.json is not the manifest of a prepared set \('{array}'\)"):
        datasets.load_part("my-set", "train")


@pytest.mark.parametrize(
    "change",
    [
        *({"format": "2"}, {"arrays": {}}, {"arrays": []}, {"sha256": "0"}, {"train": {}}, {"test": {"examples": 1}}),
        {"arrays": {"train_labels": {"sha256": "\ud800"}}},
    ],
)
def test_another_manifest_is_refused(prepared: PreparedSet, change: dict[str, object]) -> None:
    file = prepared.folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DatasetError, match=r"manifest\.json is not the manifest of a prepared set"):
        datasets.load_labels("my-set")
    file.write_text("{")
    with pytest.raises(DatasetError, match=r"manifest\.json can't be read"):
        datasets.load_labels("my-set")


def test_an_array_of_objects_is_never_loaded(prepared: PreparedSet) -> None:
    """Even where the digests were written to match."""
    file, path = prepared.folder / "manifest.json", prepared.folder / "train_labels.npy"
    np.save(path, np.array([print] * 45, dtype=object), allow_pickle=True)
    manifest = json.loads(file.read_text())
    manifest["arrays"]["train_labels"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = "".join(f"{name} {told['sha256']}\n" for name, told in sorted(manifest["arrays"].items()))
    manifest["sha256"] = hashlib.sha256(f"sordino prepared data 1\n{lines}".encode()).hexdigest()
    file.write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match=r"train_labels\.npy is not an array"):
        datasets.load_labels("my-set")


def test_few_rows_of_a_large_set_take_little_memory(prepared: PreparedSet, tmp_path: Path) -> None:
    write_prepared(tmp_path / "large", some_blocks(users=60, side=100), ABOUT)  # 21 MB
    tracemalloc.start()
    parts = cut_dataset("large", "natural", 5)
    held = datasets.load_partition("large", parts[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(np.unique(held.features)) == 1  # one user's
    assert peak < 4_000_000


def test_cuts_by_name(prepared: PreparedSet) -> None:
    users = datasets.load_users("my-set")
    parts = cut_dataset("my-set", "natural", 6)
    assert [np.unique(users[part]).tolist() for part in parts] == [[user] for user in range(6)]
    assert sum(len(part) for part in cut_dataset("my-set", "iid", 4)) == 45
    labels = datasets.load_labels("my-set")
    assert max(len(np.unique(labels[part])) for part in cut_dataset("my-set", "shards", 3, shards=1)) <= 2
    with pytest.raises(ValueError, match="take at most 6"):
        cut_dataset("my-set", "natural", 7)
