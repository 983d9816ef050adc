"""Every script of a cheating coordinator, on the real client and on each naive one it names."""

from __future__ import annotations

import asyncio

import pytest

from tests.adversary.script import COORDINATOR, Naive, Places, Script, scripts

SCRIPTS = scripts(COORDINATOR)
NAIVE = [(script, naive) for script in SCRIPTS for naive in script.check]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_real_client_keeps_every_promise(script: Script, places: Places) -> None:
    seen = asyncio.run(script.perform(places))
    assert script.wrong(seen) is None


@pytest.mark.parametrize(("script", "naive"), NAIVE, ids=[f"{one.name}-{at}" for one in SCRIPTS for at in range(len(one.check))])
def test_a_naive_client_does_not(script: Script, naive: Naive, places: Places) -> None:
    seen = asyncio.run(script.perform(places, naive))
    assert script.undetected(naive, seen) is None
