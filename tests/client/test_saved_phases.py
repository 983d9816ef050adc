"""Attempts whose participants live in sealed states: right sums, and no second answer from a state of before."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from client.saved_phases import SavedPhases, SpentState
from secagg.client_phases import AdvertiseKeys
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved
from secagg.in_memory import InMemoryAttempt, fresh_roster
from secagg.keys import ZERO_NONCE
from secagg.messages import (
    ADVERTISE_KEYS,
    CONSISTENCY_CHECK,
    MASKED_INPUT,
    SHARE_KEYS,
    UNMASKING,
    SurvivorSets,
    to_bitmap,
)
from secagg.parameters import HARARY, HYBRID, RoundParameters
from secagg.saved_phases import InvalidState, _bound_to, open_phase, seal_phase

BITS = 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SavedPhases]:
    with SavedPhases(tmp_path / "states") as opened:
        yield opened


class SavedAttempt(InMemoryAttempt):
    """Each participant is a sealed state between two messages; the first one's states are all kept."""

    def __init__(self, file: SavedPhases, members: int = 5, round_: int = 1, **changes: Any) -> None:
        roster, identities = fresh_roster("saved", members, os.urandom)
        least = 4 if members == 5 else members - 4
        plan = RoundParameters(
            cohort=members, colluders=2, min_survivors=least, quorum=least, bits=BITS, dim=7, **changes
        )
        config = RoundConfig(
            roster=roster, round=round_, attempt=1, study_digest=bytes(32), model_digest=bytes(32), parameters=plan
        )
        self.file, self.states, self.told = file, {}, {}  # type: ignore[var-annotated]  # of the first participant
        inputs = np.random.default_rng().integers(0, 1 << BITS, (members, 7), np.uint32)
        super().__init__(
            config, dict(enumerate(identities)), lambda _: os.urandom, inputs.__getitem__, leaving={MASKED_INPUT: [1]}
        )

    def answer(self, who: int, message: Any) -> Any:
        identity = self.identities[who]
        if self.phases[who] is None:
            following, answered = self.file.begin(self.config, identity)
        else:
            phase = self.file.resume(self.phases[who], self.config, identity)
            found = phase.receive(message)
            if not isinstance(found, tuple):  # training may take until another message
                saved = self.file.save(found, self.config, identity)
                found = self.file.resume(saved, self.config, identity).mask(self.vector(who))
            following, answered = found
        self.phases[who] = self.file.save(following, self.config, identity)
        if who == 0:
            self.told[self.coordinator.name] = message
            self.states[self.coordinator.name] = self.phases[who]
        return answered


@pytest.mark.parametrize(
    ("members", "changes"),
    [
        (5, {}),
        (5, {"key_agreement": HYBRID, "released": (0, 3)}),
        (70, {"graph": HARARY}),
        (70, {"graph": HARARY, "adversary": "curious"}),
    ],
    ids=["complete", "hybrid with noise seeds", "ring", "curious"],
)
def test_sums_are_right(file: SavedPhases, members: int, changes: dict[str, Any]) -> None:
    attempt = SavedAttempt(file, members, **changes)
    done = attempt.run()
    assert sorted(done.u3) == [who for who in range(members) if who != 1]
    expected = sum(attempt.vector(who).astype(np.uint64) for who in done.u3) % (1 << BITS)
    assert np.array_equal(done.total, expected)


def test_no_state_answers_twice(file: SavedPhases) -> None:
    """Used ones, older ones and those of an attempt that is over, whatever comes next."""
    attempt = SavedAttempt(file)
    attempt.run()
    assert list(attempt.states) == [ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASKING]
    me, last = attempt.identities[0], attempt.states.pop(UNMASKING)
    for state in attempt.states.values():
        with pytest.raises(SpentState, match="not the latest"):
            file.resume(state, attempt.config, me)
    assert file.resume(last, attempt.config, me).receive(attempt.told[UNMASKING])  # the same reply again, once
    with pytest.raises(SpentState, match="was used"):
        file.resume(last, attempt.config, me)


