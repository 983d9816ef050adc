"""Processes with the same command: each takes its own home and keeps its identity; parts follow from places."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import client.joining.folder
import client.process
from authority.folder import AuthorityKeys, AuthorityTable, write_folder
from authority.invitations import revoke
from authority.local_enrolment import LocalEnrolmentSocket
from authority.roster import begin
from authority.store import admitted, locked
from client.enrolment import EnrolmentRefused
from client.host_file import load
from client.joining.folder import BY_PLACE, open_home, take_home
from client.joining.joining import finish_joining, get_place
from client.settings import HostSettings
from runtime.failure import Failure
from sordino.cli import main
from tests.client.joining.conftest import Joining
from tests.support.ends_and_full_disks import interrupted, no_room
from tests.support.enrolment_port import STUDY, Authority, document


class Containers:
    """Containers share the folder of homes and the authority's socket."""

    def __init__(self, joining: Joining, short: Path, held: list[int]) -> None:
        self.joining, self.homes, self.desk = joining, joining.work / "homes", short / "desk"
        self.held, self.told = held, list[dict[str, Any]]()
        settings = AuthorityTable(study=STUDY, coordinator=joining.where.address, places=3)
        keys = AuthorityKeys(joining.authority.signing, joining.authority.tls)
        self.folder = write_folder(short / "authority", settings, keys)
        with locked(self.folder) as store:
            begin(store, (), 1.0, terms=document().to_bytes())
        self.open = LocalEnrolmentSocket(self.folder, self.desk, self.told.append)

    def start(self, **changes: Any) -> str:
        """A container; the name of its home."""
        usual = {"code": "", "home": None, "part": BY_PLACE, "desk": self.desk, "homes": self.homes}
        path = asyncio.run(get_place(self.joining.options(**(usual | changes)), self.joining.said.append))
        home = open_home(path)
        assert home is not None
        assert home.complete
        with locked(self.folder) as store:  # the port's authority keeps no list of its members
            store.write(admitted(home.identity, path.name, True, 1.0))
        return path.name

    def end_all(self) -> None:
        """As the kernel does it when a process ends."""
        while self.held:
            os.close(self.held.pop())

    def codes(self) -> int:
        return sum("handed_out" in one for one in self.told)

    def write(self, statement: str, name: str) -> None:
        home = open_home(self.homes / name)
        assert home is not None
        with locked(self.folder) as store:
            store.write((statement, (home.identity,)))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Locks that this process holds, which it otherwise does until it ends."""
    found, real = list[int](), client.joining.folder._keep

    def keep(descriptor: int) -> None:
        real(descriptor)
        found.append(descriptor)

    monkeypatch.setattr(client.joining.folder, "_keep", keep)
    yield found
    for descriptor in found:
        os.close(descriptor)


@pytest.fixture
def containers(joining: Joining, held: list[int]) -> Iterator[Containers]:
    with tempfile.TemporaryDirectory(prefix="homes-") as short:  # a socket's name has at most 107 bytes
        found = Containers(joining, Path(short), held)
        yield found
        found.open.close()


def test_each_takes_a_home_and_keeps_its_identity(containers: Containers) -> None:
    assert [containers.start(), containers.start()] == ["home-01", "home-02"]
    first = open_home(containers.homes / "home-01")
    containers.end_all()
    assert containers.start() == "home-01"
    assert open_home(containers.homes / "home-01") == first
    assert containers.start(code=containers.joining.authority.code().to_text(), desk=None) == "home-02"
    assert containers.codes() == 2  # the two that were made
    containers.open.close()  # the authority is switched off
    containers.end_all()
    assert containers.start() == "home-01"
    assert containers.start(desk=None, address="") == "home-02"
    with pytest.raises(Failure, match=r"no home in .* is free: start this with --desk"):
        containers.start(desk=None, address="")


def test_a_home_that_is_of_no_use_is_left_to_itself(containers: Containers) -> None:
    """Only by the authority's statement. The home stays unchanged: its ledger states what was spent."""
    containers.start()
    containers.write("UPDATE members SET revoked = 2.0 WHERE identity = ?", "home-01")
    (containers.homes / "aside").mkdir()
    (containers.homes / "aside" / "note").write_text("mine")
    before = {path: path.read_bytes() for path in (containers.homes / "home-01").rglob("*") if path.is_file()}
    containers.end_all()
    assert containers.start() == "home-02"
    said = "\n".join(containers.joining.said)
    assert "home-01 is skipped: its identity was revoked" in said
    assert before == {path: path.read_bytes() for path in (containers.homes / "home-01").rglob("*") if path.is_file()}
    containers.write("DELETE FROM members WHERE identity = ?", "home-02")
    containers.end_all()
    assert containers.start() == "home-03"
    assert "home-02 is skipped: the authority doesn't know its identity" in "\n".join(containers.joining.said)
    containers.end_all()
    stranger = Authority().code().to_text()
    with pytest.raises(EnrolmentRefused, match="another authority than the join code names"):
        containers.start(code=stranger, desk=None)
    assert "home-03 is skipped: it belongs to another authority" in "\n".join(containers.joining.said)
    containers.end_all()
    with pytest.raises(Failure, match="no home in"):
        containers.start(address="localhost:1", desk=None)
    assert f"belongs to the coordinator at {containers.joining.where.address}" in containers.joining.said[-1]


