"""The authority's socket: a code for each process that opens it, up to the places; slow ones delay no other."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import client.joining.local_enrolment as visits
from authority import local_enrolment
from authority.folder import AuthorityError, AuthorityFolder
from authority.invitations import EXPIRED_KEPT_S, check_clock, invite, revoke, withdraw
from authority.local_enrolment import LocalEnrolmentSocket
from authority.store import AuthorityStore, Invitation, locked
from authority.visit import rest
from client.joining.local_enrolment import join_code_at, state_at
from runtime.failure import ExitCode, Failure
from tests.authority.authority_in_memory import NOW, Office, Participant, make_office, participant
from wire.join_code import JoinCode


class Front:
    """A desk with its authority."""

    def __init__(self, office: Office, folder: Path) -> None:
        self.office, self.path, self.told = office, folder / "desk", list[dict[str, Any]]()
        self.places: int | None = None
        self.open = self.desk()

    def desk(self, path: Path | None = None, folder: AuthorityFolder | None = None) -> LocalEnrolmentSocket:
        keys = folder or self.office.folder
        return LocalEnrolmentSocket(
            keys, path or self.path, self.told.append, places=self.places, clock=lambda: self.office.now
        )

    def code(self, *, keep: bool = True) -> JoinCode:
        with join_code_at(self.path, self.told.append) as given:  # type: ignore[arg-type]
            if keep:
                given.keep()
            return JoinCode.from_text(given.code)

    def state(self, who: Participant, path: Path | None = None, **changes: Any) -> str | None:
        wanted = {"study": "clinics", "authority": self.office.public, "say": self.told.append} | changes
        return state_at(path or self.path, who.identity.public, **wanted)

    def rows(self) -> dict[bytes, Invitation]:
        with locked(self.office.folder) as store:
            return {one.code_id: one for one in store.invitations()}

    def wait_for(self, what: str, times: int = 1) -> None:
        ends = time.monotonic() + 20
        while sum(what in one for one in self.told) < times:
            assert time.monotonic() < ends
            time.sleep(0.01)


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(local_enrolment, "BETWEEN_CODES_S", 0.0)
    with tempfile.TemporaryDirectory(prefix="desk-") as short:  # a socket's name has at most 107 bytes
        found = Front(make_office(tmp_path / "authority", places=2), Path(short))
        yield found
        found.open.close()


def test_a_code_of_the_desk_is_as_good_as_any(front: Front) -> None:
    assert stat.S_IMODE(front.path.stat().st_mode) == 0o660
    assert not front.open.busy()
    alice = participant(1)
    code = front.code()
    assert front.open.busy()
    request = alice.join(code)
    answer = front.office.judge(request)
    assert (answer.accepted, answer.place) == (True, 1)
    assert front.told == [{"handed_out": code.code_id.hex()}]  # and nothing of the code itself
    late = participant(2).join(front.code())
    front.office.now += local_enrolment.VALID_S + 61
    assert "had expired" in front.office.judge(late).reason
    front.open.close()
    assert not front.path.exists()


def test_never_more_codes_than_places(front: Front) -> None:
    """A member or an open code for each place; a code that isn't kept is taken back."""
    request = participant(1).join(front.code())
    front.office.attend(request)
    lost = front.code(keep=False)
    front.wait_for("taken_back")
    assert front.told[-1] == {"taken_back": lost.code_id.hex()}
    front.office.attend(participant(2).join(lost))
    assert len(front.office.roster()) == 1
    front.code()
    for _ in range(3):
        with pytest.raises(Failure, match="gives no code: all 2 places are taken") as error:
            front.code()
        assert error.value.code == ExitCode.INPUT
    assert sum("refused" in one for one in front.told) == 1  # repeated requests fill no log
    front.office.now += local_enrolment.VALID_S + 61  # the open one has expired
    front.code()


def test_codes_that_were_not_kept_leave_the_store(front: Front) -> None:
    """A container that fails at its beginning again and again takes one each time; they'd all be there for ever."""
    alice, bob = participant(1), participant(2)
    used = front.code()
    front.office.attend(alice.join(used))
    by_hand = front.office.invite("clinic-7")
    with locked(front.office.folder) as store:
        assert withdraw(store, "clinic-7", NOW) is not None
    dropped = []
    for _ in range(10):
        dropped.append(front.code(keep=False))
        front.wait_for("taken_back", len(dropped))
        assert set(front.rows()) == {used.code_id, by_hand.code_id, dropped[-1].code_id}
    kept = front.code()
    assert set(front.rows()) == {used.code_id, by_hand.code_id, kept.code_id}
    assert front.rows()[used.code_id].identity == alice.identity.public
    late = bob.join(dropped[0])
    answer = front.office.judge(late)
    assert not answer.accepted
    assert answer.reason == "no invitation of this study has this join code: ask for a new one"
    asked = bob.join(kept)
    answer = front.office.judge(asked)
    assert (answer.accepted, answer.place) == (True, 2)


