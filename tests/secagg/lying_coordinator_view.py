"""For lying_coordinator_machine.py: what an honest participant answers, and what the adversary knows of one cohort.

An answer depends only on the messages to the participant, so it is computed once and cached.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from secagg.context import RoundConfig, set_of
from secagg.errors import CoordinatorMisbehaved
from secagg.keys import AgreementKey, upload_statement
from secagg.messages import CohortKeys, NeighbourShares
from tests.secagg.claims import Broken
from tests.support.attempts_in_memory import Cohort, Sets, advertise, identities, make_config, vector_of
from tests.support.comparable import held, twin
from tests.support.coordinator_notes import Notes
from tests.support.naive_variants import CLIENT, Side
from tests.support.small_rings import CUT, CUT_COLLUDERS, CUT_DROPS, CUT_NEAR, CUT_VICTIM, safe_rings

Told = tuple[Any, ...]  # messages to a participant since it advertised, one for each phase


class Plan(NamedTuple):
    """The numbers of the round, its graph and its colluders."""

    cohort: int
    min_survivors: int
    quorum: int
    colluders: int = 2
    graph: str = ""  # complete; "ring", safe for any colluders; "cut", with the colluders of `CUT`
    released: tuple[int, ...] = ()

    def with_noise(self) -> Plan:
        """Other seeds for each number of survivors."""
        return self._replace(released=tuple((3 + 5 * more) % 8 for more in range(self.cohort - self.min_survivors + 1)))


COMPLETE: Final = Plan(8, 6, 6)


@cache
def config_of(plan: Plan) -> RoundConfig:
    rings = {"": (), "ring": safe_rings(plan.cohort, plan.min_survivors, plan.colluders), "cut": CUT}[plan.graph]
    stated = {name: getattr(plan, name) for name in ("min_survivors", "quorum", "colluders", "released")}
    return make_config(plan.cohort, bits=16, dim=2, rings=rings, **stated)


@cache
def ring_of(plan: Plan) -> tuple[int, ...]:
    """Of all that are invited, with their real keys."""
    _, adverts = advertise(config_of(plan), range(plan.cohort), CLIENT, "life 0")
    return Cohort(config_of(plan), tuple(adverts), adverts, {}).graph.ring  # type: ignore[attr-defined]


@cache
def colluders_of(plan: Plan) -> frozenset[int]:
    if plan.graph == "cut":
        return frozenset(ring_of(plan)[at] for at in CUT_COLLUDERS)
    return frozenset(range(plan.cohort - plan.colluders, plan.cohort))


def sides_of(plan: Plan) -> tuple[dict[int, int], int]:
    """Groups on the ring of `CUT`: near 1, far 2, in a window 4. And one of the last, to drop out."""
    ring = ring_of(plan)
    windows, near = {ring[CUT_DROPS], ring[CUT_VICTIM]}, {ring[at] for at in CUT_NEAR}
    honest = sorted(set(ring) - colluders_of(plan))
    return {one: 4 if one in windows else 1 if one in near else 2 for one in honest}, ring[CUT_DROPS]


@dataclass(frozen=True, eq=False)
class Answer:
    """A participant after these messages: its next phase and its reply, or its refusal."""

    phase: Any
    reply: Any
    error: Exception | None = None
    left: Any = None  # the phase that gave the answer, as it was before


@cache
def answer(client: Side, plan: Plan, who: int, life: int, told: Told) -> Answer:
    config = config_of(plan)
    if len(told) < 2:  # randomness is drawn up to here, but for noise seeds, which may be any
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


@cache
def fake_key(who: int, role: int) -> AgreementKey:
    return AgreementKey(bytes([who + 1, role + 1]) * 16)


@dataclass
class View(Notes):
    """One cohort that some participants were shown, and what the adversary knows of it."""

    fakes: frozenset[int] = frozenset()
    plan: Plan = COMPLETE
    forge, opens = Cohort.forge, Cohort.opens  # identities and inputs are those of `attempts_in_memory`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds: dict[tuple[int, int], set[int]] = {}  # (who, dealer) -> kinds revealed

    @classmethod
    def of(cls, plan: Plan, colluders: frozenset[int], message: CohortKeys, fakes: frozenset[int]) -> View:
        config, shown = config_of(plan), dict[int, Any](message.members)
        inside = colluders & shown.keys()
        own = {one: answer(CLIENT, plan, one, 0, ()).phase._keys for one in inside}
        secrets = {one: keys.mask_key for one, keys in own.items()} | {one: fake_key(one, 0) for one in fakes}
        channels = {one: keys.channel_key for one, keys in own.items()} | {one: fake_key(one, 1) for one in fakes}
        view = cls(config, tuple(shown), shown, {}, colluders, secrets, channel_keys=channels, fakes=fakes, plan=plan)
        for one in inside:
            given = answer(CLIENT, plan, one, 0, (message,))
            if given.error is None:
                view.sealed[one] = given.reply
        return view

    def evidence(self, who: int, sets: Sets, signers: set[int]) -> tuple[tuple[bytes, bytes], ...]:
        """As a request shows it. Colluders have signed that they masked in anything."""
        for one in (self.colluders & sets[1]) - signers:
            self.signed_uploads[one] = self.colluders_upload(one, sets[0])
        return super().evidence(who, sets, signers)

    def colluders_upload(self, colluder: int, u2: frozenset[int]) -> tuple[bytes, bytes]:
        sha256, identity = hashlib.sha256(b"colluder").digest(), identities(self.plan.cohort)[colluder]
        digest = set_of(self.config, self.context, "u2", u2)
        return sha256, identity.sign(upload_statement(self.context, identity.public, sha256, digest))

    def known(self, dealer: int, kind: int) -> bool:
        return len(self.shares.get((dealer, kind), {})) >= self.graph.threshold

    def knows_mask_key(self, who: int) -> bool:
        return who in self.mask_keys
