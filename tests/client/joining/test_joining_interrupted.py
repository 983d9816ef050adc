"""Joining by code, interrupted: what an end at any moment costs, and what answers may say."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import client.joining.checks
import client.joining.folder
import client.joining.joining
from client.credentials import load_identity
from client.host_file import load
from client.joining.joining import finish_joining
from runtime.failure import Failure
from runtime.settings_file import ConfigurationError
from tests.client.joining.conftest import LOOSE, Joining
from tests.support.ends_and_full_disks import interrupted, killed, no_room
from tests.support.enrolment_port import STUDY, Authority, identity
from wire.authority_statements import verify_answer
from wire.enrolment import read_request

# ---------------------------------------------------------------- interrupted


def interrupt(unsigned: Joining, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> bytes:
    """Press Ctrl-C while joining waits; returns the waiting request."""

    with monkeypatch.context() as patch:
        patch.setattr(client.joining.joining.asyncio, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            unsigned.join(**changes)
    [data] = unsigned.requests()
    return data


def accept_later(unsigned: Joining) -> None:
    for data in unsigned.requests():
        signed = read_request(data)
        unsigned.beside(unsigned.where.accept(data, signed, unsigned.where.files.newest.version + 1))


def test_the_same_command_goes_on_with_the_same_identity(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    first = interrupt(unsigned, monkeypatch)
    assert interrupt(unsigned, monkeypatch) == first
    who = load_identity(unsigned.home / "keys" / "participant.key")
    assert read_request(first).request.identity == who.public
    other = replace(unsigned.authority.code(), secret=b"another secret!!")
    assert "belongs to another join code" in unsigned.refused(code=other.to_text())
    accept_later(unsigned)
    # The code may be over by then, and isn't needed any more.
    asyncio.run(finish_joining(unsigned.home, unsigned.said.append))
    assert load(unsigned.home).study.name == STUDY
    assert load_identity(unsigned.home / "keys" / "participant.key").public == who.public
    asyncio.run(finish_joining(unsigned.home, unsigned.said.append))


def test_what_is_given_when_it_goes_on(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option agrees with the folder or is refused; a policy is replaced."""
    first = interrupt(unsigned, monkeypatch, name="laptop", part=3)
    before = {path: path.read_bytes() for path in unsigned.home.rglob("*") if path.is_file()}
    file = unsigned.work / "mine.toml"
    for text, told in (
        (None, "no such file"),
        ("max_epsilon = 1", r"put \[policy\]"),
        (LOOSE.replace("60", "1"), r"mine.toml: your policy refuses this study \(epsilon-in-study.*Nothing was chang"),
    ):
        if text is not None:
            file.write_text(text)
        with pytest.raises((Failure, ConfigurationError), match=told):
            unsigned.join(policy_file=file)
    for changes, told in (
        ({"part": 4}, "--part 3, not --part 4"),
        ({"data": Path("mine.csv")}, "with no --data, not --data .*here/mine.csv"),
        ({"name": "desk", "dataset": "fashion"}, "--name laptop, .*subset, not --name desk, --dataset"),
        ({"ledger": unsigned.work / "spent.sqlite"}, "--ledger .*ledger.sqlite, not --ledger"),
        ({"address": "localhost:1"}, f"{unsigned.where.address}, not localhost:1"),
    ):
        with pytest.raises(Failure, match=told):
            unsigned.join(**changes)
    assert before == {path: path.read_bytes() for path in unsigned.home.rglob("*") if path.is_file()}
    file.write_text(LOOSE)
    again = interrupt(unsigned, monkeypatch, name="laptop", part=3, dataset="fashion-mnist-subset", policy_file=file)
    assert again == first
    assert any("is now that of" in line for line in unsigned.said)
    file.write_text(LOOSE.replace("60", "55"))
    assert interrupt(unsigned, monkeypatch, policy_file=file) == first
    accept_later(unsigned)
    unsigned.join(policy_file=file)
    read = load(unsigned.home)
    assert (read.policy.max_epsilon, read.host.name, read.participants[0].part) == (55, "laptop", 2)


