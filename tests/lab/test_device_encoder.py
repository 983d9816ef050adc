"""Encoding on an accelerator: the laws of the participants' encoder, drawn otherwise. On the processor, and on an
accelerator where torch finds one.

Limits are such that a right law fails a check once in a million seeds; the seeds are fixed but in whole simulations.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from learning import device as device_module
from mechanisms.clip_rule import GEOMETRIC, ClipRule
from mechanisms.clipping import clip_layers, layers_in
from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.encoder import Encoder, coded_stddev, mean_stddev, words_of_sum
from mechanisms.evaluation import NO_METRICS, Evaluation, HeldOutMetrics
from mechanisms.lattice_noise import LatticeNoise, convolution_levels
from mechanisms.plan import Plan
from mechanisms.rotation import ROTATIONS, Rotation
from mechanisms.rounding import RoundingFailed
from mechanisms.skellam import skellam
from sordino import simulate_study
from sordino.lab.simulation import participants as participants_module
from sordino.lab.simulation.participants import accelerator_of
from sordino.lab.simulation.settings import SimulationSettings, resized, simulated_study
from tests.mechanisms.conftest import plan_for
from tests.mechanisms.lattice_laws import FALSE_ALARM, LARGEST_Z, chi_square, exact_law, z_scores

torch = pytest.importorskip("torch")
from sordino.lab.simulation.device_encoder import DeviceEncoder, DeviceNoise, DeviceRotation, round_rows  # noqa: E402

SEED = bytes(range(32))
NARROW = Fraction(49, 100)
WIDE = Fraction(3 * 10**7)  # of two tables


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no accelerator")
    return torch.device(request.param)


def source(device: Any, seed: int = 1) -> Any:
    return torch.Generator(device).manual_seed(seed)


def drawn(law: LatticeNoise, device: Any, size: int) -> np.ndarray:
    return DeviceNoise(law, device).draw(torch.Size([size]), source(device)).cpu().numpy()


# ------------------------------------------------------------------------------------------------ noise


@pytest.mark.parametrize("variance", [NARROW, Fraction(150), WIDE], ids=["narrow", "one table", "two tables"])
@pytest.mark.parametrize("law", [discrete_gaussian, skellam])
def test_tables_hold_the_exact_law_up_to_63_bits(law: Any, variance: Fraction) -> None:
    sampler = law(variance)
    levels = DeviceNoise(sampler, torch.device("cpu"))._levels
    assert len(levels) == len(sampler.tables)
    parts = convolution_levels(variance)
    for (thresholds, reach, step), (part, expected_step) in zip(levels, parts, strict=True):
        assert step == expected_step
        ends = [0, *thresholds.tolist(), 1 << 63]
        exact = exact_law(sampler.weights(part, step), step)
        assert len(ends) - 1 == 2 * reach + 1 < 1 << 15
        for place, (before, after) in enumerate(pairwise(ends)):
            off = Fraction(after - before, 1 << 63) - exact.get((place - reach) * step, 0)
            assert abs(off) < Fraction(1, 1 << 63)


@pytest.mark.parametrize("variance", [NARROW, Fraction(150)])
@pytest.mark.parametrize("law", [discrete_gaussian, skellam])
def test_draws_have_the_law_of_the_tables(law: Any, variance: Fraction, device: Any) -> None:
    sample = drawn(law(variance), device, 1 << 21)
    pmf = np.array([float(Fraction(weight, 1 << 256)) for weight in law(variance).weights(variance, 1)])
    assert chi_square(sample, pmf) > FALSE_ALARM
    assert max(map(abs, z_scores(sample, pmf))) < LARGEST_Z


@pytest.mark.parametrize("law", [discrete_gaussian, skellam])
def test_a_rounded_gaussian_of_the_same_variance_is_told_apart(law: Any) -> None:
    """Rounding adds 1/12 to the variance of a continuous one, to well below what this sample shows."""
    sample = np.rint(np.random.default_rng(1).normal(0, math.sqrt(NARROW - Fraction(1, 12)), 1 << 21)).astype(int)
    pmf = np.array([float(Fraction(weight, 1 << 256)) for weight in law(NARROW).weights(NARROW, 1)])
    assert chi_square(sample, pmf) < FALSE_ALARM


@pytest.mark.parametrize("law", [discrete_gaussian, skellam])
def test_a_wide_law_is_the_sum_of_its_tables(law: Any, device: Any) -> None:
    """Beside the variance: its residues modulo an odd number far below the deviation are uniform."""
    from scipy import stats

    sample = drawn(law(WIDE), device, 1 << 20).astype(np.float64)
    assert abs(sample.mean()) < LARGEST_Z * math.sqrt(WIDE / sample.size)
    assert abs(np.mean(sample**2) / float(WIDE) - 1) < LARGEST_Z * math.sqrt(2 / sample.size)
    residues = np.bincount(sample.astype(np.int64) % 97, minlength=97)
    assert stats.chisquare(residues).pvalue > FALSE_ALARM


# ------------------------------------------------------------------------------------------------ rotation, rounding


@pytest.mark.parametrize("kind", ROTATIONS)
@pytest.mark.parametrize("dim", [1, 2, 100, 500, 70_000])
def test_it_is_the_rotation_that_the_coordinator_undoes(kind: str, dim: int, device: Any) -> None:
    rotation, vectors = Rotation(SEED, dim, kind), np.random.default_rng(dim).normal(size=(3, dim))
    values = torch.zeros(3, rotation.padded_dim, dtype=torch.float64, device=device)
    values[:, :dim] = torch.from_numpy(vectors).to(device)
    found = DeviceRotation(rotation, device).forward(values).cpu().numpy()
    np.testing.assert_allclose(found, [rotation.forward(vector) for vector in vectors], rtol=0, atol=1e-9)
    np.testing.assert_allclose(rotation.inverse(found[1]), vectors[1], rtol=0, atol=1e-9)


def test_rounding_goes_to_a_neighbour_without_bias(device: Any) -> None:
    values = np.array([0.0, 3.0, -7.0, 0.3, -0.3, 2.75, -2.75, 1e-3, 123456.5, -1e-20])
    rows = torch.from_numpy(np.tile(values, (100_000, 1))).to(device)
    found = round_rows(rows, 1 << 60, source(device)).cpu().numpy()
    assert np.all((found == np.floor(values)) | (found == np.ceil(values)))
    share = values - np.floor(values)
    assert np.all(np.abs(found.mean(axis=0) - values) <= LARGEST_Z * np.sqrt(share * (1 - share) / len(found)) + 1e-15)
    assert abs(np.corrcoef(found[:, 3], found[:, 5])[0, 1]) < LARGEST_Z / math.sqrt(len(found))


def test_rows_above_the_bound_alone_are_drawn_again(device: Any) -> None:
    """Values of 1/2 everywhere round to squared norms about 50 +- 5: with a limit of 50 half of all tries fail."""
    values = torch.full((200, 100), 0.5, dtype=torch.float64, device=device)
    first = round_rows(values, 100, source(device)).cpu().numpy()
    found = round_rows(values, 50, source(device)).cpu().numpy()
    met = np.sum(first**2, axis=1) <= 50
    assert 60 < np.count_nonzero(met) < 160
    assert np.array_equal(found[met], first[met])
    assert np.sum(found**2, axis=1).max() <= 50
    assert np.all((found == 0) | (found == 1))
    with pytest.raises(RoundingFailed, match="in 7 tries"):
        round_rows(values, 10, source(device), most_tries=7)


# ------------------------------------------------------------------------------------------------ the whole

DIM, CLIENTS, TRIALS = 100, 40, 60


def plan_of(mechanism: str = "ddgauss", **changes: object) -> Plan:
    stated = {"dim": DIM, "bits": 20, "epsilon": 8.0, "rounds": 3, "min_survivors": 20, "quorum": 21}
    return plan_for(CLIENTS, mechanism=mechanism, **stated | changes)


ADAPTIVE = {"update": GEOMETRIC, "quantile": 0.5, "rate": 0.3, "bit_weight": 0.3}
EVALUATION = Evaluation(held_out=0.2, weight=0.5, most_examples=10, largest_loss=4.0)
CODINGS: dict[str, dict[str, object]] = {
    "flat": {},
    "skellam": {"mechanism": "skellam", "rotation": "hadamard-blocks"},
    "local": {"mechanism": "local-gaussian"},
    "adaptive": {"clip": None, "clipping": ClipRule.flat(DIM, 1.0, **ADAPTIVE)},  # type: ignore[arg-type]
    "layers": {"clip": None, "clipping": ClipRule(layers=(60, 40), clips=(0.5, 2.0), scaling="proportional")},
    "all": {
        "clip": None,
        "clipping": ClipRule(layers=(60, 40), clips=(0.5, 2.0), scaling="least-noise", **ADAPTIVE),  # type: ignore[arg-type]
        "evaluation": EVALUATION,
    },
}


def updates_of(seed: int) -> np.ndarray:
    """Some below and some above the clips."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(CLIENTS, DIM)) * rng.uniform(0.02, 0.3, (CLIENTS, 1))).astype(np.float32)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("diverged", [(), (0, 7)], ids=["sound", "diverged"])
