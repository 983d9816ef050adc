"""`sordino authority` as it is typed, beside the coordinator's real port for enrolment."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import server.enrolment
import sordino.cli.authority_run as verb
import wire.records.roster_file
from authority.folder import AuthorityFolder, open_folder
from authority.founding import write_roster
from authority.roster import begin
from authority.store import admitted, exclusive, locked
from runtime.text import minute
from secagg.roster import Roster, verify_roster
from tests.support.commands import Run, one_clear_error, output, refusal, says, words
from tests.support.enrolment_port import STUDY, Authority, document, identity, port_in_thread, request
from wire.authority_statements import verify_card
from wire.certificates import CertificateAuthority
from wire.join_code import JoinCode


@dataclass
class Coordinator:
    """The port for enrolment in a thread of its own, with the files that were carried there."""

    folder: Path
    address: str
    enrol: Callable[[bytes], object]  # hands a request in, as a participant does

    def roster(self, authority: AuthorityFolder) -> Roster:
        return verify_roster((self.folder / "roster.json").read_bytes(), authority.keys.public)


@pytest.fixture
def home(run: Run, tmp_path: Path) -> Path:
    """An authority as `init` makes it."""
    folder = tmp_path / "authority"
    assert run("authority", "init", folder, "--study", STUDY, "--coordinator", "localhost:9444", "--places", 7)[0] == 0
    sign_terms(folder)
    return folder


def sign_terms(home: Path) -> None:
    """Begin anew with terms in the first roster."""
    folder, now = open_folder(home), time.time()
    with locked(folder) as store:
        store.write(("DELETE FROM versions", ()))
        begin(store, (), now, terms=document().to_bytes())
        write_roster(store, home / "coordinator", now)


@pytest.fixture
def coordinator(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    for module in (server.enrolment, wire.records.roster_file):  # what it logs isn't the command's output
        monkeypatch.setattr(module, "log", Mock())
    folder = shutil.copytree(home / "coordinator", tmp_path / "coordinator")
    shutil.copytree(folder / "tls", folder, dirs_exist_ok=True)
    keys = open_folder(home).keys
    with port_in_thread(folder, Authority(keys.signing, keys.tls), signs=False) as (port, beside):
        text = (home / "authority.toml").read_text()
        (home / "authority.toml").write_text(text.replace("localhost:9444", port.address))
        yield Coordinator(folder, port.address, lambda data: beside(port.enrol(data)))


def codes(run: Run, home: Path, *options: object) -> list[JoinCode]:
    made = json.loads(run("authority", "invite", home, "--json", *options)[1])
    return [JoinCode.from_text(one["code"]) for one in made["invitations"]]


# ---------------------------------------------------------------- without a coordinator


def test_init_makes_what_is_kept_and_what_is_carried(run: Run, home: Path) -> None:
    secret = ["authority.key", "tls-ca.key", "state.sqlite", "coordinator/tls/server.key", "coordinator/transcript.key"]
    assert {stat.S_IMODE((home / name).stat().st_mode) for name in secret} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    authority = open_folder(home)
    carried = {str(path.relative_to(home / "coordinator")) for path in home.glob("coordinator/**/*") if path.is_file()}
    assert carried == {
        *("authority.pub", "card.json", "roster.json", "newest.json", "history.json", "transcript.key"),
        *("tls/ca.pem", "tls/server.pem", "tls/server.key"),
    }
    keys = {path.read_bytes() for path in (home / "coordinator").rglob("*.key")}
    assert not keys & {(home / "authority.key").read_bytes(), (home / "tls-ca.key").read_bytes()}
    card = verify_card((home / "coordinator/card.json").read_bytes(), authority.keys.fingerprint)
    assert (card.study, card.address) == (STUDY, "localhost:9443")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert "never overwritten" in refusal(run, "authority", "init", home, "--study", STUDY)
    assert before == {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--study", "a b"), "--study 'a b'"),
        (("--study", "x", "--coordinator", "nowhere"), "--coordinator 'nowhere'"),
        (("--study", "x", "--client-days", 0), "--client-days"),
        (("--study", "x", "--host", "a b"), "neither a host name nor an IP address"),
        (("--study", "x", "--address", "here:0"), "HOST:PORT"),
        (("--study", "x", "--draws", -1), "--draws"),
        ((), "--study"),
    ],
)
def test_what_cannot_be_made(run: Run, tmp_path: Path, options: tuple[object, ...], told: str) -> None:
    one_clear_error(run, told, "authority", "init", tmp_path / "authority", *options)
    assert list(tmp_path.iterdir()) == []


def test_a_lottery_is_drawn_with_the_first_roster(run: Run, tmp_path: Path) -> None:
    assert run("authority", "init", tmp_path / "a", "--study", STUDY, "--draws", 4)[0] == 0
    assert len(set(json.loads((tmp_path / "a/coordinator/lottery.json").read_text())["seeds"])) == 4


def test_an_invitation_says_all_that_it_takes(run: Run, home: Path) -> None:
    _, out, _ = run("authority", "invite", home, "--name", "clinic-7", "--valid", "2h")
    text = next(line.split()[1] for line in out.splitlines() if line.startswith("code"))
    code = JoinCode.from_text(text)
    assert "sordino join localhost:9444 --code -" in out
    assert " ".join(out.split("fingerprint")[1].split()[:8]) in words(run, "authority", "show", home)
    assert 7100 < code.expires - time.time() < 7300
    assert "no participants  not confirmed by the coordinator yet" in run("authority", "show", home)[1]
    for shown in (output(run, "authority", "show", home), output(run, "authority", "show", home, "--json")):
        assert "clinic-7" in shown
        assert text not in shown
        assert code.secret.hex() not in shown
    assert f"Let in:  sordino authority run {home}  (or approve --sign)" in out
    assert len({one.secret for one in codes(run, home, "--count", 5)}) == 5
    code, out, err = run("authority", "invite", home, "--count", 3)
    assert (code, out.count("SORD2-"), err.count("2 of the open codes will be refused")) == (0, 3, 1)  # 9 for 7 places


def test_an_invitation_names_the_required_data_and_task(run: Run, tmp_path: Path) -> None:
    own = ("--dataset", "own", "--participants", 0, "--enrol", 7, "--task", "mean", "--max-dropout", 0, "--epsilon", 30)
    assert run("init", tmp_path / "clinic", *own, "--rounds", 1)[0] == 0
    out = run("authority", "invite", tmp_path / "clinic/authority")[1]
    assert re.search(r"sordino join localhost:8444 --code - --data FILE$", out, re.M)
    more = ("--own-data", "--task", "mine:Net", "--coordinator", "localhost:9444")
    assert run("authority", "init", tmp_path / "a", "--study", STUDY, *more)[0] == 0
    assert "signed no terms yet" in refusal(run, "authority", "invite", tmp_path / "a")
    sign_terms(tmp_path / "a")
    out = run("authority", "invite", tmp_path / "a")[1]
    assert re.search(r"--code - --data FILE --task mine:Net$", out, re.M)
    assert "--task 'a/b.py'" in refusal(run, "authority", "init", tmp_path / "b", "--study", STUDY, "--task", "a/b.py")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("invite", "--valid", "soon"), "--valid soon isn't a time above zero"),
        (("invite", "--valid", "1"), "--valid 1 needs a unit: s, m, h or d"),
        (("invite", "--valid", "1s"), "a minute at least"),
        (("invite", "--valid", "9000d"), "366 days at most"),
        (("invite", "--name", "x", "--count", 2), "--name is for one participant"),
        (("revoke", "nobody"), "no member of the roster is called nobody"),
        (("run", "--every", "often"), "--every often isn't a time"),
    ],
)
def test_what_cannot_be_done(run: Run, home: Path, arguments: tuple[str, ...], told: str) -> None:
    one_clear_error(run, told, "authority", arguments[0], home, *arguments[1:])


def test_folders_and_keys_that_cannot_be_used(run: Run, home: Path, tmp_path: Path) -> None:
    told = refusal(run, "authority", "show", tmp_path / "nowhere")
    assert "`sordino authority init DIR --study NAME` makes one" in told
    (home / "authority.key").chmod(0o644)
    assert "run chmod 600 on it" in refusal(run, "authority", "invite", home)
    (home / "authority.key").chmod(0o600)
    (home / "state.sqlite").write_bytes(b"not a database at all, but long enough to look like one" * 20)
    assert "can't be used as a database" in refusal(run, "authority", "show", home)


def test_a_full_study_takes_no_further_invitations(run: Run, small_study: Path) -> None:
    assert "all 10 places of the study are taken" in refusal(run, "authority", "invite", small_study / "authority")


def test_two_that_run_on_one_folder(run: Run, home: Path) -> None:
    with exclusive(home / "run.lock", 0):
        one_clear_error(run, "another process is using", "authority", "run", home)


# ---------------------------------------------------------------- with one


def test_from_invitation_to_certificate_and_back(run: Run, home: Path, coordinator: Coordinator) -> None:
    ann, bob = identity("ann"), identity("bob")
    first, second = codes(run, home, "--count", 2)
    requests = [request(first, ann, host="ann"), request(second, bob, host="bob")]
    for data in requests:
        coordinator.enrol(data)
    _, out, _ = run("authority", "approve", home, "--list")
    assert [line.split()[1:3] for line in out.splitlines()] == [["join", "ann"], ["join", "bob"]]
    assert ann.public.hex()[:16] in out
    assert out.count("would be accepted") == 2
    assert "no request that waits begins with ffff" in refusal(run, "authority", "approve", home, "ffff")

    _, out, _ = run("authority", "approve", home, ann.public.hex()[:8])
    assert "1 accepted, not yet listed" in out
    assert "bob" not in out
    _, out, _ = run("authority", "sign", home)
    says(out, "Signed version 2 of the roster: 1 participant.", "The coordinator has version 2.")
    authority = open_folder(home)
    assert [entry.host for entry in coordinator.roster(authority).entries] == ["ann"]

    done = json.loads(run("authority", "approve", home, "--sign", "--json")[1])
    assert (done["signed"], done["published"]) == ({"version": 3, "participants": 2}, 3)
    assert [one["verdict"] for one in done["requests"]] == ["accept"]
    assert "No request waits" in run("authority", "approve", home)[1]

    code, out, _ = run("authority", "revoke", home, "ann", "--sign")
    assert (code, "Signed version 4" in out) == (0, True)
    assert [entry.host for entry in coordinator.roster(authority).entries] == ["bob"]
    assert "was revoked before" in refusal(run, "authority", "revoke", home, "ann")
    shown = json.loads(run("authority", "show", home, "--json")[1])
    assert [one["version"] for one in shown["versions"]] == [1, 2, 3, 4]
    assert all(one["published"] for one in shown["versions"][1:])
    assert {one["state"] for one in shown["invitations"]} == {"used"}
    out = run("authority", "show", home)[1]
    used = [f"used by {name}, identity {who.public.hex()[:16]}" for name, who in (("ann", ann), ("bob", bob))]
    says(out, "members (2, 1 of them revoked)", *used)
    assert out.count("revoked 20") == 1
    assert "not confirmed" not in out


def test_by_hand(run: Run, home: Path, tmp_path: Path) -> None:
    """Where the authority's machine is on no network: a roster in files; nothing has changed, so it is the first."""
    assert "none was signed" in output(run, "authority", "sign", home, "--offline", "--out", tmp_path / "stick")
    authority = open_folder(home)
    assert verify_roster((tmp_path / "stick/roster.json").read_bytes(), authority.keys.public).version == 1
    later = tmp_path / "terms.json"
    later.write_bytes(replace(document(epsilon=20.0), roster_valid_s=86_400).to_bytes())
    terms = ("authority", "terms", home, later, "--offline")
    assert "add --yes if you agree" in refusal(run, *terms)
    said = words(run, *terms, "--yes", "--out", tmp_path / "stick")
    says(said, "What changes", "before: epsilon 50", "Signed version 2")
    said = output(run, "authority", "sign", home, "--offline", "--out", tmp_path / "stick")
    until = json.loads((tmp_path / "stick/newest.json").read_text())["until"]
    says(said, "none was signed", f"Stated that this version is the newest until {minute(until)}.")
    assert f"is the newest, until {minute(until)}" in output(run, "authority", "show", home)
    out = output(run, "authority", "history", home)
    assert [line.split()[0] for line in out.splitlines()] == ["1", "2"]
    known = ("--authority", authority.keys.public.hex())
    assert "Its history has 2 versions." in output(run, "roster", "verify", tmp_path / "stick", *known)
    shutil.copy(home / "coordinator/history.json", tmp_path / "stick")
    assert "is not the history of this roster" in refusal(run, "roster", "verify", tmp_path / "stick", *known)
    older = shutil.copytree(home / "coordinator", tmp_path / "coordinator")
    assert "isn't a later one" in refusal(run, "authority", "sign", home, "--offline", "--after", older)


