"""A participant's own file: what is taken from it, what is refused and why, and the one name of its content."""

from __future__ import annotations

import zipfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from learning.blocks import DatasetError
from learning.datasets import NO_LABEL, Unread
from learning.make_task import make_task
from learning.own_data import check_form, content_sha256, empty, read_held, read_own, says_nothing, unread_told


def write(path: Path, **members: object) -> Path:
    np.savez(path, **members)  # type: ignore[arg-type]
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A participant's table, which a test writes."""
    return tmp_path / "mine.csv"


def test_npz(tmp_path: Path) -> None:
    images = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    data = read_own(write(tmp_path / "a.npz", features=images, labels=np.array([3, 1], dtype=np.uint8)), "mlp")
    np.testing.assert_array_equal(data.features, images)
    np.testing.assert_array_equal(data.labels, [3, 1])
    words = read_own(
        write(tmp_path / "w.npz", features=np.ones((2, 20), np.int64), labels=np.ones((2, 20), np.int64)), "mlp"
    )
    assert (words.features.dtype, words.labels.shape) == (np.int32, (2, 20))
    numbers = read_own(write(tmp_path / "n.npz", features=np.array([[0.1]])), "mlp")
    assert (numbers.features.dtype, numbers.labels.tolist()) == (np.float32, [0])


def test_csv(file: Path) -> None:
    file.write_text("\ufeffage, label ,weight\n41,1,70.5\n\n8,0,-2e1\n", encoding="utf-8")
    data = read_own(file, "mlp")
    np.testing.assert_array_equal(data.features, np.array([[41, 70.5], [8, -20]], np.float32))
    np.testing.assert_array_equal(data.labels, [1, 0])
    file.write_text("weight\n70.5\n")
    assert read_own(file, "mlp").labels.tolist() == [0]


