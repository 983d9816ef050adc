"""Thin participants: a coordinator that does all its work, right sums, and what they can't be used for."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from runtime.failure import InputFailure
from secagg.context import RoundConfig
from secagg.in_memory import InMemoryAttempt, fresh_roster
from secagg.messages import ADVERTISE_KEYS, CONSISTENCY_CHECK, MASKED_INPUT, SHARE_KEYS, UNMASKING, SurvivorSets
from secagg.parameters import COMPLETE, HARARY, RoundParameters
from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.sums import plain_sum
from sordino.lab.loadtest.thin import ThinAttempt
from tests.lab.test_loadtest_processes import played
from tests.support.commands import Run, says
from wire import codec

LOAD = LoadOptions(thin=True, clients=100, dim=50, drop=0.2, seed=7)


class ThinInMemory(InMemoryAttempt):
    """A real coordinator's phases and thin participants, which leave as planned; a few processes host them."""

    def __init__(self, config: RoundConfig, identities: dict[int, Any]) -> None:
        drops = LOAD.drops(config.round, config.attempt)
        leaving: dict[str, list[int]] = {}
        for who, drop in drops.items():
            leaving.setdefault(drop.phase, []).append(who)
        super().__init__(config, identities, lambda who: bytes, lambda who: np.empty(0), leaving=leaving)
        self.processes = [ThinAttempt(config, LOAD) for _ in range(3)]

    def answer(self, who: int, message: Any) -> Any:
        attempt, key = self.processes[who % len(self.processes)], self.identities[who]
        self.phases[who] = attempt
        match self.coordinator.name:
            case "AdvertiseKeys":
                return attempt.advertise(key)
            case "ShareKeys":
                if not attempt.begun:
                    attempt.begin(message)
                return attempt.deal(key)
            case "MaskedInputCollection":
                return attempt.mask(key, message.u2)
        if isinstance(message, SurvivorSets):
            attempt.sets = message
        if self.coordinator.name == CONSISTENCY_CHECK:
            return attempt.sign(key)
        return codec.read_unmasking_reply(attempt.reveal(key))


def attempt_of(graph: str, adversary: str) -> ThinInMemory:
    drawn = random.Random(3)
    roster, identities = fresh_roster("thin", LOAD.clients, drawn.randbytes)
    parameters = RoundParameters(
        cohort=100, colluders=2, min_survivors=70, quorum=70, bits=20, dim=50, graph=graph, adversary=adversary
    )
    config = RoundConfig(
        roster=roster, round=2, attempt=1, study_digest=bytes(32), model_digest=bytes(32), parameters=parameters
    )
    return ThinInMemory(config, dict(enumerate(identities)))


def is_right(attempt: ThinInMemory) -> bool:
    completed = attempt.run()
    identities = [attempt.identities[who].public for who in completed.u3]
    return np.array_equal(completed.total, plain_sum(LOAD.seed, 2, 1, identities, dim=50, bits=20))


@pytest.mark.parametrize("adversary", ["malicious", "curious"])
@pytest.mark.parametrize("graph", [COMPLETE, HARARY])
def test_a_real_coordinator_opens_the_right_sum(graph: str, adversary: str) -> None:
    attempt = attempt_of(graph, adversary)
    phases = {drop.phase for drop in LOAD.drops(2, 1).values()}
    assert phases == {ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASKING}
    assert is_right(attempt)
    assert attempt.processes[0].graph.complete == (graph == COMPLETE)


def test_a_mask_that_is_left_out_makes_the_sum_wrong() -> None:
    """As after a dropout in MaskedInputCollection that wasn't planned: the check of sums is not blind to it."""
    attempt = attempt_of(HARARY, "malicious")
    for process in attempt.processes:
        process.leaving -= {max(process.leaving)}
    assert not is_right(attempt)


def test_what_thin_participants_do_not_support_is_refused_in_a_sentence(run: Run) -> None:
    code, _, err = run("loadtest", "--thin", "--noise", "--cheats", "share=0.1", "--kills", "1")
    assert code == 2
    says(err, "use it without --noise, --kills, --cheats.")
    late = {"share": 0.1, "from_s": 1, "to_s": 5}
    LOAD.changed(stragglers=late).check()
    with pytest.raises(InputFailure, match=r"without --stragglers beyond --deadline\."):
        LOAD.changed(stragglers=late, deadline_s=3.0).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "graph"),
    [
        (("--clients", "24", "--drop-style", "silent", "--deadline", "5"), "complete"),
        (("--clients", "80", "--adversary", "curious", "--drop", "0.3"), "harary"),
    ],
)
@pytest.mark.long
def test_thin_participants_in_processes(run: Run, more: tuple[str, ...], graph: str) -> None:
    options = ("--processes", "2", "--dim", "1000", "--rounds", "2", "--drop", "0.2", "--resume", "20")
    result = played(run, "--thin", *options, "--max-unplanned", "0", *more)
    assert (result["rounds_completed"], result["sums_ok"]) == (2, 2)
    assert result["plan"]["graph"] == graph
    assert result["drops"]["observed"] > 0
    assert result["options"]["thin"] is True
    mean = result["round_mean"]
    assert 0 < mean["server_cpu_s"] < result["server_cpu_s"]
    assert 0 < mean["client_cpu_s"] < result["client_cpu_s"]
