"""The shipped subset and the IDX reader: exact rows, little memory, one clear error over a damaged file."""

import gzip
import hashlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from learning import datasets
from learning.blocks import DatasetError, Part
from learning.datasets import Dataset
from tests.support.commands import says

SUBSET = "fashion-mnist-subset"
FULL = "fashion-mnist-full"
needs_full = pytest.mark.skipif(
    datasets.resolve_dataset("fashion-mnist") != FULL,
    reason="the Debian package dataset-fashion-mnist is not installed",
)


def test_shipped_file_is_the_pinned_one_with_its_licence() -> None:
    content = datasets.SUBSET_FILE.read_bytes()
    assert hashlib.sha256(content).hexdigest() == datasets.SUBSET_SHA256
    assert len(content) < 5_000_000
    licence = (datasets.SUBSET_FILE.parent / "fashion_mnist_LICENSE.txt").read_text()
    says(licence, "The MIT License", "Copyright (c) 2017 Zalando SE")


def test_subset_is_balanced_bytes() -> None:
    train, test = datasets.load_dataset(SUBSET)
    assert train.features.shape == (6_000, 28, 28)
    assert test.features.shape == (2_000, 28, 28)
    assert train.features.dtype == test.features.dtype == np.uint8
    assert train.labels.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(train.labels), np.full(10, 600))
    np.testing.assert_array_equal(np.bincount(test.labels), np.full(10, 200))
    np.testing.assert_array_equal(datasets.load_labels(SUBSET), train.labels)
    np.testing.assert_array_equal(datasets.load_labels(SUBSET, "test"), test.labels)


def test_load_partition_gives_the_rows_in_order() -> None:
    train = datasets.load_part(SUBSET, "train")
    rows = np.array([5_999, 0, 17])
    part = datasets.load_partition(SUBSET, rows)
    np.testing.assert_array_equal(part.features, train.features[rows])
    np.testing.assert_array_equal(part.labels, train.labels[rows])
    assert part.features.base is None  # a copy: it does not keep the whole set alive
    assert len(datasets.load_partition(SUBSET, [])) == 0


def test_load_partition_keeps_little() -> None:
    datasets.load_partition(SUBSET, [0])
    tracemalloc.start()
    part = datasets.load_partition(SUBSET, np.arange(600))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(part) == 600
    assert held < 1_000_000
    assert peak < 20_000_000  # the file, and the training images as bytes


@pytest.mark.parametrize("indices", [[-1], [6_000], [0.5], [[1, 2]], ["a"], [True, False]])
def test_bad_indices_are_refused(indices: list[object]) -> None:
    with pytest.raises(DatasetError, match="indices"):
        datasets.load_partition(SUBSET, indices)


def test_unknown_name_lists_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match="fashion-mnist, fashion-mnist-full, fashion-mnist-subset"):
        datasets.load_dataset("MNIST?")
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path))
    with pytest.raises(DatasetError, match=f"not prepared in {tmp_path} yet. Make it: sordino data prepare mnist"):
        datasets.load_dataset("mnist")
    for name, told in (
        ("nope", r"'nope' is unknown\. Use one of fashion-mnist, .*, mnist, .*, own, or FORMAT:PATH"),
        ("own", "each participant names its own file"),
    ):
        with pytest.raises(DatasetError, match=told):
            datasets.load_dataset(name)


def test_damaged_or_missing_subset_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "subset.npz"
    content = bytearray(datasets.SUBSET_FILE.read_bytes())
    content[1_000_000] ^= 1
    damaged.write_bytes(content)
    monkeypatch.setattr(datasets, "SUBSET_FILE", damaged)
    with pytest.raises(DatasetError, match=r"subset\.npz is damaged .*; reinstall sordino"):
        datasets.load_dataset(SUBSET)
    damaged.unlink()
    with pytest.raises(DatasetError, match=r"subset\.npz: No such file or directory; reinstall sordino"):
        datasets.load_part(SUBSET, "test")


def test_dataset_refuses_what_does_not_match() -> None:
    images, labels = np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.int64)
    for features, wrong, told in (
        (images, labels[:2], "do not match 2 labels"),
        (images, labels.astype(np.int32), "labels are int32"),
        (images.astype(np.float64), labels, "features are float64"),
        (images, np.zeros((3, 2, 1), np.int64), r"labels are int64\[3, 2, 1\]"),
    ):
        with pytest.raises(DatasetError, match=told):
            Dataset(features, wrong)  # type: ignore[arg-type]


