"""``sordino doctor``: one line a check, and what to do where one fails."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runtime.child_process import child_environment
from tests.support.commands import Run
from tests.support.databases import execute
from tests.support.study_in_process import coordinator
from wire.certificates import CertificateAuthority

MACHINE = ["versions", "processor", "memory", "disk"]
STUDY = [*MACHINE, *("settings", "secrets", "certificate", "transcripts", "roster", "ledger", "port", "databases")]
HOST = [*MACHINE, *("settings", "secrets", "identities", "certificate", "ledger", "coordinator", "databases")]
AUTHORITY = [*MACHINE, *("settings", "secrets", "keys", "coordinator", "databases")]


def examined(run: Run, *arguments: object) -> tuple[list[str], dict[str, str]]:
    """The names of all checks, and what those say that fail."""
    code, out, err = run("doctor", *arguments, "--json")
    told = json.loads(out)
    failed = {one["check"]: one["says"] for one in told["checks"] if not one["ok"]}
    assert (code, err, told["ok"]) == (2 if failed else 0, "", not failed)
    return [one["check"] for one in told["checks"]], failed


def test_folders_as_they_are_made(run: Run, small_study: Path, tmp_path: Path) -> None:
    before = sorted(small_study.rglob("*"))
    assert examined(run, small_study) == (STUDY, {})
    assert examined(run, small_study / "study.toml") == (STUDY, {})
    assert examined(run, small_study / "authority") == (AUTHORITY, {})
    checks, failed = examined(run, small_study / "hosts" / "host-01")
    assert (checks, failed.keys()) == (HOST, {"coordinator"})
    assert "nothing listens there; the coordinator may not be started yet" in failed["coordinator"]
    assert sorted(small_study.rglob("*")) == before  # it writes nothing


def test_lines_for_people(run: Run, small_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("doctor")
    assert (code, err, len(out.splitlines())) == (0, "", len(MACHINE))
    monkeypatch.chdir(small_study)
    code, out, err = run("doctor")
    assert (code, err, len(out.splitlines())) == (0, "", len(STUDY))
    assert all(line.startswith("ok    ") for line in out.splitlines())
    code, out, _ = run("doctor", tmp_path)
    assert (code, out.splitlines()[-1].split(maxsplit=2)[:2]) == (2, ["FAIL", "settings"])


def open_key(study: Path) -> None:
    (study / "coordinator" / "transcript.key").chmod(0o644)


def foreign_ca(study: Path) -> None:
    shutil.copy(study / "coordinator" / "tls" / "server.pem", study / "tls" / "ca.pem")


def another_key(study: Path) -> None:
    place = study / "coordinator" / "tls" / "server.key"
    place.write_bytes((study / "authority" / "tls-ca.key").read_bytes())


def newer_format(study: Path) -> None:
    shutil.copy(study / "authority" / "state.sqlite", study / "coordinator" / "state.sqlite")
    execute(study / "coordinator" / "state.sqlite", f"PRAGMA application_id = {0x536F7264}", "PRAGMA user_version = 99")


def damaged(study: Path) -> None:
    state = study / "authority" / "state.sqlite"
    content = bytearray(state.read_bytes())
    content[4096 : 4096 + 200] = bytes(200)
    (study / "coordinator" / "notes.sqlite").write_bytes(content)
    (study / "coordinator" / "notes.sqlite").chmod(0o600)


def wrong_setting(study: Path) -> None:
    place = study / "study.toml"
    place.write_text(place.read_text().replace("upload_credits = 64", "upload_credits = 0"))


FAULTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a key that others can read": (open_key, "secrets", "transcript.key: run chmod 600"),
    "another TLS authority": (foreign_ca, "certificate", "isn't the TLS authority that"),
    "another key": (another_key, "certificate", "are not a certificate and its unencrypted private key"),
    "a newer journal": (newer_format, "databases", "has format 99, this release reads 3: a newer one wrote it"),
    "a damaged database": (damaged, "databases", "notes.sqlite is damaged"),
    "a setting": (wrong_setting, "settings", "upload_credits"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_to_be_done(run: Run, small_study: Path, fault: str) -> None:
    change, check, told = FAULTS[fault]
    change(small_study)
    _, failed = examined(run, small_study)
    assert told in failed[check]


@pytest.mark.parametrize(
    ("ahead_s", "check", "told"),
    [
        (-7200, "roster", "this machine's is behind"),
        (-7200, "certificate", "the clock may be wrong, set it"),
        (8 * 86_400, "roster", "ended on"),
        (6.5 * 86_400, "roster", "sordino authority sign DIR --out FOLDER; and here: cp FOLDER/*"),
        (815 * 86_400, "certificate", "expires on"),
        (830 * 86_400, "certificate", "expired on"),
    ],
)
def test_a_clock_that_is_wrong(
    run: Run, small_study: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, check: str, told: str
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    _, failed = examined(run, small_study)
    assert told in failed[check]


def test_a_statement_that_is_half_over_is_a_warning(
    run: Run, small_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 5 * 86_400)
    code, out, _ = run("doctor", small_study)
    [line] = [line for line in out.splitlines() if line.startswith("WARN")]
    assert (code, f"cp FOLDER/* {small_study}/" in line) == (0, True)
    monkeypatch.setenv("SORDINO_COORDINATOR__ENROLMENT_LISTEN", "localhost:1")
    told = json.loads(run("doctor", small_study, "--json")[1])["checks"]
    [said] = [one["says"] for one in told if one["warning"]]
    assert "`sordino authority run`, where the authority is" in said


async def test_after_a_round_the_coordinator_is_reached_and_a_clock_that_went_back_is_seen(
    study_folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, home = tmp_path / "study", tmp_path / "study" / "hosts" / "host-01"
    shutil.copytree(study_folder, folder)
    async with coordinator(folder, folder / "coordinator" / "state.sqlite") as where:
        port = where.address.rpartition(":")[2]

        async def of_the_host(address: str) -> dict[str, str]:
            command = [sys.executable, "-m", "sordino", "doctor", str(home), "--json"]
            variables = child_environment() | {"SORDINO_COORDINATOR__ADDRESS": address}
            done = await asyncio.to_thread(subprocess.run, command, env=variables, capture_output=True, check=False)
            return {one["check"]: one["says"] for one in json.loads(done.stdout)["checks"]}

        assert (await of_the_host(f"localhost:{port}"))["coordinator"].endswith("answers, with a certificate of ca.pem")
        right = (home / "ca.pem").read_bytes()
        (home / "ca.pem").write_bytes(CertificateAuthority.make("another", datetime.now(UTC)).pem)
        assert "isn't signed by this study's authority" in (await of_the_host(f"localhost:{port}"))["coordinator"]
        (home / "ca.pem").write_bytes(right)
        await where.play()
    assert examined(run, folder)[1] == {}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 600)
    assert "set the clock" in examined(run, folder)[1]["ledger"]


def test_a_disk_that_is_nearly_full(run: Run, small_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` refuses it too, before it writes anything: a study that stops in a round costs its participants more."""
    full = shutil.disk_usage(small_study)._replace(free=99_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    _, failed = examined(run, small_study)
    assert "99 MB are free" in failed["disk"]
    code, _, told = run("serve", small_study, "--quiet")
    assert (code, "make room, 100 MB at least" in told) == (2, True)
    assert not (small_study / "coordinator" / "state.sqlite").exists()
