"""``sordino experiment dme``: the real encoder against closed forms, and what is printed, written and drawn.

At the end what every experiment refuses.

Statistics: noise comes from the operating system here, so every bound states its chance of a false alarm.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.cli.verbs import counting
from sordino.lab.experiments import blur_lus, clipping, dme
from sordino.lab.experiments.outcome import PAPER
from sordino.planning.alternatives import exact_gaussian_multiplier
from tests.support.commands import Run, one_clear_error, output, refusal, says

SETTING = dme.Setting(
    mechanism="ddgauss",
    clients=10,
    dim=250,
    bits=16,
    epsilon=4.0,
    delta=1e-5,
    clip=10.0,
    k_stddevs=4.0,
    data="sphere",
    seed=1,
)
FASHION = "fashion-mnist-subset"


def closed_form_rows(bits: list[int]) -> list[dict[str, Any]]:
    """Rows without trials for two sizes, both distributed mechanisms and three epsilons."""
    grid = itertools.product([100, 1000], ["ddgauss", "skellam"], bits, [0.75, 2, 6])
    return dme.run([replace(SETTING, clients=n, mechanism=one, bits=b, epsilon=e) for n, one, b, e in grid], trials=0)


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian", "local-gaussian"])
def test_simulated_error_is_the_closed_form(mechanism: str) -> None:
    """60 trials x 250 values: a relative deviation of 1.2 %; 7 of them are a false alarm in 10^11 runs.

    The naive closed form without rounding is 5 % lower at 8 bits: see the next test.
    """
    (row,) = dme.run([replace(SETTING, mechanism=mechanism)], trials=60)
    assert row["trials"] == 60
    assert row["simulated_over_expected"] == pytest.approx(1, abs=0.085)
    assert row["mse_standard_error"] == pytest.approx(row["mse_closed_form"] * math.sqrt(2 / 250 / 60), rel=0.5)


@pytest.mark.long
def test_rounding_counts_on_coarse_grids() -> None:
    """100 clients at 9 bits: rounding is an eighth of the error, which the naive closed form of the noise alone misses.

    50 trials x 250 values: 1.27 % deviation; 5 of them are a false alarm in 10^6 runs, and the naive form is beyond 9.
    """
    setting = replace(SETTING, mechanism="skellam", clients=100, bits=9, epsilon=6.0)
    (row,) = dme.run([setting], trials=50)
    plan = dme.plan_of(setting)
    without = plan.local_stddev**2 / setting.clients
    assert row["mse_expected"] > 1.12 * without
    assert row["simulated_over_expected"] == pytest.approx(1, abs=0.063)


def test_at_16_bits_the_distributed_mechanisms_cost_at_most_a_fifth_more_than_a_central_gaussian() -> None:
    for row in closed_form_rows([16, 20]):
        assert 1 < row["closed_form_over_central"] <= 1.2
        assert row["epsilon_achieved"] <= row["epsilon"]
        assert "mse_simulated" not in row


def test_at_10_bits_exact_deviations_beat_whole_ones() -> None:
    """The naive sampler draws whole deviations only: its grid's deviation is rounded up to the next integer."""
    for row in closed_form_rows([10]):
        assert row["mse_closed_form"] < 0.95 * row["mse_integer_stddev"]


def test_closed_forms_agree_where_the_grid_is_fine_and_the_central_gaussian_is_the_exact_one() -> None:
    forms = dme.closed_forms(dme.plan_of(SETTING))
    assert forms["expected"] == pytest.approx(forms["closed_form"], rel=1e-12)
    (row,) = dme.run([SETTING], trials=0)
    assert row["mse_central"] == pytest.approx((exact_gaussian_multiplier(4.0, 1e-5) * 10 / 10) ** 2)


def test_the_rounding_variance_is_that_of_normal_values() -> None:
    """Against the sum over the cells of the grid, by quadrature."""
    for spread in (0.005, 0.05, 0.15, 0.4, 1.5):
        x = np.linspace(-12 * spread, 12 * spread, 400_001)
        density = np.exp(-((x / spread) ** 2) / 2)
        fraction = x - np.floor(x)
        expected = float(np.sum(density * fraction * (1 - fraction)) / np.sum(density))
        assert dme.rounding_variance(spread) == pytest.approx(expected, rel=2e-3)
    assert dme.rounding_variance(0.5) == pytest.approx(1 / 6, rel=5e-3)


def test_data_is_on_the_sphere_and_public() -> None:
    vectors = dme.vectors_of(SETTING, 3)
    assert vectors.shape == (10, 250)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(10.0)
    assert np.array_equal(vectors, dme.vectors_of(replace(SETTING, mechanism="skellam", epsilon=1.0, bits=10), 3))
    assert not np.array_equal(vectors, dme.vectors_of(SETTING, 4))
    assert not np.array_equal(vectors, dme.vectors_of(replace(SETTING, seed=2), 3))
    equal = dme.vectors_of(replace(SETTING, data="equal"), 3)
    assert np.array_equal(equal[0], equal[9])


