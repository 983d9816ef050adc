"""An audit: a lower bound on epsilon from one run of the whole mechanism ([SNJ23]).

Every participant is a canary. A fair coin, fixed for all rounds, decides its contribution: its canary or nothing
(`Encoder.encode` of None, with its noise share) where the plan's adjacency is zero-out; its canary or the negative
where it is replace-one. Canaries are orthogonal, so none covers another, and longer than the clip: if clipping
works, what is left has exactly the clip's norm.

The auditor knows everything public: plan, rotations, canaries, the members of each sum. It sees the decoded means of
all rounds (with local noise every report, which that guarantee is about) and scores each coin by its log-likelihood
ratio under normal noise of the planned size. The number of guesses is registered before the run
(`audit_bound.registered_guesses`): two numbers, one for a right mechanism and one for noise a quarter as large; the
bounds of both hold together.

Besides, `noise_check` compares the noise itself with the plan's, a narrower test with more power. The auditor draws the
coins, so it knows the contributions and thus the noise: outputs less contributions. Its size has a known law, so a
deficit of an eighth shows at once, where a lower bound on epsilon needs a factor of several. But the check trusts that
noise of the right size protects, which the plan's proof says and an audit doesn't. Too little noise breaks the claim.
Too much is no breach by itself, but a sign of one: n equal shares add up to sqrt(n) of the planned deviation, and each
participant then knows the others' noise.

Encoder and plan are a study's. Left out are masks (sums are exact without them), the network, and colluders, whose
noise shares the plan doesn't count.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.accounting import Account, RoundCharge
from mechanisms.calibration import VARIANCE_DENOMINATOR
from mechanisms.clip_rule import ClipRule
from mechanisms.encoder import Encoder, words_of_sum
from mechanisms.gaussian_exact import gaussian_epsilon
from mechanisms.rotation import Rotation
from mechanisms.statement import GAUSSIAN, LOCAL
from runtime.text import counted
from sordino.lab.experiments.audit_bound import best_of, expected_bound, registered_guesses
from sordino.lab.experiments.tables import Table
from sordino.planning.drawing import BLUE, GRID, INK, RED, bars
from wire.study import plan_study

if TYPE_CHECKING:
    from mechanisms.plan import Plan
    from mechanisms.randomness import RandomBytes

Floats = NDArray[np.float64]
Randomness = Callable[[int, int], "RandomBytes"]
"""(round, participant or `COORDINATOR`) -> source of private randomness."""
COORDINATOR: Final = -1

REGISTERED_FOR: Final = (1.0, 4.0)
"""How many times smaller than planned the noise is in the two worlds for which a number of guesses is registered."""
CANARY_CLIPS: Final = 5.0
FALSE_ALARM: Final = 1e-6
"""Chance that a right mechanism fails one of the three checks of its noise, each."""
_FINGERPRINT: Final = 16  # values of a report's noise that are compared between rounds; of a sum's, all


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One audit.

    Attributes:
        canaries: participants, each of them a canary.
        dim: values of a vector, at least ``canaries``.
        max_dropout: share of participants that the plan allows to leave.
        leaving: share that is missing in each round, drawn anew, independently of coins.
        error: chance that this audit's lower bound exceeds the truth.
        seed: of coins, canaries, rotations and leavers. Noise never depends on it.
        noise_divided_by: 1, or a deliberate mistake: all noise has that many times less deviation than claimed.
        clip_times: 1, or a deliberate mistake: updates are cut to that many clips.
    """

    mechanism: str
    canaries: int
    dim: int
    rounds: int
    bits: int
    epsilon: float
    delta: float
    clip: float
    max_dropout: float
    leaving: float
    error: float
    seed: int
    noise_divided_by: float = 1.0
    clip_times: float = 1.0


class UnsuitableSetting(ValueError):
    """This setting can't be audited; the message says what to change."""


def plan_of(setting: Setting) -> Plan:
    """Return the plan behind the audited epsilon; none collude. Raises InfeasiblePlan: no plan fits the setting."""
    names = ("mechanism", "dim", "bits", "clip", "epsilon", "delta", "rounds", "max_dropout")
    stated: dict[str, Any] = {name: getattr(setting, name) for name in names}
    return plan_study(**stated, clients=setting.canaries, adversarial=0.0)


def coins_of(setting: Setting) -> NDArray[np.int64]:
    """(canaries,) of +1 and -1: fair and independent."""
    draw = np.random.default_rng(list(_seed(setting, "coins")))
    return draw.integers(0, 2, setting.canaries, dtype=np.int64) * 2 - 1


