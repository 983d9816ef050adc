"""A coordinator's transcripts: written whole, its own to read, chained over restarts, published on request only."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mechanisms.accounting import Account, RoundCharge
from mechanisms.plan import InfeasiblePlan
from runtime.durable import StorageError
from runtime.failure import Failure
from runtime.key_files import write_key_file
from secagg.messages import UnmaskingRequest
from server.opening import open_study
from server.study_file import ConfigurationError, load
from sordino.reporting.transcript_text import lines
from tests.support.card_of_a_study import pem, put_card
from tests.support.ends_and_full_disks import no_room
from tests.support.rounds_on_record import (
    AUTHORITY_KEY,
    Finished,
    Ledger,
    card,
    coordinator_key,
    entry_of,
    model_after,
    plan,
    play,
    whole,
)
from tests.support.study_in_process import Peer, Twist, coordinator, identities, make_folder
from wire import codec, coordinator_pb2 as pb
from wire.ending import ROUNDS_DONE
from wire.records.ledger import read_ledger
from wire.records.transcript import Excluded
from wire.records.transcript_checks import Chain, verify_transcript
from wire.records.transcript_files import (
    TranscriptError,
    Transcripts,
    are_published,
    check_publishing,
    file_name,
    read_transcript_key,
)


def kept(folder: Path, published: Path | None = None) -> Transcripts:
    return Transcripts(folder, card(), coordinator_key(), whole().document, published=published)


def note(transcripts: Transcripts, ledger: Ledger, round_: int, attempt: int = 1) -> Finished:
    finished = play(whole(), round_, attempt)
    row = ledger.charge(entry_of(whole(), round_, attempt, finished.unmasking.u3))
    request = codec.write_unmasking_request(round_, attempt, UnmaskingRequest(finished.signatures))
    transcripts.note(finished.unmasking, request.SerializeToString(), row, whole().roster_file)
    return finished


def finish(transcripts: Transcripts, ledger: Ledger, round_: int, attempt: int = 1) -> Path:
    note(transcripts, ledger, round_, attempt)
    return transcripts.finish(round_, attempt, b"s" * 32, model_after(round_))


def check(folder: Path, expected: list[int]) -> None:
    """The files that are there hold as a chain."""
    chain, found = Chain(), list[int]()
    for path in sorted(folder.glob("*.transcript")):
        verified = verify_transcript(path.read_bytes(), AUTHORITY_KEY)
        chain.add(verified)
        found.append(verified.contents.round)
    assert found == expected


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    transcripts = kept(tmp_path / "transcripts")
    before = os.umask(0)
    try:
        transcripts.restore(0)
        path = finish(transcripts, Ledger(), 1)
    finally:
        os.umask(before)
    assert path.name == "round-000001.transcript"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    transcripts.publish(1)  # nothing, where it isn't asked for
    assert sorted(one.name for one in tmp_path.iterdir()) == ["transcripts"]
    assert not list(path.parent.glob("*.new"))


def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    ledger = Ledger()
    for round_ in (1, 2, 3):
        transcripts = kept(tmp_path)
        transcripts.restore(round_ - 1)
        finish(transcripts, ledger, round_)
    check(tmp_path, [1, 2, 3])


def test_a_round_that_doesnt_count_yet_is_put_aside(tmp_path: Path) -> None:
    """The process ended between the file and the journal: the round is played again, and the chain goes over its file.

    Without this the second transcript would follow one that the round's own file no longer is.
    """
    ledger, transcripts = Ledger(), kept(tmp_path)
    transcripts.restore(0)
    finish(transcripts, ledger, 1)
    first = finish(transcripts, ledger, 2).read_bytes()
    again = kept(tmp_path)
    again.restore(1)
    assert (tmp_path / "round-000002.unfinished-1").read_bytes() == first
    check(tmp_path, [1])
    finish(again, ledger, 2, 2)
    check(tmp_path, [1, 2])
    third = kept(tmp_path)
    third.restore(1)
    assert (tmp_path / "round-000002.unfinished-2").exists()


def test_half_a_file_is_never_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, transcripts = Ledger(), kept(tmp_path)
    transcripts.restore(0)
    finish(transcripts, ledger, 1)
    note(transcripts, ledger, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_room)
        with pytest.raises(OSError, match="No space"):
            transcripts.finish(2, 1, None, bytes(32))
    check(tmp_path, [1])
    transcripts.finish(2, 1, b"s" * 32, model_after(2))  # there is room again
    check(tmp_path, [1, 2])
    (tmp_path / "round-000003.transcript.new").write_bytes(b"cut off")
    kept(tmp_path).restore(2)
    assert sorted(one.name for one in tmp_path.iterdir()) == [file_name(1), file_name(2)]


def test_an_attempt_is_noted_before_it_is_finished(tmp_path: Path) -> None:
    ledger, transcripts = Ledger(), kept(tmp_path)
    transcripts.restore(0)
    with pytest.raises(ValueError, match="not noted"):
        transcripts.finish(1, 1, None, bytes(32))
    note(transcripts, ledger, 1)
    with pytest.raises(ValueError, match="not noted"):
        transcripts.finish(1, 2, None, bytes(32))
    note(transcripts, ledger, 1, 2)
    transcripts.finish(1, 2, b"s" * 32, bytes(32))
    with pytest.raises(ValueError, match="not noted"):
        transcripts.finish(1, 2, None, bytes(32))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data.replace(b'"round":1', b'"round":2', 1)])
def test_a_damaged_file_at_the_end_of_the_chain_is_told(tmp_path: Path, damage: Any) -> None:
    transcripts = kept(tmp_path)
    transcripts.restore(0)
    path = finish(transcripts, Ledger(), 1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TranscriptError, match=r"round-000001\.transcript"):
        kept(tmp_path).restore(1)


def test_publishing_copies_what_is_there_and_what_comes(tmp_path: Path) -> None:
    ledger, transcripts = Ledger(), kept(tmp_path / "transcripts")
    transcripts.restore(0)
    finish(transcripts, ledger, 1)
    assert not are_published(tmp_path / "state.sqlite")
    published = kept(tmp_path / "transcripts", tmp_path / "published")
    before = os.umask(0o077)
    try:
        published.restore(1)
        path = finish(published, ledger, 2)
        assert not (tmp_path / "published" / path.name).exists()  # the round doesn't count yet
        published.publish(2)
    finally:
        os.umask(before)
    copies = sorted((tmp_path / "published").iterdir())
    assert [one.name for one in copies] == [file_name(1), file_name(2)]
    assert [mode(one) for one in copies] == [0o644, 0o644]
    assert copies[1].read_bytes() == path.read_bytes()
    assert are_published(tmp_path / "state.sqlite")


def test_publishing_and_an_amplified_target_exclude_each_other() -> None:
    """The plan's epsilon assumes readers that don't know the cohorts, and a transcript names them."""
    amplified = plan(7, sampling="lottery", population=20, adversarial=0.0, target="released", epsilon=1.0)
    assert amplified.epsilon_released < amplified.epsilon_coordinator
    with pytest.raises(InfeasiblePlan, match="publish"):
        check_publishing(amplified)
    check_publishing(plan(7, sampling="lottery", population=20, adversarial=0.0))
    check_publishing(plan(7))


@pytest.mark.parametrize("public", [False, True])
async def test_where_cohorts_are_public_nothing_is_amplified(study: Path, tmp_path: Path, public: bool) -> None:
    """In events, report and panel: the smaller figure assumes readers that don't know the cohorts."""
    sampled = plan(7, sampling="lottery", population=20, adversarial=0.0, epsilon=1.0)
    async with coordinator(study, tmp_path / "state.sqlite", coordinator={"publish_transcripts": public}) as where:
        charges = [RoundCharge(one, 1, frozenset(range(7)), sampled.identity) for one in range(1, 6)]
        where.study.charges.account = Account(sampled, charges)
        epsilon_coordinator, epsilon_released = where.study.charges.epsilons().values()
    assert (epsilon_released < epsilon_coordinator) is not public
    assert (epsilon_released == epsilon_coordinator) is public


