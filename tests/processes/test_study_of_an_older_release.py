"""A study that an older release began and stopped after two of four rounds goes on, with what it has charged.

The archive was written by commit 6fb59c7 (`init --participants 7 --hosts 1 --rounds 4 --task mean`, `serve`, `join`);
its keys are in no other study. Certificates and the authority's statement end with time, so the authority in it, whose
folder is of that release too, makes them anew.
"""

from __future__ import annotations

import datetime
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from runtime.processes import free_port
from tests.support.commands import Run, output
from tests.support.forked_commands import Forked
from tests.support.issued_certificates import tls_authority_of
from tests.support.running_study import StudyProcesses, ledger_rows
from wire.certificates import host_uri, new_key, private_pem

pytestmark = pytest.mark.slow

ARCHIVE = Path(__file__).with_name("study-of-2026-11-24.tar.xz")


def made_valid(folder: Path, run: Run) -> None:
    """New certificates, and a statement that its roster is the newest."""
    authority, now = tls_authority_of(folder), datetime.datetime.now(datetime.UTC)
    home = folder / "hosts" / "host-01" / "tls"
    key = new_key()  # one for both
    server = authority.issue_server(key.public_key(), [], now)
    client = authority.issue_client(key.public_key(), host_uri("host-01"), now)
    for place, name, issued in ((folder / "coordinator" / "tls", "server", server), (home, "client", client)):
        (place / f"{name}.key").write_bytes(private_pem(key))
        (place / f"{name}.pem").write_bytes(issued)
    output(run, "authority", "sign", folder / "authority", "--out", folder / "signed")
    shutil.copytree(folder / "signed", folder, dirs_exist_ok=True)


class Upgraded(StudyProcesses):
    """Its processes, at a port of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.place, self.port = folder, free_port()

    @property
    def folder(self) -> Path:
        return self.place

    def start(self, *arguments: object, **overrides: str) -> Forked:
        return self._fork(["sordino", *map(str, arguments)], str(arguments[0]), overrides)

    def goes_on(self) -> None:
        address = f"localhost:{self.port}"
        at_once = {"SORDINO_COORDINATOR__LISTEN": address, "SORDINO_STUDY__PAUSE_S": "0"}
        serves = self.start("serve", self.folder, "--quiet", **at_once)
        joins = self.start("join", "--home", self.folder / "hosts" / "host-01", SORDINO_COORDINATOR__ADDRESS=address)
        assert (self.code_of(serves), self.code_of(joins)) == (0, 0), self.story()


def test_it_goes_on_with_the_same_charges(tmp_path: Path, run: Run) -> None:
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path / "study", filter="data")
    study = Upgraded(tmp_path / "study")
    ledgers = [study.folder / "coordinator" / "ledger.sqlite", study.folder / "hosts" / "host-01" / "ledger.sqlite"]
    made_valid(study.folder, run)
    for part in ("", "authority"):
        assert json.loads(output(run, "doctor", study.folder / part, "--json"))["ok"]
    before = [ledger_rows(ledger) for ledger in ledgers]
    try:
        study.goes_on()
    finally:
        study.end()
    after = [ledger_rows(ledger) for ledger in ledgers]
    assert [(row.round, row.attempt) for row in after[0]] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    for had, has in zip(before, after, strict=True):
        assert has[: len(had)] == had
        assert len(has) == 2 * len(had)
        assert {(row.kind, row.cost, row.honest) for row in has} == {(row.kind, row.cost, row.honest) for row in had}
    output(run, "budget", "verify", study.folder)
    output(run, "report", study.folder)
    for round_ in range(1, 5):
        transcript = study.folder / "coordinator" / "transcripts" / f"round-{round_:06d}.transcript"
        output(run, "transcript", "verify", transcript, "--authority", study.folder / "coordinator" / "authority.pub")
