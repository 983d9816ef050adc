"""How many connections a process takes, so that its own files can be opened whatever strangers do.

A connection is a file descriptor. Without a bound, whoever opens TCP connections takes them all, and the study ends
because its ledger can't be opened.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Any, Final

import structlog

log = structlog.get_logger()

OWN_FILES: Final = 160
"""Kept for databases with their logs, checkpoints, transcripts, sockets that listen, event loops and libraries."""

HANDSHAKE_S: Final = 10
"""For TLS, after which a connection that says nothing is closed."""

ENROLMENT_CONNECTIONS: Final = 256
_MOST_SESSION_CONNECTIONS: Final = 50_000


@dataclass(frozen=True)
class Connections:
    """At the same time, on either port."""

    sessions: int
    enrolment: int


def share_out(participants: int, files: int, *, enrolment: bool) -> Connections:
    """How the files that a process may open are shared between its ports.

    Args:
        participants: on the largest roster that is planned for.
        files: the limit.
        enrolment: there is a port for enrolment.
    """
    room = max(2, files - OWN_FILES)
    # As many as if nobody shared one, and again: a connection that broke off stays until somebody notices.
    wanted = min(2 * participants + 64, _MOST_SESSION_CONNECTIONS)
    strangers = min(ENROLMENT_CONNECTIONS, max(1, room // 4)) if enrolment else 0
    return Connections(max(1, min(wanted, room - strangers)), strangers)


def raise_limit(participants: int) -> int:
    """Raise the soft limit on open files towards the hard one, as far as may be of use; returns the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = OWN_FILES + ENROLMENT_CONNECTIONS + min(2 * participants + 64, _MOST_SESSION_CONNECTIONS)
    target = wanted if hard == endless else min(wanted, hard)
    if soft != endless and soft < target:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower bound of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if soft == endless else soft
    if limit < OWN_FILES + participants:
        log.warning("few files may be open: participants may be turned away", limit=limit, participants=participants)
    return limit


def connection_options(most: int) -> list[tuple[str, Any]]:
    """gRPC options of a server that takes so many connections."""
    return [
        ("grpc.max_allowed_incoming_connections", most),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
    ]
