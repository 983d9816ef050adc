"""Fixtures shared by the tests of several rooms; each imports what it needs when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from server.events import Event
    from tests.support.forked_commands import Commands


@pytest.fixture(scope="session", autouse=True)
def subset_read_once() -> Iterator[None]:
    """The shipped images are checked and decompressed once in a process; each test has its own copy."""
    import learning.datasets as datasets

    read = datasets._read_subset
    kept = cache(lambda file, sha256, member: read(member))

    def copies(member: str) -> NDArray[np.uint8]:
        return kept(datasets.SUBSET_FILE, datasets.SUBSET_SHA256, member).copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "_read_subset", copies)
        yield


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven participants on one host, two rounds; tests keep their state files elsewhere."""
    from tests.support.study_in_process import make_folder

    return make_folder(tmp_path_factory.mktemp("studies") / "seven")


@pytest.fixture
def small_study(tmp_path: Path) -> Path:
    """Ten participants on two hosts, two rounds."""
    from authority.new_study import make_local_study, new_study

    options = new_study(name="small", participants=10, hosts=2, rounds=2, epsilon=20.0)
    return make_local_study(tmp_path / "study", options).directory


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes a module, name and text, where a command would run; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a task's folder is added to it
    written: set[str] = set()

    def write(name: str, text: str) -> Path:
        sys.modules.pop(name, None)
        written.add(name)
        (tmp_path / f"{name}.py").write_text(text)
        return tmp_path / f"{name}.py"

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def events() -> list[Event]:
    """The events of a whole study: `tests.support.event_stream`."""
    from tests.support.event_stream import make_events

    return make_events()


@pytest.fixture(scope="session")
def sordino() -> Commands:
    """Runs the command in a process of its own each time, without loading its modules each time."""
    from tests.support.forked_commands import commands

    return commands()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process: (exit code, standard output, standard error)."""
    from sordino.cli import main

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(ending.value.code or 0), captured.out, captured.err

    return command