def present_in(setting: Setting, round_number: int) -> NDArray[np.bool_]:
    """Return (canaries,): the participants in the sum of that round."""
    draw = np.random.default_rng(list(_seed(setting, f"leaving {round_number}")))
    present = np.ones(setting.canaries, bool)
    present[draw.permutation(setting.canaries)[: round(setting.leaving * setting.canaries)]] = False
    return present


def _seed(setting: Setting, what: str) -> bytes:
    return hashlib.sha256(f"sordino experiment audit {setting.seed} {what}".encode()).digest()


def canaries_of(setting: Setting) -> Rotation:
    """A random orthogonal matrix: its columns are directions, one for each participant, and more."""
    return Rotation(_seed(setting, "canaries"), setting.dim, "hadamard-blocks")


def direction(canaries: Rotation, participant: int) -> Floats:
    """(dim,) of norm 1."""
    return canaries.inverse(np.eye(1, canaries.padded_dim, participant)[0])


@dataclass(frozen=True)
class Observed:
    """Observations of one round.

    Attributes:
        present: (canaries,) in the sum.
        along: (canaries,) the canary's direction in the sum, or in its report; data units; 0 for the absent.
        squared, values: sum of squares of the noise, data units squared, and its number of values.
        fingerprint: values of the noise in the frame it was drawn in.
    """

    present: NDArray[np.bool_]
    along: Floats
    squared: float
    values: int
    fingerprint: Floats


def _from_the_system(round_number: int, participant: int) -> RandomBytes:
    return os.urandom


def observe(
    setting: Setting, plan: Plan, number: int, coins: NDArray[np.int64], randomness: Randomness = _from_the_system
) -> Observed:
    """Run one round: encode for all present, sum modulo 2^B, decode, compare with the canaries.

    ``plan``: for encoding, perhaps a `mistaken` one; ``number``: of the round, counted from 1; ``coins``: (canaries,)
    of +1 and -1.
    """
    seed = _seed(setting, f"rotation {number}")
    canaries, present = canaries_of(setting), present_in(setting, number)
    survivors = int(present.sum())
    encoder = Encoder(plan, seed, survivors=survivors)  # as the coordinator sees it, which takes surplus noise off
    rotation = Rotation(seed, plan.coded_dim, plan.rotation)
    contributed = min(setting.clip_times, CANARY_CLIPS) * setting.clip  # norm of a canary after clipping
    if plan.mechanism == LOCAL:
        along = np.zeros(setting.canaries)
        kept = np.zeros((setting.canaries, min(_FINGERPRINT, setting.dim)))
        squared = 0.0
        for participant in np.flatnonzero(present).tolist():
            signed = direction(canaries, participant) * float(coins[participant])
            words = encoder.encode(signed * (CANARY_CLIPS * setting.clip), randomness(number, participant))
            # The report as it is: decoding divides by the survivors, here by a number that the plan accepts.
            report = encoder.decode_sum(words, plan.min_survivors) * plan.min_survivors
            along[participant] = float(signed @ report) * float(coins[participant])
            noise = report - signed * contributed
            squared += float(noise @ noise)
            kept[participant] = rotation.forward(noise)[: kept.shape[1]]
        return Observed(present, along, squared, int(present.sum()) * setting.dim, kept.ravel())
    total = np.zeros(plan.padded_dim, np.uint64)
    for participant in np.flatnonzero(present).tolist():
        private = randomness(number, participant)
        if coins[participant] > 0:
            canary = direction(canaries, participant) * (CANARY_CLIPS * setting.clip)
            total += encoder.encode(canary, private)  # wraps modulo 2^64, a multiple of 2^B
        else:
            total += encoder.encode(None, private)
    mean = encoder.decode_sum(words_of_sum(total, plan.bits), survivors, randomness(number, COORDINATOR))
    along = canaries.forward(mean * survivors)
    noise = along.copy()
    noise[: setting.canaries] -= np.where(present & (coins > 0), contributed, 0.0)
    drawn = rotation.forward(canaries.inverse(noise))
    along = np.where(present, along[: setting.canaries], 0.0)
    return Observed(present, along, float(noise @ noise), setting.dim, drawn)


