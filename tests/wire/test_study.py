"""From a study's options to its plan and document."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from mechanisms.plan import InfeasiblePlan, Plan
from secagg.errors import InvalidParameters
from secagg.lottery import Lottery
from secagg.parameters import colluders_in_cohort
from secagg.roster import InvalidRoster, Roster, RosterEntry
from sordino.planning.text import figures_of
from wire.study import (
    InvalidStudy,
    StudyDocument,
    check_roster_fits,
    coding,
    plan_study,
    round_parameters,
    smallest_roster,
)

LAYERS = [400, 100, 12]
WANTED: dict[str, Any] = {
    **{"clients": 60, "dim": 512, "bits": 18, "epsilon": 20.0, "delta": 1e-6, "rounds": 10},
    **{"max_dropout": 0.2, "adversarial": 0.05},
}


def document(plan: Plan) -> StudyDocument:
    return StudyDocument(study="s", task="mlp", task_options={}, plan=plan)


# Of the seven participants that most tests of hosts have.
SEVEN = {"clients": 7, "dim": 500, "bits": 16, "epsilon": 1000.0, "delta": 0.1, "rounds": 2, "max_dropout": 0.3}
WRITTEN = document(plan_study(**WANTED | SEVEN, clip=1.0, min_survivors=5)).to_bytes()


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 2.0},
        {"clip": 2.0, "by_layer": True, "scaling": "least-noise"},
        {"clip": 2.0, "by_layer": True, "update": "geometric"},
        {"clip": 2.0, "update": "linear", "quantile": 0.8},
        {"clip": 2.0, "sketch_rows": 3, "sketch_ratio": 2.0, "update": "geometric"},
        {"clip": 2.0, "clients": 100, "max_dropout": 0.1, "graph": "harary"},
        {"clip": 2.0, "adversary": "curious"},
        {"clip": 2.0, "clients": 100, "max_dropout": 0.1, "graph": "harary", "adversary": "curious"},
    ],
    ids=str,
)
def test_documents_come_back_whole(options: dict[str, Any]) -> None:
    others = {name: options[name] for name in options.keys() & {"clients", "max_dropout", "graph", "adversary"}}
    rule = {name: value for name, value in options.items() if name not in others}
    plan = plan_study(**(WANTED | others), **coding(LAYERS, **rule))
    again = StudyDocument.from_bytes(document(plan).to_bytes())
    assert again.plan == plan
    assert again.plan.identity == plan.identity
    assert (again.plan.graph, again.plan.adversary) == (
        options.get("graph", "complete"),
        options.get("adversary", "malicious"),
    )
    assert round_parameters(plan).dim == plan.padded_dim
    json.dumps(figures_of(plan).to_json(), allow_nan=False)


def test_a_document_states_own_data_only_where_it_is_true() -> None:
    plain = document(plan_study(**WANTED, **coding(LAYERS, clip=2.0)))
    own = replace(plain, own_data=True)
    assert b"own_data" not in plain.to_bytes()
    for one in (plain, own):
        assert StudyDocument.from_bytes(one.to_bytes()).own_data is one.own_data
    for wrong in (b"false", b"1", b'"yes"'):
        with pytest.raises(InvalidStudy, match="own_data of the study document must be true, or be left out"):
            StudyDocument.from_bytes(own.to_bytes().replace(b'"own_data":true', b'"own_data":' + wrong))


def test_a_clip_by_layer_bounds_the_whole_update() -> None:
    rule = coding(LAYERS, clip=3.0, by_layer=True)["clipping"]
    assert rule.layers == (400, 100, 12)
    assert rule.clips == (3 / math.sqrt(3),) * 3
    assert rule.bound(rule.clips) == pytest.approx(3.0)
    assert coding(LAYERS, clip=3.0)["clipping"].layers == (512,)


def test_a_sketch_is_as_short_as_asked() -> None:
    plan = plan_study(**WANTED, **coding(LAYERS, clip=1.0, sketch_rows=4, sketch_ratio=4.0))
    assert plan.coded_dim == 4 * 32
    assert plan.sketch_rows * plan.sketch_width == plan.clipping.dim == 128


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(InfeasiblePlan, match="layer"):
        coding(LAYERS, clip=1.0, sketch_rows=4, by_layer=True)
    with pytest.raises(InfeasiblePlan, match="add up"):
        plan_study(**WANTED | {"dim": 513}, **coding(LAYERS, clip=1.0, by_layer=True))
    for change in ({"clip": 0.0}, {"clip": math.nan}, {"clip": 1.0, "update": "often"}, {"clip": 1.0, "scaling": "x"}):
        with pytest.raises(InfeasiblePlan):
            coding(LAYERS, **change)


def test_sampling_that_cannot_be_checked_is_never_served() -> None:
    sampled = WANTED | {"sampling": "poisson", "population": 6000}
    for target, told in (("conditional", "comparison"), ("released", "nobody could check")):
        plan = plan_study(**sampled, target=target, **coding(LAYERS, clip=1.0))
        with pytest.raises(InvalidStudy, match=told):
            StudyDocument.from_bytes(document(plan).to_bytes())


PLANS = {
    "more noise that is taken back": ({"noise_parts": 9}, "9 parts of noise can't be taken back"),
    "a finer grid": ({"granularity": lambda value: value / 64}, "sums may wrap"),
    "fewer survivors": ({"min_survivors": 4}, "exceeds the target 1000"),
    "a sum of one": ({"min_survivors": 1, "quorum": 1}, "colluders (2) < min_survivors (1)"),
    "a low quorum": ({"quorum": 4}, "<= quorum (4) <="),
    "no colluders": ({"colluders": 0, "bits": 22}, "assumes fewer colluders"),
    "more rounds": ({"rounds": 1000}, "after 1000 rounds exceeds the target"),
    "fewer bits": ({"bits": 3}, "sums may wrap"),
    "another dimension": ({"padded_dim": 256}, "padded_dim is not what the rotation makes of it"),
    "a larger clip": ({"clipping": lambda rule: rule | {"clips": [100.0]}}, "sums may wrap"),
    "clips that adapt": ({"clipping": lambda rule: rule | {"update": "geometric"}}, "quantile 0 must lie"),
    "a clip that is no number": ({"clipping": lambda rule: rule | {"clips": ["NaN"]}}, "clips must be tuple"),
    "another rotation": ({"rotation": "none"}, "unknown rotation 'none'"),
    "a population that amplifies": ({"sampling": "lottery", "population": 10**6}, "assumes fewer colluders"),
    "a larger budget": ({"epsilon": 2000.0}, "budget_coordinator 1000 is not the target 2000"),
    "the published figure": ({"target": "conditional"}, "for comparison only"),
    "noise that is no number": ({"local_variance": "NaN"}, 'must read "numerator/denominator"'),
    "semi-malicious": ({"adversary": "semi-malicious"}, "nothing stops an arc from being cut out of the ring"),
    "an honest adversary": ({"adversary": "honest"}, "the adversary is one of"),
    "no adversary": ({"adversary": None}, "adversary must be str"),
    "a star": ({"graph": "star"}, "the graph is complete or harary, not 'star'"),
    "two graphs": ({"graph": ["harary"]}, "graph must be str"),
    "no graph": ({"graph": ""}, "must be names"),
    "a wish": ({"graph": "auto"}, "not 'auto'"),  # settled when the plan is made
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_that_no_study_has(name: str) -> None:
    """What a host refuses before any round. Less noise, fewer colluders and smaller sums than promised are scripts of
    tests/adversary too.
    """
    changes, told = PLANS[name]
    body = json.loads(WRITTEN)
    for field, value in changes.items():
        body["plan"][field] = value(body["plan"][field]) if callable(value) else value
    with pytest.raises(InvalidStudy, match=re.escape(told)):
        StudyDocument.from_bytes(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"plan": {"granularity": Infinity}}', "missing or unknown fields"),
        (WRITTEN.replace(b'"task":"mlp",', b""), "missing or unknown fields"),
        (WRITTEN.replace(b"sordino-study-2", b"sordino-study-0"), "unknown format"),
        (b"[]", "missing or unknown fields"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_no_study_document(data: bytes, told: str) -> None:
    with pytest.raises(InvalidStudy, match=told):
        StudyDocument.from_bytes(data)


def test_a_document_of_an_earlier_version_lacks_them() -> None:
    written = json.loads(WRITTEN)
    del written["plan"]["graph"], written["plan"]["adversary"]
    with pytest.raises(InvalidStudy, match=r"missing fields: \['adversary', 'graph'\]"):
        StudyDocument.from_bytes(json.dumps(written, sort_keys=True, separators=(",", ":")).encode())


def test_a_semi_malicious_plan_is_made_for_comparison_alone() -> None:
    plan = plan_study(**WANTED, **coding(LAYERS, clip=2.0), adversary="semi-malicious")
    with pytest.raises(InvalidStudy, match="semi-malicious"):
        StudyDocument.from_bytes(document(plan).to_bytes())


@pytest.mark.parametrize(
    ("clients", "max_dropout", "graph", "degree", "threshold"),
    [
        (200, 0.1, "harary", 62, 37),
        (100, 0.1, "harary", 44, 25),
        (100, 0.3, "complete", 99, 53),
        (200, 0.3, "complete", 199, 106),
        (63, 0.05, "complete", 62, 34),
    ],
)
def test_the_ring_halves_the_work(clients: int, max_dropout: float, graph: str, degree: int, threshold: int) -> None:
    wanted = WANTED | {"clients": clients, "max_dropout": max_dropout, "clip": 1.0}
    plan = plan_study(**wanted)
    assert plan.graph == graph
    figures = figures_of(plan)
    assert (figures.graph, figures.degree, figures.threshold) == (graph, degree, threshold)
    sharing = round_parameters(plan).sharing(clients)
    assert (sharing.degree, sharing.threshold) == (degree, threshold)
    assert figures_of(plan_study(**wanted, graph="complete")).degree == clients - 1


def test_a_ring_that_cannot_be_is_the_complete_graph() -> None:
    """Asked for by name, but nothing below 64 shares on one; the figures say what is done, not what was wished."""
    plan = plan_study(**WANTED, clip=1.0, graph="harary")
    assert plan.graph == "harary"
    assert figures_of(plan).graph == "complete"
    assert figures_of(plan).degree == WANTED["clients"] - 1
    with pytest.raises(InfeasiblePlan, match="graph is complete or harary"):
        plan_study(**WANTED, clip=1.0, graph="star")
    with pytest.raises(InfeasiblePlan, match="adversary is one of"):
        plan_study(**WANTED, clip=1.0, adversary="honest")


def test_a_document_costs_little_before_it_is_refused() -> None:
    """An order of 2^31 would ask for a table of 16 GiB; a plan whose target is conditional isn't even looked at."""
    sampled = WANTED | {"sampling": "poisson", "population": 6000}
    plan = plan_study(**sampled, target="conditional", **coding(LAYERS, clip=1.0)).to_json()
    for changes in ({}, {"target": "coordinator"}, {"sampling": "none", "target": "coordinator"}):
        body = {"format": "sordino-study-1", "study": "s", "task": "mlp", "task_options": {}}
        body["plan"] = plan | {"order_conditional": 2147483646.0} | changes
        with pytest.raises(InvalidStudy):
            StudyDocument.from_bytes(json.dumps(body).encode())
    with pytest.raises(InfeasiblePlan, match="order"):
        Plan.from_json(plan | {"order_conditional": 2147483646.0})


