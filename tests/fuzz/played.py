"""Attempts of honest sides, kept phase by phase.

Everything is found by the type of a message and by what a phase returns; nothing here counts phases or names them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved, InvalidMessage, ProtocolError, UnexpectedMessage
from secagg.in_memory import InMemoryAttempt
from secagg.keys import noise_commitment
from secagg.parameters import HYBRID
from secagg.server_unmasking import Completed
from secagg.sharing import SEMI_MALICIOUS
from tests.fuzz.target import must
from tests.support.attempts_in_memory import LOSE, Script, make_config, source_of, sum_of, surplus_parts, vector_of
from tests.support.comparable import freeze
from tests.support.recorded_attempts import Recorded
from tests.support.small_rings import safe_rings

GRAPHS: Final = ("complete", "ring", "unsigned", "hybrid")


# ---------------------------------------------------------------- attempts


@cache
def reference_round(graph: str = "complete", round_: int = 1, left: str = "") -> Recorded:
    """An honest attempt; the last participant may leave before its message in one phase of the coordinator."""
    config = config_of(graph, round_)
    found = Recorded(config, Script(up={(left, len(config.roster) - 1): LOSE}))
    _check_sum(config, found.run(), found.coordinator)
    return found


def config_of(graph: str, round_: int = 1) -> RoundConfig:
    """A = 2, and one may leave: eight on a ring, or five on the complete graph: as ever, unsigned, with hybrid keys.

    On the ring and where nobody signs there is noise to take back.
    """
    match graph:
        case "ring":
            rings, released = safe_rings(8, 6), (0, 5, 11)
            return make_config(8, colluders=2, min_survivors=6, round_=round_, rings=rings, released=released)
        case "unsigned":
            adversary, released = SEMI_MALICIOUS, (1, 6)
            return make_config(5, min_survivors=4, round_=round_, adversary=adversary, released=released)
        case "hybrid":
            return make_config(5, colluders=2, min_survivors=4, round_=round_, key_agreement=HYBRID)
    return make_config(5, colluders=2, min_survivors=4, round_=round_)


class _Rest(InMemoryAttempt):
    """An attempt from some phase on, whatever that holds already, with what participants send now."""

    def __init__(self, config: RoundConfig, server: Any, clients: dict[int, Any], up: Mapping[int, Any]) -> None:
        super().__init__(config, {}, lambda who: source_of(config, who), lambda who: vector_of(who, config.parameters))
        self.coordinator, self.phases = server, clients
        self.messages = self._up = dict(sorted(up.items()))

    def exchange(self, who: int) -> None:
        try:
            answered = self._up[who] if self.messages is self._up else self.answer(who, self.messages[who])
        except CoordinatorMisbehaved:
            del self.phases[who]
            return
        if who not in self.coordinator.received:
            with contextlib.suppress(InvalidMessage, UnexpectedMessage):  # it was sent another message
                self.coordinator.receive(who, answered)


def finish(
    config: RoundConfig, server: Any, clients: dict[int, Any], up: Mapping[int, Any], exact: bool = True
) -> Completed | None:
    """Play an attempt to its end with an honest coordinator, from a phase that may hold messages; None if it aborts.

    Args:
        clients: phases of the participants that are present; ``up`` is what they send now.
        exact: whether a sum must be the right one.
    """
    try:
        rest = _Rest(config, server, clients, up)
        completed = rest.run()
    except ProtocolError:
        return None
    if exact:
        _check_sum(config, completed, rest.coordinator)
    return completed


def answer(config: RoundConfig, who: int, phase: Any, message: Any) -> tuple[Any, Any]:
    """What a participant does with a message of the coordinator: its next phase and its answer."""
    rest = _Rest(config, None, {who: phase}, {})
    answered = rest.answer(who, message)
    return rest.phases[who], answered


def take(server: Any, sender: int, message: Any) -> bool:
    """Give a message to a phase of the coordinator; whether it was taken. A refused one must leave no trace."""
    before = freeze(server)
    try:
        server.receive(sender, message)
    except (InvalidMessage, UnexpectedMessage) as error:
        must(error.sender == sender and bool(error.reason), "a refusal that names nobody or no reason")
        must(freeze(server) == before, "a refused message changed the phase")
        return False
    must(sender in server.received, "a message was taken and is not there")
    return True


def _check_sum(config: RoundConfig, completed: Completed, coordinator: Any) -> None:
    wanted = sum_of(completed.u3, config.parameters)
    must(bool(np.array_equal(completed.total, wanted)), "the sum is not that of u3")
    must(completed.noise_seeds.keys() == completed.u5, "noise seeds of others than u5")
    surplus = surplus_parts(config.parameters, len(completed.u3))
    for who, seeds in completed.noise_seeds.items():
        must(len(seeds) == len(surplus), "another number of noise seeds than belongs to |u3|")
        identity, committed = config.roster.identity(who), coordinator._uploads[who].noise_commitments
        for part, seed in zip(surplus, seeds, strict=True):
            found = noise_commitment(seed, part, completed.cohort_context, identity)
            must(found == committed[part], "a noise seed that nobody committed to")