def test_noise_is_fresh_in_every_run() -> None:
    plan = dme.plan_of(SETTING)
    assert dme.squared_error(plan, SETTING, 0) != dme.squared_error(plan, SETTING, 0)


def test_an_infeasible_setting_is_a_row() -> None:
    rows = dme.run([replace(SETTING, bits=3), SETTING], trials=1)
    assert [row["feasible"] for row in rows] == [False, True]
    assert rows[0]["suggestion"].endswith("bits work")
    assert rows[1]["mse_standard_error"] is None


@pytest.mark.slow
@pytest.mark.xdist_group("commands")
def test_processes_give_the_same_rows() -> None:
    settings = [replace(SETTING, clients=20), replace(SETTING, clients=20, bits=12)]
    told: list[tuple[int, int]] = []
    rows = dme.run(settings, trials=60, workers=2, progress=lambda done, of: told.append((done, of)))
    assert [row["trials"] for row in rows] == [60, 60]
    assert told[-1] == (2400, 2400)
    assert all(row["simulated_over_expected"] == pytest.approx(1, abs=0.085) for row in rows)


SHORT = ("experiment", "dme", "--clients", "10,20", "--epsilons", "1,4", "--bits", "10,16", "--trials", 2)


@pytest.mark.long
def test_json_csv_and_figure(run: Run, tmp_path: Path) -> None:
    out = output(run, *SHORT, "--json", "--csv", tmp_path / "dme.csv", "--figure", tmp_path / "dme.svg")
    body: dict[str, Any] = json.loads(out)
    assert len(body["rows"]) == 16
    assert {"mse_simulated", "mse_closed_form", "mse_central", "mse_integer_stddev"} <= set(body["rows"][0])
    rows = list(csv.DictReader((tmp_path / "dme.csv").open()))
    assert len(rows) == 16
    assert float(rows[0]["mse_simulated"]) == body["rows"][0]["mse_simulated"]
    assert (tmp_path / "dme.svg").read_text().startswith("<?xml")


def test_the_table(run: Run) -> None:
    out = output(run, *SHORT)
    assert "250 values, clip 10, one round, delta 1e-05, data sphere\nAdjacency: zero-out\n" in out
    assert "Mean squared error, simulated (2 trials each), as a factor" in out
    assert "skellam, 20 participants, simulated, each ± " in out
    says(out, "% (standard error)", "Simulated over (s^2 + 1/6) granularity^2 / n:", "16 bits or more: at most 1.000")
    assert max(len(line) for line in out.splitlines()) <= 80


def test_the_table_of_closed_forms(run: Run) -> None:
    out = output(run, *SHORT[:-1], 0, "--mechanisms", "skellam,local-gaussian")
    says(out, "Mean squared error, closed form, as a factor", "skellam, 20 participants, closed form\n")
    assert "standard error" not in out
    assert "Adjacency: zero-out (skellam), replace-one (local-gaussian)" in out


def test_the_summary_of_distributed_noise_leaves_out_other_mechanisms(run: Run) -> None:
    """The naive summary would call local noise near a central Gaussian's, which it isn't."""
    for mechanism in ("gaussian", "local-gaussian"):
        _, out, _ = run(*SHORT[:-1], 0, "--mechanisms", mechanism)
        assert "16 bits or more" not in out
        assert "whole deviations" not in out


def test_progress_is_rewritten_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tell = counting("rounds")
    for terminal, kind, told in (
        (True, "xterm", "\r3 of 8,192 rounds\r8,192 of 8,192 rounds\r\x1b[K"),
        (True, "dumb", ""),
        (False, "xterm", ""),
    ):
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        tell(3, 8192)
        tell(8192, 8192)
        assert capsys.readouterr() == ("", told)


