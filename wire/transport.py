"""How both ends use a connection: vectors in chunks of at most 256 KiB, and when a silent connection is detected.

A chunk is the protobuf message ``Chunk { bytes data = 1; }``, so any protobuf client reads it. Its three parts (tag
0x0a, varint length, data) are joined here, since protobuf copies large ``bytes`` fields through an allocation that
costs more than the rest of the call.

gRPC's pings travel on the connection and keep a NAT's entry alive. Heartbeats are messages of a session, and pass
proxies that answer pings themselves. Each end must accept what the other does, so the times of both are here;
docs/connections.md says which of them detects what.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CHUNK_BYTES: Final = 256 * 1024
TAG: Final = 0x0A
# tag and a length of at most three varint bytes
LARGEST_FRAME: Final = CHUNK_BYTES + 4


NONCE_BYTES: Final = 32
TOKEN_METADATA: Final = "sordino-session-bin"
NONCE_METADATA: Final = "sordino-nonce-bin"
SIGNATURE_METADATA: Final = "sordino-signature-bin"
TIME_METADATA: Final = "sordino-time"
"""Sent with the study's description: the coordinator's clock, in whole seconds since 1970."""


class InvalidChunk(ValueError):
    """Bytes that aren't one chunk of at most 256 KiB."""


def varint(number: int) -> bytes:
    """A number of at least 0 as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def frame(data: bytes | memoryview) -> bytes:
    """One chunk as a serialised protobuf message."""
    if not 1 <= len(data) <= CHUNK_BYTES:
        raise InvalidChunk(f"a chunk carries 1 to {CHUNK_BYTES} bytes, not {len(data)}")
    return b"".join((bytes([TAG]), varint(len(data)), data))


def unframe(message: bytes) -> memoryview:
    """The data of one chunk, not copied.

    Raises InvalidChunk: another tag, a length that doesn't fit, or an empty or oversize chunk.
    """
    if len(message) < 3 or message[0] != TAG:
        raise InvalidChunk("not a chunk")
    length = shift = 0
    position = 1
    while True:
        if position >= len(message) or position > 3:
            raise InvalidChunk("a chunk's length is malformed")
        byte = message[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    if not 1 <= length <= CHUNK_BYTES or position + length != len(message):
        raise InvalidChunk(f"a chunk carries 1 to {CHUNK_BYTES} bytes and nothing else")
    return memoryview(message)[position:]


def frames(data: bytes | bytearray) -> Iterator[bytes]:
    """Cut a vector or document into framed chunks."""
    view = memoryview(data)
    for start in range(0, len(view), CHUNK_BYTES):
        yield frame(view[start : start + CHUNK_BYTES])


PARTICIPANT_PING_S: Final = 20.0
"""A participant pings after this silence: less than the 30 s after which mobile carriers' NATs drop an entry."""
COORDINATOR_PING_S: Final = 30.0
PING_ANSWER_S: Final = 20.0  # either end closes a connection on which a ping remains unanswered for this time
LEAST_BETWEEN_PINGS_S: Final = 10.0
"""The coordinator disconnects a participant that pings faster (GOAWAY, too many pings)."""
HEARTBEAT_S: Final = 45.0
"""Between two heartbeats of a participant: less than the 60 s after which common proxies close a silent stream."""
HEARTBEAT_ANSWER_S: Final = 30.0
"""Without a message of the coordinator in this time, the participant opens a new session."""

CALLER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    # The caller waits between two attempts; the channel must not add to that.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
PARTICIPANT_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", round(PARTICIPANT_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_ANSWER_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
COORDINATOR_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", round(COORDINATOR_PING_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_ANSWER_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", round(LEAST_BETWEEN_PINGS_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
)