def test_a_code_of_the_desk_costs_the_same_whatever_was_before(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of an earlier release, with all that was taken for nothing: it goes with the first code."""
    with locked(front.office.folder) as store:
        store.write(
            *(
                (
                    "INSERT INTO invitations (code_id, secret, name, made, expires, withdrawn, from_desk) "
                    "VALUES (?, ?, '', ?, ?, ?, 1)",
                    (number.to_bytes(16, "big"), bytes(16), NOW - 1, int(NOW) + 600, NOW),
                )
                for number in range(20_000)
            )
        )

    def every(_: AuthorityStore) -> list[Invitation]:
        raise AssertionError("all invitations, or all members, are read for one code")

    with monkeypatch.context() as patched:
        patched.setattr(AuthorityStore, "invitations", every)
        patched.setattr(AuthorityStore, "members", every)
        code = front.code()
    assert set(front.rows()) == {code.code_id}


def test_an_unused_code_of_the_desk_is_forgotten_an_hour_after_its_end(front: Front) -> None:
    """The authority was away for more than ten minutes: the refusal names the delay, not a missing code."""
    never_used, by_hand = front.code(), front.office.invite(valid_s=local_enrolment.VALID_S)
    for after_s in (-60.0, 60.0, EXPIRED_KEPT_S):
        front.office.now = never_used.expires + after_s
        front.office.invite(valid_s=600, from_desk=True)
        assert never_used.code_id in front.rows()
    late = participant(1).join(never_used)
    assert "had expired 60 minutes before" in front.office.judge(late).reason
    front.office.now += 1
    code = front.code()
    assert never_used.code_id not in front.rows()
    assert {code.code_id, by_hand.code_id} <= set(front.rows())


def test_a_code_that_is_forgotten_still_tells_that_the_clock_went_back(front: Front) -> None:
    """Codes that had expired would be good again: the time of the last decision never grows less."""
    folder, drawn = front.office.folder, front.office.rng.randbytes
    invitation = partial(invite, name="", valid_s=600, random_bytes=drawn, from_desk=True)
    front.office.now = NOW + 86_400
    last = front.code(keep=False)
    front.wait_for("taken_back")
    with locked(folder) as store:
        for now in (NOW + 86_400 - 300, NOW + 86_400 - 200):  # as far as a clock may go back
            invitation(store, now=now)
            assert store.last_written() == NOW + 86_400
        assert store.invitation(last.code_id) is not None
        with pytest.raises(AuthorityError, match="clock is behind"):
            check_clock(store, NOW)
        invitation(store, now=NOW + 86_401)
        assert store.invitation(last.code_id) is None
        assert store.last_written() == NOW + 86_401


def test_many_at_once_share_the_places(front: Front) -> None:
    front.open.close()
    folder = make_office(front.office.folder.path.with_name("larger"), places=7).folder
    desk, got = front.desk(folder=folder), list[str]()

    def ask() -> None:
        with contextlib.suppress(Failure):
            got.append(front.code().to_text())

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    desk.close()
    assert len(got) == len(set(got)) == 7


def test_a_silent_client_delays_no_other(front: Front) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(str(front.path))
        begun = time.monotonic()
        front.code()
        assert time.monotonic() - begun < local_enrolment.ASKS_S


def test_codes_come_one_after_the_other(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_enrolment, "BETWEEN_CODES_S", 0.15)
    begun = time.monotonic()
    front.code()
    front.code()
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("said", [b"", b"\n", b"[]\n", b'{"want": "gold"}\n', b"x" * 5000, b"[" * 900 + b"\n"], ids=len)
def test_nonsense_gets_no_code(front: Front, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(10)
        visitor.connect(str(front.path))
        with contextlib.suppress(BrokenPipeError):
            visitor.sendall(said)
            visitor.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert b"code" not in visitor.recv(4096)
    assert front.told == []
    front.code()


def test_the_authority_states_which_identity_has_a_place(front: Front) -> None:
    alice = participant(1)
    assert front.state(alice) == "unknown"
    front.office.attend(alice.join(front.code()))
    assert front.state(alice) == "member"
    front.office.revoke("laptop")
    assert front.state(alice) == "revoked"
    assert front.told == [one for one in front.told if "handed_out" in one]
    assert front.state(alice, study="others") is None
    assert front.state(alice, authority=participant(9).identity.public) is None
    assert [one for one in front.told if "isn't that of this participant's authority" in one]
    front.open.close()
    assert front.state(alice) is None


def test_a_socket_in_the_desks_place_is_not_believed(front: Front) -> None:
    """A process that can write to its folder can put one there, and repeat what was true once, or is true of others."""
    alice, bob = participant(1), participant(2)
    front.office.attend(alice.join(front.code()), bob.join(front.code()))
    path, answers = front.path.with_name("taken"), list[dict[str, Any]]()
    with locked(front.office.folder) as store:
        [revoked, member] = sorted(store.members(), key=lambda one: one.identity != bob.identity.public)
        revoke(store, revoked.host, NOW)
    with _talk(front.path) as (ask, hear):
        ask({"want": "state", "identity": bob.identity.public.hex(), "nonce": "00" * 32})
        truth = hear()
    assert truth["state"] == "revoked"
    answers += [{"state": "revoked"}, {"state": "revoked", "signature": "00" * 64}, truth, truth | {"state": "unknown"}]
    answers += [{"state": "revoked", "signature": signed} for signed in ("none", 7, truth["signature"][2:])]
    with _impostor(path, [json.dumps(answer).encode() + b"\n" for answer in answers]) as asked:
        for number in range(len(answers)):
            assert front.state((alice, bob)[number % 2], path) is None
    assert len({json.loads(one)["nonce"] for one in asked}) == len(answers)
    assert member.identity == alice.identity.public
    assert front.state(alice) == "member"


def test_the_desk_gives_no_more_places_than_it_may(front: Front) -> None:
    """One visitor can take all the desk has: it needn't have all there are."""
    front.open.close()
    office = make_office(front.office.folder.path.with_name("larger"), places=5)
    front.office, front.places = office, 2
    front.open = front.desk()
    by_hand = office.invite()
    office.attend(participant(1).join(front.code()))
    front.code()
    for _ in range(2):
        with pytest.raises(Failure, match="all 2 places of the socket are taken"):
            front.code()
    office.attend(participant(2).join(by_hand))
    assert len(office.roster()) == 2
    office.revoke(participant(1).identity.public.hex())
    front.code()  # the place is free
    with pytest.raises(Failure, match="all 2 places of the socket are taken"):
        front.code()


def test_a_flood_of_questions_leaves_the_store_to_the_authority(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.open._answers, "_per_s", 0.001)
    alice, opened, real = participant(1), [0], local_enrolment.locked

    def counted(*args: Any) -> Any:
        opened[0] += 1
        return real(*args)

    monkeypatch.setattr(local_enrolment, "locked", counted)
    monkeypatch.setattr(visits, "BUSY_S", 0.0)
    answers = [front.state(alice) for _ in range(local_enrolment.MOST_STANDINGS_AT_ONCE + 10)]
    assert answers == ["unknown"] * local_enrolment.MOST_STANDINGS_AT_ONCE + [None] * 10
    assert opened[0] == local_enrolment.MOST_STANDINGS_AT_ONCE
    # A request that gets no code waits as long as one that does.
    monkeypatch.setattr(local_enrolment, "BETWEEN_CODES_S", 0.1)
    front.code()
    front.code()
    begun = time.monotonic()
    for _ in range(3):
        with pytest.raises(Failure, match="places are taken"):
            front.code()
    assert time.monotonic() - begun >= 0.2


def test_a_desk_that_is_busy_is_asked_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood uses up the answers: a process that then took a revoked identity's home would be refused for good."""
    alice = participant(1)
    front.office.attend(alice.join(front.code()))
    front.office.revoke("laptop")
    left, real = [4], LocalEnrolmentSocket._may_ask

    def flooded(desk: LocalEnrolmentSocket) -> bool:
        left[0] -= 1
        return left[0] < 0 and real(desk)

    monkeypatch.setattr(LocalEnrolmentSocket, "_may_ask", flooded)
    assert front.state(alice) == "revoked"
    assert left == [-1]
    assert [str(one) for one in front.told[1:]] == [
        f"The authority's socket {front.path} is busy: asking again, for 20 s."
    ]
    left[0] = 10**6  # for longer than a client waits
    monkeypatch.setattr(visits, "BUSY_S", 0.6)
    begun = time.monotonic()
    assert front.state(alice) is None
    assert 0.6 <= time.monotonic() - begun < 20
    assert 3 <= 10**6 - left[0] <= 14
    assert "is still busy" in str(front.told[-1])


def test_a_desk_with_too_many_visitors_is_asked_again(front: Front) -> None:
    """It closes some unheard, and the system refuses others; one that isn't there is not waited for."""
    path, alice = front.path.with_name("full"), participant(1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)

    def crowd() -> None:
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(str(path))
        time.sleep(0.5)  # the client finds no room
        for _ in range(2):
            listener.accept()[0].close()  # the crowd's, then the client's, unread
        waiting.close()
        os.replace(front.path, path)
        listener.close()

    thread = threading.Thread(target=crowd)
    thread.start()
    time.sleep(0.1)
    assert front.state(alice, path) == "unknown"
    thread.join()
    begun = time.monotonic()
    assert front.state(alice, path.with_name("nobody")) is None
    assert time.monotonic() - begun < visits.BUSY_S / 2


def test_a_visitor_that_gets_no_thread_ends_nothing(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = threading.Thread.start, [0]

    def start(thread: threading.Thread) -> None:
        if thread.name == "local client" and refused[0] < 3:
            refused[0] += 1
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3):
        with pytest.raises(Failure, match="gave no answer"):
            front.code()
    front.code()
    assert refused == [3]


@contextlib.contextmanager
def _impostor(path: Path, answers: list[bytes]) -> Iterator[list[bytes]]:
    """A socket that gives each visitor one of these answers; yields what they ask."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_all() -> None:
            for answer in answers:
                visitor, _ = listener.accept()
                with visitor:
                    asked.append(visitor.recv(4096))
                    visitor.sendall(answer)

        thread = threading.Thread(target=answer_all)
        thread.start()
        yield asked
        thread.join()


@contextlib.contextmanager
def _talk(path: Path) -> Iterator[tuple[Callable[[dict[str, Any]], None], Callable[[], dict[str, Any]]]]:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(10)
        visitor.connect(str(path))
        yield (
            lambda question: visitor.sendall(json.dumps(question).encode() + b"\n"),
            lambda: json.loads(visitor.recv(4096)),
        )


def test_where_a_desk_can_stand(front: Front, tmp_path: Path) -> None:
    with pytest.raises(AuthorityError, match="another process listens there"):
        front.desk()
    front.code()  # the first one still does
    stale = front.path.with_name("stale")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    again = front.desk(stale)
    again.close()
    (front.path.with_name("file")).write_text("mine")
    for path, told in (
        (front.path.with_name("file"), "is no socket"),
        (front.path.with_name("none") / "desk", "No such file"),
        (front.path.with_name("x" * 120), "too long"),
    ):
        with pytest.raises(AuthorityError, match=told):
            front.desk(path)
    assert sorted(one.name for one in front.path.parent.iterdir()) == ["desk", "file"]
    unlimited = make_office(tmp_path / "unlimited").folder
    with pytest.raises(AuthorityError, match=r"set places in .*authority.toml"):
        front.desk(front.path.with_name("other"), unlimited)


def test_a_desk_is_waited_for(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "OPENS_POLL_S", 0.02)
    front.open.close()
    timer = threading.Timer(0.2, lambda: setattr(front, "open", front.desk()))
    timer.start()
    front.code()
    timer.join()
    assert "Waiting for the authority's socket" in str(front.told[0])
    assert front.path.name in str(front.told[0])
    front.open.close()
    monkeypatch.setattr(visits, "OPENS_S", 0.05)
    with pytest.raises(Failure, match="nothing listens at the authority's socket") as error:
        front.code()
    assert error.value.code == ExitCode.NETWORK


@pytest.mark.parametrize("said", [b"", b"hello\n", b"[]\n", b'{"code": 3}\n'], ids=len)
def test_something_else_than_a_desk(front: Front, said: bytes) -> None:
    path = front.path.with_name("other")
    with (
        _impostor(path, [said]),
        pytest.raises(Failure, match=r"gave no answer|not an authority's local"),
        join_code_at(path, print),
    ):
        pass


def test_the_authority_looks_sooner_when_a_code_is_out(front: Front) -> None:
    begun = time.monotonic()
    front.code()
    rest(threading.Event(), 60, front.open)
    assert time.monotonic() - begun < 10
    stopped = threading.Event()
    stopped.set()
    rest(stopped, 60, None)
    assert time.monotonic() - begun < 20


def test_codes_are_never_printed(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    from sordino.cli.authority_run import _tell_desk

    code = front.code()
    for as_json in (False, True):
        for news in (front.told[0], {"taken_back": code.code_id.hex()}, {"refused": "all 2 places are taken"}):
            _tell_desk(as_json, news)
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[3])["desk"] == {"handed_out": code.code_id.hex()}
    assert f"gave the code {code.code_id.hex()[:8]}" in out
    assert code.to_text()[6:17] not in out
    assert code.secret.hex() not in out
