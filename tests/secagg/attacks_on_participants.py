"""What a lying coordinator, with two colluding participants, tries on participants: a list of attacks.

Each names the one check that must stop it. test_client_phases.py runs it twice: against the real code, where that
check must end it, and against the same code without that check, where it must succeed. Each attack states what success
is: the adversary opens a sum over too few inputs, or holds both secrets of one participant, or at least a participant
goes on that should have stopped.

These are the attacks that need the core alone, and those that docs/threat_model.md names. The scripts of
tests/adversary do the others over gRPC, each also against a participant without the check.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from secagg.context import RoundConfig
from secagg.keys import AgreementKey, ShareChannel, advertisement_statement
from secagg.lottery import Draws
from secagg.messages import MASK_KEY, SELF_MASK_SEED, Advertisement, CohortKeys
from tests.support.attempts_in_memory import Cohort, Sets, identities, make_config, roster_of, start_cohort
from tests.support.naive_variants import Side

HONEST, COLLUDERS = frozenset(range(10)), frozenset({10, 11})
ALL = HONEST | COLLUDERS

SUCCEEDS, ANOTHER_CHECK = "the attack succeeds", "another check stops it"


@dataclass(frozen=True)
class Attack:
    """One lie, the check that must find it, and what happens to a participant without that check."""

    run: Callable[[Side], bool]
    check: str  # part of the source of the check, unique in the participants' modules
    naive: str


ATTACKS: dict[str, Attack] = {}  # those of attacks_on_a_ring.py and attacks_at_the_end.py as well, once imported


Lie = Callable[[Any], bool]


def attack(check: str, naive: str = SUCCEEDS, *, at: str = "", **changed: Any) -> Callable[[Lie], None]:
    """Register a function of the participants' side; or, with a phase and what its plan changes, of a cohort there."""

    def register(lie: Lie) -> None:
        def run(client: Side) -> bool:
            return lie(brought_to(at, client, make_config(12, **changed)) if at else client)

        assert lie.__name__ not in ATTACKS
        ATTACKS[lie.__name__] = Attack(run, check, naive)

    return register


def brought_to(phase: str, client: Side, config: RoundConfig | None = None) -> Cohort:
    """An honest attempt, all present, up to the moment before `phase` gets its message."""
    cohort = start_cohort(config or make_config(12), client=client, colluders=COLLUDERS)
    if phase == "ShareKeys":
        return cohort
    cohort.deal(cohort.u1)
    if phase == "MaskedInputCollection":
        return cohort
    for one in cohort.u1:
        cohort.mask(one, cohort.u1)
    return cohort


def drawn_config() -> RoundConfig:
    """A cohort of 12, drawn from a roster of 20."""
    base = roster_of(20)
    draws = Draws.draw(base.study, base.version, 3, np.random.default_rng(5).bytes)
    return replace(make_config(12, roster=20), roster=replace(base, lottery=draws.lottery), ticket=draws.ticket(1))


def sign_and_unmask(cohort: Cohort, honest: Iterable[int], sets: Sets) -> None:
    """All say the same, and as many sign as there are."""
    honest = tuple(honest)
    signatures = {one: cohort.sign(one, sets) for one in honest}
    signatures |= {one: cohort.forge(one, sets) for one in cohort.colluders}
    for one in honest:
        cohort.unmask(one, sets, signatures)


# ---------------------------------------------------------------- AdvertiseKeys


@attack("this participant did not win the round's lottery")
def invited_without_having_won(client: Side) -> bool:
    config = drawn_config()
    loser = next(who for who in range(20) if who not in config.invited)
    _, advertisement = client.AdvertiseKeys(config, identities(20)[loser], bytes).advertise()
    return len(advertisement.signature) == 64


# ---------------------------------------------------------------- ShareKeys: the cohort


@attack("u1 names a participant that is not on the roster")
def a_victim_among_colluders(client: Side) -> bool:
    """The victim has won its place; participants that haven't are put around it."""
    config = drawn_config()
    victim = min(config.invited)
    losers = sorted(set(range(20)) - config.invited)[:8]
    members = sorted([victim, *sorted(config.invited - {victim})[:3], *losers])
    keys = {who: client.AdvertiseKeys.__new__(client.AdvertiseKeys) for who in members}
    advertised = {}
    for who in members:
        phase = keys[who]
        phase._config, phase._identity, phase._me = config, identities(20)[who], who
        phase._random_bytes = np.random.default_rng(who).bytes
        keys[who], advertised[who] = phase.advertise()
    _, sealed = keys[victim].receive(CohortKeys(tuple((who, advertised[who]) for who in members)))
    return len(sealed.ciphertexts) == 11


