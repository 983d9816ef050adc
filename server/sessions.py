"""Who is connected: one session per participant, opened with a proof of its identity.

A participant is named by its position in the roster in use, which changes with a new version: `Sessions.adopt` places
every session anew. That happens between attempts, never within one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from secagg.keys import session_statement
from secagg.roster import Roster
from secagg.signatures import verify_signature
from server.events import RESTING
from wire import coordinator_pb2 as pb
from wire.codec import PROTOCOL_VERSION
from wire.open_calls import PeerRates
from wire.process_limits import RefusedCalls
from wire.transport import NONCE_BYTES

MOST_WAITING = 64  # messages to one participant; an attempt has about ten
MOST_STRAYS = 1000
SESSIONS_PER_S = 1.0  # of one identity, in the long run
SESSIONS_AT_ONCE = 120
TOKEN_BYTES = 32
# Why a session ended. After the first two its participant may be back at once, and goes on where it was.
CLOSED, REPLACED, STOPPED = "connection closed", "replaced by a newer connection", "stopped on purpose"
RESUMABLE = frozenset({CLOSED, REPLACED})


class SessionRefused(Exception):
    """The participant can't open a session; the text is safe to send."""


class TooManySessions(Exception):
    """This identity opens one session after the other; it may try again a little later."""


class Far(Protocol):
    """Another process in which streams of sessions end (`server.engine`)."""

    async def send_each(self, written: bytes, sessions: Collection[Session]) -> None:
        """Send each its own message: ``written`` is pickled, a function from a participant to serialised bytes.

        Returns once the other process can take more.
        """


@dataclass(eq=False)
class Session:
    """One participant's open stream."""

    identity: bytes
    participant: int
    host: str
    token: bytes = field(repr=False)
    ready: bool = False
    leaving: str = ""  # why its participant leaves, where it says so
    rests_until: float = 0.0  # of the monotonic clock: by then a participant that was sent away is back
    strays: int = 0
    cut: bool = False  # a newer session took its place, or its peer says no more
    writing: bool = False  # gRPC holds a message that its peer hasn't taken
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue, repr=False)
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    far: Far | None = field(default=None, kw_only=True, repr=False)  # where its stream ends, if not in this process

    @property
    def closed(self) -> bool:
        """Whether it is over: later messages of its peer are ignored, since its position may have a new owner."""
        return self.over.is_set()

    def send(self, message: bytes) -> None:
        """Queue a serialised `CoordinatorMessage`; a session that is gone swallows it, one that reads nothing ends."""
        if self.outbox.qsize() >= MOST_WAITING:
            self.close()
        if not self.closed:
            self.outbox.put_nowait(message)

    def cut_off(self) -> None:
        """End the stream before what is queued, which is sent again on the next one."""
        while not self.outbox.empty():
            self.outbox.get_nowait()
        self.cut = True
        self.over.set()
        self.outbox.put_nowait(None)

    def stray(self) -> None:
        """Note an unexpected message; a few are of an attempt that has just ended.

        Raises SessionRefused: there were too many since the last one that counted.
        """
        self.strays += 1
        if self.strays > MOST_STRAYS:
            raise SessionRefused("more messages than the attempts under way have")

    def close(self) -> None:
        """End the stream after what is queued."""
        if not self.closed:
            self.over.set()
            self.outbox.put_nowait(None)


class Elsewhere(Protocol):
    """The processes in which streams of sessions end, if that isn't this one (`server.engine`)."""

    def figures(self) -> dict[str, float]:
        """Of these processes, by the names of `server.metrics`."""

    def adopt(self, roster: Roster) -> None:
        """A later roster is in use."""

    async def check_there(self, step: Any, number: tuple[int, int], compute: Any) -> None:
        """Have messages of a phase checked where they arrive."""

    def uploads(self, attempt: Any, credits_: int) -> Any:
        """The `server.attempt.uploads.Uploads` of an attempt."""


