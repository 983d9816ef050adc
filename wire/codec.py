"""Between protobuf and the protocol core's messages.

Everything from the network passes through a ``read_...`` function, which checks every length before the core sees it
and raises `MalformedMessage` otherwise. ``write_...`` are the inverses.

A protobuf message is serialised as the concatenation of its fields. So what hundreds of participants get alike is
serialised once, away from the event loop, and joined from parts; the bytes are those that protobuf itself would make.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from secagg import messages as core
from secagg.keys import HYBRID_KEY_BYTES, KEM_CIPHERTEXT_BYTES, KEY_BYTES, WRAPPED_BYTES
from secagg.lottery import SEED_BYTES, Ticket
from wire import coordinator_pb2 as pb
from wire.transport import varint

PROTOCOL_VERSION = 1


class MalformedMessage(ValueError):
    """Fields of the message are missing or of the wrong length; the text names the field."""


def _sized(value: bytes, name: str, *lengths: int) -> bytes:
    if len(value) not in lengths:
        raise MalformedMessage(f"{name} must have {lengths[0]} bytes, not {len(value)}")
    return value


def _each_sized(values: Iterable[bytes], name: str, *lengths: int) -> tuple[bytes, ...]:
    found = tuple(values)
    if wrong := {*map(len, found)} - {*lengths}:
        _sized(next(one for one in found if len(one) in wrong), name, *lengths)
    return found


# ---------------------------------------------------------------- AdvertiseKeys


def write_ticket(ticket: Ticket | None) -> pb.LotteryTicket | None:
    """None where the whole roster is invited."""
    return None if ticket is None else pb.LotteryTicket(seed=ticket.seed, path=ticket.path)


def read_ticket(message: pb.LotteryTicket) -> Ticket:
    return Ticket(_sized(message.seed, "seed", SEED_BYTES), _each_sized(message.path, "path", 32))


def write_advertisement(message: core.Advertisement) -> pb.Advertisement:
    return pb.Advertisement(mask_key=message.mask_key, channel_key=message.channel_key, signature=message.signature)


def read_advertisement(message: pb.Advertisement) -> core.Advertisement:
    return core.Advertisement(
        _sized(message.mask_key, "mask_key", KEY_BYTES, HYBRID_KEY_BYTES),
        _sized(message.channel_key, "channel_key", KEY_BYTES, HYBRID_KEY_BYTES),
        _sized(message.signature, "signature", 64),
    )


def write_cohort_keys(round_: int, attempt: int, message: core.CohortKeys) -> pb.CohortKeys:
    members = [
        pb.CohortMember(participant=who, advertisement=write_advertisement(entry))
        if isinstance(entry, core.Advertisement)
        else pb.CohortMember(participant=who, advertisement_sha256=entry)
        for who, entry in message.members
    ]
    return pb.CohortKeys(round=round_, attempt=attempt, members=members)


def read_cohort_keys(message: pb.CohortKeys) -> core.CohortKeys:
    members: list[tuple[int, core.Advertisement | bytes]] = []
    for member in message.members:
        match member.WhichOneof("keys"):
            case "advertisement":
                members.append((member.participant, read_advertisement(member.advertisement)))
            case "advertisement_sha256":
                members.append((member.participant, _sized(member.advertisement_sha256, "advertisement_sha256", 32)))
            case _:
                raise MalformedMessage("a member of u1 comes without keys")
    return core.CohortKeys(tuple(members))


# ---------------------------------------------------------------- ShareKeys


def write_sealed_shares(message: core.SealedShares) -> pb.SealedShares:
    return pb.SealedShares(**vars(message))  # the fields have the same names


def read_sealed_shares(message: pb.SealedShares) -> core.SealedShares:
    sealed = core.CIPHERTEXT_BYTES
    return core.SealedShares(
        _each_sized(message.ciphertexts, "ciphertext", sealed, KEM_CIPHERTEXT_BYTES + sealed),
        _each_sized(message.leaves, "leaf", 32),
        _sized(message.seed_commitment, "seed_commitment", 32),
        _sized(message.signature, "signature", 64),
        _each_sized(message.wrapped, "wrapped seed", WRAPPED_BYTES),
    )


_dealt: Final = attrgetter(*core.DealtShare._fields)


def write_neighbour_shares(round_: int, attempt: int, message: core.NeighbourShares) -> pb.NeighbourShares:
    return pb.NeighbourShares(
        round=round_,
        attempt=attempt,
        shares=[pb.DealtShare(**dealt._asdict()) for dealt in message.shares],
        u2=message.u2,
    )


def read_neighbour_shares(message: pb.NeighbourShares) -> core.NeighbourShares:
    """Lengths inside a dealt share are left to the core: a bad one costs its dealer a share, not the attempt."""
    return core.NeighbourShares(tuple(core.DealtShare(*_dealt(one)) for one in message.shares), message.u2)


# ---------------------------------------------------------------- ConsistencyCheck


def write_survivor_sets(round_: int, attempt: int, message: core.SurvivorSets) -> pb.SurvivorSets:
    return pb.SurvivorSets(round=round_, attempt=attempt, u2=message.u2, u3=message.u3)


def read_survivor_sets(message: pb.SurvivorSets) -> core.SurvivorSets:
    return core.SurvivorSets(message.u2, message.u3)


def write_consistency(message: core.ConsistencySignature) -> pb.ConsistencySignature:
    return pb.ConsistencySignature(signature=message.signature)


def read_consistency(message: pb.ConsistencySignature) -> core.ConsistencySignature:
    return core.ConsistencySignature(_sized(message.signature, "signature", 64))


# ---------------------------------------------------------------- Unmasking


def _write_signatures(message: core.UnmaskingRequest) -> list[pb.SurvivorSignature]:
    return [pb.SurvivorSignature(participant=who, signature=signature) for who, signature in message.signatures]


def _read_signatures(message: pb.SurvivorProof | pb.UnmaskingRequest) -> tuple[tuple[int, bytes], ...]:
    return tuple((one.participant, _sized(one.signature, "signature", 64)) for one in message.signatures)


def write_survivor_proof(
    round_: int, attempt: int, sets: core.SurvivorSets, request: core.UnmaskingRequest
) -> pb.SurvivorProof:
    signatures = _write_signatures(request)
    return pb.SurvivorProof(round=round_, attempt=attempt, u2=sets.u2, u3=sets.u3, signatures=signatures)


def read_survivor_proof(message: pb.SurvivorProof) -> tuple[core.SurvivorSets, core.UnmaskingRequest]:
    return core.SurvivorSets(message.u2, message.u3), core.UnmaskingRequest(_read_signatures(message))


def write_unmasking_request(round_: int, attempt: int, message: core.UnmaskingRequest) -> pb.UnmaskingRequest:
    return pb.UnmaskingRequest(
        round=round_,
        attempt=attempt,
        signatures=_write_signatures(message),
        uploads=[pb.SignedUpload(sha256=sha256, signature=signature) for sha256, signature in message.uploads],
    )


def read_unmasking_request(message: pb.UnmaskingRequest) -> core.UnmaskingRequest:
    return core.UnmaskingRequest(
        _read_signatures(message),
        tuple((_sized(one.sha256, "sha256", 32), _sized(one.signature, "signature", 64)) for one in message.uploads),
    )


def write_unmasking_reply(message: core.UnmaskingReply) -> pb.UnmaskingReply:
    entries = []
    for share in message.shares:
        if share is None:
            entries.append(pb.PeerShare(none=pb.NoShare()))
            continue
        revealed, of_seed = pb.RevealedShare(**vars(share)), isinstance(share, core.SelfMaskSeedShare)
        entries.append(pb.PeerShare(self_mask_seed=revealed) if of_seed else pb.PeerShare(mask_key=revealed))
    return pb.UnmaskingReply(shares=entries, noise_seeds=message.noise_seeds)


def read_unmasking_reply(message: pb.UnmaskingReply) -> core.UnmaskingReply:
    shares: list[core.SelfMaskSeedShare | core.MaskKeyShare | None] = []
    for entry in message.shares:
        match entry.WhichOneof("kind"):
            case "self_mask_seed":
                shares.append(core.SelfMaskSeedShare(*_read_revealed(entry.self_mask_seed)))
            case "mask_key":
                shares.append(core.MaskKeyShare(*_read_revealed(entry.mask_key)))
            case "none":
                shares.append(None)
            case _:
                raise MalformedMessage("an entry of the reply is empty")
    seeds = _each_sized(message.noise_seeds, "noise seed", core.NOISE_SEED_BYTES)
    return core.UnmaskingReply(tuple(shares), seeds)


def _read_revealed(message: pb.RevealedShare) -> tuple[bytes, bytes]:
    return _sized(message.share, "share", core.SHARE_BYTES), _sized(message.salt, "salt", core.SALT_BYTES)


# ---------------------------------------------------------------- serialised once for many receivers


_LENGTH_DELIMITED: Final = 2


def message(**content: Any) -> bytes:
    """A `CoordinatorMessage` of one field, serialised."""
    return pb.CoordinatorMessage(**content).SerializeToString()


def enveloped(field: str, *content: bytes) -> bytes:
    """A `CoordinatorMessage` around a field that has been serialised, in one part or several."""
    number = pb.CoordinatorMessage.DESCRIPTOR.fields_by_name[field].number
    return b"".join((bytes([number << 3 | _LENGTH_DELIMITED]), varint(sum(map(len, content))), *content))


class NeighbourSharesWriter:
    """Writes the shares that reach each participant; what a dealer tells all its holders is serialised once."""

    def __init__(self, round_: int, attempt: int) -> None:
        self._head = pb.NeighbourShares(round=round_, attempt=attempt).SerializeToString()
        self._around: dict[tuple[int, int, int, bytes, bytes, bytes], tuple[bytes, bytes, bytes]] = {}

    def write(self, message: core.NeighbourShares) -> bytes:
        parts = [self._head]
        for one in message.shares:
            dealer, ciphertext, root, path, commitment, signature, wrapped, pair = one
            if not ciphertext or not path or wrapped or pair:
                parts.append(self._alone(one))
                continue
            alike = dealer, len(ciphertext), len(path), root, commitment, signature
            around = self._around.get(alike)
            if around is None:
                around = self._around[alike] = self._cut(one)
            parts += (around[0], ciphertext, around[1], path, around[2])
        u2 = pb.NeighbourShares(u2=message.u2).SerializeToString()
        return enveloped("neighbour_shares", *parts, u2)

    def _alone(self, share: core.DealtShare) -> bytes:
        return write_neighbour_shares(0, 0, core.NeighbourShares((share,), b"")).SerializeToString()

    def _cut(self, share: core.DealtShare) -> tuple[bytes, bytes, bytes]:
        """What stands before the ciphertext, between it and the path, and after that."""
        whole, length = self._alone(share), len(share.ciphertext)
        after = len(whole) - pb.DealtShare(seed_commitment=share.seed_commitment, signature=share.signature).ByteSize()
        path = after - len(share.path)
        ciphertext = after - pb.DealtShare(root=share.root, path=share.path).ByteSize() - length
        return whole[:ciphertext], whole[ciphertext + length : path], whole[after:]


class UnmaskingRequestWriter:
    """Writes the request to each participant, and serialises every signature once."""

    def __init__(self, round_: int, attempt: int) -> None:
        self._head = write_unmasking_request(round_, attempt, core.UnmaskingRequest(())).SerializeToString()
        self._signatures: dict[int, bytes] = {}

    def write(self, request: core.UnmaskingRequest) -> bytes:
        parts = [self._signature(who, signature) for who, signature in request.signatures]
        uploads = write_unmasking_request(0, 0, core.UnmaskingRequest((), request.uploads)).SerializeToString()
        return enveloped("unmasking_request", self._head, *parts, uploads)

    def _signature(self, who: int, signature: bytes) -> bytes:
        written = self._signatures.get(who)
        if written is None:
            one = write_unmasking_request(0, 0, core.UnmaskingRequest(((who, signature),)))
            written = self._signatures[who] = one.SerializeToString()
        return written


class CohortKeysWriter:
    """Writes u1 for each participant; each member is serialised once in full and once as a digest.

    Participants with the same view, which are all of them on the complete graph, get the same bytes object.
    """

    def __init__(self, round_: int, attempt: int) -> None:
        self._head = pb.CohortKeys(round=round_, attempt=attempt).SerializeToString()
        self._full: dict[int, bytes] = {}
        self._digests: dict[int, bytes] = {}
        self._last: tuple[list[bytes], bytes] = ([], b"")

    def write(self, keys: core.CohortKeys) -> bytes:
        full, digests, parts = self._full, self._digests, [self._head]
        for who, entry in keys.members:
            known = digests if isinstance(entry, bytes) else full
            written = known.get(who)
            if written is None:
                # A message that holds this member alone is the member's field.
                one = write_cohort_keys(0, 0, core.CohortKeys(((who, entry),)))
                written = known[who] = one.SerializeToString()
            parts.append(written)
        if parts != self._last[0]:  # quick: equal parts are the same objects
            self._last = (parts, enveloped("cohort_keys", *parts))
        return self._last[1]
