"""Clients that are killed (SIGKILL) at exact points of the protocol, as real processes over TLS."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from client.credentials import load_identity
from tests.support.running_study import RunningStudy, line, running_study
from tests.support.study_in_process import roster_of
from wire.records.ledger_rows import CHARGE

pytestmark = [pytest.mark.slow, pytest.mark.long]

VICTIM, RELIABLE = 0, range(1, 7)  # homes
A, S, M, C, U = "AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "ConsistencyCheck", "Unmasking"

# Where it is killed; the phases in which the coordinator can notice; how many sets of u1, u2, u3, u4, u5 hold it.
DEATHS = [
    ("before advertise_keys", {A}, 0),
    ("after advertise_keys", {A, S}, 1),
    ("before share_keys", {S}, 1),
    ("after share_keys", {S, M}, 2),
    ("before masked_input", {M}, 2),
    ("before upload", {M}, 2),
    ("mid upload", {M}, 2),
    ("after upload", {M, C, U}, 3),  # shares are asked for while some have yet to sign
    ("before consistency", {C, U}, 3),
    ("after consistency", {C, U}, 4),
    ("before unmasking", {U}, 4),
]
CHARGED_FROM = "before masked_input"
AT_ONCE = {"SORDINO_DEADLINES__RESUME_S": "0.1"}  # who is cut off is soon dropped


def position_of(study: RunningStudy, home: int) -> int:
    """Where in the roster the participant of a home stands."""
    [key] = (study.study.hosts[home] / "keys").iterdir()
    return roster_of(study.folder).positions[load_identity(key).public]


def test_killed_at_every_point(tmp_path: Path) -> None:
    """One round for each point. The same process is killed in every round and started again at once; the others hold
    their last answer until it is connected again, so each round is seen to go on without it, and the next to have it.
    """
    rounds = len(DEATHS)
    gates = [tmp_path / f"go-{number}" for number in range(1, rounds + 1)]
    with running_study(tmp_path / "study", together=RELIABLE, rounds=rounds) as study:
        kills = [line(number, point, "kill") for number, (point, _, _) in enumerate(DEATHS, 1)]
        holds = [line(number, "before unmasking", "hold", gate) for number, gate in enumerate(gates, 1)]
        coordinator = study.start_coordinator(**AT_ONCE)
        reliable = study.start_host(list(RELIABLE), holds)
        victim = study.start_host([VICTIM], kills)
        me = position_of(study, VICTIM)
        for number, gate in enumerate(gates, 1):
            assert study.code_of(victim) == -signal.SIGKILL
            study.wait_for("participant_dropped", round=number)
            back = tmp_path / f"back-{number}"
            later = [one for one in kills if one["round"] > number]
            victim = study.start_host([VICTIM], [line(0, "after ready", "touch", back), *later])
            # Back in the middle of the attempt it had joined, which goes on without it.
            study.until(back.exists, "the restarted client")
            study.wait_for("phase_started", round=number, phase=U)
            gate.touch()
        assert study.code_of(coordinator) == 0, study.story()
        assert study.code_of(reliable) == 0
        assert study.code_of(victim) == 0

        everybody = set(range(7))
        for number, (point, phases, sets) in enumerate(DEATHS, 1):
            [completed] = study.events("round_completed", round=number)
            [drop] = study.events("participant_dropped", round=number)
            assert completed["attempt"] == 1
            assert (drop["participant"], drop["host"]) == (me, "host-01")
            assert drop["phase"] in phases, point
            assert "connection closed" in drop["reason"] or "512 bytes, not 1024" in drop["reason"]
            sizes = [completed[name] for name in ("u1", "u2", "u3", "u4")]
            if len(phases) == 1 or point == "before consistency":
                assert sizes == [7 if sets > index else 6 for index in range(4)], point
            survivors = study.survivors(number)
            assert len(survivors) == completed["u3"]
            assert survivors - {me} == everybody - {me}
            if len(phases) == 1 or point == "before consistency":
                assert (me in survivors) == (sets >= 3), point
        assert len(study.events("participant_connected", participant=me)) == rounds + 1
        # It joined each round once, and was charged where its vector may have left it, whatever came of it.
        rows = study.host_rows(VICTIM, "SELECT round, attempt FROM attempts ORDER BY round")
        assert rows == [(number, 1) for number in range(1, rounds + 1)]
        points = [point for point, _, _ in DEATHS]
        first = points.index(CHARGED_FROM) + 1
        paid = [row.round for row in study.host_charges(VICTIM) if row.kind == CHARGE]
        assert paid == list(range(first, rounds + 1))
        assert {row.round: set(row.participants or ()) for row in study.charges()} == {
            number: study.survivors(number) for number in range(1, rounds + 1)
        }
        assert "Traceback" not in study.logs()


def test_too_many_gone(tmp_path: Path) -> None:
    """Three of seven leave for good in ShareKeys: the attempt aborts and says why, the next ones find too few
    connected, and the study ends with code 5. Nothing was charged; the participants that stayed are told.
    """
    with running_study(tmp_path / "study", together=range(4), rounds=2) as study:
        patience = {"SORDINO_DEADLINES__CONNECT_S": "20", "SORDINO_COORDINATOR__MAX_ATTEMPTS": "2"}
        coordinator = study.start_coordinator(**AT_ONCE, **patience)
        stayed = study.start_host([0, 1, 2, 3])
        gone = [study.start_host([home], [line(1, "before share_keys", "kill")]) for home in (4, 5, 6)]
        assert [study.code_of(process) for process in gone] == [-signal.SIGKILL] * 3
        aborted = study.wait_for("attempt_aborted")[0]
        assert (aborted["round"], aborted["attempt"], aborted["phase"]) == (1, 1, S)
        assert aborted["reason"] == "4 participants, 5 needed"
        assert (aborted["received"], aborted["needed"]) == (4, 5)
        assert {drop["reason"] for drop in study.events("participant_dropped")} == {"connection closed"}
        # One of them comes back, which is enough for an attempt, and leaves again in its middle.
        again = study.start_host([4], [line(1, "before masked_input", "kill")])
        assert study.code_of(again) == -signal.SIGKILL
        assert study.code_of(coordinator) == 5, study.story()
        assert study.code_of(stayed) == 5  # as the coordinator: whoever watches starts both again
        second = study.events("attempt_aborted")[1]
        assert (second["round"], second["attempt"], second["phase"]) == (1, 2, M)
        assert second["reason"] == "4 participants, 5 needed"
        # Who could still have answered is not to blame.
        assert len(study.events("participant_dropped")) == 4
        [end] = study.events("study_finished")
        assert (end["reason"], end["rounds_completed"]) == ("round aborted", 0)
        assert study.charges() == []
        assert study.rows("SELECT outcome FROM attempts ORDER BY attempt") == [
            ("aborted: ShareKeys: 4 participants, 5 needed",),
            ("aborted: MaskedInputCollection: 4 participants, 5 needed",),
        ]
        assert "Traceback" not in study.logs()