@pytest.mark.parametrize("name", ["order", "order_released", "order_conditional"])
@pytest.mark.parametrize("order", [2.5, 1.0000000001])
def test_a_bound_for_whole_orders_is_not_asked_for_others(name: str, order: float) -> None:
    lottery = WANTED | {"sampling": "lottery", "population": 600, "mechanism": "skellam"}
    plan = plan_study(**lottery, **coding(LAYERS, clip=1.0)).to_json()
    assert Plan.from_json(plan | {"order_conditional": 1024.0}).epsilon_conditional > 0
    with pytest.raises(InfeasiblePlan, match="whole orders"):
        Plan.from_json(plan | {name: order})


def test_a_cohort_that_no_round_can_have_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner reads it before anything is agreed: counting the colluders of 60 million took 28 s and 3 GB."""
    lottery = WANTED | {"sampling": "lottery", "population": 600}
    data = document(plan_study(**lottery, **coding(LAYERS, clip=1.0))).to_bytes()
    large = json.loads(data)
    large["plan"] |= dict.fromkeys(("clients", "min_survivors", "quorum"), 60_000_000) | {"population": 120_000_000}
    monkeypatch.setattr("wire.study.colluders_in_cohort", lambda *_: pytest.fail("it counts before it checks"))
    with pytest.raises(InvalidStudy):
        StudyDocument.from_bytes(json.dumps(large).encode())


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_options_that_no_document_can_hold(number: str) -> None:
    """The naive reader takes them, and then the document has no bytes and no digest."""
    bad = WRITTEN.replace(b'"task_options":{}', b'"task_options":{"rate":[%s]}' % number.encode())
    assert bad != WRITTEN
    with pytest.raises(InvalidStudy, match="doesn't hold"):
        StudyDocument.from_bytes(bad)


def test_a_drawn_cohort_may_hold_more_colluders_than_its_share() -> None:
    """The naive count, the adversarial share of the cohort, is exceeded in many rounds; the plan takes the quantile."""
    plan = plan_study(**WANTED | {"sampling": "lottery", "population": 600}, **coding(LAYERS, clip=1.0))
    assert plan.colluders == colluders_in_cohort(600, 60, 0.05, 0.2, 10 * 4096) > 10 * 0.05 * 60 / 5
    naive = Plan.from_json(plan.to_json())
    object.__setattr__(naive, "colluders", 3)
    with pytest.raises(InvalidParameters, match="fewer colluders"):
        round_parameters(naive)


def test_rosters_that_the_plan_does_not_cover() -> None:
    """The naive check, that a roster is signed, lets it grow until a draw holds more colluders than A."""

    def roster(size: int, draws: int = 0) -> Roster:
        entries = tuple(RosterEntry(number.to_bytes(32, "big"), f"host-{number}") for number in range(size))
        return Roster("s", 1, entries, Lottery(draws, bytes(32)) if draws else None)

    whole = plan_study(**WANTED, **coding(LAYERS, clip=1.0))
    for size in (0, 10, 60):  # it grows up to the planned cohort
        check_roster_fits(whole, roster(size))
    with pytest.raises(InvalidRoster, match="the plan is for 60 participants, the roster has 61"):
        check_roster_fits(whole, roster(61))
    assert smallest_roster(whole) == whole.quorum

    lottery = WANTED | {"sampling": "lottery", "population": 600, "adversarial": 0.1, "max_dropout": 0.3}
    drawn = plan_study(**lottery, **coding(LAYERS, clip=1.0))
    for size in (0, 60, 600):
        check_roster_fits(drawn, roster(size, 10))
    assert smallest_roster(drawn) == 600  # below it the rate q would be larger than the one that is accounted
    for draws, found in ((0, "none"), (9, "9"), (11, "11")):
        with pytest.raises(InvalidRoster, match=f"signed with {found}: the authority must sign it with 10"):
            check_roster_fits(drawn, roster(600, draws))
    needed = colluders_in_cohort(5000, 60, 0.1, 0.3, 10 * 4096)
    assert needed > drawn.colluders
    with pytest.raises(InvalidRoster, match=f"A must be {needed}, the plan assumes {drawn.colluders}"):
        check_roster_fits(drawn, roster(5000, 10))
    larger = plan_study(**lottery | {"largest_roster": 5000}, **coding(LAYERS, clip=1.0))
    assert larger.colluders == needed
    check_roster_fits(larger, roster(5000, 10))


def test_figures_that_cannot_be_stated_are_null() -> None:
    huge = plan_study(
        **WANTED | {"sampling": "poisson", "population": 10**6, "rounds": 1500, "epsilon": 8.0},
        target="conditional",
        **coding(LAYERS, clip=1.0),
    )
    figures = figures_of(huge)
    assert figures.epsilon_coordinator is None
    assert 7.99 < (figures.epsilon_conditional or 0.0) <= 8.0
    json.dumps(figures.to_json(), allow_nan=False)
    assert figures_of(plan_study(**WANTED, **coding(LAYERS, clip=1.0))).epsilon_conditional is None
