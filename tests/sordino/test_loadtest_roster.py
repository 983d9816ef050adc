"""The load test's participants of one process hold one roster, with one memory of valid signatures."""

from __future__ import annotations

from typing import Any

import pytest

from client.shared_roster import SharedRoster
from sordino.loadtest.client_process import LoadHost
from sordino.loadtest.options import LoadOptions


class OneRoster:
    """Another object for each participant that fetches it, with the same digest."""

    def digest(self) -> bytes:
        return bytes(32)


@pytest.mark.parametrize("each_verifies", [False, True])
def test_a_process_holds_one_roster_unless_each_verifies(monkeypatch: pytest.MonkeyPatch, each_verifies: bool) -> None:
    made: list[Any] = []
    monkeypatch.setattr(SharedRoster, "of", lambda roster: made.append(roster) or roster)
    rosters: dict[bytes, SharedRoster] = {}
    fetched, kept = list[Any](), list[Any]()
    for _ in range(3):
        host = LoadHost.__new__(LoadHost)  # what it fetches isn't asked about here
        host.load, host._rosters = LoadOptions(each_verifies=each_verifies), rosters
        fetched.append(OneRoster())
        kept.append(host._kept(fetched[-1]))
    assert made == ([] if each_verifies else fetched[:1])
    assert all(one is other for one, other in zip(kept, fetched if each_verifies else fetched[:1] * 3, strict=True))
