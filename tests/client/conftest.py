"""Whole studies between a host and a coordinator in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.host_in_process import Lie, Play, Story, play
from tests.support.study_in_process import make_folder


@pytest.fixture
def played(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """`play` with the seven participants of `study_folder`, or of a study with the options ``made``."""

    def one(
        lie: Lie | None = None,
        *,
        folder: Path = study_folder,
        work: Path = tmp_path,
        made: dict[str, Any] | None = None,
        **more: Any,
    ) -> Story:
        work.mkdir(exist_ok=True)
        if made is not None:
            folder = make_folder(work / "study", **made)
        return play(folder, work, monkeypatch, lie, **more)

    return one
