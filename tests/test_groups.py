"""Tests that must not run side by side are really kept together: see `conftest.py`."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("commands")
def test_a_group_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes it behind the name that it hands to the scheduler. A pytest that it doesn't know drops it
    without a word: process tests run side by side then, and each worker makes every shared fixture for itself."""
    if not getattr(request.config.option, "loadgroup", False):  # other ways to start than `make test`
        assert "@" not in request.node.nodeid
        return
    assert request.node.nodeid.endswith("@commands")
