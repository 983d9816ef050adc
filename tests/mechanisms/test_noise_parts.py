"""Noise that survivors take back: what stays is never too little, and hardly more than needed."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.encoder import Encoder, words_of_sum
from mechanisms.noise_parts import MOST_EXCESS, largest_sum, parts_needed, released, unit
from mechanisms.plan import InfeasiblePlan, Plan, make_plan
from mechanisms.round_cost import smallest_part
from mechanisms.skellam import skellam
from tests.mechanisms.conftest import DEMO, keyed, plan_for

SIZES = [
    (n, n - round(n * tolerance), colluders)
    for n, tolerance, colluders in product((10, 16, 100, 1000), (0.1, 0.3, 0.5), (0, 2))
]


@pytest.mark.parametrize("counts", [*SIZES, (100, 56, 5), (1000, 640, 50), (1000, 525, 50)], ids=str)
def test_the_unknown_noise_for_every_number_of_survivors(counts: tuple[int, int, int]) -> None:
    """At least what min_survivors would have left, at most 4 % more; the naive share of variance V / n falls short."""
    clients, min_survivors, colluders = counts
    parts, share = parts_needed(*counts), Fraction(254_973, 7)
    names = {"clients": clients, "min_survivors": min_survivors, "colluders": colluders, "parts": parts}
    needed = share * (min_survivors - colluders)
    smallest = unit(share, **names)
    found = []
    for survivors in range(min_survivors, clients + 1):
        stays = share - released(survivors, **names) * smallest
        found.append(stays * (survivors - colluders) / needed)
    assert min(found) >= 1
    assert max(found) <= 1 + MOST_EXCESS + Fraction(1, 10**6)
    assert max(found) == pytest.approx(float(largest_sum(*counts, parts)[1]), rel=1e-6)
    assert parts <= 5
    assert parts == 0 or largest_sum(*counts, parts - 1)[1] > 1 + MOST_EXCESS  # no part too many
    naive = share * (min_survivors - colluders) / (clients - colluders)  # the base alone, whoever survives
    assert colluders == clients - 1 or naive * (min_survivors - colluders) < needed


@pytest.mark.parametrize("mechanism", ["skellam", "ddgauss"])
@pytest.mark.parametrize("survivors", [70, 83, 100])
def test_what_comes_back_is_what_was_added(mechanism: str, survivors: int) -> None:
    """Sums over the same update, of which one survivor doesn't answer, beside sums that never held the surplus.

    5 x 512 values: their variance strays by 14 % with probability 1e-6.
    """
    plan = make_plan(**DEMO | {"mechanism": mechanism, "bits": 22})
    source, parts = keyed(f"{mechanism} {survivors}"), plan.released_parts(survivors)
    answers, update = survivors - 1, np.zeros(plan.dim, np.float32)
    errors = []
    for trial in range(5):
        encoder = Encoder(plan, bytes([trial]) * 32)
        seeds = [tuple(source(32) for _ in range(plan.noise_parts)) for _ in range(survivors)]
        total = np.sum([encoder.encode(update, source, own).astype(np.uint64) for own in seeds], axis=0)
        shown = [tuple(seed for at, seed in enumerate(own) if parts >> at & 1) for own in seeds[:answers]]
        opened = encoder.without_surplus(words_of_sum(total, plan.bits), survivors, shown)
        decoded = encoder.decode(opened, survivors, silent=1)
        assert decoded.stddev == pytest.approx(
            plan.granularity
            * float(
                plan.share_variance(plan.local_variance, survivors) * answers + plan.local_variance + survivors / 4
            ) ** 0.5
            / survivors
        )  # fmt: skip
        errors.append(decoded.mean / decoded.stddev)
    assert 0.85 < np.var(np.concatenate(errors)) < 1.15
    if parts:
        with pytest.raises(ValueError, match="argument"):
            encoder.without_surplus(opened, survivors, [seeds[0][: parts.bit_count() - 1]])


@pytest.mark.parametrize(
    ("law", "variance", "digest"),
    [
        (skellam, Fraction(5461, 3), "0c51811cc1b6eb6c"),
        (discrete_gaussian, Fraction(5461, 3), "84f50391376b9ecc"),
        (skellam, Fraction(10**9, 7), "abfc5431a9e2654d"),
        (discrete_gaussian, Fraction(10**13, 7), "e45df14c985a71b2"),
    ],
)
def test_a_part_is_the_same_on_every_machine(law: Any, variance: Fraction, digest: str) -> None:
    """The coordinator subtracts what a participant added, so both must make the same of a seed: recorded digests."""
    noise = np.zeros(100_000, np.int64)
    law(variance).add(noise, lambda size: bytes(range(size)))
    assert hashlib.sha256(noise.astype("<i8").data).hexdigest()[:16] == digest


def test_only_fine_grids_have_parts() -> None:
    few = make_plan(**DEMO | {"bits": 9, "mechanism": "ddgauss"})
    many = make_plan(**DEMO)
    assert few.noise_parts < many.noise_parts == 4
    assert few.noise_parts == 0 or smallest_part(few, few.local_variance) >= 12
    with pytest.raises(InfeasiblePlan, match="too small"):
        replace(few, noise_parts=few.noise_parts + 3)
    for change in ({"min_survivors": 100, "quorum": 100}, {"mechanism": "gaussian"}, {"mechanism": "local-gaussian"}):
        assert make_plan(**DEMO | change).noise_parts == 0
    with pytest.raises(InfeasiblePlan, match="taken back"):
        plan_for(20, dim=10, bits=16, epsilon=3.0, noise_parts=2)


def test_seeds_fit_the_plan() -> None:
    plan = make_plan(**DEMO)
    encoder, update = Encoder(plan, bytes(32)), np.zeros(plan.dim)
    with pytest.raises(ValueError, match="4 parts of noise, not 3"):
        encoder.encode(update, os.urandom, [bytes(32)] * 3)
    without = Plan.from_json(make_plan(**DEMO, noise_parts=0).to_json())
    assert "noise_parts" not in without.to_json()  # as plans were before
    assert without.noise_parts == 0
