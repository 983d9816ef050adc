"""The scripts of a cheating coordinator against participants that are made anew for each message, as Flower nodes are.

Where Flower is installed (`make flower-test`) all of them are played, else every ninth.
"""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from tests.adversary import cheating_coordinator
from tests.adversary.script import COORDINATOR, Places, Script, scripts
from tests.adversary.served_study import STUDIES
from tests.adversary.visiting_clients import visiting

READS_MEMORY = "ring-"  # of a colluding participant's object, which nodes don't keep
# Nodes answer neither heartbeats nor resumed sessions, take no charge back, and get credits from their own grid.
OTHERWISE = {
    "upload-credit-twice",
    "upload-credit-too-early",
    "resumed-without-a-break",
    "other-survivors-without-signatures",
    "out-of-order",
    "model-with-other-bytes",
}
SESSIONS = {"taken-off-the-roster"}  # the client process ends, which a node's doesn't
EVERY = 1 if importlib.util.find_spec("flwr") else 9
SCRIPTS = [one for one in scripts(COORDINATOR) if not one.name.startswith(READS_MEMORY) and one.name not in SESSIONS]
CHARGES = "a-charge-taken-back"
NAIVE = ["neighbours-said-to-have-missed-u2", "two-halves-missed-each-other"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cheating_coordinator, "joined", visiting)
    external = {name: {**one, "task": "external"} for name, one in STUDIES.items()}
    monkeypatch.setattr(cheating_coordinator, "STUDIES", external)


@pytest.mark.parametrize("script", SCRIPTS[::EVERY], ids=lambda script: script.name)
def test_a_hostile_grid_gets_nothing(script: Script, places: Places) -> None:
    seen = asyncio.run(script.perform(places))
    assert seen.broken == ()
    if script.name not in OTHERWISE and not script.name.startswith(CHARGES):
        # An error of the node, where a client refuses; and a node doesn't tell that it is its policy that refuses.
        as_a_node = "fails" if script.outcome == "refused by policy" else script.outcome
        assert seen.outcome in (script.outcome, as_a_node, "crashes"), seen


@pytest.mark.parametrize("name", NAIVE)
def test_it_does_from_naive_nodes(name: str, places: Places) -> None:
    [script] = [one for one in SCRIPTS if one.name == name]
    for naive in script.check:
        assert script.undetected(naive, asyncio.run(script.perform(places, naive))) is None
