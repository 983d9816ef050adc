"""Every script of a cheating coordinator, on the real client and on each naive one it names; and that no check of the
client is left without a script.
"""

from __future__ import annotations

import ast
import asyncio
import inspect

import pytest

from client import participant
from tests.adversary.script import COORDINATOR, Naive, Places, Script, scripts, taken_out
from tests.support.naive_variants import CLIENT, refusals

SCRIPTS = scripts(COORDINATOR)
NAIVE = [
    pytest.param(script, naive, id=f"{script.name}-{at}") for script in SCRIPTS for at, naive in enumerate(script.check)
]

# Refusals that pass on what another module has found: no `if` of their own, but a script for what is found there.
PASSED_ON = {
    "str(error)": ("bits-beyond-the-bitmap", "longer-bitmap", "damaged-dealings", "a-draw-of-its-own"),
    "f'channel key of {neighbour}: {error}'": ("low-order-channel-key",),
    "f'a mask key of u2: {error}'": ("low-order-mask-key",),
    "f'the round names another roster: {error}'": ("roster-that-goes-back", "roster-of-its-own"),
    '"the round names a roster that isn\'t there"': ("roster-that-is-not-there",),
}
# Checks that no coordinator gets to through the client as it is deployed.
OUT_OF_REACH = {
    "must be on the roster before a round": "every roster was held against the plan's population when it was accepted "
    "(wire.study.check_roster_fits)",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_real_client_keeps_every_promise(script: Script, places: Places) -> None:
    seen = asyncio.run(script.perform(places))
    assert script.wrong(seen) is None


@pytest.mark.parametrize(("script", "naive"), NAIVE)
def test_a_naive_client_does_not(script: Script, naive: Naive, places: Places) -> None:
    seen = asyncio.run(script.perform(places, naive))
    assert script.undetected(naive, seen) is None


@pytest.mark.parametrize("module", [*CLIENT.modules, participant], ids=lambda module: module.__name__)
def test_every_refusal_has_its_script(module: object) -> None:
    names = {script.name for script in SCRIPTS}
    assert {name for stopped in PASSED_ON.values() for name in stopped} <= names
    fragments = [
        fragment
        for script in SCRIPTS
        for naive in script.check
        for where, fragment in taken_out(naive)
        if where == module.__name__  # type: ignore[attr-defined]
    ]
    source = inspect.getsource(module)  # type: ignore[arg-type]
    unnamed = []
    for text in refusals(module, "CoordinatorMisbehaved"):  # type: ignore[arg-type]
        reason = ast.unparse(ast.parse(text).body[0].exc.args[-1])  # type: ignore[attr-defined]
        if any(fragment in text or _changes(fragment, reason, source) for fragment in fragments):
            continue
        if reason not in PASSED_ON and not any(part in reason for part in OUT_OF_REACH):
            unnamed.append(reason)
    assert unnamed == []


def _changes(fragment: str, reason: str, source: str) -> bool:
    """Whether an exchanged piece of source holds this refusal."""
    return fragment in source and reason.strip("\"'f") in fragment
