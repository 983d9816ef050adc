"""A coordinator that lies, with two colluding participants, against the real participants.

Each attack names the one check that must stop it, and is run twice: against the real code, where that check must end
it, and against the same code without that check, where it must succeed. Otherwise the test would not show that the
check is needed. What "succeed" means is written into each attack: the adversary opens a sum over too few inputs, or
holds both secrets of one participant, or at least has a participant go on that should have stopped.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import pytest
from attempts_in_memory import (
    LOW_ORDER,
    Cohort,
    Sets,
    advertise,
    crooked_dealing,
    flip,
    identities,
    make_config,
    refuses,
    roster_of,
    start_cohort,
)
from naive_variants import client_without, refusals

from secagg import client_phases
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved, InvalidKey
from secagg.keys import AgreementKey, ShareChannel, advertisement_statement
from secagg.lottery import Draws
from secagg.messages import (
    MASK_KEY,
    SELF_MASK_SEED,
    Advertisement,
    CohortKeys,
    NeighbourShares,
    SurvivorSets,
    UnmaskingRequest,
)

HONEST, COLLUDERS = frozenset(range(10)), frozenset({10, 11})
ALL = HONEST | COLLUDERS

SUCCEEDS, ANOTHER_CHECK, CRASHES = "the attack succeeds", "another check stops it", "the participant crashes"


@dataclass(frozen=True)
class Attack:
    """One lie, the check that must find it, and what happens to a participant without that check."""

    run: Callable[[ModuleType], bool]
    check: str  # part of the source of the check, unique in secagg/client_phases.py
    naive: str


ATTACKS: dict[str, Attack] = {}


def attack(check: str, naive: str = SUCCEEDS) -> Callable[[Callable[[ModuleType], bool]], None]:
    def register(run: Callable[[ModuleType], bool]) -> None:
        assert run.__name__ not in ATTACKS
        ATTACKS[run.__name__] = Attack(run, check, naive)

    return register


def brought_to(phase: str, client: ModuleType, config: RoundConfig | None = None) -> Cohort:
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


@attack("this participant is not on the roster", ANOTHER_CHECK)
def invited_without_being_on_the_roster(client: ModuleType) -> bool:
    config = make_config(12)
    stranger = next(key for key in identities(13) if key.public not in config.roster.positions)
    _, advertisement = client.AdvertiseKeys(config, stranger, bytes).advertise()
    return len(advertisement.signature) == 64


@attack("this participant did not win the round's lottery")
def invited_without_having_won(client: ModuleType) -> bool:
    config = drawn_config()
    loser = next(who for who in range(20) if who not in config.invited)
    _, advertisement = client.AdvertiseKeys(config, identities(20)[loser], bytes).advertise()
    return len(advertisement.signature) == 64


# ---------------------------------------------------------------- ShareKeys: the cohort


@attack("u1 names somebody who is not on the roster")
def a_victim_among_colluders(client: ModuleType) -> bool:
    """The victim has won its own place; those who haven't are put around it."""
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


