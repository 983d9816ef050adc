"""How often one address may call a port that anybody can reach."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

MOST_PEERS: Final = 10_000


def address_of(peer: str) -> str:
    """Whom a rate is counted for: the address of a gRPC peer such as ``ipv4:192.0.2.7:50312``.

    An IPv6 network of /64 counts as one: who has one of its addresses has all of them.
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    if kind not in ("ipv4", "ipv6"):
        return peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class PeerRates:
    """A bucket of tokens for each address; the memory for them is bounded."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            per_s: calls a second, in the long run.
            burst: calls at once, after a pause.
        """
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> tokens, at that time

    def __len__(self) -> int:
        return len(self._buckets)

    def allow(self, address: str) -> bool:
        """Whether one more call of this address is within its rate; counts it if so."""
        now = self._clock()
        tokens, since = self._buckets.pop(address, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        allowed = tokens >= 1
        self._buckets[address] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MOST_PEERS:  # the one that has been silent for longest has the fullest bucket
            self._buckets.popitem(last=False)
        return allowed
