"""The coordinator is stopped (SIGTERM) or killed (SIGKILL) and started again from the same folder, while the same
client processes run on: they come back by themselves, and the attempt goes on with the same bytes and one charge.
"""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from mechanisms.accounting import Account, RoundCharge
from tests.support.running_study import RunningStudy, line, running_study
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


def test_killed_within_and_between_rounds(tmp_path: Path) -> None:
    with running_study(tmp_path / "study", rounds=ROUNDS) as study:
        # Held twice each: a gate opens only when the coordinator that it belongs to is dead.
        gates = [tmp_path / "go-1", tmp_path / "go-2"]
        script = [line(1, "before unmasking", "hold", gates[0]), line(2, "before advertise_keys", "hold", gates[1])]
        first = study.start_coordinator()
        hosts = study.start_host(list(EVERYBODY), script)

        study.wait_for("phase_started", round=1, phase="Unmasking")
        assert charges(study) == [(1, 1)]
        first.kill()
        assert study.code_of(first) == -signal.SIGKILL
        gates[0].touch()
        second = study.start_coordinator()

        study.wait_for("round_completed", round=1, attempt=1)
        study.wait_for("attempt_started", round=2)
        second.kill()
        assert study.code_of(second) == -signal.SIGKILL
        gates[1].touch()
        third = study.start_coordinator()

        assert study.code_of(third) == 0, study.story()
        assert study.code_of(hosts) == 0
        assert outcomes(study) == [(1, 1, "completed"), (2, 1, "completed"), (3, 1, "completed"), (4, 1, "completed")]
        assert charges(study) == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert [(event["round"], event["attempt"]) for event in study.events("attempt_resumed")] == [(1, 1), (2, 1)]
        assert all(study.survivors(round_) == set(EVERYBODY) for round_ in range(1, ROUNDS + 1))
        last = study.events("round_completed")[-1]
        assert last["epsilon_coordinator"] == pytest.approx(epsilon_of(study))
        paid = {(row.round, row.attempt) for row in study.host_charges(0) if row.kind == CHARGE}
        assert sorted(paid) == charges(study)
        assert "Traceback" not in study.logs()


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
