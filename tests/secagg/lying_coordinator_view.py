"""For lying_coordinator_machine.py: what an honest participant answers, and what the adversary knows of one cohort.

What a participant answers depends on what it was told and on nothing else, so it is computed once and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from attempts_in_memory import Cohort, advertise, freeze, make_config, twin, vector_of
from cheating_participants import Broken

from secagg import client_phases
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved
from secagg.keys import AgreementKey, ShareChannel
from secagg.messages import MASK_KEY, SELF_MASK_SEED, Advertisement, CohortKeys, NeighbourShares

Told = tuple[Any, ...]  # what a participant was told since it advertised: one message for each phase


@cache
def config_of(plan: tuple[int, int, int]) -> RoundConfig:
    return make_config(plan[0], min_survivors=plan[1], quorum=plan[2], bits=16, dim=2)


@dataclass(frozen=True, eq=False)
class Answer:
    """A participant after what it was told: its next phase and its reply, or why it refused."""

    phase: Any
    reply: Any
    error: Exception | None = None
    left: Any = None  # the phase that gave the answer, as it was before


@cache
def answer(client: ModuleType, plan: tuple[int, int, int], who: int, life: int, told: Told) -> Answer:
    config = config_of(plan)
    if len(told) < 2:  # randomness is drawn up to here
        phases, adverts = advertise(config, [who], client, f"life {life}")
        if not told:
            return Answer(phases[who], adverts[who])
        phase = phases[who]
    else:
        phase = twin(answer(client, plan, who, life, told[:-1]).phase)
    before, left = held(phase), twin(phase)
    try:
        following, reply = ask(phase, told[-1], who, config)
    except CoordinatorMisbehaved as error:
        if held(phase) != before:
            return Answer(None, None, Broken("over", f"refusing changed {type(phase).__name__}"))
        try:
            phase.receive(told[-1])
        except CoordinatorMisbehaved:
            return Answer(None, None, error)
        return Answer(None, None, Broken("over", f"{type(phase).__name__} took another message after a refusal"))
    except Exception as error:
        return Answer(None, None, Broken("crash", f"{type(error).__name__}: {error}"))
    return Answer(following, reply, left=left)


def ask(phase: Any, message: Any, who: int, config: RoundConfig) -> tuple[Any, Any]:
    following = phase.receive(message)
    return following.mask(vector_of(who, config.parameters)) if isinstance(message, NeighbourShares) else following


def held(phase: Any) -> Any:
    """All that a phase holds but the mark that it is over."""
    return freeze({name: value for name, value in vars(phase).items() if name != "_left"})


@cache
def fake_key(who: int, role: int) -> AgreementKey:
    return AgreementKey(bytes([who + 1, role + 1]) * 16)


@dataclass
class View(Cohort):
    """One cohort that some participants were shown, and what the adversary knows of it."""

    fakes: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds: dict[tuple[int, int], set[int]] = {}  # (who, dealer) -> kinds revealed

    @classmethod
    def of(
        cls,
        plan: tuple[int, int, int],
        colluders: frozenset[int],
        message: CohortKeys,
        shown: dict[int, Advertisement],
        fakes: frozenset[int],
    ) -> View:
        inside = colluders & shown.keys()
        secrets = {one: answer(client_phases, plan, one, 0, ()).phase._keys.mask_key for one in inside}
        secrets |= {one: fake_key(one, 0) for one in fakes}
        view = cls(config_of(plan), tuple(shown), shown, {}, colluders, secrets, fakes=fakes)
        for one in inside:
            given = answer(client_phases, plan, one, 0, (message,))
            if given.error is None:
                view.sealed[one] = given.reply
        return view

    def read(self, dealer: int, sealed: Any) -> None:
        """Open what the dealer sealed for colluders, and for those whose keys are the coordinator's own."""
        ends = (self.config.roster.identity(dealer), self.advertisements[dealer].channel_key)
        for receiver, ciphertext in zip(self.graph.neighbours(dealer), sealed.ciphertexts, strict=True):
            if receiver in self.colluders:
                phase = answer(client_phases, self._plan(), receiver, 0, ()).phase
                private = phase._keys.channel_key
            elif receiver in self.fakes:
                private = fake_key(receiver, 1)
            else:
                continue
            end = (self.config.roster.identity(receiver), self.advertisements[receiver].channel_key)
            plaintext = ShareChannel(private.agree(ends[1]), ends, end, self.context).open(ciphertext)
            if plaintext is None:  # the receiver's key was changed, and it is nobody's
                continue
            for kind in (MASK_KEY, SELF_MASK_SEED):
                symbols = np.frombuffer(plaintext[48 * kind + 16 : 48 * kind + 48], dtype="<u2").astype(np.uint16)
                self.shares.setdefault((dealer, kind), {})[self.graph.x(receiver)] = symbols

    def _plan(self) -> tuple[int, int, int]:
        parameters = self.config.parameters
        return parameters.cohort, parameters.min_survivors, parameters.quorum

    def known(self, dealer: int, kind: int) -> bool:
        """Whether a secret of the dealer can be rebuilt."""
        return len(self.shares.get((dealer, kind), {})) >= self.graph.threshold

    def openable(self, honest: frozenset[int]) -> list[frozenset[int]]:
        """The smallest sets of honest inputs whose sum opens; any other that opens is made of these.

        A member's own mask must be known. Two members are tied where the mask between them is not: then neither
        opens without the other, and one that is tied to somebody outside opens not at all.
        """
        bare = {who for who in honest & self.uploads.keys() if self.known(who, SELF_MASK_SEED)}
        ties = {
            who: {one for one in self.masked_with[who] if one not in self.mask_keys and who not in self.mask_keys}
            for who in honest & self.uploads.keys()
        }
        found, left = [], set(bare)
        while left:
            together, waiting = set(), {left.pop()}
            while waiting:
                one = waiting.pop()
                together.add(one)
                waiting |= ties.get(one, set()) - together
            left -= together
            if together <= bare and all(one in ties[other] for one in together for other in ties[one]):
                found.append(frozenset(together))
        return found
