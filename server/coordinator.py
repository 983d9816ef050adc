"""The coordinator process: reads the study's files, opens the port, runs the study, ends with an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from runtime.address import join_address, split_address
from runtime.durable import StorageError, free_mb
from runtime.failure import ExitCode, Failure, InputFailure, NetworkFailure
from runtime.key_files import read_key_file
from runtime.processes import run_event_loop, stop_signals
from runtime.service_notify import Notifier
from secagg.masking import choose_keystream
from server import process_limits, service
from server.enrolment import Enrolment, make_server
from server.events import Event
from server.journal import Journal
from server.open_calls import OpenCalls
from server.opening import check_client_ca, open_study
from server.peer_certificate import CertificateHolders, most_calls
from server.study import Outcome, Study
from server.study_file import StudyConfiguration
from server.study_tables import CoordinatorTable
from wire import coordinator_pb2
from wire.ending import EXIT_CODES
from wire.transport import COORDINATOR_OPTIONS

if TYPE_CHECKING:
    from server.http_port import HttpPort, Page

log = structlog.get_logger()

SERVER_OPTIONS = [("grpc.max_send_message_length", -1), *COORDINATOR_OPTIONS, ("grpc.so_reuseport", 0)]
TOLD_FILE = "told.json"  # which participants have received the end of the study
SHUTDOWN_S = 5.0
LINGER_S = 0.5
SWITCH_S = 0.001
_IN_USE = (
    "can't listen on {address}: the port is in use or the address isn't this machine's. Stop the other process or "
    "change coordinator.{key}"
)


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
    return run_event_loop(_until_stopped(configuration, on_event, service, page))


async def _until_stopped(
    configuration: StudyConfiguration,
    on_event: Callable[[Event], None] | None,
    service: Notifier | None,
    page: Page | None,
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        signals = stack.enter_context(contextlib.ExitStack())  # until the ports are closed, in case that hangs
        opened = served(configuration, on_event=on_event, service=service, page=page)
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
                raise NetworkFailure(_IN_USE.format(address=wanted, key="http_listen")) from error
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
    await study.restore()
    if http is not None:
        http.restored(study, journal)
    enrols = bool(configuration.coordinator.enrolment_listen)
    files = process_limits.raise_limit(study.most_participants()) - (0 if http is None else http.most_connections)
    sessions, strangers = process_limits.share_out(study.most_participants(), files, enrolment=enrols)
    server = make_session_server(study, sessions)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name]
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME, "grpc.health.v1.Health"], server)
    table = configuration.coordinator
    address = await _listen(server, table.listen, server_credentials(table))
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    await health.set(names[0], health_pb2.HealthCheckResponse.SERVING)
    log.info("listening", address=address)
    enrolment, enrolment_server = await _open_enrolment(configuration, study, strangers)
    if http is not None:
        http.serving(enrolment)

    run = asyncio.create_task(_to_the_end(study, address, "" if http is None else http.address))
    try:
        yield address, run
    finally:
        if not run.done():
            log.warning("stopped: serve the study again, and it continues where it was")
            run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        if http is not None:
            http.stopping()
        await health.enter_graceful_shutdown()
        # Sessions end by themselves once StudyEnd is written; a participant that hangs is cut off.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S + 2):
                if enrolment_server is not None:
                    await enrolment_server.stop(0.5)
                await server.stop(SHUTDOWN_S)
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


def make_session_server(study: Study, connections: int) -> grpc.aio.Server:
    """The server of the session port. ``connections``: at the same time."""
    calls = OpenCalls(CertificateHolders(lambda: study.roster), study.refused_calls.note)
    server = grpc.aio.server(
        options=[*SERVER_OPTIONS, *study.limits(), *process_limits.connection_options(connections)],
        maximum_concurrent_rpcs=most_calls(study.most_participants()),
        interceptors=(calls,),
    )
    server.add_generic_rpc_handlers((service.handlers(study),))
    return server


async def _open_enrolment(
    configuration: StudyConfiguration, study: Study, connections: int
) -> tuple[Enrolment | None, grpc.aio.Server | None]:
    """The port on which places are asked for, where study.toml names one."""
    table = configuration.coordinator
    if not table.enrolment_listen:
        return None, None
    assert study.roster_files is not None  # noqa: S101  # of open_study
    enrolment = Enrolment(configuration, study, study.roster_files)
    server = make_server(enrolment, connections)
    credentials = server_credentials(table, with_client=False)
    address = await _listen(server, table.enrolment_listen, credentials, "enrolment_listen")
    log.info("listening for enrolment", address=address)
    return enrolment, server


def server_credentials(coordinator: CoordinatorTable, *, with_client: bool = True) -> grpc.ServerCredentials:
    """The coordinator's certificate, and the authority of the client certificates that it accepts.

    ``with_client``: demand a certificate of ``client_ca``. Raises InputFailure, OSError: a file can't be used.
    """
    key, certificate = read_key_file(coordinator.tls_key), coordinator.tls_certificate.read_bytes()
    ca = coordinator.client_ca.read_bytes()
    try:
        # gRPC would only say that it can't bind the port. With an empty password nothing is asked on the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(coordinator.tls_certificate, coordinator.tls_key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InputFailure(
            f"{coordinator.tls_certificate} and {coordinator.tls_key} are not a certificate and its unencrypted "
            "private key in PEM: correct coordinator.tls_certificate and coordinator.tls_key"
        ) from error
    if not with_client:
        return grpc.ssl_server_credentials([(key, certificate)])
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        reason = f"{coordinator.client_ca} holds no certificate in PEM: correct coordinator.client_ca"
        raise InputFailure(reason) from error
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


async def _listen(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials, key: str = "listen"
) -> str:
    """Open a port; returns HOST:PORT. ``key``: of the table [coordinator], for the error."""
    try:
        port = server.add_secure_port(address, credentials)
        await server.start()
    except RuntimeError as error:
        raise NetworkFailure(_IN_USE.format(address=address, key=key)) from error
    return join_address(split_address(address)[0], port)
