"""Published formats on small files of exactly these formats: right rows, right way up, and one clear error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from learning import datasets
from learning.blocks import DatasetError
from learning.published import identity_of
from learning.vocabulary import Vocabulary
from tests.support.published_files import cifar_rows, write_cifar, write_leaf

# ---------------------------------------------------------------------------------------------- CIFAR-10


def test_binary_version_of_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    name = f"cifar10:{tmp_path}"
    train, test = datasets.load_dataset(name)
    assert train.features.shape == (35, 32, 32, 3)
    assert train.features.dtype == np.uint8
    rows, labels = cifar_rows(2)  # the third batch
    np.testing.assert_array_equal(train.labels[14:21], labels)
    for colour in range(3):  # planes of 1,024, row by row
        plane = rows[4, colour * 1024 : (colour + 1) * 1024].reshape(32, 32)
        np.testing.assert_array_equal(train.features[18, :, :, colour], plane)
    np.testing.assert_array_equal(test.labels, cifar_rows(5)[1])
    np.testing.assert_array_equal(datasets.load_labels(name), train.labels)
    assert datasets.count_examples(name) == 35
    assert datasets.load_users(name) is None
    some = datasets.load_partition(name, [34, 0, 18, 0])
    np.testing.assert_array_equal(some.features, train.features[[34, 0, 18, 0]])
    np.testing.assert_array_equal(some.labels, train.labels[[34, 0, 18, 0]])
    assert datasets.load_partition(name, []).features.shape == (0, 32, 32, 3)
    with pytest.raises(DatasetError, match="has 35 rows"):
        datasets.load_partition(name, [35])


def test_damaged_or_missing_cifar_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"doesn't hold CIFAR-10's binary version: put data_batch_1\.bin to"):
        datasets.load_part(f"cifar10:{tmp_path}", "train")
    write_cifar(tmp_path)
    file = tmp_path / "data_batch_4.bin"
    content = file.read_bytes()
    for bad, why in ((content[:-1], "a multiple of 3073"), (b"\x0a" + content[1:], "classes above 9"), (b"", "0 b")):
        file.write_bytes(bad)
        with pytest.raises(DatasetError, match=rf"data_batch_4\.bin .*{why}"):
            datasets.load_part(f"cifar10:{tmp_path}", "train")


# ------------------------------------------------------------------------------------------------- LEAF


def blank_with_a_dot(place: int) -> list[float]:
    """An image of LEAF: 1.0 where nothing is written."""
    pixels = [1.0] * 784
    pixels[place] = 0.2
    return pixels


def test_leaf_has_ink_on_nothing(tmp_path: Path) -> None:
    users = {f"f{n:04}": ([blank_with_a_dot(28 * n + k) for k in range(n + 1)], [n] * (n + 1)) for n in range(4)}
    write_leaf(tmp_path / "train" / "all_data_0.json", {user: users[user] for user in ("f0001", "f0003")})
    write_leaf(tmp_path / "train" / "all_data_1.json", {user: users[user] for user in ("f0000", "f0002")})
    write_leaf(tmp_path / "test" / "all_data_0.json", {"f0001": users["f0001"]})
    name = f"leaf:{tmp_path}"
    train, test = datasets.load_dataset(name)
    assert train.features.shape == (10, 28, 28)
    assert train.features.dtype == np.uint8
    assert int(train.features[0].max()) == 204  # (1 - 0.2) x 255
    assert train.features[0].sum() == 204  # the rest is 0
    assert train.features[0, 1, 0] == 204
    np.testing.assert_array_equal(datasets.load_users(name), [0, 0, 1, 1, 1, 1, 2, 3, 3, 3])
    np.testing.assert_array_equal(train.labels, [1, 1, 3, 3, 3, 3, 0, 2, 2, 2])
    np.testing.assert_array_equal(test.labels, [1, 1])
    np.testing.assert_array_equal(datasets.load_partition(name, [9, 0]).features, train.features[[9, 0]])
    one = f"leaf:{tmp_path / 'train' / 'all_data_0.json'}"
    assert datasets.count_examples(one) == 6
    assert not datasets.has_part(one, "test")
    with pytest.raises(DatasetError, match=r"no part 'test': name a file of test examples in \[data\] test"):
        datasets.load_part(one, "test")


def test_leaf_with_other_features(tmp_path: Path) -> None:
    users = {"one": ([[0.5, -3.0], [1, 2]], [1, 0]), "nobody": ([], []), "two": ([[4, 5]], [2])}
    write_leaf(tmp_path / "a.json", users)
    data = datasets.load_part(f"leaf:{tmp_path}", "train")
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features, [[0.5, -3.0], [1, 2], [4, 5]])
    np.testing.assert_array_equal(datasets.load_users(f"leaf:{tmp_path}"), [0, 0, 1])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"num_samples": [2]', '"num_samples": [3]'),
        lambda text: text.replace("[1, 0]", "[1, 0, 2]"),
        lambda text: text.replace("[1, 0]", "[1, 0.5]"),
        lambda text: text.replace("[0.5, 1.0]", "[0.5]"),
        lambda text: text.replace("[0.5, 1.0]", '"to be or not"'),
        lambda text: text.replace("user_data", "data"),
        lambda text: "[1]",
        # Found by fuzzing: users in a list.
        lambda text: text.replace('["one"]', "[1]").replace('{"one": {', "[{").replace("]}}}", "]}]}"),
        lambda text: "[" * 100_000,
        lambda text: text.replace("[0.5, 1.0]", f"[0.5, {'9' * 400}]"),
        lambda text: text.replace("[1, 0]", f"[1, {10**30}]"),
        lambda text: text.replace("[1, 0]", "[1, 1e400]"),
    ],
)
def test_damaged_leaf_is_one_clear_error(change: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_leaf(file, {"one": ([[0.5, 1.0], [1.5, 2.0]], [1, 0])})
    assert datasets.count_examples(f"leaf:{tmp_path}") == 2
    file.write_text(change(file.read_text()))
    with pytest.raises(DatasetError, match=r"a\.json isn't LEAF's JSON"):
        datasets.count_examples(f"leaf:{tmp_path}")


# --------------------------------------------------------------------------------- TensorFlow Federated


def write_emnist(file: Path, writers: dict[str, int], *, columns: bool = False) -> None:
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    with h5py.File(file, "w") as opened:
        for number, (writer, count) in enumerate(writers.items()):
            pixels = np.ones((count, 28, 28), np.float32)
            pixels[:, number, 5] = 0.0
            label = np.arange(count, dtype=np.int32) + number
            group = opened.create_group(f"examples/{writer}")
            group["pixels"], group["label"] = pixels, label[:, None] if columns else label


@pytest.mark.parametrize("columns", [False, True])
def test_federated_emnist_by_writer(columns: bool, tmp_path: Path) -> None:
    write_emnist(tmp_path / "fed_emnist_train.h5", {"f0001_41": 3, "f0000_14": 2, "f0002_00": 6}, columns=columns)
    write_emnist(tmp_path / "fed_emnist_test.h5", {"f0000_14": 1}, columns=columns)
    for name in (f"femnist:{tmp_path}", f"femnist:{tmp_path / 'fed_emnist_train.h5'}"):
        train, test = datasets.load_dataset(name)
        assert train.features.shape == (11, 28, 28)
        assert (train.features.dtype, len(test)) == (np.uint8, 1)
        np.testing.assert_array_equal(
            datasets.load_users(name), [0] * 2 + [1] * 3 + [2] * 6
        )  # HDF5 lists groups by name
        np.testing.assert_array_equal(train.labels, [1, 2, 0, 1, 2, 2, 3, 4, 5, 6, 7])
        assert train.features[0].sum() == 255  # ink on nothing
        assert train.features[0, 1, 5] == 255
        np.testing.assert_array_equal(datasets.load_partition(name, [10, 1]).labels, [7, 2])
    with pytest.raises(DatasetError, match="isn't in the format"):
        datasets.load_part(f"stackoverflow:{_with_words(tmp_path / 'fed_emnist_train.h5')}", "train")
    (tmp_path / "fed_emnist_train.h5").write_bytes(b"nothing of the kind")
    with pytest.raises(DatasetError, match=r"fed_emnist_train\.h5 isn't in the format"):
        datasets.load_part(f"femnist:{tmp_path}", "train")


SECRET = b"what lies in another file of this machine"


def _elsewhere(kind: str, folder: Path) -> None:
    """A set of one writer, and of one user, something of whose content lies elsewhere, or nowhere."""
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    write_emnist(folder / "other.h5", {"w": 2})
    raw = folder / "raw.bin"
    raw.write_bytes(SECRET + bytes(2 * 28 * 28 * 4))
    _with_words(folder / "stackoverflow_train.h5")
    for name, member, item, shape in (
        ("fed_emnist_train", "pixels", "<f4", (2, 28, 28)),
        ("stackoverflow_train", "tokens", f"S{len(SECRET)}", (1,)),
    ):
        with h5py.File(folder / f"{name}.h5", "w") as opened:
            group = opened.create_group("examples/a")
            if member == "pixels":
                group["label"] = np.zeros(shape[0], np.int32)
            if kind == "external storage":
                group.create_dataset(member, shape, item, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout(shape, item)
                layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "examples/w/pixels", (2, 28, 28))[
                    (slice(None),) * 3 if member == "pixels" else (slice(0, 1), 0, 0)
                ]
                group.create_virtual_dataset(member, layout)
            elif kind == "external link":
                group[member] = h5py.ExternalLink("other.h5", "/examples/w/pixels")
            elif kind == "soft link":
                opened["there"] = np.zeros(shape, item)
                group[member] = h5py.SoftLink("/there")
            elif kind == "external group":
                del opened["examples/a"]
                opened["examples/a"] = h5py.ExternalLink("other.h5", "/examples/w")
            elif kind == "external root":
                del opened["examples"]
                opened["examples"] = h5py.ExternalLink("other.h5", "/examples")
            elif kind == "nowhere":
                group.create_dataset(member, (10**10, *shape[1:]), item, chunks=(1, *shape[1:]))
            elif kind == "nowhere, compressed":
                group.create_dataset(member, (10**6, *shape[1:]), item, chunks=(10, *shape[1:]), compression="gzip")[
                    0
                ] = np.zeros(shape[1:], item)
            else:
                group[member] = np.zeros(shape if member == "pixels" else 200, item)
                for number in range(300):
                    opened[f"examples/b{number:03}"] = group


ELSEWHERE = {
    "external storage": "elsewhere, and nothing but the file itself is read",
    "virtual": "elsewhere, and nothing but the file itself is read",
    "external link": "a link to elsewhere in the place of",
    "soft link": "a link to elsewhere in the place of",
    "external group": "a link to elsewhere in the place of 'a'",
    "external root": "a link to elsewhere in the place of 'examples'",
    "nowhere": r"claims \d+ bytes in '\w+', of which it stores 0; at most",
    "nowhere, compressed": r"claims \d+ bytes in '\w+', of which it stores \d+; at most",
    "one under many names": "claims to store more than it holds",
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_nothing_but_the_file_itself_is_read(kind: str, tmp_path: Path) -> None:
    """Such a file showed what lies in another one, and kept its name in the ledger when that changed."""
    _elsewhere(kind, tmp_path)
    for name in ("femnist", "stackoverflow"):
        file = "fed_emnist_train.h5" if name == "femnist" else "stackoverflow_train.h5"
        with pytest.raises(DatasetError, match=ELSEWHERE[kind]) as refused:
            datasets.load_part(f"{name}:{tmp_path / file}", "train")
        assert file in str(refused.value)
        assert "secret" not in str(refused.value)


def test_what_is_compressed_well_is_read(tmp_path: Path) -> None:
    """Blank images, a thousandth of their size on disk; texts of fixed length; and one link under another name."""
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    with h5py.File(tmp_path / "fed_emnist_train.h5", "w") as opened:
        group = opened.create_group("examples/w")
        shape = (300, 28, 28)
        group.create_dataset("pixels", data=np.ones(shape, "<f4"), chunks=(100, 28, 28), compression="gzip")
        group["label"] = np.zeros(300, np.int32)
        group["alias"] = group["label"]
    assert datasets.load_part(f"femnist:{tmp_path}", "train").features.shape == (300, 28, 28)
    with h5py.File(_with_words(tmp_path / "stackoverflow_train.h5"), "w") as opened:
        opened.create_group("examples/u")["tokens"] = np.array([b"to the", b"the"])
    assert datasets.load_part(f"stackoverflow:{tmp_path}", "train").features[:, :4].tolist() == [
        [4, 2, 1, 5],
        [4, 1, 5, 0],
    ]


def test_a_block_that_is_damaged_where_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are read after the file's structure was: what h5py raises then is one clear error, too."""
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    file = tmp_path / "fed_emnist_train.h5"
    with h5py.File(file, "w") as opened:
        group = opened.create_group("examples/w")
        noise = np.random.default_rng(1).random((20, 28, 28)).astype("<f4")
        group.create_dataset("pixels", data=noise, chunks=(20, 28, 28), compression="gzip")
        group["label"] = np.zeros(20, np.int32)
        at = group["pixels"].id.get_chunk_info(0).byte_offset
    content = bytearray(file.read_bytes())
    content[at : at + 200] = bytes(200)
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"fed_emnist_train\.h5 isn't in the format"):
        datasets.load_part(f"femnist:{tmp_path}", "train")
    for error in (MemoryError(), RuntimeError("no"), OSError("no")):
        write_emnist(file, {"w": 2})
        with monkeypatch.context() as patched:
            patched.setattr("learning.published._inked", lambda pixels: pixels)
            patched.setattr(h5py.Dataset, "__getitem__", Mock(side_effect=error))
            with pytest.raises(DatasetError, match=r"fed_emnist_train\.h5 (isn't in|needs more memory than there is)"):
                datasets.load_part(f"femnist:{tmp_path}", "train")


