"""Transcripts of several rounds: each names the one before it, and none can be left out, replaced or written anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.rounds_on_record import (
    AUTHORITY_KEY,
    Ledger,
    card,
    coordinator_key,
    entry_of,
    model_after,
    plan,
    play,
    signed,
    study_of,
    whole,
)
from wire.records.transcript import Check, InvalidTranscript, Transcript, read_transcript, write_transcript
from wire.records.transcript_checks import Chain, verify_transcript


@cache
def rounds() -> tuple[bytes, ...]:
    return tuple(study_of(whole(), [1, 2, 3]))


def check(files: list[bytes] | tuple[bytes, ...]) -> None:
    chain = Chain()
    for data in files:
        chain.add(verify_transcript(data, AUTHORITY_KEY))


def broken(files: list[bytes]) -> str:
    """Each file holds by itself, and the chain doesn't; its sentence."""
    for data in files:
        verify_transcript(data, AUTHORITY_KEY)
    with pytest.raises(InvalidTranscript) as caught:
        check(files)
    assert caught.value.check == Check.CHAIN
    return caught.value.sentence


def test_a_chain_holds_from_wherever_one_begins() -> None:
    check(rounds())
    check(rounds()[1:])
    check(rounds()[2:])


def test_none_can_be_left_out_or_moved() -> None:
    first, second, third = rounds()
    assert "one is missing" in broken([first, third])
    assert "don't grow" in broken([second, first])
    assert "don't grow" in broken([first, first])


def test_a_round_that_was_played_twice_shows() -> None:
    """Both hold, signed by the participants and the coordinator: only side by side they contradict each other."""
    first, _, _ = rounds()
    assert "round 1 after round 1" in broken([first, play(whole(), 1, 2).write()])


def test_a_chain_goes_over_rounds_without_a_transcript() -> None:
    first = rounds()[0]
    ledger = Ledger(5)
    finished = play(whole(), 3)
    row = ledger.charge(entry_of(whole(), 3, 1, finished.unmasking.u3))
    check([first, finished.write(row, previous=hashlib.sha256(first).digest())])


def test_the_roster_may_grow_and_shrink_and_never_goes_back() -> None:
    settings = [whole(7), whole(7, version=2), replace(whole(7), version=3, members=(0, 1, 2, 3, 4, 6, 8))]
    check(grown(settings))
    assert "goes back" in broken(grown([settings[1], settings[0]]))
    assert "two rosters" in broken(grown([settings[1], replace(settings[2], version=2)]))


def grown(settings: list[Any]) -> list[bytes]:
    """One round with each roster; numbers by identity, in the order of first appearance."""
    ledger, files, previous, known = Ledger(), list[bytes](), None, dict[bytes, int]()
    for round_, setting in enumerate(settings, start=1):
        finished = play(setting, round_)
        for entry in setting.roster.entries:
            known.setdefault(entry.identity, len(known))
        numbers = {who: known[setting.roster.identity(who)] for who in finished.unmasking.u3}
        row = ledger.charge(entry_of(setting, round_, 1, numbers.values()))
        files.append(finished.write(row, previous=previous, numbers=numbers))
        previous = hashlib.sha256(files[-1]).digest()
    return files


def second_with(change: Callable[[Transcript], Transcript]) -> list[bytes]:
    first, second, _ = rounds()
    return [first, signed(change(read_transcript(second)))]


def a_row_between(found: Transcript) -> Transcript:
    row = Ledger(1).charge(entry_of(whole(), 2, 1, found.u3))
    return replace(found, charge=replace(found.charge, previous=row.previous, hash=row.hash))


def a_row_before(found: Transcript) -> Transcript:
    row = Ledger(0).charge(entry_of(whole(), 2, 1, found.u3))
    return replace(found, charge=replace(found.charge, number=1, previous=row.previous, hash=row.hash))


LIES: dict[str, tuple[str, Callable[[Transcript], Transcript]]] = {
    "another one before": ("one is missing", lambda t: replace(t, previous=bytes(32))),
    "a beginning of its own": ("one is missing", lambda t: replace(t, previous=None)),
    # Charged to the last survivor where the first was meant: the row names the same numbers.
    "another participant under a number": ("another participant", lambda t: replace(t, numbers=t.numbers[::-1])),
    "another ledger": ("doesn't follow", a_row_between),
    "an earlier row": ("don't grow", a_row_before),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_the_coordinator_signs_anew_doesnt_follow(lie: str) -> None:
    sentence, change = LIES[lie]
    assert sentence in broken(second_with(change))


def test_a_round_begins_with_the_model_that_the_one_before_ended_with() -> None:
    """What the next round trained on is signed by its participants: the coordinator's word is held against it."""
    first, second, _ = rounds()
    assert read_transcript(second).model_sha256 == read_transcript(first).next_model_sha256 == model_after(1)
    lie = signed(replace(read_transcript(first), next_model_sha256=bytes(32)))
    follows = replace(read_transcript(second), previous=hashlib.sha256(lie).digest())
    assert "another model" in broken([lie, signed(follows)])


def test_study_and_key_stay() -> None:
    first, second, _ = rounds()
    previous = hashlib.sha256(first).digest()
    ledger = Ledger()
    ledger.charge(entry_of(whole(), 1, 1, range(7)))
    setting = whole(plan=plan(7, epsilon=200.0))
    finished = play(setting, 2)
    row = ledger.charge(entry_of(setting, 2, 1, finished.unmasking.u3))
    assert "two rosters of version 1" in broken([first, finished.write(row, previous=previous)])
    later = replace(setting, version=2)
    finished = play(later, 2)
    assert "study document" in broken([first, finished.write(row, previous=previous)])

    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert other is not coordinator_key()
    found = replace(read_transcript(second), card=card(key=other))
    data = write_transcript(
        found, other, sum_sha256=found.sum_sha256, next_model_sha256=model_after(2), previous=previous
    )
    assert "coordinator's key" in broken([first, data])
