"""Real participants under rosters that change between attempts, under drawn cohorts, and left out of a sum."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.context import winners
from secagg.lottery import Draws
from secagg.roster import NONE, InvalidRoster, Roster, sign_roster
from server.attempt.uploads import UploadRefused
from server.events import Event, RoundCompleted
from server.study_file import load
from tests.support.card_of_a_study import authority_of
from tests.support.host_in_process import Lie, Play, Story, on
from tests.support.signed_rosters import published, put
from tests.support.study_in_process import PARTICIPANTS, Coordinator, coordinator, make_folder, roster_of, with_tables
from wire import coordinator_pb2 as pb
from wire.authority_statements import Package
from wire.ending import ROUNDS_DONE
from wire.records.ledger import read_ledger
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED
from wire.study import write_draws

DRAWN, COHORT, ROUNDS = 12, 8, 3


def without(folder: Path, version: int, *positions: int) -> Package:
    """A later roster without the participants at some positions, as the authority publishes it."""
    roster = roster_of(folder)
    entries = tuple(entry for at, entry in enumerate(roster.entries) if at not in positions)
    later = dataclasses.replace(roster, version=version, entries=entries, previous=roster.digest())
    return published(later, authority_of(folder), [roster.head])


# ---------------------------------------------------------------- a roster that changes


def test_a_participant_is_revoked_between_two_rounds(study_folder: Path, tmp_path: Path, played: Play) -> None:
    """Positions change; charges, events and the host's other participants are not affected."""
    gone = 2
    found: list[Coordinator] = []

    def prepare(where: Coordinator) -> None:
        def on_event(event: Event) -> None:
            if isinstance(event, RoundCompleted) and event.round == 1:
                package = without(study_folder, 2, gone)
                files = where.study.roster_files
                files.check_beside(files.check(package.roster_file), package.newest_file, package.history_file)
                where.study.offer_roster(package.roster_file, None)

        found.append(where)
        where.tell_first(on_event)

    story = played(prepare=prepare)
    assert found[0].running is not None
    assert found[0].running.result().reason == ROUNDS_DONE
    first, second = story.of("round_completed")
    assert first["survivors"] == list(range(PARTICIPANTS))
    assert second["survivors"] == [one for one in range(PARTICIPANTS) if one != gone]  # numbers, not positions
    [adopted] = story.of("roster_adopted")
    assert (adopted["version"], adopted["left"], adopted["joined"]) == (2, [gone], [])
    assert found[0].of("participant_lost", participant=gone, reason="revoked")
    charged: list[tuple[int, ...]] = []
    read_ledger(tmp_path / "ledger.sqlite", lambda row: charged.append(row.entry.participants or ()))
    assert charged == [tuple(first["survivors"]), tuple(second["survivors"])]
    assert "was revoked or never enrolled" in str(story.ended)


def publish(*rosters_and_where: Any) -> None:
    """Let the coordinator, the last argument, hand out more documents."""
    *rosters, where = rosters_and_where
    where.study._documents.update({hashlib.sha256(data).digest(): data for data in rosters})


def shown(roster: bytes) -> Lie:
    """Each round names this roster."""
    digest = hashlib.sha256(roster).digest()
    return on("round_start", lambda _, start: setattr(start, "roster_sha256", digest))


async def test_rosters_that_the_coordinator_does_not_take(study_folder: Path, tmp_path: Path) -> None:
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        stranger = Ed25519PrivateKey.generate()
        roster = roster_of(study_folder)
        for data, told in (
            (sign_roster(Roster(roster.study, 2, roster.entries), stranger), "not signed by"),
            (without(study_folder, 1, 0).roster_file, "isn't later than version 1"),
            (sign_roster(Roster("eight", 2, roster.entries), authority_of(study_folder)), "another study"),
            (sign_roster(replace(roster, version=2, terms=bytes(32)), authority_of(study_folder)), "other terms"),
        ):
            with pytest.raises(InvalidRoster, match=told):
                where.study.offer_roster(data, None)
        where.study.offer_roster(without(study_folder, 3, 0).roster_file, None)
        with pytest.raises(InvalidRoster, match="isn't later than version 3"):
            where.study.offer_roster(without(study_folder, 2, 0).roster_file, None)


async def test_a_study_without_terms_takes_the_first_ones_that_are_signed(study_folder: Path, tmp_path: Path) -> None:
    """As in containers, where the coordinator makes the study and the authority signs it later."""
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        membership = where.study._membership
        membership.signed = replace(membership.signed, roster=replace(membership.roster, terms=NONE))
        other = replace(membership.roster, version=2, terms=bytes([1] * 32))
        with pytest.raises(InvalidRoster, match="other terms"):
            where.study.offer_roster(sign_roster(other, authority_of(study_folder)), None)
        where.study.offer_roster(without(study_folder, 2, 0).roster_file, None)
        assert membership.offered is not None
        none = sign_roster(replace(membership.roster, version=3, terms=NONE), authority_of(study_folder))
        with pytest.raises(InvalidRoster, match="other terms"):
            where.study.offer_roster(none, None)


# ---------------------------------------------------------------- drawn cohorts