def test_texts_that_are_all_one_are_no_longer_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    file = _with_words(tmp_path / "stackoverflow_train.h5")
    with h5py.File(file, "w") as opened:
        opened.create_group("examples/u")["tokens"] = np.array(["the " * 5_000] * 200, dtype=h5py.string_dtype())
    monkeypatch.setattr("learning.plain_hdf5.MOST_BYTES", 1 << 16)
    assert len(datasets.load_part(f"stackoverflow:{file}", "train")) == 200  # each stands there for itself
    found = h5py.Dataset.__getitem__
    with monkeypatch.context() as patched:  # what one string under 200 references would become
        patched.setattr(h5py.Dataset, "__getitem__", lambda self, key: [one * 9 for one in found(self, key)])
        with pytest.raises(DatasetError, match="claims texts that are longer than the whole of it"):
            datasets.load_part(f"stackoverflow:{file}", "train")


def _with_words(file: Path) -> Path:
    file.with_name("stackoverflow.word_count").write_text("the\t9\nto\t5\n")
    return file


def test_missing_files_and_a_missing_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match=r"holds 0 files fed_emnist\*_train\.h5"):
        datasets.load_part(f"femnist:{tmp_path}", "train")
    with pytest.raises(DatasetError, match=r"there is no file .*word_count, the words by frequency"):
        datasets.load_part(f"stackoverflow:{tmp_path}", "train")
    file = _with_words(tmp_path / "stackoverflow_train.h5")
    with pytest.raises(DatasetError, match=r"there is no file .*stackoverflow_train\.h5"):
        datasets.load_part(f"stackoverflow:{tmp_path}", "train")
    file.write_bytes(b"\x89HDF")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DatasetError, match=r"needs h5py, which isn't installed: pip install '\.\[data\]'"):
        datasets.load_part(f"stackoverflow:{tmp_path}", "train")


