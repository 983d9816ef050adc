"""The coordinator's HTTP port, for its operator: /metrics, /healthz, /readyz, and a page about the study.

uvicorn serves it in a thread with an event loop of its own. Metrics and health are read on the coordinator's loop, so
neither is answered while that loop is stuck. Strangers can take little of the process: few connections at a time,
accepted at a bounded rate, each for one short request and a few seconds. The page's streams last, and are counted
apart. Metrics and health show counts, never identities; the page is the face's, behind `server.page_guard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from typing import Any, Final, Protocol, TypeVar

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from uvicorn.protocols.http.h11_impl import H11Protocol

from runtime.address import join_address, split_address
from server.enrolment import Enrolment
from server.events import Event
from server.journal import Journal
from server.metrics import CONTENT_TYPE, StudyMetrics
from server.page_guard import PASSWORD_FILE, PageGuard, password_in
from server.study import Study
from server.study_file import StudyConfiguration
from server.study_view import waiting
from wire.open_calls import PeerRates

log = structlog.get_logger()

MOST_CONNECTIONS: Final = 32
CONNECTION_S: Final = 10.0
"""How long a connection lasts, whatever it does."""
CONNECTIONS_A_SECOND: Final = 50.0
BURST: Final = 50
"""Accepted at once after a rest. All work of this port is a request's, and each connection has one."""
MOST_HEADER_BYTES: Final = 4096
MOST_READS: Final = 16
"""Pieces that a request may come in: each one wakes the thread, which takes the interpreter lock."""
MOST_STREAMS: Final = 64
"""Of the page, beside those connections. Each is admitted by the page's handler, so never a stranger's."""
SHUTDOWN_S: Final = 2.0
FRESH_S: Final = 0.25
"""Metrics are rendered at most once in this time; requests in between get the same."""

_STAY: Final = "sordino.stay"  # extension of ASGI's scope

STARTING, SERVING, STOPPING = "starting", "serving", "stopping"
_Read = TypeVar("_Read")


class Page(Protocol):
    """What is shown at ``/``: a face's, since its words are not this room's."""

    def note(self, event: Event) -> None:
        """Take an event, on the coordinator's loop: must not block."""

    def routes(self) -> Sequence[BaseRoute]:
        """What is answered, in the port's thread."""

    def living(self, app: Starlette) -> AbstractAsyncContextManager[None]:
        """Entered in the port's thread for as long as it is open."""


class HttpThread:
    """uvicorn in a thread of its own, with the bounds on strangers."""

    most_connections: Final = 2 * MOST_CONNECTIONS + MOST_STREAMS
    """With those that are accepted only to be closed."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError: the port is in use, or the address isn't this machine's."""
        self._listening = bound(host, port)
        ip, number, *_ = self._listening.getsockname()
        self.address = join_address(host, number)  # HOST:PORT, with the port that was given
        self.on_loopback = ip_address(ip).is_loopback  # only this machine can reach it

    async def open(self, routes: Sequence[BaseRoute], page: Page | None = None) -> None:
        """Answer. ``page``: lives as long; its routes, guarded, are among ``routes``. Raises OSError: it can't."""
        gone = {ClientDisconnect: _gone}
        app = Starlette(routes=routes, lifespan=None if page is None else page.living, exception_handlers=gone)
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            http=_connections(),
            loop="asyncio",
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level="error",  # a malformed request of a stranger is not worth a line
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=MOST_CONNECTIONS,
            headers=[("connection", "close"), ("cache-control", "no-store"), ("x-content-type-options", "nosniff")],
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), name="http", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            await asyncio.sleep(0.002)
        if not self._server.started:
            raise OSError("the thread of the HTTP port has ended")

    async def close(self) -> None:
        """Let answers under way end, for at most two seconds."""
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join, SHUTDOWN_S)


