"""Own data of other kinds: Parquet, folders of images, and a task's own ``read``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from learning.blocks import DatasetError
from learning.data_checks import check_task_takes
from learning.image_folder import read_images
from learning.make_task import make_task
from learning.own_data import check_form, content_sha256, read_held, read_own, unread_told
from learning.own_task import TaskMistake
from learning.table_files import read_table

TASK = """from dataclasses import dataclass

import numpy as np

from sordino import Dataset, ModelTask, TaskOptions, read_table


class Doses(ModelTask):
    Options = TaskOptions

    def __init__(self, options):
        self.options = options

    def initial_parameters(self):
        return {"mean": np.zeros(1, np.float32)}

    def local_update(self, parameters, data, rng, l2_clip):
        return {"mean": np.full(1, data.labels.mean() - parameters["mean"][0], np.float32)}

    def evaluate(self, parameters, data):
        return {"mean_absolute_error": float(abs(data.labels - parameters["mean"]).mean())}

    @staticmethod
    def read(path):
        READ
"""
ROWS = [[1.5, 4.0, 1.0], [2.5, -3.0, 0.0]]
Reads = Callable[[str], str]


@pytest.fixture
def reads(own_module: Callable[[str, str], Path]) -> Reads:
    """Writes a class with such a ``read`` where a command would run; its name."""
    return lambda body: f"{own_module('doses', TASK.replace('READ', body)).stem}:Doses"


def test_one_name_for_the_same_data_in_every_kind_of_file(tmp_path: Path, reads: Reads) -> None:
    lines = "".join(f"{a},{label},{b}\n" for a, b, label in ROWS)
    (tmp_path / "a.csv").write_text("dose,label,change\n" + lines)
    (tmp_path / "a.txt").write_text("".join(f"{a} {b} {label}\n" for a, b, label in ROWS))
    a, b, label = np.array(ROWS).T
    np.savez(tmp_path / "a.npz", features=np.column_stack([a, b]), labels=label.astype(int))
    pq.write_table(pa.table({"dose": a, "label": label.astype(bool), "change": b.astype(int)}), tmp_path / "a.parquet")
    first = content_sha256(read_own(tmp_path / "a.csv", "mlp"))
    for kind in ("npz", "parquet"):
        assert content_sha256(read_own(tmp_path / f"a.{kind}", "mlp")) == first
    own = reads("table = np.loadtxt(path)\n        return table[:, :2], table[:, 2].astype(int)")
    assert content_sha256(read_held(tmp_path / "a.txt", own)) == first
    numeric_labels = read_held(tmp_path / "a.csv", "regression")
    assert (numeric_labels.labels.dtype, content_sha256(numeric_labels)) == (np.float32, first)
    other = reads("return read_table(path, label='change', numeric_labels=True)")
    data = read_held(tmp_path / "a.parquet", other)
    assert (data.columns, data.labels.tolist()) == (("dose", "label"), [4.0, -3.0])


def test_gaps_in_parquet_count_as_those_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,label\n41,1\n,0\n39,\ninf,1\n")
    table = {"age": pa.array([41, None, 39, np.inf]), "label": pa.array([1, 0, None, 1], pa.int32())}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    for task in ("mean", "mlp", "regression"):
        rows, columns = (read_held(tmp_path / f"a.{kind}", task) for kind in ("csv", "parquet"))
        np.testing.assert_array_equal(rows.features, columns.features)
        np.testing.assert_array_equal(rows.labels, columns.labels)
        assert (rows.unread, rows.columns) == (columns.unread, columns.columns)
    assert len(columns) == 1
    with pytest.raises(DatasetError, match=r"a\.parquet: row 1, column age holds no finite number"):
        read_own(tmp_path / "a.parquet", "mlp")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"age": [1], "ward": ["ICU-secret"]}, r"must hold numbers, and ward \(string\) don't: code them"),
        ({"7": [1]}, "must name the columns"),
        (None, r"not a \.parquet \(Arrow"),
    ],
)
def test_a_parquet_of_another_form(table: dict[str, list[object]] | None, said: str, tmp_path: Path) -> None:
    if table is None:
        (tmp_path / "a.parquet").write_bytes(b"PAR1 secret PAR1")
    else:
        pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=rf"^data file .*a\.parquet: .*{said}") as caught:
        read_held(tmp_path / "a.parquet", "mlp")
    assert "secret" not in str(caught.value)


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "a.png").touch()
    for package, read, path in (("pyarrow", read_table, tmp_path / "a.parquet"), ("PIL", read_images, tmp_path)):
        for name in {package, *(one for one in sys.modules if one.startswith(f"{package}."))}:
            monkeypatch.setitem(sys.modules, name, None)
        extra = {"pyarrow": "parquet", "PIL": "images"}[package]
        with pytest.raises(DatasetError, match=rf"{package}, which isn't installed: pip install '\.\[{extra}\]'"):
            read(path)


# ---------------------------------------------------------------- images


def draw(file: Path, pixels: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


def test_images_in_subfolders_and_in_a_list(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 5), dtype=np.uint8)
    for number, label in enumerate((0, 0, 1, 1)):
        draw(tmp_path / "numbered" / str(label) / f"{number}.png", pixels[number])
        draw(tmp_path / "named" / ("benign", "malignant")[label] / f"{number}.png", pixels[number])
        draw(tmp_path / "listed" / f"{number}.png", pixels[number])
    (tmp_path / "listed" / "labels.csv").write_text("file,label\n" + "".join(f"{n}.png,{n // 2}\n" for n in range(4)))
    np.savez(tmp_path / "a.npz", features=pixels, labels=np.array([0, 0, 1, 1]))
    name = content_sha256(read_own(tmp_path / "a.npz", "mlp"))
    found = read_own(tmp_path / "numbered", "mlp")
    np.testing.assert_array_equal(found.features, pixels)
    assert content_sha256(found) == content_sha256(read_held(tmp_path / "listed", "mlp")) == name
    assert content_sha256(read_images(tmp_path / "named", classes=("benign", "malignant"))) == name
    with pytest.raises(DatasetError, match="benign, malignant name no class: they must be numbers of classes from 0"):
        read_held(tmp_path / "named", "mlp")
    with pytest.raises(DatasetError, match="malignant name no class: they must be benign, other;"):
        read_images(tmp_path / "named", classes=("benign", "other"))
    squares = read_images(tmp_path / "numbered", side=3, channels=3)
    assert (squares.features.shape, squares.labels.tolist()) == ((4, 3, 3, 3), [0, 0, 1, 1])
    check_form(make_task("softmax-regression", {"side": 3, "channels": 3, "pooling": 1}), squares, tmp_path)


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    draw(tmp_path / "0" / "a.png", np.full((4, 4), 0xC800, np.uint16))
    draw(tmp_path / "1" / "b.jpg", np.full((4, 4, 3), 7, np.uint8))
    (tmp_path / "1" / "private-name.png").write_bytes(b"no image")
    data = read_held(tmp_path, "mlp")
    assert (data.features.shape, data.labels.tolist()) == ((2, 4, 4, 3), [0, 1])
    assert data.features[0].max() == data.features[0].min() == 0xC8
    [told] = unread_told("mlp", None, data, tmp_path)
    assert told.endswith("left out 1 row, since no number can be read in column image (1 cell)")
    with pytest.raises(DatasetError, match="1 of its 3 images can't be read: replace them, or take them away"):
        read_own(tmp_path, "mlp")
    draw(tmp_path / "1" / "c.png", np.zeros((5, 9), np.uint8))
    with pytest.raises(DatasetError, match=r"2 sizes \(4 x 4, 9 x 5\), and a model takes one: resize them") as caught:
        read_held(tmp_path, "mlp")
    assert "private" not in str(caught.value) + told
    draw(tmp_path / "d.png", np.zeros((5, 9), np.uint8))
    with pytest.raises(DatasetError, match="images beside subfolders with images"):
        read_held(tmp_path, "mlp")
    (tmp_path / "none").mkdir()
    with pytest.raises(DatasetError, match=r"none: it holds no images: put \.png, \.jpg"):
        read_held(tmp_path / "none", "mlp")


# ---------------------------------------------------------------- a task's own read


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return float('secret 41')",
            r"doses\.py, line 25, in read: ValueError at data file .*a\.txt; correct it there$",
        ),
        ("raise SystemExit('secret')", "in read: SystemExit at data file"),
        ("import nowhere", "in read: ModuleNotFoundError: No module named 'nowhere'"),
        ("return [1, 2]", r"doses\.py, line 23: read returns list; it must return a sordino\.Dataset, or features and"),
        ("return np.zeros((2, 1)), [0, 1]", r"read returns \(ndarray, list\); it must return"),
        ("return np.zeros((2, 1)), np.zeros(3)", r"data file .*a\.txt: \(2, 1\) features do not match 3 labels"),
        ("return np.array(['secret']), np.zeros(1)", "features are <U6; expected numbers"),
        ("return np.zeros((1, 1)), np.array(['secret'])", "labels are <U6; expected numbers"),
        (
            "return np.zeros((2, 1)), np.zeros((2, 2))",
            r"labels \[2, 2\] are fractions: a number to predict is one for each",
        ),
        ("return read_table(path)", r"a\.txt: only \.csv, \.npz, \.parquet and folders of images are read"),
    ],
)
def test_a_read_that_fails_is_one_sentence_without_data(body: str, said: str, tmp_path: Path, reads: Reads) -> None:
    (tmp_path / "a.txt").write_text("secret 41\n")
    with pytest.raises((TaskMistake, DatasetError), match=said) as caught:
        read_held(tmp_path / "a.txt", reads(body))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_read_that_is_no_static_method(tmp_path: Path, reads: Reads) -> None:
    name = reads("return None")
    module = tmp_path / "doses.py"
    module.write_text(module.read_text().replace("    @staticmethod\n    def read(", "    def read(self, "))
    with pytest.raises(TaskMistake, match=r"is no task yet: it lacks @staticmethod before its read\(path\)"):
        make_task(name)


def test_what_a_read_returns_is_checked_as_a_file_is(tmp_path: Path, reads: Reads) -> None:
    """Values that can't be used leave out a participant's example, and are refused at the coordinator."""
    (tmp_path / "a.txt").touch()
    for body in (
        "return np.array([[1.0], [np.nan], [3.0]]), np.array([0.5, 1.5, 2.5])",
        "(path.parent / 'b.csv').write_text('x,label\\n1,0.5\\n,1.5\\n3,2.5\\n')\n"
        "        return read_table(path.parent / 'b.csv', numeric_labels=True)",
    ):
        name = reads(body)
        data = read_held(tmp_path / "a", name)  # a name without a suffix: the one file of that name
        assert (data.features.ravel().tolist(), data.labels.tolist()) == ([1, 3], [0.5, 2.5])
        assert "left out 1 row" in unread_told(name, None, data, tmp_path / "a")[0]
        with pytest.raises(DatasetError, match=r"a\.txt.* (holds no finite number|can't be used): fill gaps"):
            read_own(tmp_path / "a.txt", name)
    check_task_takes(name, {}, data, "a.txt", planned=1)
    with pytest.raises(DatasetError, match=r"labels are float32, numbers to predict; this task takes classes, int64"):
        check_form(make_task("mlp", {"features": 1}), data, tmp_path / "a.txt")
    (tmp_path / "a.dat").touch()
    with pytest.raises(DatasetError, match=r"there are .*a\.dat and .*a\.txt, and a participant has one file"):
        read_held(tmp_path / "a", name)
    with pytest.raises(DatasetError, match=r"there is no data file .*nobody\.txt: put it there"):
        read_held(tmp_path / "nobody.txt", name)


def test_no_number_in_a_parquet_keeps_its_participant_away(tmp_path: Path) -> None:
    """An identifier of 17 digits has no exact float; a .csv with it is read too."""
    number = 9007199254740993
    pq.write_table(pa.table({"id": [number, 2], "label": [0, 1]}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(f"id,label\n{number},0\n2,1\n")
    of_each = [read_held(tmp_path / f"a.{kind}", "mlp") for kind in ("parquet", "csv")]
    assert of_each[0].features.tolist() == of_each[1].features.tolist() == [[float(np.float32(number))], [2.0]]


def test_an_image_may_be_damaged_anywhere(tmp_path: Path) -> None:
    """Whatever Pillow raises over a broken orientation; and a cell of the list longer than csv takes by itself."""
    Image.new("L", (4, 4)).save(tmp_path / "good.png")
    exif = Image.Exif()
    exif[0x0112], exif[0x0110] = 6, "a text of letters"
    broken = exif.tobytes().replace(b"\x01\x10\x00\x02\x00\x00\x00\x12", b"\x01\x10\x00\x05\x00\x00\x00\x01")
    assert broken != exif.tobytes()  # the text is said to be a fraction
    Image.new("L", (4, 4)).save(tmp_path / "odd.jpg", exif=broken)
    (tmp_path / "labels.csv").write_text(f"file,label\ngood.png,1\nodd.jpg,0\n{'x' * 200_000},1\n")
    data = read_held(tmp_path, "mlp")
    assert (len(data), dict(data.unread.cells), data.labels.tolist()) == (1, {"image": 2}, [1])
