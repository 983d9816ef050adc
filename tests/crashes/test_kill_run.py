"""The short form of `make kill-run`: real client processes, killed at random instants and restarted."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from tests.crashes.kill_run import KillRun, table

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_six_kills(tmp_path: Path) -> None:
    chosen = argparse.Namespace(kills=6, victims=2, coordinator_kills=0, dim=1000, seed=1)
    figures = asyncio.run(KillRun(tmp_path, chosen).run())
    assert figures["wrong"] == {}
    assert figures["kills"] == figures["restarts"] == 6
    assert sum(figures["by_phase"].values()) == 6
    # Both came back for a whole round, so at least this many of their messages were checked.
    replies = figures["replies"]
    assert figures["charges"] >= figures["uploads"] >= replies >= 3
    assert figures["verified_by_command"] >= 2  # the last of each
    assert table(figures)[2] == "| kills of client processes | 6 |"