@dataclass
class Traffic:
    """Bytes over the session port, protobuf framing included; without TLS, HTTP/2 and handshakes."""

    control_received: int = 0
    control_sent: int = 0
    vectors_received: int = 0  # of uploads that are refused or break off too
    documents_sent: int = 0  # models, rosters, the study document

    async def of_upload(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks, counted as they come."""
        async for chunk in chunks:
            self.vectors_received += len(chunk)
            yield chunk


class Sessions:
    """All open sessions, by participant and by token."""

    def __init__(self, study: str, roster: Roster, on_lost: Callable[[Session, str], None]) -> None:
        """Args: on_lost: called with a session that ended and the reason, `REPLACED` if a newer one took its place."""
        self._study, self.roster, self._on_lost = study, roster, on_lost
        self.refused_calls = RefusedCalls()
        self._by_participant: dict[int, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self.left_early: set[bytes] = set()  # on the roster, had a session that ended before it was ready, aren't back
        self._resting: dict[bytes, float] = {}  # on the roster, aren't needed until then, and aren't back
        self._broke_at: dict[bytes, float] = {}  # by identity: when a connection broke, and it isn't back
        self.changed = asyncio.Event()
        self.most_message_bytes: int | None = None  # of one message; the transport's limit alone where none is set
        self._rates = PeerRates(SESSIONS_PER_S, SESSIONS_AT_ONCE)
        self.traffic = Traffic()
        self.elsewhere: Elsewhere | None = None
        # Apart from the protocol's thread: a session can be opened while that is busy with a sum.
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix="sessions")

    def __len__(self) -> int:
        return len(self._by_participant)

    def all(self) -> list[Session]:
        return list(self._by_participant.values())

    def get(self, participant: int) -> Session | None:
        return self._by_participant.get(participant)

    def by_token(self, token: bytes) -> Session | None:
        return self._by_token.get(token)

    def ready(self) -> frozenset[int]:
        """Participants that can take part in a round."""
        return frozenset(who for who, session in self._by_participant.items() if session.ready)

    def broken_since(self, moment: float) -> frozenset[int]:
        """Participants whose connection broke after a moment of the monotonic clock, and that aren't ready again."""
        places = self.roster.positions
        return frozenset(places[who] for who, at in self._broke_at.items() if at >= moment)

    def resting(self) -> frozenset[int]:
        """Participants that aren't needed for a while, and aren't due back yet."""
        now, places = time.monotonic(), self.roster.positions
        return frozenset(places[who] for who, until in self._resting.items() if until > now)

    def still_rest(self, identities: Iterable[bytes], longest_s: float) -> None:
        """Those on the roster that an earlier process had sent away."""
        self._resting.update(dict.fromkeys(identities, time.monotonic() + longest_s))

    def due(self, participants: Collection[int]) -> float:
        """When the last of these that rest is back, of the monotonic clock; 0: none rests."""
        places = self.roster.positions
        return max((until for who, until in self._resting.items() if places[who] in participants), default=0.0)

    def adopt(self, roster: Roster) -> list[Session]:
        """Use a later roster. Sessions of participants that are not on it any more end.

        Returns the sessions that ended.
        """
        self.roster = roster
        if self.elsewhere is not None:
            self.elsewhere.adopt(roster)
        self.left_early &= roster.positions.keys()
        self._resting = {who: until for who, until in self._resting.items() if who in roster.positions}
        self._broke_at = {who: at for who, at in self._broke_at.items() if who in roster.positions}
        staying, leaving = {}, []
        for session in self._by_participant.values():
            participant = roster.positions.get(session.identity)
            if participant is None:
                leaving.append(session)
            else:
                session.participant, session.host = participant, roster.entries[participant].host
                staying[participant] = session
        self._by_participant = staying
        for session in leaving:
            self._by_token.pop(session.token, None)
            session.close()
        self.changed.set()
        return leaving

    def challenge(self, message: pb.Open) -> tuple[bytes, bytes, bytes]:
        """Check a request to open a session.

        Returns the identity, the nonce to send, and the statement whose signature opens the session.

        Raises SessionRefused: another protocol version or study, or an identity that is not on the roster.
        """
        if message.protocol_version != PROTOCOL_VERSION:
            raise SessionRefused(
                f"this coordinator speaks protocol version {PROTOCOL_VERSION}, the participant "
                f"{message.protocol_version}: install the same version of sordino on both sides"
            )
        if message.study != self._study:
            raise SessionRefused("this coordinator runs another study")
        self._place(message.identity)
        if len(message.nonce) != NONCE_BYTES:
            raise SessionRefused("the nonce must have 32 bytes")
        nonce = secrets.token_bytes(NONCE_BYTES)
        return message.identity, nonce, session_statement(self._study, message.identity, message.nonce, nonce)

    async def check_proof(self, identity: bytes, statement: bytes, signature: bytes) -> None:
        """Raises SessionRefused: the signature over the statement of `challenge` isn't that of the identity."""
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._verifier, verify_signature, identity, signature, statement):
            raise SessionRefused("the proof of identity doesn't verify")

    def host(self, identity: bytes) -> str:
        """The host process that the roster lists an identity under; raises `SessionRefused` as `challenge`."""
        return self.roster.entries[self._place(identity)].host

    def _place(self, identity: bytes) -> int:
        participant = self.roster.positions.get(identity)
        if participant is None:
            raise SessionRefused(
                f"this identity is not on version {self.roster.version} of the study's roster: it was revoked or "
                "never enrolled; ask the study's authority"
            )
        return participant

    def open(self, identity: bytes, make: Callable[[bytes, int, str], Session] | None = None) -> Session:
        """Open a session for a participant that has proved its identity; an older one of the same participant ends.

        ``make``: from identity, position and host; by default a session whose stream ends in this process.

        Raises SessionRefused: it was revoked meanwhile; TooManySessions: it opened many just now.
        """
        participant = self._place(identity)
        if not self._rates.allow(identity.hex()):
            raise TooManySessions("too many sessions at once: try again a little later")
        old = self._by_participant.get(participant)
        if old is not None:
            old.cut_off()
            self.lost(old, REPLACED)
        self.left_early.discard(identity)
        make = make or partial(Session, token=secrets.token_bytes(TOKEN_BYTES))
        session = make(identity, participant, self.roster.entries[participant].host)
        self._by_participant[participant] = session
        self._by_token[session.token] = session
        return session

    def set_ready(self, session: Session) -> None:
        if not session.ready:
            session.ready = True
            self._broke_at.pop(session.identity, None)
            self._resting.pop(session.identity, None)
            self.changed.set()

    def lost(self, session: Session, reason: str) -> None:
        session.close()
        if self._by_token.pop(session.token, None) is None:
            return
        if reason == RESTING:
            self._resting[session.identity] = session.rests_until
        elif not session.ready:
            self.left_early.add(session.identity)
            self._resting.pop(session.identity, None)
        elif reason in RESUMABLE and session.identity in self.roster.positions:
            self._broke_at[session.identity] = time.monotonic()
        if self._by_participant.get(session.participant) is session:
            del self._by_participant[session.participant]
        self.changed.set()
        self._on_lost(session, reason)

    def close_all(self, message: bytes | None = None) -> None:
        """End all sessions, after a message if one is given."""
        for session in self.all():
            if message is not None:
                session.send(message)
            session.close()

    def close(self) -> None:
        """No session is opened any more."""
        self._verifier.shutdown(wait=False, cancel_futures=True)
