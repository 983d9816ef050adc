"""Files and settings that can't be used, given to the real commands: one plain line on stderr that names what to
change, the documented exit code, nothing on stdout, no traceback, nothing left half written.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from authority.new_study import make_local_study, new_study
from runtime.processes import free_port
from secagg.roster import RosterEntry
from server.journal import read_events
from tests.support.card_of_a_study import authority_of
from tests.support.forked_commands import Commands
from tests.support.signed_rosters import put, sign_terms
from tests.support.study_in_process import roster_of
from wire.certificates import new_key, private_pem

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]  # one process at a time

Damage = Callable[[Path], None]  # of a study's folder
SERVER_KEY, HOST_TOML = "coordinator/tls/server.key", "hosts/host-01/host.toml"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "seven"
    options = new_study(
        name="seven", participants=7, hosts=7, rounds=1, min_survivors=5, quorum=5, epsilon=50.0, listen="127.0.0.1:1"
    )
    make_local_study(folder, options)
    return folder


@pytest.fixture
def study(template: Path, tmp_path: Path) -> Path:
    """A copy to be damaged, on a free port; a client gives up at once."""
    folder = tmp_path / "study"
    shutil.copytree(template, folder)
    port = free_port()
    for file in (folder / "study.toml", *folder.glob("hosts/*/host.toml")):
        text = file.read_text().replace('"127.0.0.1:1"', f'"127.0.0.1:{port}"')
        text = text.replace('"localhost:1"', f'"localhost:{port}"').replace("give_up_s = 60", "give_up_s = 0.2")
        file.write_text(text)
    return folder


@pytest.fixture
def command(sordino: Commands) -> Commands:
    return sordino


def home(folder: Path) -> Path:
    return folder / "hosts" / "host-01"


def key(folder: Path) -> Path:
    return home(folder) / "keys" / "participant-001.key"


def check(ended: subprocess.CompletedProcess[str], code: int, told: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    # Lines of the log are JSON objects; what is left is for people.
    plain = [line for line in ended.stderr.splitlines() if line.strip() and not line.startswith("{")]
    assert 1 <= len(plain) <= 2
    assert len(plain[0]) < 400


# ---------------------------------------------------------------- damages


def writes(place: str, content: bytes | Callable[[Path], bytes], mode: int = 0o600) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content(folder) if callable(content) else content
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(mode)

    return damage


def edits(place: str, old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        text = (folder / place).read_text()
        assert old in text
        (folder / place).write_text(text.replace(old, new, 1))

    return damage


def put_roster(folder: Path, study: str, host: str = "") -> None:
    """The study's participants, on one host if it is named, in a roster of that name with the authority's signature."""
    roster = roster_of(folder)
    entries = tuple(RosterEntry(one.identity, host or one.host) for one in roster.entries)
    put(folder, replace(roster, study=study, entries=entries), authority_of(folder))


def forged_roster(folder: Path) -> bytes:
    document = json.loads((folder / "roster.json").read_text())
    document["participants"][0]["host"] = "elsewhere"
    return json.dumps(document).encode()


def one_host(folder: Path) -> None:
    """All participants on one host, and nobody says that this is one machine."""
    put_roster(folder, "seven", "host-01")
    edits("study.toml", "one_machine = true", "one_machine = false")(folder)


LOST = json.dumps({"ledger": "0" * 32, "rows": 3, "head": "ab" * 32}).encode()  # stood beside a ledger of three rows

SERVE: dict[str, tuple[Damage, int, str]] = {
    "roster garbage": (writes("roster.json", b"\xff\xfe"), 2, "not a roster file"),
    "roster edited": (writes("roster.json", forged_roster), 2, "not signed by this study's authority"),
    "roster of another study": (lambda folder: put_roster(folder, "eight"), 2, "is the roster of the study 'eight'"),
    "authority key garbage": (writes("coordinator/authority.pub", b"key"), 2, "64 hexadecimal digits"),
    "certificate garbage": (writes("coordinator/tls/server.pem", b"garbage"), 2, "server.pem"),
    "key garbage": (writes(SERVER_KEY, b"garbage"), 2, "server.key"),
    "key of another certificate": (writes(SERVER_KEY, lambda _: private_pem(new_key())), 2, "server.key"),
    "key that others can read": (lambda folder: (folder / SERVER_KEY).chmod(0o640), 2, "chmod 600"),
    "key in a folder that others can write to": (
        lambda folder: (folder / SERVER_KEY).parent.chmod(0o777),
        2,
        "run chmod go-w",
    ),
    "state is no database": (writes("coordinator/state.sqlite", b"not a database" * 100), 2, "state.sqlite"),
    "state of another kind": (writes("coordinator/state.sqlite", lambda f: other_database(f)), 2, "another kind"),
    "ledger is gone": (writes("coordinator/ledger.sqlite.head", LOST), 41, "ledger.sqlite: is missing, although"),
    "threshold impossible": (edits("study.toml", "min_survivors = 5", "min_survivors = 4"), 3, "raise min_survivors"),
    "quorum above the roster": (
        edits("study.toml", "quorum = 5", "quorum = 8"),
        2,
        "8 is above study.participants = 7",
    ),
    "budget impossible": (edits("study.toml", "epsilon = 50 ", "epsilon = 0.0001"), 3, "epsilon"),
    "too few bits": (edits("study.toml", "bits = 16", "bits = 2"), 3, "bits"),
    "unknown option of the task": (
        edits("study.toml", "local_epochs", "local_eposch"),
        2,
        "study.toml: [task]: unknown",
    ),
    "all on one host": (one_host, 3, "one host runs 7"),
    "another machine's address": (edits("study.toml", "127.0.0.1:", "192.0.2.1:"), 4, "can't listen on 192.0.2.1:"),
}

JOIN: dict[str, tuple[Damage, int, str]] = {
    "key that others can read": (lambda folder: key(folder).chmod(0o644), 2, "chmod 600"),
    "key in a folder that others can write to": (lambda folder: key(folder).parent.chmod(0o770), 2, "run chmod go-w"),
    "key garbage": (writes("hosts/host-01/keys/participant-001.key", b"garbage"), 2, "participant-001.key is not an"),
    "key is a folder": (lambda folder: (key(folder).unlink(), key(folder).mkdir())[0], 2, "participants[0].key"),
    "ca garbage": (writes("hosts/host-01/ca.pem", b"garbage"), 2, "ca.pem"),
    "journal is no database": (writes("hosts/host-01/journal.sqlite", b"no database" * 100), 2, "journal.sqlite"),
    "journal of another kind": (writes("hosts/host-01/journal.sqlite", lambda f: other_database(f)), 2, "another kind"),
    "ledger is gone": (writes("hosts/host-01/ledger.sqlite.head", LOST), 41, "ledger.sqlite: is missing, although"),
    "unknown option of the task": (edits(HOST_TOML, "local_epochs", "local_eposch"), 2, "local_eposch"),
    "nothing there": (lambda folder: (home(folder) / "host.toml").unlink(), 2, "holds no host.toml"),
    "a policy that contradicts itself": (
        edits(HOST_TOML, "max_epsilon =", "max_epsilon_total = 0.1\nmax_epsilon ="),
        2,
        "host.toml: policy: max_epsilon = ",
    ),
    "nobody listens": (lambda _: None, 4, "could not be reached for 0.2 s"),
}


def rows_of(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


def other_database(folder: Path) -> bytes:
    path = folder / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE mine (value INTEGER)")
    return path.read_bytes()


@pytest.mark.parametrize("name", SERVE)
@pytest.mark.long
def test_serve(study: Path, name: str, command: Commands) -> None:
    damage, code, told = SERVE[name]
    damage(study)
    check(command("serve", study, "--quiet"), code, told)
    if "ledger" in name:
        assert not (study / "coordinator" / "state.sqlite").exists()
    if "state" not in name:
        assert read_events(study / "coordinator" / "state.sqlite") == []


@pytest.mark.parametrize("name", JOIN)
@pytest.mark.long
def test_join(study: Path, name: str, command: Commands) -> None:
    damage, code, told = JOIN[name]
    damage(study)
    check(command("join", "--home", home(study)), code, told)
    if "ledger" in name or "policy" in name:
        assert not (home(study) / "journal.sqlite").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("place", ["study.toml", "roster.json", SERVER_KEY])
def test_unreadable(study: Path, place: str, command: Commands) -> None:
    (study / place).chmod(0)
    check(command("serve", study, "--quiet"), 2, Path(place).name)


def test_port_in_use(study: Path, command: Commands) -> None:
    text = (study / "study.toml").read_text()
    port = int(text.split('listen = "127.0.0.1:')[1].split('"')[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        check(command("serve", study, "--quiet"), 4, f"can't listen on 127.0.0.1:{port}: the port is in use")


def test_a_study_that_was_begun_with_another_plan(study: Path, command: Commands) -> None:
    """The state file remembers; the journal isn't touched."""
    state = study / "coordinator" / "state.sqlite"
    edits("study.toml", "connect_s = 60", "connect_s = 0.1")(study)
    edits("study.toml", "max_attempts = 3", "max_attempts = 1")(study)
    assert command("serve", study, "--quiet").returncode == 5  # nobody came
    before = rows_of(state)
    edits("study.toml", "epsilon = 50 ", "epsilon = 49.0")(study)
    check(command("serve", study, "--quiet"), 2, "undo changes of its (fixed) keys")
    sign_terms(study)
    check(command("serve", study, "--quiet"), 2, "begun with another plan or task")
    assert rows_of(state) == before