def test_the_same_content_has_the_same_name_in_both_kinds(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x,label\n1.5,1\n2.5,0\n")
    first = content_sha256(read_own(file, "mlp"))
    same = write(tmp_path / "a.npz", features=np.array([[1.5], [2.5]]), labels=np.array([1, 0]))
    assert content_sha256(read_own(same, "mlp")) == first
    file.write_text("x,label\n3,1\n200,0\n")
    pixels = write(tmp_path / "b.npz", features=np.array([[3], [200]], np.uint8), labels=np.array([1, 0], np.int32))
    assert content_sha256(read_own(pixels, "mlp")) == content_sha256(read_own(file, "mlp"))
    for other in ("x,label\n1.5,1\n2.5,1\n", "x,label\n2.5,0\n1.5,1\n", "x,label\n1.5,1\n"):
        file.write_text(other)
        assert content_sha256(read_own(file, "mlp")) != first
    assert len(empty()) == 0


def test_gaps_where_they_are_allowed(tmp_path: Path, file: Path) -> None:
    file.write_text("age,weight\n41,\n,70.5\n")
    data = read_held(file, "mean")
    np.testing.assert_array_equal(data.features, np.array([[41, np.nan], [np.nan, 70.5]], np.float32))
    assert data.unread == Unread()  # an empty cell says that there is nothing to say
    same = write(tmp_path / "b.npz", features=np.array([[41, np.nan], [np.nan, 70.5]]))
    assert content_sha256(read_held(same, "mean")) == content_sha256(data)
    with pytest.raises(DatasetError, match="row 0, column 1 holds no finite number"):
        read_own(same, "mlp")
    file.write_text("age,weight\n")
    assert read_held(file, "mean").features.shape == (0, 2)


# What stands in the second row, of columns age, pulse, label, and how many of them a person would call words.
ODD_ROWS = {
    "a word": ("41,>1000000,1", {"pulse": 1}),
    "too large": ("41,1e39,1", {"pulse": 1}),
    "infinite": ("-inf,inf,1", {"age": 1, "pulse": 1}),
    "no label": ("41,70,", {}),
    "half a label": ("41,70,1.5", {"label": 1}),
    "a word for a label": ("41,70,severe", {"label": 1}),
    "a label without end": ("41,70,1e300", {"label": 1}),
    "empty": (",,", {}),
    "not UTF-8": ("41,M\xfcller,1", {"pulse": 1}),
    "nothing but words": ("ICU,high,yes", {"age": 1, "pulse": 1, "label": 1}),
}


@pytest.mark.parametrize("row", ODD_ROWS)
def test_no_value_keeps_a_participants_file_from_being_read(row: str, file: Path) -> None:
    """A stranger names the column: a refusal of `>1000000` in it would tell who has such a value."""
    content, words = ODD_ROWS[row]
    file.write_bytes(f"age,pulse,label\n40,60,0\n{content}\n".encode("latin-1"))
    for name, column in (("mean", "age"), ("sum", "pulse"), ("mean", "label"), ("histogram", "label")):
        task = make_task(name, {"column": column})
        data = read_held(file, "mean")
        check_form(task, data, file)
        assert len(data) == 2
        told = unread_told(name, task, data, file)
        assert len(told) == (1 if column in words else 0)
        assert all(str(file) in one and f"column {column} (1 cell)" in one for one in told)
        assert np.isfinite(np.concatenate([*task.contribution(data).values()])).all()
    assert dict(data.unread.cells) == words
    model = read_held(file, "mlp")
    check_form(make_task("softmax-regression", {"features": 2, "classes": 2}), model, file)
    np.testing.assert_array_equal(model.features, np.array([[40, 60]], np.float32))
    [left_out] = unread_told("softmax-regression", None, model, file)
    assert f"{file}: left out 1 row, since" in left_out
    with pytest.raises(DatasetError, match=r"line 3, column \w+ holds no (finite|whole) number: fill gaps") as refused:
        read_own(file, "mlp")
    for message in (str(refused.value), *told, left_out):  # on a terminal, or in a log that others read
        said = message.replace(str(file), "")
        assert not any(len(cell) > 1 and cell in said for cell in content.split(","))


def test_a_missing_value_counts_as_the_statistics_have_it(file: Path) -> None:
    file.write_text("pulse,label\n>200,1\n60,\n80,x\ninf,0\n,0\n")
    data = read_held(file, "mean")
    assert data.labels.tolist() == [1, NO_LABEL, NO_LABEL, 0, 0]
    assert data.unread == Unread((("pulse", 2), ("label", 1)))
    assert make_task("sum", {"column": "pulse", "high": 1000}).contribution(data)["sum"] == np.float32(0.14)
    counted = make_task("histogram", {"bins": 2, "reduce": "spread"}).contribution(data)["weights"]
    np.testing.assert_allclose(counted, [2 / 3, 1 / 3], atol=1e-6)
    first = make_task("histogram", {"bins": 2, "reduce": "last"}).contribution(data.take([0, 1, 2]))["weights"]
    assert first.tolist() == [0, 1]


def test_a_column_without_a_single_number_is_told_and_joins(file: Path) -> None:
    file.write_text("ward,days\nICU,4\nsurgery,7\n")
    data = read_held(file, "mean")
    for column, columns in (("ward", ()), ("0", ("column ward (2 cells)",)), ("ward,days", ("column ward (2 cells)",))):
        task = make_task("mean", {"column": column})
        check_form(task, data, file)
        [told] = unread_told("mean", task, data, file)
        assert "NO VALUE CAN BE USED in column ward (2 cells), which the study asks for" in told
        assert all(one in told for one in columns)
    task = make_task("mean", {"column": "ward"})
    assert not np.concatenate([*task.contribution(data).values()]).any()
    model = read_held(file, "mlp")
    assert len(model) == 0
    left_out, warned = unread_told("mlp", None, model, file)
    assert ("left out 2 rows" in left_out, "NO ROW CAN BE USED" in warned) == (True, True)
    with pytest.raises(ValueError, match="there is no column called pulse"):
        unread_told("mean", make_task("mean", {"column": "pulse"}), data, file)


def test_columns_of_words_that_no_study_asks_for_are_not_reported(file: Path) -> None:
    """A hospital's table has wards and dates in it."""
    file.write_text("ward,days,admitted\nICU,4,2026-01-03\n,7,\n")
    data = read_held(file, "mean")
    np.testing.assert_array_equal(data.features[:, 1], [4, 7])
    assert np.isnan(data.features[:, [0, 2]]).all()
    task = make_task("mean", {"column": "days"})
    assert unread_told("mean", task, data, file) == []
    assert data.form().unread == Unread()


def test_lines_of_another_length_are_left_out(file: Path) -> None:
    """A comma within a text; a quotation mark that swallows the rest of the file."""
    file.write_text('note,days\nwell,4\ntired, coughs,5\n"open,6\n' + "x" * 140_000 + "\nlate,7\n")
    for task in ("mean", "mlp"):
        data = read_held(file, task)
        assert data.unread.lines >= 2
        assert "lines with another number of cells" in unread_told("mlp", None, data, file)[0]
    np.testing.assert_array_equal(read_held(file, "mean").features[:, 1], [4, 7])


def test_whole_numbers_that_are_too_large_for_a_model(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.npz", features=np.array([[1, 2], [1 << 40, 3]]), labels=np.array([0, 1]))
    figures = read_held(file, "mean")
    np.testing.assert_array_equal(figures.features[:, 0], np.array([1, 1 << 40], np.float32))
    model = read_held(file, "mlp")
    assert (model.features.dtype, model.features.tolist()) == (np.int32, [[1, 2]])
    [told] = unread_told("mlp", None, model, file)
    assert "left out 1 row, since no number can be read in column 0 (1 cell)" in told


def test_images_with_a_broken_one(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4), np.float32)
    images[1, 2, 3] = np.inf
    file = write(tmp_path / "mine.npz", features=images, labels=np.arange(3))
    model = read_held(file, "mlp")
    assert (model.features.shape, model.labels.tolist()) == ((2, 4, 4), [0, 2])
    assert np.isnan(read_held(file, "mean").features[1, 2, 3])


def test_whose_file_says_nothing(tmp_path: Path, file: Path) -> None:
    """Two such files are not the same data: under one name their charges would add up."""
    for content, silent in (
        ("a\n", True),
        ("a\n>9\n,\n", True),
        ("a,label\n>9,x\n", True),
        ("a,label\n>9,0\n", False),
        ("a,b\n>9,1\n", False),
    ):
        file.write_text(content)
        assert says_nothing(read_held(file, "mean")) is silent
    assert not says_nothing(read_held(write(tmp_path / "b.npz", features=np.zeros((1, 2), np.uint8)), "mean"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "first line must name the columns"),
        ("1,2\n3,4\n", "first line must name the columns"),
        ("a,a\n1,2\n", "two columns are called 'a'"),
        ("a,b\n1\n", "line 2 has 1 cells; the first line names 2"),
        ("a;b\n1,2;3,4\n", "cells are separated by commas, decimals have a point; this file seems to use ;"),
        ("a\tb\n1\t2\n", "this file seems to use tabs"),
        ("1;2\n3;4\n", "this file seems to use ;"),
        ("a\0\n1\n", "not a text file of columns"),
        ("a,b\n1,\n", "line 2, column b holds no finite number"),
        ("a,b\n1,2\n1,yes\n", "line 3, column b holds no finite number"),
        ("a,label\n1,0.5\n", "line 2, column label holds no whole number: fill gaps, code words; --task regression"),
        ("a,label\n1,nan\n", "line 2, column label holds no whole number"),
        ("a\nnan\n", "line 2, column a holds no finite number"),
        ("a\n\n1\n1e39\n", "line 4, column a holds no finite number"),
        ("a,label\n", "holds no examples"),
    ],
)
def test_a_csv_that_cannot_be_used(content: str, told: str, file: Path) -> None:
    file.write_text(content)
    with pytest.raises(DatasetError, match=rf"data file .*mine\.csv.*{told}"):
        read_own(file, "mlp")


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"x": np.zeros(3)}, "holds x; expected features and labels"),
        (
            {"features": np.zeros(3), "labels": np.zeros(3)},
            "labels are float64; expected whole numbers; --task regression predicts",
        ),
        ({"features": np.zeros((3, 1)), "labels": np.zeros(2, int)}, "do not match 2 labels"),
        ({"features": np.array(["a"])}, "features are <U1; expected numbers"),
        ({"features": np.array([[1 << 40]])}, "don't fit into int32"),
        ({"features": np.array([[np.inf]])}, "row 0, column 0 holds no finite number"),
        ({"features": np.array([[np.nan]], np.float32)}, "row 0, column 0 holds no finite number"),
        ({"features": np.zeros((0, 3))}, "holds no examples"),
        ({"features": np.array([print])}, "not an .npz file of plain arrays"),
    ],
)
def test_an_npz_that_cannot_be_used(members: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=rf"data file .*mine\.npz.*{told}"):
        read_own(write(tmp_path / "mine.npz", **members), "mlp")


