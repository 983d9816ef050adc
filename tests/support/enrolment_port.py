"""An enrolment port in this process, over real gRPC and TLS, with an authority that the test controls."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.keys import IdentityKey
from secagg.roster import NONE, Roster, RosterEntry
from server.enrolment import Enrolment, make_server
from server.session_port import read_certificate
from server.study_file import CoordinatorTable, PrivacyTable, StudyConfiguration, StudyTable
from tests.support.signed_rosters import published
from wire import coordinator_pb2 as pb
from wire.authority_statements import (
    Answer,
    Card,
    pending_statement,
    read_package,
    sign_answer,
    sign_card,
    write_package,
)
from wire.certificates import CertificateAuthority, identity_uri, key_of_request, new_key, private_pem
from wire.enrolment import EnrolmentRequest, SignedRequest, make_csr, make_request, read_request
from wire.join_code import JoinCode
from wire.records.roster_file import RosterFile
from wire.roster_history import HISTORY_FILE, NEWEST_FILE
from wire.study import StudyDocument, coding, plan_study
from wire.transport import frames

STUDY = "clinic"
DAY = datetime.timedelta(days=1)


@cache
def document(**options: Any) -> StudyDocument:
    """Make the document of a study with seven places."""
    chosen: dict[str, Any] = {
        **{"clients": 7, "dim": 16, "bits": 16, "epsilon": 50.0, "delta": 1e-5, "rounds": 2},
        **{"max_dropout": 0.3, "adversarial": 0.0, "min_survivors": 5},
        **options,
    }
    plan = plan_study(**chosen, **coding([16], clip=1.0))
    return StudyDocument(study=STUDY, task="synthetic", task_options={"dim": 16}, plan=plan)


@dataclass
class Authority:
    """A study's authority, with both its keys."""

    signing: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    tls: CertificateAuthority = field(
        default_factory=lambda: CertificateAuthority.make(STUDY, datetime.datetime.now(datetime.UTC) - 30 * DAY)
    )

    terms: bytes = field(default_factory=lambda: document().digest())
    versions: dict[int, Roster] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        return self.signing.public_key().public_bytes_raw()

    def card(self, **changes: Any) -> bytes:
        fields = {
            "study": STUDY,
            "authority_public": self.public,
            "tls_ca": self.tls.pem,
            "coordinator_public": bytes(32),
            "address": "localhost:1",
        } | changes
        return sign_card(Card(**fields), self.signing)

    def roster(self, version: int, identities: Iterable[bytes] = (), **changes: Any) -> Roster:
        """Make a version that follows the one before it, with the same terms."""
        entries = tuple(RosterEntry(one, f"host-{one.hex()[:6]}") for one in sorted(identities))
        fields = {"study": STUDY, "version": version, "entries": entries, "terms": self.terms}
        before = self.versions.get(version - 1)
        if before is None and version > 1:
            before = self.roster(version - 1)
        roster = Roster(**(fields | {"previous": NONE if before is None else before.digest()} | changes))
        self.versions.setdefault(version, roster)
        return roster

    def package(
        self, roster: Roster, answers: Iterable[bytes] = (), lottery: bytes | None = None, valid_s: float = 3600.0
    ) -> bytes:
        """Make what the authority publishes with a roster; the history has the versions that this authority made."""
        heads = [one.head for version, one in sorted(self.versions.items()) if version < roster.version]
        return write_package(published(roster, self.signing, heads, lottery=lottery, answers=answers, valid_s=valid_s))

    def code(self, valid_s: float = 3600.0) -> JoinCode:
        return JoinCode.new(self.public, self.terms, time.time() + valid_s, lambda n: b"s" * n)

    def answer(
        self, signed: SignedRequest, version: int = 2, *, uri: str = "", days: float = 90, **changes: Any
    ) -> bytes:
        """Make an answer; it accepts, unless ``changes`` say otherwise."""
        now = datetime.datetime.now(datetime.UTC)
        fields: dict[str, Any] = {
            "request_id": signed.id,
            "accepted": True,
            "reason": "",
            "host": signed.request.host,
            "certificate": self.tls.issue_client(
                key_of_request(signed.request.csr), uri or identity_uri(signed.request.identity), now, days
            ),
            "roster_version": version,
            "place": 1,
        } | changes
        if not fields["accepted"]:
            fields |= {"host": "", "certificate": b"", "place": 0}
        return sign_answer(Answer(**fields), self.signing)

    def client_pair(self, uri: str, *, now: datetime.datetime | None = None, days: float = 90) -> tuple[bytes, bytes]:
        """Make a client certificate with its key, PEM."""
        key = new_key()
        at = now or datetime.datetime.now(datetime.UTC)
        return self.tls.issue_client(key.public_key(), uri, at, days), private_pem(key)


@dataclass
class FakeStudy:
    """What enrolment sees of a study."""

    terms: StudyDocument = field(default_factory=document)
    roster_version: int = 1
    members: set[bytes] = field(default_factory=set)
    offered: list[bytes] = field(default_factory=list)

    def has_identity(self, identity: bytes) -> bool:
        return identity in self.members

    def offer_roster(self, roster_file: bytes, lottery_file: bytes | None) -> None:
        self.offered.append(roster_file)


def identity(name: str) -> IdentityKey:
    """Return an identity that depends only on the name."""
    return IdentityKey.generate(lambda n: name.encode().ljust(n, b"."))


