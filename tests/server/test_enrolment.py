"""The port that anybody can reach: what it takes, keeps, shows, and from whom."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

import server.enrolment
import wire.records.enrolment_requests
import wire.records.roster_file
from runtime.durable import StorageError
from secagg.lottery import Draws
from secagg.roster import Roster, RosterEntry, verify_roster
from server.enrolment import CALLS_AT_ONCE, NONCE_VALID_S, Challenges, Enrolment
from server.study_file import ConfigurationError
from tests.support.ends_and_full_disks import no_room
from tests.support.enrolment_port import STUDY, Authority, FakeStudy, configuration, document, identity, port, request
from tests.support.study_in_process import until
from wire import coordinator_pb2 as pb
from wire.authority_statements import pending_statement
from wire.enrolment import LARGEST_REQUEST, read_request
from wire.open_calls import CallRefused
from wire.study import write_draws
from wire.transport import frame

PENDING, ACCEPTED, REFUSED = pb.ENROL_STATUS_PENDING, pb.ENROL_STATUS_ACCEPTED, pb.ENROL_STATUS_REFUSED


async def status(call: Any) -> tuple[str, str]:
    """How a call that is refused ends."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code().name, error.value.details() or ""


# ---------------------------------------------------------------- joiners


async def test_a_request_is_told_accepted_once_its_roster_is_in_use(tmp_path: Path) -> None:
    async with port(tmp_path) as where:
        data = request(where.authority.code(), identity("ann"))
        signed = read_request(data)
        assert (await where.enrol(data)).status == PENDING
        assert (await where.enrol(data)).status == PENDING
        assert await where.pending() == [data]
        answer = where.authority.answer(signed)
        roster = where.authority.roster(2, [signed.request.identity])
        assert await where.publish(where.authority.package(roster, [answer])) == 2
        assert await where.pending() == []
        assert (await where.enrol(data)).status == PENDING  # between attempts only is it adopted
        where.study.members, where.study.roster_version = {signed.request.identity}, 2
        told = await where.enrol(data)
        assert (told.status, told.answer) == (ACCEPTED, answer)
        where.study.members, where.study.roster_version = set(), 3
        told = await where.enrol(data)
        assert (told.status, told.reason) == (REFUSED, "this identity was enrolled and has been revoked since")


async def test_requests_and_answers_survive_a_restart(tmp_path: Path) -> None:
    authority = Authority()
    waiting, answered = (request(authority.code(), identity(name)) for name in ("ann", "bob"))
    async with port(tmp_path, authority=authority) as where:
        for data in (waiting, answered):
            await where.enrol(data)
        refusal = authority.answer(read_request(answered), accepted=False, reason="the code was used before")
        await where.publish(authority.package(authority.roster(2), [refusal]))
    async with port(tmp_path, authority=authority) as where:
        assert await where.pending() == [waiting]
        assert (await where.enrol(answered)).reason == "the code was used before"
        assert where.files.newest.version == 2


async def test_renewals_are_for_members_and_answered_at_once(tmp_path: Path) -> None:
    ann, bob = identity("ann"), identity("bob")
    async with port(tmp_path) as where:
        where.study.members = {ann.public}
        told = await where.enrol(request(None, bob))
        assert (told.status, told.reason) == (REFUSED, "this identity was revoked or never enrolled")
        first, second = request(None, ann), request(None, ann)
        await where.enrol(first)
        await where.enrol(second)
        assert await where.pending() == [second]  # of one identity one waits
        answer = where.authority.answer(read_request(second), 1)
        await where.publish(where.authority.package(where.authority.roster(1), [answer]))
        assert (await where.enrol(second)).status == ACCEPTED


