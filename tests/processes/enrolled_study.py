"""A study that begins without participants: an authority of its own, and a coordinator that has nothing of its secrets.

The authority's verbs, the coordinator and participants run as their own processes, as people would start them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from authority.new_study import new_study
from runtime.child_process import child_environment
from runtime.processes import free_port
from runtime.settings_keys import settings_toml
from server.study_file import load
from tests.support.running_study import StudyProcesses
from tests.support.study_in_process import with_tables
from wire.study import TERMS_FILE

PATIENCE_S = 60.0  # generous: the machine may be busy with something else
PLACES = 6


@dataclass
class EnrolledStudy(StudyProcesses):
    """Folders, addresses and processes of one study."""

    work: Path
    enrolment: str
    patience_s: ClassVar[float] = PATIENCE_S

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

    def start(self, *arguments: str, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """``sordino`` with these arguments."""
        return self._start([sys.executable, "-m", "sordino", *arguments], name, environment, cwd=self.work)

    def serve(self) -> subprocess.Popen[bytes]:
        return self.start("serve", str(self.coordinator), "--quiet", name="serve")

    def join(self, home: str, code: str, *more: str, **environment: str) -> subprocess.Popen[bytes]:
        """``sordino join --code`` into a folder of that name."""
        options = ["--code", code, "--home", str(self.work / home), "--yes", *more]
        return self.start("join", self.enrolment, *options, name=home, **environment)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A verb that ends by itself."""
        return subprocess.run(
            [sys.executable, "-m", "sordino", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=child_environment(),
            cwd=self.work,
            timeout=PATIENCE_S,
        )

    def ask_authority(self, verb: str, *arguments: str) -> Any:
        """A verb of the authority, with what it says as JSON."""
        done = self.run("authority", verb, str(self.authority), *arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def invite(self, count: int = 1) -> list[str]:
        """Fresh join codes."""
        return [one["code"] for one in self.ask_authority("invite", "--count", str(count))["invitations"]]


@contextmanager
def enrolled_study(work: Path, **options: Any) -> Iterator[EnrolledStudy]:
    """A new study with `PLACES` places, of whom five must be there; all its processes end with the block."""
    port, enrolment_port = free_port(), free_port()
    chosen: dict[str, Any] = {
        "name": "clinic",
        "participants": PLACES,
        "hosts": PLACES,
        "rounds": 3,
        "epsilon": 50.0,
        "adversarial": 0.0,
        "min_survivors": 5,
        "quorum": 5,
        "listen": f"127.0.0.1:{port}",
        "one_machine": False,
    } | options
    study = EnrolledStudy(work, f"localhost:{enrolment_port}")
    made = study.run(
        *("authority", "init", str(study.authority), "--study", "clinic", "--places", str(PLACES)),
        *("--coordinator", study.enrolment, "--address", f"localhost:{port}"),
    )
    assert made.returncode == 0, made.stdout + made.stderr
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
    settings = with_tables(new_study(**chosen).study.settled(), {"coordinator": table})
    (study.coordinator / "study.toml").write_text(settings_toml(settings))
    signed = study.coordinator / TERMS_FILE
    signed.write_bytes(load(study.coordinator).document(PLACES).to_bytes())
    made = study.run(
        *("authority", "terms", str(study.authority), str(signed), "--yes"),
        *("--offline", "--out", str(study.coordinator)),
    )
    assert made.returncode == 0, made.stdout + made.stderr
    try:
        yield study
    finally:
        study.end()
