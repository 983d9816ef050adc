"""The load test's participants of one process hold one roster where they verify once."""

from __future__ import annotations

from typing import Any

import pytest

from client.study_terms import SharedRoster
from sordino.lab.loadtest.client_process import RosterCache


class OneRoster:
    """Another object for each participant that fetches it, with the same digest."""

    def digest(self) -> bytes:
        return bytes(32)


def test_a_process_holds_one_roster_if_it_verifies_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(SharedRoster, "of", lambda roster: made.append(roster) or roster)
    cache, fetched = RosterCache(), [OneRoster() for _ in range(3)]
    kept = [cache.keep(one) for one in fetched]  # type: ignore[arg-type]
    assert made == fetched[:1]
    assert all(one is fetched[0] for one in kept)
