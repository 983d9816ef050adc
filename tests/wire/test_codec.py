"""Between protobuf and the core: every message there and back, nothing but one kind of error for what is malformed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from secagg.context import RoundConfig
from secagg.messages import (
    PHASES,
    Advertisement,
    CohortKeys,
    DealtShare,
    MaskedInput,
    NeighbourShares,
    UnmaskingReply,
    UnmaskingRequest,
)
from tests.support.attempts_in_memory import Attempt, Script, make_config
from tests.support.comparable import freeze
from tests.support.message_codecs import ATTEMPT, CODECS, ROUND
from tests.support.recorded_attempts import Recorded
from wire import codec, coordinator_pb2 as pb
from wire.codec import MalformedMessage
from wire.transport import varint

CONFIG = make_config(8, min_survivors=6, quorum=7)
RING = make_config(8, min_survivors=6, quorum=7, attempt=3, rings=((8, 6, 4),))
_, _, MASK, SIGN, UNMASK = PHASES
SILENT = 2


KINDS = {kind.__name__: one for kind, one in CODECS.items() if kind not in (MaskedInput, tuple)}


def _spoilt(message: Any) -> Any:
    first, *others = message.shares
    return replace(message, shares=(first._replace(ciphertext=bytes(112)), *others))


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Participant 7 leaves before its upload, so that replies hold both kinds of share; 6 has no share of its first
    neighbour. On a ring, requests show uploads as well, of members that did not sign.
    """
    script = Script(up={(MASK, 7): "lose", (SIGN, SILENT): "lose"})
    attempt = Recorded(RING, script, tamper_down={(MASK, 6): _spoilt})
    attempt.run()
    return attempt


def messages_of(recorded: Recorded, name: str) -> list[Any]:
    source = recorded.asked if KINDS[name].to_participant else recorded.sent
    return [message for _, message in sorted(source.items()) if type(message).__name__ == name]


@pytest.mark.parametrize("name", KINDS)
def test_round_trip(name: str, recorded: Recorded) -> None:
    kind, messages = KINDS[name], messages_of(recorded, name)
    assert messages
    for message in messages:
        data = kind.write(message).SerializeToString()
        parsed = kind.type.FromString(data)
        read = kind.read(parsed)
        assert type(read) is type(message)
        assert freeze(read) == freeze(message)
        assert kind.write(read).SerializeToString() == data
        if kind.to_participant:
            assert (parsed.round, parsed.attempt) == (ROUND, ATTEMPT)


def test_replies_of_all_kinds_were_seen(recorded: Recorded) -> None:
    kinds = {type(share).__name__ for reply in messages_of(recorded, "UnmaskingReply") for share in reply.shares}
    assert kinds == {"SelfMaskSeedShare", "MaskKeyShare", "NoneType"}


def test_requests_with_uploads_were_seen(recorded: Recorded) -> None:
    assert messages_of(recorded, "UnmaskingRequest")[0].uploads
    assert codec.write_unmasking_request(1, 1, recorded.asked[UNMASK, 0]).uploads


def test_digests_of_participants_that_are_no_neighbours() -> None:
    message = CohortKeys(((0, b"d" * 32), (70_000, b"e" * 32)))
    assert codec.read_cohort_keys(codec.write_cohort_keys(1, 1, message)) == message


def byte_fields(message: Message) -> Iterator[Callable[[bytes], None]]:
    """For every bytes field of a message, however deep, a function that sets it."""
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_BYTES:
            repeated = not isinstance(value, bytes)
            yield partial(value.__setitem__, 0) if repeated else partial(setattr, message, descriptor.name)
        elif descriptor.type == descriptor.TYPE_MESSAGE:
            yield from byte_fields(value if isinstance(value, Message) else value[0])


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"NeighbourShares", "SurvivorSets"}))
@pytest.mark.parametrize("length", [0, 1, 31, 33, 63, 65, 111, 113, 10_000])
def test_every_other_length_is_refused(name: str, length: int, recorded: Recorded) -> None:
    kind = KINDS[name]
    good = kind.write(messages_of(recorded, name)[0])
    count = len(list(byte_fields(good)))
    assert count
    for at in range(count):
        bad = copy.deepcopy(good)
        list(byte_fields(bad))[at](bytes(length))
        with pytest.raises(MalformedMessage, match=f"bytes, not {length}"):
            kind.read(bad)


@pytest.mark.parametrize("length", [0, 111, 113])
def test_lengths_inside_a_dealt_share_are_the_cores_matter(length: int, recorded: Recorded) -> None:
    """A bad ciphertext costs its dealer a share and must not end the attempt."""
    good = codec.write_neighbour_shares(1, 1, messages_of(recorded, "NeighbourShares")[0])
    good.shares[0].ciphertext = bytes(length)
    assert len(codec.read_neighbour_shares(good).shares[0].ciphertext) == length


