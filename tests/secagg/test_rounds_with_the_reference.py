"""Random rounds played by the core, by the reference (tests/reference/) and by some of each agree in every byte."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fast_sides import FastCoordinator, FastParticipant
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reference.coordinator import Coordinator
from tests.reference.participant import Participant
from tests.reference.rounds import Record, identity_seeds, input_of, run_round, setting_of, stream_of
from tests.reference.setting import PHASES, Setting
from tests.reference.vectors_mod_2b import add_vectors


def attempt_of(seed: int) -> tuple[Setting, dict[str, set[int]], str, list[bool]]:
    """A setting, who falls silent when, a name for the randomness, and whom the reference plays.

    Drawn from a seed, since hypothesis by itself tries the same few corners again and again: of twenty rounds too few
    would have dropouts and come to an end.
    """
    draw = Random(seed)
    count = draw.choice((3, 5, 6, 7, 7))
    agreed = setting_of(
        count,
        bits=draw.choice((1, 8, 12, 16, 20, 31, 32, 33, 62)),
        dim=draw.randint(1, 40),
        colluders=draw.randint(0, 2),
        round_=draw.randint(1, 2**40),
        attempt=draw.randint(1, 9),
    )
    # As many leave as can be spared, now and then one more.
    leaving = count - agreed.numbers.threshold(count) + draw.choice((0, 0, 0, 1))
    silent: dict[str, set[int]] = {}
    for who in draw.sample(range(count), leaving):
        silent.setdefault(draw.choice(PHASES), set()).add(who)
    return agreed, silent, f"seed {seed}", draw.choices((True, False), k=count + 1)


def played(attempt: Any, by_reference: list[bool]) -> tuple[Record, list[bytes]]:
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
    record = run_round(people, coordinator, {who: input_of(agreed, who) for who in everybody}, silent)
    return record, [stream.taken for stream in streams]


def stated(record: Record) -> Any:
    """Everything that was said, and how it ended."""
    ended = record.ended_by.stated() if record.ended_by else record.total
    assert not record.refused
    return record.to_coordinator, record.to_participants, ended


# A round is small as it is; making a failing one smaller takes minutes.
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.integers(0, 2**64 - 1))
def test_random_rounds_agree_in_every_byte(seed: int) -> None:
    """All by the reference, all by the core, and some by each: the same messages and the right sum."""
    attempt = attempt_of(seed)
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


@pytest.mark.parametrize("by_reference", [True, False], ids=["reference coordinator", "core coordinator"])
def test_mixed_rounds_open_the_right_sum(by_reference: bool) -> None:
    """Nine participants on one side, the coordinator on the other, one leaves in each of three phases."""
    agreed = setting_of(9, bits=20, dim=33)
    silent = {"AdvertiseKeys": {0}, "ShareKeys": {6}, "MaskedInputCollection": {2}}
    attempt = (agreed, silent, "mixed", [])
    record, _ = played(attempt, [not by_reference] * 9 + [by_reference])
    assert record.total == add_vectors([input_of(agreed, who) for who in (1, 3, 4, 5, 7, 8)], 33, 20)
