"""The hooks of the client: the default changes nothing, and nothing but tests and the lab passes another one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from client.behaviour import HONEST, Behaviour
from client.participant import Participant
from client.participant_host import ParticipantHost, join

ROOT = Path(__file__).parents[2]
PARAMETERS = {"behaviour", "behaviours"}
PASSED_ON = {  # where the client hands on what it was given
    ("client/participant_host.py", "behaviour", "behaviours(identity.public)"),
    ("client/participant_host.py", "behaviours", "behaviours"),
    ("client/visits.py", "behaviour", "behaviour"),
}


async def test_each_hook_of_the_default_takes_the_honest_step_once() -> None:
    steps: list[Any] = []

    async def step(*arguments: Any) -> Any:
        steps.append([await anext(one) if hasattr(one, "__anext__") else one for one in arguments])
        return len(steps)

    nothing: Any = None
    await HONEST.attend(step, nothing)
    await HONEST.say((1, 2), "refusal", "content", step)
    assert await HONEST.mask(nothing, step) == 3
    assert await HONEST.upload((1, 2), b"packed", 2, step) == 4
    HONEST.handled(None)
    HONEST.away("it doesn't answer")
    assert steps == [[], ["content"], [], [b"\x0a\x04cked"]]
    assert not hasattr(HONEST, "__dict__")  # so no hook of it can be replaced
    hooks = {name for name in vars(Behaviour) if not name.startswith("_")}
    assert hooks == {"attend", "say", "mask", "upload", "handled", "away"}


@pytest.mark.parametrize("function", [Participant.__init__, ParticipantHost.__init__, join])
def test_the_default_is_the_honest_participant(function: Any) -> None:
    [(name, default)] = [(name, one) for name, one in function.__kwdefaults__.items() if name in PARAMETERS]
    assert (default if name == "behaviour" else default(bytes(32))) is HONEST


def test_nothing_outside_tests_and_the_lab_passes_one() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), keyword.arg, ast.unparse(keyword.value))
        for room in ("client", "sordino", "authority", "server", "learning", "wire", "runtime")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in PARAMETERS
    }
    assert found >= PASSED_ON
    assert {path for path, _, _ in found - PASSED_ON} == {"sordino/lab/loadtest/client_process.py"}
