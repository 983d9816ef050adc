"""The report: one file, no network, well-formed, true to the events, and there in every state of a study."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mechanisms.clip_rule import ClipRule
from mechanisms.evaluation import Evaluation
from server.events import (
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    RoundCompleted,
    StudyFinished,
    StudyStarted,
)
from server.study_view import StudyView
from sordino.reporting import figures
from sordino.reporting.figures import _share_range, accuracy_figure, clip_figure, epsilon_figure
from sordino.reporting.report import Extras, render
from sordino.reporting.study_text import finding_lines
from tests.support.commands import Run, refusal, says
from tests.support.event_stream import make_events
from wire.study import plan_study

Events = list[Event]


class Page(HTMLParser):
    """Collects text and addresses, and checks that elements nest and ids are different."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

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


def started_as(events: Events, **about: Any) -> StudyView:
    """The study of these events, which began otherwise."""
    assert isinstance(events[0], StudyStarted)
    return StudyView().apply_all([replace(events[0], **about), *events[1:]])


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
    assert all(address.startswith("#") for address in page.addresses)
    assert [part for part in ("<script", "@import", "<link", "url(http") if part in source] == []
    says(
        " ".join(page.text.split()),
        f"{view.accuracy:.3f}",
        f"{view.epsilon_coordinator:.2f}",
        "at delta 1e-05",
        "Up to A = 5 of 100 participants",
        "of 8, at delta 1e-05; zero-out, if at most 5 of 100 collude",
        "ddgauss: distributed discrete Gaussian",
        "[KLS21] Theorem 1",
        "L2 norm 1 of the whole update, fixed",
        "h_min = 65",
        "at least 70 updates",
        "zero-out",
        "honest-but-curious",
        "20 participants (host-03, host-07)",
        "attempt 1 aborted",
        "142 MB",
        "charged in full with the first round",  # why epsilon jumps, below its chart
    )


def test_figures_are_well_formed_and_in_the_pages_colours(events: Events, extras: Extras) -> None:
    view = StudyView().apply_all(events)
    source = render(view, extras)
    figures = re.findall(r"<svg.*?</svg>", source, re.S)
    assert len(figures) == 4
    assert figures == re.findall(r"<svg.*?</svg>", render(view, extras), re.S)  # the same events, the same figures
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


@pytest.mark.parametrize("count", [1, 60, 300])
def test_unfinished_studies(events: Events, count: int) -> None:
    assert "has not finished" in Page(render(StudyView().apply_all(events[:count]), Extras())).text


def test_other_endings() -> None:
    *events, _ = make_events(rounds=3)
    for reason, told in (
        ("budget reached", "The privacy budget was reached after 3 of 3"),
        ("stopped", "ended after 3 of 3 rounds: stopped"),
    ):
        assert told in render(StudyView().apply_all([*events, StudyFinished(reason=reason)]), Extras())


def test_names_are_escaped(events: Events) -> None:
    source = render(started_as(events, study="<script>x</script>", task="a&b"), Extras())
    assert "<script" not in source
    assert "a&amp;b" in source


def test_many_hosts_and_rounds() -> None:
    view = StudyView()
    for event in make_events(rounds=40):
        if isinstance(event, ParticipantConnected | ParticipantDropped):
            event = replace(event, host=f"host-{event.participant % 50:02d}")
        view.apply(event)
    Page(render(view, Extras()))


def test_a_plan_of_another_version_is_left_out(events: Events) -> None:
    text = Page(render(started_as(events, plan={"new": 1}), Extras())).text
    assert "The plan" not in text
    assert "What is promised" in text


ROUND = RoundCompleted(round=1, attempt=1, u3=7, epsilon_coordinator=3.0, epsilon_released=3.0)


@cache
def phases_and_dropouts() -> dict[str, str]:
    """The figures of a study with one round in which nobody left, drawn once: most of a page's time is theirs."""
    view = StudyView().apply_all([StudyStarted(study="s", participants=10, rounds=3), ROUND])
    return {name: getattr(figures, name)(view) for name in ("phase_figure", "dropout_figure")}