async def test_what_is_no_request(tmp_path: Path) -> None:
    async with port(tmp_path) as where:
        code, ann = where.authority.code(), identity("ann")
        good = request(code, ann)
        cases = [
            (where.enrol(good[:-2] + b'0"'), "INVALID_ARGUMENT"),
            (where.enrol(b""), "INVALID_ARGUMENT"),
            (where.enrol(good.replace(b'"laptop"', b'"laptap"')), "INVALID_ARGUMENT"),
            (where.method("Enrol", pb.EnrolAnswer)(b"\xff\xff"), "INVALID_ARGUMENT"),
            (where.method("Enrol", pb.EnrolAnswer)(bytes(LARGEST_REQUEST + 17)), "INVALID_ARGUMENT"),
            (where.method("Enrol", pb.EnrolAnswer)(bytes(1 << 20)), "RESOURCE_EXHAUSTED"),  # gRPC's own limit
            (where.enrol(request(code, ann, study="other")), "FAILED_PRECONDITION"),
            (where.method("Describe", pb.Description)(b""), "FAILED_PRECONDITION"),  # protocol version 0
        ]
        for call, expected in cases:
            assert (await status(call))[0] == expected
        name, told = await status(where.enrol(request(code, ann, at=time.time() + 90_000)))
        assert name == "FAILED_PRECONDITION"
        assert "one of the two clocks is wrong" in told
        assert await where.pending() == []


async def test_what_waits_is_bounded_and_the_oldest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without bounds, or one that drops its oldest, fails here."""
    monkeypatch.setattr(wire.records.enrolment_requests, "MOST_WAITING", 4)
    monkeypatch.setattr(wire.records.enrolment_requests, "MOST_OF_ONE_ADDRESS", 3)
    async with port(tmp_path) as where:
        store, code = where.enrolment._requests, where.authority.code()
        sent = [request(code, identity(f"mallory {number}")) for number in range(3)]
        for data in sent:
            await where.enrol(data)
        name, told = await status(where.enrol(request(code, identity("mallory 4"))))
        assert (name, "from your address" in told) == ("RESOURCE_EXHAUSTED", True)
        ann = request(code, identity("ann"))
        await store.add(read_request(ann), "192.0.2.1")
        with pytest.raises(wire.records.enrolment_requests.QueueFull):
            await store.add(read_request(request(code, identity("bob"))), "192.0.2.2")
        assert await where.pending() == [*sent, ann]
        again = request(code, identity("ann"))  # of one identity the later one counts, and needs no further room
        await store.add(read_request(again), "192.0.2.1")
        assert await where.pending() == [*sent, again]


async def test_whoever_hangs_up_takes_nothing_back(tmp_path: Path) -> None:
    """A call that is cut off while its request is written; memory and disk say the same, and it can be asked again."""
    async with port(tmp_path) as where:
        store, data = where.enrolment._requests, request(where.authority.code(), identity("ann"))
        call = asyncio.create_task(store.add(read_request(data), "192.0.2.1"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: store._store.read("SELECT 1 FROM requests"))
        assert await where.pending() == [data]
        assert (await where.enrol(data)).status == PENDING


async def test_a_repeated_request_waits_for_the_first_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the answer says that the request waits, although a full disk then loses it."""
    async with port(tmp_path) as where:
        store, data = where.enrolment._requests, request(where.authority.code(), identity("ann"))
        full = asyncio.Event()

        async def write(*_: Any) -> None:
            await full.wait()
            raise StorageError("no room")

        monkeypatch.setattr(store._store, "write", write)
        first = asyncio.create_task(status(where.enrol(data)))
        await until(lambda: store.waits(read_request(data).id))
        again = asyncio.create_task(status(where.enrol(data)))
        added = asyncio.create_task(store.add(read_request(data), "192.0.2.1"))
        done, _ = await asyncio.wait({again, added}, timeout=0.3)
        assert not done
        full.set()
        assert [(await one)[0] for one in (first, again)] == ["RESOURCE_EXHAUSTED"] * 2
        with pytest.raises(StorageError):
            await added
        assert not store.waits(read_request(data).id)
        assert not store._writes