@pytest.fixture(scope="module")
def drawn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve on the roster, eight of them drawn for each of three rounds."""
    folder = make_folder(
        tmp_path_factory.mktemp("studies") / "drawn",
        **{"participants": DRAWN, "rounds": ROUNDS, "min_survivors": 8, "quorum": 8},
    )
    roster = roster_of(folder)
    draws = Draws.draw(roster.study, 2, ROUNDS, np.random.default_rng(3).bytes)
    terms = with_tables(load(folder), LOTTERY).document().digest()
    later = dataclasses.replace(roster, version=2, lottery=draws.lottery, terms=terms, previous=roster.digest())
    put(folder, later, authority_of(folder))
    (folder / "lottery.json").write_bytes(write_draws(draws))
    return folder


LOTTERY = {
    "study": {"participants": COHORT},
    "privacy": {"sampling": "lottery", "population": DRAWN, "min_survivors": 7, "quorum": 7},
}
LENIENT = {"min_honest_survivors": 1, "min_colluders": 0, "max_epsilon": 1e6}


def play_drawn(played: Play, folder: Path, lie: Any = None) -> tuple[Story, Coordinator]:
    """A study with drawn cohorts; the lie also gets the coordinator."""
    found: list[Coordinator] = []
    told = None if lie is None else lambda who, message: lie(found[0], who, message)
    story = played(told, folder=folder, tables=LOTTERY, prepare=found.append, policy=LENIENT)
    return story, found[0]


def test_each_round_has_the_cohort_that_the_authority_drew(drawn_folder: Path, played: Play) -> None:
    story, where = play_drawn(played, drawn_folder)
    assert story.ended == 0
    roster = roster_of(drawn_folder)
    draws = where.study._membership.signed.draws
    assert draws is not None
    completed = where.of("round_completed")
    assert len(completed) == ROUNDS
    cohorts = [winners(roster, one, draws.ticket(one), COHORT) for one in range(1, ROUNDS + 1)]
    assert [frozenset(one["survivors"]) for one in completed] == cohorts
    assert len(set(cohorts)) > 1
    # Those that weren't drawn got no message of the round and no charge.
    identities = {entry.identity.hex(): at for at, entry in enumerate(roster.entries)}
    for number, cohort in enumerate(cohorts, 1):
        charged = {identities[row.identity or ""] for row in story.rows() if row.round == number and row.kind == CHARGE}
        assert charged == cohort


async def test_a_false_file_of_draws_is_found_at_the_start(drawn_folder: Path, tmp_path: Path) -> None:
    kept = (drawn_folder / "lottery.json").read_bytes()
    document = json.loads(kept)
    changed = {**document, "seeds": [document["seeds"][1], *document["seeds"][1:]]}

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
                async with coordinator(drawn_folder, tmp_path / "state.sqlite", **LOTTERY):
                    pass
    finally:
        (drawn_folder / "lottery.json").write_bytes(kept)


# ---------------------------------------------------------------- charges that are taken back


def left_out(victim: int, where: Coordinator) -> None:
    """The coordinator drops a participant after it was charged: its upload is never taken."""
    refuse = where.study.upload

    async def upload(session: Any, chunks: Any) -> bytes:
        if session.participant == victim:
            where.study._attempt.upload_failed(victim, "for a test")
            raise UploadRefused("not taken")
        return await refuse(session, chunks)

    where.study.upload = upload  # type: ignore[method-assign]


def kinds_of(folder: Path, story: Story, victim: int) -> list[str]:
    identity = roster_of(folder).identity(victim).hex()
    return [row.kind for row in story.rows() if row.identity == identity and row.round == 1]


def test_a_participant_that_was_left_out_pays_nothing(study_folder: Path, played: Play) -> None:
    story = played(prepare=partial(left_out, 3))
    assert kinds_of(study_folder, story, 3) == [CHARGE, EXCLUDED]
    assert kinds_of(study_folder, story, 4) == [CHARGE, EXACT]
    assert "nothing is charged" in story.told()


def test_a_proof_about_another_attempt_takes_no_charge_back(study_folder: Path, played: Play) -> None:
    story = played(on("survivor_proof", lambda _, proof: setattr(proof, "attempt", 2)), prepare=partial(left_out, 3))
    assert kinds_of(study_folder, story, 3) == [CHARGE]


# ---------------------------------------------------------------- what a participant's neighbours on its host have seen


def test_a_version_that_only_another_participant_of_the_host_has_seen(study_folder: Path, played: Play) -> None:
    """In the first attempt one of seven is shown version 3; in the second none accepts version 1.

    A client that compares only with the roster of its session would let the other six accept it.
    """
    package = without(study_folder, 3)
    third = package.roster_file

    def starts(participant: int, start: pb.RoundStart) -> list[pb.CoordinatorMessage] | None:
        if start.attempt == 1:
            start.roster_sha256, start.newest = hashlib.sha256(third).digest(), package.newest_file
        return [] if start.attempt == 1 and participant != 0 else None

    def prepare(where: Coordinator) -> None:
        publish(third, where)
        where.study._pace.configured_s["AdvertiseKeys"] = 1.0

    story = played(on("round_start", starts), prepare=prepare, attempts=2)
    assert {message.attempt for _, message in story.messages} <= {1}
    assert any("version 1 of the roster is older than version 3" in reason for reason in story.reasons())


def test_a_roster_larger_than_the_plan_could_need_is_not_read(played: Play) -> None:
    """JSON takes many times its size in memory, and the signature is known once it is read."""
    huge = b"[" + b"[]," * (1 << 20) + b"[]]"
    story = played(shown(huge), prepare=partial(publish, huge))
    assert not story.sent
    assert any("a document is longer than" in reason for reason in story.reasons())
