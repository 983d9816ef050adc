"""Why a coordinator can't be reached, in words for whoever runs a client; gRPC's own where it isn't foreseen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import grpc

from client.connection import HANDSHAKE_S
from wire.peer_text import peer_text


@dataclass(frozen=True, order=True)
class Trouble:
    """What stood in the way once.

    Attributes:
        tells: how much it says about the mistake, if there is one. Of several addresses behind one name gRPC tells the
            last that failed: at one of them a certificate may be wrong, and at the others nobody listens.
        words: a clause without a full stop, and what to change.
    """

    tells: int
    words: str


_KNOWN: Final[tuple[tuple[int, tuple[str, ...], str], ...]] = (
    (
        4,
        ("is not in peer certificate", "Hostname Verification"),
        "its certificate isn't for this name: use the name or address that the study's owner gave you",
    ),
    (
        4,
        ("CERTIFICATE_VERIFY_FAILED", "self signed", "self-signed", "unknown authority"),
        "its certificate isn't signed by this study's authority: another study is served there, or {ca} isn't this "
        "study's",
    ),
    (3, ("WRONG_VERSION_NUMBER", "Trying to connect an http1.x server"), "what answers there isn't a coordinator"),
    (
        2,
        ("Socket closed", "Connection reset", "CERTIFICATE_REQUIRED", "alert", "Tls handshake failed"),
        "it closed the connection: it may not know this host's certificate ({certificate}), be starting, or be no port "
        "for sessions",
    ),
    (1, ("Domain name not found", "lookup error", "DNS resolution failed"), "there is no machine of this name"),
    (1, ("Connection refused",), "nobody listens there; the coordinator may not be started yet"),
    (1, ("No route to host", "Network is unreachable", "network unreachable"), "there is no way to that machine"),
    (1, ("timed out", "Timeout", "DEADLINE_EXCEEDED"), "it doesn't answer"),
)


async def is_connected(channel: grpc.aio.Channel) -> bool:
    """Whether there is a connection, once gRPC has made one or failed to.

    gRPC gives its own words and those of the other side's status in one field, and nothing tells them apart. A call
    that begins on a connection may end with either; one that begins where none could be made ends with gRPC's.

    Raises:
        TimeoutError: neither within the time of a handshake.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        while True:
            state = channel.get_state(try_to_connect=True)
            if state not in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                return state is grpc.ChannelConnectivity.READY
            await channel.wait_for_state_change(state)


def trouble_told(details: str) -> Trouble:
    """On a connection: the words may be the coordinator's, so they are shown as such and nothing is concluded."""
    return Trouble(0, f'it ended the session ("{peer_text(details)}")')


def trouble_of(details: str, *, ca: str, certificate: str) -> Trouble:
    """What gRPC's words mean.

    Args:
        details: of an `grpc.aio.AioRpcError`, from where no connection could be made: gRPC's own words.
        ca, certificate: names of the files that decide whom this host trusts, and who it is.
    """
    for tells, parts, words in _KNOWN:
        if any(part in details for part in parts):
            return Trouble(tells, words.format(ca=ca, certificate=certificate))
    return Trouble(0, peer_text(details))