async def test_one_address_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.enrolment, "CALLS_PER_S", 1e-6)
    monkeypatch.setattr(server.enrolment, "CALLS_AT_ONCE", 3.0)
    assert CALLS_AT_ONCE > 60  # a clinic's participants behind one address
    async with port(tmp_path) as where:
        data = request(where.authority.code(), identity("ann"))
        for _ in range(3):
            await where.enrol(data)
        assert (await status(where.enrol(data)))[0] == "RESOURCE_EXHAUSTED"


async def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a full disk is put in the place of the writes: of SQLite's, and of those that replace files."""
    async with port(tmp_path) as where:
        ann, bob = (request(where.authority.code(), identity(name)) for name in ("ann", "bob"))
        await where.enrol(ann)
        package = where.authority.package(where.authority.roster(2), [where.authority.answer(read_request(ann))])
        with monkeypatch.context() as patch:

            async def full(*_: Any) -> None:
                raise StorageError("requests.sqlite: database or disk is full")

            patch.setattr(where.enrolment._requests._store, "write", full)
            name, told = await status(where.enrol(bob))
            assert (name, "can't write requests down" in told) == ("RESOURCE_EXHAUSTED", True)
            assert len(where.enrolment._requests) == 1
        with monkeypatch.context() as patch:
            patch.setattr(wire.records.roster_file, "replace_durably", no_room)
            name, told = await status(where.publish(package))
            assert (name, "make room" in told) == ("RESOURCE_EXHAUSTED", True)
        assert (where.files.newest.version, where.study.offered) == (1, [])
        assert await where.pending() == [ann]
        assert await where.publish(package) == 2
        assert await where.pending() == []


# ---------------------------------------------------------------- the authority


async def test_nobody_else_sees_requests_or_publishes(tmp_path: Path) -> None:
    async with port(tmp_path) as where:
        mallory = Authority().signing
        package = where.authority.package(where.authority.roster(2))
        assert (await status(where.pending(mallory)))[0] == "PERMISSION_DENIED"
        assert (await status(where.publish(package, mallory)))[0] == "PERMISSION_DENIED"
        assert (await status(where.publish(package, proven=False)))[0] == "UNAUTHENTICATED"
        nonce = await where.nonce()
        await where.pending(nonce=nonce)
        assert await status(where.pending(nonce=nonce)) == (
            "UNAUTHENTICATED",
            "the challenge was used before: ask again",
        )
        assert (await status(where.pending(nonce=bytes(32))))[0] == "UNAUTHENTICATED"
        assert (await status(where.pending(nonce=b"")))[0] == "UNAUTHENTICATED"


def test_challenges_are_short_lived_and_need_no_memory() -> None:
    now, authority = [1000.0], Authority()
    challenges = Challenges(lambda: now[0])

    def check(nonce: bytes) -> None:
        challenges.check(nonce, authority.signing.sign(pending_statement(STUDY, nonce)), STUDY, authority.public)

    late = challenges.issue()
    for _ in range(10_000):
        challenges.issue()
    assert len(challenges._used) == 0
    now[0] += NONCE_VALID_S + 0.1
    with pytest.raises(CallRefused, match="too old"):
        check(late)
    for _ in range(100):
        check(challenges.issue())
        now[0] += 1.0
    assert len(challenges._used) <= NONCE_VALID_S + 2
    with pytest.raises(CallRefused, match="not made here"):
        Challenges(lambda: now[0]).check(challenges.issue(), bytes(64), STUDY, authority.public)


def other_roster(authority: Authority, version: int = 2, **changes: Any) -> Roster:
    return authority.roster(version, [identity("ann").public], **changes)