def request(
    code: JoinCode | None, who: IdentityKey, *, host: str = "laptop", at: float | None = None, study: str = STUDY
) -> bytes:
    """Make a request, to join with a code or to renew without one; each has a new TLS key."""
    return make_request(
        EnrolmentRequest(
            "renew" if code is None else "join",
            study,
            who.public,
            host,
            make_csr(new_key()),
            time.time() if at is None else at,
            b"" if code is None else code.code_id,
        ),
        who,
        code,
    )


@dataclass
class Port:
    """An open enrolment port."""

    address: str
    authority: Authority
    study: FakeStudy
    enrolment: Enrolment
    files: RosterFile
    channel: grpc.aio.Channel

    def method(self, name: str, answer: Any) -> Any:
        return self.channel.unary_unary(
            f"/sordino.v1.Enrolment/{name}", request_serializer=None, response_deserializer=answer.FromString
        )

    async def enrol(self, data: bytes) -> pb.EnrolAnswer:
        return await self.method("Enrol", pb.EnrolAnswer)(pb.EnrolRequest(request=data).SerializeToString())

    async def nonce(self) -> bytes:
        return (await self.method("Challenge", pb.AuthorityChallenge)(b"")).nonce

    async def _proof(self, signer: Ed25519PrivateKey | None, nonce: bytes | None = None) -> tuple[bytes, bytes]:
        """Return a nonce and its signature, by default fresh and by the authority."""
        nonce = nonce if nonce is not None else await self.nonce()
        return nonce, (signer or self.authority.signing).sign(pending_statement(STUDY, nonce))

    async def pending(self, signer: Ed25519PrivateKey | None = None, nonce: bytes | None = None) -> list[bytes]:
        nonce, signature = await self._proof(signer, nonce)
        asked = pb.PendingRequest(nonce=nonce, signature=signature)
        return list((await self.method("Pending", pb.PendingRequests)(asked.SerializeToString())).requests)

    async def publish(
        self, package: bytes, signer: Ed25519PrivateKey | None = None, *, proven: bool = True, chunks: Any = None
    ) -> int:
        nonce, signature = await self._proof(signer)
        metadata = (("sordino-nonce-bin", nonce), ("sordino-signature-bin", signature)) if proven else ()
        call = self.channel.stream_unary(
            "/sordino.v1.Enrolment/Publish", request_serializer=None, response_deserializer=pb.PublishReceipt.FromString
        )(iter(frames(package)) if chunks is None else chunks, metadata=metadata)
        return (await call).roster_version

    async def accept(self, data: bytes, signed: SignedRequest, version: int = 2) -> None:
        """Publish a roster with this identity and the answer to its request; the study uses it at once."""
        members = {*self.study.members, signed.request.identity}
        await self.publish(
            self.authority.package(self.authority.roster(version, members), [self.authority.answer(signed, version)])
        )
        self.study.members, self.study.roster_version = members, version


def configuration(folder: Path, authority: Authority) -> StudyConfiguration:
    """Make a coordinator's files in a folder, except those that exist."""
    key = new_key()
    now = datetime.datetime.now(datetime.UTC)
    package = read_package(authority.package(authority.roster(1)))
    files = {
        "server.pem": authority.tls.issue_server(key.public_key(), (), now),
        "server.key": private_pem(key),
        "ca.pem": authority.tls.pem,
        "roster.json": package.roster_file,
        NEWEST_FILE: package.newest_file,
        HISTORY_FILE: package.history_file,
        "authority.pub": f"{authority.public.hex()}\n".encode(),
        "card.json": authority.card(),
    }
    for name, content in files.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
    places = {
        **{"state": "state.sqlite", "tls_certificate": "server.pem", "tls_key": "server.key", "client_ca": "ca.pem"},
        **{"roster": "roster.json", "lottery": "lottery.json", "card": "card.json"},
        "authority_public_key": "authority.pub",
    }
    table = CoordinatorTable(**{name: folder / file for name, file in places.items()}, enrolment_listen="127.0.0.1:0")
    study = StudyTable(name=STUDY, rounds=2, task="synthetic", participants=7)
    return StudyConfiguration(study=study, privacy=PrivacyTable(epsilon=50.0, delta=1e-5), coordinator=table)


@contextlib.asynccontextmanager
async def port(folder: Path, authority: Authority | None = None, study: FakeStudy | None = None) -> AsyncIterator[Port]:
    """Open an enrolment port with its files in ``folder``."""
    authority = authority or Authority()
    chosen, study = configuration(folder, authority), study or FakeStudy()
    files = chosen.roster_file()
    files.read()
    enrolment = Enrolment(chosen, study, files)
    server = make_server(enrolment)
    number = server.add_secure_port("127.0.0.1:0", read_certificate(chosen.coordinator).credentials(with_client=False))
    await server.start()
    address = f"localhost:{number}"
    channel = grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(authority.tls.pem), options=[("grpc.use_local_subchannel_pool", 1)]
    )
    try:
        yield Port(address, authority, study, enrolment, files, channel)
    finally:
        await channel.close()
        await server.stop(0.2)
        enrolment.close()


@contextlib.contextmanager
def port_in_thread(folder: Path, authority: Authority, *, signs: bool = True) -> Iterator[Any]:
    """As `port`, for code with its own event loop. ``signs``: the authority accepts every request.

    Yields the `Port`, and a function that runs a coroutine in the port's loop.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def beside(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def sign(where: Port) -> None:
        while True:
            for data in await where.pending():
                await where.accept(data, read_request(data), where.files.newest.version + 1)
            await asyncio.sleep(0.05)

    opened = port(folder, authority)
    where = beside(opened.__aenter__())
    signing = asyncio.run_coroutine_threadsafe(sign(where), loop) if signs else None
    try:
        yield where, beside
    finally:
        if signing is not None:
            signing.cancel()
        beside(opened.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
