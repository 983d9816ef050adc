"""Before any round: what a host refuses to take part in. It says why, ends with the right code, and its coordinator has
got nothing from it but the proof of its identity, or not even that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

import client.connection
import server.service
from client.credentials import load_identity
from client.held_data import data_name
from client.journal import ClientJournal
from mechanisms.plan import Plan
from runtime.failure import ExitCode, Failure
from secagg.roster import NONE, RosterEntry, sign_roster
from server.membership import SignedRoster
from tests.client.conftest import refused
from tests.support.card_of_a_study import authority_of
from tests.support.host_in_process import Play, Story, host, ledger_of, record, settings_of
from tests.support.study_in_process import (
    PARTICIPANTS,
    Coordinator,
    coordinator,
    document_of,
    make_folder,
    roster_of,
    until,
)
from wire import codec, coordinator_pb2 as pb
from wire.records.ledger_rows import make_entry
from wire.study import StudyDocument

# ---------------------------------------------------------------- the roster


def show_roster(data: bytes) -> Callable[[Coordinator], None]:
    def prepare(where: Coordinator) -> None:
        membership = where.study._membership
        membership.signed = SignedRoster(membership.roster, data)
        where.study._documents[membership.signed.sha256] = data

    return prepare


def test_rosters(study_folder: Path, tmp_path: Path, played: Play) -> None:
    honest, authority = roster_of(study_folder), authority_of(study_folder)
    stranger = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    sybil = Ed25519PrivateKey.from_private_bytes(b"b" * 32).public_key().public_bytes_raw()
    with_sybil = tuple(sorted([*honest.entries, RosterEntry(sybil, "host-02")], key=lambda one: one.identity))
    edited = json.loads(sign_roster(honest, authority))
    edited["participants"][0]["host"] = "elsewhere"
    cases = {
        "another authority": (sign_roster(honest, stranger), "not signed by this study's authority"),
        "edited": (json.dumps(edited).encode(), "not signed by this study's authority"),
        "another study's": (sign_roster(replace(honest, study="eight"), authority), "roster is that of another"),
        "one more": (sign_roster(replace(honest, entries=with_sybil), authority), "the roster has 8"),
        "garbage": (b"\xff\xfe", "not a roster file"),
        "empty": (b"{}", "not a roster file"),
    }
    for name, (data, told) in cases.items():
        refused(played(work=tmp_path / name, prepare=show_roster(data)), told)


def test_a_roster_that_goes_back(study_folder: Path, played: Play) -> None:
    """A participant that was removed from the roster must not come back by an older one.

    The rest of this coordinator holds version 1, another round_context: to it the keys under version 3 are forged. But
    all of them can't be cheats, so it excludes no participant.
    """
    roster, authority = roster_of(study_folder), authority_of(study_folder)

    def shown(version: int) -> Story:
        def prepare(where: Coordinator) -> None:
            assert not where.study._membership.excluded
            previous = roster.digest() if version > 1 else NONE
            show_roster(sign_roster(replace(roster, version=version, previous=previous), authority))(where)

        return played(prepare=prepare)

    assert shown(3).ready == set(range(PARTICIPANTS))
    for version in (1, 2):
        refused(shown(version), f"version {version} of the roster is older than version 3")
    assert shown(3).ready == set(range(PARTICIPANTS))


# ---------------------------------------------------------------- the study document


def show_study(change: Callable[[Any], Any]) -> Callable[[Coordinator], None]:
    def prepare(where: Coordinator) -> None:
        document = json.loads(where.study._study_bytes)
        changed = change(document)
        data = changed if isinstance(changed, bytes) else json.dumps(document, sort_keys=True).encode()
        where.study._study_sha256 = hashlib.sha256(data).digest()
        where.study._documents[where.study._study_sha256] = data

    return prepare


# Plans that don't hold are cases of tests/wire/test_study.py, and scripts of tests/adversary.
DOCUMENTS = {
    "no noise": (
        lambda document: document["plan"].update(local_variance="0/1"),
        "local noise is below half a grid step",
    ),
    "a field too many": (lambda document: document.update(note="trust me"), "missing or unknown fields"),
    "not JSON": (lambda _: b"\xff{", "can't decode byte 0xff"),
    "deep nesting": (lambda _: b"[" * 200_000, "doesn't hold"),
    "another study": (lambda document: document.update(study="eight"), "this host joined 'seven'"),
    "another task": (lambda document: document.update(task="mlp"), "this host accepted 'softmax-regression'"),
    "other options": (
        lambda document: document["task_options"].update(local_epochs=99),
        "local_epochs' is 99 in the study, 3 in",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_study_that_does_not_hold(played: Play, name: str) -> None:
    change, told = DOCUMENTS[name]
    refused(played(prepare=show_study(change)), told)


@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda data: data + b" ", "doesn't have the digest"), (lambda _: bytes(3 << 20), "longer than")],
    ids=["another document than the digest", "a document without end"],
)
def test_a_document_that_does_not_fit_its_digest(played: Play, change: Callable[[bytes], bytes], told: str) -> None:
    def prepare(where: Coordinator) -> None:
        where.study._documents[where.study._study_sha256] = change(where.study._study_bytes)

    refused(played(prepare=prepare), told, ExitCode.NETWORK)


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("", "differ from the ones this host accepted first"),
        ("journal.sqlite", "the ledger holds charges of the study 'seven' under other terms"),
    ],
)
def test_a_study_that_changes(study_folder: Path, tmp_path: Path, played: Play, lost: str, told: str) -> None:
    """A study keeps the document that was accepted first: another valid one, which the authority signed, must be
    accepted anew. If the journal is lost, the ledger still knows: the same name would begin again without charges.
    """
    assert played().ended == 0
    if lost:
        (tmp_path / lost).unlink()
    other = make_folder(tmp_path / "other", rounds=3)
    plan = asyncio.run(document_of(other, other / "state.sqlite")).plan
    for name in ("state.sqlite", "ledger.sqlite", "ledger.sqlite.head"):
        (tmp_path / name).unlink()
    assert ledger_of(tmp_path / "journal.sqlite").exists()
    refused(played(prepare=changed_terms(plan, authority_of(study_folder))), told)


def changed_terms(plan: Plan, authority: Ed25519PrivateKey) -> Callable[[Coordinator], None]:
    """Another plan, which the authority has signed in a later roster."""

    def prepare(where: Coordinator) -> None:
        show_study(lambda document: document.update(plan=plan.to_json()))(where)
        before = where.study.roster
        later = replace(before, version=2, terms=where.study._study_sha256, previous=before.digest())
        show_roster(sign_roster(later, authority))(where)

    return prepare


# ---------------------------------------------------------------- the policy, the budget and the data


def test_policy(played: Play) -> None:
    story = played(policy={"one_machine": False})
    refused(story, "one host runs 7 participants, but only 2 are assumed to collude")


@pytest.mark.parametrize("limit", ["max_epsilon allows 20", "above the study's budget 20"])
@pytest.mark.parametrize("whose", ["its own", "another identity over the same data"])
def test_a_participants_budget_ends_first(tmp_path: Path, played: Play, whose: str, limit: str) -> None:
    """Earlier charges, even for attempts without a sum, count: the participant refuses, and logs why.

    If charges counted by identity, a new join code for the same data would begin without charges. The coordinator hears
    of a spent budget if its own attempts spent it, whichever limit ends it; it never hears that another identity took
    part with the same data.
    """

    folder = make_folder(tmp_path / "study", epsilon=20.0)

    def spend(where: Coordinator) -> None:
        journal = tmp_path / "journal.sqlite"
        settings = settings_of(folder, journal)
        first = where.study._membership.roster.entries[0].identity
        [part] = [one.part for one in settings.participants if load_identity(one.key).public == first]
        opened = ClientJournal(journal, ledger_of(journal))
        document = StudyDocument.from_bytes(where.study._study_bytes)
        entry = make_entry(
            document.plan,
            study=document.study,
            study_sha256=hashlib.sha256(where.study._study_bytes).digest(),
            round=0,
            attempt=1,
            identity=first if whose == "its own" else bytes(32),
            data=data_name(settings.data, part),
        )
        opened.ledger.append(replace(entry, cost=2 * entry.cost)).result()
        opened.close()

    story = played(folder=folder, prepare=spend, policy={} if "max" in limit else {"max_epsilon": 100.0})
    assert story.ended == 0
    told = pb.REFUSAL_CODE_BUDGET if whose == "its own" else pb.REFUSAL_CODE_POLICY
    assert set(story.refusals) == {(0, told)}
    assert {kind for who, kind in story.sent if who == 0} == set()
    assert any(limit in reason for reason in story.reasons())
    assert [event["u3"] for event in story.of("round_completed")] == [PARTICIPANTS - 1] * 2


def test_an_identity_stays_with_its_data(played: Play, tmp_path: Path) -> None:
    """The ledger knows the data by its name: said before any round, not by a failure in every one."""
    played(work=tmp_path / "first")
    ledger = ledger_of(tmp_path / "first" / "journal.sqlite")
    story = played(host={"ledger": ledger}, data={"seed": 2})
    refused(story, "took part in this study with other data than host.toml names now")


# ---------------------------------------------------------------- the study that was agreed to


def test_another_study_than_the_one_that_was_agreed_to(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same name and task, and within the policy: a host that holds it against these alone would take part."""
    asked: list[bytes] = []
    download = client.connection.Session.download

    async def noted(self: client.connection.Session, sha256: bytes, largest: int) -> bytes:
        asked.append(sha256)
        return await download(self, sha256, largest)

    monkeypatch.setattr(client.connection.Session, "download", noted)
    story = played(study={"sha256": "ab" * 32})
    refused(story, "another-study: the coordinator runs the study document")
    assert asked == []


