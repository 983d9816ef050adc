"""How each kind of message of an attempt travels, by the core's type; a tuple proves survivor sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from secagg import messages
from wire import codec, coordinator_pb2 as pb

ROUND, ATTEMPT = 3, 2  # that the coordinator's messages name


class Codec(NamedTuple):
    """One kind of message: the field of its envelope, its type there, and both ways."""

    field: str
    type: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    @property
    def to_participant(self) -> bool:
        """Whether the coordinator sends it."""
        return self.field in pb.CoordinatorMessage.DESCRIPTOR.fields_by_name

    def passed(self, message: Any) -> Any:
        """The message as it arrives."""
        return self.read(self.type.FromString(self.write(message).SerializeToString()))


def _write_offer(message: messages.MaskedInput) -> pb.MaskedInputOffer:
    return pb.MaskedInputOffer(sha256=message.sha256, signature=message.signature)


def _read_offer(message: pb.MaskedInputOffer) -> messages.MaskedInput:
    return messages.MaskedInput(b"", message.sha256, message.signature)


def _codec(field: str, kind: type, name: str = "") -> Codec:
    """By the codec's functions of this name, by default that of the field."""
    write, read = (getattr(codec, f"{way}_{name or field}") for way in ("write", "read"))
    found = Codec(field, kind, write, read)
    return found._replace(write=partial(write, ROUND, ATTEMPT)) if found.to_participant else found


CODECS: Final[dict[type, Codec]] = {
    messages.Advertisement: _codec("advertise_keys", pb.Advertisement, "advertisement"),
    messages.SealedShares: _codec("share_keys", pb.SealedShares, "sealed_shares"),
    # Of an upload its offer; the vector comes by itself.
    messages.MaskedInput: Codec("masked_input", pb.MaskedInputOffer, _write_offer, _read_offer),
    messages.ConsistencySignature: _codec("consistency", pb.ConsistencySignature),
    messages.UnmaskingReply: _codec("unmasking", pb.UnmaskingReply, "unmasking_reply"),
    messages.CohortKeys: _codec("cohort_keys", pb.CohortKeys),
    messages.NeighbourShares: _codec("neighbour_shares", pb.NeighbourShares),
    messages.SurvivorSets: _codec("survivor_sets", pb.SurvivorSets),
    messages.UnmaskingRequest: _codec("unmasking_request", pb.UnmaskingRequest),
    tuple: Codec(
        "survivor_proof",
        pb.SurvivorProof,
        lambda proof: codec.write_survivor_proof(ROUND, ATTEMPT, *proof),
        codec.read_survivor_proof,
    ),
}