class HttpPort:
    """The port of one coordinator. All public methods are for the coordinator's event loop."""

    most_connections: Final = HttpThread.most_connections

    def __init__(
        self, configuration: StudyConfiguration, page: Page | None = None, *, fresh_s: float = FRESH_S
    ) -> None:
        self.metrics = StudyMetrics(configuration)
        self.address = ""
        self._configuration, self._page, self._fresh_s = configuration, page, fresh_s
        self._stage = STARTING
        self._journal: Journal | None = None
        self._enrolment: Enrolment | None = None
        self._rendered, self._rendered_at = b"", -1e9
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: HttpThread | None = None

    # ------------------------------------------------------------ for the coordinator

    def note(self, event: Event) -> None:
        """Take an event for the metrics and the page."""
        self.metrics.note(event)
        if self._page is not None:
            self._page.note(event)

    async def open(self) -> str:
        """Listen where study.toml says; returns HOST:PORT. Until `serving`, /readyz says that the coordinator starts.

        Raises OSError: the port is in use, or the address isn't this machine's; KeyFileError: the page's password can't
        be used.
        """
        table = self._configuration.coordinator
        host, port = split_address(table.http_listen)
        thread = HttpThread(host, port)
        self._loop = asyncio.get_running_loop()
        own: list[BaseRoute] = [
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        if self._page is not None:
            password = None if thread.on_loopback else password_in(table.state.with_name(PASSWORD_FILE))
            own.append(guarded(self._page, host, password))
        self._thread, self.address = thread, thread.address
        await thread.open(own, self._page)
        return self.address

    def restored(self, study: Study, journal: Journal) -> None:
        """What the journal says is shown from here on."""
        self._journal = journal
        self.metrics.restored(study, journal)
        if study.terms.plan.amplified:
            log.warning("metrics show when a participant is missing: against their readers epsilon_coordinator holds")

    def serving(self, enrolment: Enrolment | None = None) -> None:
        """The session port is open."""
        self._stage, self._enrolment = SERVING, enrolment

    def stopping(self) -> None:
        """The study is over, or is being stopped."""
        self._stage, self._enrolment = STOPPING, None

    async def close(self) -> None:
        """As of `HttpThread`."""
        if self._thread is not None:
            await self._thread.close()

    # ------------------------------------------------------------ what it answers

    def unready(self) -> str:
        """Why the study doesn't run; empty where it does."""
        failure = None if self._journal is None else self._journal.failure
        if failure is not None:
            return "the journal can't be written"  # the log says why, with its path
        return "" if self._stage == SERVING else f"the coordinator is {self._stage}"

    def readiness(self) -> dict[str, Any]:
        """The body of /readyz: counts, no names."""
        reason, view = self.unready(), self.metrics.view
        more = {"reason": reason} if reason else {}
        return {
            "ready": not reason,
            **more,
            "study": self._configuration.study.name,
            "round": view.round,
            "attempt": view.attempt,
            "phase": view.state,
            "connected": self.metrics.connected(),
            "needed": view.wait.needed,
            "waiting_for": waiting(view, time.time()) if self._stage == SERVING else "",
        }

    def _read(self) -> None:
        self.metrics.read(
            sordino_ready=float(not self.unready()),
            sordino_storage_writable=float(self._journal is None or self._journal.failure is None),
            sordino_enrolment_requests_waiting=0 if self._enrolment is None else self._enrolment.waiting,
        )

    # ------------------------------------------------------------ in the thread

    async def _metrics(self, request: Request) -> Response:
        if self._stale():
            await self._on_loop(self._read)
        if self._stale():  # not rendered for another request meanwhile
            self._rendered_at, self._rendered = time.monotonic(), self.metrics.render()
        return Response(self._rendered, headers={"content-type": CONTENT_TYPE})

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse(await self._on_loop(lambda: {"alive": True}))

    async def _readyz(self, request: Request) -> Response:
        body = await self._on_loop(self.readiness)
        return JSONResponse(body, 200 if body["ready"] else 503)

    def _stale(self) -> bool:
        return time.monotonic() - self._rendered_at >= self._fresh_s

    async def _on_loop(self, read: Callable[[], _Read]) -> _Read:
        """Call a function on the coordinator's loop."""

        async def call() -> _Read:
            return read()

        assert self._loop is not None  # noqa: S101  # set before the thread was started
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))


