"""A study that begins without participants: all enrol by code. The coordinator has nothing of the authority's secrets.

The authority's verbs, the coordinator and participants run as their own processes, as people would start them.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from authority.new_study import new_study
from client.credentials import load_identity
from client.host_file import load as load_host
from runtime.processes import free_port
from runtime.settings_keys import settings_toml
from server.study_file import load as load_study
from tests.support.forked_commands import Forked, commands
from tests.support.running_study import StudyProcesses
from tests.support.study_in_process import with_tables
from wire.study import TERMS_FILE

pytestmark = pytest.mark.slow
NEEDED = 5
PLACES = 6


@dataclass
class EnrolledStudy(StudyProcesses):
    """Folders, addresses and processes of one study."""

    work: Path
    enrolment: str

    @property
    def folder(self) -> Path:
        return self.work

    @property
    def authority(self) -> Path:
        return self.work / "authority"

    @property
    def coordinator(self) -> Path:
        return self.work / "coordinator"

    @property
    def state(self) -> Path:
        return self.coordinator / "state" / "state.sqlite"

    def start(self, *arguments: str, name: str) -> Forked:
        """``sordino`` with these arguments."""
        return self._fork(["sordino", *arguments], name, {})

    def join(self, home: str, code: str, *more: str) -> Forked:
        """``sordino join --code`` into a folder of that name."""
        options = ["--code", code, "--home", str(self.work / home), "--yes", *more]
        return self.start("join", self.enrolment, *options, name=home)

    def ask_authority(self, verb: str, *arguments: str) -> str:
        """Run a verb of the authority, which ends well; its last line."""
        done = commands()("authority", verb, self.authority, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    def invite(self, count: int) -> list[str]:
        """Fresh join codes."""
        told = json.loads(self.ask_authority("invite", "--count", str(count), "--json"))
        return [one["code"] for one in told["invitations"]]


@contextmanager
def enrolled_study(work: Path) -> Iterator[EnrolledStudy]:
    """A new study with `PLACES` places, of whom `NEEDED` must be there; all its processes end with the block."""
    port, enrolment_port = free_port(), free_port()
    chosen = new_study(
        **{"name": "clinic", "participants": PLACES, "hosts": PLACES, "rounds": 400, "epsilon": 50.0, "pause_s": 0.2},
        **{"adversarial": 0.0, "min_survivors": NEEDED, "quorum": NEEDED, "one_machine": False},
        listen=f"127.0.0.1:{port}",
    )
    study = EnrolledStudy(work, f"localhost:{enrolment_port}")
    places = "--study", "clinic", "--places", str(PLACES)
    study.ask_authority("init", *places, "--coordinator", study.enrolment, "--address", f"localhost:{port}")
    shutil.move(study.authority / "coordinator", study.coordinator)
    files = {
        "state": "state/state.sqlite",
        "tls_certificate": "tls/server.pem",
        "tls_key": "tls/server.key",
        "roster": "roster.json",
        "authority_public_key": "authority.pub",
        "client_ca": "tls/ca.pem",
        "card": "card.json",
        "transcript_key": "transcript.key",
    }
    table = {name: Path(file) for name, file in files.items()} | {"enrolment_listen": f"127.0.0.1:{enrolment_port}"}
    settings = with_tables(chosen.study.settled(), {"coordinator": table})
    (study.coordinator / "study.toml").write_text(settings_toml(settings))
    signed = study.coordinator / TERMS_FILE
    signed.write_bytes(load_study(study.coordinator).document(PLACES).to_bytes())
    study.ask_authority("terms", str(signed), "--yes", "--offline", "--out", str(study.coordinator))
    try:
        yield study
    finally:
        study.end()


def identity_of(study: EnrolledStudy, home: str) -> str:
    return load_identity(load_host(study.work / home).participants[0].key).public.hex()


def test_enrolment_refusal_by_policy_and_revocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with enrolled_study(tmp_path) as study:
        coordinator = study.start("serve", str(study.coordinator), "--quiet", name="serve")
        study.start("authority", "run", str(study.authority), "--every", "1s", name="authority")
        study.until(lambda: study.events("study_started"), "the coordinator")
        strict = tmp_path / "strict.toml"
        strict.write_text("[policy]\nmax_epsilon = 1\nmin_honest_survivors = 2\n")
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
