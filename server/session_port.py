"""The port of participants' sessions: its server, its certificate, and that it can be opened.

It is opened by the coordinator's process, or by each of its gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from runtime.address import join_address, split_address
from runtime.failure import InputFailure, NetworkFailure
from runtime.key_files import read_key_file
from server import service
from server.peer_certificate import CertificateHolders, most_calls
from server.service import Front
from server.study_tables import CoordinatorTable
from wire import coordinator_pb2, process_limits
from wire.open_calls import OpenCalls
from wire.transport import COORDINATOR_OPTIONS

SERVER_OPTIONS = [("grpc.max_send_message_length", -1), *COORDINATOR_OPTIONS, ("grpc.so_reuseport", 0)]
SHUTDOWN_S = 5.0
IN_USE = (
    "can't listen on {address}: the port is in use or the address isn't this machine's. Stop the other process or "
    "change coordinator.{key}"
)


class SessionPort:
    """The open port. Attributes: address: HOST:PORT."""

    def __init__(self, server: grpc.aio.Server, health: health_aio.HealthServicer, address: str) -> None:
        self._server, self._health, self.address = server, health, address

    @classmethod
    async def open(cls, front: Front, connections: int, address: str, certificate: Certificate) -> SessionPort:
        """Listen, and say that it is healthy. Arguments and errors as of `make_session_server` and `listen`."""
        server = make_session_server(front, connections)
        health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        name = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
        reflection.enable_server_reflection([name, reflection.SERVICE_NAME, "grpc.health.v1.Health"], server)
        opened = await listen(server, address, certificate.credentials())
        for one in ("", name):
            await health.set(one, health_pb2.HealthCheckResponse.SERVING)
        return cls(server, health, opened)

    async def stop(self) -> None:
        """Sessions end by themselves once StudyEnd is written; a participant that hangs is cut off."""
        await self._health.enter_graceful_shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_S + 2):
                await self._server.stop(SHUTDOWN_S)


def make_session_server(front: Front, connections: int) -> grpc.aio.Server:
    """The server of the session port. ``connections``: at the same time."""
    bounds = front.bounds
    options = dict([*SERVER_OPTIONS, *bounds.options(), *process_limits.connection_options(connections)])
    sessions = front.sessions
    sessions.most_message_bytes = bounds.control_bytes
    calls = OpenCalls(CertificateHolders(lambda: sessions.roster), sessions.refused_calls.note)
    server = grpc.aio.server(
        options=list(options.items()), maximum_concurrent_rpcs=most_calls(bounds.participants), interceptors=(calls,)
    )
    server.add_generic_rpc_handlers((service.handlers(front),))
    return server


@dataclass(frozen=True)
class Certificate:
    """The coordinator's certificate, and the authority of the client certificates that it accepts; all PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    client_ca: bytes

    def credentials(self, *, with_client: bool = True) -> grpc.ServerCredentials:
        """``with_client``: demand a certificate of ``client_ca``."""
        if not with_client:
            return grpc.ssl_server_credentials([(self.key, self.chain)])
        return grpc.ssl_server_credentials(
            [(self.key, self.chain)], root_certificates=self.client_ca, require_client_auth=True
        )


def read_certificate(coordinator: CoordinatorTable) -> Certificate:
    """Read and check the files. Raises InputFailure, OSError: one can't be used."""
    found = Certificate(
        read_key_file(coordinator.tls_key), coordinator.tls_certificate.read_bytes(), coordinator.client_ca.read_bytes()
    )
    try:
        # gRPC would only say that it can't bind the port. With an empty password nothing is asked on the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(coordinator.tls_certificate, coordinator.tls_key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise InputFailure(
            f"{coordinator.tls_certificate} and {coordinator.tls_key} are not a certificate and its unencrypted "
            "private key in PEM: correct coordinator.tls_certificate and coordinator.tls_key"
        ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=found.client_ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        reason = f"{coordinator.client_ca} holds no certificate in PEM: correct coordinator.client_ca"
        raise InputFailure(reason) from error
    return found


async def listen(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials, key: str = "listen"
) -> str:
    """Open a port; returns HOST:PORT. ``key``: of the table [coordinator], for the error."""
    try:
        port = server.add_secure_port(address, credentials)
        await server.start()
    except RuntimeError as error:
        raise NetworkFailure(IN_USE.format(address=address, key=key)) from error
    return join_address(split_address(address)[0], port)