BAD_INPUT: dict[str, list[tuple[tuple[object, ...], int, str]]] = {
    "dme": [
        (("--clients", "many"), 2, "--clients takes whole numbers"),
        (("--epsilons", "1,x"), 2, "--epsilons takes numbers"),
        (("--epsilons", "nan"), 2, "--epsilons nan is out of range"),
        (("--clients", "2"), 2, "--clients 2 is too few"),
        (("--dim", 0), 2, "--dim 0 is out of range"),
        (("--delta", 1), 2, "--delta 1 is out of range"),
        (("--mechanisms", "laplace"), 2, "--mechanisms laplace is unknown"),
        (("--data", "none"), 2, "--data none is unknown"),
        (("--trials", -1), 2, "sordino experiment dme: --trials -1 is out of range"),
        (("--workers", 0), 2, "--workers 0 is out of range"),
        (("--clip", 0), 2, "--clip 0 is out of range"),
        (("--bits", "3"), 3, "3 bits cannot hold"),
        (("--figure", "dme.pdf"), 2, "must end in .png or .svg"),
        (("--csv", "/nowhere/dme.csv"), 2, "in a folder that exists"),
    ],
    "audit": [
        (("--mechanisms", "laplace"), 2, "--mechanisms laplace is unknown"),
        (("--scale", "huge"), 2, "--scale huge is unknown. Use one of: small, paper."),
        (("--noise-divided-by", "0.5"), 2, "--noise-divided-by 0.5 is out of range. Use 1 to 1,000."),
        (("--noise-divided-by", "four"), 2, "--noise-divided-by takes numbers"),
        (("--canaries", "5"), 2, "--canaries 5 is out of range"),
        (("--canaries", "500", "--dim", "100"), 2, "--dim 100 is out of range. Use 500 to 1,048,576."),
        (("--leaving", "0.2"), 2, "--leaving 0.2 is out of range. Use 0 to 0.1."),
        (("--max-dropout", "-1"), 2, "--max-dropout -1 is out of range"),
        (("--confidence", "1"), 2, "--confidence 1 is out of range. Use at least 0.5 and below 1."),
        (("--delta", "0"), 2, "--delta 0 is out of range"),
        (("--figure", "audit.pdf"), 2, "must end in .png or .svg"),
        (("--canaries", "100", "--bits", "3"), 3, "bits"),
    ],
    "blur-lus": [
        (("--scale", "large"), 2, "--scale large is unknown"),
        (("--seeds", "a"), 2, "--seeds takes whole numbers"),
        (("--seeds", "101"), 2, "101 and 102 are those of selections"),
        (("--seeds", "-1"), 2, "--seeds -1"),
        (("--workers", 0), 2, "--workers 0 is out of range"),
        (("--parts", "all"), 2, "--parts all is unknown"),
        (("--text", "shakespeare"), 2, "--text shakespeare: blur-lus has no use for it"),
        (("--device", "tpu"), 2, "--device tpu is unknown"),
        (("--data", "No Such"), 2, "--data No Such is unknown"),
    ],
    "bits": [(("--parts", "text", "--text", FASHION), 2, "words and as many labels: name another data set")],
    "compression": [(("--scale", "paper", "--data", FASHION), 2, "6000 examples are too few for 3400 participants")],
    "clipping": [(("--data", "nope"), 2, "data set 'nope' is unknown")],
    "dropout": [(("--data", "nope"), 2, "data set 'nope' is unknown")],
}


@pytest.mark.parametrize(
    ("experiment", "arguments", "code", "told"), [(name, *case) for name, cases in BAD_INPUT.items() for case in cases]
)
def test_bad_input_is_one_clear_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, arguments: Any, code: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where grids put their files
    one_clear_error(run, told, "experiment", experiment, *arguments, code=code)
    assert not list(tmp_path.iterdir())


def test_the_papers_sizes_name_what_they_need(run: Run, tmp_path: Path) -> None:
    """Data of that size can't be had everywhere."""
    for name in ("clipping", "blur-lus", "compression", "bits"):
        one_clear_error(run, "--data femnist:PATH", "experiment", name, "--scale", "paper", "--output", tmp_path)
    sizes = clipping.SIZES[PAPER]
    assert (sizes.participants, sizes.cohort, sizes.rounds) == (3400, 100, 1500)


@pytest.mark.parametrize("name", ["bits", "clipping"])
def test_text_is_missed_before_images_are_played(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SORDINO_DATA_FOLDER", str(tmp_path / "nothing"))
    err = refusal(run, "experiment", name, "--seeds", 1, "--workers", 1, "--output", tmp_path / name)
    assert "make it with sordino data prepare shakespeare --vocabulary 200 --as shakespeare-200" in err
    assert "choosing" not in err


def test_colour_is_missed_before_anything_is_played(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    sizes, grey = blur_lus.SIZES, "fashion-mnist-subset"
    monkeypatch.setitem(sizes, PAPER, replace(sizes[PAPER], participants=1000))
    monkeypatch.chdir(tmp_path)
    papers = ("experiment", "blur-lus", "--scale", "paper", "--data", grey, "--parts", "epsilon,alpha")
    assert "the papers' size takes CIFAR-10 for alpha" in refusal(run, *papers)
    assert "32 x 32 images with 3 channels: name another data set" in refusal(run, *papers, "--colour", grey)
    assert not list(tmp_path.iterdir())
