"""`sordino graph`: stable names, the numbers that rounds use, refusals that say what to change, and the attack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.failure import ExitCode, Failure
from secagg.parameters import RoundParameters
from secagg.sharing import ADVERSARIES, Sharing
from sordino.lab import graph
from sordino.lab.graph import graph_lines
from sordino.lab.graph_options import GraphOptions
from tests.support.commands import Run, output, refusal, says
from wire.study import plan_study, round_parameters


def graph_figures(
    clients: int, adversarial: float, dropout: float, adversary: str, min_survivors: int | None = None
) -> dict[str, Any]:
    given = {"clients": clients, "adversarial": adversarial, "dropout": dropout, "adversary": adversary}
    return graph.graph_figures(GraphOptions.model_validate(given | {"min_survivors": min_survivors}))


def test_the_names_that_scripts_rely_on(run: Run) -> None:
    asked = ("--clients", 1000, "--adversarial", 0.05, "--dropout", 0.1, "--adversary", "malicious", "--json")
    figures = json.loads(output(run, "graph", *asked))
    assert (figures["degree"], figures["threshold"], figures["min_survivors"]) == (150, 99, 900)
    assert (figures["graph"], figures["set_by"]) == ("harary", "connectivity")
    assert (figures["colluders"], figures["drops"], figures["signatures"]) == (50, 100, 526)
    assert (figures["sigma"], figures["eta"], figures["grinding"]) == (40, 20, 80)
    assert figures["published_degree"] is None
    assert {name: (one["degree"], one["threshold"]) for name, one in figures["adversaries"].items()} == {
        "curious": (36, 19),
        "semi-malicious": (78, 52),
        "malicious": (150, 99),
    }


@pytest.mark.parametrize(
    ("clients", "adversarial", "dropout", "adversary", "degree", "threshold"),
    [
        (100, 0.05, 0.33, "curious", 28, 6),
        (1_000, 0.3, 0.3, "semi-malicious", 872, 584),
        (1_000_000, 0.05, 0.05, "semi-malicious", 74, 52),
    ],
)
def test_published_values(
    clients: int, adversarial: float, dropout: float, adversary: str, degree: int, threshold: int
) -> None:
    figures = graph_figures(clients, adversarial, dropout, adversary)
    assert (figures["degree"], figures["threshold"]) == (degree, threshold)
    assert (figures["published_degree"], figures["published_threshold"]) == (degree, threshold)


@pytest.mark.parametrize("clients", [3, 10, 16, 63])
def test_small_cohorts_share_with_everybody(clients: int) -> None:
    """The published rule says (2, 2) for 10 and 16: two neighbours would know a participant's update."""
    figures = graph_figures(clients, 0.0, 0.0, "curious")
    assert (figures["graph"], figures["degree"], figures["set_by"]) == ("complete", clients - 1, "small")
    assert (figures["colluders"], figures["threshold"]) == (2, (clients + 2) // 2 + 1)
    if clients in (10, 16):
        assert (figures["published_degree"], figures["published_threshold"]) == (2, 2)


def test_the_complete_graph_where_no_sparse_one_holds() -> None:
    figures = graph_figures(1_000, 0.33, 0.33, "semi-malicious")
    assert (figures["graph"], figures["degree"], figures["threshold"]) == ("complete", 999, 666)
    assert (figures["set_by"], figures["published_degree"]) == ("infeasible", None)


def test_these_are_the_numbers_that_rounds_use() -> None:
    for clients in (20, 63, 64, 130, 1_000):
        for adversary in ADVERSARIES:
            for adversarial, dropout in ((0.0, 0.1), (0.05, 0.1), (0.1, 0.3)):
                figures = graph_figures(clients, adversarial, dropout, adversary)
                rounds = RoundParameters(
                    cohort=clients,
                    colluders=figures["colluders"],
                    min_survivors=figures["min_survivors"],
                    quorum=figures["min_survivors"],
                    bits=20,
                    dim=8,
                    graph="harary",
                    adversary=adversary,
                )
                sharing = rounds.sharing(clients)
                assert (figures["degree"], figures["threshold"]) == (sharing.degree, sharing.threshold)
                assert figures["signatures"] == rounds.signatures_needed(clients)


def test_min_survivors_decides_how_many_may_drop_out() -> None:
    few, many = (graph_figures(1_000, 0.05, 0.1, "malicious", survivors) for survivors in (950, 800))
    assert (few["drops"], many["drops"]) == (50, 200)
    assert few["degree"] < 150 < many["degree"]


@pytest.mark.parametrize(
    ("arguments", "code", "message", "suggestion"),
    [
        ((20, 0.05, 0.5, "malicious"), ExitCode.INFEASIBLE, "threshold 12 .* min_survivors 10", "--min-survivors 12"),
        ((1_000, 0.3, 0.5, "malicious"), ExitCode.INFEASIBLE, "threshold 651 .* 500", "--min-survivors 651"),
        (
            (2, 0.0, 0.0, "curious"),
            ExitCode.INFEASIBLE,
            "at least 2 are assumed to collude in small",
            "use --clients 3 or more",
        ),
        ((200, 0.05, 0.1, "malicious", 100), ExitCode.INFEASIBLE, "no ring holds if 100 of 200 .* 106 of the", " 106,"),
        (
            (1_000, 0.05, 0.1, "curious", 40),
            ExitCode.INFEASIBLE,
            "threshold 526 of the .* 1,000 clients",
            "survivors 150, on a ring",
        ),
        ((100, 0.1, 0.1, "curious", 101), ExitCode.INPUT, "--min-survivors 101 ", None),
    ],
)
def test_refusals_name_a_change(
    arguments: tuple[Any, ...], code: ExitCode, message: str, suggestion: str | None
) -> None:
    with pytest.raises(Failure, match=message) as refused:
        graph_figures(*arguments)
    assert refused.value.code is code
    assert suggestion is None or suggestion in (refused.value.suggestion or "")


def test_a_suggestion_works() -> None:
    with pytest.raises(Failure):
        graph_figures(20, 0.05, 0.5, "malicious")
    assert graph_figures(20, 0.05, 0.5, "malicious", 12)["threshold"] == 12
    assert graph_figures(1_000, 0.05, 0.1, "curious", 150)["graph"] == "harary"
    with pytest.raises(Failure, match="no ring holds"):
        graph_figures(1_000, 0.05, 0.1, "curious", 149)


@pytest.mark.parametrize(
    "arguments",
    [
        (1_000, 0.05, 0.1, "malicious"),
        (65_520, 0.05, 0.1, "malicious"),
        (100_000, 0.05, 0.05, "semi-malicious"),
        (1_000, 0.05, 0.1, "curious"),
        (1_000, 0.33, 0.33, "semi-malicious"),
        (20, 0.05, 0.3, "malicious"),
    ],
)
def test_it_fits_a_terminal_and_says_ring(arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    figures = graph_figures(*arguments)
    lines = graph_lines(figures)
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    says(text, *(f"{figures[name]:,}" for name in ("degree", "threshold", "min_survivors")), *ADVERSARIES)
    assert "harary" not in text
    assert ("A study's plan for this dropout: min_survivors" in text) == (arguments[0] <= 65_520)
    assert ("no round has more than 65,520" in text) == (arguments[0] > 65_520)


@pytest.mark.parametrize("adversary", ["malicious", "curious"])
@pytest.mark.parametrize(("clients", "dropout"), [(1_000, 0.1), (100, 0.3), (20, 0.3), (1_000, 0.0)])
def test_it_ends_with_the_numbers_of_a_plan(clients: int, dropout: float, adversary: str) -> None:
    """A plan lets independent dropouts leave more than the share: another degree for the same option."""
    others: dict[str, Any] = {"dim": 50, "bits": 20, "epsilon": 8.0, "delta": 1e-5, "rounds": 5, "clip": 1.0}
    plan = plan_study(clients=clients, max_dropout=dropout, adversarial=0.05, adversary=adversary, **others)
    figures = graph_figures(clients, 0.05, dropout, adversary)
    told = figures["plan"]
    assert (told["min_survivors"], told["graph"]) == (plan.min_survivors, plan.graph)
    sharing = round_parameters(plan).sharing(clients)
    assert (told["degree"], told["threshold"]) == (sharing.degree, sharing.threshold)
    text = " ".join(" ".join(graph_lines(figures)).split())
    shared = "the complete graph" if plan.graph == "complete" else f"{sharing.degree:,} neighbours"
    assert f"for this dropout: min_survivors {plan.min_survivors:,}, which independent" in text
    assert f"rarely miss, {shared}" in text
    if (clients, dropout, adversary) == (1_000, 0.1, "malicious"):
        assert "min_survivors 871, which independent dropouts rarely miss, 180 neighbours, threshold 115." in text


def test_the_attack_is_played(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    attack = json.loads(output(run, "graph", "--clients", 200, "--rings", 500, "--json"))["attack"]
    assert (attack["rings"], attack["cuts"], attack["opened"], attack["ok"]) == (500, 0, 0, True)
    assert attack["fewest_honest"] > attack["drops"] == 20
    out = output(run, "graph", "--clients", 200, "--rings", 500)
    assert "The attack on 500 random rings" in out
    assert "0 of 500 rings (0 %), none by the bound" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "complete graph" in refusal(run, "graph", "--clients", 20, "--rings", 500)


def test_an_attack_that_succeeds_too_often_fails_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published degree for random drops, under a coordinator that chooses them."""
    monkeypatch.setattr("sordino.lab.graph.k_regular", lambda *_, **__: Sharing(78, 52))
    code, out, told = run("graph", "--clients", 1000, "--rings", 50, "--json")
    assert code == ExitCode.BOUND
    assert json.loads(out.splitlines()[0])["attack"]["cuts"] == 50
    assert "more often than these parameters allow" in told
