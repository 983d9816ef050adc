"""A participant that joins by code at a real enrolment port."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from client.enrolment import EnrolmentRefused, EnrolmentUnavailable
from client.joining.joining import join_by_code
from client.joining.options import JoinOptions
from runtime.failure import ExitCode, Failure
from runtime.key_files import KeyFileError
from tests.support.enrolment_port import Authority
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

    def requests(self) -> list[bytes]:
        return self.where.enrolment._requests.waiting(1 << 20)
