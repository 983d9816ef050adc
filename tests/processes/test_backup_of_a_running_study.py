"""A coordinator is copied while it runs, lost, and restored: from the newest copy it goes on, from an older one not."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.failure import ExitCode
from tests.support.commands import Run, one_clear_error, output
from tests.support.running_study import RunningStudy, line, running_study

pytestmark = pytest.mark.slow

EVERYBODY = list(range(7))


def of(study: RunningStudy, folder: Path) -> RunningStudy:
    """The same study with the coordinator's files elsewhere; its processes end with the other ones."""
    return RunningStudy(replace(study.study, directory=folder), processes=study.processes)


def test_backup_and_restore(tmp_path: Path, run: Run) -> None:
    older, newest, within = (tmp_path / f"{name}.tar" for name in ("older", "newest", "within"))
    with running_study(tmp_path / "study", rounds=4) as study:
        gate = tmp_path / "go"
        first = study.start_coordinator()
        hosts = study.start_host(EVERYBODY, [line(3, "before unmasking", "hold", gate)])
        study.wait_for("round_completed", round=1)
        output(run, "backup", study.folder, "--out", older)
        study.wait_for("phase_started", round=3, phase="Unmasking")
        output(run, "backup", study.folder, "--out", within)
        output(run, "backup", study.study.hosts[0], "--out", tmp_path / "host.tar")
        one_clear_error(run, "is in use: stop its process", "restore", within, tmp_path / "again")
        first.send_signal(signal.SIGKILL)
        gate.touch()
        first.wait()
        output(run, "backup", study.folder, "--out", newest)
        told = "has gone on since: 3 ledger rows (the copy"
        one_clear_error(run, told, "restore", older, tmp_path / "again")
        shutil.rmtree(study.folder / "coordinator")  # the disk is lost

        output(run, "restore", older, tmp_path / "older")
        from_older = of(study, tmp_path / "older")
        output(run, "budget", "verify", from_older.folder)
        before = from_older.charges()
        second = from_older.start_coordinator()
        assert from_older.code_of(second) == ExitCode.LEDGER
        assert "participants have answered round 3, and this copy of the study ends with round" in from_older.logs()
        assert from_older.charges() == before
        assert hosts.poll() is None  # and waits for a newer copy

        # The copies from within the round are as if the coordinator had been killed there: its charge stays.
        for name in ("within", "newest"):
            said = output(run, "restore", tmp_path / f"{name}.tar", tmp_path / name)
            assert "2 rounds, 3 attempts, 3 ledger rows" in said
        from_within = of(study, tmp_path / "within")
        third = from_within.start_coordinator()
        assert from_within.code_of(third) == 0, from_within.story()
        assert from_within.code_of(hosts) == 0
        done = [(one.round, one.attempt) for one in from_within.charges()]
        assert done == [(1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]

        # The host's copy is of a moment between its charge and the end of the round.
        one_clear_error(run, "has gone on since", "restore", tmp_path / "host.tar", tmp_path / "host")
        shutil.rmtree(study.study.hosts[0])
        output(run, "restore", tmp_path / "host.tar", tmp_path / "host")
        output(run, "budget", "verify", tmp_path / "host")
