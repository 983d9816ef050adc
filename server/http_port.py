"""Metrics and health over plain HTTP, for whoever operates the coordinator: /metrics, /healthz and /readyz.

A server inside the coordinator's event loop, of which strangers can take a little only: so many connections a second
are accepted, whoever asks, and the others wait in the kernel. Each is for one short request and a few seconds, whatever
it does, and no more than one rendering runs at a time. It says counts, never who.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mechanisms.statement import LOTTERY
from runtime.settings_file import split_address
from server.events import CONNECTING
from server.journal import Journal
from server.metrics import CONTENT_TYPE, StudyMetrics
from server.study import Study
from server.study_file import StudyConfiguration
from server.study_view import ENROLMENT, FINISHED, PAUSING, StudyView

log = structlog.get_logger()

MOST_CONNECTIONS: Final = 32
CONNECTION_S: Final = 10.0
"""How long a connection lasts, whatever it does."""
CONNECTIONS_A_SECOND: Final = 50.0
BURST: Final = 50
"""Accepted at once after a rest. All work of this port is a request's, and each connection has one."""
MOST_HEADER_BYTES: Final = 4096
MOST_READS: Final = 16
"""In so many pieces a request may come: each one wakes the loop."""
SHUTDOWN_S: Final = 2.0
FRESH_S: Final = 0.25
"""Metrics are rendered at most so often; whoever asks again gets the same."""
LAG_INTERVAL_S: Final = 0.05
LAG_MEMORY_S: Final = 60.0

STARTING, SERVING, STOPPING = "starting", "serving", "stopping"


class Requests(Protocol):
    """What the port needs of enrolment."""

    @property
    def waiting(self) -> int: ...


class HttpPort:
    """The port of one coordinator. All methods are for its event loop."""

    most_connections: Final = MOST_CONNECTIONS

    def __init__(self, configuration: StudyConfiguration, *, fresh_s: float = FRESH_S) -> None:
        self.metrics = StudyMetrics(configuration)
        self.address = ""
        self._configuration, self._fresh_s = configuration, fresh_s
        self._stage = STARTING
        self._journal: Journal | None = None
        self._enrolment: Requests | None = None
        self._lag = RecentLag()
        self._rendered, self._rendered_at = b"", -1e9
        self._rendering = asyncio.Lock()
        # Its own: the loop's other threads may all wait for a disk.
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._server: _Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------ for the coordinator

    async def open(self) -> str:
        """Listen where study.toml says; returns HOST:PORT. Until `serving`, /readyz says that it starts.

        Raises:
            OSError: the port is in use, or the address isn't this machine's.
        """
        host, port = split_address(self._configuration.coordinator.http_listen)
        listening = _bound(host, port)
        self._server = _Server(
            uvicorn.Config(
                _unless_gone(_application(self)),
                http=_Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",  # a stranger's request that is none is no news
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=MOST_CONNECTIONS,
                headers=[("connection", "close")],
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            )
        )
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listening])),
            asyncio.create_task(self._lag.run()),
        ]
        while not self._server.started and not self._tasks[0].done():
            await asyncio.sleep(0.002)
        if self._tasks[0].done():
            await self.close()
            raise OSError(f"can't listen on {host}:{port}")
        shown = listening.getsockname()[1]
        self.address = f"[{host}]:{shown}" if ":" in host else f"{host}:{shown}"
        return self.address

    def restored(self, study: Study, journal: Journal) -> None:
        """What the journal says is shown from here on."""
        self._journal = journal
        self.metrics.restored(study, journal)
        if study.terms.plan.sampling == LOTTERY:
            log.warning("for whoever reads metrics epsilon_coordinator counts: who is missing when tells of cohorts")

    def serving(self, enrolment: Requests | None = None) -> None:
        """The session port is open."""
        self._stage, self._enrolment = SERVING, enrolment

    def stopping(self) -> None:
        """The study is over, or was told to stop."""
        self._stage, self._enrolment = STOPPING, None

    async def close(self) -> None:
        """Let answers under way end, for at most two seconds."""
        if self._server is not None:
            self._server.should_exit = True
        for task in self._tasks[1:]:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUTDOWN_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._renderer.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ what it answers

    def unready(self) -> str:
        """Why the study doesn't run; empty where it does."""
        failure = None if self._journal is None else self._journal.failure
        if failure is not None:
            return "the journal can't be written"  # the log says why, with its path
        return "" if self._stage == SERVING else f"the coordinator is {self._stage}"

    def readiness(self) -> dict[str, Any]:
        """The body of /readyz: counts, and nobody's name."""
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
            "waiting_for": _waiting_for(view) if self._stage == SERVING else "",
        }

    async def metrics_text(self) -> bytes:
        """Rendered in another thread: 5 ms of a loop that hands out messages would be felt."""
        async with self._rendering:
            if time.monotonic() - self._rendered_at >= self._fresh_s:
                failure = None if self._journal is None else self._journal.failure
                self.metrics.read(
                    ready=float(not self.unready()),
                    storage_writable=float(failure is None),
                    enrolment_requests_waiting=0 if self._enrolment is None else self._enrolment.waiting,
                    event_loop_lag_recent_seconds=self._lag.largest_s(),
                )
                self._rendered_at = time.monotonic()
                self._rendered = await asyncio.get_running_loop().run_in_executor(self._renderer, self.metrics.render)
            return self._rendered


