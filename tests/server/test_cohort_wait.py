"""What is said of an attempt that too few were there for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import server.cohort_wait
import server.sessions
from secagg.roster import Roster, RosterEntry
from server.cohort_wait import CohortWait
from server.events import RESTING
from server.sessions import CLOSED, Sessions

ROSTER = Roster("ward", 1, tuple(RosterEntry(bytes([number]) * 32, f"host-{number}") for number in range(1, 8)))


def reason(sessions: Sessions) -> str:
    """The reason in the event of an aborted attempt."""
    events: list[Any] = []
    stub: Any = SimpleNamespace(
        sessions=sessions,
        emit=events.append,
        loop_lag=SimpleNamespace(figures=lambda: {}),
        membership=SimpleNamespace(readmit=lambda: False),
    )
    CohortWait._too_few(stub, 1, 1, len(sessions.ready()), 7)
    return str(events[0].reason)


def waiting(connect_s: float = 60.0, resume_s: float = 0.0, enrolment_listen: str = "", **parts: Any) -> CohortWait:
    """For a quorum of five, without a study around it."""
    stubs: dict[str, Any] = {
        "configuration": SimpleNamespace(
            deadlines=SimpleNamespace(connect_s=connect_s, resume_s=resume_s),
            coordinator=SimpleNamespace(enrolment_listen=enrolment_listen),
        ),
        "plan": SimpleNamespace(quorum=5, drawn=False),
        "loop_lag": SimpleNamespace(restart=lambda: None),
        "emit": lambda _: None,
        "configure": None,
        "use_offered": None,
        "charges": SimpleNamespace(spent=frozenset),
    }
    return CohortWait(**(stubs | parts))


def members_of(people: int, **more: Any) -> Any:
    """A membership of so many, none of whom is missing."""
    return SimpleNamespace(
        **{"members": lambda: frozenset(range(people)), "missing": lambda: 0, "positions": frozenset} | more
    )


def put_clock(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    for module in (server.cohort_wait, server.sessions):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))


def inviting(people: int) -> Callable[..., Awaitable[Any]]:
    async def configure(round_: int, attempt: int) -> Any:
        return SimpleNamespace(invited=frozenset(range(people)))

    return configure


@pytest.fixture
def sessions() -> Sessions:
    return Sessions("ward", ROSTER, lambda *_: None)


def test_absence_is_absence(sessions: Sessions) -> None:
    session = sessions.open(ROSTER.entries[0].identity)
    sessions.set_ready(session)
    sessions.lost(session, "connection closed")
    assert reason(sessions) == "0 participants are connected, 7 needed"


def test_who_came_and_left_at_once_is_counted(sessions: Sessions) -> None:
    """A participant that refuses the terms gives its reason in its own log; the message must point there."""
    for _ in range(3):  # one that comes back is one
        for entry in ROSTER.entries:
            sessions.lost(sessions.open(entry.identity), "connection closed")
    said = "0 participants are connected, 7 needed; "
    assert reason(sessions) == said + "7 came and left before they were ready: look at what they print"
    for entry in ROSTER.entries[2:]:
        sessions.open(entry.identity)  # back, and perhaps ready in a moment
    sessions.open(ROSTER.entries[3].identity)  # in place of a connection that was lost
    assert reason(sessions) == said + "2 came and left before they were ready: look at what they print"
    sessions.adopt(Roster("ward", 2, ROSTER.entries[1:]))
    assert reason(sessions) == said + "1 came and left before it was ready: look at what it prints"


def test_those_who_come_and_go_in_turn_delay_a_round_once(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two has always just been cut off; the others wait for them for ``resume_s``, not for ``connect_s``."""
    for entry in ROSTER.entries[:5]:
        sessions.set_ready(sessions.open(entry.identity))
    resume_s, clock, turn = 2.0, [1000.0], [0]
    put_clock(monkeypatch, clock)

    def flap() -> None:
        turn[0] += 1
        session = sessions.open(ROSTER.entries[5 + turn[0] % 2].identity)
        sessions.set_ready(session)
        sessions.lost(session, "connection closed")

    async def changed(_: float) -> None:
        clock[0] += 0.9
        flap()

    wait = waiting(membership=members_of(8), sessions=sessions, resume_s=resume_s, configure=inviting(8), _first=False)
    monkeypatch.setattr(wait, "_changed", changed)
    flap()
    _, ready = asyncio.run(wait.gather(2, 1)) or (None, frozenset())
    assert len(ready) == 5
    assert resume_s <= clock[0] - 1000.0 < resume_s + 1


