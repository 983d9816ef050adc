"""Real participants under rosters that change between attempts, under drawn cohorts, and left out of a sum."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import server.study
from runtime.failure import ExitCode, Failure
from secagg.context import winners
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, Roster, sign_roster, verify_roster
from server.events import Event, RoundCompleted
from tests.support.host_in_process import Story, host, ledger_of, play, rows_of, settings_of
from tests.support.study_in_process import PARTICIPANTS, PATIENCE_S, Coordinator, coordinator, make_folder
from wire import coordinator_pb2 as pb
from wire.records.ledger import read_ledger
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED
from wire.study import write_draws

DRAWN, COHORT, ROUNDS = 12, 8, 3


def authority_of(folder: Path) -> Ed25519PrivateKey:
    key = load_pem_private_key((folder / "authority" / "authority.key").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def roster_of(folder: Path) -> Roster:
    public = authority_of(folder).public_key().public_bytes_raw()
    return verify_roster((folder / "roster.json").read_bytes(), public)


def without(folder: Path, version: int, *positions: int) -> bytes:
    """A later version from which some were taken."""
    roster = roster_of(folder)
    entries = tuple(entry for at, entry in enumerate(roster.entries) if at not in positions)
    return sign_roster(Roster(roster.study, version, entries, roster.lottery), authority_of(folder))


# ---------------------------------------------------------------- a roster that changes


def play_two(folder: Path, work: Path, between: Any, **settings: dict[str, Any]) -> tuple[Story, Coordinator, Any]:
    """Two rounds; ``between`` is called with the coordinator when the first is over."""
    story = Story(journal=work / "journal.sqlite")
    outcome: list[Any] = []

    async def scenario() -> Coordinator:
        async with coordinator(folder, work / "state.sqlite") as where:
            note = where.study._on_event

            def on_event(event: Event) -> None:
                if isinstance(event, RoundCompleted) and event.round == 1:
                    between(where)
                note(event)

            where.study._on_event = on_event
            where.start()
            async with host(settings_of(folder, story.journal, where.address, **settings)) as task:
                async with asyncio.timeout(PATIENCE_S):
                    outcome.append(await where.finish())
                    try:
                        story.ended = await task
                    except Failure as error:
                        story.ended = error
            return where

    where = asyncio.run(scenario())
    return story, where, outcome[0]


def test_somebody_is_revoked_between_two_rounds(study_folder: Path, tmp_path: Path) -> None:
    """Positions move; charges, events and the host's other participants don't notice."""
    gone = 2

    def revoke(where: Coordinator) -> None:
        where.study.offer_roster(without(study_folder, 2, gone), None)

    story, where, outcome = play_two(study_folder, tmp_path, revoke)
    assert outcome.reason == server.study.ROUNDS_DONE
    first, second = where.of("round_completed")
    assert first["survivors"] == list(range(PARTICIPANTS))
    assert second["survivors"] == [one for one in range(PARTICIPANTS) if one != gone]  # numbers, not positions
    [adopted] = where.of("roster_adopted")
    assert (adopted["version"], adopted["left"], adopted["joined"]) == (2, [gone], [])
    assert where.of("participant_lost", participant=gone, reason="revoked")
    charged: list[tuple[int, ...]] = []
    read_ledger(tmp_path / "ledger.sqlite", lambda row: charged.append(row.entry.participants or ()))
    assert charged == [tuple(first["survivors"]), tuple(second["survivors"])]
    # The revoked participant's host is told in so many words.
    assert "was revoked or never enrolled" in str(story.ended)


def test_a_round_with_a_roster_that_goes_back(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After version 3 the coordinator shows version 2, on which somebody revoked is back."""
    third, second = without(study_folder, 3, 0), without(study_folder, 2)
    digests = []

    def prepare(where: Coordinator) -> None:
        for data in (third, second):
            digests.append(hashlib.sha256(data).digest())
            where.study._documents[digests[-1]] = data

    def lie(_: int, message: pb.CoordinatorMessage) -> Iterator[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            for digest in digests:
                shown = pb.CoordinatorMessage()
                shown.CopyFrom(message)
                shown.round_start.roster_sha256 = digest
                yield shown
        else:
            yield message

    story = play(study_folder, tmp_path, monkeypatch, lie, prepare=prepare)
    assert any("shows roster version 2, but version 3 was seen" in reason for reason in story.reasons())
    assert "share_keys" not in story.kinds()


def test_two_rosters_of_one_version(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an authority whose folder was put back to an older copy would sign."""
    other = without(study_folder, 1, 6)
    digest = hashlib.sha256(other).digest()

    def lie(_: int, message: pb.CoordinatorMessage) -> Iterator[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            message.round_start.roster_sha256 = digest
        yield message

    story = play(
        study_folder,
        tmp_path,
        monkeypatch,
        lie,
        prepare=lambda where: where.study._documents.update({digest: other}),
    )
    assert any("another version 1 of the roster" in reason for reason in story.reasons())
    assert not story.sent


def test_rosters_that_the_coordinator_does_not_take(study_folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
            stranger = Ed25519PrivateKey.generate()
            roster = roster_of(study_folder)
            for data, told in (
                (sign_roster(Roster(roster.study, 2, roster.entries), stranger), "not signed by"),
                (without(study_folder, 1, 0), "isn't later than version 1"),
                (sign_roster(Roster("eight", 2, roster.entries), authority_of(study_folder)), "another study"),
            ):
                with pytest.raises(InvalidRoster, match=told):
                    where.study.offer_roster(data, None)
            where.study.offer_roster(without(study_folder, 3, 0), None)
            with pytest.raises(InvalidRoster, match="isn't later than version 3"):
                where.study.offer_roster(without(study_folder, 2, 0), None)

    asyncio.run(scenario())


# ---------------------------------------------------------------- drawn cohorts


@pytest.fixture(scope="module")
def drawn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve on the roster, eight of them drawn for each of three rounds."""
    folder = make_folder(
        tmp_path_factory.mktemp("studies") / "drawn",
        participants=DRAWN,
        rounds=ROUNDS,
        min_survivors=8,
        quorum=8,
    )
    roster = roster_of(folder)
    draws = Draws.draw(roster.study, 2, ROUNDS, bytes_of(3))
    later = dataclasses.replace(roster, version=2, lottery=draws.lottery)
    (folder / "roster.json").write_bytes(sign_roster(later, authority_of(folder)))
    (folder / "lottery.json").write_bytes(write_draws(draws))
    return folder


def bytes_of(seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).bytes


LOTTERY = {
    "study": {"participants": COHORT},
    "privacy": {"sampling": "lottery", "population": DRAWN, "min_survivors": 7, "quorum": 7},
}
LENIENT = {"min_honest_survivors": 1, "min_colluders": 0, "max_epsilon": 1e6}


def play_drawn(folder: Path, work: Path, lie: Any = None, monkeypatch: Any = None) -> tuple[Story, Coordinator]:
    from structlog.testing import capture_logs

    import server.sessions
    from tests.support.host_in_process import record

    story = Story(journal=work / "journal.sqlite")

    async def scenario() -> Coordinator:
        async with coordinator(folder, work / "state.sqlite", coordinator={"max_attempts": 1}, **LOTTERY) as where:
            record(where, story)
            if lie is not None:
                honest = server.sessions.Session.send
                monkeypatch.setattr(
                    server.sessions.Session,
                    "send",
                    lambda session, message: [honest(session, one) for one in lie(where, session, message)],
                )
            where.start()
            async with host(settings_of(folder, story.journal, where.address, policy=LENIENT)) as task:
                async with asyncio.timeout(PATIENCE_S):
                    try:
                        story.ended = await task
                    except Failure as error:
                        if error.code != ExitCode.STUDY:
                            raise
            return where

    with capture_logs() as logs:
        where = asyncio.run(scenario())
    story.logs = logs
    return story, where


def test_each_round_has_the_cohort_that_the_authority_drew(drawn_folder: Path, tmp_path: Path) -> None:
    story, where = play_drawn(drawn_folder, tmp_path)
    assert story.ended == 0
    roster = roster_of(drawn_folder)
    draws = where.study._membership.signed.draws
    assert draws is not None
    completed = where.of("round_completed")
    assert len(completed) == ROUNDS
    cohorts = [winners(roster, one, draws.ticket(one), COHORT) for one in range(1, ROUNDS + 1)]
    assert [frozenset(one["survivors"]) for one in completed] == cohorts
    assert len(set(cohorts)) > 1
    # Whoever wasn't drawn heard nothing of the round and was charged nothing.
    identities = {entry.identity.hex(): at for at, entry in enumerate(roster.entries)}
    for number, cohort in enumerate(cohorts, 1):
        charged = {
            identities[row.identity or ""]
            for row in rows_of(ledger_of(story.journal))
            if row.round == number and row.kind == CHARGE
        }
        assert charged == cohort


def test_a_loser_in_the_cohort_ends_the_attempt_for_everybody(
    drawn_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator invites nine and one of them did not win: its own client and all others refuse."""

    def lie(where: Coordinator, session: Any, data: bytes) -> list[bytes]:
        message = pb.CoordinatorMessage.FromString(data)
        if message.WhichOneof("message") == "cohort_keys":
            members = message.cohort_keys.members
            loser = next(who for who in range(DRAWN) if who not in where.study._attempt.config.invited)
            took = next(one for one in members if one.participant != session.participant)
            took.participant = loser
            ordered = sorted(members, key=lambda one: one.participant)
            del members[:]
            members.extend(ordered)
        return [message.SerializeToString()]

    story, _ = play_drawn(drawn_folder, tmp_path, lie, monkeypatch)
    assert "share_keys" not in story.kinds()
    assert any("did not win the round's lottery" in reason for reason in story.reasons())


@pytest.mark.parametrize("ticket", ["none", "another seed", "of another round"])
def test_a_cohort_of_the_coordinators_choice(
    drawn_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticket: str
) -> None:
    def lie(where: Coordinator, session: Any, data: bytes) -> list[bytes]:
        message = pb.CoordinatorMessage.FromString(data)
        if message.WhichOneof("message") == "round_start":
            start = message.round_start
            if ticket == "none":
                start.ClearField("ticket")
            elif ticket == "another seed":
                start.ticket.seed = b"x" * 32
            else:
                assert where.study._membership.signed.draws is not None
                other = where.study._membership.signed.draws.ticket(start.round % ROUNDS + 1)
                start.ticket.CopyFrom(pb.LotteryTicket(seed=other.seed, path=other.path))
        return [message.SerializeToString()]

    story, _ = play_drawn(drawn_folder, tmp_path, lie, monkeypatch)
    assert not story.sent
    wanted = "no ticket" if ticket == "none" else "not the one that the authority drew"
    assert any(wanted in reason for reason in story.reasons())


def test_a_false_file_of_draws_is_found_at_the_start(drawn_folder: Path, tmp_path: Path) -> None:
    from secagg.roster import InvalidRoster

    kept = (drawn_folder / "lottery.json").read_bytes()
    document = json.loads(kept)
    changed = {**document, "seeds": [document["seeds"][1], *document["seeds"][1:]]}

    async def scenario() -> None:
        async with coordinator(drawn_folder, tmp_path / "state.sqlite", **LOTTERY):
            pass

    try:
        for content, told in (
            (json.dumps(changed).encode(), "doesn't belong to version 2"),
            (b"{}", "not a file of draws"),
            (None, "no lottery.json"),
        ):
            (drawn_folder / "lottery.json").unlink(missing_ok=True)
            if content is not None:
                (drawn_folder / "lottery.json").write_bytes(content)
            with pytest.raises(InvalidRoster, match=told):
                asyncio.run(scenario())
    finally:
        (drawn_folder / "lottery.json").write_bytes(kept)


# ---------------------------------------------------------------- charges that are taken back


def left_out(where: Coordinator, victim: int) -> None:
    """The coordinator drops a participant after it was charged: its upload is never taken."""
    refuse = where.study.upload

    async def upload(session: Any, chunks: Any) -> bytes:
        if session.participant == victim:
            from server.attempt.uploads import UploadRefused

            where.study._attempt.upload_failed(victim, "for a test")
            raise UploadRefused("not taken")
        return await refuse(session, chunks)

    where.study.upload = upload  # type: ignore[method-assign]


def kinds_of(folder: Path, story: Story, victim: int) -> list[str]:
    identity = roster_of(folder).identity(victim).hex()
    return [row.kind for row in rows_of(ledger_of(story.journal)) if row.identity == identity and row.round == 1]


def test_a_participant_that_was_left_out_pays_nothing(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = play(study_folder, tmp_path, monkeypatch, prepare=lambda where: left_out(where, 3))
    assert kinds_of(study_folder, story, 3) == [CHARGE, EXCLUDED]
    assert kinds_of(study_folder, story, 4) == [CHARGE, EXACT]
    assert "nothing is charged" in story.told()


FORGED = {
    "no signature": lambda proof: proof.ClearField("signatures"),
    "the victim is in it": lambda proof: setattr(proof, "u3", proof.u2),
    "other sets than were signed": lambda proof: setattr(proof, "u2", proof.u3),
    "one signature repeated": lambda proof: [one.CopyFrom(proof.signatures[0]) for one in proof.signatures],
    "a short signature": lambda proof: setattr(proof.signatures[0], "signature", b"s"),
    "of another attempt": lambda proof: setattr(proof, "attempt", 2),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_charge_stays_without_a_quorums_word(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A coordinator that wants more rounds out of a budget says that a sum was without her."""

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "survivor_proof":
            FORGED[how](message.survivor_proof)
        return [message]

    story = play(study_folder, tmp_path, monkeypatch, lie, prepare=lambda where: left_out(where, 3))
    assert kinds_of(study_folder, story, 3) == [CHARGE]


def test_whoever_answered_cannot_take_her_charge_back(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof for the one who was left out is shown to all others as well."""
    proofs: list[pb.CoordinatorMessage] = []

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        kind = message.WhichOneof("message")
        if kind == "survivor_proof":
            proofs.append(message)
        return [*proofs, message] if kind == "round_end" else [message]

    story = play(study_folder, tmp_path, monkeypatch, lie, prepare=lambda where: left_out(where, 3))
    assert proofs
    assert kinds_of(study_folder, story, 4) == [CHARGE, EXACT]


# ---------------------------------------------------------------- what a participant's neighbours on its host have seen


def test_a_version_that_only_another_participant_of_the_host_has_seen(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first attempt one of seven is shown version 3; in the second nobody goes on with version 1.

    A client that compares with the roster of its own session only would let the other six do so.
    """
    third = without(study_folder, 3)
    digest = hashlib.sha256(third).digest()

    def prepare(where: Coordinator) -> None:
        study = where.study
        study._documents[digest] = third
        study._deadlines_s["AdvertiseKeys"] = 1.0
        table = study._configuration.coordinator.model_copy(update={"max_attempts": 2})
        study._configuration = study._configuration.model_copy(update={"coordinator": table})

    def lie(participant: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start" and message.round_start.attempt == 1:
            if participant != 0:
                return []
            message.round_start.roster_sha256 = digest
        return [message]

    story = play(study_folder, tmp_path, monkeypatch, lie, prepare=prepare)
    assert {message.attempt for _, message in story.messages} <= {1}
    assert any("shows roster version 1, but version 3 was seen" in reason for reason in story.reasons())


def test_a_round_beyond_the_plan_locks_nobody_out(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round numbers only grow: whoever joined round 2^62 could never join the next one."""

    def lie(_: int, message: pb.CoordinatorMessage) -> Iterator[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            far = pb.CoordinatorMessage()
            far.CopyFrom(message)
            far.round_start.round = 1 << 62
            yield far
        yield message

    story = play(study_folder, tmp_path, monkeypatch, lie)
    assert {one.round for _, one in story.messages} == {1, 2}
    assert any("of a plan with 2" in reason for reason in story.reasons())
    assert [event["kind"] for event in story.events].count("round_completed") == 2


def test_a_roster_larger_than_the_plan_could_need_is_not_read(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON takes many times its size in memory, and the signature is known once it is read."""
    huge = b"[" + b"[]," * (1 << 20) + b"[]]"

    def prepare(where: Coordinator) -> None:
        digest = hashlib.sha256(huge).digest()
        where.study._documents[digest] = huge
        digests.append(digest)

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            message.round_start.roster_sha256 = digests[0]
        return [message]

    digests: list[bytes] = []
    story = play(study_folder, tmp_path, monkeypatch, lie, prepare=prepare)
    assert not story.sent
    assert any("a document is longer than" in reason for reason in story.reasons())