@pytest.mark.long
def test_the_host_decodes_its_sum(coding: str, diverged: tuple[int, ...], device: Any) -> None:
    """Sums of two shards: the mean of the clipped updates, with the stated deviation; what diverged adds only noise."""
    plan = plan_of(**CODINGS[coding])  # type: ignore[arg-type]
    rule, errors, below, reported = plan.clipping, [], [], []
    encoder = Encoder(plan, SEED, survivors=CLIENTS)
    assert len(encoder.laws) <= 1 + plan.noise_parts
    on_device = DeviceEncoder(encoder, device, seed=1)
    metrics = [HeldOutMetrics(10, 0.8, 1.0)] * CLIENTS
    scale = np.repeat(encoder.scales, rule.layers)
    for trial in range(TRIALS):
        updates = updates_of(trial)
        updates[list(diverged), trial] = (np.nan, np.inf)[trial % 2]
        parts = [on_device.total(updates[part], metrics[part]) for part in (slice(0, 15), slice(15, CLIENTS))]
        norms = np.concatenate([norms for _, norms in parts])
        sound = [row for row in range(CLIENTS) if row not in diverged]
        assert not np.isfinite(norms[list(diverged)]).all(axis=1).any()
        clipped = []
        for row in sound:
            scaled, expected = clip_layers(updates[row], rule.layers, encoder.clips, encoder.scales)
            np.testing.assert_allclose(norms[row], expected, rtol=1e-12)
            clipped.append(scaled)
        decoded = encoder.decode(words_of_sum(parts[0][0] + parts[1][0], plan.bits), CLIENTS)
        errors.append(decoded.mean / scale - np.sum(clipped, axis=0) / CLIENTS)
        if rule.adaptive:
            truth = np.sum(norms[sound] <= np.array(encoder.clips), axis=0) + len(diverged) / 2
            below.append(np.array(decoded.below) - truth / CLIENTS)
        if decoded.measured:
            reported.append(decoded.measured)
    stddev, error = coded_stddev(plan, CLIENTS, encoder.clips), np.concatenate(errors)
    assert not on_device._clipped(updates, metrics)[0][list(diverged)].any()
    spread = LARGEST_Z / math.sqrt(2 * error.size)
    without_rounding = math.sqrt(stddev**2 - (encoder.granularity / 2) ** 2 / CLIENTS)
    assert without_rounding * (1 - spread) < error.std() < stddev * (1 + spread)
    assert abs(error.mean()) < LARGEST_Z * stddev / math.sqrt(error.size)
    assert decoded.stddev == pytest.approx(stddev * max(encoder.scales))
    if rule.adaptive:  # a share is cut to [0, 1], which these noises hardly reach
        spread = stddev / rule.bit_size(encoder.clips)
        assert np.all(np.abs(np.mean(below, axis=0)) < LARGEST_Z * spread / math.sqrt(TRIALS))
    if plan.evaluation:
        accuracy, error_of = np.mean([(one.accuracy, one.accuracy_stderr) for one in reported], axis=0)
        assert len(reported) == TRIALS
        assert accuracy == pytest.approx(0.8, abs=LARGEST_Z * error_of / math.sqrt(TRIALS) + 0.02)


