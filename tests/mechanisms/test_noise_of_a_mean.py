"""The standard deviation that a decoded mean states is that of its noise, under every mechanism and coding."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from mechanisms.clip_rule import ClipRule
from mechanisms.encoder import Encoder, mean_stddev
from mechanisms.sketch import sketch_shape
from tests.mechanisms.conftest import plan_for

DIM, CLIENTS = 4096, 20


@pytest.mark.parametrize("survivors", [14, 20])
@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian", "local-gaussian"])
def test_of_zeros(mechanism: str, survivors: int) -> None:
    """4,096 values of a mean of zeros: the mean square over the stated variance is within 5.2 deviations, 11.5 %, of 1,
    below 1 by what rounding saves at most. Two values in 10^7 lie outside for each case."""
    stated, values = noised(survivors, mechanism=mechanism)
    ratio = np.mean(values**2) / stated**2
    assert 0.88 < ratio < 1.12


def test_rounding_is_counted_at_its_largest() -> None:
    """On a coarse grid, where a share's noise has variance 2.8 and rounding up to 0.25: never more than is stated."""
    update = np.full(DIM, 0.4 / 64)
    stated, values = noised(20, mechanism="skellam", bits=6, epsilon=300.0, delta=1e-3, k_stddevs=4.0, update=update)
    assert 0.8 < np.var(values) / stated**2 < 1.12


def test_the_noisiest_layer_and_a_sketch() -> None:
    rule = ClipRule(layers=(96, 4000), clips=(0.1, 1.0), scaling="proportional")
    stated, values = noised(20, clipping=rule, clip=None)
    assert 0.88 < np.mean(values[96:] ** 2) / stated**2 < 1.12
    assert np.mean(values[:96] ** 2) < stated**2 / 50
    rows = 4
    width = sketch_shape(DIM, rows, 2.0)
    stated, values = noised(20, sketch=(rows, width), clipping=ClipRule.flat(rows * width, 1.0), clip=None)
    assert 0.75 < np.mean(values**2) / stated**2 < 1.25  # values that share a bucket share its noise: fewer are free


def noised(survivors: int, *, update: Any = None, **changes: Any) -> tuple[float, Any]:
    """What is stated, and the error of the mean of one update that all survivors send."""
    counts = {"colluders": 2, "min_survivors": 14, "quorum": 14, "max_dropout": 0.2, "adversarial": 0.05}
    wanted = {"dim": DIM, "bits": 24, "epsilon": 6.0, "delta": 1e-6, "rounds": 2} | counts
    plan = plan_for(CLIENTS, **wanted | changes)
    encoder = Encoder(plan, os.urandom(32), survivors=survivors)
    sent = np.zeros(DIM) if update is None else update
    total = np.zeros(plan.padded_dim, dtype=np.uint64)
    for _ in range(survivors):
        total += encoder.encode(sent, os.urandom)
        total &= np.uint64((1 << plan.bits) - 1)
    decoded = encoder.decode(total, survivors, os.urandom)
    assert decoded.stddev == mean_stddev(plan, survivors, encoder.clips)
    return decoded.stddev, decoded.mean - sent