def test_sequences_have_a_label_for_each_token() -> None:
    words = Dataset(np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(1, 7).reshape(2, 3))
    assert len(words) == 2
    np.testing.assert_array_equal(words.take([1]).labels, [[4, 5, 6]])


# The full set's reader, on small files of the same format.

ROWS = 2_345  # not a multiple of the reader's block


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets, "FULL_FOLDER", tmp_path)
    monkeypatch.setattr(datasets, "IDX_COUNTS", {"train": ROWS, "test": 10})
    rng = np.random.default_rng(0)
    for part, count in (("train", ROWS), ("t10k", 10)):
        images = rng.integers(0, 256, count * 784, dtype=np.uint8).tobytes()
        header = b"\0\0\x08\x03" + count.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        for name, content in (
            (f"{part}-images-idx3-ubyte.gz", header + images),
            (f"{part}-labels-idx1-ubyte.gz", b"\0\0\x08\x01" + count.to_bytes(4, "big") + labels),
        ):
            (tmp_path / name).write_bytes(gzip.compress(content, 1))
    return tmp_path


def test_idx_rows_all_and_chosen(folder: Path) -> None:
    assert datasets.resolve_dataset("fashion-mnist") == FULL
    train, test = datasets.load_dataset("fashion-mnist")
    assert train.features.shape == (ROWS, 28, 28)
    assert len(test) == 10
    content = gzip.decompress((folder / "train-images-idx3-ubyte.gz").read_bytes())
    np.testing.assert_array_equal(train.features.reshape(-1), np.frombuffer(content, np.uint8)[16:])
    rows = np.array([2_344, 0, 1_000, 999, 0])
    part = datasets.load_partition(FULL, rows)
    np.testing.assert_array_equal(part.features, train.features[rows])
    np.testing.assert_array_equal(part.labels, rows % 10)


def _flip_inside(content: bytes) -> bytes:
    return content[:5_000] + bytes([content[5_000] ^ 255]) + content[5_001:]


def _repack(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: gzip.compress(change(gzip.decompress(content)), 1)


@pytest.mark.parametrize(
    "damage",
    [
        _flip_inside,
        lambda content: content[: len(content) // 2],
        lambda content: content[:-6],  # the checksum cut
        lambda content: b"not gzip at all",
        lambda content: b"",
        _repack(lambda raw: raw[:-1]),
        _repack(lambda raw: raw + b"x"),
        _repack(lambda raw: raw[:10]),
        _repack(lambda raw: b"\0\0\x0d" + raw[3:]),
        _repack(lambda raw: raw[:4] + (2).to_bytes(4, "big") + raw[8:]),
    ],
)
def test_damaged_idx_is_one_clear_error(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    for load in (lambda: datasets.load_dataset(FULL), lambda: datasets.load_partition(FULL, [3])):
        with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte\.gz is .*dataset-fashion-mnist"):
            load()


def test_labels_out_of_range_are_refused(folder: Path) -> None:
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1] + b"\x0a"))
    with pytest.raises(DatasetError, match="labels above 9"):
        datasets.load_part(FULL, "test")


def test_without_the_full_set_the_subset_is_taken(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert datasets.resolve_dataset("fashion-mnist") == SUBSET
    assert len(datasets.load_part("fashion-mnist", "train")) == 6_000
    with pytest.raises(DatasetError, match="missing"):
        datasets.load_dataset(FULL)


@needs_full
@pytest.mark.parametrize(("part", "count"), [("train", 600), ("test", 200)])
def test_subset_is_cut_from_the_full_set(part: Part, count: int) -> None:
    full, subset = datasets.load_part(FULL, part), datasets.load_part(SUBSET, part)
    first = [np.flatnonzero(full.labels == label)[:count] for label in range(datasets.CLASSES)]
    cut = full.take(np.sort(np.concatenate(first)))
    np.testing.assert_array_equal(cut.features, subset.features)
    np.testing.assert_array_equal(cut.labels, subset.labels)


@needs_full
def test_rows_of_the_full_set_are_read_in_little_memory() -> None:
    tracemalloc.start()
    part = datasets.load_partition(FULL, [59_999, 0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.labels.tolist() == [5, 9]
    assert peak < 5_000_000