def test_a_false_socket_makes_no_home_begin_anew(containers: Containers) -> None:
    """The socket of another authority says that all identities were revoked: the home is used, with its ledger."""
    containers.start()
    containers.end_all()
    containers.open.close()
    identity = open_home(containers.homes / "home-01").identity  # type: ignore[union-attr]
    keys = AuthorityKeys.make(STUDY, datetime.datetime.now(datetime.UTC))
    settings = AuthorityTable(study=STUDY, coordinator=containers.joining.where.address, places=3)
    stranger = write_folder(containers.folder.path.with_name("stranger"), settings, keys)
    with locked(stranger) as store:
        begin(store, (), 1.0)
        store.write(admitted(identity, "home-01", True, 1.0))
        revoke(store, "home-01", 2.0)
    containers.open = LocalEnrolmentSocket(stranger, containers.desk, containers.told.append)
    assert containers.start() == "home-01"
    assert "isn't that of this participant's authority: its answer is ignored" in "\n".join(containers.joining.said)


def test_what_fails_before_there_is_a_folder_uses_up_no_place(containers: Containers) -> None:
    """However often a container restarts; there are three places."""
    refuses = containers.joining.work / "mine.toml"
    refuses.write_text("[policy]\nmax_epsilon = 1\nmin_honest_survivors = 2\n")
    for _ in range(5):
        with pytest.raises(Failure, match="your policy refuses this study"):
            containers.start(policy_file=refuses)
        containers.end_all()
        while sum("taken_back" in one for one in containers.told) < containers.codes():
            time.sleep(0.01)
    assert containers.codes() == 5
    assert containers.start() == "home-01"


def test_without_homes_the_folder_goes_on_too(containers: Containers) -> None:
    joining = containers.joining

    def join(home: Path | None) -> Path:
        options = joining.options(code="", home=home, desk=containers.desk)
        return asyncio.run(get_place(options, joining.said.append))

    assert join(joining.home) == join(joining.home) == joining.home
    assert join(None) == join(None) == Path(STUDY)
    assert containers.codes() == 2


