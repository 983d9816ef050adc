"""Hand-framed chunks are protobuf's own."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings, strategies as st

from wire import coordinator_pb2 as pb
from wire.transport import CHUNK_BYTES, LARGEST_FRAME, InvalidChunk, frame, frames, unframe

LENGTHS = [1, 2, 127, 128, 129, 16_383, 16_384, 16_385, CHUNK_BYTES - 1, CHUNK_BYTES]


@pytest.mark.parametrize("length", LENGTHS)
def test_equal_to_protobuf(length: int) -> None:
    data = bytes(range(256)) * (length // 256) + bytes(range(length % 256))
    framed = frame(data)
    assert framed == pb.Chunk(data=data).SerializeToString()
    assert pb.Chunk.FromString(framed).data == data
    assert bytes(unframe(framed)) == data
    assert len(framed) <= LARGEST_FRAME
    assert frame(memoryview(data)) == framed


def test_the_largest_frame_is_reached() -> None:
    assert len(frame(bytes(CHUNK_BYTES))) == LARGEST_FRAME


@pytest.mark.parametrize("length", [0, CHUNK_BYTES + 1])
def test_lengths_that_are_not_sent(length: int) -> None:
    with pytest.raises(InvalidChunk):
        frame(bytes(length))
    with pytest.raises(InvalidChunk):
        unframe(pb.Chunk(data=bytes(length)).SerializeToString())


@pytest.mark.parametrize("length", [1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17])
def test_cutting_a_vector(length: int) -> None:
    data = bytes(i % 251 for i in range(length))
    cut = [bytes(unframe(one)) for one in frames(data)]
    assert b"".join(cut) == data
    assert all(len(one) == CHUNK_BYTES for one in cut[:-1])
    assert list(frames(b"")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *(b"", b"\x0a", b"\x0a\x01", b"\x0a\x00", b"\x12\x01x", b"\x08\x01x", b"\x0a\x02x", b"\x0a\x01xy"),
        *(
            b"\x0a\x01x\x0a\x01y",
            b"\x0a\xff\xff\xff",
            b"\x0a\xff\xff\xff\xff\x0fx",
            b"\x0a\x80\x80\x80\x01x",
            b"\x0a\x80",
        ),
    ],
)
def test_malformed(wrong: bytes) -> None:
    with pytest.raises(InvalidChunk):
        unframe(wrong)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: b"\x0a" + data))
def test_whatever_is_taken_is_taken_by_protobuf_too(message: bytes) -> None:
    try:
        data = bytes(unframe(message))
    except InvalidChunk:
        return
    try:
        assert pb.Chunk.FromString(message).data == data
    except DecodeError:
        pytest.fail("protobuf reads something else")
