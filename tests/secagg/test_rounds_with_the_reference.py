"""Random rounds played by the core, by the reference (tests/reference/) and by some of each agree in every byte."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from tests.reference.coordinator import Coordinator
from tests.reference.participant import Participant
from tests.reference.rounds import Record, identity_seeds, input_of, run_round, setting_of, stream_of
from tests.reference.setting import KEY_AGREEMENTS, Setting
from tests.reference.vectors_mod_2b import add_vectors
from tests.secagg.fast_sides import FastCoordinator, FastParticipant

Attempt = tuple[Setting, dict[str, set[int]], str, list[bool]]


def attempt_of(seed: int, ring: bool) -> Attempt:
    """A setting, dropouts by phase, a name for the randomness, and the participants that the reference plays.

    On a ring also without signatures, and bounds differ from each other and from the signatures needed. Drawn from a
    seed, since hypothesis repeats a few corners: of twenty rounds too few would have dropouts and end.
    """
    draw = Random(seed)
    count = draw.randint(6, 11) if ring else draw.choice((3, 5, 6, 7, 7))
    signatures = (count + 2) // 2 + 1
    least = draw.randint(signatures, min(count, signatures + 1)) if ring else signatures
    degree = draw.choice((2, 4, 4, 6, 6)) if count > 8 else draw.choice((2, 4))
    agreed = setting_of(
        count,
        bits=draw.choice((1, 8, 12, 16, 20, 31, 32, 33, 62)),
        dim=draw.randint(1, 9 if ring else 40),
        colluders=draw.randint(0, 2),
        min_survivors=least,
        quorum=draw.randint(least, min(count, least + 1)) if ring else least,
        round_=draw.randint(1, 2**40),
        attempt=draw.randint(1, 9),
        sharing=(degree, draw.randint(2, max(2, degree // 2 + draw.choice((0, 0, 1))))) if ring else None,
        adversary=draw.choice(("malicious", "malicious", "semi-malicious", "curious")) if ring else "malicious",
        key_agreement=draw.choice(KEY_AGREEMENTS),
        released=released(draw, count, least),
    )
    if ring and draw.random() < 0.2:
        agreed = replace(agreed, sharing=None)  # too few for a ring by the rule
    # As many leave as can be spared, now and then one more.
    leaving = draw.randint(0, count - least) if ring else count - least + draw.choice((0, 0, 0, 1))
    return agreed, silence(draw, agreed, leaving), f"seed {seed}", draw.choices((True, False), k=count + 1)


def released(draw: Random, count: int, least: int) -> tuple[int, ...]:
    """Any noise seeds for each number of survivors, or none at all."""
    most = draw.choice((0, 1, 2, 5))
    return tuple(draw.randrange(1 << most) for _ in range(least, count + 1)) if most else ()


def silence(draw: Random, agreed: Setting, leaving: int) -> dict[str, set[int]]:
    silent: dict[str, set[int]] = {}
    for who in draw.sample(range(len(agreed.roster)), leaving):
        silent.setdefault(draw.choice(agreed.numbers.phases), set()).add(who)
    return silent


def played(attempt: Attempt, by_reference: list[bool]) -> tuple[Record, list[bytes]]:
    """A round whose participants, and at last whose coordinator, are the reference's or the core's."""
    agreed, silent, name, _ = attempt
    everybody = range(len(agreed.roster))
    seeds, streams = identity_seeds(len(agreed.roster)), [stream_of(agreed, who, name) for who in everybody]
    people: dict[int, Any] = {
        who: Participant(agreed, seeds[who], streams[who])
        if by_reference[who]
        else FastParticipant(agreed, seeds[who], streams[who].take)
        for who in everybody
    }
    coordinator: Any = Coordinator(agreed) if by_reference[-1] else FastCoordinator(agreed)
    inputs = {who: input_of(agreed, who) for who in everybody}
    record = run_round(people, coordinator, inputs, silent, phases=agreed.numbers.phases)
    return record, [stream.taken for stream in streams]


def stated(record: Record) -> Any:
    """All messages, all refusals, the end, and the noise seeds."""
    ended = record.ended_by.stated() if record.ended_by else record.total
    refused = [(refusal.stated(), message) for refusal, message in record.refused]
    return record.to_coordinator, record.to_participants, refused, ended, record.noise_seeds


def agree(attempt: Attempt) -> Record:
    """All by the reference, all by the core, and some by each: the same messages and the right sum."""
    agreed, _, _, mixed = attempt
    count = len(agreed.roster) + 1
    reference, randomness = played(attempt, [True] * count)
    core, taken = played(attempt, [False] * count)
    both, taken_by_both = played(attempt, mixed)
    assert stated(core) == stated(reference) == stated(both)
    assert taken == randomness == taken_by_both
    if core.ended_by is None:
        inputs = [input_of(agreed, who) for who in core.to_coordinator["MaskedInputCollection"]]
        assert core.total == add_vectors(inputs, agreed.numbers.dim, agreed.numbers.bits)
    else:
        assert core.ended_by.error == "TooFewClients"
    return core


# A round is small as it is; making a failing one smaller takes minutes.
def several(rounds: int) -> settings:
    return settings(
        max_examples=rounds,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )


@several(20)
@given(st.integers(0, 2**64 - 1))
@pytest.mark.long
def test_random_rounds_agree_in_every_byte(seed: int) -> None:
    assert not agree(attempt_of(seed, ring=False)).refused


@several(14)
@given(st.integers(0, 2**64 - 1))
@pytest.mark.long
def test_random_rounds_on_rings_agree_in_every_byte(seed: int) -> None:
    assert not agree(attempt_of(seed, ring=True)).refused


@pytest.mark.parametrize(("adversary", "sharing"), [("malicious", (12, 8)), ("curious", (8, 3))])
def test_a_ring_by_the_rule(adversary: str, sharing: tuple[int, int]) -> None:
    """69 members, of whom 65 must stay; the reference plays the coordinator and four participants."""
    agreed = setting_of(70, bits=16, dim=3, min_survivors=65, sharing=(2, 2), adversary=adversary)
    agreed = replace(agreed, sharing=None)
    silent = {"AdvertiseKeys": {9}, "ShareKeys": {69}, "MaskedInputCollection": {3}, agreed.numbers.phases[-1]: {20}}
    reference = [who in (0, 21, 35, 68, 70) for who in range(71)]
    record, _ = played((agreed, silent, "by the rule", []), reference)
    assert not record.refused
    survivors = [who for who in range(70) if who not in (3, 9, 69)]
    assert record.total == add_vectors([input_of(agreed, who) for who in survivors], 3, 16)
    assert agreed.numbers.sharing(69) == sharing