def test_long_updates_of_doubles_and_halves_are_clipped(device: Any) -> None:
    """Also a layer of zeros. 1e4 participants' worth of privacy: nearly no noise."""
    plan = plan_of(epsilon=1e5, **CODINGS["layers"])
    encoder = Encoder(plan, SEED, survivors=CLIENTS)
    for kind, size in ((np.float64, 1e100), (np.float64, 1e-100), (np.float16, 100.0)):
        updates = (np.random.default_rng(1).normal(size=(CLIENTS, DIM)) * size).astype(kind)
        updates[:, :60] = 0
        total, _ = DeviceEncoder(encoder, device, seed=1).total(updates, [NO_METRICS] * CLIENTS)
        clipped = [clip_layers(one, (60, 40), encoder.clips, encoder.scales)[0] for one in updates]
        found = encoder.decode(words_of_sum(total, plan.bits), CLIENTS)
        for layer, expected, scale in zip(
            layers_in(found.mean, (60, 40)), layers_in(np.mean(clipped, axis=0), (60, 40)), encoder.scales, strict=True
        ):
            assert np.all(np.abs(layer - expected * scale) < 6 * found.stddev)


def test_seeds_are_fresh_unless_a_test_gives_one() -> None:
    encoder, updates = Encoder(plan_of(), SEED), updates_of(1)
    totals = [
        DeviceEncoder(encoder, torch.device("cpu"), seed).total(updates, [NO_METRICS] * CLIENTS)[0]
        for seed in (1, 1, None, None)
    ]
    assert np.array_equal(totals[0], totals[1])
    assert np.count_nonzero(totals[2] == totals[3]) < 10
    assert np.count_nonzero(totals[2] == totals[0]) < 10