def deals(cohort: Cohort, message: CohortKeys, who: int = 0) -> bool:
    """Whether this participant hands out shares of its secrets to the cohort it was shown."""
    _, sealed = cohort.phases[who].receive(message)
    return len(sealed.ciphertexts) > 0


def told(cohort: Cohort, changed: Mapping[int, Advertisement | bytes]) -> CohortKeys:
    return CohortKeys(tuple((who, changed.get(who, cohort.advertisements[who])) for who in cohort.u1))


def signed_by(config: RoundConfig, who: int, mask_key: bytes, channel_key: bytes) -> Advertisement:
    """What a colluder advertises: any keys it likes, under its own name."""
    identity = identities(len(config.roster))[who]
    statement = advertisement_statement(config.round_context(), identity.public, mask_key, channel_key)
    return Advertisement(mask_key, channel_key, identity.sign(statement))


@attack("u1 is not strictly ascending", at="ShareKeys")
def u1_in_another_order(cohort: Cohort) -> bool:
    members = list(cohort.keys().members)
    members[3], members[4] = members[4], members[3]
    return deals(cohort, CohortKeys(tuple(members)))


@attack("u1 names a participant that is not on the roster", at="ShareKeys")
def a_colluder_counts_twice_by_a_negative_position(cohort: Cohort) -> bool:
    again = AgreementKey(b"a" * 32).public, AgreementKey(b"b" * 32).public
    members = [(-1, signed_by(cohort.config, 11, *again)), *cohort.keys().members]
    del members[5]
    return deals(cohort, CohortKeys(tuple(members)))


@attack("the same public key is advertised twice", at="ShareKeys")
def a_colluder_copies_an_honest_mask_key(cohort: Cohort) -> bool:
    copied = signed_by(cohort.config, 10, cohort.advertisements[3].mask_key, cohort.advertisements[10].channel_key)
    return deals(cohort, told(cohort, {10: copied}))


@attack("are not signed by it", at="ShareKeys")
def in_the_middle_of_all_channels(cohort: Cohort) -> bool:
    """The coordinator shows its own keys as those of all others, and opens what is sealed with them."""
    own = {who: AgreementKey(bytes([who]) * 32) for who in cohort.u1}
    forged = {
        who: Advertisement(AgreementKey(bytes([who + 100]) * 32).public, own[who].public, bytes(64))
        for who in cohort.u1
        if who != 0
    }
    seen = Cohort(cohort.config, cohort.u1, {**forged, 0: cohort.advertisements[0]}, cohort.phases)
    seen.deal([0])
    victim = (seen.config.roster.identity(0), seen.advertisements[0].channel_key)
    for who, ciphertext in zip(seen.u1[1:], seen.sealed[0].ciphertexts, strict=True):
        receiver = (seen.config.roster.identity(who), own[who].public)
        plaintext = ShareChannel(own[who].agree(victim[1]), victim, receiver, seen.context).open(ciphertext)
        assert plaintext is not None
        for kind in (MASK_KEY, SELF_MASK_SEED):
            symbols = np.frombuffer(plaintext[48 * kind + 16 : 48 * kind + 48], dtype="<u2")
            seen.shares.setdefault((0, kind), {})[seen.graph.x(who)] = symbols.astype("uint16")
    return seen.both_secrets(0)


def told_of_another(client: Side, ours: RoundConfig, theirs: RoundConfig) -> bool:
    """Participant 0 is shown another configuration than all others."""
    cohort = brought_to("ShareKeys", client, ours)
    other = start_cohort(theirs, client=client)
    mixed = told(cohort, {0: other.advertisements[0]})
    return deals(other, mixed) and deals(cohort, mixed, who=1)


@attack("are not signed by it")
def shown_another_model(client: Side) -> bool:
    """It trains another model: its update in the sum would be distinguishable."""
    return told_of_another(client, make_config(12), make_config(12, model_digest=b"M" * 32))


# ---------------------------------------------------------------- MaskedInputCollection: u2