@attack("u1 is not strictly ascending")
def u1_in_another_order(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    members = list(cohort.keys().members)
    members[3], members[4] = members[4], members[3]
    return deals(cohort, CohortKeys(tuple(members)))


@attack("u1 is not strictly ascending", CRASHES)
def a_colluder_listed_twice(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    members = cohort.keys().members
    return deals(cohort, CohortKeys((*members[:8], *members[10:], *members[10:])))


@attack("u1 names somebody who is not on the roster")
def a_colluder_counts_twice_by_a_negative_position(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    again = AgreementKey(b"a" * 32).public, AgreementKey(b"b" * 32).public
    members = [(-1, signed_by(cohort.config, 11, *again)), *cohort.keys().members]
    del members[5]
    return deals(cohort, CohortKeys(tuple(members)))


@attack("u1 names somebody who is not on the roster", CRASHES)
def a_stranger_beyond_the_roster(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    members = cohort.keys().members
    return deals(cohort, CohortKeys((*members[:11], (12, members[11][1]))))


@attack("members, outside")
def a_cohort_of_one_honest_participant(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    return deals(cohort, CohortKeys(tuple((who, cohort.advertisements[who]) for who in (0, 10, 11))))


@attack("the cohort is not the whole roster")
def a_cohort_that_the_coordinator_chose(client: ModuleType) -> bool:
    config = make_config(12, roster=13)
    _, advertisement = client.AdvertiseKeys(config, identities(13)[0], bytes).advertise()
    return len(advertisement.signature) == 64


@attack("own keys unaltered")
def own_mask_key_altered(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    mine = cohort.advertisements[0]
    return deals(cohort, told(cohort, {0: replace(mine, mask_key=AgreementKey(b"k" * 32).public)}))


@attack("own keys unaltered", ANOTHER_CHECK)
def own_keys_left_out(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    return deals(cohort, CohortKeys(cohort.keys().members[1:]))


@attack("an advertisement of a neighbour is missing", CRASHES)
def only_the_digest_of_a_neighbour(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    return deals(cohort, told(cohort, {3: cohort.advertisements[3].digest()}))


@attack("is not 32 bytes long")
def a_colluders_key_is_too_short(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    short = signed_by(cohort.config, 10, b"k" * 31, cohort.advertisements[10].channel_key)
    return deals(cohort, told(cohort, {10: short}))


@attack("the same public key is advertised twice")
def a_colluder_copies_an_honest_mask_key(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    copied = signed_by(cohort.config, 10, cohort.advertisements[3].mask_key, cohort.advertisements[10].channel_key)
    return deals(cohort, told(cohort, {10: copied}))


@attack("the same public key is advertised twice")
def a_colluder_uses_one_key_in_both_roles(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    key = cohort.advertisements[10].channel_key
    return deals(cohort, told(cohort, {10: signed_by(cohort.config, 10, key, key)}))


@attack("are not signed by it")
def in_the_middle_of_all_channels(client: ModuleType) -> bool:
    """The coordinator shows keys of its own as everybody else's, and opens what is sealed with them."""
    cohort = brought_to("ShareKeys", client)
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


@attack("are not signed by it")
def a_neighbours_keys_of_an_earlier_round(client: ModuleType) -> bool:
    """The mask key of somebody who dropped out of that round is known to the coordinator."""
    cohort = brought_to("ShareKeys", client, make_config(12, round_=2))
    earlier = start_cohort(make_config(12, round_=1)).advertisements[3]
    return deals(cohort, told(cohort, {3: earlier}))


@attack("are not signed by it")
def two_neighbours_change_names(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    return deals(cohort, told(cohort, {3: cohort.advertisements[4], 4: cohort.advertisements[3]}))


@attack("are not signed by it")
def a_neighbours_keys_change_roles(client: ModuleType) -> bool:
    cohort = brought_to("ShareKeys", client)
    one = cohort.advertisements[3]
    swapped = replace(one, mask_key=one.channel_key, channel_key=one.mask_key)
    return deals(cohort, told(cohort, {3: swapped}))


@attack("are not signed by it")
def shown_another_model(client: ModuleType) -> bool:
    """One participant trains another model: its update in the sum would be told apart."""
    cohort = brought_to("ShareKeys", client)
    other = start_cohort(make_config(12, model_digest=b"M" * 32), client=client)
    mixed = told(cohort, {0: other.advertisements[0]})
    return deals(other, mixed) and deals(cohort, mixed, who=1)


@attack("are not signed by it")
def shown_another_plan(client: ModuleType) -> bool:
    """One participant is told of more survivors than the others ask for."""
    cohort = brought_to("ShareKeys", client, make_config(12, min_survivors=8, quorum=10))
    other = start_cohort(make_config(12, min_survivors=10, quorum=10), client=client)
    mixed = told(cohort, {0: other.advertisements[0]})
    return deals(other, mixed) and deals(cohort, mixed, who=1)


# ---------------------------------------------------------------- MaskedInputCollection: u2


@attack("u2 is not an ascending list of neighbours")
def colluders_repeated_until_u2_is_large_enough(client: ModuleType) -> bool:
    """The victim masks with nobody but colluders, whose masks the adversary computes."""
    cohort = brought_to("MaskedInputCollection", client)
    shares = [cohort.dealt(colluder, 0) for colluder in (10, 11) for _ in range(4)]
    cohort.mask(0, COLLUDERS | {0}, NeighbourShares(tuple(shares)))
    return 0 in cohort.uploads


@attack("u2 is not an ascending list of neighbours", CRASHES)
def ones_own_dealing_comes_back(client: ModuleType) -> bool:
    cohort = brought_to("MaskedInputCollection", client)
    message = cohort.neighbour_shares(0, ALL)
    cohort.mask(0, ALL, NeighbourShares((cohort.dealt(0, 3), *message.shares)))
    return 0 in cohort.uploads


@attack("u2 has {len(dealers) + 1} members")
def u2_below_the_quorum(client: ModuleType) -> bool:
    cohort = brought_to("MaskedInputCollection", client)
    cohort.mask(0, {0, 1, 10, 11})
    return 0 in cohort.uploads


@attack("the dealing of {dealt.dealer} is not signed by it")
def two_cohorts_of_one_attempt(client: ModuleType) -> bool:
    """Two cohorts are shown to disjoint participants; both reach every number the plan asks for, by listing people
    of the other one, whose advertisements are good in both.

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


@attack("u3 is not a subset of u2")
def u3_filled_up_with_people_outside_u2(client: ModuleType) -> bool:
    config = make_config(12, min_survivors=10, quorum=10)
    cohort = brought_to("ShareKeys", client, config)
    u2, present = ALL - {8, 9}, frozenset({0, 1, 2, 3, 4, 5, 10, 11})
    cohort.deal(u2)
    for one in present:
        cohort.mask(one, u2)
    sign_and_unmask(cohort, present - COLLUDERS, (u2, present | {8, 9}))
    return cohort.opens(present)  # 8 inputs, where the plan promises 10


@attack("this participant's upload was left out of u3")
def a_participant_helps_to_open_a_sum_without_its_own_input(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    return len(cohort.sign(0, (ALL, ALL - {0}))) == 64


@attack("u2 has {len(u2)}", ANOTHER_CHECK)
def u2_shrinks_afterwards(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    few = frozenset({0, 1, 2, 3, 4, 10, 11})
    return len(cohort.sign(0, (few, few))) == 64


@attack("u3 has {len(u3)}")
def u3_below_min_survivors(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client, make_config(12, min_survivors=10, quorum=10))
    few = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
    sign_and_unmask(cohort, few - COLLUDERS, (ALL, few))
    return cohort.opens(few)


@attack("u2 is not the set this participant masked with")
def some_are_told_that_others_missed_u2(client: ModuleType) -> bool:
    """Two participants mask with nobody who stays, and later sign what all sign: the sum of those two opens."""
    cohort = brought_to("MaskedInputCollection", client)
    victims, others, dropped = frozenset({0, 1}), frozenset({2, 3, 4, 5}), frozenset({6, 7, 8, 9})
    for one in victims:
        cohort.mask(one, victims | dropped | COLLUDERS)
    for one in others | COLLUDERS:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, victims | others, (ALL, ALL - dropped))
    return cohort.opens(victims)


# ---------------------------------------------------------------- Unmasking: the signatures


def split_views() -> dict[int, Sets]:
    """Each of ten honest participants is told of eight survivors, itself among them, but of different ones.

    Each of 0 to 5 is called a dropout to six participants: with two colluders that makes eight shares of its mask
    key. The sum of the other six opens, though nobody saw fewer than eight survivors.
    """
    dropped = {one: {(one + step) % 6 for step in (1, 2, 3, 4)} for one in range(6)}
    dropped |= {6: {0, 1, 2, 3}, 7: {4, 5, 0, 1}, 8: {2, 3, 4, 5}, 9: {0, 1, 2, 3}}
    return {one: (ALL, ALL - frozenset(gone)) for one, gone in dropped.items()}


FEW = frozenset({6, 7, 8, 9}) | COLLUDERS  # 4 honest inputs, where the plan promises 6


@attack("signatures over the survivors")
def split_u3_with_too_few_signatures(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    for one, sets in split_views().items():
        signatures = {one: cohort.sign(one, sets)} | {other: cohort.forge(other, sets) for other in COLLUDERS}
        cohort.unmask(one, sets, signatures)
    return cohort.opens(FEW)


@attack("the signers are not an ascending list of members of u3")
def split_u3_with_one_signature_repeated(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    for one, sets in split_views().items():
        cohort.unmask(one, sets, [(one, cohort.sign(one, sets))] * 8)
    return cohort.opens(FEW)


@attack("the signers are not an ascending list of members of u3")
def signed_by_people_outside_u3(client: ModuleType) -> bool:
    """Six in u3 sign; two more signatures come from participants that were called dropouts."""
    cohort = brought_to("ConsistencyCheck", client)
    sets = ALL, ALL - {8, 9}
    statement = cohort.statement(sets)
    outside = {one: identities(12)[one].sign(statement) for one in (8, 9)}
    inside = {one: cohort.sign(one, sets) for one in range(6)}
    cohort.unmask(0, sets, inside | outside)
    return bool(cohort.shares)


@attack("doesn't cover these sets")
def split_u3_with_signatures_over_other_sets(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    views = split_views()
    signatures = {one: cohort.sign(one, sets) for one, sets in views.items()}
    signatures |= {one: cohort.forge(one, views[0]) for one in COLLUDERS}
    for one, sets in views.items():
        cohort.unmask(one, sets, {signer: signatures[signer] for signer in sets[1]})
    return cohort.opens(FEW)


@attack("doesn't cover these sets")
def signatures_of_the_same_sets_in_an_earlier_attempt(client: ModuleType) -> bool:
    earlier = brought_to("ConsistencyCheck", client_phases, make_config(12, attempt=1))
    cohort = brought_to("ConsistencyCheck", client, make_config(12, attempt=2))
    replayed = {one: earlier.sign(one, (ALL, ALL)) for one in HONEST}
    cohort.sign(0, (ALL, ALL))
    cohort.unmask(0, (ALL, ALL), replayed)
    return bool(cohort.shares)


# ---------------------------------------------------------------- what takes a charge back


def takes_back(
    client: ModuleType, cohort: Cohort, who: int, sets: Sets, signatures: Mapping[int, bytes]
) -> bool:
    """Whether this participant believes that no sum of the attempt holds its input."""
    request = UnmaskingRequest(tuple(sorted(signatures.items())))
    client.excluding_survivors(cohort.phases[who]._cohort, cohort.survivor_sets(sets), request)
    return True


def test_whoever_is_not_in_the_signed_sum_takes_its_charge_back() -> None:
    cohort = brought_to("ConsistencyCheck", client_phases)
    sets = ALL, ALL - {0}
    signed = {one: cohort.sign(one, sets) for one in HONEST - {0}}
    assert takes_back(client_phases, cohort, 0, sets, signed)
    with pytest.raises(CoordinatorMisbehaved, match="without this participant"):
        takes_back(client_phases, cohort, 1, sets, signed)


@attack("u3 was said to be without this participant")
def told_that_its_own_sum_was_without_it(client: ModuleType) -> bool:
    """The sum holds its input, and its budget would be as if it had never taken part."""
    cohort = brought_to("ConsistencyCheck", client)
    return takes_back(client, cohort, 0, (ALL, ALL), {one: cohort.sign(one, (ALL, ALL)) for one in HONEST - {0}})


@attack("signatures over the survivors")
def told_by_colluders_alone_that_it_was_left_out(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    sets = ALL, ALL - {0}
    return takes_back(client, cohort, 0, sets, {one: cohort.forge(one, sets) for one in COLLUDERS})


@attack("doesn't cover these sets")
def told_with_signatures_over_a_sum_that_holds_it(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    signed = {one: cohort.sign(one, (ALL, ALL)) for one in HONEST - {0}}
    return takes_back(client, cohort, 0, (ALL, ALL - {0}), signed)


@attack("the signers are not an ascending list of members of u3")
def told_with_one_signature_repeated(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    sets = ALL, ALL - {0}
    request = UnmaskingRequest(((1, cohort.sign(1, sets)),) * 8)
    client.excluding_survivors(cohort.phases[0]._cohort, cohort.survivor_sets(sets), request)
    return True


@attack("this phase is over for this participant")
def asked_to_sign_many_survivor_sets(client: ModuleType) -> bool:
    """The same phase is asked again and again: then every split view gets all signatures it needs."""
    cohort = brought_to("ConsistencyCheck", client)
    checks, views = dict(cohort.phases), split_views()
    signed = {
        one: {signer: checks[signer].receive(cohort.survivor_sets(sets)) for signer in sets[1] & HONEST}
        for one, sets in views.items()
    }
    for one, sets in views.items():
        cohort.phases[one] = signed[one][one][0]
        signatures = {signer: message.signature for signer, (_, message) in signed[one].items()}
        cohort.unmask(one, sets, signatures | {other: cohort.forge(other, sets) for other in COLLUDERS})
    return cohort.opens(FEW)


@attack("is not what this phase waits for", CRASHES)
def a_message_of_another_phase(client: ModuleType) -> bool:
    """Every pair of phase and message is in test_every_message.py."""
    cohort = brought_to("ConsistencyCheck", client)
    return bool(cohort.phases[0].receive(cohort.keys()))


@attack("a second, different unmasking request")
def a_second_unmasking_request(client: ModuleType) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    sets = ALL, ALL
    signatures = {one: cohort.sign(one, sets) for one in HONEST}
    cohort.unmask(0, sets, signatures)
    fewer = UnmaskingRequest(tuple(sorted(signatures.items()))[:8])
    return len(cohort.phases[0].receive(fewer).shares) == 12


@attack("a second, different unmasking request")
def a_second_unmasking_request_with_a_signer_that_has_no_digest(client: ModuleType) -> bool:
    """Positions that don't fit eight bytes: `request_digest` has no bytes for them and must not be asked."""
    cohort = brought_to("ConsistencyCheck", client)
    signatures = {one: cohort.sign(one, (ALL, ALL)) for one in HONEST}
    cohort.unmask(0, (ALL, ALL), signatures)
    return len(cohort.phases[0].receive(UnmaskingRequest(((-1, bytes(64)), (1 << 70, bytes(64))))).shares) == 12


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_stopped(name: str) -> None:
    with pytest.raises(CoordinatorMisbehaved) as caught:
        ATTACKS[name].run(client_phases)
    # What was refused is what the check under test refuses: compare the words without the numbers between them.
    text = next(text for text in refusals(client_phases, "CoordinatorMisbehaved") if ATTACKS[name].check in text)
    words = [piece for piece in _constant_pieces(text) if len(piece) > 3]
    assert all(word in caught.value.reason for word in words), (caught.value.reason, words)


def _constant_pieces(text: str) -> list[str]:
    """The fixed parts of the message in the source of a ``raise``."""
    call = ast.parse(text).body[0].exc  # type: ignore[attr-defined]
    message = call.args[-1]
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return [part.value for part in parts if isinstance(part, ast.Constant)]


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_on_a_naive_participant(name: str) -> None:
    naive = client_without(ATTACKS[name].check)
    match ATTACKS[name].naive:
        case "the attack succeeds":
            assert ATTACKS[name].run(naive)
        case "another check stops it":
            with pytest.raises(CoordinatorMisbehaved):
                ATTACKS[name].run(naive)
        case "the participant crashes":
            with pytest.raises((KeyError, IndexError, ValueError, RuntimeError, AttributeError)):
                ATTACKS[name].run(naive)


def test_every_check_of_a_participant_has_its_attack() -> None:
    """Checks that aren't in the list: malformed bitmaps and keys without an agreement, tested below; and draws."""
    checks = refusals(client_phases, "CoordinatorMisbehaved")
    without = [text for text in checks if not any(one.check in text for one in ATTACKS.values())]
    assert [text for text in without if "error" not in text] == []
    assert len(without) == 5


# ---------------------------------------------------------------- checks that are not one `if`


@pytest.mark.parametrize("key", LOW_ORDER, ids=[key.hex()[:8] for key in LOW_ORDER])
def test_low_order_keys_of_a_colluder(key: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(12)

    def channel(client: ModuleType) -> bool:
        cohort = brought_to("ShareKeys", client, config)
        mine = signed_by(config, 10, cohort.advertisements[10].mask_key, key)
        return deals(cohort, told(cohort, {10: mine}))

    def mask(client: ModuleType) -> bool:
        cohort = brought_to("ShareKeys", client, config)
        cohort.advertisements[10] = signed_by(config, 10, key, cohort.advertisements[10].channel_key)
        cohort = Cohort(config, cohort.u1, cohort.advertisements, cohort.phases)
        cohort.deal(ALL - {10})
        cohort.mask(0, ALL - {10, 11})  # without 10, nothing is wrong
        cohort.sealed[10] = replace(cohort.sealed[11])
        colluder = identities(12)[10]
        dealt = cohort.dealt(11, 1)
        statement = client_phases.dealing_statement(cohort.context, colluder.public, dealt.root, dealt.seed_commitment)
        shares = list(cohort.neighbour_shares(1, ALL - {10, 11}).shares)
        shares.append(replace(dealt, dealer=10, signature=colluder.sign(statement)))
        cohort.mask(1, ALL - {11}, NeighbourShares(tuple(shares)))
        return 1 in cohort.uploads

    for run in (channel, mask):
        with pytest.raises(CoordinatorMisbehaved, match="low order"):
            run(client_phases)

    def agree(self: AgreementKey, public: bytes) -> bytes:
        try:
            return real(self, public)
        except InvalidKey:
            return bytes(32)

    real = AgreementKey.agree
    monkeypatch.setattr(AgreementKey, "agree", agree)
    assert channel(client_phases)
    assert mask(client_phases)


@pytest.mark.parametrize("wrong", [b"", b"\xff", b"\xff\xff\xff", b"\xff\x1f", b"\xff\x8f"])
def test_malformed_bitmaps(wrong: bytes) -> None:
    for sets in (SurvivorSets(wrong, b"\xff\x0f"), SurvivorSets(b"\xff\x0f", wrong)):
        cohort = brought_to("ConsistencyCheck", client_phases)
        with pytest.raises(CoordinatorMisbehaved, match="bit"):
            cohort.phases[0].receive(sets)


@pytest.mark.parametrize("phase", ["ShareKeys", "MaskedInputCollection", "ConsistencyCheck"])
def test_a_phase_that_refused_does_not_take_a_better_message(phase: str) -> None:
    """Otherwise a coordinator could try until one lie passes."""
    cohort = brought_to(phase, client_phases)
    good, bad = {
        "ShareKeys": (cohort.keys(), CohortKeys(())),
        "MaskedInputCollection": (None, NeighbourShares(())),
        "ConsistencyCheck": (SurvivorSets(b"\xff\x0f", b"\xff\x0f"), SurvivorSets(b"", b"")),
    }[phase]
    good = cohort.neighbour_shares(0, ALL) if good is None else good
    before = cohort.phases[0]
    refuses(lambda: before.receive(bad), CoordinatorMisbehaved)
    with pytest.raises(CoordinatorMisbehaved, match="over for this participant"):
        before.receive(good)


def test_nothing_that_is_sent_can_lower_the_threshold() -> None:
    """Threshold and number of signatures follow from u1 and the plan; no message has a field for them."""
    for u1 in range(8, 13):
        config = make_config(12)
        cohort = start_cohort(config, u1=range(u1))
        cohort.deal([0])
        threshold = config.parameters.threshold(u1)
        assert threshold == (u1 + 2) // 2 + 1
        held = cohort.phases[0]._cohort.graph.threshold
        assert held == threshold == config.parameters.signatures_needed(u1)


def test_a_reply_is_repeated_byte_for_byte_and_the_shares_are_gone() -> None:
    cohort = brought_to("ConsistencyCheck", client_phases)
    signatures = {one: cohort.sign(one, (ALL, ALL)) for one in HONEST}
    request = UnmaskingRequest(tuple(sorted(signatures.items())))
    unmasking = cohort.phases[0]
    answered, reply = unmasking.receive(request)
    assert answered.receive(request) is reply
    assert not unmasking._held
    with pytest.raises(CoordinatorMisbehaved, match="over for this participant"):
        unmasking.receive(request)


# ---------------------------------------------------------------- sealed shares that are not what they should be


def damaged(cohort: Cohort, how: str) -> NeighbourShares:
    """What participant 0 gets: everything is right but what comes from participant 3."""
    message = cohort.neighbour_shares(0, ALL)
    at = next(i for i, dealt in enumerate(message.shares) if dealt.dealer == 3)
    one = message.shares[at]
    match how:
        case "tampered":
            one = replace(one, ciphertext=flip(one.ciphertext, 50))
        case "swapped with another receiver's":
            one = replace(one, ciphertext=cohort.dealt(3, 1).ciphertext)
        case "swapped with another dealer's":
            one = replace(one, ciphertext=cohort.dealt(4, 0).ciphertext)
        case "reflected":
            one = replace(one, ciphertext=cohort.dealt(0, 3).ciphertext)
        case "of another attempt":
            other = start_cohort(make_config(12, attempt=2))
            other.deal([3])
            one = replace(one, ciphertext=other.dealt(3, 0).ciphertext)
        case "cut short":
            one = replace(one, ciphertext=one.ciphertext[:-1])
        case "with another path":
            one = replace(one, path=cohort.dealt(3, 1).path)
        case "with a path that is too long":
            one = replace(one, path=(*one.path, bytes(32)))
        case "with a path of odd hashes":
            one = replace(one, path=(b"short", *one.path[1:]))
        case "with symbols outside the field":
            one = replace(one, ciphertext=_sealed(cohort, b"\xff" * 96))
        case "with other shares than committed":
            one = replace(one, ciphertext=_sealed(cohort, bytes(96)))
    return NeighbourShares((*message.shares[:at], one, *message.shares[at + 1 :]))


def _sealed(cohort: Cohort, plaintext: bytes) -> bytes:
    """What a dealer that doesn't follow the protocol could seal for participant 0."""
    end = cohort.phases[3]._cohort
    return end.channel(cohort.phases[3]._agreements[0], 3, 0).seal(plaintext)


DAMAGES = [
    "tampered",
    "swapped with another receiver's",
    "swapped with another dealer's",
    "reflected",
    "of another attempt",
    "cut short",
    "with another path",
    "with a path that is too long",
    "with a path of odd hashes",
    "with symbols outside the field",
    "with other shares than committed",
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_share_costs_its_dealer_a_share_and_nothing_else(how: str) -> None:
    cohort = brought_to("MaskedInputCollection", client_phases)
    cohort.mask(0, ALL, damaged(cohort, how))
    for one in ALL - {0}:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, HONEST, (ALL, ALL))
    assert cohort.graph.x(0) not in cohort.shares[3, SELF_MASK_SEED]
    assert cohort.graph.x(0) in cohort.shares[4, SELF_MASK_SEED]
    assert cohort.opens(ALL)


def keeps_what_misses_its_commitment(client: ModuleType) -> bool:
    cohort = brought_to("MaskedInputCollection", client)
    cohort.mask(0, ALL, damaged(cohort, "with other shares than committed"))
    for one in ALL - {0}:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, HONEST, (ALL, ALL))
    return cohort.graph.x(0) in cohort.shares[3, SELF_MASK_SEED]


def keeps_symbols_outside_the_field(client: ModuleType) -> bool:
    cohort = brought_to("MaskedInputCollection", client)
    shares = np.full((12, 2, 16), 65521, np.uint16)
    cohort.sealed[3] = crooked_dealing(cohort.phases[3], shares, bytes(32))
    for one in ALL - {3}:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, HONEST - {3}, (ALL, ALL - {3}))
    return cohort.graph.x(0) in cohort.shares.get((3, MASK_KEY), {})


@pytest.mark.parametrize(
    ("run", "check"),
    [
        (keeps_what_misses_its_commitment, "verify_path"),
        (keeps_symbols_outside_the_field, "shares >= shamir.PRIME"),
    ],
)
def test_a_wrong_share_is_found_on_arrival(run: Callable[[ModuleType], bool], check: str) -> None:
    """Later it would be its holder who is dropped for it."""
    assert not run(client_phases)
    assert run(client_without(check))


@pytest.mark.parametrize("changed", ["root", "seed_commitment", "signature"])
def test_a_dealing_that_was_changed_on_the_way_ends_the_attempt(changed: str) -> None:
    """The coordinator has checked the dealer's signature before; whoever sees a bad one knows who broke it."""
    cohort = brought_to("MaskedInputCollection", client_phases)
    message = cohort.neighbour_shares(0, ALL)
    wrong = replace(message.shares[2], **{changed: flip(getattr(message.shares[2], changed))})
    with pytest.raises(CoordinatorMisbehaved, match="not signed by it"):
        cohort.mask(0, ALL, NeighbourShares((*message.shares[:2], wrong, *message.shares[3:])))


def test_late_masked_inputs_stay_closed() -> None:
    """Participant 9 was called a dropout and its mask key opened; its upload arrives after all."""
    cohort = brought_to("ConsistencyCheck", client_phases)
    sign_and_unmask(cohort, HONEST - {9}, (ALL, ALL - {9}))
    assert 9 in cohort.uploads
    assert cohort.private_mask_key(9) is not None
    assert cohort.opens(ALL - {9})
    assert not cohort.opens({9})
    assert not cohort.opens(ALL)


def test_keys_are_fresh_in_every_attempt() -> None:
    advertised = [
        one for attempt in (1, 2) for one in advertise(make_config(12, attempt=attempt), range(12))[1].values()
    ]
    assert len({key for one in advertised for key in (one.mask_key, one.channel_key)}) == 48
