"""The report: one file, no network, well-formed, true to the events, and there in every state of a study."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from sordino.progress import StudyView
from sordino.report import Extras, render

Events = list[dict[str, Any]]


class Page(HTMLParser):
    """Collects text, addresses and ids, and checks that elements nest."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.addresses.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def extras() -> Extras:
    return Extras(
        without_noise=tuple(0.5 + 0.016 * r for r in range(15)),
        measured=(("Coordinator", "142 MB", "resident"),),
        one_machine=True,
    )


def test_whole_study(events: Events, extras: Extras) -> None:
    view = StudyView().apply_all(events)
    source = render(view, extras)
    page = Page(source)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith("#") for address in page.addresses)
    for forbidden in ("<script", "@import", "<link", "url(http"):
        assert forbidden not in source
    text = " ".join(page.text.split())
    for word in (
        f"{view.accuracy:.3f}",
        f"{view.epsilon_coordinator:.2f}",
        "at delta 1e-05",
        "Up to A = 5 participants",
        "h_min = 65",
        "at least 70 updates",
        "zero-out",
        "honest-but-curious",
        "20 participants (host-03, host-07)",
        "attempt 1 aborted",
        "142 MB",
    ):
        assert word in text, word


def test_figures_are_well_formed_and_in_the_pages_colours(events: Events, extras: Extras) -> None:
    source = render(StudyView().apply_all(events), extras)
    figures = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(figures) == 4
    for figure in figures:
        namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        ElementTree.fromstring(figure.replace("<svg ", f"<svg {namespaces} ", 1))
        assert "aria-label" in figure
        assert not re.findall(r"#0[0-9a]0[0-9a]0[0-9a]\b", figure)  # a placeholder that found no variable
        assert "var(--" in figure
        assert "font-family" not in figure
    style = source[source.index("<style>") : source.index("</style>")]
    for variable in set(re.findall(r"var\((--[a-z0-9-]+)\)", source)):
        assert f"{variable}:" in style


def test_same_events_same_figures(events: Events, extras: Extras) -> None:
    view = StudyView().apply_all(events)
    first, second = (re.findall(r"<svg.*?</svg>", render(view, extras), re.S) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("count", [1, 60, 300])
def test_unfinished_studies(events: Events, count: int) -> None:
    page = Page(render(StudyView().apply_all(events[:count]), Extras()))
    assert page.open == []
    assert "has not finished" in page.text


def test_other_endings(stream: Callable[..., Events]) -> None:
    events = stream(rounds=3)
    events[-1] |= {"reason": "budget reached"}
    assert "The privacy budget was reached after 3 of 3" in render(StudyView().apply_all(events), Extras())
    events[-1] |= {"reason": "stopped"}
    assert "ended after 3 of 3 rounds: stopped" in render(StudyView().apply_all(events), Extras())


def test_names_are_escaped(events: Events) -> None:
    events[0] |= {"study": "<script>x</script>", "task": "a&b"}
    source = render(StudyView().apply_all(events), Extras())
    assert "<script" not in source
    assert "a&amp;b" in source


def test_many_hosts_and_rounds(stream: Callable[..., Events]) -> None:
    events = stream(rounds=40)
    for event in events:
        if "host" in event:
            event["host"] = f"host-{event['participant'] % 50:02d}"
    assert Page(render(StudyView().apply_all(events), Extras())).open == []


def test_a_plan_of_another_version_is_left_out(events: Events) -> None:
    events[0] |= {"plan": {"new": 1}}
    text = Page(render(StudyView().apply_all(events), Extras())).text
    assert "The plan" not in text
    assert "What is promised" in text