class Naive(SavedPhases):
    """Leaves the key of a state that it has opened."""

    def _write(self, config: Any, identity: Any, key: bytes | None) -> None:
        if key is not None or not self._at(config, identity)[0]:
            super()._write(config, identity, key)


@pytest.mark.parametrize("kind", [SavedPhases, Naive])
def test_a_rolled_back_participant_signs_one_u3(kind: type[SavedPhases], tmp_path: Path) -> None:
    """Two signed sets of survivors would open two sums, whose difference is one participant's input."""
    with kind(tmp_path / "states") as file:
        attempt = SavedAttempt(file)
        for _ in range(3):
            attempt.step()
        me, state = attempt.identities[0], attempt.phases[0]
        u1, statements = tuple(range(5)), set()
        for u3 in (frozenset((0, 1, 2, 3)), frozenset((0, 1, 3, 4))):
            try:
                phase = file.resume(state, attempt.config, me)
            except SpentState:
                continue
            sets = SurvivorSets(to_bitmap(frozenset(u1), u1), to_bitmap(u3, u1))
            statements.add(phase.receive(sets)[0].statement)
        assert len(statements) == (1 if kind is SavedPhases else 2)


def test_an_attempt_is_begun_once(tmp_path: Path) -> None:
    """Also after a restart; and an earlier one isn't begun at all."""
    with SavedPhases(tmp_path / "states") as file:
        attempt = SavedAttempt(file, round_=2)
        attempt.step()
    with SavedPhases(tmp_path / "states") as file:
        with pytest.raises(SpentState, match="round 2, attempt 1 or a later one was begun before"):
            file.begin(attempt.config, attempt.identities[0])
        attempt.file = file
        attempt.run()


def test_a_later_attempt_ends_the_one_before(file: SavedPhases) -> None:
    attempt = SavedAttempt(file)
    attempt.step()
    me, state = attempt.identities[0], attempt.phases[0]
    phase = file.resume(state, attempt.config, me)
    later = replace(attempt.config, attempt=2)
    file.begin(later, me)
    with pytest.raises(SpentState, match="another attempt"):
        file.save(phase, attempt.config, me)
    with pytest.raises(SpentState, match="over"):
        file.resume(state, attempt.config, me)


def test_strange_bytes_use_nothing_up(file: SavedPhases) -> None:
    attempt = SavedAttempt(file)
    attempt.step()
    me, state = attempt.identities[0], attempt.phases[0]
    for strange in (b"", state[:-1], bytes([state[0] ^ 1]) + state[1:], attempt.phases[2]):
        with pytest.raises(SpentState):
            file.resume(strange, attempt.config, me)
    attempt.run()


def test_a_sealed_state_shows_no_secret_and_is_bound_to_its_attempt(file: SavedPhases) -> None:
    attempt = SavedAttempt(file)
    config, me, key = attempt.config, attempt.identities[0], os.urandom(32)
    phase, _ = AdvertiseKeys(config, me, os.urandom).advertise()
    secrets = [phase._keys.mask_key.secrets()[0], phase._keys.channel_key.secrets()[0]]
    sealed = seal_phase(phase, config, me, key)
    assert not any(secret in sealed for secret in secrets)
    with pytest.raises(CoordinatorMisbehaved, match="over"):
        seal_phase(phase, config, me, key)
    other = replace(config, round=2)
    for wrong in ((other, me, key), (config, attempt.identities[1], key), (config, me, bytes(32))):
        with pytest.raises(InvalidState):
            open_phase(sealed, *wrong, os.urandom)
    again = open_phase(sealed, config, me, key, os.urandom)
    assert [again._keys.mask_key.secrets()[0], again._keys.channel_key.secrets()[0]] == secrets


def test_a_state_makes_nothing_but_phases(file: SavedPhases) -> None:
    """Not even one that was encrypted under the right key."""
    attempt = SavedAttempt(file)
    config, me = attempt.config, attempt.identities[0]
    for foreign in (Path("x"), print, SavedPhases):
        sealed = AESGCM(bytes(32)).encrypt(ZERO_NONCE, pickle.dumps(foreign), _bound_to(config, me))
        with pytest.raises(InvalidState):
            open_phase(sealed, config, me, bytes(32), os.urandom)
