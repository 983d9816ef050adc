"""A study whose participants all enrol by code, each part a process: an authority, a coordinator, participants."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from client.credentials import load_identity
from client.host_file import load
from tests.processes.enrolled_study import EnrolledStudy, enrolled_study

pytestmark = pytest.mark.slow
NEEDED = 5


def identity_of(study: EnrolledStudy, home: str) -> str:
    return load_identity(load(study.work / home).participants[0].key).public.hex()


def test_enrolment_refusal_by_policy_and_revocation(tmp_path: Path) -> None:
    with enrolled_study(tmp_path, rounds=400, pause_s=0.2) as study:
        coordinator = study.serve()
        study.start("authority", "run", str(study.authority), "--every", "1s", name="authority")
        study.until(lambda: study.events("study_started"), "the coordinator")
        strict = tmp_path / "strict.toml"
        strict.write_text("[policy]\nmax_epsilon = 1\nmin_honest_survivors = 2\n")
        began = time.monotonic()
        spare, *codes = study.invite(NEEDED + 2)
        careful = study.join("careful", spare, "--policy", str(strict))
        assert study.code_of(careful) == 2
        assert "your policy refuses this study (epsilon-in-study" in study.logs("careful")
        assert not (tmp_path / "careful").exists()

        joined = [study.join(f"home-{number}", code) for number, code in enumerate(codes)]
        # Killed while it waits: the same command continues with the same identity.
        key = tmp_path / "home-0" / "keys" / "participant.key"
        study.until(key.exists, "the first folder")
        joined[0].send_signal(signal.SIGKILL)
        who = key.read_bytes()
        joined[0] = study.join("home-0", codes[0])
        study.until(lambda: study.events("round_completed"), "the first round")
        print(f"invitations to the first round: {time.monotonic() - began:.1f} s")
        assert key.read_bytes() == who
        everybody = NEEDED + 1
        study.until(lambda: study.events("round_completed", u3=everybody), "a round of all")

        twin = study.start("join", "--home", str(tmp_path / "home-1"), name="twin")
        assert study.code_of(twin) == 2
        assert "journal.sqlite is in use by another process" in study.logs("twin")

        study.ask_authority("revoke", identity_of(study, "home-2"), "--sign")
        assert study.code_of(joined[2]) == 2
        assert "was revoked or never enrolled" in study.logs("home-2")
        rounds = len(study.events("round_completed"))
        study.until(lambda: len(study.events("round_completed")) > rounds + 1, "rounds without it")
        assert study.events("round_completed")[-1]["u3"] == everybody - 1
        again = study.start("join", "--home", str(tmp_path / "home-2"), name="again")
        assert study.code_of(again) == 2
        assert "was revoked or never enrolled" in study.logs("again")
        coordinator.send_signal(signal.SIGTERM)
        assert study.code_of(coordinator) == 0
