"""Code with one fault in it: a short search finds it, so that a target that finds nothing says something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import client.credentials
import wire.authority_statements
import wire.codec
import wire.enrolment
import wire.join_code
import wire.records.transcript
from secagg import client_unmasking, packing, server_phases, server_unmasking
from secagg.errors import CoordinatorMisbehaved, InvalidMessage
from tests.fuzz import core_targets, network_targets
from tests.fuzz.corpus import begin
from tests.fuzz.target import Dice, Target, targets
from wire.authority_statements import SignedForm
from wire.json_fields import Kind, plain
from wire.transport import unframe

MOST = 3000  # inputs of a search; the corpus comes first


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


def chunk_without_its_length(message: bytes) -> memoryview:
    return memoryview(message)[2:] if message[:1] == b"\x0a" else unframe(message)


class AnyChecksum(int):
    """A function whose result equals every checksum."""

    def __call__(self, payload: bytes) -> AnyChecksum:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def of_any_type(form: SignedForm) -> tuple[SignedForm, str, dict[str, Kind]]:
    return form, "_fields", {name: kind._replace(read=lambda value: value) for name, kind in form._fields.items()}


def with_any_members() -> dict[str, Kind]:
    return wire.records.transcript._FIELDS | dict.fromkeys(("u1", "u2", "u3", "numbers", "signers"), plain(list))


def parts_with_any_unused_bits(data: Any, dim: int, layout: Any, checked: Any = packing._checked_parts) -> Any:
    size = packing.packed_size(dim, layout.bits)
    unused = -(dim * layout.bits) % 8
    if len(data) == size and unused and not layout.plain:
        data = bytes(data[:-1]) + bytes([data[-1] & 0xFF >> unused])
    return checked(data, dim, layout)


def path_of_any_length(
    root: bytes, leaf: bytes, index: int, count: int, path: Any, check: Any = core_targets.verify_path
) -> bool:
    return any(check(root, leaf, index, count, path[:end]) for end in range(len(path) + 1))


def deals_before_it_checks(
    self: Any, sender: int, message: Any, receive: Any = server_phases.ShareKeys.receive
) -> None:
    """A refused dealing leaves its ciphertexts behind."""
    if hasattr(message, "ciphertexts"):
        self._ciphertexts.setdefault(sender, {})[-1] = message.ciphertexts
    receive(self, sender, message)


def refused_reply_that_counts(
    self: Any, sender: int, message: Any, receive: Any = server_unmasking.Unmasking.receive
) -> None:
    try:
        receive(self, sender, message)
    except InvalidMessage:
        self._u5.add(sender)
        raise


def refusal_that_is_forgotten(self: Any, message: Any, receive: Any = client_unmasking.ConsistencyCheck.receive) -> Any:
    """A participant takes the next message as if it had refused nothing."""
    before = dict(vars(self))
    try:
        return receive(self, message)
    except CoordinatorMisbehaved:
        vars(self).clear()
        vars(self).update(before)
        raise


# Target, and more where it has several -> what is exchanged in the code under it: an object, the name of its attribute,
# the faulty value.
FAULTS: Mapping[str, tuple[tuple[Any, str, Any], ...]] = {
    "participant_message": ((wire.codec, "_sized", lambda value, *_: value),),
    "chunk": ((network_targets, "unframe", chunk_without_its_length),),
    "join_code": ((wire.join_code, "_CHECKSUM_BITS", 37), (wire.join_code, "_checksum", AnyChecksum())),
    "card": (of_any_type(wire.authority_statements._CARD),),
    "enrolment_answer": (of_any_type(wire.authority_statements._ANSWER),),
    # What the parser of certificates raises beside ValueError is not caught.
    "enrolment_request": ((wire.enrolment, "UNREADABLE", (ValueError,)),),
    "client_certificate": ((client.credentials, "UNREADABLE", (ValueError,)),),
    "packed_vector": ((packing, "_checked_parts", parts_with_any_unused_bits),),
    "merkle_path": ((core_targets, "verify_path", path_of_any_length),),
    "transcript": ((wire.records.transcript, "_FIELDS", with_any_members()),),
    "coordinator_MaskedInputCollection": ((server_phases.MaskedInputCollection, "_check", lambda *_: None),),
    "coordinator_ShareKeys": ((server_phases.ShareKeys, "receive", deals_before_it_checks),),
    "coordinator_Unmasking": ((server_unmasking.Unmasking, "receive", refused_reply_that_counts),),
    "coordinator_Unmasking: noise": ((server_unmasking._ReplyCheck, "_check_noise", lambda *_: None),),
    "participant_ConsistencyCheck": ((client_unmasking.ConsistencyCheck, "receive", refusal_that_is_forgotten),),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in FAULTS[name]:
        monkeypatch.setattr(*fault)
    assert finding(targets()[name.partition(":")[0]]) is not None