def mistaken(plan: Plan, *, noise_divided_by: float = 1.0, clip_times: float = 1.0) -> Plan:
    """Return the plan by which a mistaken implementation would encode, for an audit to find. No study can run it.

    A `Plan` refuses such numbers, and every participant checks it again. This bypasses the check on purpose, in a copy
    that only the audit's encoder sees; the claim stays the unchanged plan's epsilon.

    Args:
        plan: with one fixed clip; left unchanged.
        noise_divided_by: how many times smaller than planned the deviation of all noise is, at least 1.
        clip_times: updates are cut to that many clips; the grid and the noise stay the plan's.

    Returns ``plan`` itself without a mistake. Otherwise an object for an `Encoder` only.

    Raises ValueError: a factor below 1, or noise that no sampler draws.
    """
    if not noise_divided_by >= 1 or not clip_times >= 1:
        raise ValueError("a mistake divides the noise, or multiplies the clip, by at least 1")
    if noise_divided_by == clip_times == 1:
        return plan
    variance = plan.local_variance / Fraction(noise_divided_by) ** 2
    variance = Fraction(round(variance * VARIANCE_DENOMINATOR), VARIANCE_DENOMINATOR)
    if variance <= 0:
        raise ValueError(f"noise divided by {noise_divided_by:g} is less than the sampler draws: use more bits")
    clipping = ClipRule.flat(plan.coded_dim, plan.clip * clip_times) if clip_times > 1 else plan.clipping
    changed = {"local_variance": variance, "clipping": clipping}
    wrong = object.__new__(type(plan))  # without figures that were computed from the right numbers
    for field in fields(plan):
        object.__setattr__(wrong, field.name, changed.get(field.name, getattr(plan, field.name)))
    return wrong


def planned_variance(plan: Plan, survivors: int) -> float:
    """Return the planned variance of one value: of a sum of ``survivors``, or of a single report."""
    if plan.mechanism == GAUSSIAN:
        return plan.central_stddev**2
    if plan.mechanism == LOCAL:
        return plan.local_stddev**2
    return float(plan.share_variance(plan.local_variance, survivors) * survivors) * plan.granularity**2


def rounding_variance(plan: Plan, survivors: int) -> float:
    """Return the most that rounding adds to one value's variance: a quarter of a squared grid step per update in it."""
    return plan.granularity**2 / 4 * (1 if plan.mechanism == LOCAL else survivors)


def distance_between(plan: Plan, survivors: Sequence[int]) -> float:
    """Return the distance of a coin's two worlds, in deviations of its score, for a canary present in all rounds.

    sqrt(sum over rounds of shift^2 / variance): under normal noise all rounds together are one Gaussian mechanism with
    this sensitivity and deviation 1.
    """
    shift = plan.clip * (2 if plan.mechanism == LOCAL else 1)
    return math.sqrt(sum(shift**2 / planned_variance(plan, present) for present in survivors))


def scores_of(plan: Plan, rounds: Sequence[Observed]) -> Floats:
    """(canaries,): log of how much likelier the coin +1 makes what was seen, under normal noise of the planned size."""
    scores: Floats = np.zeros(len(rounds[0].along))
    shift, middle = (2 * plan.clip, 0.0) if plan.mechanism == LOCAL else (plan.clip, plan.clip / 2)
    for seen in rounds:
        variance = planned_variance(plan, int(seen.present.sum()))
        scores += np.where(seen.present, (seen.along - middle) * (shift / variance), 0.0)
    return scores


def proved_epsilon(plan: Plan, rounds: Sequence[NDArray[np.bool_]]) -> float:
    """Return the account's epsilon for these rounds, with the actual survivors: the largest of a participant."""
    account = Account(plan)
    for number, present in enumerate(rounds, start=1):
        survivors = frozenset(int(one) for one in np.flatnonzero(present))
        account.charge(RoundCharge(number, 1, survivors, plan.identity))
    return account.epsilon_coordinator()


