"""A statistic on every screen and page, and no accuracy where there is no model."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client.joining.checks import check_task
from client.joining.description import _task as described
from client.joining.options import JoinOptions
from learning.make_task import make_task
from learning.tasks.statistic import Estimate
from runtime.failure import Failure
from server.events import Event, RoundCompleted, StudyStarted, from_json, to_json
from server.study_view import StudyView
from sordino.reporting import figures
from sordino.reporting.report import Extras, render
from sordino.reporting.statistic_text import about, figure_of, headline, in_words, table_rows, title
from sordino.reporting.study_text import PlainLines, closing_lines, finding_lines
from tests.support.commands import says
from tests.support.drawn_panel import drawn
from tests.support.event_stream import make_events

Events = list[Event]
NOTE = {"participants": 80, "rounds": 3, "note": "Each counts once."}
MEAN = {
    "statistic": "mean",
    "values": [
        {"name": "column 0", "value": 48.1234, "standard_error": 0.664, "answered": 0.9, "answered_error": 0.02}
    ],
} | NOTE
MEANS = {
    "statistic": "mean",
    "values": [{"name": f"column {place}", "value": 10.0 * place, "standard_error": 2.0} for place in range(5)],
} | NOTE
HISTOGRAM = {
    "statistic": "histogram",
    "values": [
        {"name": f"{place} to {place + 1}", "value": 3.0 * place - 0.5, "standard_error": 1.3, "share": place / 66}
        for place in range(12)
    ],
    "edges": [float(place) for place in range(13)],
} | NOTE
CLASSES = HISTOGRAM | {
    "values": [value | {"name": f"class {place}"} for place, value in enumerate(HISTOGRAM["values"])],  # type: ignore[arg-type]
    "edges": None,
}
QUANTILES = {
    "statistic": "quantile",
    "values": [
        {"name": "median", "share": 0.5, "value": 50.31, "low": 49.2, "high": 51.6, "share_error": 0.02},
        {"name": "quantile 0.9", "share": 0.9, "value": None, "low": None, "high": None, "share_error": None}
        | {"why": "noise"},
    ],
    "edges": [0.0, 50.0, 60.0, 100.0],
    "cumulative": [0.4, 0.9, 1.0],
    "answered": 1.0,
} | NOTE
VOTES = {"statistic": "votes", "queries": 60, "labelled": 55, "winning_share": 0.7}
OWN = {"statistic": "variance", "values": [{"name": "all", "value": 3}, {"no": "name"}], "odd": None}
STATISTICS = [MEAN, MEANS, HISTOGRAM, CLASSES, QUANTILES, OWN]


def with_released(events: Events, released: dict[str, Any], task: str = "mean") -> StudyView:
    """The study of the fixture as one that seeks a statistic."""
    view = StudyView()
    for event in events:
        if isinstance(event, StudyStarted):
            event = replace(event, task=task)
        if isinstance(event, RoundCompleted):
            event = replace(event, accuracy=None, loss=None, released=released)
        view.apply(event)
    return view


@pytest.mark.parametrize(
    ("released", "line", "name"),
    [
        (MEAN, "mean 48.12 ± 0.66", "Mean"),
        (MEANS, "column 0 0.0 ± 2.0, column 1 10.0 ± 2.0, column 2 20.0 ± 2.0 and 2 more", "Mean"),
        (HISTOGRAM, "most in 11 to 12: 32.5 ± 1.3", "Histogram"),
        (QUANTILES, "median 50.3 (49.2 to 51.6), quantile 0.9 lost in the noise", "Quantiles"),
        (QUANTILES | {"values": QUANTILES["values"][:1]}, "median 50.3 (49.2 to 51.6)", "Median"),  # type: ignore[index]
        (VOTES, "55 of 60 queries labelled by votes", ""),
        (OWN, "variance 3", "Variance"),
        ({}, "", ""),
        ({"statistic": "mine", "found": [1, 2]}, "", ""),
    ],
)
def test_headlines(released: dict[str, Any], line: str, name: str) -> None:
    assert headline(released) == line
    assert title(released) == name


def test_two_digits_of_the_error() -> None:
    for error, told in (
        (0.0123, ("1.234", "± 0.012")),
        (1.5, ("1.2", "± 1.5")),
        (37.0, ("1", "± 37")),
        (0.0, ("1.234", "± 0.000")),
    ):
        assert figure_of({"value": 1.2344, "standard_error": error}) == told
    assert in_words({"value": -0.0001, "standard_error": 0.2}) == "0.00 ± 0.20"
    assert in_words({"value": math.nan}) == "not known"
    assert in_words({"value": None, "why": "few answered"}) == "too few answered"
    assert table_rows({"values": "text"}) == []


def test_what_the_figures_are_over() -> None:
    had = "About 90 % of the participants had a value, ± 2 %"
    says(" ".join(about(MEAN)), "From 3 rounds together; 80 participants", had, "± is one standard error")
    assert "at 95 %" in " ".join(about(QUANTILES))
    noisy = MEAN | {"values": [{"name": "a", "value": 1.0, "answered": 0.9, "answered_error": 0.06}]}
    assert "had a value" not in " ".join(about(noisy))  # all may have had one


@cache
def other_figures() -> dict[str, str]:
    """Those that no statistic changes, drawn once: they would take most of the time."""
    view = with_released(make_events(), MEAN)
    return {name: getattr(figures, name)(view) for name in ("epsilon_figure", "dropout_figure", "phase_figure")}


@pytest.fixture
def its_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, drawn_once in other_figures().items():
        monkeypatch.setattr(figures, name, lambda _, svg=drawn_once: svg)


@pytest.mark.usefixtures("its_own_figure")
@pytest.mark.parametrize("released", STATISTICS)
def test_report(events: Events, released: dict[str, Any]) -> None:
    view = with_released(events, released)
    source = render(view, Extras())
    for part in ("Accuracy", ">Loss<", "None", "nan"):
        assert part not in source.replace("nanosecond", "")
    says(source, title(released), *(part for row in table_rows(released) for part in row[:2]))
    ids = [part.partition('"')[0] for part in source.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("its_own_figure")
def test_the_median_stands_in_its_tile_and_headings_stand_once(events: Events) -> None:
    quantiles = render(with_released(events, QUANTILES, "quantile"), Extras())
    assert "<dt>Median</dt><dd><b>50.3</b><span>49.2 to 51.6; all 2 quantiles are below</span>" in quantiles
    assert "<th>95 % interval</th>" in quantiles
    means = render(with_released(events, MEANS), Extras())
    assert "<th>Standard error</th>" in means
    assert [page.count(f"<h2>{name}</h2>") for page, name in ((quantiles, "Quantiles"), (means, "Mean"))] == [1, 1]
    two = [{"name": f"quantile {share}", "share": share, "value": 5.0, "low": 4.0, "high": 6.0} for share in (0.1, 0.9)]
    without = render(with_released(events, QUANTILES | {"values": two}, "quantile"), Extras())
    assert "<dt>Quantiles</dt><dd><b>2</b><span>values; they are below</span>" in without


def lost(stddev: float, share: float) -> dict[str, Any]:
    """A quantile that the noise hides, as it is released: ``share`` of the participants answered."""
    task: Any = make_task("quantile", {"high": 12, "bins": 16})
    mean = np.zeros(16)
    mean[0] = share
    about = {"statistic": "quantile", "participants": 5, "rounds": 1, "asked": task.options.asked()}
    return json.loads(json.dumps(about | task.statistic(Estimate(mean, stddev, 5.0))))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("its_own_figure")
def test_a_quantile_that_fails_says_why(events: Events) -> None:
    """It said that too few had answered and stated a share of 0 % with an error of 0, beside an empty chart."""
    noisy, few = lost(1.0, 1.0), lost(0.05, 0.05)
    assert (noisy["values"][0]["value"], few["values"][0]["value"]) == (None, None)
    assert (headline(noisy), headline(few)) == ("median lost in the noise", "median too few answered")
    assert "participants had a value" not in " ".join(about(noisy)).replace("may have had one", "")
    assert "hides whether any of them answered" in " ".join(about(noisy))
    assert "About 5 % of the participants had a value" not in " ".join(about(noisy))
    assert "had a value, ± " in " ".join(about(few))
    for released in (noisy, few):
        source = render(with_released(events, released, "quantile"), Extras())
        assert "<svg" not in source.partition("<h2>Median</h2>")[2].partition("</figure>")[0]
        assert "0.00 %" not in source
        for name, value in (("column", "0"), ("low", "0"), ("high", "12"), ("reduce", "mean"), ("quantiles", "0.5")):
            assert f"<th>{name}</th><td>{value}</td>" in source


@pytest.mark.usefixtures("its_own_figure")
def test_report_of_votes_keeps_its_accuracy(events: Events) -> None:
    changed = [replace(event, released=VOTES) if isinstance(event, RoundCompleted) else event for event in events]
    source = render(StudyView().apply_all(changed), Extras())
    says(source, "Accuracy", "55 of 60 queries labelled by votes.")


def test_report_before_the_first_round() -> None:
    view = with_released(make_events(until=1)[:5], MEAN)
    assert view.seeks_statistic
    assert "No round has ended yet." in render(view, Extras())
    assert "Accuracy" not in render(view, Extras())


@pytest.mark.parametrize("released", STATISTICS)
@pytest.mark.parametrize("size", [(100, 30), (80, 24)])
def test_panel_fits_and_keeps_its_height(events: Events, released: dict[str, Any], size: tuple[int, int]) -> None:
    heights = set()
    for count in (150, 400, len(events)):
        lines = drawn(with_released(events[:count], released), *size)
        assert max(map(len, lines)) <= size[0]
        assert "accuracy" not in "\n".join(lines)
        heights.add(len(lines))
    assert len(heights) == 1
    assert heights.pop() <= size[1]


def test_panel_shows_the_figure(events: Events) -> None:
    assert "mean 48.12 ± 0.66" in "\n".join(drawn(with_released(events, MEAN)))
    lines = [line.rpartition("  ")[0].strip("│ ") for line in drawn(with_released(events, MEANS), 80, 24)]
    place = next(place for place, line in enumerate(lines) if line.endswith("column 0 0.0 ± 2.0"))
    assert "column 1 10.0 ± 2.0" in lines[place + 1]  # the second one stands below
    assert "▁▂▂▃▃▄▅▅▆▇▇█" in "\n".join(drawn(with_released(events, HISTOGRAM)))
    assert "no result yet" in "\n".join(drawn(with_released(events[:102], MEAN)))


def test_an_epsilon_of_two_digits_stays_on_its_line(events: Events) -> None:
    view = with_released(events, MEAN)
    view.epsilon_coordinator, view.started = 14.81, replace(view.started, epsilon_target=20.0)
    assert any("epsilon_coordinator  14.81 of 20.00" in line for line in drawn(view))


def test_lines_for_a_log_and_at_the_end(events: Events, tmp_path: Path) -> None:
    view = with_released(events, MEAN)
    [line] = PlainLines(view).of(view.rounds[-1])
    assert "mean 48.12 ± 0.66, epsilon_coordinator" in line
    assert "accuracy" not in line
    assert finding_lines(view) == [f"{'column 0':<20}       48.12 ± 0.66"]
    many = finding_lines(with_released(events, CLASSES | {"values": CLASSES["values"] * 3}))  # type: ignore[operator]
    assert len(many) == 21
    assert many[-1].strip() == "16 more in the report"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "round-000001.safetensors").touch()
    end = closing_lines(view, Path("study"), tmp_path / "state.sqlite")
    assert any(line.startswith("checkpoint  ") for line in end)
    assert not any(line.startswith(("accuracy", "model")) for line in end)
    assert json.dumps(dict(view.released))


def test_what_is_shown_before_joining() -> None:
    plan: Any = SimpleNamespace(dim=12, clip=1.0)

    def told(task: str, options: dict[str, Any]) -> str:
        document: Any = SimpleNamespace(task=task, task_options=options)
        return " | ".join(described(document, plan))

    assert told("histogram", {"column": "label", "bins": 12}) == (
        "histogram, no training: 12 values from you, of norm 1 at most | "
        "asked for: column label; reduce spread; bins 12"
    )
    assert "asked for: column 0; low 0; high 1; reduce mean" in told("mean", {})
    assert "its votes on 40 public examples a round" in told("votes", {"of": "mlp", "queries": 40})
    assert told("mlp", {"method": "dp-fedavg"}) == "mlp, 12 values in an update, clipped to norm 1"
    queries = told("votes", {"queries": "4\x1b[31m\n" * 50})
    assert "\x1b" not in queries
    assert "… (270 more characters) public examples" in queries


def test_nothing_that_is_asked_for_is_cut_or_hidden() -> None:
    """Blanks would be folded away from a terminal's line, and a long list must end where it ends."""
    columns = ",".join(str(column) for column in range(0, 800, 2))
    document: Any = SimpleNamespace(task="sum", task_options={"column": columns, "high": 7})
    plan: Any = SimpleNamespace(dim=400, clip=20.0)
    assert f"column {columns.replace(',', ', ')}; low 0; high 7; reduce sum" in described(document, plan)[1]
    options = JoinOptions(address="127.0.0.1:1", code="", home=None)
    check_task(options, "sum", document.task_options)
    for bad in (" " * 90 + "17", "0\x1b[31m"):
        with pytest.raises(Failure, match=r"'mean' is impossible \(option 'column' is") as refused:
            check_task(options, "mean", {"column": bad})
        assert "\x1b" not in str(refused.value)


