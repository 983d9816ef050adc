"""Messages put together from parts are the bytes that protobuf makes of the whole."""

from __future__ import annotations

import pytest

from secagg.messages import Advertisement, CohortKeys, DealtShare, NeighbourShares, UnmaskingRequest
from wire import codec
from wire import coordinator_pb2 as pb
from wire.transport import varint


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