def audit(
    setting: Setting,
    randomness: Randomness = _from_the_system,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Run one audit.

    Args:
        randomness: for tests of mistakes; by default the operating system's, fresh each time.
        progress: called with the rounds done and all rounds.

    Returns:
        One row under stable JSON names: the setting, what was registered, found and proved. ``epsilon_planned`` is for
        the fewest survivors, ``epsilon_proved`` for the actual ones, ``epsilon_gaussian`` the exact one of normal noise
        of that size, ``deviation_over_shift`` its multiplier; ``epsilon_lower_expected`` the expected bound;
        ``violation``: the bound exceeds the proved epsilon; the rest is `noise_check`.

    Raises InfeasiblePlan: no plan fits the setting; UnsuitableSetting: more canaries than values, more leave than the
    plan allows, or a mistake that can't be drawn.
    """
    if setting.dim < setting.canaries:
        raise UnsuitableSetting(
            f"{setting.canaries} orthogonal canaries need at least as many values, not {setting.dim}"
        )
    plan = plan_of(setting)
    try:
        really = mistaken(plan, noise_divided_by=setting.noise_divided_by, clip_times=setting.clip_times)
    except ValueError as problem:
        raise UnsuitableSetting(str(problem)) from None
    who = [present_in(setting, number) for number in range(1, setting.rounds + 1)]
    survivors = [int(present.sum()) for present in who]
    if min(survivors) < plan.min_survivors:
        raise UnsuitableSetting(
            f"the plan needs {plan.min_survivors} survivors and {min(survivors)} are left: let fewer leave"
        )
    proved = proved_epsilon(plan, who)
    distance = distance_between(plan, survivors)
    split = setting.error / len(REGISTERED_FOR)
    registered = sorted(
        {
            registered_guesses(distance * factor, canaries=setting.canaries, delta=setting.delta, error=split)
            for factor in REGISTERED_FOR
        }
    )

    coins = coins_of(setting)
    seen = []
    for number in range(1, setting.rounds + 1):
        seen.append(observe(setting, really, number, coins, randomness))
        progress(number, setting.rounds)
    best = best_of(scores_of(plan, seen), coins, registered, setting.delta, setting.error)
    in_variances = [one.squared / planned_variance(plan, n) for one, n in zip(seen, survivors, strict=True)]
    rounding = max(rounding_variance(plan, n) / planned_variance(plan, n) for n in survivors)
    noise = noise_check(in_variances, [one.values for one in seen], [one.fingerprint for one in seen], rounding)
    moved = distance * min(setting.clip_times, CANARY_CLIPS) * setting.noise_divided_by
    each = setting.error / len(registered)
    expected = max(
        expected_bound(moved, canaries=setting.canaries, guesses=guesses, delta=setting.delta, error=each)
        for guesses in registered
    )
    return asdict(setting) | {
        "adjacency": plan.adjacency,
        "survivors": survivors,
        "min_survivors": plan.min_survivors,
        "deviation_over_shift": 1 / distance,
        "epsilon_planned": plan.epsilon_coordinator,
        "epsilon_proved": proved,
        "epsilon_gaussian": gaussian_epsilon(1 / distance, setting.delta),
        "registered_guesses": registered,
        "epsilon_lower": best["epsilon_lower"],
        "epsilon_lower_expected": expected,
        **best,
        "violation": best["epsilon_lower"] > proved,
        **noise,
    }


def chi_squared_quantile(chance: float, degrees: int) -> float:
    """Wilson and Hilferty's approximation: within 1 % for 100 degrees of freedom or more down to a chance of 1e-6.

    Source: [WH31], the cube root.
    """
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + NormalDist().inv_cdf(chance) * math.sqrt(spread)) ** 3


def noise_check(
    squared: Sequence[float], values: Sequence[int], fingerprints: Sequence[Floats], rounding: float = 0.0
) -> dict[str, Any]:
    """Check whether noise is smaller or larger than planned, and whether two rounds share it.

    Chances of a false alarm hold for noise that is exactly the plan's; rounding adds at most a quarter of a squared
    grid step per update, which the upper bound allows for. Sums of squares of thousands of independent values are taken
    as chi-squared, inner products as normal.

    Args:
        squared: for each round the sum of squares of its noise, in planned variances.
        values: for each round the number of values in that sum.
        fingerprints: for each round the same many values of its noise in the frame it was drawn in, any unit.
        rounding: most that rounding adds to the variance of a value in any round, in planned variances, >= 0.

    Returns:
        JSON names ``noise_found``: deviation over the planned one; ``noise_least`` and ``noise_most``: a right
        mechanism lies below, or above, with a chance of at most `FALSE_ALARM` each; ``noise_short``;
        ``noise_excess``; ``noise_correlation``: the largest between two rounds, 0 with a single one;
        ``noise_most_correlation``; ``noise_shared``.
    """
    degrees = sum(values)
    pairs = list(combinations(range(len(fingerprints)), 2))
    largest, most = 0.0, 0.0
    if pairs:
        lengths = [float(np.linalg.norm(one)) for one in fingerprints]
        largest = max(
            abs(float(np.vdot(fingerprints[a], fingerprints[b]))) / max(lengths[a] * lengths[b], 1e-300)
            for a, b in pairs
        )
        most = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * len(pairs))) / math.sqrt(fingerprints[0].size)
    found = math.sqrt(sum(squared) / degrees)
    least = math.sqrt(chi_squared_quantile(FALSE_ALARM, degrees) / degrees)
    largest_size = math.sqrt(chi_squared_quantile(1 - FALSE_ALARM, degrees) / degrees * (1 + rounding))
    return {
        "noise_found": found,
        "noise_least": least,
        "noise_short": found < least,
        "noise_most": largest_size,
        "noise_excess": found > largest_size,
        "noise_correlation": largest,
        "noise_most_correlation": most,
        "noise_shared": largest > most,
    }


def body_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON object: one entry per audit, and whether any of them accuses."""
    return {"accused": any(accusations(row) for row in rows), "rows": [dict(row) for row in rows]}


def accusations(row: Mapping[str, Any]) -> list[str]:
    """Return the audit's accusations, one sentence each; empty if none."""
    found = []
    if row["violation"]:
        found.append(
            f"not ({row['epsilon_proved']:.3g}, {row['delta']:g})-private: "
            f"epsilon is at least {row['epsilon_lower']:.3g} at {100 * (1 - row['error']):g} %"
        )
    if row["noise_short"]:
        found.append(f"noise is {row['noise_found']:.3f} of the planned deviation; at least {row['noise_least']:.3f}")
    if row["noise_excess"]:
        found.append(
            f"noise is {row['noise_found']:.3f} of the planned deviation; at most {row['noise_most']:.3f}: "
            "participants may share theirs"
        )
    if row["noise_shared"]:
        found.append(f"noise of two rounds has correlation {row['noise_correlation']:.2f}")
    return found


def name_of(row: Mapping[str, Any]) -> str:
    """Return the mechanism, and its deliberate mistake."""
    divided = row["noise_divided_by"]
    return f"{row['mechanism']}, noise / {divided:g}" if divided != 1 else str(row["mechanism"])


def table_lines(body: Mapping[str, Any]) -> list[str]:
    """Return a line for each audit, then the accusations, and how to read them."""
    rows = body["rows"]
    first = rows[0]
    title = (
        f"{first['canaries']} canaries, {first['dim']} values, {counted(first['rounds'], 'round')}, "
        f"{100 * first['leaving']:g} % leave, delta {first['delta']:g}, seed {first['seed']}"
    )
    note = f"Lower bounds on epsilon at {100 * (1 - first['error']):g} % confidence each, from one run each."
    names = ("epsilon_lower", "epsilon_lower_expected", "epsilon_proved", "right", "guesses", "noise_found")
    columns = ("", "lower bound", "expected", "proved", "right", "of", "noise found")
    cells = [[name_of(row), *(row[name] for name in names)] for row in rows]
    lines = [*Table("audit", title, columns, cells, note).lines(), ""]
    for row in rows:
        lines += [f"ACCUSED: {name_of(row)}: {found}." for found in accusations(row)]
    if not body["accused"]:
        lines.append("Nothing found. An audit can refute a claim, not prove it: a bound far below is no sign of slack.")
    return lines


def draw(body: Mapping[str, Any], file: Path) -> None:
    """Draw a line for each audit: the bound found, the expected one, and the proved epsilon as its limit."""
    from matplotlib.ticker import MaxNLocator

    rows = body["rows"]
    first, places = rows[0], range(len(rows))
    names = ("epsilon_lower", "epsilon_lower_expected", "epsilon_proved")
    lower, expected, proved = ([row[name] for row in rows] for name in names)
    shades = [RED if row["violation"] else BLUE for row in rows]
    note = (
        f"{first['canaries']} canaries, {first['dim']} values, {counted(first['rounds'], 'round')}, "
        f"delta {first['delta']:g}; each bound holds at {100 * (1 - first['error']):g} %."
    )
    with bars([name_of(row) for row in rows], note, file) as axes:
        axes.hlines(places, 0, lower, color=shades, linewidth=2.2)
        axes.scatter(lower, places, s=49, color=shades, label="lower bound found", zorder=4)
        hollow = {"facecolors": "none", "edgecolors": INK, "linewidths": 0.9, "clip_on": False}
        axes.scatter(expected, places, s=121, label="bound expected", zorder=3, **hollow)
        ends = ([place + half for place in places] for half in (-0.3, 0.3))
        axes.vlines(proved, *ends, color=INK, linewidth=2.4, label="proved")
        for place, row in enumerate(rows):
            if row["violation"]:
                end = (max(lower[place], expected[place]), place)
                axes.annotate("refuted", end, (12, 0), textcoords="offset points", color=RED, fontsize=9, va="center")
        axes.set_xlim(0, 1.22 * max(*lower, *expected, *proved))
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.set_xlabel("epsilon")
        axes.grid(True, axis="x", color=GRID, linewidth=0.8)
        axes.figure.legend(loc="outside upper left", ncols=3)