def test_errors_stand_where_a_model_has_no_accuracy(tmp_path: Path) -> None:
    """By their names, in every round, one that diverged included."""
    figures = {"mean_absolute_error": 7.3131, "root_mean_squared_error": 9.02}
    events = [
        replace(event, accuracy=None, figures=dict.fromkeys(figures, math.nan) if event.round == 3 else figures)
        if isinstance(event, RoundCompleted)
        else event
        for event in make_events()
    ]
    events = [from_json(json.loads(json.dumps(to_json(event)))) or event for event in events]  # as in the journal
    view, plain, lines = StudyView(), PlainLines(StudyView()), list[str]()
    for event in events:
        view.apply(event)
        lines += plain.of(event)
    shown = {
        "lines": "\n".join(lines),
        "panel": "\n".join(drawn(view)),
        "narrow": "\n".join(drawn(view, 80, 24)),
        "end": "\n".join(closing_lines(view, Path("study"), tmp_path / "state.sqlite")),
        "report": re.sub("<[^>]+>", " ", render(view, Extras())),
    }
    for place, text in shown.items():
        assert "ccuracy" not in text, place
        assert "ean absolute error" in text, place
        assert "7.313" in text, place
    assert "mean absolute error nan, root mean squared error nan" in shown["lines"]
    assert "root mean squared error 9.02" in shown["end"]
