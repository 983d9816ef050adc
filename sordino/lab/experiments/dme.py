"""Distributed mean estimation ([KLS21] section 6.1): the cost of noise, grid and word length in accuracy.

Each participant holds a vector on the sphere whose radius is the clip. One round; none leave or collude, as published.
Every trial draws new vectors and a new rotation from a public seed, and runs a study's encoder: encode for each
participant, sum modulo 2^B, decode. Noise and rounding draw on the operating system.

Closed form of the mean squared error of one value of the mean, for n participants, granularity g and the variance s^2
of one noise share in grid units:

    (s^2 + 1/6) g^2 / n

Rounding x up with probability f, its fractional part, has variance f (1 - f); its mean is 1/6 if f is spread evenly.
After the rotation a coordinate of a vector on the sphere is close to normal with deviation t = clip / (g sqrt(d)), and
the mean of f (1 - f) is 1/6 - sum_k e^(-2 pi^2 k^2 t^2) / (pi^2 k^2): within half a percent of 1/6 from t = 1/2 on, and
less on coarser grids. Both are reported.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.encoder import Encoder, words_of_sum
from mechanisms.plan import InfeasiblePlan
from runtime.text import counted
from sordino.lab.experiments.runs import spread
from sordino.lab.experiments.tables import Table
from sordino.planning.alternatives import exact_gaussian_multiplier
from sordino.planning.drawing import COLOURS, LOG, Axes, Picture, Series, draw as draw_picture
from wire.study import plan_study

if TYPE_CHECKING:
    from mechanisms.plan import Plan

Vectors = NDArray[np.float64]

SPHERE: Final = "sphere"
_CHUNK_ENCODINGS: Final = 4000  # a chunk of trials takes about half a second


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of the experiment.

    Attributes:
        clip: radius of the sphere and L2 clip, data units.
        data: "sphere": independent vectors; "equal": all participants hold the same one, the worst case for wrapping.
        seed: of vectors and rotations, public. Noise never depends on it.
    """

    mechanism: str
    clients: int
    dim: int
    bits: int
    epsilon: float
    delta: float
    clip: float
    k_stddevs: float
    data: str
    seed: int


Chunk = tuple[int, Setting, range]
"""The index of a setting, the setting, and some of its trials: what one process does at a time."""


def plan_of(setting: Setting) -> Plan:
    """Return the plan of one round in which all survive and none collude; `InfeasiblePlan` if there is none."""
    stated = {name: value for name, value in asdict(setting).items() if name not in ("data", "seed")}
    return plan_study(**stated, rounds=1, max_dropout=0.0, adversarial=0.0, min_survivors=setting.clients)


def vectors_of(setting: Setting, trial: int) -> Vectors:
    """(clients, dim): vectors uniform on the sphere of radius clip, the same for every mechanism, bits and epsilon."""
    draw = np.random.default_rng([setting.seed, trial, setting.clients, setting.dim])
    count = setting.clients if setting.data == SPHERE else 1
    vectors = draw.standard_normal((count, setting.dim))
    vectors *= setting.clip / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.broadcast_to(vectors, (setting.clients, setting.dim))


def squared_error(plan: Plan, setting: Setting, trial: int) -> float:
    """Return the mean squared error of one value of the mean: encoded by all, summed mod 2^B, decoded."""
    vectors = vectors_of(setting, trial)
    name = f"sordino experiment dme rotation {setting.seed} {trial}"
    encoder = Encoder(plan, hashlib.sha256(name.encode()).digest())
    total = np.zeros(plan.padded_dim, np.uint64)
    for vector in vectors:
        total += encoder.encode(vector, os.urandom)  # wraps modulo 2^64, a multiple of 2^B
    mean = encoder.decode_sum(words_of_sum(total, plan.bits), setting.clients, os.urandom)
    return float(np.mean((mean - vectors.mean(axis=0)) ** 2))


def run_chunk(chunk: Chunk) -> list[float]:
    _, setting, trials = chunk
    plan = plan_of(setting)
    return [squared_error(plan, setting, trial) for trial in trials]


def rounding_variance(spread: float) -> float:
    """Mean of f (1 - f) over the fractional parts f of a normal variable of deviation ``spread``, in grid steps.

    1/6 - sum over k >= 1 of e^(-2 pi^2 k^2 spread^2) / (pi^2 k^2); sqrt(2 / pi) spread for small ones, where the sum
    converges slowly and almost all values lie within one step of 0.
    """
    if spread < 0.02:
        return math.sqrt(2 / math.pi) * spread - spread * spread
    terms = (math.exp(-2 * (math.pi * k * spread) ** 2) / (math.pi * k) ** 2 for k in range(1, 200))
    return 1 / 6 - sum(terms)