def test_a_full_disk_when_another_policy_is_kept(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two files the old policy counts, whole."""
    interrupt(unsigned, monkeypatch)
    home = unsigned.opened()
    old = (unsigned.home / "host.toml").read_bytes()
    honest, done = client.joining.folder.replace_durably, []

    def full(path: Path, data: bytes, **changes: Any) -> None:
        if done:
            no_room()
        done.append(path)
        honest(path, data, **changes)

    with monkeypatch.context() as patch:
        patch.setattr(client.joining.folder, "replace_durably", full)
        with pytest.raises(Failure, match="the policy isn't kept"):
            home.keep_policy(LOOSE.encode())
    assert [path.name for path in done] == ["policy.toml"]
    assert (unsigned.home / "host.toml").read_bytes() == old
    assert home.keep_policy(LOOSE.encode())
    assert not home.keep_policy(LOOSE.encode())
    assert home.settings()["policy"] == {"file": "policy.toml"}


def test_what_is_shown_is_what_comes(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and part derive from the code: the same before and after agreement."""

    def shown() -> list[str]:
        said = [line for line in unsigned.said if "part " in line or "participant-" in line]
        unsigned.said.clear()
        return said

    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code = unsigned.authority.code().to_text()
    unsigned.refused(code=code, agreed=False)
    text = " ".join(" ".join(unsigned.said).split())
    assert "the part was drawn at random, and is set with --part" in text
    assert "the authority may list you under another name" in text
    looked = shown()
    interrupt(unsigned, monkeypatch, code=code)
    assert shown() == looked
    assert len(looked) >= 2


@pytest.mark.parametrize("step", ["fsync", "replace", "mkdtemp"])
def test_interrupted_before_the_request_leaves(unsigned: Joining, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """At any step before the folder is there: no folder, and nothing was sent."""
    with monkeypatch.context() as patch:
        patch.setattr(tempfile if step == "mkdtemp" else os, step, killed)
        with pytest.raises(KeyboardInterrupt):
            unsigned.join()
    assert list(unsigned.work.iterdir()) == []
    assert unsigned.requests() == []


@pytest.mark.parametrize("after", range(8))
def test_a_full_disk(unsigned: Joining, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Injected: the given number of files is written out, the next one finds no room."""
    honest, done = os.fsync, []

    def full(descriptor: int) -> None:
        if len(done) == after:
            no_room()
        done.append(descriptor)
        honest(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        told = unsigned.refused()
    assert "No space left on device" in told
    assert "nothing was sent" in told


def test_a_full_disk_when_the_answer_comes(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(unsigned, monkeypatch)
    accept_later(unsigned)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(Failure, match="run the same command again"):
            asyncio.run(finish_joining(unsigned.home, unsigned.said.append))
    assert not (unsigned.home / "tls" / "client.pem").exists()
    asyncio.run(finish_joining(unsigned.home, unsigned.said.append))
    assert load(unsigned.home)


def test_two_processes_on_one_folder(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(unsigned, monkeypatch)
    with (
        client.joining.folder.only_process(unsigned.opened()),
        pytest.raises(Failure, match="in use by another process"),
    ):
        asyncio.run(finish_joining(unsigned.home, unsigned.said.append))


def test_two_processes_make_one_folder(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the first one's folder at the rename, and asks for nothing: one code, one identity."""
    honest = os.replace

    def overtaken(source: Any, target: Any) -> None:
        if target == unsigned.home:
            unsigned.home.mkdir()
            (unsigned.home / "host.toml").write_text("the first one's")
        honest(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", overtaken)
        with pytest.raises(Failure, match="another process joined there"):
            unsigned.join()
    assert unsigned.requests() == []
    assert [path.name for path in unsigned.work.iterdir()] == ["home"]


# ---------------------------------------------------------------- answers


def test_a_refusal_of_the_authority(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(unsigned, monkeypatch)
    unsigned.publish_answer(accepted=False, reason="the join code was used by another participant")
    for _ in range(2):
        with pytest.raises(Failure, match="not joined: the join code was used by another participant"):
            asyncio.run(finish_joining(unsigned.home, unsigned.said.append))
    assert not (unsigned.home / "tls" / "client.pem").exists()


def test_a_certificate_of_another_identity(unsigned: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even signed by the authority: of another identity, for another key, or of another TLS authority."""
    interrupt(unsigned, monkeypatch)
    other = f"urn:sordino:identity:{identity('bob').public.hex()}"
    mine = f"urn:sordino:identity:{load_identity(unsigned.home / 'keys' / 'participant.key').public.hex()}"
    chains = {
        "another identity": None,
        "another key": unsigned.authority.client_pair(mine)[0],
        "TLS authority": Authority().client_pair(mine)[0],
    }
    for number, (expected, chain) in enumerate(chains.items()):
        if number == 0:
            unsigned.publish_answer(uri=other)
        else:
            data = (unsigned.home / "join" / "request.json").read_bytes()
            answer = unsigned.authority.answer(read_request(data), certificate=chain)
            parsed = verify_answer(answer, unsigned.authority.public)
            unsigned.beside(unsigned.where.enrolment._requests.answered([(parsed, answer)]))
        with pytest.raises(Failure, match=f"{expected}.*isn't kept"):
            asyncio.run(finish_joining(unsigned.home, unsigned.said.append))
        assert not (unsigned.home / "tls" / "client.pem").exists()
