"""A participant that cheats, over gRPC: what it can do instead of what the protocol asks for."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc

from client.connection import DocumentUnavailable, Session
from client.credentials import load_certificate
from secagg.errors import CoordinatorMisbehaved
from server.attempt.steps import PHASE_FIELDS
from tests.support.study_in_process import Peer
from wire import coordinator_pb2 as pb
from wire.transport import frames

if TYPE_CHECKING:
    from tests.adversary.study_with_cheats import Stage

KINDS = tuple(PHASE_FIELDS)
ADVERTISE, SHARE, INPUT, CHECK, UNMASK = KINDS

Twist = Callable[["Cheater", Any], Any]
"""(cheater, honest content) -> messages to send instead, or None to say nothing; may be a coroutine function."""


@dataclass(frozen=True)
class Cheat:
    """What one participant does differently."""

    twists: Mapping[str, Twist] = field(default_factory=dict)  # by the kind of message that each replaces
    uploader: Callable[[Cheater, bytes], Awaitable[Any]] | None = None  # replaces the upload of the packed vector
    rounds: frozenset[int] = frozenset({1})  # in which it cheats
    options: tuple[tuple[str, int], ...] = ()  # of its channel

    def kinds(self) -> set[str]:
        """Return the phases in which it cheats."""
        return {*self.twists, *([INPUT] if self.uploader is not None else [])}


@dataclass
class Cheater(Peer):
    """Follows the protocol except for its cheat."""

    stage: Stage | None = None
    cheat: Cheat = field(default_factory=Cheat)
    me: int = -1
    home: Path = Path()  # of its own host, whose certificate it shows
    cheated: set[tuple[int, str]] = field(default_factory=set)  # rounds and phases in which its cheat is done
    owed: int = 0  # phase messages and refusals that it has sent
    mask_key_symbols: Any = None
    before: dict[str, Any] = field(default_factory=dict)  # its last honest messages, by kind
    first: dict[str, Any] = field(default_factory=dict)  # its first ones
    said: dict[str, tuple[tuple[int, int], Any]] = field(default_factory=dict)  # its last ones, with their attempt
    answers: list[str] = field(default_factory=list)  # why calls of its cheat were refused
    others: list[Session] = field(default_factory=list)  # sessions beside its own
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    returning: bool = False  # opens another session when this one has ended, and isn't back yet
    left_unsent: bool = False  # some of what it has sent never arrives

    at: str = ""  # where it dialled last

    def dial(self, address: str = "") -> grpc.aio.Channel:
        """Open a channel as a client process does, except for the options; to this address, if one is given."""
        shown = load_certificate(self.home / "tls" / "client.pem", self.home / "tls" / "client.key")
        credentials = grpc.ssl_channel_credentials((self.home / "ca.pem").read_bytes(), shown.key, shown.chain)
        options = [*self.cheat.options, ("grpc.use_local_subchannel_pool", 1)]
        self.at = address or self.where.address
        return grpc.aio.secure_channel(self.at, credentials, options=options)

    @property
    def known(self) -> Stage:
        """The study that it takes part in."""
        assert self.stage is not None
        return self.stage

    async def connect(self) -> None:
        await super().connect()
        assert self.session is not None
        # Bytes that are no message may be sent as they are.
        self.session._call._request_serializer = lambda one: one if isinstance(one, bytes) else one.SerializeToString()

    async def play(self) -> str | None:
        """Take part until the study ends, in one session after another."""
        while True:
            if self.session is None:
                return None
            try:
                reason = await super().play()
            except (grpc.aio.AioRpcError, CoordinatorMisbehaved):
                reason = None
            if reason is not None or not self.returning:
                self.session.close()
                return reason
            await self._come_back()

    async def leave(self, *, returns: bool) -> None:
        """Cut the session and wait until the coordinator knows."""
        assert self.session is not None
        self.returning = returns
        self.session.close()
        await self.until(self.is_over)
        await self.session._incoming.put(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        while not holds():
            await asyncio.sleep(0.002)

    async def is_cut_off(self) -> None:
        """Wait until the coordinator has ended this session; another one is opened then."""
        self.returning = True
        await self.until(self.is_over)

    def is_over(self) -> bool:
        """Tell whether this session has ended for the coordinator."""
        assert self.session is not None
        return bool(self.where.study.sessions.by_token(self.session.welcome.session_token) is None)

    async def _come_back(self) -> None:
        """Reconnect as a client does: a call may fail because the coordinator is just ending the last session."""
        try:
            for _ in range(20):
                await self.close()
                try:
                    await self.connect()
                    break
                except (grpc.aio.AioRpcError, DocumentUnavailable):
                    await asyncio.sleep(0.05)
            await self.until(self.is_back)
        finally:
            self.returning = False

    def is_back(self) -> bool:
        """Tell whether it can take part in a round again."""
        session = self.known.where.study.sessions.get(self.me)
        return session is not None and session.ready

    async def on_cohort_keys(self, message: pb.CohortKeys) -> None:
        self.mask_key_symbols = self.phase._keys.mask_key_symbols
        await super().on_cohort_keys(message)

    async def say(self, kind: str, content: Any) -> None:
        if self.number[0] not in self.cheat.rounds or kind not in self.cheat.twists:
            self._remember(kind, content)
            await self.tell(self.wrap(**{kind: content}))
            return
        round_ = self.number[0]
        try:
            messages = self.cheat.twists[kind](self, content)
            if inspect.isawaitable(messages):
                messages = await messages
            for message in messages or ():
                await self.tell(message)
        finally:
            self._remember(kind, content)
            self.cheated.add((round_, kind))

    def _remember(self, kind: str, content: Any) -> None:
        self.before[kind] = content
        self.first.setdefault(kind, content)
        self.said[kind] = (self.number, content)

    async def tell(self, message: Any) -> None:
        """Send a message, or raw bytes."""
        assert self.session is not None
        if isinstance(message, pb.ParticipantMessage) and message.WhichOneof("message") in ("phase", "refusal"):
            self.owed += 1
        await self.session.send(message)

    async def on_upload_credit(self, credit: pb.UploadCredit) -> None:
        round_ = self.number[0]
        if self.cheat.uploader is None or round_ not in self.cheat.rounds:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self.upload(frames(self.packed))
            return

        async def cheat() -> None:  # beside its session, which goes on
            try:
                await self.cheat.uploader(self, self.packed)  # type: ignore[misc]
            except grpc.aio.AioRpcError as error:
                self.upload_error = error
            finally:
                self.cheated.add((round_, INPUT))

        self.tasks.append(asyncio.create_task(cheat()))

    async def unread_upload(self, messages: Iterable[bytes], token: bytes | None = None) -> None:
        """As `upload_unread`; notes why it is refused."""
        try:
            await self.upload_unread(messages, token)
        except grpc.aio.AioRpcError as error:
            self.answers.append(error.details() or error.code().name)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        for other in self.others:
            other.close()
        await super().close()

    def crooked(self) -> Any:
        """Return what `tests.support.crooked_dealings.crooked_shares` uses of an attempt."""
        return SimpleNamespace(phases={self.me: self.phase}, mask_key_symbols={self.me: self.mask_key_symbols})