def npy(shape: tuple[int, ...], content: bytes = b"", header: str = "") -> bytes:
    told = (header or f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}") + "\n"
    return b"\x93NUMPY\x01\x00" + len(told).to_bytes(2, "little") + told.encode() + content


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (b"hello", "its member features is no array"),
        (npy((1 << 46,)), "states shapes that it doesn't have|not an .npz file"),  # by what the system promises
        (npy((1 << 62, 1 << 62)), "not an .npz file of plain arrays"),
        (npy((-1, 4), b"aaaaaaaa"), "not an .npz file of plain arrays"),
        (npy((4,), b"aa"), "not an .npz file of plain arrays"),
        (npy((), header="{'descr': (((("), "not an .npz file of plain arrays"),
        (npy((), header="(" * 5_000), "not an .npz file of plain arrays|states shapes"),
    ],
)
def test_an_npz_that_somebody_else_wrote(member: bytes, told: str, tmp_path: Path) -> None:
    """One clear error, whatever a damaged member raises in numpy."""
    file = tmp_path / "mine.npz"
    for name in ("features.npy", "features"):
        with zipfile.ZipFile(file, "w") as zipped:
            zipped.writestr(name, member)
        with pytest.raises(DatasetError, match=rf"data file .*mine\.npz: .*({told})"):
            read_own(file, "mlp")


def test_a_file_for_which_there_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of its size on disk, and what is made of it once it is read."""
    monkeypatch.setattr("learning.table_files._values", Mock(side_effect=MemoryError))
    (tmp_path / "mine.csv").write_text("a\n1\n")
    for file in (tmp_path / "mine.csv", write(tmp_path / "mine.npz", features=np.zeros((2, 1)))):
        with pytest.raises(DatasetError, match=r"data file .*mine\..* needs more memory than there is"):
            read_own(file, "mlp")


def test_files_that_are_nothing_of_the_kind(tmp_path: Path) -> None:
    for name, content, told in (
        ("mine.csv", None, r"there is no data file .*mine\.csv: put it there"),
        ("mine.pkl", b"", r"mine\.pkl: only \.csv, \.npz, \.parquet and folders of images are read"),
        ("mine.npz", b"no archive", r"mine\.npz: not an \.npz file"),
        ("mine.csv", b"\xff\xfe\x00", "not a text file of columns"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DatasetError, match=told):
            read_own(tmp_path / name, "mlp")
