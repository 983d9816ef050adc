"""A simulation over data of the participants' own: a folder with a file or a subfolder of each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.host_file import load
from tests.support.commands import Run, output, refusal

MEAN = ("--task", "mean", "--task-option", "column=hours", "--task-option", "high=12", "--task-option", "count=false")
SMALL = ("--rounds", 1, "--epsilon", 50, "--bits", 20, "--max-dropout", 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty files; the mean over participants is 7."""
    place = tmp_path / "files"
    place.mkdir()
    for number in range(30):
        value = 7 + (number - 14.5) / 10
        (place / f"p{number:02}.csv").write_text(f"age,hours\n{number},{value}\n{number},{value}\n")
    return place


def test_a_mean_over_a_folder_of_files(folder: Path, run: Run, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    out = output(run, "simulate", "--data", folder, *MEAN, *SMALL, "--json", "--output", record)
    told = json.loads(out)["summary"]["released"]
    [value] = told["values"]
    assert (value["name"], told["participants"]) == ("hours", 30)
    assert abs(value["value"] - 7) < 5.2 * value["standard_error"] < 1  # false alarms: one in five million
    again = run("simulate", "--data", folder, *MEAN, *SMALL, "--json", "--output", record)
    assert json.loads(again[1])["summary"]["released"] == told  # it had come to its end


def test_a_study_over_the_same_folder(folder: Path, run: Run, tmp_path: Path) -> None:
    asked = ("init", tmp_path / "study", "--data", folder, *MEAN, *SMALL, "--hosts", 3)
    output(run, *asked)
    hosts = [load(tmp_path / "study" / "hosts" / f"host-{number:02}") for number in (1, 2, 3)]
    assert [one.data for host in hosts for one in host.participants] == sorted(folder.iterdir())
    assert "leave --dataset out" in refusal(run, *asked, "--dataset", "mnist")
    (folder / "zz.csv").write_text("age\n1\n")
    assert "zz.csv doesn't fit the study's task mean: there is no column called hours" in refusal(
        run, "init", "new", *asked[2:]
    )


def test_a_model_over_a_folder_of_files_of_both_kinds(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(2)
    for number in range(20):
        x = rng.normal(size=(20, 2)).astype(np.float32)
        np.savez(tmp_path / f"{number:02}.npz", features=x, labels=(x[:, 0] > 0).astype(int))
    rows = "".join(f"{a},{b},{int(a > 0)}\n" for a, b in rng.normal(size=(9, 2)))
    (tmp_path / "zz.csv").write_text("a,b,label\n" + rows)
    test = tmp_path / "held-out"
    test.mkdir()
    x = rng.normal(size=(200, 2)).astype(np.float32)
    np.savez(test / "test.npz", features=x, labels=(x[:, 0] > 0).astype(int))
    options = ("--task-option", "features=2", "--task-option", "classes=2", "--test", test / "test.npz")
    told = json.loads(output(run, "simulate", "--data", tmp_path, *options, *SMALL, "--mechanism", "none", "--json"))
    assert told["summary"]["accuracy"] > 0.9
    assert told["configuration"]["settings"]["study"]["participants"] == 21


def test_a_regression_over_files_learns_under_noise(tmp_path: Path, run: Run) -> None:
    """Beside least squares over all files, which no participant has; and without any word of accuracy."""
    rng, files = np.random.default_rng(3), tmp_path / "files"
    files.mkdir()

    def people(count: int) -> np.ndarray:
        numbers = rng.uniform(-1, 1, (count, 3))
        return np.column_stack([numbers, 170 + numbers @ [9, -14, 4] + rng.normal(0, 4, count)])

    written = {files / f"{number:03}.csv": people(20) for number in range(400)} | {tmp_path / "test.csv": people(2_000)}
    for file, table in written.items():
        np.savetxt(file, table, delimiter=",", header="a,b,c,label", comments="")
    all_files, held_out = np.concatenate(list(written.values())[:-1]), written[tmp_path / "test.csv"]
    ones = [np.column_stack([table[:, :3], np.ones(len(table))]) for table in (all_files, held_out)]
    best = np.linalg.lstsq(ones[0], all_files[:, 3], rcond=None)[0]
    least = float(np.sqrt(np.mean((ones[1] @ best - held_out[:, 3]) ** 2)))
    bounds = ("--task-option", "low=120", "--task-option", "high=220", "--task-option", "features=3")
    asked = ("--task", "regression", *bounds, "--client-rate", 0.2, "--test", tmp_path / "test.csv")
    private = ("--rounds", 10, "--epsilon", 8, "--clip", 0.3, "--max-dropout", 0.1)
    out = output(run, "simulate", "--data", files, *asked, *private)
    found = float(re.findall(r"^root mean squared error (.*)$", out, flags=re.MULTILINE)[0])
    assert "ccuracy" not in out
    assert least < found < 1.15 * least < 0.5 * float(held_out[:, 3].std())


def test_what_does_not_fit_is_told(folder: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, told in (
        (("--data", tmp_path / "empty"), "holds no .csv, .npz, .parquet and no subfolder: put one of each"),
        (("--data", tmp_path / "none"), "can't be read: No such file or directory"),
        (("--data", folder, "--participants", 40), "holds 30 files for 40 participants: one file, one participant"),
        (("--data", folder, "--dataset", "mnist"), "holds the participants' own files: leave --dataset out"),
        (("--dataset", "own"), "data isn't named, and the data set 'own' lies with each participant"),
        (("--data", folder, "--task-option", "column=hour"), "no column called hour. Its columns are 0 age, 1 hours"),
    ):
        asked = ("--task", "mean", "--task-option", "high=12") if "column=hour" in arguments else MEAN
        assert told in refusal(run, "simulate", *asked, *SMALL, *arguments)
    (folder / "zz.csv").write_text((folder / "p00.csv").read_text())
    told = refusal(run, "simulate", "--data", folder, *MEAN, *SMALL)
    assert "zz.csv holds what p00.csv holds: give each its own file" in told


def rows(folder: Path, *bodies: str, header: str = "a,b,label") -> tuple[Any, ...]:
    """Twelve files of three rows each, after the given bodies; and the options that name them."""
    folder.mkdir()
    plain = [f"{number},1,0\n{number},2,1\n{number},3,1\n" for number in range(12 - len(bodies))]
    for number, body in enumerate((*bodies, *plain)):
        (folder / f"{number:02}.csv").write_text(body if "label" in body else f"{header}\n{body}")
    return ("--data", folder, "--task-option", "features=2", "--task-option", "classes=2")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("0,0,0\n0,1,2\n", "00.csv: 1 label of 2 is outside the labels 0 to 1 of the task"),
        ("b,a,label\n1,0,1\n", "01.csv has a as column 0, where 00.csv has b: give all files the same columns in one"),
        ("0,0,yes\n0,1,no\n", "left out 2 rows, since no number can be read in column label (2 cells): a participant"),
        ("0,0,0.5\n", "a participant would send zeros for it. Classes are whole numbers from 0."),
    ],
)
def test_a_file_that_a_model_can_not_take_is_told(tmp_path: Path, run: Run, body: str, told: str) -> None:
    command = rows(tmp_path / "files", body)
    assert told in refusal(run, "simulate", *command, *SMALL)
    assert told in refusal(run, "init", tmp_path / "study", *command, *SMALL)


def test_rows_that_are_left_out_are_told(tmp_path: Path, run: Run) -> None:
    command = rows(tmp_path / "files", "0,0,0\n>100,1,1\n", "0,1,0\n0,?,1\n0,9,1\n")
    for verb in (("simulate",), ("init", tmp_path / "study")):
        said = " ".join(output(run, *verb, *command, *SMALL).split())
        assert "00.csv: left out 1 row, since no number can be read in column a (1 cell)." in said
        assert "And 1 file more with values that can't be used." in said


def test_a_name_of_no_task_is_told(folder: Path, run: Run) -> None:
    for name in ("median", "mean ", "a:b:c"):
        assert f"task {name!r} is unknown" in refusal(run, "simulate", "--data", folder, "--task", name)


def test_default_bounds_are_told_and_how_many_values_lie_beyond(folder: Path, run: Run) -> None:
    bare = ("--task", "mean", "--task-option", "column=hours")
    out = output(run, "simulate", "--data", folder, *bare, *SMALL)
    assert "Note: the bounds 0 to 1 are the default" in " ".join(out.split())
    assert "beyond      30 of 30 values of hours lie beyond its bounds and count as the bound" in out
    out = output(run, "simulate", "--data", folder, *MEAN, *SMALL)
    assert "Note: low isn't given and is 0, the default: values below count as 0." in out
    assert "beyond " not in out
    _, out, _ = run("simulate", "--data", folder, *MEAN, "--task-option", "low=7", *SMALL, "--json")
    assert json.loads(out)["summary"]["beyond_bounds"] == [{"name": "hours", "beyond": 15, "values": 30}]


def test_files_that_a_task_could_take_name_its_options(folder: Path, tmp_path: Path, run: Run) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for number in range(12):
        lines = "".join(f"{number},{label},{label}\n" for label in range(3))
        (rows / f"{number:02}.csv").write_text("a,b,label\n" + lines)
    err = refusal(run, "simulate", "--data", rows, "--task", "mlp", *SMALL)
    assert err.rstrip().endswith("Use --task-option features=2 --task-option classes=3.")
    fitting = ("--task-option", "features=2", "--task-option", "classes=3")
    out = output(run, "simulate", "--data", rows, "--task", "mlp", *fitting, *SMALL)
    assert "evaluation  none: name a file to evaluate the model on with --test" in out
    for file in list(folder.iterdir())[1:]:
        file.unlink()
    code, _, err = run("simulate", "--data", folder, *MEAN, *SMALL)
    assert code in (2, 3)
    assert f"Use at least 3 files in {folder}, one of each participant." in err
