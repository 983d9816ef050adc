"""Coordinator messages as bytes: serialised once, away from the event loop, and put together from parts.

The serialisation of a protobuf message is the concatenation of its fields, so what hundreds of participants are told in
the same words is serialised once. `codec` says what the fields mean; the bytes are those that protobuf itself makes.
"""

from __future__ import annotations

from typing import Any, Final

from secagg.messages import Advertisement, CohortKeys, NeighbourShares, UnmaskingRequest
from wire import codec
from wire import coordinator_pb2 as pb
from wire.chunks import varint

_LENGTH_DELIMITED: Final = 2


def message(**content: Any) -> bytes:
    """A `CoordinatorMessage` of one field, serialised."""
    return pb.CoordinatorMessage(**content).SerializeToString()


def enveloped(field: str, content: bytes) -> bytes:
    """A `CoordinatorMessage` around a field that is serialised already."""
    number = pb.CoordinatorMessage.DESCRIPTOR.fields_by_name[field].number
    return b"".join((bytes([number << 3 | _LENGTH_DELIMITED]), varint(len(content)), content))


def neighbour_shares(round_: int, attempt: int, shares: NeighbourShares) -> bytes:
    """What one participant's neighbours dealt to it."""
    return enveloped("neighbour_shares", codec.write_neighbour_shares(round_, attempt, shares).SerializeToString())


class UnmaskingRequestWriter:
    """Writes what each participant is asked, and every signature once."""

    def __init__(self, round_: int, attempt: int) -> None:
        self._head = codec.write_unmasking_request(round_, attempt, UnmaskingRequest(())).SerializeToString()
        self._signatures: dict[int, bytes] = {}

    def write(self, request: UnmaskingRequest) -> bytes:
        """The message for one receiver."""
        parts = [self._signature(who, signature) for who, signature in request.signatures]
        uploads = codec.write_unmasking_request(0, 0, UnmaskingRequest((), request.uploads)).SerializeToString()
        return enveloped("unmasking_request", b"".join((self._head, *parts, uploads)))

    def _signature(self, who: int, signature: bytes) -> bytes:
        written = self._signatures.get(who)
        if written is None:
            one = codec.write_unmasking_request(0, 0, UnmaskingRequest(((who, signature),)))
            written = self._signatures[who] = one.SerializeToString()
        return written


class CohortKeysWriter:
    """Writes u1 for one participant after the other: each member is serialised once in full and once as a digest.

    Participants that are shown the same, as all are on the complete graph, get the same bytes object.
    """

    def __init__(self, round_: int, attempt: int) -> None:
        self._head = pb.CohortKeys(round=round_, attempt=attempt).SerializeToString()
        self._members: dict[tuple[int, bool], bytes] = {}
        self._last: tuple[list[bytes], bytes] = ([], b"")

    def write(self, keys: CohortKeys) -> bytes:
        """The message for one receiver."""
        parts = [self._head, *(self._member(who, entry) for who, entry in keys.members)]
        if parts != self._last[0]:  # quick: equal parts are the same objects
            self._last = (parts, enveloped("cohort_keys", b"".join(parts)))
        return self._last[1]

    def _member(self, who: int, entry: Advertisement | bytes) -> bytes:
        key = (who, isinstance(entry, Advertisement))
        written = self._members.get(key)
        if written is None:
            # A message that holds this member alone is the member's field.
            one = codec.write_cohort_keys(0, 0, CohortKeys(((who, entry),)))
            written = self._members[key] = one.SerializeToString()
        return written
