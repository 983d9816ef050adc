"""The certificate is renewed automatically: before it ends, with one rename, and only for its own identity."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import client.joining.joining
import client.renewal
from client.connection import Channels
from client.credentials import RENEWED_FILE, CertificateError, ClientCertificate, load_certificate, load_identity
from client.enrolment import EnrolmentRefused, EnrolmentUnavailable
from client.host_file import load
from client.joining.joining import join_by_code
from client.joining.options import JoinOptions
from client.participant_host import ParticipantHost
from client.renewal import PENDING_FILE, Renewal
from client.settings import HostSettings
from runtime.failure import Failure
from runtime.processes import free_port
from tests.support.ends_and_full_disks import no_room
from tests.support.enrolment_port import Authority, identity, port_in_thread
from tests.support.study_in_process import until
from wire import coordinator_pb2 as pb
from wire.enrolment import read_request

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


class Home:
    """A participant that joined a while ago, and the enrolment port for its renewal."""

    def __init__(self, where: Any, beside: Any, path: Path) -> None:
        self.where, self.beside, self.path = where, beside, path
        self.renewed: list[Any] = []
        self.identity = load_identity(path / "keys" / "participant.key")

    def issued(self, days_ago: float, days: float = 90) -> None:
        """Replace the certificate by one of another age."""
        name = f"urn:sordino:identity:{self.identity.public.hex()}"
        chain, key = self.where.authority.client_pair(name, now=NOW - days_ago * DAY, days=days)
        (self.path / "tls" / "client.pem").write_bytes(chain)
        (self.path / "tls" / "client.key").write_bytes(key)

    def settings(self, **changes: Any) -> HostSettings:
        settings = load(self.path).settings()
        return replace(settings, coordinator=replace(settings.coordinator, **changes))

    def renewal(self, **changes: Any) -> Renewal:
        ca = (self.path / "ca.pem").read_bytes()
        return Renewal(self.settings(**changes), self.identity, ca, self.certificate(), self.renewed.append)

    def certificate(self) -> ClientCertificate:
        return load_certificate(self.path / "tls" / "client.pem", self.path / "tls" / "client.key")

    def requests(self) -> list[bytes]:
        return list(self.where.enrolment._requests.waiting(1 << 20))

    def answer(self, **changes: Any) -> None:
        """Answer the waiting request, as the authority."""
        [data] = self.requests()
        authority, newest = self.where.authority, self.where.files.newest
        answer = authority.answer(read_request(data), newest.version, **changes)
        self.beside(self.where.publish(authority.package(newest, [answer])))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Enrolled; after that the authority is away."""
    monkeypatch.setattr(client.joining.joining, "FIRST_POLL_S", 0.02)
    monkeypatch.setattr(client.renewal, "FIRST_POLL_S", 0.02)
    monkeypatch.setattr(client.renewal, "POLL_GROWTH", 1.0)
    authority = Authority()
    (tmp_path / "port").mkdir()
    with port_in_thread(tmp_path / "port", authority) as (where, _):
        code = authority.code().to_text()
        asyncio.run(
            join_by_code(
                JoinOptions(address=where.address, code=code, home=tmp_path / "home", agreed=True), lambda _: None
            )
        )
        member, number = where.study.members, where.study.roster_version
    with port_in_thread(tmp_path / "port", authority, signs=False) as (where, beside):
        where.study.members, where.study.roster_version = member, number
        file = tmp_path / "home" / "host.toml"
        enrolment = [line for line in file.read_text().splitlines() if line.startswith("enrolment =")]
        file.write_text(file.read_text().replace(enrolment[0], f'enrolment = "{where.address}"'))
        yield Home(where, beside, tmp_path / "home")


async def test_a_third_before_it_ends(home: Home) -> None:
    """Two days before its last third nothing happens; in it the new one is there, and used from the next session on."""
    home.issued(days_ago=58)
    old = home.certificate()

    early = asyncio.create_task(home.renewal().run())
    await asyncio.sleep(0.1)
    assert home.requests() == []
    early.cancel()
    home.issued(days_ago=61)
    renewal = home.renewal()
    task = asyncio.create_task(renewal.run())
    await until(home.requests)
    await asyncio.to_thread(home.answer)
    await until(lambda: home.renewed)
    await asyncio.sleep(0.1)
    assert len(home.renewed) == 1
    task.cancel()
    [new] = home.renewed
    assert new == home.certificate()
    assert new.path.name == RENEWED_FILE
    assert new.not_after > old.not_after
    assert new.names == old.names
    assert new.key != old.key
    assert not (home.path / "tls" / PENDING_FILE).exists()
    assert new.path.stat().st_mode & 0o777 == 0o600


