"""The load test's participants of one process hold one roster where they verify once."""

from __future__ import annotations

from typing import Any

import pytest

from client.shared_roster import SharedRoster
from sordino.lab.loadtest.client_process import LoadHost
from sordino.lab.loadtest.options import LoadOptions


class OneRoster:
    """Another object for each participant that fetches it, with the same digest."""

    def digest(self) -> bytes:
        return bytes(32)


@pytest.mark.parametrize("verify_once", [False, True])
def test_a_process_holds_one_roster_if_it_verifies_once(monkeypatch: pytest.MonkeyPatch, verify_once: bool) -> None:
    made: list[Any] = []
    monkeypatch.setattr(SharedRoster, "of", lambda roster: made.append(roster) or roster)
    rosters: dict[bytes, SharedRoster] = {}
    fetched, kept = list[Any](), list[Any]()
    for _ in range(3):
        host = LoadHost.__new__(LoadHost)  # what it fetches isn't asked about here
        host.load, host._rosters = LoadOptions(verify_once=verify_once), rosters
        fetched.append(OneRoster())
        kept.append(host._kept(fetched[-1]))
    assert made == (fetched[:1] if verify_once else [])
    assert all(one is other for one, other in zip(kept, fetched[:1] * 3 if verify_once else fetched, strict=True))
