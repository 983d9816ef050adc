"""``sordino plan``: every mechanism, reader and sampling; alternatives; the figure; refusals that name what works."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from mechanisms.gaussian_exact import gaussian_delta
from mechanisms.plan import Plan
from mechanisms.pld import poisson_gaussian_epsilon
from sordino.planning.alternatives import BITS, alternatives, exact_gaussian_multiplier, tighter_bounds
from sordino.planning.figure import draw_plan
from tests.support.commands import Run, one_clear_error, output, refusal, says, words
from wire.study import plan_study

# fmt: off
NAMES = {
    "granularity", "local_stddev", "central_stddev", "full_stddev", "noise_multiplier", "inflated_clip",
    "effective_noise_multiplier", "epsilon_coordinator", "epsilon_released", "epsilon_conditional", "target",
    "adjacency", "A", "h_min", "min_survivors", "quorum", "threshold", "degree", "abort_probability", "padded_dim",
    "upload_bytes", "accountant", "epsilon_pld", "budget_coordinator", "budget_released",
    "layer_noise_stddev", "quantile_stderr", "graph", "adversary",
}
# fmt: on
LOTTERY = ("--sampling", "lottery", "--population", 1000)
PUBLISHED = ("--max-dropout", 0, "--adversarial", 0, "--sampling", "poisson", "--population", 10_000)


@pytest.fixture(autouse=True)
def _usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def planned(run: Run, *arguments: object) -> dict[str, Any]:
    return json.loads(output(run, "plan", *arguments, "--json"))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("arguments", "adjacency", "trusts"),
    [
        (("--mechanism", "ddgauss"), "zero-out", "nobody alone"),
        (("--mechanism", "skellam"), "zero-out", "nobody alone"),
        (("--mechanism", "gaussian"), "zero-out", "the coordinator"),
        (("--mechanism", "local-gaussian"), "replace-one", "nobody"),
        (("--mechanism", "binomial", "--bits", 20), "zero-out", "the secure sum"),
    ],
)
def test_mechanisms_have_stable_names_and_trust(
    run: Run, arguments: tuple[object, ...], adjacency: str, trusts: str
) -> None:
    figures = planned(run, *arguments)
    assert set(figures) >= NAMES
    assert "alternatives" not in figures
    assert 7.9 < figures["epsilon_coordinator"] <= 8
    assert figures["epsilon_released"] == figures["epsilon_coordinator"]
    assert figures["epsilon_conditional"] is None
    assert figures["central_stddev"] == pytest.approx(figures["local_stddev"] * math.sqrt(figures["h_min"]))
    assert figures["adjacency"].startswith(adjacency)
    assert figures["trusts"].startswith(trusts)
    out = output(run, "plan", *arguments, "--no-alternatives")
    said = " ".join(out.split())
    assert f"Trusts: {figures['trusts']}" in said
    assert f"Adjacency: {figures['adjacency']} Trusts:" in said
    assert ("noise share present" in said) == (figures["mechanism"] in ("ddgauss", "skellam", "binomial"))
    assert max(len(line) for line in out.splitlines()) <= 80
    assert out.splitlines()[3].split()[0] == "epsilon_coordinator"  # privacy first


def test_the_target_is_the_readers_and_never_exceeded(run: Run) -> None:
    sampled = ("--sampling", "lottery", "--population", 2000)
    for target in ("coordinator", "released", "conditional"):
        figures = planned(run, *sampled, "--rounds", 30, "--epsilon", 2, "--target", target)
        assert figures["target"] == target
        assert 2 * 0.999 <= figures[f"epsilon_{target}"] <= 2
        # A reader that knows more has the larger figure.
        stated = [figures[f"epsilon_{reader}"] for reader in ("coordinator", "released", "conditional")]
        assert stated[0] > stated[1] > stated[2]


def test_the_published_setting_is_conditional_by_default(run: Run) -> None:
    figures = planned(run, *PUBLISHED, "--rounds", 300)
    assert (figures["target"], figures["A"], figures["h_min"]) == ("conditional", 0, 100)
    assert 8 * 0.999 <= figures["epsilon_conditional"] <= 8
    assert figures["epsilon_released"] > 8
    assert figures["budget_coordinator"] is None
    assert planned(run, "--sampling", "poisson", "--population", 10_000)["target"] == "coordinator"
    assert planned(run, "--max-dropout", 0, "--adversarial", 0)["target"] == "coordinator"
    said = words(run, "plan", *PUBLISHED, "--rounds", 300, "--no-alternatives")
    says(said, "epsilon_conditional at most 8 (published figure, for comparison only)", "For comparison only")
    assert "of 10,000, each drawn by an independent coin, 500 values sent as 512 of 16 bits" in said
    assert "Note: poisson sampling is planned, not served: it can't be checked who was drawn." in said


def test_clips_by_layer_that_adapt(run: Run) -> None:
    figures = planned(
        run,
        *("--layers", "300,100,100", "--clips", "1,0.5,0.25", "--clip-scaling", "proportional"),
        *("--clip-update", "geometric", "--clip-quantile", 0.8, "--clip-rate", 0.2, "--clip-bit-weight", 0.5),
    )
    assert (figures["dim"], figures["coded_dim"]) == (500, 503)
    assert figures["clipping"] == {
        "layers": [300, 100, 100],
        "clips": [1.0, 0.5, 0.25],
        "scaling": "proportional",
        "update": "geometric",
        "quantile": 0.8,
        "rate": 0.2,
        "bit_weight": 0.5,
    }
    assert figures["clip"] == pytest.approx(math.sqrt(3))
    split = planned(run, "--layers", "300,200", "--clip", 2)
    assert split["clipping"]["clips"] == pytest.approx([math.sqrt(2)] * 2)
    assert split["clip"] == pytest.approx(2)


def test_noise_of_each_layer_is_in_units_of_the_update(run: Run) -> None:
    """The naive figure prints central_stddev for every layer: it is in scaled units."""
    layers = ("--layers", "300,100,100", "--clips", "1,0.5,0.25")
    figures = planned(run, *layers, "--clip-scaling", "proportional")
    assert figures["layer_noise_stddev"] == pytest.approx([figures["central_stddev"] * c for c in (1, 0.5, 0.25)])
    least = planned(run, *layers, "--clip-scaling", "least-noise")
    scales = [math.sqrt(clip / math.sqrt(size)) for clip, size in ((1, 300), (0.5, 100), (0.25, 100))]
    assert least["layer_noise_stddev"] == pytest.approx([least["central_stddev"] * s for s in scales])
    plain = planned(run)
    assert plain["layer_noise_stddev"] == [plain["central_stddev"]]
    said = run("plan", *layers, "--clip-scaling", "least-noise", "--no-alternatives")[1]
    row = next(line for line in said.splitlines() if "noise of layer 2" in line)
    assert row.split()[4] == f"{least['layer_noise_stddev'][1]:.4g}"
    assert "standard deviation, in scaled units" in said
    many = run("plan", "--layers", ",".join(["10"] * 12), "--clip-scaling", "proportional", "--no-alternatives")[1]
    says(many, "noise of layer 8 ", "and 4 more: --json has all")
    assert "noise of layer 9 " not in many


def test_an_evaluation_by_participants_has_its_price_and_its_error(run: Run) -> None:
    chosen = ("--evaluate", "participants", "--evaluation-weight", 0.4)
    figures, without = planned(run, *chosen), planned(run)
    noise = figures["local_stddev"] * math.sqrt(figures["min_survivors"])
    expected = math.hypot(1, 0.5) * noise / (0.4 * figures["clip"] * figures["min_survivors"])
    assert figures["accuracy_stderr"] == pytest.approx(expected)
    assert without["accuracy_stderr"] is None
    ratio = figures["central_stddev"] / without["central_stddev"]
    assert ratio == pytest.approx(math.hypot(1, 0.4 * math.sqrt(3) / 2), rel=0.01)
    said = words(run, "plan", *chosen, "--no-alternatives")
    says(said, f"accuracy reported ± {expected:.2g}", "makes the noise of updates 5.8 % larger")
    for others, sentence in (
        (("--evaluation-weight", 0.4), "--evaluation-weight 0.4 needs --evaluate participants; or leave it out"),
        ((*chosen, "--task", "mean"), "--task mean has no model that participants could evaluate"),
        ((*chosen, "--mechanism", "binomial"), "with binomial noise participants don't evaluate"),
    ):
        assert sentence in run("plan", *others)[2]


@pytest.mark.parametrize("mechanism", ["ddgauss", "gaussian"])
def test_the_share_below_a_clip_has_a_standard_error(run: Run, mechanism: str) -> None:
    adaptive = ("--mechanism", mechanism, "--clip-update", "geometric")
    figures = planned(run, *adaptive)
    survivors = figures["min_survivors"]
    shares = figures["h_min"] if mechanism == "gaussian" else survivors  # the coordinator's noise is the same
    expected = figures["local_stddev"] * math.sqrt(shares) / (0.3 * figures["clip"] * survivors)
    assert figures["quantile_stderr"] == pytest.approx(expected)
    assert planned(run)["quantile_stderr"] is None
    assert "mostly follow noise" not in words(run, "plan", *adaptive)
    noisy = words(run, "plan", *adaptive, "--epsilon", 2)
    assert "quantile estimate ± 0." in noisy
    assert "the clips will mostly follow noise. Raise --clip-bit-weight, participants, or epsilon." in noisy


def test_what_does_not_size_the_noise_does_not_say_so(run: Run) -> None:
    says(words(run, "plan", "--no-alternatives"), "their noise is ignored", "sizes the noise")
    for mechanism in ("gaussian", "local-gaussian"):
        said = words(run, "plan", "--mechanism", mechanism, "--no-alternatives")
        assert "noise is ignored" not in said
        assert "sizes the noise" not in said
        assert ("noise of one share" in said) == (mechanism == "local-gaussian")
        assert ("for all readers except the coordinator, which is trusted" in said) == (mechanism == "gaussian")


def test_colluders_of_a_draw(run: Run) -> None:
    said = words(run, "plan", *LOTTERY, "--no-alternatives")
    assert "28 at most 28 of the 50 colluders are drawn, except with chance 2^-40 in all rounds together" in said
    assert "100 participants of 1,000, drawn by lottery" in said


def test_an_epsilon_that_no_plan_can_state_is_not_promised(run: Run) -> None:
    said = words(run, "plan", "--epsilon", 200, "--bits", 24, "--no-alternatives")
    assert "epsilon 71.283 (200 was asked for)" in said
    assert "at most 200" not in said
    assert "Note: of the epsilon 200 that may be spent, 71.283 is planned. That is the largest epsilon that" in said


def test_each_tighter_bound_is_its_readers(run: Run) -> None:
    poisson = ("--mechanism", "gaussian", "--sampling", "poisson", "--population", 10_000, "--no-alternatives")
    says(words(run, "plan", *poisson), "Bounds: epsilon_conditional: PLD 0.", "Smallest for the target: exact")


@pytest.mark.parametrize(("columns", "width"), [("40", 60), ("90", 90), ("200", 100)])
def test_text_fills_the_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = run("plan", "--no-alternatives")[1].splitlines()
    assert width - 12 < max(len(line) for line in lines) <= width


def test_a_sketch_is_smaller(run: Run) -> None:
    plain = planned(run, "--dim", 10_000)
    sketched = planned(run, "--dim", 10_000, "--sketch-rows", 15, "--sketch-ratio", 8)
    assert (sketched["sketch"], sketched["coded_dim"]) == ([15, 83], 15 * 83)
    assert planned(run, "--dim", 10_000, "--sketch-rows", 15)["sketch"] == [15, 66]
    saved = plain["upload_bytes"] - sketched["upload_bytes"]
    assert saved == (plain["padded_dim"] - sketched["padded_dim"]) * 2  # 16 bits
    assert saved > 15_000


def test_the_rotation_is_named(run: Run) -> None:
    assert planned(run, "--rotation", "hadamard", "--dim", 600)["padded_dim"] == 1024
    blocks = planned(run, "--rotation", "hadamard-blocks", "--dim", 600)
    assert (blocks["rotation"], blocks["padded_dim"] < 1024) == ("hadamard-blocks", True)


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (
            ("--clients", 100, "--max-dropout", 0.1),
            (
                "graph ring of 44 k-regular: each shares with 22 on either side, of 99 others",
                "threshold 25 shares that open a secret",
                "coordinator malicious it may lie; participants sign who is in a sum before it opens",
            ),
        ),
        (
            ("--clients", 100, "--max-dropout", 0.1, "--graph", "complete"),
            ("graph complete each shares with all others threshold 53",),
        ),
        (
            ("--clients", 100, "--max-dropout", 0.1, "--adversary", "curious"),
            (
                "graph ring of 20 k-regular: each shares with 10 on either side, of 99 others",
                "coordinator curious it follows the protocol and reads all it receives; the survivor sets are not",
                "Participants join only if their policy accepts that; a participant that missed a sum",
                "Trusts: the coordinator, to follow the protocol: it sends everybody the same; each of h_min honest",
            ),
        ),
        (
            ("--clients", 40, "--adversary", "semi-malicious"),
            (
                "graph complete",
                "for comparison, never served",
                "but no study is served",
                "Trusts: the coordinator, to follow the protocol until keys are exchanged:",
            ),
        ),
    ],
)
def test_graph_and_coordinator_are_described(run: Run, arguments: tuple[object, ...], rows: tuple[str, ...]) -> None:
    out = output(run, "plan", *arguments, "--no-alternatives")
    says(" ".join(out.split()), *rows)
    assert max(len(line) for line in out.splitlines()) <= 80
    figures = planned(run, *arguments)
    types = {"graph": str, "adversary": str, "degree": int, "threshold": int}
    assert {name: type(figures[name]) for name in types} == types


def test_binomial_noise_is_planned_on_the_complete_graph(run: Run) -> None:
    figures = planned(run, "--mechanism", "binomial", "--bits", 20, "--graph", "harary", "--adversary", "curious")
    assert (figures["graph"], figures["adversary"]) == ("complete", "curious")
    assert figures["trusts"].startswith("the coordinator, to follow the protocol: ")
    assert figures["degree"] == figures["clients"] - 1
    assert "no other is planned with binomial noise" in figures["warnings"][0]


def test_a_requested_ring_that_does_not_hold_is_noted(run: Run) -> None:
    """The naive plan says "complete" among its rows, and nothing of what was asked for."""
    asked = ("--graph", "harary", "--no-alternatives")
    for arguments, told, suggested in (
        (("--clients", 50), "below 64 participants there is no ring", None),
        (("--clients", 100, "--min-survivors", 56), "no ring holds if 44 of 100 may drop out: raise", 58),
    ):
        out = output(run, "plan", *arguments, *asked)
        assert f"Note: --graph harary was asked for, and the graph is complete: {told}" in " ".join(out.split())
        assert told in planned(run, *arguments, *asked)["warnings"][0]
        if suggested is not None:
            assert f"from min_survivors {suggested}" in " ".join(out.split())
            nearest = ("--clients", 100, "--dropout", 0.1)
            assert planned(run, *nearest, "--min-survivors", suggested, *asked)["graph"] == "harary"
            assert planned(run, *nearest, "--min-survivors", suggested - 1, *asked)["graph"] == "complete"
    assert planned(run, "--clients", 100, "--dropout", 0.1, *asked)["warnings"] == []
    assert planned(run, "--clients", 50)["warnings"] == []


def test_alternatives(run: Run) -> None:
    table = planned(run, "--alternatives", "--max-dropout", 0, "--adversarial", 0)["alternatives"]
    rows = table["rows"]
    assert [(row["mechanism"], row["bits"]) for row in rows] == [(m, b) for m in ("ddgauss", "skellam") for b in BITS]
    assert table["central"]["accountant"] == "exact"
    for mechanism in ("ddgauss", "skellam"):
        costs = [row["noise_cost"] for row in rows if row["mechanism"] == mechanism and row["feasible"]]
        assert costs == sorted(costs, reverse=True)
        assert 1 < costs[-1] < 1.2
    here = next(row for row in rows if (row["mechanism"], row["bits"]) == ("ddgauss", 16))
    figures = planned(run, "--max-dropout", 0, "--adversarial", 0)
    assert here["noise_multiplier"] == figures["noise_multiplier"]
    assert here["upload_bytes"] == figures["upload_bytes"]
    over_central = figures["full_stddev"] / table["central"]["noise_multiplier"]
    assert here["noise_cost"] == pytest.approx(over_central**2, rel=1e-4)


def test_noise_that_outweighs_the_updates_is_said(run: Run) -> None:
    """500 phones with two million values; each suggestion is planned, and says nothing of the kind."""
    phones = ("--clients", 500, "--dim", 2_000_000, "--epsilon", 3, "--no-alternatives")
    assert planned(run, *phones)["noise_norm"] == pytest.approx(18.1, abs=0.1)
    said = words(run, "plan", *phones)
    assert "18.1 clips" in said
    found = re.search(r"It learns with --clients (\d+) --bits (\d+), a model of about ([\d,]+) values", said)
    assert found
    clients, bits, values = (int(one.replace(",", "")) for one in found.groups())
    for instead in (("--clients", clients, "--bits", bits, *phones[2:]), (*phones[:2], "--dim", values, *phones[4:])):
        figures = planned(run, *instead)
        assert figures["noise_norm"] < 0.26 * math.sqrt(figures["rounds"])
        assert figures["learns_with"] == []
    few = words(run, "plan", "--clients", 50, "--epsilon", 0.5, "--bits", 20, "--no-alternatives")
    [epsilon] = re.findall(r"--epsilon ([\d.]*\d)", few.partition("It learns")[2])
    assert "outweighs" not in words(run, "plan", "--clients", 50, "--epsilon", epsilon, "--bits", 20)
    assert "outweighs" not in words(run, "plan", "--no-alternatives")
    mean = ("--task", "mean", "--clients", 20, "--epsilon", 0.1, "--bits", 20, "--no-alternatives")
    assert "outweighs" not in words(run, "plan", *mean)  # a statistic's errors are stated instead


def test_ways_of_inviting_stand_beside_each_other(run: Run) -> None:
    """Each is what the plan itself says; with epochs the noise is that of ten rounds, not of a hundred."""
    asked = ("--rounds", 100, "--clients", 100, "--population", 1000, "--target", "coordinator", "--bits", 20)
    rows = planned(run, "--alternatives", "--sampling", "epochs", *asked)["alternatives"]["samplings"]
    assert [(row["sampling"], row["in_a_round"], row["participations"]) for row in rows] == [
        ("none", 1000, 100),
        ("lottery", 100, 100),
        ("epochs", 100, 10),
    ]
    errors = {row["sampling"]: row["mean_error"] for row in rows}
    assert errors["lottery"] / errors["epochs"] == pytest.approx(math.sqrt(10), rel=0.02)
    alone = planned(run, "--rounds", 10, "--clients", 100, "--bits", 20, "--adversarial", 0, "--max-dropout", 0)
    dealt = planned(run, "--sampling", "epochs", *asked, "--adversarial", 0, "--max-dropout", 0)
    assert dealt["noise_multiplier"] == pytest.approx(alone["noise_multiplier"], rel=1e-6)
    says(words(run, "plan", "--sampling", "epochs", *asked), "each in 10 of 100 rounds", "> epochs")
    few = run("plan", "--sampling", "epochs", "--clients", 100, "--population", 199)
    assert "Use a population of at least 200" in " ".join(few[2].split())


def test_alternatives_that_no_plan_keeps_are_marked(run: Run) -> None:
    out = output(run, "plan", "--clients", 500, "--dim", 100, "--alternatives", "--epsilon", 0.2, "--bits", 18)
    rows = [line.split() for line in out.splitlines() if "infeasible" in line]
    assert ["ddgauss", "10", "infeasible"] in rows
    assert any(line.startswith("> ddgauss") and " 18 " in line for line in out.splitlines())
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.long
def test_amplified_targets_compare_with_an_amplified_central_gaussian() -> None:
    chosen = {
        **{"mechanism": "ddgauss", "clients": 100, "dim": 500, "bits": 18, "clip": 1.0, "epsilon": 4.0},
        **{"delta": 1e-5, "rounds": 200, "max_dropout": 0.0, "adversarial": 0.0, "sampling": "poisson"},
        **{"population": 10_000, "target": "conditional"},
    }
    table = alternatives(chosen)
    assert table["central"]["accountant"] == "pld"
    spent = poisson_gaussian_epsilon(table["central"]["noise_multiplier"], 0.01, 200, 1e-5)
    assert 0.997 * 4 < spent <= 4.0
    # Its accountant is the tighter one; that of the distributed mechanisms is beside it.
    assert all(1.1 < row["noise_cost"] < 2 for row in table["rows"] if row["bits"] >= 14)
    table = alternatives(chosen | {"sampling": "lottery"})
    assert table["central"]["accountant"] == "renyi"
    # The same accountant on both sides: only grid and rounding are left to pay.
    assert all(1 - 1e-6 < row["noise_cost"] < 1.05 for row in table["rows"] if row["bits"] >= 14)


def test_plot(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.planning.figure._STEPS", (0.5, 1.0))  # of nine
    file = tmp_path / "plan.svg"
    assert f"Drawn: {file}" in output(run, "plan", "--rounds", 1, "--no-alternatives", "--plot", file)
    assert file.read_text().startswith("<?xml")


def test_the_plot_has_round_ticks_and_room_at_the_top(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: drawn.append(figure))
    monkeypatch.setattr("sordino.planning.figure.error_curves", lambda chosen: dict.fromkeys(CURVES, CURVE))
    chosen = {"clients": 100, "dim": 500, "bits": 16, "rounds": 1, "delta": 1e-5, "epsilon": 8.0, "target": "released"}
    draw_plan(chosen, tmp_path / "plan.png")
    (axes,) = drawn[0].axes
    assert list(axes.get_xticks()) == [1, 2, 4, 8, 16]
    low, high = axes.get_ylim()
    assert 0.08 < low < 0.1
    assert 1.05 < high < 1.3


CURVES = ("ddgauss", "skellam", "central", "local-gaussian")
CURVE = [(1.0, 1.0), (1.4, 0.8), (2.0, 0.6), (2.9, 0.5), (4.0, 0.4), (5.7, 0.3), (8.0, 0.2), (11.0, 0.15), (16.0, 0.1)]


# ------------------------------------------------------------------------------------------- tighter bounds


def gaussian_plan(**changed: Any) -> Plan:
    stated: dict[str, Any] = {
        **{"mechanism": "gaussian", "clients": 100, "dim": 500, "bits": 18, "clip": 1.0, "epsilon": 6.0},
        **{"delta": 1e-5, "rounds": 20, "max_dropout": 0.1, "adversarial": 0.05},
    }
    return plan_study(**stated | changed)


def test_pld_is_for_coins_only() -> None:
    sampled = {"population": 5000, "rounds": 100, "target": "conditional"}
    found = tighter_bounds(gaussian_plan(sampling="poisson", **sampled))
    assert found["accountant"] == "pld"
    assert 5.98 < found["epsilon_pld"] < 6
    assert tighter_bounds(gaussian_plan(sampling="lottery", **sampled))["epsilon_pld"] is None


def test_the_plan_shows_the_figure_that_sized_its_noise(run: Run) -> None:
    figures = planned(run, *PUBLISHED, "--mechanism", "gaussian", "--rounds", 50)
    assert figures["accountant"] == "pld"
    assert 0.997 * 8 < figures["epsilon_conditional"] <= 8
    assert figures["epsilon_conditional"] == figures["epsilon_pld"]


def test_unsampled_rounds_are_charged_exactly_on_any_but_coarse_grids() -> None:
    for mechanism in ("ddgauss", "skellam", "gaussian", "local-gaussian"):
        assert tighter_bounds(gaussian_plan(mechanism=mechanism)) == {"accountant": "exact", "epsilon_pld": None}
    coarse = gaussian_plan(mechanism="skellam", epsilon=30.0, bits=9, rounds=2)
    assert tighter_bounds(coarse)["accountant"] == "renyi"


def test_the_least_gaussian_noise() -> None:
    for epsilon in (0.5, 4.0):
        z = exact_gaussian_multiplier(epsilon, 1e-5)
        assert gaussian_delta(z, epsilon) <= 1e-5 < gaussian_delta(z * (1 - 1e-8), epsilon)
        assert exact_gaussian_multiplier(epsilon, 1e-5, 9) == pytest.approx(3 * z)


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rotation", "dct"), "--rotation dct is unknown"),
        (("--mechanism", "randomised-response"), 'sordino.MECHANISMS["randomised-response"]'),
        (("--clip-scaling", "even"), "--clip-scaling even is unknown"),
        (("--clip-update", "quadratic"), "--clip-update quadratic is unknown"),
        (("--layers", "100,x"), "--layers takes whole numbers"),
        (("--layers", "100,0"), "must be at least 1"),
        (("--layers", "100,200", "--dim", 500), "--layers hold 300 values, but --dim is 500"),
        (("--layers", "100,200", "--clips", "1"), "--clips states 1 for 2 layers"),
        (("--layers", "100,200", "--clips", "1,two"), "--clips takes numbers"),
        (("--layers", "100,200", "--clips", "1,-2"), "--clips: -2 is out of range"),
        (("--clips", "1", "--clip", 2), "either --clip"),
        (("--clip", "nan"), "--clip nan is out of range"),
        (("--clip-quantile", 0.5), "needs clips that adapt: add --clip-update"),
        (("--clip-update", "linear", "--clip-quantile", 1.5), "more than 0 and below 1"),
        (("--clip-update", "linear", "--clip-bit-weight", 2), "--clip-bit-weight 2 is out of range"),
        (("--sketch-rows", -1), "--sketch-rows -1 is out of range"),
        (("--sketch-ratio", 8), "needs --sketch-rows"),
        (("--sketch-rows", 5, "--layers", "1,2"), "either --layers or --sketch-rows"),
        (("--sampling", "coin", "--population", 1000), "--sampling coin is unknown"),
        (("--sampling", "fixed", "--population", 50), "Use at least 100"),
        (("--target", "conditional"), "needs --sampling poisson and --population"),
        (("--budget-coordinator", 5), "--epsilon is the budget of the target"),
        ((*PUBLISHED, "--budget-released", 5), "spends nothing"),
        (("--mechanism", "binomial", *LOTTERY), "leave --sampling out"),
        (("--mechanism", "binomial", "--clip-update", "linear"), "one fixed clip"),
        (("--plot", "plan.jpg"), "must end in .png or .svg"),
        (("--plot", "/nowhere/plan.png"), "in a folder that exists"),
        (("--beta", 1), "--beta 1 is out of range. Use 0 to 0.9"),
        (("--dim", 0), "must be at least 1"),
        (("--dim", 1 << 29), "at most 268435456"),
        (("--clients", 100_000), "--clients 100000 is too many for one sum. Use at most 65520"),
        (("--epsilon", -1), "--epsilon -1 is out of range"),
        (("--bits", 64), "--bits 64 is out of range. Use 1 to 62"),
        (("--rounds", 0), "--rounds 0 is out of range. Use 1 to 1,000,000"),
        (("--adversarial", 5), "such as 0.05 for 5 %"),
        (("--min-survivors", 101), "--min-survivors 101 exceeds --clients 100"),
        (("--quorum", 101), "--quorum 101 exceeds --clients 100"),
        (("--quorum", 3), "--quorum 3 is below --min-survivors 56"),
        (("--quorum", 60, "--min-survivors", 70), "min_survivors = 70 is above quorum = 60"),
    ],
)
def test_bad_options_are_one_clear_line(run: Run, arguments: tuple[object, ...], told: str) -> None:
    one_clear_error(run, told, "plan", *arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--bits", 8), "--bits"),
        (("--bits", 4), "--bits 9"),
        (("--mechanism", "skellam", "--bits", 40), "--bits"),
        (("--epsilon", 0.01, "--bits", 12), "--bits"),
        (("--sampling", "fixed", "--population", 10_000, "--target", "released", "--rounds", 500), "--rounds"),
        (("--clients", 2), "--clients"),
        (("--clients", 3), "--max-dropout 0.2 with --min-survivors 3"),
        (("--clients", 4), "--max-dropout 0.15 with --min-survivors 4"),
        (("--clients", 100, "--min-survivors", 95), "--min-survivors 70, or --max-dropout 0.05 with"),
        (("--clients", 20, "--max-dropout", 0.5), "--max-dropout 0.42 with --min-survivors 12"),
        (("--clients", 100, "--adversarial", 0.4), "--max-dropout 0.29 with --min-survivors 71, or --adversarial 0.39"),
        (("--clients", 2, "--max-dropout", 0, "--adversarial", 0), "--clients"),
        (("--min-survivors", 20), "--min-survivors 53"),
        (("--budget-released", 3), "--budget-released 8"),
        ((*LOTTERY, "--target", "released", "--budget-coordinator", 12), "--budget-coordinator 17, or --rounds "),
    ],
)
@pytest.mark.long
def test_what_a_refusal_suggests_can_be_typed_and_works(run: Run, arguments: tuple[object, ...], told: str) -> None:
    suggested = refusal(run, "plan", *arguments, code=3).splitlines()[1]
    assert suggested.startswith(f"Use {told}")
    for setting in suggested.removeprefix("Use ").rstrip(".").split(";")[0].split(", or "):
        output(run, "plan", *arguments, *setting.replace(" with ", " ").split())


@pytest.mark.long
def test_a_mechanism_that_is_only_compared_stands_in_its_own_table(run: Run) -> None:
    asked = ("--mechanism", "binomial", "--clients", 1000, "--rounds", 1, "--bits", 20, "--alternatives")
    rows = planned(run, *asked)["alternatives"]["rows"]
    assert [row["mechanism"] for row in rows].count("binomial") == 1
    assert rows[0]["noise_multiplier"] == planned(run, *asked)["noise_multiplier"]
    assert rows[0]["noise_cost"] > 10 * rows[-1]["noise_cost"]
    [marked] = [line for line in run("plan", *asked)[1].splitlines() if line.startswith("> ")]
    assert marked.split()[:3] == [">", "binomial", "20"]


def test_default_bounds_are_noted_by_plan(run: Run) -> None:
    mean = ("--clients", 100, "--rounds", 1, "--task", "mean", "--no-alternatives")
    told = words(run, "plan", *mean)
    assert "Note: the bounds 0 to 1 are the default, as neither low nor high is given" in told
    bounds = ("--task-option", "low=0", "--task-option", "high=1")
    assert "default" not in run("plan", *mean, *bounds)[1]
    assert "default" not in run("plan", "--clients", 100, "--rounds", 1, "--task", "histogram", "--no-alternatives")[1]
