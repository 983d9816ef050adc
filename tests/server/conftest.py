"""Makes the helper modules of this folder importable by name; their names are unique in the project."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "secagg")]

from study_in_process import make_folder  # noqa: E402  # found through the line above


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven participants on one host, two rounds; tests keep their state files elsewhere."""
    return make_folder(tmp_path_factory.mktemp("studies") / "seven")
