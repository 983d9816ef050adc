"""Code with one fault in it: a short search finds it, so that a target that finds nothing says something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import client.credentials
import wire.authority_statements
import wire.codec
import wire.enrolment
import wire.join_code
import wire.records.ledger
import wire.records.transcript
import wire.study
from secagg import client_unmasking, packing, server_phases, server_unmasking
from secagg.errors import CoordinatorMisbehaved, InvalidMessage
from tests.fuzz import core_targets, network_targets
from tests.fuzz.corpus import begin
from tests.fuzz.target import Dice, Target, targets
from wire.transport import unframe

MOST = 3000  # inputs of a search; the corpus comes first
MonkeyPatch = pytest.MonkeyPatch


def finding(target: Target) -> Exception | None:
    """The first that a short search makes."""
    kept = begin(target)
    for number in range(len(kept) + MOST):
        dice = Dice(number)
        changes = 0 if number < len(kept) else 1 + dice.below(3)
        try:
            target.run(target.changed(kept[number % len(kept)], dice, changes))
        except Exception as error:
            return error
    return None


# ---------------------------------------------------------------- faults of decoders


def any_length(monkeypatch: MonkeyPatch) -> None:
    """The codec checks no length."""
    monkeypatch.setattr(wire.codec, "_sized", lambda value, length, name: value)


def chunk_without_its_length(monkeypatch: MonkeyPatch) -> None:
    """A chunk is taken for as long as it is."""

    def naive(message: bytes) -> memoryview:
        return memoryview(message)[2:] if message[:1] == b"\x0a" else unframe(message)

    monkeypatch.setattr(network_targets, "unframe", naive)


def no_checksum(monkeypatch: MonkeyPatch) -> None:
    """A join code is believed as it was typed."""
    monkeypatch.setattr(wire.join_code, "_CHECKSUM_BITS", 37)
    monkeypatch.setattr(wire.join_code, "_checksum", _Any())


class _Any(int):
    """Equal to every checksum."""

    def __call__(self, payload: bytes) -> _Any:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def loose_fields(monkeypatch: MonkeyPatch) -> None:
    """Fields of a document may have any type."""
    import json

    def naive(data: bytes, format_: str, texts: Any, largest: int, error: type[ValueError], **others: Any) -> Any:
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise error("no JSON") from problem
        if type(fields) is not dict or not {"format", *texts} <= set(fields):
            raise error("fields are missing")
        return fields

    monkeypatch.setattr(wire.authority_statements, "read_fields", naive)


def value_errors_alone(monkeypatch: MonkeyPatch) -> None:
    """What the parser of certificates raises beside ValueError goes through."""
    monkeypatch.setattr(wire.enrolment, "UNREADABLE", (ValueError,))
    monkeypatch.setattr(client.credentials, "UNREADABLE", (ValueError,))


def other_numbers(monkeypatch: MonkeyPatch) -> None:
    """A transcript's numbers may be any."""
    monkeypatch.setattr(wire.records.transcript, "_whole", lambda value: value)


def unused_bits(monkeypatch: MonkeyPatch) -> None:
    """A packed vector's unused bits aren't looked at."""
    checked = packing._checked_parts

    def naive(data: Any, dim: int, layout: Any) -> Any:
        size = packing.packed_size(dim, layout.bits)
        unused = -(dim * layout.bits) % 8
        if len(data) == size and unused and not layout.plain:
            data = bytes(data[:-1]) + bytes([data[-1] & 0xFF >> unused])
        return checked(data, dim, layout)

    monkeypatch.setattr(packing, "_checked_parts", naive)


def path_of_any_length(monkeypatch: MonkeyPatch) -> None:
    """A Merkle path may be longer than the tree is high."""
    check = core_targets.verify_path

    def naive(root: bytes, leaf: bytes, index: int, count: int, path: Any) -> bool:
        return any(check(root, leaf, index, count, path[:end]) for end in range(len(path) + 1))

    monkeypatch.setattr(core_targets, "verify_path", naive)


# ---------------------------------------------------------------- faults of phases


def upload_of_anybody(monkeypatch: MonkeyPatch) -> None:
    """An upload needs no signature."""
    monkeypatch.setattr(server_phases.MaskedInputCollection, "check_offer", lambda *_: None)


def dealing_kept_before_it_is_checked(monkeypatch: MonkeyPatch) -> None:
    """A refused dealing leaves its ciphertexts behind."""
    receive = server_phases.ShareKeys.receive

    def naive(self: Any, sender: int, message: Any) -> None:
        if hasattr(message, "ciphertexts"):
            self._ciphertexts.setdefault(sender, {})[-1] = message.ciphertexts
        receive(self, sender, message)

    monkeypatch.setattr(server_phases.ShareKeys, "receive", naive)


def refused_reply_that_counts(monkeypatch: MonkeyPatch) -> None:
    """Whoever sends a reply that is refused counts as one that answered."""
    receive = server_unmasking.Unmasking.receive

    def naive(self: Any, sender: int, message: Any) -> None:
        try:
            receive(self, sender, message)
        except InvalidMessage:
            self._u5.add(sender)
            raise

    monkeypatch.setattr(server_unmasking.Unmasking, "receive", naive)


def refusal_that_is_forgotten(monkeypatch: MonkeyPatch) -> None:
    """A participant that has refused something takes the next message as if nothing had been."""
    receive = client_unmasking.ConsistencyCheck.receive

    def naive(self: Any, message: Any) -> Any:
        before = dict(vars(self))
        try:
            return receive(self, message)
        except CoordinatorMisbehaved:
            vars(self).clear()
            vars(self).update(before)
            raise

    monkeypatch.setattr(client_unmasking.ConsistencyCheck, "receive", naive)


FAULTS: Mapping[str, Callable[[MonkeyPatch], None]] = {
    "participant_message": any_length,
    "chunk": chunk_without_its_length,
    "join_code": no_checksum,
    "card": loose_fields,
    "enrolment_answer": loose_fields,
    "enrolment_request": value_errors_alone,
    "client_certificate": value_errors_alone,
    "packed_vector": unused_bits,
    "merkle_path": path_of_any_length,
    "transcript": other_numbers,
    "coordinator_MaskedInputCollection": upload_of_anybody,
    "coordinator_ShareKeys": dealing_kept_before_it_is_checked,
    "coordinator_Unmasking": refused_reply_that_counts,
    "participant_ConsistencyCheck": refusal_that_is_forgotten,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    assert finding(targets()[name]) is not None