@contextlib.contextmanager
def beside(routes: Sequence[BaseRoute], page: Page | None = None, *, port: int = 0) -> Iterator[str]:
    """Answer on loopback where no coordinator does, for as long as the block lasts; not within an event loop.

    Yields HOST:PORT; by default on a free port. Otherwise as of `HttpThread`.
    """
    thread = HttpThread("127.0.0.1", port)
    asyncio.run(thread.open(routes, page))
    try:
        yield thread.address
    finally:
        asyncio.run(thread.close())


def stays(request: Request) -> bool:
    """Whether a page's request may last beyond `CONNECTION_S`, as a stream does; at most `MOST_STREAMS` may."""
    return bool(request.scope["extensions"][_STAY][""]())


def guarded(page: Page, host: str = "127.0.0.1", password: str | None = None) -> BaseRoute:
    """The page's routes, for those that may see them; ``host``, ``password``: as of `PageGuard`."""
    router = Router(page.routes(), redirect_slashes=False)
    return Mount("/", PageGuard(router, hosts={host.lower()}, password=password))


def _gone(request: Request, error: Exception) -> Response:
    """For a form whose sender left or was cut off: nobody reads it, and it is not worth a traceback."""
    return Response(status_code=400)


def _connections() -> type[H11Protocol]:
    """uvicorn's protocol with the bounds on strangers that uvicorn doesn't have.

    Its `limit_concurrency` counts when a request is complete: connections that send none, or headers without an end,
    would hold file descriptors for as long as they like, and so keep the coordinator from opening its ledger.
    """
    rates = PeerRates(CONNECTIONS_A_SECOND, BURST)
    streams: set[H11Protocol] = set()

    class Connection(H11Protocol):
        _end: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None
        _reads, _room = 0, MOST_HEADER_BYTES + 1

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            # This thread has nothing else to do. While it sleeps further connections wait in the kernel: refusing
            # them at once would invite the next ones, and cost the process nearly as much.
            while not rates.allow(""):
                time.sleep(1 / CONNECTIONS_A_SECOND)
            super().connection_made(transport)
            if len(self.connections) - len(streams) > MOST_CONNECTIONS:
                transport.abort()
            self._end = self.loop.call_later(CONNECTION_S, transport.abort)

        def data_received(self, data: bytes) -> None:
            self._reads += 1
            if self.cycle is not None and not self.cycle.more_body:
                self.transport.pause_reading()  # what follows a request is ignored
            elif self._reads > MOST_READS or not self._room:
                self.transport.abort()
            else:
                head, self._room = data[: self._room], max(0, self._room - len(data))
                super().data_received(head)  # a byte too many is refused there
                if self.cycle is not None:  # its application runs after this
                    self.scope["extensions"] = {_STAY: {"": self._stay}}

        def _stay(self) -> bool:
            if len(streams) >= MOST_STREAMS or self._end is None:
                return False
            self._end.cancel()
            streams.add(self)
            return True

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(CONNECTION_S, self.transport.abort)  # a reader that reads nothing

        def resume_writing(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
            super().resume_writing()

        def shutdown(self) -> None:
            if self in streams:  # it would not end by itself
                self.transport.close()
            else:
                super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._end, self._stuck):
                if timer is not None:
                    timer.cancel()
            streams.discard(self)
            super().connection_lost(exc)

    return Connection


def bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # a name that can't be looked up, such as a..b
        raise OSError(f"{host} is not a host's name") from error
    [family, _, _, _, address] = next((one for one in found if one[0] == family), found[0])
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening
