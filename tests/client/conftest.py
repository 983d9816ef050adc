"""A host's folder, and whole studies between a host and a coordinator in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.failure import ExitCode, Failure
from tests.support.host_in_process import Lie, Play, Story, play
from tests.support.study_in_process import make_folder

LEAST = f"""
[host]
name = "host-01"
[study]
name = "clinic"
authority_public_key = "{"ab" * 32}"
task = "softmax-regression"
[policy]
max_epsilon = 4
min_honest_survivors = 5
[data]
parts = 10
[[participants]]
key = "keys/a.key"
part = 0
[[participants]]
key = "keys/b.key"
part = 9
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A host's folder with the shortest host.toml; its other files exist, and hold nothing."""
    for name in ("ca.pem", "tls/client.pem", "tls/client.key", "keys/a.key", "keys/b.key"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "host.toml").write_text(LEAST)
    return tmp_path


def refused(story: Story, told: str, code: int = ExitCode.INPUT) -> None:
    """The host ended with one line; nothing of it took part."""
    assert isinstance(story.ended, Failure)
    assert told in str(story.ended)
    assert "\n" not in str(story.ended)
    assert story.ended.code == code
    assert (story.ready, story.sent, story.refusals) == (set(), [], [])


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
