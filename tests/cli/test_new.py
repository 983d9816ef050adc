"""``sordino new``: what it writes runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Run, one_clear_error, output, says

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
@pytest.mark.long
def test_a_new_project_is_simulated_made_and_tested_as_its_makefile_says(run: Run, tmp_path: Path) -> None:
    project, commands = tmp_path / "ward-7", tmp_path / "bin"
    assert "made_up.py" in output(run, "new", project)
    commands.mkdir()
    for name, words in {"python": "", "sordino": "-m sordino"}.items():  # of this checkout
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (commands / name).chmod(0o755)
    variables = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}

    def make(target: str) -> str:
        command = ["make", "--no-print-directory", target]
        done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    accuracy = float(make("simulate").partition("\naccuracy ")[2].split()[0])
    assert accuracy > 0.7, "53 % of the held-out visitors aren't ill"
    says(make("study"), "Made the study ward-7 in study: 40 participants on 2 hosts")
    assert "2 passed" in make("test")
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    subprocess.run(lint, cwd=project, check=True, timeout=60)


def test_a_folder_in_use_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    one_clear_error(run, "not empty. Name a folder that is new or empty", "new", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