def test_a_service_takes_its_place_at_the_desk_and_goes_on(
    containers: Containers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command for every start. Later starts need neither the socket nor the enrolment port."""
    became = list[HostSettings]()

    def become(settings: HostSettings, *, as_json: bool, service: bool) -> None:
        assert service
        became.append(settings)

    monkeypatch.setattr(client.process, "become", become)
    joining = containers.joining
    asks = [joining.where.address, "--service", "--yes", "--home", str(joining.home), "--desk", str(containers.desk)]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["join", *asks])
        assert not ended.value.code, capsys.readouterr().err
        containers.open.close()
    assert [one.host.journal.parent for one in became] == [joining.home] * 2
    assert containers.codes() == 1


def take_one(homes: Path) -> str:
    """The name of a home that this process takes, or begins."""
    return take_home(homes, address=None, authority=lambda key: True, desk=None, begin=True, say=print)[0].name


def test_no_home_is_shared(tmp_path: Path, held: list[int]) -> None:
    """Ten processes begin at the same moment in an empty folder."""
    taken, barrier = list[str](), threading.Barrier(10)

    def begin_one() -> None:
        barrier.wait()
        taken.append(take_one(tmp_path / "homes"))

    threads = [threading.Thread(target=begin_one) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [f"home-{number:02}" for number in range(1, 11)]


def test_a_home_is_held_through_exec_and_free_after_a_kill(tmp_path: Path, held: list[int]) -> None:
    code = (
        "import os, sys; from pathlib import Path; from client.joining.folder import take_home\n"
        "take_home(Path(sys.argv[1]), address=None, authority=bool, desk=None, begin=True, say=print)\n"
        "os.execv(sys.executable, [sys.executable, '-S', '-c', 'print(1, flush=True); import time; time.sleep(60)'])"
    )

    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "homes")], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert take_one(tmp_path / "homes") == "home-02"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    assert take_one(tmp_path / "homes") == "home-01"


# ---------------------------------------------------------------- the part of the data


def test_the_part_follows_from_the_place(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ninth place takes the second of seven parts; the repeated command agrees."""
    real = Authority.answer
    monkeypatch.setattr(Authority, "answer", lambda self, *args, **more: real(self, *args, **more, place=9))
    joining.join(part=BY_PLACE)
    assert "by your place on the roster" in " ".join(" ".join(joining.said).split())
    assert load(joining.home).participants[0].part == 1
    assert "part = 1                      # the place on the roster is 9\n" in (joining.home / "host.toml").read_text()
    assert joining.join(part=BY_PLACE) == joining.join(part=2) == joining.home
    with pytest.raises(Failure, match="with --part 2, not --part 3"):
        joining.join(part=3)


def test_a_part_that_was_chosen_is_not_given_by_place(joining: Joining) -> None:
    joining.join(part=3)
    with pytest.raises(Failure, match="with --part 3, not --part place"):
        joining.join(part=BY_PLACE)


def test_the_place_is_kept_whole(joining: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the answer can't be kept, the same command continues, with the same part."""
    real, writes = client.joining.folder.replace_durably, 0
    for fails in range(3):

        def full(path: Path, data: bytes, **more: Any) -> None:
            nonlocal writes
            writes += joining.home in path.parents  # what is written once the folder is there
            if writes > fails:  # noqa: B023
                no_room()
            real(path, data, **more)

        monkeypatch.setattr(client.joining.folder, "replace_durably", full)
        writes = 0
        with pytest.raises(Failure, match="run the same command again"):
            joining.join(part=BY_PLACE)
        monkeypatch.setattr(client.joining.folder, "replace_durably", real)
        assert joining.opened().by_place
        assert not joining.opened().complete
    asyncio.run(finish_joining(joining.home, joining.said.append))
    assert load(joining.home).participants[0].part == 0


def test_an_authority_that_tells_no_place(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.joining.joining, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unsigned.join(part=BY_PLACE)
    home = unsigned.opened()
    with pytest.raises(Failure, match="doesn't state: write a number"):
        home.finish(b"certificate", "laptop", "laptop", 0)
    assert not home.complete
    with pytest.raises(Exception, match="part"):  # nothing trains on an unknown part
        load(unsigned.home)