# ---------------------------------------------------------------- a study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two rounds, with a card and a transcript key."""
    folder = make_folder(tmp_path_factory.mktemp("recorded") / "study", name="recorded")
    put_card(folder, coordinator_key())
    return folder


async def serve(
    folder: Path, state: Path, twists: dict[str, Twist] | None = None, **tables: Any
) -> list[dict[str, Any]]:
    """Participant 0 does otherwise in round 1 where there are twists."""
    async with coordinator(folder, state, **tables) as where:
        assert (await where.play(where.peers({0: twists or {}}))).reason == ROUNDS_DONE
    return where.events


async def test_a_study_leaves_a_chain_that_holds(study: Path, tmp_path: Path) -> None:
    events = await serve(study, tmp_path / "state.sqlite")
    authority = bytes.fromhex((study / "authority" / "authority.pub").read_text())
    chain, rows = Chain(), []
    read_ledger(tmp_path / "ledger.sqlite", rows.append)
    rounds = [one for one in events if one["kind"] == "round_completed"]
    for row, done in zip(rows, rounds, strict=True):
        path = tmp_path / "transcripts" / file_name(done["round"])
        verified = verify_transcript(path.read_bytes(), authority)
        chain.add(verified)  # models too: the next round trained the model that this one announced
        found = verified.contents
        assert (found.charge.number, found.charge.hash, verified.entry) == (row.number, row.hash, row.entry)
        assert sorted(found.numbers) == done["survivors"]
        assert found.sum_sha256 is not None
        assert found.sum_sha256.hex() == done["sum_sha256"]
    assert not (tmp_path / "published").exists()


