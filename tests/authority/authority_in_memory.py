"""An authority, participants who want to join, and a coordinator that may lie, all in one process."""

from __future__ import annotations

import datetime
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from authority.folder import AuthorityFolder, AuthorityKeys, AuthorityTable, write_folder
from authority.invitations import invite, revoke
from authority.roster import begin
from authority.store import Member, locked
from authority.visit import Visit, attend
from secagg.keys import IdentityKey
from secagg.roster import Roster, verify_roster
from tests.support.enrolment_port import document, request
from wire import coordinator_pb2 as pb
from wire.authority_statements import Answer, Package, read_package, verify_answer
from wire.enrolment import read_request
from wire.join_code import JoinCode
from wire.roster_history import verify_newest

NOW = 1_790_000_000.0
HOUR, DAY = 3600.0, 86_400.0


@dataclass
class Participant:
    """A participant; each request has a new TLS key."""

    identity: IdentityKey
    host: str = "laptop"

    def join(self, code: JoinCode, *, study: str = "clinics", at: float = NOW) -> bytes:
        return request(code, self.identity, host=self.host, at=at, study=study)

    def renew(self, *, at: float = NOW) -> bytes:
        return request(None, self.identity, host=self.host, at=at, study="clinics")


def participant(seed: int, host: str = "laptop") -> Participant:
    return Participant(IdentityKey.generate(random.Random(seed).randbytes), host)


class Coordinator:
    """Shows what it was handed; a test may make it lie."""

    def __init__(self) -> None:
        self.shown: list[bytes] = []
        self.version = 0
        self.packages: list[Package] = []
        self.newest_until = 0
        self.takes = True

    def pending(self) -> pb.PendingRequests:
        return pb.PendingRequests(requests=self.shown, roster_version=self.version, newest_until=self.newest_until)

    def publish(self, data: bytes) -> int:
        if not self.takes:
            raise ConnectionError("gone")
        package = read_package(data)
        self.packages.append(package)
        return self.version

    def settle(self, public: bytes) -> None:
        """As an honest one: what was answered isn't shown again, the newest roster is known."""
        answered = {verify_answer(answer, public).request_id for one in self.packages for answer in one.answers}
        self.shown = [data for data in self.shown if hashlib.sha256(data).digest() not in answered]
        if self.packages:
            newest = verify_newest(self.packages[-1].newest_file, public)
            self.version, self.newest_until = newest.version, newest.until


@dataclass
class Office:
    """The authority with its clock and its coordinator."""

    folder: AuthorityFolder
    now: float = NOW
    coordinator: Coordinator = field(default_factory=Coordinator)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def public(self) -> bytes:
        return self.folder.keys.public

    def invite(self, name: str = "", valid_s: float = DAY, **others: Any) -> JoinCode:
        with locked(self.folder, 0) as store:
            chosen = {"now": self.now, "random_bytes": self.rng.randbytes} | others
            return invite(store, name=name, valid_s=valid_s, **chosen)

    def revoke(self, who: str) -> list[Member]:
        with locked(self.folder, 0) as store:
            return revoke(store, who, NOW)

    def attend(self, *requests: bytes, sign: bool = True, **others: object) -> Visit:
        """A visit to a coordinator that shows these requests beside those that it showed before."""
        self.coordinator.shown += requests
        visit = attend(
            self.folder,
            self.coordinator,  # type: ignore[arg-type]
            sign=sign,
            clock=lambda: self.now,
            random_bytes=self.rng.randbytes,
            wait_s=0,
            **others,  # type: ignore[arg-type]
        )
        self.coordinator.settle(self.public)
        return visit

    def answers(self) -> dict[bytes, Answer]:
        """Request id -> the last answer that was published."""
        found = [verify_answer(data, self.public) for one in self.coordinator.packages for data in one.answers]
        return {answer.request_id: answer for answer in found}

    def is_answered(self, data: bytes) -> bool:
        return read_request(data).id in self.answers()

    def answer(self, data: bytes) -> Answer:
        return self.answers()[read_request(data).id]

    def judge(self, data: bytes) -> Answer:
        """A visit with this request, and its answer."""
        self.attend(data)
        return self.answer(data)

    def roster(self) -> Roster:
        with locked(self.folder, 0) as store:
            newest = store.newest()
        assert newest is not None
        return verify_roster(newest.roster, self.public)

    def hosts(self) -> set[str]:
        return {entry.host for entry in self.roster().entries}


def make_office(path: Path, *, clock: Callable[[], float] = lambda: NOW, **settings: object) -> Office:
    """A new authority that has signed an empty roster."""
    keys = AuthorityKeys.make("clinics", datetime.datetime.fromtimestamp(clock(), datetime.UTC))
    fields = {"study": "clinics", "coordinator": "localhost:8444"} | settings
    folder = write_folder(path, AuthorityTable(**fields), keys)  # type: ignore[arg-type]
    with locked(folder, 0) as store:
        terms = replace(document(), study="clinics").to_bytes()
        begin(store, (), clock(), random.Random(9).randbytes, terms)
    return Office(folder)