def test_missing_parts() -> None:
    with pytest.raises(MalformedMessage, match="without keys"):
        codec.read_cohort_keys(pb.CohortKeys(members=[pb.CohortMember(participant=1)]))
    with pytest.raises(MalformedMessage, match="empty"):
        codec.read_unmasking_reply(pb.UnmaskingReply(shares=[pb.PeerShare()]))
    for name in ("Advertisement", "SealedShares", "ConsistencySignature"):
        with pytest.raises(MalformedMessage):
            KINDS[name].read(KINDS[name].type())


def test_an_entry_of_the_reply_holds_one_kind_of_share() -> None:
    entry = pb.PeerShare.DESCRIPTOR
    assert [one.name for one in entry.oneofs] == ["kind"]
    assert {field.name for field in entry.fields} == {field.name for field in entry.oneofs[0].fields}
    reply = pb.UnmaskingReply.DESCRIPTOR
    # Positions name dealers: no field could name one twice. The seeds are those of the sender's own noise.
    assert [field.name for field in reply.fields] == ["shares", "noise_seeds"]


def test_bytes_that_claim_both_kinds_are_read_as_one() -> None:
    """Protobuf keeps the last member of a oneof, so the first is not in the message at all."""
    share = pb.RevealedShare(share=b"\x01\x00" * 16, salt=bytes(16))
    both = pb.PeerShare(self_mask_seed=share).SerializeToString() + pb.PeerShare(mask_key=share).SerializeToString()
    entry = pb.PeerShare.FromString(both)
    assert entry.WhichOneof("kind") == "mask_key"
    assert not entry.HasField("self_mask_seed")
    read = codec.read_unmasking_reply(pb.UnmaskingReply(shares=[entry]))
    assert [type(one).__name__ for one in read.shares] == ["MaskKeyShare"]


def test_one_type_in_the_core_holds_one_share() -> None:
    """Each entry of `UnmaskingReply.shares` is one share or None; a pair has no type there."""
    assert UnmaskingReply.__dataclass_fields__.keys() == {"shares", "noise_seeds"}
    assert UnmaskingReply.__annotations__["shares"] == "tuple[SelfMaskSeedShare | MaskKeyShare | None, ...]"


def test_a_revealed_share_is_passed_on_as_it_is() -> None:
    revealed = pb.RevealedShare(share=bytes(range(32)), salt=b"s" * 16)
    (share,) = codec.read_unmasking_reply(pb.UnmaskingReply(shares=[pb.PeerShare(mask_key=revealed)])).shares
    assert share is not None
    assert (share.share, share.salt) == (bytes(range(32)), b"s" * 16)


@pytest.mark.parametrize("config", [CONFIG, RING], ids=["complete", "ring"])
def test_an_attempt_whose_messages_all_pass_through_protobuf(config: RoundConfig) -> None:
    def through(message: Any) -> Any:
        return KINDS[type(message).__name__].passed(message)

    up = {(phase, who): through for phase in PHASES if phase != MASK for who in range(8)}
    down = {(phase, who): through for phase in PHASES[1:] for who in range(8)}
    plain = Attempt(config).run()
    wired = Attempt(config, tamper=up, tamper_down=down).run()
    np.testing.assert_array_equal(plain.total, wired.total)
    assert plain.u5 == wired.u5 == frozenset(range(8))


# Everything that a participant can say in a session: its public key, proofs, keys, commitments, ciphertexts, a digest,
# and numbers that the coordinator told it before. The vector itself goes through `Chunk`.
SAID_BY_PARTICIPANTS = {
    "Open": {"protocol_version": int, "identity": bytes, "study": str, "nonce": bytes},
    "Proof": {"signature": bytes},
    "Resume": {"round": int, "attempt": int, "received": int},  # messages of the coordinator
    "Refusal": {
        **{"round": int, "attempt": int, "code": pb.RefusalCode},
        **{"joined_round": int, "joined_attempt": int},  # of the last RoundStart that it answered
    },
    "Leaving": {"resting": bool},  # since the coordinator has sent Rest
    "PhaseMessage": {"round": int, "attempt": int},
    "Advertisement": {"mask_key": bytes, "channel_key": bytes, "signature": bytes},
    "SealedShares": dict.fromkeys(("ciphertexts", "leaves", "seed_commitment", "signature", "wrapped"), bytes),
    "MaskedInputOffer": {"sha256": bytes, "signature": bytes},
    "ConsistencySignature": {"signature": bytes},
    "RevealedShare": {"share": bytes, "salt": bytes},
    "UnmaskingReply": {"noise_seeds": bytes},
}