# ---------------------------------------------------------------- the connection


async def against(
    folder: Path, work: Path, code: int = ExitCode.NETWORK, **changes: dict[str, Any]
) -> tuple[Failure, list[dict[str, Any]]]:
    """A host that must end by itself, against a coordinator whose rounds never begin; nothing was sent."""
    story = Story()
    with capture_logs() as logs:
        async with coordinator(folder, work / "state.sqlite") as where:
            record(where, story)
            settings = settings_of(folder, work / "journal.sqlite", where.address, **changes)
            async with host(settings) as task:
                with pytest.raises(Failure) as error:
                    await task
            assert where.events == []
    assert error.value.code == code
    assert (story.sent, story.ready) == ([], set())
    return error.value, logs


async def test_another_certificate_authority(study_folder: Path, tmp_path: Path) -> None:
    """A server without the study's certificate doesn't even learn an identity."""
    other = make_folder(tmp_path / "other")
    wrong = {"ca": other / "hosts" / "host-01" / "ca.pem", "give_up_s": 0.3}
    error, logs = await against(study_folder, tmp_path, coordinator=wrong)
    assert "answers, but can't be used" in str(error)
    assert "ca.pem" in str(error)
    assert "\n" not in str(error)
    assert "its certificate isn't signed by this study's authority" in str(error)
    assert any("isn't signed by this study's authority" in str(entry.get("reason")) for entry in logs)


