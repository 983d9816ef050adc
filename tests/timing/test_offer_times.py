"""The time of an offer over real processes, in short; `make timing` has thousands of trials."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.timing.offer_times import accuracy, measure

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("timing")]

ROUNDS = 45
FAILED, TRAINED = ("failure", "no examples"), ("update", "redraw")


def right(folder: Path, *, naive: bool) -> float:
    """How often the better classifier tells failures from updates; by chance one half, give or take 0.08."""
    times = asyncio.run(measure(folder, ROUNDS, 500_000, naive=naive))
    groups = [np.concatenate([times[name] for name in names]) for names in (FAILED, TRAINED)]
    return accuracy(*(np.random.default_rng(1).permutation(group) for group in groups))


@pytest.mark.timeout(300)
def test_the_time_of_an_offer_does_not_tell_its_outcome(tmp_path: Path) -> None:
    """The naive client skips the work that zeros don't need, as it once did, and its failures are early."""
    assert right(tmp_path / "real", naive=False) < 0.75 < right(tmp_path / "naive", naive=True)


def test_all_offers_leave_at_the_offset(tmp_path: Path) -> None:
    times = asyncio.run(measure(tmp_path, 8, 1000, 0.5))
    assert min(map(min, times.values())) >= 0.5


def test_the_classifiers_find_a_difference_and_only_that() -> None:
    """Half a standard deviation is 60 %; half of a scale is seen by neighbours, not by a threshold."""
    random = np.random.default_rng(1)
    one, shifted, narrow = random.normal(size=4000), random.normal(0.5, size=4000), random.normal(scale=0.3, size=4000)
    assert 0.57 < accuracy(one, shifted) < 0.63
    assert accuracy(one, narrow) > 0.65
    assert accuracy(one, random.normal(size=4000)) < 0.53