def test_a_later_roster_draws_who_was_sent_away(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are waited for until they are due, since ``connect_s`` may be much less; and not any longer."""
    clock = [1000.0]
    put_clock(monkeypatch, clock)
    for entry in ROSTER.entries:
        session = sessions.open(entry.identity)
        sessions.set_ready(session)
        session.rests_until = clock[0] + 900.0
        sessions.lost(session, RESTING)
    assert len(sessions.resting()) == 7

    async def changed(_: float) -> None:
        clock[0] += 10.0
        if clock[0] == 1800.0:
            for entry in ROSTER.entries[:5]:
                sessions.set_ready(sessions.open(entry.identity))

    wait = waiting(
        plan=SimpleNamespace(quorum=5, drawn=True),
        membership=members_of(7),
        sessions=sessions,
        resume_s=2.0,
        configure=inviting(7),
        _first=False,
    )
    monkeypatch.setattr(wait, "_changed", changed)
    _, ready = asyncio.run(wait.gather(2, 1)) or (None, frozenset())
    assert (len(ready), clock[0]) == (5, 1810.0)
    clock[0] = 2000.0
    assert sessions.resting() == frozenset()


def test_who_is_back_from_a_rest_is_waited_for_until_it_is_ready(sessions: Sessions) -> None:
    """A new session isn't ready at once: a round that began in that moment would go on without its participant."""
    for entry in ROSTER.entries[:2]:
        session = sessions.open(entry.identity)
        sessions.set_ready(session)
        session.rests_until = time.monotonic() + 900.0
        sessions.lost(session, RESTING)
    back, gone = (sessions.open(entry.identity) for entry in ROSTER.entries[:2])
    assert sessions.resting() == {0, 1}
    sessions.set_ready(back)
    sessions.lost(gone, CLOSED)
    assert sessions.resting() == frozenset()


def test_a_wait_for_enrolment_that_lasts_days_says_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line lies in the journal for good: only what is new is said at once."""
    clock, said = [1000.0], list[tuple[float, int]]()
    put_clock(monkeypatch, clock)

    async def changed(longest_s: float) -> None:
        clock[0] += longest_s

    async def use_offered() -> bool:
        return False

    wait = waiting(
        membership=SimpleNamespace(
            members=lambda: frozenset(range(5 if clock[0] < 4600 else 6)),
            missing=lambda: 3 if clock[0] < 4600 else 2 if clock[0] < 4700 else 0,
            roster=SimpleNamespace(version=1),
        ),
        sessions=SimpleNamespace(changed=asyncio.Event()),
        enrolment_listen="127.0.0.1:0",
        emit=lambda event: said.append((clock[0], event.received)),
        use_offered=use_offered,
    )
    monkeypatch.setattr(wait, "_changed", changed)
    asyncio.run(wait.enrolment(1, 1))
    assert [received for _, received in said] == [5] * 60 + [6] * 2
    assert said[60][0] == 4600.0


def test_a_wait_for_participants_says_what_has_changed(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [1000.0], list[tuple[float, int]]()
    put_clock(monkeypatch, clock)

    async def changed(_: float) -> None:
        clock[0] += 0.25
        if clock[0] in (1100.0, 1100.25):
            sessions.set_ready(sessions.open(ROSTER.entries[clock[0] == 1100.0].identity))

    wait = waiting(
        plan=SimpleNamespace(quorum=5, drawn=True),
        membership=members_of(7, readmit=lambda: False),
        sessions=sessions,
        loop_lag=SimpleNamespace(restart=lambda: None, figures=dict),
        connect_s=200.0,
        configure=inviting(7),
        emit=lambda event: said.append((clock[0], event.received)),
    )
    monkeypatch.setattr(wait, "_changed", changed)
    assert asyncio.run(wait.gather(1, 1)) is None
    *waits, aborted = said
    assert waits == [(1000.0, 0), (1060.0, 0), (1100.0, 1), (1100.5, 2), (1160.5, 2)]
    assert aborted == (1200.0, 2)


def test_a_study_that_waits_for_its_first_participants_has_a_budget() -> None:
    """With an empty roster nobody can be invited, and nobody's budget is spent."""
    charges = SimpleNamespace(spent=frozenset, exhausted=False)
    empty = SimpleNamespace(members=frozenset, positions=frozenset)
    drawn = SimpleNamespace(quorum=5, drawn=True)
    assert not waiting(plan=drawn, charges=charges, membership=empty, sessions=None).exhausted
