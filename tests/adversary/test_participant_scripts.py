"""Every script of a cheating participant, on the real coordinator and on each naive one it names; and that no check of
the coordinator's side is left without a script.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from types import ModuleType

import pytest

from secagg import server_cohort, server_phases, server_unmasking
from server import service, sessions
from server.attempt import attempt, steps, uploads
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, scripts, taken_out
from tests.support.naive_variants import refusals

SCRIPTS = scripts(PARTICIPANT)
NAIVE = [
    pytest.param(script, naive, id=f"{script.name}-{at}") for script in SCRIPTS for at, naive in enumerate(script.check)
]
REFUSED = ("InvalidMessage", "UnexpectedMessage", "_WrongSecret")
SHELL = ("UploadRefused", "UnexpectedUpload", "MalformedUpload", "MalformedMessage", "SessionRefused")

# Refusals that pass on what another module has found: no `if` of their own, but a script for what is found there.
PASSED_ON = {
    "InvalidMessage(MASKED_INPUT, sender, str(error))": ("padding-bits",),
    "MalformedUpload(str(error))": ("bytes-that-are-no-chunk", "oversize-chunk"),
    "UploadRefused(reason if offer.granted else _LEFT)": ("upload-that-stalls",),
    "UploadRefused('the vector was not taken')": ("another-vector",),
    "SessionRefused('not a message of this protocol')": ("random-bytes", "truncated-messages"),
    'SessionRefused("a message that an open session doesn\'t take")': ("opens-an-open-session",),
}
# Checks that no participant gets to beside a coordinator that is itself.
OUT_OF_REACH = {
    "_WrongSecret(survivor, str(error))": "a mask key of low order was refused when it was advertised",
    "UnexpectedUpload('the attempt is over')": "uploads under way end with it (server.attempt.uploads.Uploads.close)",
    "it was begun more than": "tests/server/test_reconnection.py: in so many sessions",
    "UnexpectedUpload(_ELSEWHERE)": "tests/server/test_reconnection.py: once it has come back on another session",
    "UploadRefused(_LEFT)": "what ends its part in the attempt is a script of its own, and ends its upload too",
    "no upload is expected on this session": "tests/server/test_reconnection.py: before its place is its own again",
    "this coordinator speaks protocol version": "tests/server/test_sessions_and_documents.py: before any session",
    "this coordinator runs another study": "tests/server/test_sessions_and_documents.py: before any session",
    "this identity is not on version": "tests/server/test_sessions_and_documents.py: before any session",
    "the nonce must have 32 bytes": "tests/server/test_sessions_and_documents.py: before any session",
    "a session begins with Open": "tests/server/test_sessions_and_documents.py: before any session",
    "the challenge must be answered with Proof": "tests/server/test_sessions_and_documents.py: before any session",
    "the session is over": "tests/server/test_sessions_that_are_over.py: only a later roster gives its place to others",
}
# What a phase takes from whom, each with the script in which it is taken once too often.
TAKEN = {
    "sender not in self._advertisements": "advertises-twice",
    "sender not in self._dealings": "deals-twice",
    "sender in self.u2 and sender not in self._u3": "uploads-again",
    "sender not in signed.signatures": "signs-twice",
    "sender not in self._u5": "answers-twice",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_real_coordinator_keeps_every_promise(script: Script, places: Places) -> None:
    seen = asyncio.run(script.perform(places))
    assert script.wrong(seen) is None


@pytest.mark.parametrize(("script", "naive"), NAIVE)
def test_a_naive_coordinator_does_not(script: Script, naive: Naive, places: Places) -> None:
    seen = asyncio.run(script.perform(places, naive))
    assert script.undetected(naive, seen) is None


@pytest.mark.parametrize(
    ("module", "errors"),
    [
        (server_phases, REFUSED),
        (server_unmasking, REFUSED),
        (server_cohort, REFUSED),
        (uploads, SHELL),
        (attempt, SHELL),
        (steps, SHELL),
        (service, SHELL),
        (sessions, SHELL),
    ],
    ids=lambda one: one.__name__ if isinstance(one, ModuleType) else "",
)
def test_every_refusal_has_its_script(module: ModuleType, errors: tuple[str, ...]) -> None:
    names = {script.name for script in SCRIPTS}
    assert {name for stopped in PASSED_ON.values() for name in stopped} <= names
    fragments = {
        fragment
        for script in SCRIPTS
        for naive in script.check
        for where, fragment in taken_out(naive)
        if where == module.__name__
    }
    conditions = _conditions(module)
    unnamed = []
    for text in refusals(module, *errors):
        refused = ast.unparse(ast.parse(text).body[0].exc)  # type: ignore[attr-defined]
        if "UnexpectedMessage" in refused:
            continue  # on conditions of each phase: below
        check = _plain(conditions.get(text, "") + text)
        listed = refused in PASSED_ON or any(part in refused for part in OUT_OF_REACH)
        if not listed and not any(_plain(fragment) in check for fragment in fragments):
            unnamed.append(refused)
    assert unnamed == []


def _plain(source: str) -> str:
    """Without brackets, which are set anew when source is written from its tree."""
    return source.replace("(", "").replace(")", "")


def _conditions(module: ModuleType) -> dict[str, str]:
    """What has to be so for each ``raise`` that stands in an ``if`` of its own."""
    return {
        ast.unparse(last): ast.unparse(node.test)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.If) and isinstance(last := node.body[-1], ast.Raise)
    }


@pytest.mark.parametrize("module", [server_phases, server_unmasking], ids=lambda module: module.__name__)
def test_what_each_phase_takes_has_its_script(module: ModuleType) -> None:
    """`UnexpectedMessage` is raised in one place, on conditions of each phase."""
    conditions = [
        ast.unparse(node.args[1])
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_take"
    ]
    # The first look at an upload is whether it is one: what it is taken for was decided with its offer.
    phases = [one for one in conditions if one != "isinstance(message, MaskedInput)"]
    assert phases
    for condition in phases:
        [name] = [name for part, name in TAKEN.items() if part in condition]
        [script] = [script for script in SCRIPTS if script.name == name]
        switched = [one for naive in script.check for where, one in taken_out(naive) if where == module.__name__]
        assert any(one in condition for one in switched), f"{name} is not stopped by {condition}"
