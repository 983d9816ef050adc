"""How each kind of message of an attempt travels, by the core's type; a tuple proves survivor sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from secagg import messages
from wire import codec
from wire import coordinator_pb2 as pb

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
    return messages.MaskedInput(b"", message.sha256, message.signature)  # the vector comes by itself


def _by_coordinator(field: str, kind: type) -> Codec:
    write = partial(getattr(codec, f"write_{field}"), ROUND, ATTEMPT)
    return Codec(field, kind, write, getattr(codec, f"read_{field}"))


CODECS: Final[dict[type, Codec]] = {
    messages.Advertisement: Codec(
        "advertise_keys", pb.Advertisement, codec.write_advertisement, codec.read_advertisement
    ),
    messages.SealedShares: Codec("share_keys", pb.SealedShares, codec.write_sealed_shares, codec.read_sealed_shares),
    messages.MaskedInput: Codec("masked_input", pb.MaskedInputOffer, _write_offer, _read_offer),
    messages.ConsistencySignature: Codec(
        "consistency", pb.ConsistencySignature, codec.write_consistency, codec.read_consistency
    ),
    messages.UnmaskingReply: Codec(
        "unmasking", pb.UnmaskingReply, codec.write_unmasking_reply, codec.read_unmasking_reply
    ),
    messages.CohortKeys: _by_coordinator("cohort_keys", pb.CohortKeys),
    messages.NeighbourShares: _by_coordinator("neighbour_shares", pb.NeighbourShares),
    messages.SurvivorSets: _by_coordinator("survivor_sets", pb.SurvivorSets),
    messages.UnmaskingRequest: _by_coordinator("unmasking_request", pb.UnmaskingRequest),
    tuple: Codec(
        "survivor_proof",
        pb.SurvivorProof,
        lambda proof: codec.write_survivor_proof(ROUND, ATTEMPT, *proof),
        codec.read_survivor_proof,
    ),
}
