"""Every script runs on the real code, every check has a script, and each check that is missing is missed.

Of the naive sides that lack the same checks the first is played here, and all of them by `make adversary`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from types import ModuleType

import pytest

from client import participant
from secagg import opening, server_cohort, server_phases, server_unmasking
from server import service, sessions
from server.attempt import attempt, steps, uploads
from tests.adversary.script import COORDINATOR, PARTICIPANT, Naive, Places, Script, scripts, taken_out
from tests.support.naive_variants import CLIENT, refusals

SCRIPTS = scripts()
# Reversed, so that the first one stays.
NAIVE = {
    frozenset(taken_out(naive)): pytest.param(script, naive, id=f"{script.name}-{at}")
    for script in reversed(SCRIPTS)
    for at, naive in reversed([*enumerate(script.check)])
}

# Refusals that pass on what another module has found: they have no `if`, but a script for what is found there.
CLIENT_PASSES_ON = {
    "str(error)": ("bits-beyond-the-bitmap", "longer-bitmap", "damaged-dealings", "a-draw-of-its-own"),
    "f'channel key of {neighbour}: {error}'": ("low-order-channel-key", "channel-key-that-is-no-ml-kem-key"),
    "f'a mask key of u2: {error}'": ("low-order-mask-key",),
    "f'mask key of {who}: {error}'": ("mask-key-that-is-no-ml-kem-key",),
    "f'the round names another roster: {error}'": ("roster-that-goes-back", "roster-of-its-own"),
    "f'old-roster: {error}'": ("old-statement-of-the-newest-roster", "statement-of-another-roster"),
    '"the round names a roster that isn\'t there"': ("roster-that-is-not-there",),
}
SERVER_PASSES_ON = {
    "InvalidMessage(MASKED_INPUT, sender, str(error))": ("padding-bits",),
    "MalformedUpload(str(error))": ("bytes-that-are-no-chunk", "oversize-chunk"),
    "UploadRefused(reason if offer.granted else _LEFT)": ("upload-that-stalls",),
    "UploadRefused('the vector was not taken')": ("another-vector",),
    "SessionRefused('not a message of this protocol')": ("random-bytes", "truncated-messages"),
    'SessionRefused("a message that an open session doesn\'t take")': ("opens-an-open-session",),
}
# Checks that no participant reaches with a real coordinator.
_BEFORE = "tests/server/test_sessions_and_documents.py: before any session"
OUT_OF_A_PARTICIPANTS_REACH = {
    "_WrongSecret(one.participant, str(error))": "a mask key of low order was refused when it was advertised",
    "it was begun more than": "tests/server/test_uploads.py: in that many sessions",
    "UnexpectedUpload(_ELSEWHERE)": "tests/server/test_uploads.py: once it has come back on another session",
    "UploadRefused(_LEFT)": "what ends its part in the attempt has its own script, and ends its upload too",
    "no upload is expected on this session": "tests/server/test_reconnection.py: before it has its place again",
    **dict.fromkeys(("this coordinator speaks protocol version", "this coordinator runs another study"), _BEFORE),
    **dict.fromkeys(("this identity is not on version", "the nonce must have 32 bytes"), _BEFORE),
    **dict.fromkeys(("a session begins with Open", "the challenge must be answered with Proof"), _BEFORE),
    "the session is over": "tests/server/test_sessions_and_documents.py: only a later roster gives its place to others",
}
# What a phase accepts from which sender, each with the script that sends it once too often.
TAKEN = {
    "sender not in self._advertisements": "advertises-twice",
    "sender not in self._dealings": "deals-twice",
    "sender in self.u2 and sender not in self._u3": "uploads-again",
    "sender not in signed.signatures": "signs-twice",
    "sender not in self._u5": "answers-twice",
}
REFUSED = ("InvalidMessage", "UnexpectedMessage", "_WrongSecret")
SHELL = ("UploadRefused", "UnexpectedUpload", "MalformedUpload", "MalformedMessage", "SessionRefused")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_real_side_keeps_every_promise(script: Script, places: Places) -> None:
    seen = asyncio.run(script.perform(places))
    assert script.wrong(seen) is None


@pytest.mark.parametrize(("script", "naive"), NAIVE.values())
@pytest.mark.long
def test_a_naive_side_does_not(script: Script, naive: Naive, places: Places) -> None:
    seen = asyncio.run(script.perform(places, naive))
    assert script.undetected(naive, seen) is None


@pytest.mark.parametrize(
    ("cheat", "passed_on"),
    [(COORDINATOR, CLIENT_PASSES_ON), (PARTICIPANT, SERVER_PASSES_ON)],
    ids=lambda one: str(one)[:11],
)
def test_what_is_passed_on_has_its_script(cheat: str, passed_on: dict[str, tuple[str, ...]]) -> None:
    names = {script.name for script in scripts(cheat)}
    assert {name for stopped in passed_on.values() for name in stopped} <= names


def switched_off(cheat: str, module: ModuleType) -> list[str]:
    """Return the fragments of a module that some script runs without."""
    return [
        fragment
        for script in scripts(cheat)
        for naive in script.check
        for where, fragment in taken_out(naive)
        if where == module.__name__
    ]


@pytest.mark.parametrize("module", [*CLIENT.modules, participant], ids=lambda module: module.__name__)
def test_every_refusal_of_the_client_has_its_script(module: ModuleType) -> None:
    fragments, source = switched_off(COORDINATOR, module), inspect.getsource(module)
    unnamed = []
    for text in refusals(module, "CoordinatorMisbehaved"):
        reason = ast.unparse(ast.parse(text).body[0].exc.args[-1])  # type: ignore[attr-defined]
        if any(fragment in text or _changes(fragment, reason, source) for fragment in fragments):
            continue
        if reason not in CLIENT_PASSES_ON:
            unnamed.append(reason)
    assert unnamed == []


def _changes(fragment: str, reason: str, source: str) -> bool:
    """Tell whether an exchanged piece of source holds this refusal."""
    return fragment in source and reason.strip("\"'f") in fragment


@pytest.mark.parametrize(
    ("module", "errors"),
    [
        *((module, REFUSED) for module in (server_phases, server_unmasking, opening, server_cohort)),
        *((module, SHELL) for module in (uploads, attempt, steps, service, sessions)),
    ],
    ids=lambda one: one.__name__ if isinstance(one, ModuleType) else "",
)
def test_every_refusal_of_the_coordinator_has_its_script(module: ModuleType, errors: tuple[str, ...]) -> None:
    fragments, conditions = switched_off(PARTICIPANT, module), _conditions(module)
    unnamed = []
    for text in refusals(module, *errors):
        refused = ast.unparse(ast.parse(text).body[0].exc)  # type: ignore[attr-defined]
        if "UnexpectedMessage" in refused:
            continue  # on conditions of each phase: below
        check = _plain(conditions.get(text, "") + text)
        listed = refused in SERVER_PASSES_ON or any(part in refused for part in OUT_OF_A_PARTICIPANTS_REACH)
        if not listed and not any(_plain(fragment) in check for fragment in fragments):
            unnamed.append(refused)
    assert unnamed == []


def _plain(source: str) -> str:
    """Remove brackets, which `ast.unparse` sets anew."""
    return source.replace("(", "").replace(")", "")


def _conditions(module: ModuleType) -> dict[str, str]:
    """Return the condition of each ``raise`` that ends an ``if``."""
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
    # The first condition on an upload only asks whether it is one; its offer decided the rest.
    phases = [one for one in conditions if one != "isinstance(message, MaskedInput)"]
    assert phases
    for condition in phases:
        [name] = [name for part, name in TAKEN.items() if part in condition]
        [script] = [script for script in SCRIPTS if script.name == name]
        switched = [one for naive in script.check for where, one in taken_out(naive) if where == module.__name__]
        assert any(one in condition for one in switched), f"{name} is not stopped by {condition}"
