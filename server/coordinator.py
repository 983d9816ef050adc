"""The coordinator process: reads the study's files, opens the port, runs the study, ends with an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import structlog

from runtime.durable import StorageError, free_mb
from runtime.failure import ExitCode, Failure, NetworkFailure
from runtime.processes import run_event_loop, stop_signals
from runtime.service_notify import Notifier
from secagg.masking import choose_keystream
from server.engine.gateway import GatewaySetup
from server.engine.links import Gateways
from server.engine.ray_engine import RayEngine
from server.enrolment import Enrolment, make_server
from server.events import Event
from server.journal import Journal
from server.opening import check_client_ca, check_gateways, open_study
from server.session_port import IN_USE, SessionPort, listen, read_certificate
from server.study import Outcome, Study
from server.study_file import StudyConfiguration
from server.study_tables import RAY
from wire import process_limits
from wire.ending import EXIT_CODES

if TYPE_CHECKING:
    from server.http_port import HttpPort, Page

log = structlog.get_logger()

TOLD_FILE = "told.json"  # which participants have received the end of the study
ENROLMENT_SHUTDOWN_S = 2.0
LINGER_S = 0.5
SWITCH_S = 0.001


def serve(
    configuration: StudyConfiguration,
    *,
    on_event: Callable[[Event], None] | None = None,
    service: Notifier | None = None,
    page: Page | None = None,
) -> int:
    """Run a study to its end, in an event loop and a process of its own.

    Args:
        configuration: of `server.study_file.load`.
        on_event: is given every event, on the event loop: must not block.
        service: reports to a supervisor that the process is ready, is alive and ends.
        page: shown on the HTTP port, where study.toml names one.

    Returns:
        0 all rounds done or stopped by SIGTERM, 5 a round failed too often, 40 budget reached, 130 after Ctrl-C.

    Raises as `served`.
    """
    # The loop asks for the interpreter lock after every wait; five milliseconds each time, the default, add up.
    sys.setswitchinterval(SWITCH_S)
    return run_event_loop(_until_stopped(served(configuration, on_event=on_event, service=service, page=page)))


async def _until_stopped(opened: AbstractAsyncContextManager[tuple[str, asyncio.Task[Outcome]]]) -> int:
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(contextlib.ExitStack())  # until the ports are closed, in case that hangs
        _, run = await stack.enter_async_context(opened)
        process_limits.settle()
        stopped: list[ExitCode] = []

        def stop(code: ExitCode) -> None:
            if stopped:
                os._exit(code)  # asked twice: everything that must last is on disk already
            stopped.append(code)
            log.warning("stopping: served again, the study goes on from here; a second signal ends at once")
            run.cancel()

        signals.enter_context(stop_signals(stop))
        try:
            return EXIT_CODES.get((await run).reason, ExitCode.STUDY)
        except asyncio.CancelledError:
            if not stopped:
                raise
            log.info("stopped on request; the journal and the last model are kept")
            return stopped[0]


@contextlib.asynccontextmanager
async def served(
    configuration: StudyConfiguration,
    *,
    on_event: Callable[[Event], None] | None = None,
    service: Notifier | None = None,
    page: Page | None = None,
) -> AsyncIterator[tuple[str, asyncio.Task[Outcome]]]:
    """Serve a study in the event loop that runs, for as long as the block lasts.

    Files and data are read before the first wait. Yields HOST:PORT of the session port, and the task of all rounds,
    which ends when the participants have heard of the end. If it still runs at the end of the block, it is stopped, and
    the next start continues.

    Args: as of `serve`.

    Raises Failure: the study can't start, or its journal takes no more writes; says what to change. An `InfeasiblePlan`
    or `InvalidRoster` of the cores as they raise it.
    """
    check_client_ca(configuration)
    check_gateways(configuration)
    free_mb(configuration.coordinator.state.parent)
    choose_keystream(time.perf_counter)
    service = service or Notifier({})  # shows life in a file alone
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_fault)
    listeners, http = [on_event] if on_event is not None else [], None
    if configuration.coordinator.http_listen:
        from server.http_port import HttpPort  # uvicorn and starlette only where they are asked for

        http = HttpPort(configuration, page)
        listeners.insert(0, http.note)

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    study, journal = open_study(configuration, tell, process_limits.tidy)
    study.farewell.remember(configuration.coordinator.state.with_name(TOLD_FILE), study.terms.digest().hex())
    living = asyncio.create_task(service.live())  # even while another process holds the health port
    try:
        # The port for metrics is open from before the study is restored until after the session port is closed.
        if http is not None:
            try:
                log.info("listening for metrics and health", address=await http.open())
            except OSError as error:
                wanted = configuration.coordinator.http_listen
                raise NetworkFailure(IN_USE.format(address=wanted, key="http_listen")) from error
        async with _served(configuration, study, journal, http) as running:
            service.tell(READY="1")
            yield running
    finally:
        service.tell(STOPPING="1")
        if http is not None:
            await http.close()
        living.cancel()
        study.close()
        journal.close()


def _is_fault(record: logging.LogRecord) -> bool:
    """False for a call that ended with the process or its connection, which gRPC reports with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