def test_a_coordinator_that_is_away_or_another(run: Run, home: Path, coordinator: Coordinator) -> None:
    stranger = CertificateAuthority.make(STUDY, datetime.datetime.now(datetime.UTC))
    good = (home / "tls-ca.key").read_bytes(), (home / "tls-ca.pem").read_bytes()
    (home / "tls-ca.pem").write_bytes(stranger.pem)
    (home / "tls-ca.key").write_bytes(stranger.key_pem)
    assert "can't be reached" in refusal(run, "authority", "approve", home, code=4)
    later = home.with_name("terms.json")
    later.write_bytes(document(epsilon=20.0).to_bytes())
    assert "The terms are recorded." in run("authority", "terms", home, later, "--yes")[2]
    (home / "tls-ca.key").write_bytes(good[0])
    (home / "tls-ca.pem").write_bytes(good[1])
    assert run("authority", "approve", home)[0] == 0
    text = (home / "authority.toml").read_text()
    (home / "authority.toml").write_text(text.replace(coordinator.address, ""))
    assert "names no coordinator" in refusal(run, "authority", "approve", home)
    by_hand = f"sordino authority sign {home} --out FOLDER"
    says(refusal(run, "authority", "run", home, code=2), "names no coordinator", by_hand, "cp FOLDER/*")
    with locked(open_folder(home)) as store:
        store.write(*(admitted(bytes([at]) * 32, "ward", False, time.time()) for at in range(2)))
    assert "or all of them with --whole-host" in refusal(run, "authority", "revoke", home, "ward")
    said = run("authority", "revoke", home, "ward", "--whole-host", "--sign")
    assert said[0] == 2
    says(said[2], "The revocation is recorded", by_hand)


def test_run_approves_and_signs_by_itself(
    run: Run, home: Path, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same loop as in a process of its own; it ends at SIGTERM, whose handler is put back."""
    before = signal.getsignal(signal.SIGTERM)
    data = request(codes(run, home)[0], identity("ann"), host="ann")
    coordinator.enrol(data)
    real = verb._tell_visit

    def tell(as_json: bool, visit: object) -> None:
        real(as_json, visit)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(verb, "_tell_visit", tell)
    try:
        code, out, err = run("authority", "run", home, "--every", "1s", "--json")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["signed"] == {"version": 2, "participants": 1}
    assert len(coordinator.roster(open_folder(home))) == 1
