"""The coordinator of a study, for programs with an event loop of their own and as a call that blocks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from learning.make_task import check_task_table
from runtime.failure import ExitCode, InputFailure
from runtime.logs import log_warnings_only
from runtime.processes import leave_no_core, refuse_running_loop
from server import coordinator
from server.events import Event, RoundCompleted
from server.journal import read_events
from server.study_file import STUDY_FILE, StudyConfiguration, load
from server.study_view import StudyView
from sordino.api import show_as_sentence
from sordino.reporting.party import AUTHORITY, HOST, kind_of
from sordino.reporting.results import ServedStudy

if TYPE_CHECKING:
    from sordino.reporting.live_page import LivePage

PathLike = str | os.PathLike[str]


def study_to_serve(
    path: Path, of_a_host: str = "join --home", of_an_authority: str = "authority run"
) -> StudyConfiguration:
    """Read a study. Raises Failure: a file or a key in it can't be used, or it is the folder of another party."""
    verb = {HOST: of_a_host, AUTHORITY: of_an_authority}.get(kind := kind_of(path) or "")
    if verb:
        raise InputFailure(f"{path} is the folder of a study's {kind}. Run sordino {verb} {path}")
    configuration = load(path)
    check_task_table(path / STUDY_FILE if path.is_dir() else path, configuration.study.task, configuration.task)
    return configuration


def page_for(configuration: StudyConfiguration, before: Iterable[Event], *, names: bool = False) -> LivePage | None:
    """The page of a study to be served; None where study.toml names no address for it.

    Args:
        before: what earlier starts have recorded.
        names: see `sordino.reporting.feed.StudyFeed`.
    """
    if not configuration.coordinator.http_listen:
        return None
    from sordino.reporting.feed import StudyFeed
    from sordino.reporting.live_page import LivePage  # with starlette, which nothing else here needs

    feed = StudyFeed(configuration.coordinator.state, names=names)
    for event in before:
        feed.apply(event)
    return LivePage(feed)


class Coordinator:
    """The coordinator of a study, in the event loop that runs.

    ::

        async with Coordinator("my-study") as coordinator:
            async for done in coordinator.rounds():
                print(done.round, done.accuracy)
            result = await coordinator.finished()

    The block opens the study's ports. At its end, however it ends, a study that still runs is stopped; whoever serves
    it again continues where it was.

    Attributes:
        address: HOST:PORT of the session port.
        view: the study so far, earlier starts included.
    """

    def __init__(self, study: PathLike, *, on_event: Callable[[Event], None] | None = None) -> None:
        """
        Args:
            study: its folder or study.toml.
            on_event: is given every event, on the event loop: must not block.

        Raises Failure: the study can't be read; says what to change.
        """
        self._folder, self._on_event = Path(study), on_event
        self._configuration = study_to_serve(self._folder)
        self._changed = asyncio.Event()
        self._run: asyncio.Task[object] | None = None
        self.address, self.view = "", StudyView()

    async def __aenter__(self) -> Self:
        """Raises as `server.coordinator.served`."""
        log_warnings_only()
        before = read_events(self._configuration.coordinator.state)
        self.view = StudyView().apply_all(before)
        self._before = len(self.view.rounds)
        page = page_for(self._configuration, before)
        self._serving = coordinator.served(self._configuration, on_event=self._note, page=page)
        self.address, self._run = await self._serving.__aenter__()
        self._run.add_done_callback(lambda _: self._tell())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        show_as_sentence(error)
        await self._serving.__aexit__(kind, error, trace)

    async def rounds(self) -> AsyncIterator[RoundCompleted]:
        """Each round that this start completes, from the first on, until the study ends. Raises as `finished`."""
        run, at = self._running(), self._before
        while True:
            changed = self._changed
            for done in self.view.rounds[at:]:
                at += 1
                yield done
            if run.done():
                await self.finished()
                return
            if at == len(self.view.rounds):
                await changed.wait()

    async def finished(self) -> ServedStudy:
        """Wait until the study has ended and the participants have heard of it.

        Raises Failure: the journal takes no more writes, or a file can't be used; says what to change.
        """
        run = self._running()
        await asyncio.wait([run])  # a wait that is cancelled leaves the study alone
        if not run.cancelled():
            run.result()
        return ServedStudy(self._folder, self._configuration, self.view)

    def _running(self) -> asyncio.Task[object]:
        if self._run is None:
            raise InputFailure("the coordinator isn't open: use it in `async with sordino.Coordinator(...)`")
        return self._run

    def _note(self, event: Event) -> None:
        self.view.apply(event)
        self._tell()
        if self._on_event is not None:
            self._on_event(event)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def serve(study: PathLike, *, on_event: Callable[[Event], None] | None = None) -> ServedStudy:
    """Serve a study until it ends, or until SIGTERM; arguments and errors as of `Coordinator`.

    Returns the study, whose ``outcome`` says how it ended. Raises KeyboardInterrupt: Ctrl-C, once the ports are closed
    and the journal is kept; the next call continues there.
    """
    refuse_running_loop("async with sordino.Coordinator(...) as coordinator: await coordinator.finished()")
    leave_no_core()
    log_warnings_only()
    configuration = study_to_serve(Path(study))
    table = configuration.coordinator
    page = page_for(configuration, read_events(table.state) if table.http_listen else ())
    if coordinator.serve(configuration, on_event=on_event, page=page) == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    return ServedStudy.read(study)
