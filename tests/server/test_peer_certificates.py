"""Mutual TLS: who connects needs a certificate of the study, and a session that of its identity or of its host."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from client.connection import CHANNEL_OPTIONS, open_session
from client.credentials import load_certificate, load_identity
from client.host_file import load
from secagg.keys import IdentityKey
from server.peer_certificate import check_certificate
from server.sessions import SessionRefused
from tests.support.issued_certificates import tls_authority_of
from tests.support.study_in_process import Coordinator, coordinator, identities, make_folder
from wire.certificates import CertificateAuthority, host_uri, identity_uri, new_key, private_pem

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven participants, two hosts."""
    return make_folder(tmp_path_factory.mktemp("mutual") / "study", hosts=2)


def of_host(folder: Path, name: str) -> list[IdentityKey]:
    return [load_identity(entry.key) for entry in load(folder / "hosts" / name).participants]


@contextlib.asynccontextmanager
async def channel(where: Coordinator, key: bytes | None, chain: bytes | None) -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials((where.folder / "tls/ca.pem").read_bytes(), key, chain)
    async with grpc.aio.secure_channel(where.address, credentials, options=CHANNEL_OPTIONS) as one:
        yield one


async def outcome(where: Coordinator, key: bytes | None, chain: bytes | None, who: IdentityKey) -> str:
    """``open``, or why not."""
    async with channel(where, key, chain) as one:
        try:
            session = await open_session(one, who, "seven")
        except grpc.aio.AioRpcError as error:
            return error.code().name if error.code() == grpc.StatusCode.UNAVAILABLE else str(error.details())
        session.close()
        return "open"


async def test_only_its_own_certificate_opens_a_session(folder: Path, tmp_path: Path) -> None:
    """Without the comparison in the handshake, any certificate of the study passes, and this fails."""
    own, other = of_host(folder, "host-01")[0], of_host(folder, "host-02")[0]
    tls, stranger = tls_authority_of(folder), CertificateAuthority.make("seven", NOW)
    key = new_key()

    def issue(uri: str, by: CertificateAuthority = tls, at: datetime.datetime = NOW, days: float = 1) -> bytes:
        return by.issue_client(key.public_key(), uri, at, days)

    wrong = "the certificate is that of another identity"
    nobody = (
        "the certificate names nobody on version 1 of the study's roster: it was revoked or never enrolled; ask the "
        "study's authority"
    )
    cases = [
        (issue(identity_uri(own.public)), "open"),
        (issue(host_uri("host-01")), "open"),
        (issue(identity_uri(other.public)), wrong),  # another participant's
        (issue(host_uri("host-02")), wrong),  # another host's
        (issue(host_uri(own.public.hex())), nobody),
        (issue("https://example.org/"), nobody),
        (tls.issue_server(key.public_key(), (), NOW), "UNAVAILABLE"),  # not one for clients
        (issue(identity_uri(own.public), stranger), "UNAVAILABLE"),
        (issue(identity_uri(own.public), at=NOW - 3 * DAY), "UNAVAILABLE"),  # expired
        (issue(identity_uri(own.public), at=NOW + 3 * DAY), "UNAVAILABLE"),  # not yet valid
    ]
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        for number, (chain, expected) in enumerate(cases):
            assert await outcome(where, private_pem(key), chain, own) == expected, number
        assert await outcome(where, None, None, own) == "UNAVAILABLE"
        # Each host's certificate opens sessions for its own participants only.
        for name in ("host-01", "host-02"):
            home = folder / "hosts" / name / "tls"
            pair = load_certificate(home / "client.pem", home / "client.key")
            mine = {one.public for one in of_host(folder, name)}
            for who in identities(folder):
                found = await outcome(where, pair.key, pair.chain, who)
                assert found == ("open" if who.public in mine else wrong)


def test_a_connection_without_names_opens_nothing() -> None:
    for context in ({}, {"x509_subject_alternative_name": []}, {"x509_common_name": [b"urn:sordino:host:h"]}):
        with pytest.raises(SessionRefused, match="another identity"):
            check_certificate(context, bytes(32), "h")


def group_of(server_hello: bytes) -> int:
    """The key exchange group in a ServerHello (RFC 8446, section 4.1.3): of its key share, extension 51."""
    body = server_hello[5 + 4 :]  # headers of the record and of the message
    at = 2 + 32
    at += 1 + body[at] + 2 + 1 + 2  # session, cipher suite, compression, length of all extensions
    while True:
        kind, length = struct.unpack_from(">HH", body, at)
        if kind == 51:
            return int.from_bytes(body[at + 4 : at + 6], "big")
        at += 4 + length


async def test_sessions_take_the_hybrid_group(folder: Path, tmp_path: Path) -> None:
    """docs/threat_model.md says so of the gRPC that is pinned: X25519MLKEM768 is 0x11ec in IANA's registry."""
    first = asyncio.get_running_loop().create_future()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*where.address.rsplit(":", 1))

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, seen: bool) -> None:
            while data := await source.read(1 << 16):
                if seen and not first.done():
                    first.set_result(data)
                target.write(data)
            target.close()

        await asyncio.gather(pump(reader, back, seen=False), pump(there, writer, seen=True))

    who = of_host(folder, "host-01")[0]
    home = folder / "hosts/host-01/tls"
    pair = load_certificate(home / "client.pem", home / "client.key")
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        credentials = grpc.ssl_channel_credentials((folder / "tls/ca.pem").read_bytes(), pair.key, pair.chain)
        async with server, grpc.aio.secure_channel(f"localhost:{port}", credentials, options=CHANNEL_OPTIONS) as one:
            (await open_session(one, who, "seven")).close()
    assert group_of(await first) == 0x11EC
