"""An enrolment port and a joining participant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import client.joining.joining
from tests.client.joining.joining_at_a_port import Joining
from tests.support.enrolment_port import Authority, port_in_thread


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client.joining.joining, "FIRST_POLL_S", 0.02)
    monkeypatch.setattr(client.joining.joining, "POLL_GROWTH", 1.0)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def unsigned(authority: Authority, tmp_path: Path) -> Iterator[Joining]:
    """The authority is away."""
    yield from at_a_port(authority, tmp_path, signs=False)


@pytest.fixture
def joining(authority: Authority, tmp_path: Path) -> Iterator[Joining]:
    """The authority signs at once."""
    yield from at_a_port(authority, tmp_path, signs=True)


def at_a_port(authority: Authority, folder: Path, *, signs: bool) -> Iterator[Joining]:
    for name in ("port", "work"):
        (folder / name).mkdir()
    with port_in_thread(folder / "port", authority, signs=signs) as (where, beside):
        yield Joining(where, beside, authority, folder / "work")