# ------------------------------------------------------------------------------------------------ in a simulation

STUDY = simulated_study(participants=80, rounds=3, epsilon=50.0, bits=20, clip=1.0, mechanism="skellam")
SETTINGS = SimulationSettings(study=resized(STUDY, 0, clip_update="geometric", clip_by_layer=True), drop=0.1)


def force(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Encode on torch's processor as if it were an accelerator; the list grows with each shard that is."""
    shards: list[int] = []
    total = DeviceEncoder.total

    def counted(self: DeviceEncoder, updates: Any, metrics: Any) -> Any:
        shards.append(len(updates))
        return total(self, updates, metrics)

    monkeypatch.setattr(participants_module, "accelerator_of", lambda task: torch.device("cpu"))
    monkeypatch.setattr(DeviceEncoder, "total", counted)
    return shards


def test_a_run_spends_and_learns_what_it_does_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = simulate_study(SETTINGS)
    shards = force(monkeypatch)
    found = simulate_study(SETTINGS)
    assert sum(shards) == sum(row["survivors"] for row in found.rows)
    assert [list(row) for row in found.rows] == [list(row) for row in host.rows]
    for name in ("round", "survivors", "epsilon_coordinator", "epsilon_released"):
        assert [row[name] for row in found.rows] == [row[name] for row in host.rows], name
    first, other = found.rows[0], host.rows[0]  # later ones begin with other models
    assert first["exactly_below_clip"] == other["exactly_below_clip"]
    assert first["update_norms"] == pytest.approx(other["update_norms"])
    assert first["below_clip"] == pytest.approx(first["exactly_below_clip"], abs=0.3)
    for row in found.rows:
        assert row["wrapped_share"] < 1e-3
        assert row["diverged"] == 0
    assert found.rows[-1]["accuracy"] == pytest.approx(host.rows[-1]["accuracy"], abs=0.15)
    assert found.summary["epsilon_coordinator"] == host.summary["epsilon_coordinator"]


def test_models_differ_by_the_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.changed(study=resized(STUDY, 0, rounds=1))
    host = simulate_study(settings)
    force(monkeypatch)
    found = simulate_study(settings)
    difference = np.concatenate([(found.parameters[name] - host.parameters[name]).ravel() for name in host.parameters])
    plan = settings.plan()
    assert plan is not None
    stated = math.sqrt(2) * mean_stddev(plan, host.rows[0]["survivors"])
    assert np.sqrt(np.mean(difference**2)) == pytest.approx(stated, rel=LARGEST_Z / math.sqrt(2 * difference.size))


@pytest.mark.parametrize(
    ("study", "settings", "there"),
    [
        ({}, {}, True),
        ({"mechanism": "gaussian"}, {}, True),
        ({"mechanism": "none"}, {}, False),
        ({"sketch_rows": 5}, {}, False),
        ({"participants": 10}, {"secagg": "real"}, False),
    ],
    ids=["noise", "central", "none", "sketch", "real"],
)
def test_what_is_encoded_there(
    study: dict[str, Any], settings: dict[str, Any], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = force(monkeypatch)
    found = simulate_study(SimulationSettings(study=resized(STUDY, 0, rounds=1, **study), **settings))
    assert found.summary["rounds_completed"] == 1
    assert bool(shards) == there


def test_it_is_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_task, torch_task = (resized(STUDY, 0, task=task).make_task() for task in ("softmax-regression", "cnn"))
    monkeypatch.setattr(device_module, "_chosen", "auto")
    assert accelerator_of(numpy_task) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerator_of(torch_task) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert accelerator_of(torch_task) == torch.device("cuda")
    monkeypatch.setattr(device_module, "_chosen", "cpu")
    assert accelerator_of(torch_task) is None


def test_a_run_on_an_accelerator() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no accelerator")
    study = resized(STUDY, 0, task="cnn", participants=40, rounds=1)
    found = simulate_study(SimulationSettings(study=study, device="cuda"))
    assert found.rows[0]["wrapped_share"] < 1e-3