def page_of(mechanism: str, *further: Event, **planned: Any) -> str:
    """A study with one round, or with others, as text; the figures that no plan changes are `phases_and_dropouts`."""
    plan = plan_study(
        **{"mechanism": mechanism, "clients": 10, "dim": 20, "bits": 20, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5}
        | {"rounds": 3, "max_dropout": 0.2, "adversarial": 0.2}
        | planned
    )
    start = StudyStarted(study="s", participants=10, rounds=3, epsilon_target=8.0, delta=1e-5, plan=plan.to_json())
    with pytest.MonkeyPatch.context() as patch:
        for name, drawn_once in phases_and_dropouts().items():
            patch.setattr(figures, name, lambda _, svg=drawn_once: svg)
        return " ".join(Page(render(StudyView().apply_all([start, *(further or (ROUND,))]), Extras())).text.split())


def test_a_trusted_coordinator_is_named_wherever_epsilon_is() -> None:
    """The naive page says of every mechanism that each sum holds noise that no single party knows."""
    text = page_of("gaussian")
    says(
        text,
        "of 8, at delta 1e-05; zero-out, if the coordinator is trusted",
        "it saw one sum over 7 updates without noise, no single update, and added the noise itself",
        "What all others can learn",
        "Against all readers except the coordinator, which is trusted.",
        "epsilon doesn't bound what it learns itself",
        "none of the noise is theirs",
    )
    promised = text[text.index("What is promised") :]
    for false in ("one noisy sum", "no single party knows", "holds the noise of", "its noise present"):
        assert false not in text[: text.index("The plan")] + promised, false


def test_sampling_is_stated_where_two_epsilons_are_the_same() -> None:
    """The naive page takes equal figures as a sign that all take part in each round."""
    drawn = {"sampling": "lottery", "population": 12}
    nobody = "No sampling, so coordinator and released are equal."
    no_smaller = "Against readers of the models only, this gives no smaller bound here: coordinator and released are"
    assert nobody in page_of("ddgauss")
    same, smaller = page_of("ddgauss", **drawn), page_of("ddgauss", replace(ROUND, epsilon_released=1.0), **drawn)
    assert nobody not in same + smaller
    assert f"Participants are drawn for each round. {no_smaller} equal." in same
    assert no_smaller not in smaller
    assert "Released: a reader of the models only." in smaller
    assert no_smaller not in page_of("ddgauss", AttemptStarted(round=1, attempt=1, cohort=10), **drawn)


def test_a_curious_coordinator_is_named_wherever_epsilon_is() -> None:
    """The naive page says that honest participants stop before a lie opens anything."""
    text = page_of("ddgauss", adversary="curious")
    says(
        text,
        "of 8, at delta 1e-05; zero-out, if at most 2 of 10 collude and the coordinator doesn't lie",
        "It is trusted to send all participants the same sets: the plan is for a curious coordinator",
        "If it lies, it can open sums over fewer participants.",
        "the coordinator, to follow the protocol: it sends everybody the same; each of h_min honest",
        "it follows the protocol and reads all it receives; the survivor sets are not signed",
    )
    assert "honest participants stop" not in text
    assert "nobody alone" not in text
    against_lies = page_of("ddgauss")
    says(against_lies, "honest participants stop", "nobody alone: each of h_min honest")
    assert "doesn't lie" not in against_lies


def test_local_noise_is_replace_one_for_any_colluders() -> None:
    text = page_of("local-gaussian")
    says(
        text,
        "of 8, at delta 1e-05; replace-one, even if all others collude",
        "What any reader can learn",
        "Adjacency is replace-one",
        "a participant counts on its own noise only",
    )
    for false in ("zero-out", "Their noise is not counted", "twice the sensitivity. How"):
        assert false not in text, false


