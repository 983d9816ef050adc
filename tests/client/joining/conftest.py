"""An enrolment port, and a participant that joins there by code."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import client.joining.joining
from client.enrolment import EnrolmentRefused, EnrolmentUnavailable
from client.joining.folder import JoinedHome, open_home
from client.joining.joining import join_by_code
from client.joining.options import JoinOptions
from runtime.failure import ExitCode, Failure
from runtime.key_files import KeyFileError
from tests.support.enrolment_port import Authority, port_in_thread
from tests.support.signed_rosters import published
from wire.enrolment import read_request
from wire.study import StudyDocument

LOOSE = "[policy]\nmax_epsilon = 60\nmin_honest_survivors = 2\n"


class Joining:
    """A port, and a participant that joins there."""

    def __init__(self, where: Any, beside: Any, authority: Authority, work: Path) -> None:
        self.where, self.beside, self.authority, self.work = where, beside, authority, work
        self.said: list[str] = []
        self.home = work / "home"

    def options(self, **changes: Any) -> JoinOptions:
        chosen: dict[str, Any] = {
            "address": self.where.address,
            "code": self.authority.code().to_text(),
            "home": self.home,
            "agreed": True,
        }
        return JoinOptions(**(chosen | changes))

    def serve(self, document: StudyDocument) -> None:
        """Serve other terms, signed by the authority."""
        self.authority.terms, self.where.enrolment._document = document.digest(), document.to_bytes()
        self.where.study.terms = document
        roster = dataclasses.replace(self.where.files.newest, terms=self.authority.terms)
        self.where.files.statement_file = published(roster, self.authority.signing).newest_file

    def join(self, **changes: Any) -> Path:
        return asyncio.run(join_by_code(self.options(**changes), self.said.append))

    def refused(self, **changes: Any) -> str:
        """The reason; joining left no file and sent no request."""
        before, waiting = sorted(self.work.rglob("*")), self.requests()
        with pytest.raises((Failure, EnrolmentRefused, EnrolmentUnavailable, KeyFileError)) as error:
            self.join(**changes)
        assert sorted(self.work.rglob("*")) == before
        assert self.requests() == waiting
        assert "secret" not in str(error.value)
        code = getattr(error.value, "code", getattr(error.value, "exit_code", None))
        assert code == ExitCode.INPUT, (code, error.value)
        return str(error.value)

    def publish_answer(self, **changes: Any) -> None:
        """Answer the waiting request, as the authority."""
        [data] = self.requests()
        signed = read_request(data)
        answer = self.authority.answer(signed, **changes)
        roster = self.authority.roster(2, [signed.request.identity])
        self.beside(self.where.publish(self.authority.package(roster, [answer])))
        self.where.study.members, self.where.study.roster_version = {signed.request.identity}, 2

    def opened(self) -> JoinedHome:
        home = open_home(self.home)
        assert home is not None
        return home

    def requests(self) -> list[bytes]:
        return self.where.enrolment._requests.waiting(1 << 20)


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client.joining.joining, "FIRST_POLL_S", 0.02)
    monkeypatch.setattr(client.joining.joining, "POLL_GROWTH", 1.0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def unsigned(authority: Authority, tmp_path: Path) -> Iterator[Joining]:
    """The authority is away."""
    yield from at_a_port(authority, tmp_path, signs=False)


@pytest.fixture
def joining(authority: Authority, tmp_path: Path) -> Iterator[Joining]:
    """The authority signs at once."""
    yield from at_a_port(authority, tmp_path, signs=True)


def at_a_port(authority: Authority, folder: Path, *, signs: bool) -> Iterator[Joining]:
    for name in ("port", "work"):
        (folder / name).mkdir()
    with port_in_thread(folder / "port", authority, signs=signs) as (where, beside):
        yield Joining(where, beside, authority, folder / "work")
