"""The panel fits its screen, keeps its height, and turns into plain lines where there is no terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest

from server.events import (
    RESTING,
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantLost,
    StudyStarted,
)
from server.study_view import StudyView
from sordino.reporting.panel import Display, StudyPanel
from sordino.reporting.study_text import REFUSED_BY_POLICY, size_text
from tests.support.commands import says
from tests.support.drawn_panel import drawn
from tests.support.event_stream import WITHOUT_NOISE, make_events

Events = list[Event]


@pytest.mark.parametrize(("width", "height", "first"), [(100, 30, 0), (80, 24, 111)])
def test_it_fits_at_one_height(events: Events, width: int, height: int, first: int) -> None:
    """With all hosts; on the small screen from event ``first`` on."""
    view, heights = StudyView(), set()
    for index, event in enumerate(events):
        view.apply(event)
        if index < 5 or index % 40 == 0 or index == len(events) - 1:
            lines = drawn(view, width, height, without_noise=WITHOUT_NOISE)
            assert max(map(len, lines)) <= width
            if index >= first and len(view.hosts_in_order()) == 10:
                heights.add(len(lines))
    assert len(heights) == 1
    assert heights.pop() <= height


def test_what_it_shows() -> None:
    view = StudyView().apply_all(make_events(until=5))
    text = "\n".join(drawn(view, without_noise=WITHOUT_NOISE))
    says(
        text,
        "Round 5 of 15",
        "Round 5, MaskedInputCollection: 41 of 80 answered, 70 needed, 60 s left",
        "80 connected   20 lost",
        "epsilon_coordinator",
        "epsilon_released",
        "of 8.00",
        "without noise",
        "20 participants (host-03, host-07)",
        "connection closed",
        "31.2 kB",
        "ddgauss, zero-out, if at most 5 of 100 collude · 127.0.0.1:8443",
    )
    assert text.count("□") == 20  # the lost ones
    assert "if at most 5 of 100 collude" in "\n".join(drawn(view, 80, 24))
    assert "Waiting for the coordinator to start" in "\n".join(drawn(StudyView()))


def test_small_screens(events: Events) -> None:
    says("\n".join(drawn(StudyView().apply_all(events), 80, 24)), "Dropouts", "round 13  Shares        ")
    text = "\n".join(drawn(enrolled(), 80, 24))
    assert "round 1  Keys  participant 4  refused by its policy or budget" in text
    assert max(map(len, drawn(StudyView().apply_all(events), 60))) <= 60


def crowd(participants: int, hosts: int) -> StudyView:
    """All of them are connected, spread over the hosts."""
    view = StudyView().apply_all([StudyStarted(participants=participants, rounds=3, epsilon_target=1.0)])
    for number in range(participants):
        view.apply(ParticipantConnected(at=1.0, participant=number, host=f"host-{number % hosts:03d}"))
    return view


@pytest.mark.parametrize("hosts", [1, 60])
def test_participants_that_rest(hosts: int) -> None:
    """In one row for each host, and in rows of all."""
    view = crowd(60, hosts)
    view.apply(ParticipantLost(at=2.0, participant=7, reason=RESTING))
    text = "\n".join(drawn(view))
    says(text, "59 connected", "1 resting")
    assert text.count("▪") == 1


@pytest.mark.parametrize("hosts", [1, 40, 500])
def test_few_and_many_hosts(hosts: int) -> None:
    lines = drawn(crowd(1000, hosts))
    assert len(lines) <= 30
    assert "1000 connected" in "\n".join(lines)


def enrolled(participants: int = 13) -> StudyView:
    """A study of people who enrolled: each host is named after its identity, and one of them refuses."""
    hosts = {number: f"participant-{number * 2654435761 % 2**32:08x}" for number in range(participants)}
    about: dict[str, Any] = {"study": "clinic", "task": "softmax-regression", "participants": participants, "rounds": 8}
    attempt: dict[str, Any] = {"at": 3.0, "round": 1, "attempt": 1}
    refused: dict[str, Any] = {"participant": 4, "host": hosts[4], "reason": REFUSED_BY_POLICY}
    return StudyView().apply_all(
        [
            StudyStarted(**about, epsilon_target=8.0, delta=1e-5),
            *(ParticipantConnected(at=1.0, participant=one, host=hosts[one]) for one in range(participants - 1)),
            ParticipantLost(at=2.0, participant=2, host=hosts[2], reason="closed"),
            AttemptStarted(**attempt, cohort=participants - 2),
            ParticipantDropped(**attempt, phase="AdvertiseKeys", **refused),
        ]
    )


def test_enrolled_hosts_are_distinct_on_80_columns() -> None:
    says("\n".join(drawn(enrolled(9), 80, 30)), *(f"{number * 2654435761 % 2**32:08x}  " for number in range(8)))
    long = StudyView().apply_all([ParticipantConnected(participant=1, host="a-hospital-north")])
    assert "…pital-north  ■" in "\n".join(drawn(long, 80, 30))


@pytest.mark.parametrize("size", [(80, 24), (80, 30), (100, 30)])
def test_counts_stay_on_one_line(size: tuple[int, int]) -> None:
    lines = drawn(enrolled(), *size)
    assert any("Participants   1 not seen yet" in line for line in lines)
    assert any("10 connected   1 dropped   1 lost" in line for line in lines)
    assert max(map(len, lines)) <= size[0]


def test_plain_lines_without_a_terminal(events: Events) -> None:
    out = io.StringIO()
    with Display(StudyPanel(), stream=out) as display:
        for event in events:
            display.show(event)
        display.remark("killed host-03")
    text = out.getvalue()
    assert "\x1b" not in text
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  round 15: sum of 100", text, re.MULTILINE)
    assert text.rstrip().endswith("killed host-03")


@pytest.mark.parametrize("width", [80, 100, 130])
def test_the_condition_of_epsilon_is_never_cut_off(events: Events, width: int) -> None:
    assert isinstance(events[0], StudyStarted)
    started = replace(events[0], plan={**events[0].plan, "adversary": "curious"})
    lines = drawn(StudyView().apply_all([started, *events[1:]]), width, 24)
    assert max(map(len, lines)) <= width
    assert "zero-out, if at most 5 of 100 collude and the coordinator doesn't lie " in lines[-1]
    assert ("127.0.0.1" in lines[-1]) == (width > 100)
    assert "…" not in lines[-1]


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (812, 3_100, 1_204_000)] == ["812 B", "3.1 kB", "1.20 MB"]