def test_what_participants_report() -> None:
    """Beside the coordinator's figure, or in its place; with its error, and with the round whose model it is of."""
    what = Evaluation(held_out=0.25, weight=0.5, most_examples=1, largest_loss=4.0)
    said = {"accuracy": 0.61, "accuracy_stderr": 0.03, "loss": 1.2, "loss_stderr": 0.1, "weight": 0.9}
    rounds = [replace(ROUND, round=number, accuracy=None, loss=None, reported=said) for number in (1, 2)]
    text = page_of("skellam", *rounds, evaluation=what)
    says(
        text,
        "0.610 ± 0.03at participants, after round 1",
        "each keeps 25 % of its examples from training",
        "all weigh the same",
        "held-out data of participants",
    )
    beside = page_of("skellam", replace(ROUND, accuracy=0.7, reported=said), evaluation=what)
    says(beside, "0.700", "0.610 ± 0.03 at participants, after round 0")
    lines = finding_lines(StudyView(rounds=rounds))
    assert lines == ["at participants     accuracy 0.610 ± 0.03, loss 1.200 ± 0.1, after round 1"]


def test_clips_by_layer_and_wrapping() -> None:
    rule = ClipRule(layers=(15, 5), clips=(0.7, 0.7), update="geometric", quantile=0.5, rate=0.3, bit_weight=0.3)
    rounds = [
        replace(ROUND, round=number, clips=(0.7, 0.7 + number / 10), below_clip=(0.4, 0.6), wrapped_share=share)
        for number, share in ((1, 0.0), (2, 0.013), (3, 0.001))
    ]
    text = page_of("skellam", *rounds, clip=None, clipping=rule)
    says(
        text,
        "skellam: distributed Skellam",
        "of each of 2 layers in round 1, then following the 0.5 quantile of the norms in geometric steps",
        "at most 1.3 % of a sum's values (round 2)",
        "1 layer 2 (5 values)",
        "0.40 layer 1",
        "0.5 wanted",
    )
    assert "practically none" in page_of("skellam", replace(ROUND, wrapped_share=0.0))
    assert "Within the clip" not in page_of("skellam", replace(ROUND, clips=(1.0,)))
    many = ClipRule(layers=(1,) * 8, clips=(0.3,) * 8, update="linear", quantile=0.5, rate=0.3, bit_weight=0.3)
    said = replace(ROUND, clips=tuple(0.1 * layer for layer in range(1, 9)), below_clip=(0.5,) * 8)
    text = page_of("skellam", said, clip=None, clipping=many, dim=8)
    assert "0.8 layer 8" in text
    assert "layer 4" not in text


def test_a_name_of_a_layer_is_no_format() -> None:
    text = clip_figure([(1, (0.7, 0.8), (0.4, 0.6))], ["plain", "{odd}"])
    says(text, "0.7 plain", "0.8 {odd}")


@pytest.mark.parametrize(("values", "widest"), [((0.34, 0.38), 0.2), ((0.2, 0.9), 0.85), ((), 1.0), ((0.99,), 0.2)])
def test_the_axis_of_accuracy_ends_near_the_data(values: tuple[float, ...], widest: float) -> None:
    low, high = _share_range(values)
    assert 0 <= low <= min(values, default=0)
    assert max(values, default=1) <= high <= 1
    assert high - low <= widest + 1e-9


def test_accuracy_and_epsilon_have_one_axis_of_rounds(events: Events) -> None:
    """Of a study that was interrupted, too: two figures side by side are read as one."""
    view = StudyView().apply_all([event for event in events[:-1] if getattr(event, "round", 0) <= 4])
    assert (len(view.rounds), view.started.rounds) == (4, 15)
    for figure in (accuracy_figure(view, ()), epsilon_figure(view)):
        assert ">14<" in figure


def test_a_file_that_is_no_study_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "visits0.csv").write_text("age,label\n1,0\n")
    told = refusal(run, "report", tmp_path / "visits0.csv")
    assert "is no study: name the study's folder, or its study.toml." in told
