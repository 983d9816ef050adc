"""A coordinator of several processes of Ray, some of which are killed: the short form of `make scale-test`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.run import run_load_test

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]


def test_gateways_and_a_worker_are_killed(tmp_path: Path) -> None:
    """One in each phase; sums are right, and those of a killed gateway go on at the other."""
    load = LoadOptions(
        clients=16, processes=2, dim=300_000, rounds=6, drop=0.0, gateways=2, workers=2, engine_kills=6, seed=3
    )
    result = run_load_test(load, out=tmp_path / "out")
    assert result["incomplete"] is None
    assert result["sums_ok"] == result["rounds_completed"] >= 5
    killed = result["engine_kills"]
    assert {name for name, count in killed.items() if count} >= {
        f"gateway at {phase}" for phase in ("ShareKeys", "MaskedInputCollection", "Unmasking")
    }
    assert result["drops"]["unplanned"] <= 8, result["drops"]  # of 6 x 8 participants of gateways that were killed
