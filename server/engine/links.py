"""The coordinator's end of its gateways: their sessions are its sessions, their partial sums parts of its sum.

A gateway that fails takes its sessions with it, as broken connections do: their participants keep their places for a
while, and go on at another gateway with the same bytes. A vector that wasn't merged yet is asked for again.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, cast

import structlog
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from secagg.errors import InvalidMessage
from secagg.roster import Roster
from secagg.server_cohort import Checked, Upload
from server.attempt.attempt import Attempt
from server.attempt.inbox import PartialSum
from server.attempt.steps import Said, Step
from server.attempt.uploads import UploadRefused, Uploads
from server.engine.gateway import TOGETHER_S
from server.events import RESTING
from server.sessions import CLOSED, STOPPED, Session, SessionRefused, TooManySessions
from server.study import Study
from wire import coordinator_pb2 as pb
from wire.codec import MalformedMessage
from wire.gateway_channel import Calls, FarGateway

log = structlog.get_logger()

_SAID: Final[dict[str, Any]] = {"phase_message": pb.PhaseMessage, "refusal": pb.Refusal, "session_ready": pb.Ready}
_AT_ATTEMPT: Final = frozenset({"grant_credit", "upload_broken", "upload_failed"})
"""Methods of an attempt that a gateway calls."""
RESTART_S: Final = 1.0  # between a gateway's end and the start of the next in its place


@dataclass(eq=False)
class RemoteSession(Session):
    """A session whose stream ends at a gateway."""

    far: Link = field(kw_only=True, repr=False)

    def send(self, message: bytes) -> None:
        if not self.closed:
            self.far.call("send", self.token, message)

    def close(self, reason: str = "") -> None:
        if not self.closed:
            self.over.set()
            self.far.call("end", self.token, reason)

    def cut_off(self) -> None:
        self.cut = True
        self.over.set()
        self.far.cut(self)


class Link:
    """One gateway, as the coordinator sees it. Its methods named as the gateway's calls are called by those."""

    def __init__(self, far: FarGateway, study: Study) -> None:
        self._far, self._study = far, study
        self._calls: Calls = []
        self._flushing, self._flushed_at = False, 0.0
        self._unread: dict[bytes, Session] = {}  # sessions that have ended with a message in gRPC's hands
        self.uploads: UploadsAtGateways | None = None  # of the attempt under way
        self.alive = True
        self.known: dict[str, Any] = {"traffic": {}, "refused": 0, "bytes": 0.0, "sessions": 0}  # as it said last

    def call(self, name: str, *arguments: Any) -> None:
        """Call a method of the gateway, together with what is called about then."""
        self._calls.append((name, arguments))
        if not self._flushing:
            self._flushing = True
            wait = self._flushed_at + TOGETHER_S - time.monotonic()
            asyncio.get_running_loop().call_later(max(wait, 0), self._flush)

    async def send_each(self, written: bytes, sessions: Collection[Session]) -> None:
        """Of `server.sessions.Far`."""
        here = {one.token: one.participant for one in sessions if not one.closed}
        self.call("send_each", written, here)
        self._flush()
        await self._far.room()

    def cut(self, session: RemoteSession) -> None:
        """End a session that is replaced. Until the gateway says otherwise its peer may not have read all."""
        session.writing = self.alive
        self._unread[session.token] = session
        self.call("cut", session.token)

    def _flush(self) -> None:
        self._flushing, self._flushed_at, calls = False, time.monotonic(), self._calls
        self._calls = []
        if calls and self.alive:
            self._far.hear(calls)

    async def listen(self) -> None:
        """Take the gateway's calls until it fails; then its sessions end."""
        try:
            while True:
                for name, arguments in await self._far.said():
                    getattr(self, name)(*arguments)
                await asyncio.sleep(0)  # what is queued already isn't waited for
        finally:
            self.alive = False
            if self.uploads is not None:
                self.uploads.gone(self)
            for mine in self._sessions():
                self._study.sessions.lost(mine, CLOSED)
            for ended in self._unread.values():
                ended.writing = False

    def _sessions(self) -> list[RemoteSession]:
        return [one for one in self._study.sessions.all() if isinstance(one, RemoteSession) and one.far is self]

    def _session(self, token: bytes) -> Session | None:
        return self._study.sessions.by_token(token)

    # ------------------------------------------------------------ calls of the gateway: sessions

    def opened(self, token: bytes, identity: bytes) -> None:
        try:
            session = self._study.sessions.open(identity, partial(RemoteSession, token=token, far=self))
        except (SessionRefused, TooManySessions) as error:
            self.call("end", token, str(error))
        else:
            self._study.opened(session)

    def checked(
        self, token: bytes, number: tuple[int, int], kind: str, written: bytes, size: int, outcome: Any, error: str
    ) -> None:
        """A message that the gateway has checked. ``error``: why it isn't taken, of the class named ``outcome``."""
        session = self._session(token)
        if session is None:
            return
        result: Any = Checked(outcome)
        if error:
            malformed = outcome == MalformedMessage.__name__
            result = MalformedMessage(error) if malformed else InvalidMessage(kind, session.participant, error)
        try:
            self._study.said(session, number, Said(kind, written, result), size)
        except SessionRefused as refused:
            self._refuse(session, str(refused))

    def said(self, token: bytes, name: str, written: bytes, *size: int) -> None:
        """A message of a session: a call of the study's method of that name."""
        if (session := self._session(token)) is None:
            return
        try:
            getattr(self._study, name)(session, _SAID[name].FromString(written), *size)
        except (SessionRefused, DecodeError) as error:
            self._refuse(session, str(error))

    def _refuse(self, session: Session, reason: str) -> None:
        cast(RemoteSession, session).close(reason)
        self._study.sessions.lost(session, reason)

    def lost(self, token: bytes, reason: str, writing: bool) -> None:
        if not writing:
            self.written(token)
        session = self._session(token)
        if session is None:
            return
        if writing:
            session.writing = True
            self._unread[token] = session
        if reason == RESTING and not session.rests_until:
            reason = STOPPED
        self._study.sessions.lost(session, reason)

    def written(self, token: bytes) -> None:
        if (session := self._unread.pop(token, None)) is not None:
            session.writing = False

    def told(self, sizes: dict[bytes, int]) -> None:
        """Documents and messages went out that the gateway has made or held."""
        for token, size in sizes.items():
            if (session := self._session(token)) is not None:
                self._study.downloaded(session, size)

    def requested(self, request: bytes) -> None:
        async def answer() -> None:
            asked = pb.DocumentRequest.FromString(request)
            document = await self._study.requested(None, asked)
            # A history grows, and what isn't there may come.
            self.call("answer", request, document, document is not None and not asked.history_after)

        asyncio.ensure_future(answer()).add_done_callback(_ignored)

    def figures(self, traffic: dict[str, int], rss_mb: float, refused: int, sessions: int) -> None:
        """What the gateway has counted since its start."""
        before, total = self.known["traffic"], self._study.sessions.traffic
        for name, count in traffic.items():
            setattr(total, name, getattr(total, name) + count - before.get(name, 0))
        self._study.sessions.refused_calls.count += refused - self.known["refused"]
        self.known = {"traffic": traffic, "refused": refused, "bytes": 1e6 * rss_mb, "sessions": sessions}

    # ------------------------------------------------------------ calls of the gateway: vectors

    def _of(self, number: int) -> UploadsAtGateways | None:
        return self.uploads if self.uploads is not None and self.uploads.number == number else None

    def staged(self, number: int, participant: int) -> None:
        if (uploads := self._of(number)) is not None and uploads.at(participant) is self:
            uploads.whole.add(participant)

    def vector(self, number: int, who: int, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What befell a vector that is expected at this gateway: a call of a method of the attempt.

        Raises ValueError: that no gateway calls.
        """
        if name not in _AT_ATTEMPT:
            raise ValueError(f"a gateway calls {name!r} of an attempt")
        if (uploads := self._of(number)) is not None and uploads.at(who) is self:
            getattr(uploads.attempt, name)(who, *arguments, **named)

    def partial(self, number: int, parts: dict[int, Upload], total: NDArray[Any]) -> None:
        uploads = self._of(number)
        if uploads is None:
            self.call("vectors", number, "merged", ())
        else:
            uploads.take(self, parts, total)

    async def stop(self) -> None:
        """Close its port, once what was sent is written."""
        self._flush()
        await self._far.stop()

    def kill(self) -> None:
        self._far.kill()


class UploadsAtGateways(Uploads):
    """Offers of one attempt, each at the gateway of its participant, with a share of the credits."""

    def __init__(
        self, number: int, attempt: Attempt, credits_: int, links: Callable[[], list[Link]], most: int
    ) -> None:
        """Args: links: gateways that are up; most: that may be up."""
        parameters = attempt.config.parameters
        super().__init__(parameters.upload_size, credits_, attempt.grant_credit, attempt.upload_failed)
        self.number, self.attempt = number, attempt
        self._links, self._most = links, most
        self.closed = False
        self._at: dict[int, Link] = {}
        self._offered: dict[int, tuple[bytes, bytes]] = {}
        self.whole: set[int] = set()  # participants whose vectors are whole, merged or not
        for link in links():
            self.begin(link)

    def begin(self, link: Link) -> None:
        """A gateway is to take vectors of this attempt."""
        link.uploads = self
        share = max(1, self.credits // self._most)
        link.call("begin_attempt", self.number, self.attempt.config.parameters, share)

    def at(self, participant: int) -> Link | None:
        """The gateway at which its vector is expected."""
        return self._at.get(participant)

    def offer(self, participant: int, sha256: bytes, signature: bytes) -> None:
        if participant in self._offered:
            raise UploadRefused("a vector was offered before in this attempt")
        self._offered[participant] = sha256, signature
        self._place(participant)

    def _place(self, participant: int) -> None:
        session = self.attempt.session_of(participant)
        if isinstance(session, RemoteSession):  # else once it is back
            self._at[participant] = session.far
            session.far.call("vectors", self.number, "offer", participant, *self._offered[participant])

    def forget(self, participant: int) -> None:
        self._offered.setdefault(participant, (b"", b""))
        if (link := self._at.pop(participant, None)) is not None:
            link.call("vectors", self.number, "forget", participant)

    def complete(self, participant: int) -> bool:
        return participant in self.whole

    def again(self, participant: int) -> int | None:
        if participant not in self._offered or participant in self.whole:
            return None
        session, at = self.attempt.session_of(participant), self._at.get(participant)
        if isinstance(session, RemoteSession) and session.far is at:
            at.call("vectors", self.number, "again", participant)
        else:
            if at is not None:
                at.call("vectors", self.number, "forget", participant)
            self._place(participant)
        return None  # the gateway grants what is missing

    def take(self, link: Link, parts: dict[int, Upload], total: NDArray[Any]) -> None:
        """A partial sum of some vectors, of which all or none can be merged."""
        here = {who for who in parts if self._at.get(who) is link}

        def settle(taken: Collection[int]) -> None:
            if len(taken) == len(parts):
                self.whole.update(parts)
                for who in parts:
                    if (at := self._at.pop(who, link)) is not link:  # it was asked for again meanwhile
                        at.call("vectors", self.number, "forget", who)
            link.call("vectors", self.number, "merged", tuple(taken))

        if len(here) < len(parts):
            settle(here)
        else:
            self.attempt.put(min(parts), PartialSum(parts, total, settle))

    def gone(self, link: Link) -> None:
        """A gateway has failed: what it held and hadn't handed over is lost."""
        for who in [who for who, at in self._at.items() if at is link]:
            del self._at[who]
            if who in self.whole:
                self.whole.discard(who)
                session = self.attempt.session_of(who)
                if isinstance(session, RemoteSession) and session.far is not link:  # and was told that it is here
                    self.attempt.upload_failed(who, "its gateway has failed")

    def close(self) -> None:
        self.closed = True
        for link in self._links():
            link.uploads = None
            link.call("end_attempt")


class Gateways:
    """All gateways of a study; one that fails is replaced."""

    def __init__(self, study: Study, starts: Iterable[Callable[[Roster], FarGateway]]) -> None:
        """Args: starts: start one gateway each, with the roster in use."""
        self._study, self._starts = study, list(starts)
        self._links: dict[int, Link] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._attempts = 0
        self.restarts = 0
        self._uploads: UploadsAtGateways | None = None
        self._check: tuple[Any, ...] = ()
        self.address = ""
        study.sessions.elsewhere = self

    def links(self) -> list[Link]:
        """Those that are up."""
        return list(self._links.values())

    def figures(self) -> dict[str, float]:
        """Of `server.sessions.Elsewhere`."""
        known = [link.known for link in self.links()]
        return {
            "sordino_gateways_up": len(known),
            "sordino_gateways_replaced": self.restarts,
            "sordino_gateway_memory_bytes": max((one["bytes"] for one in known), default=0.0),
            "sordino_gateway_sessions": max((one["sessions"] for one in known), default=0),
        }

    def adopt(self, roster: Roster) -> None:
        """Of `server.sessions.Elsewhere`."""
        for link in self.links():
            link.call("adopt", roster)

    async def check_there(self, step: Step, number: tuple[int, int], compute: Callable[..., Awaitable[Any]]) -> None:
        """Of `server.sessions.Elsewhere`."""
        check = await compute(pickle.dumps, step.phase.check, pickle.HIGHEST_PROTOCOL)
        self._check = number, step.name, check, step.kept
        for link in self.links():
            link.call("check", *self._check)

    def uploads(self, attempt: Attempt, credits_: int) -> UploadsAtGateways:
        """Of `server.sessions.Elsewhere`."""
        self._attempts += 1
        self._uploads = UploadsAtGateways(self._attempts, attempt, credits_, self.links, len(self._starts))
        return self._uploads

    async def open(self) -> Self:
        """Start all. Raises NetworkFailure: a port can't be opened."""
        fars = [start(self._study.roster) for start in self._starts]
        addresses = await asyncio.gather(*(far.start() for far in fars))
        for number, far in enumerate(fars):
            self._tasks.append(asyncio.create_task(self._keep(number, self._link(number, far))))
        self.address = ",".join(addresses)
        return self

    def _link(self, number: int, far: FarGateway) -> Link:
        """A gateway that has started, with what the others have been told."""
        link = self._links[number] = Link(far, self._study)
        link.call("adopt", self._study.roster)  # it may have changed since
        if self._uploads is not None and not self._uploads.closed:
            self._uploads.begin(link)
            if self._check:
                link.call("check", *self._check)
        return link

    async def _keep(self, number: int, link: Link) -> None:
        """One gateway, and those that come in its place."""
        while True:
            try:
                await link.listen()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("a gateway has failed, starting another", gateway=number, error=type(error).__name__)
            del self._links[number]
            link.kill()
            self.restarts += 1
            while True:
                await asyncio.sleep(RESTART_S)
                far = self._starts[number](self._study.roster)
                try:
                    await far.start()
                    link = self._link(number, far)
                    break
                except Exception as error:
                    log.warning("a gateway can't be started", gateway=number, error=str(error))
                    far.kill()

    async def stop(self) -> None:
        """End all, once what was sent is written."""
        await asyncio.gather(*(link.stop() for link in self.links()), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self.links():
            link.kill()


def _ignored(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
