"""What a command prints where it ends well, and what it reports where it must not; ``run`` is the fixture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]


def says(text: str, *parts: str) -> None:
    """Checks that each part stands in a text."""
    assert [part for part in parts if part not in text] == [], text


def in_a_process(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which ends with this code."""
    command = [sys.executable, "-m", "sordino", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def output(run: Run, *arguments: object) -> str:
    """The standard output of a command that ends with code 0 and writes nothing to standard error."""
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    return out


def refusal(run: Run, *arguments: object, code: int = 2) -> str:
    """The standard error of a command that ends with this code."""
    ended, _, err = run(*arguments)
    assert ended == code, err
    return err


def one_clear_error(run: Run, told: str, *arguments: object, code: int = 2) -> str:
    """The error of a command that ends with this code: one or two lines, which say this, and no output."""
    ended, out, err = run(*arguments)
    assert (ended, out) == (code, ""), err
    assert told in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 2
    return err


def words(run: Run, *arguments: object) -> str:
    """The output of a command, as `output` does, on one line."""
    return " ".join(output(run, *arguments).split())