CROWD = tuple(RosterEntry(identity(f"m{n}").public, "one") for n in range(4))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a: (other := Authority()).package(other.roster(2)), "not signed by"),
        (lambda a: a.package(a.roster(2, study="other")), "study 'other'"),
        (lambda a: a.package(a.roster(2, [identity(f"m{n}").public for n in range(8)])), "has 8"),
        (
            lambda a: a.package(a.roster(2, entries=tuple(sorted(CROWD, key=lambda one: one.identity)))),
            "one host would run 4",
        ),
        (lambda a: a.package(other_roster(a, 1)), "another version 1"),
        (lambda a: a.package(a.roster(2), [b"{}"]), "format"),
        (
            lambda a: a.package(a.roster(2), [Authority().answer(read_request(request(a.code(), identity("ann"))))]),
            "isn't signed",
        ),
        (
            lambda a: a.package(a.roster(2), [a.answer(read_request(request(a.code(), identity("ann"))), 3)]),
            "later roster",
        ),
        (lambda a: a.package(a.roster(2))[:-3], "cut short"),
        (lambda a: b"no package", "not a package"),
    ],
)
async def test_packages_that_are_not_taken(tmp_path: Path, make: Any, expected: str) -> None:
    async with port(tmp_path) as where:
        before = (tmp_path / "roster.json").read_bytes()
        name, told = await status(where.publish(make(where.authority)))
        assert (name, expected in told) == ("INVALID_ARGUMENT", True), told
        assert (tmp_path / "roster.json").read_bytes() == before
        assert where.study.offered == []


async def test_chunks_that_are_none_and_packages_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.enrolment, "LARGEST_PACKAGE", 4096)
    async with port(tmp_path) as where:
        for chunks in (iter([b"\x12\x01x"]), iter([frame(bytes(1024))] * 8)):
            assert (await status(where.publish(b"", chunks=chunks)))[0] == "INVALID_ARGUMENT"


async def test_the_same_package_again_is_fine_and_an_older_one_is_not(tmp_path: Path) -> None:
    async with port(tmp_path) as where:
        second, third = (where.authority.package(where.authority.roster(v, [identity("ann").public])) for v in (2, 3))
        assert await where.publish(second) == 2
        assert await where.publish(second) == 2
        assert await where.publish(third) == 3
        assert "older than version 3" in (await status(where.publish(second)))[1]
        assert verify_roster((tmp_path / "roster.json").read_bytes(), where.authority.public).version == 3


async def test_a_lottery_comes_with_its_seeds(tmp_path: Path) -> None:
    plan = {"clients": 7, "sampling": "lottery", "population": 8, "largest_roster": 12, "min_survivors": 6}
    study = FakeStudy(terms=document(**plan))
    entries = (RosterEntry(identity(f"m{number}").public, f"h{number}") for number in range(8))
    members = tuple(sorted(entries, key=lambda one: one.identity))
    draws = Draws.draw(STUDY, 2, 2, lambda n: bytes(n))
    wrong = Draws.draw(STUDY, 2, 2, lambda n: b"\x01" * n)
    async with port(tmp_path, Authority(terms=study.terms.digest()), study=study) as where:
        roster = where.authority.roster(2, entries=members, lottery=draws.lottery)
        none, other, right = (
            where.authority.package(roster, lottery=one) for one in (None, write_draws(wrong), write_draws(draws))
        )
        assert "lottery.json" in (await status(where.publish(none)))[1]
        assert "lottery.json" in (await status(where.publish(other)))[1]
        assert await where.publish(right) == 2
        assert (tmp_path / "lottery.json").read_bytes() == write_draws(draws)


def test_a_card_of_somebody_else(tmp_path: Path) -> None:
    authority, other = Authority(), Authority()
    for card, expected in ((other.card(), "another authority"), (authority.card(study="other"), "study 'other'")):
        (tmp_path / "card.json").write_bytes(card)
        chosen = configuration(tmp_path, authority)
        files = chosen.roster_file()
        files.read()
        with pytest.raises(ConfigurationError, match=expected):
            Enrolment(chosen, FakeStudy(), files)
