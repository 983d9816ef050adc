"""A deterministic stand-in for the operating system's randomness, for tests only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.plan import Plan, make_plan
from mechanisms.randomness import Keystream, RandomBytes


def keyed(name: str) -> RandomBytes:
    """A source that is the same in every run."""
    stream = Keystream(hashlib.sha256(b"test randomness " + name.encode()).digest())

    def random_bytes(n: int) -> bytes:
        out = np.empty(n, np.uint8)
        stream.fill(out)
        return out.tobytes()

    return random_bytes


def secure_sum(encoder: Any, updates: Iterable[Any], random_bytes: RandomBytes) -> NDArray[np.uint64]:
    """The encoded updates, added modulo 2^B: what secure aggregation opens."""
    total = np.zeros(encoder.plan.padded_dim, np.uint64)
    for update in updates:
        total += encoder.encode(update, random_bytes)
    return total & np.uint64(2**encoder.plan.bits - 1)


def filled(plan: Plan, shares: Any, spread_over: int) -> float:
    """k deviations of one value of a sum of noise ``shares`` over half the modulus, if its updates all point the same
    way and are spread over that many values.
    """
    signal = (plan.clip * plan.clients / plan.granularity) ** 2 / spread_over
    deviation = math.sqrt(signal + plan.clients / 4 + float(shares * plan.local_variance))
    return 2 * plan.k_stddevs * deviation / 2**plan.bits


def each(name: str, *values: Any) -> list[dict[str, Any]]:
    """One argument with each of these values."""
    return [{name: value} for value in values]


DEMO: dict[str, Any] = {
    **{"clients": 100, "dim": 500, "bits": 16, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5, "rounds": 15},
    **{"colluders": 5, "min_survivors": 70, "quorum": 75, "max_dropout": 0.3, "adversarial": 0.05},
}


def plan_for(clients: int, **stated: Any) -> Plan:
    """A plan of one round in which all ``clients`` survive and none colludes, but for what is stated."""
    all_survive = {"colluders": 0, "min_survivors": clients, "quorum": clients, "max_dropout": 0.0, "adversarial": 0.0}
    clip = {} if "clipping" in stated else {"clip": 1.0}
    return make_plan(**{"clients": clients, "delta": 1e-5, "rounds": 1, **clip, **all_survive, **stated})


@pytest.fixture(scope="session")
def demo_plan() -> Plan:
    return make_plan(**DEMO)