async def test_who_is_excluded_is_caught_in_one_round_and_out_from_the_next_on(study: Path, tmp_path: Path) -> None:
    def unsigned(peer: Peer, honest: pb.Advertisement) -> list[pb.ParticipantMessage]:
        honest.signature = bytes(64)
        return [peer.wrap(advertise_keys=honest)]

    events = await serve(study, tmp_path / "state.sqlite", {"advertise_keys": unsigned})
    [excluded] = [one for one in events if one["kind"] == "participant_excluded"]
    assert excluded["reason"] == "AdvertiseKeys: the keys are not signed by the participant's identity"
    authority = bytes.fromhex((study / "authority" / "authority.pub").read_text())
    files = [tmp_path / "transcripts" / file_name(round_) for round_ in (1, 2)]
    verified = [verify_transcript(file.read_bytes(), authority) for file in files]
    first, second = (one.contents for one in verified)
    named = (Excluded(identities(study)[0].public, excluded["reason"]),)
    assert first.u1 == second.u1 == (1, 2, 3, 4, 5, 6)
    assert (first.caught, first.excluded) == (named, ())
    assert (second.caught, second.excluded) == ((), named)
    said = [" ".join(" ".join(lines(one, authority_known=True)).split()) for one in verified]
    told = f"{named[0].identity.hex()[:12]}…, says the coordinator: {excluded['reason']}"
    assert f"Caught in this attempt: {told}" in said[0]
    assert f"Not invited any more: {told}" in said[1]
    assert ["Not invited" in said[0], "Caught" in said[1]] == [False, False]


async def test_published_where_that_is_asked_for(study: Path, tmp_path: Path) -> None:
    await serve(study, tmp_path / "state.sqlite", coordinator={"publish_transcripts": True})
    assert [one.name for one in sorted((tmp_path / "published").iterdir())] == [file_name(1), file_name(2)]


async def test_none_where_they_are_off(study: Path, tmp_path: Path) -> None:
    await serve(study, tmp_path / "state.sqlite", coordinator={"transcripts": "off"})
    assert not (tmp_path / "transcripts").exists()


async def test_a_study_in_which_nobody_signs_has_none(tmp_path: Path) -> None:
    """The naive coordinator would keep files that anybody could have written."""
    folder = make_folder(tmp_path / "study", name="curious", adversary="curious")
    put_card(folder, coordinator_key())
    await serve(folder, tmp_path / "state.sqlite")
    assert not (tmp_path / "transcripts").exists()
    file = folder / "study.toml"
    text = file.read_text()
    assert "publish_transcripts = false" in text
    file.write_text(text.replace("publish_transcripts = false", "publish_transcripts = true"))
    with pytest.raises(Failure, match="nothing is signed: set publish_transcripts = false") as refused:
        open_study(load(folder))
    assert refused.value.code == 2
    assert not (folder / "coordinator" / "state.sqlite").exists()


def test_off_and_published_contradict_each_other(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_COORDINATOR__TRANSCRIPTS", "off")
    monkeypatch.setenv("SORDINO_COORDINATOR__PUBLISH_TRANSCRIPTS", "true")
    with pytest.raises(ConfigurationError, match="publish_transcripts = true needs"):
        load(study)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "transcript.key").unlink(), "transcript.key"),
        (lambda folder: (folder / "transcript.key").chmod(0o644), "chmod 600"),
        (lambda folder: (folder / "transcript.key").write_bytes(b"none"), "not an unencrypted private key"),
        (lambda folder: (folder / "card.json").unlink(), "card.json"),
        (lambda folder: (folder / "card.json").write_bytes(card()), "card.json"),
        (lambda folder: put_other_key(folder), "is not the key on"),
    ],
)
def test_a_wrong_card_or_key_is_refused_before_anything_runs(
    study: Path, tmp_path: Path, damage: Any, said: str
) -> None:
    shutil.copytree(study, tmp_path / "study")
    damage(tmp_path / "study" / "coordinator")
    with pytest.raises(Failure) as refused:
        open_study(load(tmp_path / "study"))
    assert said in str(refused.value)
    assert refused.value.code == 2
    assert not (tmp_path / "study" / "coordinator" / "state.sqlite").exists()


def put_other_key(folder: Path) -> None:
    (folder / "transcript.key").write_bytes(pem(Ed25519PrivateKey.from_private_bytes(bytes(32))))


def test_no_error_quotes_a_key(tmp_path: Path) -> None:
    secret = pem(coordinator_key()).decode().replace("PRIVATE", "PRIVAT")
    path = tmp_path / "transcript.key"
    write_key_file(path, secret.encode())
    with pytest.raises(TranscriptError) as refused:
        read_transcript_key(path)
    assert secret.splitlines()[1] not in repr(refused.value)
    assert isinstance(refused.value, StorageError)
    assert json.dumps(str(refused.value))