def _waiting_for(view: StudyView) -> str:
    """What the study waits for, in words; empty where the coordinator itself is at work."""
    wait = view.wait
    if view.state == ENROLMENT:
        return f"people to enrol: {wait.received} on the roster, {wait.needed} needed"
    if view.state == CONNECTING:
        return f"the round's participants: {wait.received} of {wait.expected} are connected, {wait.needed} needed"
    if view.phase is not None:
        return f"answers: {wait.received} of {wait.expected} received, {wait.needed} needed"
    if view.state == PAUSING:
        return "the next round to be due"
    return "participants who haven't heard that the study is over" if view.state == FINISHED else ""


class RecentLag:
    """The latest that the loop came to a timer within the last minute or so: every reader sees the same."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts: deque[tuple[float, float]] = deque()  # (began, largest lateness), of a tenth of the memory each

    def add(self, late_s: float) -> None:
        """One wake-up that came this late."""
        now = self._clock()
        if not self._parts or now - self._parts[-1][0] >= LAG_MEMORY_S / 10:
            self._parts.append((now, 0.0))
        began, largest = self._parts[-1]
        self._parts[-1] = (began, max(largest, late_s))
        self._forget(now)

    def largest_s(self) -> float:
        """In seconds; 0 before anything was measured."""
        self._forget(self._clock())
        return max((largest for _, largest in self._parts), default=0.0)

    def _forget(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] > LAG_MEMORY_S:
            self._parts.popleft()

    async def run(self) -> None:
        """Measure the loop that this runs on, until cancelled."""
        while True:
            due = self._clock() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.add(max(0.0, self._clock() - due))


class Pace:
    """So many a second on the average, and some at once after a rest."""

    def __init__(self, a_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_second, self._burst, self._clock = a_second, burst, clock
        self._left, self._at = float(burst), clock()

    def take(self) -> float:
        """Take one; returns after how many seconds it may be used."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._a_second) - 1
        self._at = now
        return max(0.0, -self._left / self._a_second)


class _Server(uvicorn.Server):
    """The coordinator itself decides what a signal means, and connections are accepted at a pace."""

    _accepting: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        (listening,) = sockets or []
        listening.listen(self.config.backlog)
        listening.setblocking(False)
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(listening))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        """For as long as the port is open. Refusing at once would invite the next one, and cost nearly as much."""
        loop, pace = asyncio.get_running_loop(), Pace(CONNECTIONS_A_SECOND, BURST)
        while True:
            await asyncio.sleep(pace.take())
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError:  # too many open files, or the like: it passes
                await asyncio.sleep(0.1)
                continue
            if len(self.server_state.connections) >= MOST_CONNECTIONS:
                accepted.close()
                continue
            try:
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError:
                accepted.close()

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self.config, self.server_state, self.lifespan.state)


class _Connection(H11Protocol):
    """One of few, and not for long: headers that never end and answers that nobody reads hold nothing."""

    _end: asyncio.TimerHandle | None = None
    _reads, _room = 0, MOST_HEADER_BYTES + 1

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._end = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._reads += 1
        if self.cycle is not None or self._reads > MOST_READS:
            if self.cycle is None:
                self.transport.abort()
            else:
                self.transport.pause_reading()  # whatever follows a request is no second one
            return
        head, self._room = data[: self._room], max(0, self._room - len(data))
        super().data_received(head)  # a byte too many is refused there

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # a name that can't be asked for, such as a..b, is none of this machine's
        raise OSError(f"{host} is no host's name") from error
    [family, _, _, _, address] = next((one for one in found if one[0] == family), found[0])
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def _unless_gone(application: ASGIApp) -> ASGIApp:
    """With uvloop an answer to somebody who hangs up in this moment fails, and would be told at length in the log."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        gone = False

        async def send_unless_gone(message: Message) -> None:
            nonlocal gone
            try:
                if not gone:
                    await send(message)
            except RuntimeError:
                gone = True
                await asyncio.sleep(0)  # until the server has heard of it

        await application(scope, receive, send_unless_gone)

    return answer


def _application(port: HttpPort) -> Starlette:
    async def metrics(_: Request) -> Response:
        return Response(await port.metrics_text(), media_type=CONTENT_TYPE, headers=_HEADERS)

    async def healthz(_: Request) -> Response:
        return JSONResponse({"alive": True}, headers=_HEADERS)

    async def readyz(_: Request) -> Response:
        body = port.readiness()
        return JSONResponse(body, 200 if body["ready"] else 503, headers=_HEADERS)

    pages: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        "/metrics": metrics,
        "/healthz": healthz,
        "/readyz": readyz,
    }
    application = Starlette(routes=[Route(path, page, methods=["GET"]) for path, page in pages.items()])
    application.router.redirect_slashes = False  # it would answer with the host that the caller names
    return application


_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
