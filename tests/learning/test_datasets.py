"""The shipped subset: exact rows, little memory, one clear error over a damaged file."""

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from learning import datasets
from learning.blocks import DatasetError
from learning.datasets import Dataset
from tests.support.commands import says

SUBSET = "fashion-mnist-subset"


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
    with pytest.raises(DatasetError, match=r"is unknown\. Use one of fashion-mnist-subset, a name that"):
        datasets.load_dataset("MNIST?")
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path))
    with pytest.raises(DatasetError, match=f"not prepared in {tmp_path} yet. Make it: sordino data prepare mnist"):
        datasets.load_dataset("mnist")
    for name, told in (
        ("nope", r"'nope' is unknown\. Use one of fashion-mnist-subset, mnist, .*, own, or FORMAT:PATH"),
        ("own", "each participant has its own data"),
        ("app", "each participant has its own data"),
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
