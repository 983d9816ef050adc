"""Memory and open files of the coordinator's process.

A connection is a file descriptor. Without a bound, a peer that opens TCP connections takes them all, and the study ends
because its ledger can't be opened.

An attempt with n participants holds n^2 shares and commitments for a while, hundreds of thousands of small objects and
messages of 100 KB. Python's collector would walk through all of them at some moment, with every thread stopped for
0.1 s and more at n = 200, to find nothing: they go by their reference counts. So it walks between attempts, and in the
midst of one only because of refused calls: those leave cycles (gRPC's contexts, exceptions with their frames), and
anyone who reaches the port can make them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from wire.transport import LARGEST_FRAME, PING_ANSWER_S

log = structlog.get_logger()

# Larger blocks are mapped one by one and returned when they are freed. glibc starts at 128 KiB, but raises that to
# the largest block ever freed, up to 32 MiB; the staged vectors then leave holes in the heap that stay resident.
MAPPED_BYTES: Final = 64 * 1024
_M_MMAP_THRESHOLD: Final = -3
# Each thread that finds the others' arenas busy opens one of its own, and what is freed there serves no other thread.
ARENAS: Final = 2
_M_ARENA_MAX: Final = -8
# Walks of the middle generation between two of the oldest: out of an attempt's reach, but no licence to grow for ever.
_SELDOM: Final = 300
REFUSALS_PER_WALK: Final = 2048  # about 7 KB of cycles each


class RefusedCalls:
    """Counts calls that were refused, and collects what they leave behind before it amounts to much."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1
        if self.count % REFUSALS_PER_WALK == 0:
            gc.collect()


def settle() -> None:
    """Once, before the process serves: what is there now stays, and is not looked at again."""
    with contextlib.suppress(AttributeError, OSError):
        _libc().mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        _libc().mallopt(_M_ARENA_MAX, ARENAS)
    gc.collect()
    gc.freeze()
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, _SELDOM)


def tidy() -> None:
    """Between attempts: collect cycles, and return free memory to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        _libc().malloc_trim(0)


def process_figures() -> dict[str, Any]:
    """What this process holds, under the names of `server.events.RoundCompleted`. Called on the event loop."""
    files = 0
    with contextlib.suppress(OSError):  # on Linux
        files = len(os.listdir("/proc/self/fd"))
    return {
        "coordinator_rss_mb": resident_mb(),
        "coordinator_files": files,
        "coordinator_tasks": len(asyncio.all_tasks()),
    }


def resident_mb() -> float:
    """Resident memory of this process now (Linux), else its peak; MB of 10^6 bytes."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
        return round(int(fields[1]) * resource.getpagesize() / 1e6, 1)
    except (OSError, ValueError, IndexError):
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1)


def _libc() -> Any:
    """The C library of this process; one that isn't glibc lacks what is asked of it here, and does without."""
    return ctypes.CDLL(None)


OWN_FILES: Final = 160
"""Kept for databases with their logs, checkpoints, transcripts, sockets that listen, event loops and libraries."""

HANDSHAKE_S: Final = 10
"""For TLS, after which a connection that says nothing is closed."""

ENROLMENT_CONNECTIONS: Final = 256
_PING_ANSWER_EACH_S: Final = 0.02  # 200 s for ten thousand participants
_MOST_SESSION_CONNECTIONS: Final = 50_000


def share_out(participants: int, files: int, *, enrolment: bool) -> tuple[int, int]:
    """How the files that a process may open are shared between its ports.

    Args:
        participants: on the largest roster that is planned for.
        files: the limit.
        enrolment: there is a port for enrolment.

    Returns connections at the same time on the session port, and on the port for enrolment.
    """
    room = max(2, files - OWN_FILES)
    # Twice one for each participant: a broken connection stays open until that is noticed.
    wanted = min(2 * participants + 64, _MOST_SESSION_CONNECTIONS)
    strangers = min(ENROLMENT_CONNECTIONS, max(1, room // 4)) if enrolment else 0
    return max(1, min(wanted, room - strangers)), strangers


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


@dataclass(frozen=True)
class PortBounds:
    """What bounds what peers can make a process hold, before any of them has proved its identity.

    Attributes:
        participants: on the largest roster that is planned for.
        largest_host: participants of one host.
        control_bytes: of all that one participant says in an attempt, its vector aside.
    """

    participants: int
    largest_host: int
    control_bytes: int

    def options(self) -> list[tuple[str, int]]:
        """Of gRPC. The largest honest control message grows with the number of neighbours; chunks have one size."""
        largest = max(LARGEST_FRAME, self.control_bytes) + 1024
        streams = 3 * self.largest_host + 8  # session, upload and download of each participant
        # While messages for thousands are made, a busy machine's answers to pings are late; deadlines find who is gone.
        answer_s = max(PING_ANSWER_S, self.participants * _PING_ANSWER_EACH_S)
        # Of calls that the event loop hasn't taken yet gRPC cancels some from 1,000 on, and all above 3,000.
        waiting = max(3000, 3 * self.participants)
        return [
            ("grpc.max_receive_message_length", largest),
            ("grpc.max_concurrent_streams", streams),
            ("grpc.keepalive_timeout_ms", round(answer_s * 1000)),
            ("grpc.server.max_pending_requests", waiting),
            ("grpc.server.max_pending_requests_hard_limit", waiting),
        ]


def connection_options(most: int) -> list[tuple[str, Any]]:
    """gRPC options of a server that takes at most this many connections."""
    return [("grpc.max_allowed_incoming_connections", most), ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000)]
