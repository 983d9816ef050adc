"""Rates of addresses: bursts, recovery, bounded memory, and what counts as one address."""

from __future__ import annotations

import pytest

import server.open_calls
from server.open_calls import PeerRates, address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50312", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:50312", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:ffff::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("ipv4:nonsense", "ipv4:nonsense"),
    ],
)
def test_addresses(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_a_burst_and_then_the_rate() -> None:
    now = [0.0]
    rates = PeerRates(2.0, 5.0, lambda: now[0])
    assert [rates.allow("a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert rates.allow("b")
    now[0] += 1.0
    assert [rates.allow("a") for _ in range(3)] == [True, True, False]
    now[0] += 1e6
    assert [rates.allow("a") for _ in range(6)] == [True] * 5 + [False]


def test_memory_is_bounded_and_whoever_calls_now_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.open_calls, "MOST_PEERS", 10)
    rates = PeerRates(1e-9, 1.0, lambda: 0.0)
    assert rates.allow("busy")
    for number in range(50):
        rates.allow(f"other {number}")
        assert not rates.allow("busy")
    assert len(rates) == 10
