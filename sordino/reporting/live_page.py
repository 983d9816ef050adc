"""The live page of a study: its assets, its feed as JSON and as a stream, and transcripts, for the HTTP port.

Events are queued on the coordinator's loop and folded in the port's thread, so readers cost that loop nothing. A
snapshot is rendered once for all readers, at most twice a second; each reader gets the sections that changed since what
it has. A reader that is slow gets fewer messages, not a queue of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from server.events import Event
from server.http_port import MOST_STREAMS, beside, guarded, stays
from sordino.reporting.feed import StudyFeed

EVERY_S: Final = 0.5
QUIET_S: Final = 15.0
"""After which a stream without news says that it is alive, so that a reader that has gone is found."""
_HERE: Final = Path(__file__).parent
_ASSETS: Final = {
    "/": ("text/html", ("page/index.html",)),
    "/page.css": ("text/css", ("page/uPlot.min.css", "report.css", "page/page.css")),
    "/page.js": ("text/javascript", ("page/page.js",)),
    "/uPlot.js": ("text/javascript", ("page/uPlot.iife.min.js",)),
}
_FULL: Final = f"{MOST_STREAMS} readers follow this page, which is as many as it takes. Try again later.\n"


class LivePage:
    """A `server.http_port.Page`. Everything but `note` and `compare` runs in the port's thread."""

    def __init__(self, feed: StudyFeed) -> None:
        """``feed``: holds what was recorded before; not to be touched by the caller once the port is open."""
        self._feed = feed
        self._waiting: deque[Callable[[], None]] = deque()  # for the feed
        self._sections: dict[str, tuple[int, str]] = {}  # name -> version in which it changed, JSON
        self._version, self._at = 0, -1e9
        self._message: tuple[int, int, bytes] = (-1, -1, b"")  # since, until, the stream's message
        self._readers = 0
        self._changed = asyncio.Event()

    def note(self, event: Event) -> None:
        """Take an event; from any thread."""
        self._waiting.append(partial(self._feed.apply, event))

    def compare(self, without_noise: Sequence[float]) -> None:
        """As of the feed; from any thread."""
        self._waiting.append(partial(self._feed.compare, without_noise))

    def routes(self) -> Sequence[BaseRoute]:
        assets = [Route(path, asset(kind, *names)) for path, (kind, names) in _ASSETS.items()]
        return [
            *assets,
            Route("/feed", self._snapshot),
            Route("/events", self._stream),
            Route("/transcripts/{name}", self._transcript),
        ]

    @contextlib.asynccontextmanager
    async def living(self, app: Starlette) -> AsyncIterator[None]:
        """Fold events while the port is open, with readers or without."""
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._fold()
            if self._readers:
                self._renew()
            await asyncio.sleep(EVERY_S)

    def _fold(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def _renew(self) -> None:
        """Render what changed."""
        self._fold()
        self._at, before = time.monotonic(), self._version
        for name, section in self._feed.snapshot(time.time()).items():
            text = json.dumps(section, allow_nan=False, separators=(",", ":"))
            if self._sections.get(name, (0, ""))[1] != text:
                self._version = before + 1
                self._sections[name] = (self._version, text)
        if self._version > before:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _since(self, version: int) -> str:
        """One JSON object of the sections that changed after a version."""
        named = (f'"{name}":{text}' for name, (changed, text) in self._sections.items() if changed > version)
        return f"{{{','.join(named)}}}"

    async def _snapshot(self, request: Request) -> Response:
        if time.monotonic() - self._at >= EVERY_S / 2:
            self._renew()
        return Response(self._since(0), media_type="application/json")

    async def _stream(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if not stays(request):
            return PlainTextResponse(_FULL, 503, {"retry-after": "30"})
        return StreamingResponse(self._messages(), media_type="text/event-stream")

    async def _messages(self) -> AsyncIterator[bytes]:
        seen = 0
        self._readers += 1
        try:
            if self._readers == 1:
                self._renew()
            while True:
                changed = self._changed
                if self._version > seen:
                    since, seen = seen, self._version
                    if self._message[:2] != (since, seen):
                        self._message = (since, seen, f"retry: 2000\ndata: {self._since(since)}\n\n".encode())
                    yield self._message[2]
                    continue
                try:
                    async with asyncio.timeout(QUIET_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": nothing new\n\n"
        finally:
            self._readers -= 1

    async def _transcript(self, request: Request) -> Response:
        path = self._feed.transcript(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, filename=path.name, media_type="application/octet-stream")


def shown_beside(page: LivePage) -> AbstractContextManager[str]:
    """Show a page on a free port of loopback where no coordinator does; yields HOST:PORT. In no event loop."""
    return beside([guarded(page)], page)


def asset(kind: str, *names: str) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that answers with these files of this folder, one after the other."""
    body = b"".join((_HERE / name).read_bytes() for name in names)

    async def answer(request: Request) -> Response:
        return Response(body, media_type=kind)

    return answer