@attack("u2 has {len(u2)} members", at="MaskedInputCollection", min_survivors=8, quorum=10)
def u2_below_the_quorum(cohort: Cohort) -> bool:
    cohort.mask(0, ALL - {5, 6, 7})
    return 0 in cohort.uploads


@attack("the dealing of {dealt.dealer} is not signed by it")
def two_cohorts_of_one_attempt(client: Side) -> bool:
    """Two cohorts are shown to disjoint participants; both are large enough because they list members of the other.

    In the second cohort four participants are called dropouts, so that their mask keys are opened. In the first the
    same four are called survivors: their masks come off, and 6 honest inputs are left where the plan promises 10.
    """

    config = make_config(20)
    assert (config.parameters.min_survivors, config.parameters.quorum) == (12, 12)
    colluders = {18, 19}
    few, opened, many = set(range(6)), set(range(6, 10)), set(range(10, 18))

    everybody = start_cohort(config, client=client, colluders=colluders)
    twice = {one: copy.copy(everybody.phases[one]) for one in colluders}

    def cohort_of(u1: set[int]) -> Cohort:
        shown = {one: everybody.advertisements[one] for one in u1}
        return Cohort(
            config, tuple(sorted(u1)), shown, everybody.phases, frozenset(colluders), dict(everybody.mask_keys)
        )

    second = cohort_of({0, 1} | opened | many | colluders)
    second.deal(opened | many | colluders)
    for one in many | colluders:
        second.mask(one, second.u1)
    sets = frozenset(second.u1), frozenset(second.u1) - opened
    assert len(sets[1]) >= config.parameters.min_survivors
    sign_and_unmask(second, many, sets)

    first = cohort_of(few | opened | colluders)
    first.phases.update(twice)
    first.deal(few | colluders)
    for one in few | colluders:
        first.mask(one, first.u1)
    sign_and_unmask(first, few, (frozenset(first.u1), frozenset(first.u1)))
    for one in opened:
        key = second.private_mask_key(one)
        assert key is not None
        first.mask_keys[one] = key
    return first.opens(few | colluders)


# ---------------------------------------------------------------- ConsistencyCheck: u2 and u3


@attack("u3 has {len(u3)}", at="ConsistencyCheck", min_survivors=10, quorum=10)
def u3_below_min_survivors(cohort: Cohort) -> bool:
    few = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
    sign_and_unmask(cohort, few - COLLUDERS, (ALL, few))
    return cohort.opens(few)


@attack("u2 is not the set this participant masked in", ANOTHER_CHECK, at="MaskedInputCollection")
def some_are_told_that_others_missed_u2(cohort: Cohort) -> bool:
    """Two participants mask only with those that leave, and later sign what all sign: the sum of these two would open.

    They sign the set they masked in, whatever they are shown later: see `test_what_is_signed_is_what_was_masked_in`.
    """
    victims, others, dropped = frozenset({0, 1}), frozenset({2, 3, 4, 5}), frozenset({6, 7, 8, 9})
    for one in victims:
        cohort.mask(one, victims | dropped | COLLUDERS)
    for one in others | COLLUDERS:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, victims | others, (ALL, ALL - dropped))
    return cohort.opens(victims)


# ---------------------------------------------------------------- Unmasking: the signatures


def split_views() -> dict[int, Sets]:
    """Each of ten honest participants is shown eight survivors, itself among them, but different ones.

    Each of 0 to 5 is called a dropout to six participants: with two colluders that gives eight shares of its mask key.
    The sum of the other six opens, though all saw eight survivors.
    """
    dropped = {one: {(one + step) % 6 for step in (1, 2, 3, 4)} for one in range(6)}
    dropped |= {6: {0, 1, 2, 3}, 7: {4, 5, 0, 1}, 8: {2, 3, 4, 5}, 9: {0, 1, 2, 3}}
    return {one: (ALL, ALL - frozenset(gone)) for one, gone in dropped.items()}


FEW = frozenset({6, 7, 8, 9}) | COLLUDERS  # 4 honest inputs, where the plan promises 6


@attack("signatures over the survivors", at="ConsistencyCheck")
def split_u3_with_too_few_signatures(cohort: Cohort) -> bool:
    for one, sets in split_views().items():
        signatures = {one: cohort.sign(one, sets)} | {other: cohort.forge(other, sets) for other in COLLUDERS}
        cohort.unmask(one, sets, signatures)
    return cohort.opens(FEW)
