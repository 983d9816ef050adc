"""Commands of a host's owner reach `sordino join` while it runs; a finished study that is served or joined says so."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_commands import Commands, Forked
from tests.support.running_study import RunningStudy, running_study

pytestmark = [pytest.mark.slow, pytest.mark.long]


def say(sordino: Commands, home: Path, *wish: object) -> dict[str, Any]:
    ended = sordino("join", "--home", home, *wish, "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def joined(study: RunningStudy, home: Path) -> Forked:
    return study._fork(["sordino", "join", "--home", str(home)], f"join-{home.name}", {})


def test_pause_resume_leave_and_the_records(tmp_path: Path, sordino: Commands) -> None:
    """Six of seven are needed, and one never comes: the study waits for who is paused, and then for who has left."""
    with running_study(tmp_path / "study", rounds=8, pause_s=0.7, quorum=6, together=()) as study:
        homes = study.study.hosts
        serving = study.start_coordinator()
        pausing, *_ = [joined(study, home) for home in homes[:6]]
        study.wait_for("round_completed", round=1)
        assert say(sordino, homes[0], "--pause")["state"] == "paused"
        study.until(lambda: "paused it on" in study.logs(f"join-{homes[0].name}"), "the pause")
        waited = len(study.wait_for("waiting_for_participants", received=5))
        assert say(sordino, homes[0], "--status")["state"] == "paused"
        assert pausing.poll() is None

        leaving = joined(study, homes[6])
        reached = study.events("round_completed")[-1]["round"]
        study.wait_for("round_completed", round=reached + 1)
        assert say(sordino, homes[6], "--leave")["state"] == "left"
        assert study.code_of(leaving) == 0
        study.until(lambda: len(study.events("waiting_for_participants", received=5)) > waited, "another wait")

        say(sordino, homes[0], "--resume")
        assert study.code_of(serving) == 0, study.story()
        assert study.code_of(pausing) == 0
        # Nobody left in the middle of an attempt; one that was just announced may have failed for it.
        assert all(event["u1"] == event["u3"] for event in study.events("round_completed"))
        assert {event["phase"] for event in study.events("attempt_aborted")} <= {"AdvertiseKeys", "Connecting"}

        body = say(sordino, homes[0], "--status")
        assert body["state"] == "ended"
        sums = [one["sum_of"] for one in body["attempts"]]
        assert 2 <= len(sums) < 8
        assert all(sums)
        assert body["attempts"][-1]["epsilon"] == pytest.approx(body["limits"]["studies"][0]["epsilon"])
        [records] = say(sordino, homes[0], "--export", tmp_path / "records")["files"]
        transcripts = sorted((study.folder / "coordinator" / "transcripts").glob("*.transcript"))
        check = ("--authority", study.folder / "authority" / "authority.pub", "--json", "--own", records)
        verified = sordino("transcript", "verify", *transcripts, *check)
        assert verified.returncode == 0, verified.stderr
        [compared] = json.loads(verified.stdout)["participants"]
        assert (compared["in_sums"], compared["others"]) == (len(sums), [])

        again = sordino("join", "--home", homes[0])
        assert (again.returncode, again.stdout) == (0, "")
        assert "ended (rounds done)" in again.stderr
        assert sordino("join", "--home", homes[6]).returncode == 0


def test_a_finished_study_waits_only_for_who_has_not_heard(tmp_path: Path) -> None:
    with running_study(tmp_path / "study", rounds=1, together=range(6)) as study:
        serving, hosts = study.start_coordinator(), study.start_host(list(range(6)))
        assert study.code_of(serving) == 0, study.story()
        assert study.code_of(hosts) == 0
        again = study.start_coordinator()
        study.until(lambda: '"participants": 1' in study.logs("serve"), "the wait for the seventh")
        seventh = joined(study, study.study.hosts[6])
        assert study.code_of(again) == 0, study.story()
        assert study.code_of(seventh) == 0
        began = time.monotonic()
        assert study.code_of(study.start_coordinator()) == 0
        assert time.monotonic() - began < 45  # a minute's wait has gone
        assert "the study was over when it was served" in study.logs("serve")