async def test_another_host_name(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate must be for the name that was dialled."""
    opened = client.connection.grpc.aio.secure_channel

    def elsewhere(address: str, credentials: Any, options: Any) -> Any:
        return opened(address, credentials, options=[*options, ("grpc.ssl_target_name_override", "clinic.example")])

    monkeypatch.setattr(client.connection.grpc.aio, "secure_channel", elsewhere)
    error, _ = await against(study_folder, tmp_path, coordinator={"give_up_s": 0.3})
    assert "its certificate isn't for this name" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        "failed to connect to all addresses; last error: UNKNOWN: Tls handshake failed: CERTIFICATE_VERIFY_FAILED",
        "self signed",
        "Socket closed",
        "ipv4:127.0.0.1:9443: Failed to connect to remote host: Connection refused",
    ],
)
async def test_a_coordinator_does_not_choose_what_is_said_of_it(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """gRPC reports the other side's words in the field of its own: they are no diagnosis of this machine's."""

    async def handshake(study: Any, iterator: Any, context: Any) -> Any:
        await anext(iterator)
        await context.abort(grpc.StatusCode.UNAVAILABLE, words)

    monkeypatch.setattr(server.service, "_handshake", handshake)
    error, logs = await against(study_folder, tmp_path, coordinator={"give_up_s": 0.3})
    assert f"""for 0.3 s: it ended the session ("{words}"). Check the address""" in str(error)
    reasons = {entry["reason"] for entry in logs if entry["event"] == "coordinator away, trying again for 0.3 s"}
    assert reasons == {f'it ended the session ("{words}")'}


async def test_a_host_whose_certificate_is_not_known(study_folder: Path, tmp_path: Path) -> None:
    """In TLS 1.3 the client learns that after its own half of the handshake: that is still no connection."""
    tls = make_folder(tmp_path / "other") / "hosts" / "host-01" / "tls"
    strange = {"certificate": tls / "client.pem", "key": tls / "client.key", "give_up_s": 0.3}
    error, _ = await against(study_folder, tmp_path, coordinator=strange)
    assert f"it may not know this host's certificate ({tls / 'client.pem'})" in str(error)


@pytest.mark.parametrize("answer", ["welcome at once", "nothing", "heartbeat", "the end"])
async def test_wrong_handshakes(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """No wait without an end, and no session without the challenge."""
    # Only "nothing" tests the time; in the other cases a busy machine may take longer to connect.
    monkeypatch.setattr(client.connection, "HANDSHAKE_S", 0.3 if answer == "nothing" else 20.0)
    proofs: list[Any] = []

    async def handshake(study: Any, iterator: Any, context: Any) -> Any:
        await anext(iterator)
        if answer == "welcome at once":
            await context.write(codec.message(welcome=pb.Welcome(session_token=bytes(32))))
        elif answer == "heartbeat":
            await context.write(codec.message(heartbeat=pb.Heartbeat()))
        elif answer == "the end":
            raise StopAsyncIteration
        proofs.append(await anext(iterator))
        raise AssertionError

    monkeypatch.setattr(server.service, "_handshake", handshake)
    error, _ = await against(study_folder, tmp_path, coordinator={"give_up_s": 0.4})
    assert proofs == []
    expected = {"nothing": "doesn't answer", "the end": "not opened in time"}
    assert expected.get(answer, "didn't answer with challenge") in str(error)


async def test_giving_up_counts_from_loss(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a session that lasted longer than give_up_s the host still tries for that long."""
    patience = 0.6
    monkeypatch.setattr("client.participant_host.RETRY_S", (0.05, 0.1))

    def refuse(message: pb.Open) -> Any:
        raise TimeoutError

    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        settings = settings_of(
            study_folder, tmp_path / "journal.sqlite", where.address, coordinator={"give_up_s": patience}
        )
        async with host(settings) as task:
            await until(lambda: len(where.study.sessions.ready()) == PARTICIPANTS)
            began = time.monotonic()
            await until(lambda: time.monotonic() >= began + 1.5 * patience)  # the time itself is what is tested
            where.study.sessions.challenge = refuse  # type: ignore[method-assign]
            where.study.sessions.close_all()
            lost = time.monotonic()
            with pytest.raises(Failure):
                await task
            assert time.monotonic() - lost >= patience
