"""Every mechanism answers the same four questions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mechanisms.baselines.binomial import NotRenyi
from mechanisms.baselines.registry import MECHANISMS
from tests.mechanisms.conftest import keyed

SEED = bytes(range(32))
COUNTS = {"clients": 30, "colluders": 2, "min_survivors": 20}
VECTORS = {"dim": 40, "bits": 22, "clip": 1.0, "epsilon": 5.0, "delta": 1e-6, "rounds": 3}
WANTED: dict[str, dict[str, Any]] = {
    name: COUNTS | VECTORS | {"quorum": 25, "max_dropout": 0.2, "adversarial": 0.05}
    for name in ("ddgauss", "skellam", "gaussian", "local-gaussian")
} | {
    "binomial": COUNTS | VECTORS,
    "randomised-response": {
        **{"categories": 4, "clients": 2000, "colluders": 20, "min_survivors": 1500, "epsilon": 1.0, "delta": 1e-6}
    },
}


def test_the_issue_names_six() -> None:
    assert set(MECHANISMS) == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_each_says_what_it_proves_and_whom_it_trusts(name: str) -> None:
    description = MECHANISMS[name].description
    assert description.name == name
    assert description.theorem.count("[") >= 1
    assert description.adjacency.startswith(("zero-out: ", "replace-one: "))
    assert len(description.trusts) > 20


@pytest.mark.parametrize("name", WANTED)
def test_plan_encode_decode(name: str) -> None:
    mechanism, source = MECHANISMS[name], keyed(f"registry {name}")
    plan = mechanism.plan(**WANTED[name])
    assert 0 < mechanism.epsilon(plan) <= WANTED[name]["epsilon"]
    encoder = mechanism.encoder(plan, SEED)
    response = name == "randomised-response"
    survivors = plan.min_survivors
    value: Any = 1 if response else np.full(40, 0.1)
    sent = [encoder.encode(value, source) for _ in range(survivors)]
    total = sum(vector.astype(np.uint64) for vector in sent) & np.uint64(2**plan.bits - 1)
    central = (source,) if name == "gaussian" else ()
    decoded = encoder.decode_sum(total, survivors, *central)
    found = decoded.frequencies if response else decoded
    assert np.isfinite(found).all()
    if response:
        assert int(np.argmax(found)) == 1
    else:
        noise = float(np.std(found - 0.1))
        assert 0 < noise < 3 * plan.central_stddev / plan.h_min**0.5


@pytest.mark.parametrize("name", WANTED)
def test_curves_exist_where_renyi_composes(name: str) -> None:
    mechanism = MECHANISMS[name]
    plan = mechanism.plan(**WANTED[name])
    if name not in ("binomial", "randomised-response"):
        costs = mechanism.curve(plan, plan.h_min)(np.array([2.0, 3.0, 10.0]))
        assert (np.diff(costs) > 0).all()
    else:
        with pytest.raises(NotRenyi):
            mechanism.curve(plan, plan.h_min)