def test_no_message_of_a_participant_has_room_for_a_figure() -> None:
    """No loss, count, norm or number of examples leaves in the clear: a field for one would have to be added here."""
    found: dict[str, dict[str, Any]] = {}

    def look(message: Any) -> None:
        for field in message.fields:
            if field.message_type is not None:
                look(field.message_type)
            else:
                kind = {
                    field.CPPTYPE_UINT32: int,
                    field.CPPTYPE_UINT64: int,
                    field.CPPTYPE_STRING: str if field.type == field.TYPE_STRING else bytes,
                    field.CPPTYPE_ENUM: pb.RefusalCode,
                    field.CPPTYPE_BOOL: bool,
                }[field.cpp_type]
                found.setdefault(message.name, {})[field.name] = kind

    look(pb.ParticipantMessage.DESCRIPTOR)
    assert found == SAID_BY_PARTICIPANTS


# ---------------------------------------------------------------- messages put together from parts


def advertisement(who: int) -> Advertisement:
    return Advertisement(bytes([who % 256]) * 32, bytes([who % 251]) * 32, bytes([who % 241]) * 64)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**14 - 1, 2**14, 2**31, 2**63])
def test_varints(number: int) -> None:
    # What protobuf writes behind the tag of field 1; it leaves zeros out.
    assert varint(number) == (pb.RoundEnd(round=number).SerializeToString()[1:] or b"\0")


@pytest.mark.parametrize("members", [1, 3, 300])
def test_cohort_keys(members: int) -> None:
    """Receivers that see other members in full, and members whose numbers take more than one byte."""
    writer = codec.CohortKeysWriter(7, 2)
    for receiver in range(0, members, 37):
        keys = CohortKeys(
            tuple(
                (who, advertisement(who) if abs(who - receiver) <= 40 else advertisement(who).digest())
                for who in range(members)
            )
        )
        whole = pb.CoordinatorMessage(cohort_keys=codec.write_cohort_keys(7, 2, keys))
        written = writer.write(keys)
        assert written == whole.SerializeToString()
        assert codec.read_cohort_keys(pb.CoordinatorMessage.FromString(written).cohort_keys) == keys


def test_the_same_keys_are_held_once() -> None:
    writer = codec.CohortKeysWriter(1, 1)
    members = [(who, advertisement(who)) for who in range(50)]
    assert writer.write(CohortKeys(tuple(members))) is writer.write(CohortKeys(tuple(members)))


def test_no_participant_is_taken_for_another() -> None:
    """The same participant in full and as a digest, and then in full again."""
    writer = codec.CohortKeysWriter(1, 1)
    full = CohortKeys(((5, advertisement(5)),))
    short = CohortKeys(((5, advertisement(5).digest()),))
    for keys in (full, short, full):
        assert codec.read_cohort_keys(pb.CoordinatorMessage.FromString(writer.write(keys)).cohort_keys) == keys


def dealt(who: int, receiver: int, **more: bytes) -> DealtShare:
    path = bytes([receiver]) * 32 * (7 + receiver % 2)
    share = DealtShare(who, bytes([receiver]) * 112, bytes([who]) * 32, path, bytes(32), bytes([who]) * 64)
    return share._replace(**more)


def test_neighbour_shares() -> None:
    """Receivers at leaves of both heights, seeds from some dealers; and dealers that say something else, or nothing."""
    writer = codec.NeighbourSharesWriter(3, 1)
    for receiver in range(4):
        shares = [dealt(who, receiver) for who in range(200)]
        shares += [dealt(who, receiver, wrapped=bytes(80), pair=bytes(32)) for who in range(100)]
        shares += [dealt(7, receiver, signature=bytes(64)), dealt(8, receiver, path=b"", ciphertext=b"")]
        message = NeighbourShares((*shares, DealtShare(0, b"x", b"", b"y", b"", b"")), bytes(range(25)))
        whole = pb.CoordinatorMessage(neighbour_shares=codec.write_neighbour_shares(3, 1, message))
        assert writer.write(message) == whole.SerializeToString()


@pytest.mark.parametrize("others", [0, 1, 40])
def test_an_unmasking_request_with_uploads(others: int) -> None:
    """Signatures and uploads are the receiver's own; each signature is serialised once."""
    uploads = tuple((bytes([who + 1]) * 32, bytes([who]) * 64) for who in range(others))
    writer = codec.UnmaskingRequestWriter(3, 1)
    for signers in (range(60), range(30, 90), range(3, 4)):
        signatures = tuple((who, bytes([who]) * 64) for who in signers)
        whole = codec.write_unmasking_request(3, 1, UnmaskingRequest(signatures, uploads))
        written = writer.write(UnmaskingRequest(signatures, uploads))
        assert written == pb.CoordinatorMessage(unmasking_request=whole).SerializeToString()
        assert codec.read_unmasking_request(whole) == UnmaskingRequest(signatures, uploads)


def test_messages_of_one_field() -> None:
    end = pb.RoundEnd(round=3, reason="left out")
    whole = pb.CoordinatorMessage(round_end=end).SerializeToString()
    assert codec.message(round_end=end) == codec.enveloped("round_end", end.SerializeToString()) == whole