def test_a_restart_asks_the_same_again(home: Home) -> None:
    home.issued(days_ago=80)

    async def for_a_moment() -> None:
        task = asyncio.create_task(home.renewal().run())
        await until(home.requests)
        assert (home.path / "tls" / PENDING_FILE).stat().st_mode & 0o777 == 0o600
        task.cancel()

    asyncio.run(for_a_moment())
    first = home.requests()
    asyncio.run(for_a_moment())
    assert home.requests() == first
    home.answer()
    asyncio.run(home.renewal().renew())
    assert len(home.renewed) == 1


def test_nothing_is_sent_before_it_is_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected: the folder takes no writes."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(CertificateError, match="No space left"):
            asyncio.run(home.renewal().renew())
    assert home.requests() == []
    assert home.renewed == []


@pytest.mark.parametrize("answer", ["refused", "another identity", "another key", "another authority"])
async def test_answers_that_are_not_kept(home: Home, answer: str) -> None:
    """The old certificate stays in use, and the process goes on."""
    home.issued(days_ago=80)
    before = home.certificate()
    authority = home.where.authority
    mine = f"urn:sordino:identity:{home.identity.public.hex()}"

    with capture_logs() as logs:
        task = asyncio.create_task(home.renewal().run())
        await until(home.requests)
        if answer == "refused":
            await asyncio.to_thread(lambda: home.answer(accepted=False, reason="this identity was revoked"))
        elif answer == "another identity":
            other = f"urn:sordino:identity:{identity('bob').public.hex()}"
            await asyncio.to_thread(lambda: home.answer(uri=other))
        else:
            chain = (authority if answer == "another key" else Authority()).client_pair(mine)[0]
            await asyncio.to_thread(lambda: home.answer(certificate=chain))
        await until(lambda: any("isn't renewed" in one["event"] for one in logs))
        assert not task.done()
        task.cancel()
    assert home.renewed == []
    assert home.certificate() == before


async def test_an_answer_with_a_foreign_signature(home: Home) -> None:
    home.issued(days_ago=80)
    task = asyncio.create_task(home.renewal().renew())
    await until(home.requests)
    [data] = home.requests()
    forged = Authority().answer(read_request(data))

    async def told(_: bytes) -> bytes:
        return forged

    requests = home.where.enrolment._requests
    home.where.enrolment._told = lambda *_: pb.EnrolAnswer(status=pb.ENROL_STATUS_ACCEPTED, answer=forged)
    requests.answer = told
    requests._waiting.clear()
    with pytest.raises(EnrolmentRefused, match="isn't signed by the study's authority"):
        await task
    assert home.renewed == []


def test_nowhere_to_ask(home: Home) -> None:
    with pytest.raises(EnrolmentRefused, match=r"coordinator\.enrolment in host\.toml names no port"):
        asyncio.run(home.renewal(enrolment="").renew())
    with pytest.raises(EnrolmentUnavailable, match="can't be reached"):
        asyncio.run(home.renewal(enrolment=f"localhost:{free_port()}").renew(0.05))


# ---------------------------------------------------------------- the process


def stay(home: Home, **changes: Any) -> str:
    """Why a client process ends."""

    async def scenario() -> None:
        settings = home.settings(**changes)
        await ParticipantHost(settings, None, None).stay()  # type: ignore[arg-type]  # nothing is journaled

    with pytest.raises(Failure) as error:
        asyncio.run(scenario())
    return f"{error.value.code}: {error.value}"


def test_an_expired_certificate_that_can_t_be_renewed(home: Home) -> None:
    home.issued(days_ago=100)
    told = stay(home, enrolment="")
    assert told.startswith("2: the certificate")
    for expected in ("expired on", "this machine's clock says", "ask the study's authority for a new join code"):
        assert expected in told
    told = stay(home, enrolment=f"localhost:{free_port()}", give_up_s=0.1)
    assert told.startswith("4: the certificate")
    assert "can't be renewed" in told
    home.where.study.members = set()
    told = stay(home)
    assert told.startswith("2: the certificate")
    assert "this identity was revoked or never enrolled" in told


def test_a_certificate_that_is_not_valid_yet(home: Home) -> None:
    home.issued(days_ago=-3)
    told = stay(home)
    assert told.startswith("2: the certificate")
    assert "the clock may be wrong" in told


async def test_an_expired_certificate_is_renewed_first(home: Home) -> None:
    """The host connects only with the new certificate."""
    home.issued(days_ago=100)

    host = ParticipantHost(home.settings(address=f"localhost:{free_port()}"), None, None)  # type: ignore[arg-type]
    task = asyncio.create_task(host.stay())
    await until(home.requests)
    assert host._channels is None
    await asyncio.to_thread(home.answer)
    await until(lambda: host._channels is not None)
    assert host._certificate.path.name == RENEWED_FILE
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_next_session_uses_the_new_one(home: Home) -> None:
    settings = home.settings()
    certificate = load_certificate(settings.coordinator.certificate, settings.coordinator.key)
    channels = Channels("localhost:1", (home.path / "ca.pem").read_bytes(), certificate)
    first = channels.current()
    assert channels.current() is first
    channels.renew(certificate)
    assert channels.current() is not first
    await channels.close()