def test_stackoverflow_sentences(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra `data`")
    (tmp_path / "stackoverflow.word_count").write_text("the\t9\nto\t5\nbe\t3\n")
    long = b" ".join([b"be"] * 25)
    with h5py.File(tmp_path / "stackoverflow_train.h5", "w") as opened:
        for user, sentences in (("0009", [b"to be the bug"] * 300), ("0012", [long, b"", b"the"])):
            opened.create_group(f"examples/{user}")["tokens"] = np.array(sentences, dtype=h5py.string_dtype())
    name = f"stackoverflow:{tmp_path}"
    data = datasets.load_part(name, "train")
    assert data.features.shape == data.labels.shape == (259, 20)  # at most 256 of a user
    assert (data.features.dtype, data.labels.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(np.bincount(datasets.load_users(name)), [256, 3])
    # V = 3: 4 is any other word, 5 the beginning, 6 the end.
    np.testing.assert_array_equal(data.features[0], [5, 2, 3, 1, 4, 6, *[0] * 14])
    np.testing.assert_array_equal(data.labels[0], [2, 3, 1, 4, 6, *[0] * 15])
    np.testing.assert_array_equal(data.features[256], [5, *[3] * 19])  # cut after 20 words, without an end
    np.testing.assert_array_equal(data.labels[256], [3] * 20)
    np.testing.assert_array_equal(data.labels[257], [6, *[0] * 19])
    assert not datasets.has_part(name, "test")


def test_sequences_of_a_vocabulary() -> None:
    words = Vocabulary(["a", "b"])
    assert words.marks == (3, 4, 5)
    features, labels = words.sequences([["a"] * 20, ["b"] * 19])
    np.testing.assert_array_equal(labels, [[1] * 20, [*[2] * 19, 5]])
    np.testing.assert_array_equal(features[:, 1:], labels[:, :-1])


def test_the_identity_tells_files_apart(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    first = datasets.dataset_identity(f"cifar10:{tmp_path}")
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    write_cifar(elsewhere)
    assert datasets.dataset_identity(f"cifar10:{elsewhere}") == first
    batch = elsewhere / "data_batch_2.bin"
    batch.write_bytes(batch.read_bytes()[::-1])  # as long as before
    assert datasets.dataset_identity(f"cifar10:{elsewhere}") != first


def test_the_identity_is_of_the_content_whatever_it_is_called(tmp_path: Path) -> None:
    """Two owners' files of one size and name; one owner's file under another name."""
    mine, hers, moved = tmp_path / "mine" / "a.json", tmp_path / "hers" / "a.json", tmp_path / "moved" / "b.json"
    write_leaf(mine, {"one": ([[0.0, 1.0]], [1])})
    write_leaf(hers, {"one": ([[9.0, 1.0]], [1])})
    write_leaf(moved, {"one": ([[0.0, 1.0]], [1])})
    assert mine.stat().st_size == hers.stat().st_size
    known = {file: datasets.dataset_identity(f"leaf:{file.parent}") for file in (mine, hers, moved)}
    assert known[mine] == known[moved] != known[hers]
    write_leaf(mine, {"one": ([[9.0, 1.0]], [1])})  # read anew once it changed
    os.utime(mine, (0, 0))  # a clock may be too coarse to tell
    assert datasets.dataset_identity(f"leaf:{mine}") == known[hers]


def test_words_are_part_of_the_sentences(tmp_path: Path) -> None:
    (tmp_path / "stackoverflow_train.h5").write_bytes(b"sentences")
    counts = tmp_path / "stackoverflow.word_count"
    counts.write_text("the\t9\nto\t5\n")
    first = datasets.dataset_identity(f"stackoverflow:{tmp_path}")
    counts.write_text("two\t9\nto\t5\n")
    assert datasets.dataset_identity(f"stackoverflow:{tmp_path}") != first


def test_a_file_that_is_gone_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"gone\.json can't be read \(No such file"):
        identity_of("leaf", [tmp_path / "gone.json"])