@contextlib.asynccontextmanager
async def _served(
    configuration: StudyConfiguration, study: Study, journal: Journal, http: HttpPort | None
) -> AsyncIterator[tuple[str, asyncio.Task[Outcome]]]:
    table, participants = configuration.coordinator, study.bounds.participants
    enrols, certificate = bool(table.enrolment_listen), read_certificate(table)
    files = process_limits.raise_limit(participants) - (0 if http is None else http.most_connections)
    sessions, strangers = process_limits.share_out(participants, files, enrolment=enrols)
    engine = RayEngine(configuration.engine) if configuration.engine.name == RAY else None
    gateways = None
    if engine is not None:
        study.workers.parallel = engine.parallel() or study.workers.parallel
        setup = GatewaySetup(study.terms.study, study.roster, study.bounds, table.listen, certificate, sessions)
        gateways = Gateways(study, engine.gateways(setup)) if configuration.engine.gateways else None
    await study.restore()
    if http is not None:
        http.restored(study, journal)
    port: SessionPort | Gateways
    if gateways is None:
        port = await SessionPort.open(study, sessions, table.listen, certificate)
    else:
        port = await gateways.open()
    log.info("listening", address=port.address)
    enrolment = None
    if enrols:  # the port on which places are asked for
        enrolment = Enrolment(configuration, study, study.roster_files)
        enrolment_server = make_server(enrolment, strangers)
        credentials = certificate.credentials(with_client=False)
        opened = await listen(enrolment_server, table.enrolment_listen, credentials, "enrolment_listen")
        log.info("listening for enrolment", address=opened)
    if http is not None:
        http.serving(enrolment)

    run = asyncio.create_task(_to_the_end(study, port.address, "" if http is None else http.address))
    try:
        yield port.address, run
    finally:
        if not run.done():
            log.warning("stopped: serve the study again, and it continues where it was")
            run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        if http is not None:
            http.stopping()
        if enrolment is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENROLMENT_SHUTDOWN_S):
                    await enrolment_server.stop(0.5)
        await port.stop()
        if engine is not None:
            engine.close()
        if enrolment is not None:
            enrolment.close()


async def _to_the_end(study: Study, address: str, http_address: str) -> Outcome:
    try:
        outcome = await study.run(address, http_address)
    except (StorageError, OSError) as error:
        # What was written stays, and the next start continues from there.
        reason = f"the study stopped: {error}. Make room there or make it writable, then start again"
        raise Failure(ExitCode.STUDY, reason) from error
    if not study.farewell.rounds_were_left:
        log.info("the study was over when it was served", reason=outcome.reason, rounds=outcome.rounds_completed)
    with contextlib.suppress(asyncio.CancelledError):  # the study is over: who stops this ends the wait alone
        await study.farewell.wait()
    # A peer that is still writing when the connection closes loses unread messages, StudyEnd included.
    await asyncio.sleep(LINGER_S)
    return outcome
