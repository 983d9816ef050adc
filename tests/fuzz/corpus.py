"""The corpus: for each target a folder of inputs that reach something no other input there reaches.

Python's own tracing measures what is reached, as steps from line to line in our packages: the same on every machine,
and without a fuzzer. An input's file is named by its content.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.fuzz.target import Target

ROOT: Final = Path(__file__).resolve().parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
PACKAGES: Final = ("secagg", "mechanisms", "wire", "learning", "server", "client")
_NAME_DIGITS: Final = 16
_A_FILE: Final = 64  # bytes that a file more is worth
ROOM: Final = 40 << 10
"""Bytes of one target's folder; all together stay below 500 kB."""

Step = tuple[str, int, int]


def name_of(data: bytes) -> str:
    """Of an input's file."""
    return hashlib.sha256(data).hexdigest()[:_NAME_DIGITS]


def inputs(target: Target) -> list[bytes]:
    """All that are kept, by size."""
    folder = CORPUS / target.name
    found = [path.read_bytes() for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(found, key=lambda data: (len(data), data))


def begin(target: Target) -> list[bytes]:
    """What honest peers write, and all that is kept."""
    return [*target.seeds(), *inputs(target)]


def keep(target: Target, data: bytes) -> Path:
    """Add an input."""
    path = CORPUS / target.name / name_of(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def steps_of(run: Callable[[bytes], None], data: bytes) -> set[Step]:
    """Steps from line to line inside our packages while a target runs."""
    found: set[Step] = set()
    ours = tuple(str(ROOT / package) for package in PACKAGES)
    known: dict[str, bool] = {}
    last: dict[int, int] = {}

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in known:
            known[name] = name.startswith(ours)
        if not known[name]:
            return None
        last[id(frame)] = 0
        return line

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        run(data)
    finally:
        sys.settrace(before)
    return found


def reached_by(target: Target, several: Iterable[bytes]) -> set[Step]:
    """By any of them; each is run once before, since what is made only once is nothing that an input reaches."""
    reached: set[Step] = set()
    for data in several:
        target.run(data)
        reached |= steps_of(target.run, data)
    return reached


def fewest(target: Target, candidates: Iterable[bytes], reached: set[Step], room: int) -> list[bytes]:
    """Few of the candidates that together reach what all of them reach beyond ``reached``, within ``room`` bytes.

    The candidate that adds most for its bytes comes first (greedy set cover).
    """
    left: dict[bytes, set[Step]] = {}
    for data in set(candidates):
        steps = reached_by(target, [data]) - reached
        if steps:
            left[data] = steps
    chosen: list[bytes] = []
    while left:
        best = max(left, key=lambda data: (len(left[data]) / (len(data) + _A_FILE), data))
        gained = left.pop(best)
        if len(best) <= room:
            room -= len(best)
            chosen.append(best)
            left = {data: rest for data, steps in left.items() if (rest := steps - gained)}
    return chosen
