"""The coordinator is stopped (SIGTERM) or killed (SIGKILL) and started again from the same folder, while the same
client processes run on: they come back by themselves, and the attempt goes on with the same bytes and one charge.
"""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from client.host_file import load as load_host
from mechanisms.accounting import Account, RoundCharge
from runtime.failure import ExitCode
from tests.support.running_study import RunningStudy, line, put_on_one_host, running_study
from wire.records.ledger_rows import CHARGE

pytestmark = pytest.mark.slow

EVERYBODY = range(7)
ROUNDS = 4  # with everybody in each sum the budget of four lasts for a fifth charge


def charges(study: RunningStudy) -> list[tuple[int, int]]:
    return [(row.round, row.attempt) for row in study.charges()]


def outcomes(study: RunningStudy) -> list[tuple[int, int, str]]:
    rows = study.rows("SELECT round, attempt, outcome FROM attempts ORDER BY 1, 2")
    return [(round_, attempt, outcome) for round_, attempt, outcome in rows]


def epsilon_of(study: RunningStudy) -> float:
    """What the charges in the ledger cost, computed anew: everybody was in each."""
    account = Account(study.study.plan)
    for round_, attempt in charges(study):
        account.charge(RoundCharge(round_, attempt, frozenset(EVERYBODY), study.study.plan.identity))
    return account.epsilon_coordinator()


def test_stopped_in_the_middle_of_a_round(tmp_path: Path) -> None:
    with running_study(tmp_path / "study", rounds=ROUNDS) as study:
        gate = tmp_path / "go"
        alive = tmp_path / "alive"
        first = study.start_coordinator(SORDINO_COORDINATOR__HTTP_LISTEN="127.0.0.1:0", SORDINO_HEALTH_FILE=str(alive))
        hosts = study.start_host(list(EVERYBODY), [line(2, "before consistency", "hold", gate)])
        study.wait_for("phase_started", round=2, phase="ConsistencyCheck")
        first.send_signal(signal.SIGTERM)
        assert study.code_of(first) == 0
        [end] = study.events("study_finished")
        assert (end["reason"], end["rounds_completed"]) == ("stopped", 1)
        assert hosts.poll() is None
        assert alive.exists()
        gate.touch()  # their answers find no coordinator: they keep them
        second = study.start_coordinator()
        assert study.code_of(second) == 0, study.story()
        assert study.code_of(hosts) == 0
        assert outcomes(study) == [(1, 1, "completed"), (2, 1, "completed"), (3, 1, "completed"), (4, 1, "completed")]
        assert charges(study) == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert all(study.survivors(round_) == set(EVERYBODY) for round_ in range(1, ROUNDS + 1))
        assert study.events("round_completed")[-1]["epsilon_coordinator"] == pytest.approx(epsilon_of(study))
        assert "Traceback" not in study.logs()
        said = [json.loads(one) for one in study.logs("serve").splitlines()]  # each line, whoever wrote it
        assert all({"timestamp", "level", "event"} <= one.keys() for one in said)
        assert [one["event"] for one in said].count("listening for metrics and health") == 1


IN_PHASE = {
    "advertise_keys": "AdvertiseKeys",
    "share_keys": "ShareKeys",
    "masked_input": "MaskedInputCollection",
    "upload": "MaskedInputCollection",
    "consistency": "ConsistencyCheck",
    "unmasking": "Unmasking",
}


@pytest.mark.long
def test_killed_in_each_phase(tmp_path: Path) -> None:
    """When four have answered, and three haven't: each round is completed by the attempt that was cut off."""
    rounds = len(IN_PHASE)
    with running_study(tmp_path / "study", together=range(3, 7), rounds=rounds) as study:
        put_on_one_host(study.folder, {load_host(home).host.name for home in study.study.hosts[:3]})
        gates = [tmp_path / f"go-{kind}" for kind in IN_PHASE]  # opened when the coordinator is dead
        script = [line(at, f"before {kind}", "hold", gates[at - 1]) for at, kind in enumerate(IN_PHASE, 1)]
        coordinator = study.start_coordinator()
        hosts = study.start_host([0, 1, 2], script), study.start_host([3, 4, 5, 6])
        for at, phase in enumerate(IN_PHASE.values(), 1):
            study.wait_for("phase_progress", round=at, phase=phase, received=4)
            coordinator.kill()
            assert study.code_of(coordinator) == -signal.SIGKILL
            gates[at - 1].touch()
            coordinator = study.start_coordinator()
        assert study.code_of(coordinator) == 0, study.story()
        assert [study.code_of(host) for host in hosts] == [0, 0]
        assert outcomes(study) == [(at, 1, "completed") for at in range(1, rounds + 1)]
        assert charges(study) == [(at, 1) for at in range(1, rounds + 1)]
        assert [(event["round"], event["attempt"]) for event in study.events("attempt_resumed")] == charges(study)
        assert study.events("participant_dropped") == []
        assert all(study.survivors(at) == set(EVERYBODY) for at in range(1, rounds + 1))
        last = study.events("round_completed")[-1]
        assert last["epsilon_coordinator"] == pytest.approx(epsilon_of(study))
        for host in (0, 3):
            paid = {(row.round, row.attempt) for row in study.host_charges(host) if row.kind == CHARGE}
            assert sorted(paid) == charges(study)
        assert study.rows("SELECT count(*) FROM kept") == [(0,)]
        assert "Traceback" not in study.logs()


def test_an_attempt_whose_participants_are_gone_is_closed(tmp_path: Path) -> None:
    """They come back without their keys: the next attempt begins at once, and the charge of the first stays."""
    with running_study(tmp_path / "study", rounds=2) as study:
        first = study.start_coordinator()
        hosts = study.start_host(list(EVERYBODY), [line(1, "before unmasking", "hold", tmp_path / "never")])
        study.wait_for("phase_started", round=1, phase="Unmasking")
        first.kill()
        hosts.kill()
        assert study.code_of(first) == study.code_of(hosts) == -signal.SIGKILL
        study.start_host(list(EVERYBODY))
        second = study.start_coordinator()
        study.wait_for("attempt_aborted", round=1, attempt=1)
        study.wait_for("round_completed", round=1, attempt=2)
        assert charges(study)[:2] == [(1, 1), (1, 2)]
        assert study.code_of(second) in (0, ExitCode.BUDGET)


def test_clips_go_on_where_they_were(tmp_path: Path) -> None:
    """Killed between two rounds: the next one's clips are those that the last sum gave, not the plan's first ones."""
    with running_study(tmp_path / "study", rounds=3, mechanism="skellam", clip_update="geometric") as study:
        gate = tmp_path / "go"
        first = study.start_coordinator()
        hosts = study.start_host(list(EVERYBODY), [line(2, "before advertise_keys", "hold", gate)])
        study.wait_for("round_completed", round=1)
        study.wait_for("phase_started", round=2, phase="AdvertiseKeys")
        first.kill()
        assert study.code_of(first) == -signal.SIGKILL
        gate.touch()
        second = study.start_coordinator()
        assert study.code_of(second) == 0, study.story()
        assert study.code_of(hosts) == 0
        rounds = study.events("round_completed")
        assert [event["round"] for event in rounds] == [1, 2, 3]
        for event, following in pairwise(rounds):
            assert following["clips"] == event["next_clips"] != event["clips"]