def closed_forms(plan: Plan) -> dict[str, float]:
    """Return the expected mean squared errors of one value of the mean, if nothing wraps around.

    Returns:
        closed_form: (s^2 + 1/6) g^2 / n; expected: the same with the rounding's variance on this grid; integer_stddev:
        the first with the deviation of a share, in grid units, rounded up, as samplers for whole deviations need it.
    """
    n, g2 = plan.clients, plan.granularity**2
    noise = plan.full_stddev**2 / g2 / n  # of one share, also where the coordinator adds all of it
    spread = plan.clip / plan.granularity / math.sqrt(plan.padded_dim)
    return {
        "closed_form": (noise + 1 / 6) * g2 / n,
        "expected": (noise + rounding_variance(spread)) * g2 / n,
        "integer_stddev": (math.ceil(math.sqrt(noise)) ** 2 + 1 / 6) * g2 / n,
    }


def run(
    settings: Sequence[Setting],
    trials: int,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[dict[str, Any]]:
    """Run every setting.

    Args:
        trials: per setting; 0 gives only the closed forms.
        workers: processes; 1 works in this one.
        progress: called with the number of encodings done and the total.

    Returns one row per setting, under stable JSON names; a row of an infeasible setting holds the reason.
    """
    rows: list[dict[str, Any]] = []
    chunks: list[Chunk] = []
    multipliers = {(one.epsilon, one.delta): exact_gaussian_multiplier(one.epsilon, one.delta) for one in set(settings)}
    for index, setting in enumerate(settings):
        central = (multipliers[setting.epsilon, setting.delta] * setting.clip / setting.clients) ** 2
        row: dict[str, Any] = {name: getattr(setting, name) for name in ("clients", "mechanism", "bits", "epsilon")}
        row["mse_central"] = central
        rows.append(row)
        try:
            plan = plan_of(setting)
        except InfeasiblePlan as problem:
            row |= {"feasible": False, "reason": problem.reason, "suggestion": problem.suggestion}
            continue
        forms = closed_forms(plan)
        row |= {
            "feasible": True,
            "epsilon_achieved": plan.planned_epsilon,
            **{name: getattr(plan, name) for name in ("adjacency", "padded_dim", "granularity", "local_stddev")},
            "local_stddev_grid": math.sqrt(plan.local_variance),
            "noise_multiplier": plan.noise_multiplier,
            **{f"mse_{name}": form for name, form in forms.items()},
            "closed_form_over_central": forms["closed_form"] / central,
        }
        each = max(1, _CHUNK_ENCODINGS // setting.clients)
        chunks += [(index, setting, range(at, min(at + each, trials))) for at in range(0, trials, each)]
    errors: dict[int, list[float]] = {}
    work, done = sum(len(part) * setting.clients for _, setting, part in chunks), 0
    for (index, setting, _), found in spread(run_chunk, chunks, workers):
        errors.setdefault(index, []).extend(found)
        done += len(found) * setting.clients
        progress(done, work)
    for index, found in errors.items():
        rows[index] |= _measured(rows[index], found)
    return rows


def _measured(row: dict[str, Any], errors: Sequence[float]) -> dict[str, Any]:
    mean = float(np.mean(errors))
    spread = float(np.std(errors, ddof=1)) / math.sqrt(len(errors)) if len(errors) > 1 else None
    return {
        "trials": len(errors),
        "mse_simulated": mean,
        "mse_standard_error": spread,
        "simulated_over_closed_form": mean / row["mse_closed_form"],
        "simulated_over_expected": mean / row["mse_expected"],
        "simulated_over_central": mean / row["mse_central"],
    }


_TITLES: Final = {
    "ddgauss": "distributed discrete Gaussian",
    "skellam": "distributed Skellam",
    "gaussian": "central discrete Gaussian",
    "local-gaussian": "local discrete Gaussian",
}
_MOST_TICKS: Final = 12


def body_of(common: Setting, rows: Sequence[Mapping[str, Any]], trials: int) -> dict[str, Any]:
    """Return the JSON object: common settings, then the rows."""
    shared = {name: getattr(common, name) for name in ("dim", "delta", "clip", "k_stddevs", "data", "seed")}
    return shared | {"trials": trials, "rows": [dict(row) for row in rows]}


def write_csv(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write one line per setting; unknown values stay empty."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("reason", "suggestion"))
    body = [[row.get(name) for name in names] for row in rows]
    file.write_text(Table("dme", "", tuple(names), body).csv(), encoding="utf-8")


def table_lines(body: Mapping[str, Any]) -> list[str]:
    """Return mean squared errors over the central Gaussian's: a table for each mechanism and number of clients."""
    rows = body["rows"]
    simulated = body["trials"] > 0
    name = "simulated_over_central" if simulated else "closed_form_over_central"
    kind = "simulated" if simulated else "closed form"
    trials = f" ({counted(body['trials'], 'trial')} each)" if simulated else ""
    lines = [
        f"{body['dim']} values, clip {body['clip']:g}, one round, delta {body['delta']:g}, data {body['data']}",
        *_adjacencies(rows),
        f"Mean squared error, {kind}{trials}, as a factor of a central",
        "Gaussian's at the same epsilon, delta and clip:",
    ]
    for clients, mechanism in dict.fromkeys((row["clients"], row["mechanism"]) for row in rows):
        part = [row for row in rows if (row["clients"], row["mechanism"]) == (clients, mechanism)]
        widths = sorted({row["bits"] for row in part})
        found = {(row["bits"], row["epsilon"]): row.get(name, "-") for row in part}
        cells = [
            [epsilon, *(found[width, epsilon] for width in widths)]
            for epsilon in sorted({row["epsilon"] for row in part})
        ]
        heading = f"{mechanism}, {clients} participants, {kind}{_standard_errors(part)}"
        lines += ["", *Table("dme", heading, ("epsilon", *(f"{width} bits" for width in widths)), cells).lines()]
    return [*lines, "", *_summary(rows)]


def _adjacencies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the notion of neighbouring inputs, for the mechanisms in the rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        names = found.setdefault(row["adjacency"].partition(":")[0], []) if row["feasible"] else []
        if row["mechanism"] not in names:
            names.append(row["mechanism"])
    text = [name if len(found) == 1 else f"{name} ({', '.join(names)})" for name, names in found.items()]
    return [f"Adjacency: {', '.join(text)}"]


def _standard_errors(part: Sequence[Mapping[str, Any]]) -> str:
    shares = [row["mse_standard_error"] / row["mse_simulated"] for row in part if row.get("mse_standard_error")]
    if not shares:
        return ""
    low, high = f"{100 * min(shares):.2g}", f"{100 * max(shares):.2g}"
    return f", each ± {low if low == high else f'{low} to {high}'} % (standard error)"


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    measured = [row for row in rows if "mse_simulated" in row]
    if measured:
        fine = [row for row in measured if row["mse_expected"] > 0.995 * row["mse_closed_form"]]
        for title, part, name in (
            ("Simulated over (s^2 + 1/6) granularity^2 / n", fine, "simulated_over_closed_form"),
            ("Simulated over that with this grid's rounding", measured, "simulated_over_expected"),
        ):
            if part:
                ratios = [row[name] for row in part]
                lines.append(f"{title}: {min(ratios):.3f} to {max(ratios):.3f} ({len(part)} settings)")
    # What follows is about noise that many add together.
    feasible = [row for row in rows if row["feasible"] and row["mechanism"] in ("ddgauss", "skellam")]
    large = [row["closed_form_over_central"] for row in feasible if row["bits"] >= 16]
    if large:
        lines.append(f"Distributed over central Gaussian, closed form, 16 bits or more: at most {max(large):.3f}")
    small = [row["mse_closed_form"] / row["mse_integer_stddev"] for row in feasible if row["bits"] == 10]
    if small:
        text = "Distributed at 10 bits over a sampler's for whole deviations"
        lines.append(f"{text}: {min(small):.3f} to {max(small):.3f}")
    return lines


def draw(body: Mapping[str, Any], file: Path) -> None:
    """Error against epsilon: a panel for each mechanism and number of clients, a line for each number of bits."""
    rows = body["rows"]
    widths, epsilons = (sorted({row[name] for row in rows}) for name in ("bits", "epsilon"))
    all_axes = []
    for clients, mechanism in dict.fromkeys((row["clients"], row["mechanism"]) for row in rows):
        part = [row for row in rows if (row["clients"], row["mechanism"]) == (clients, mechanism)]
        series = []
        for at, width in enumerate(widths):
            curve = [row for row in part if row["bits"] == width and row["feasible"]]
            measured = [row for row in curve if "mse_simulated" in row]
            if curve:
                closed = {row["epsilon"]: row["mse_expected"] for row in curve}
                dots = {row["epsilon"]: row["mse_simulated"] for row in measured}
                series += [Series(f"{width} bits", closed, at, marks=False), Series("", dots, at, line=False)]
        central = {row["epsilon"]: row["mse_central"] for row in part}
        series.append(Series("central Gaussian", central, len(COLOURS) - 1, dashed=True, marks=False))
        all_axes.append(
            Axes(
                f"{_TITLES[mechanism]}, {clients} participants",
                "epsilon",
                "mean squared error of a value of the mean",
                series,
                scale=LOG,
                log_y=True,
                ticks=epsilons if len(epsilons) <= _MOST_TICKS else (),
                percent=False,
            )
        )
    note = (
        f"{body['dim']} values, clip {body['clip']:g}, delta {body['delta']:g}, one round, data: {body['data']}; "
        "no participant leaves or colludes. Lines: closed form; "
        + (f"points: simulated, {body['trials']} trials each." if body["trials"] else "nothing simulated.")
        + " Dashed: continuous Gaussian of a trusted coordinator, calibrated exactly. "
        + f"{_adjacencies(rows)[0]}."
    )
    columns = len({row["mechanism"] for row in rows})
    draw_picture(Picture("dme", all_axes, note, columns=columns, same_y=True), file)
