"""A study that is planned for a curious coordinator: real participants join it only if their policy says so, and then
reveal shares for the survivors that they are told, without anybody's signature.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from client.host_file import load
from runtime.failure import ExitCode, Failure
from tests.support.host_in_process import ledger_of, play, rows_of
from tests.support.study_in_process import PARTICIPANTS, make_folder
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE, EXACT

MISBEHAVED = pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED


@pytest.fixture(scope="module")
def curious_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("studies") / "curious", adversary="curious")


def test_a_default_policy_refuses_it(curious_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that ``init`` makes say yes, since the owner of the study makes them; nobody else's do."""
    assert load(curious_folder / "hosts" / "host-01").settings().policy.curious_coordinator
    story = play(curious_folder, tmp_path, monkeypatch, policy={"curious_coordinator": False})
    assert isinstance(story.ended, Failure)
    assert story.ended.code == ExitCode.INPUT
    assert "curious-coordinator: no participant would sign whose updates are in a sum" in str(story.ended)
    assert (story.ready, story.sent) == (set(), [])


def test_a_whole_study(curious_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = play(curious_folder, tmp_path, monkeypatch)
    assert story.ended == 0
    assert story.kinds() == {"advertise_keys", "share_keys", "masked_input", "upload", "unmasking"}
    done = [event for event in story.events if event["kind"] == "round_completed"]
    assert [(event["u1"], event["u3"]) for event in done] == [(PARTICIPANTS, PARTICIPANTS)] * 2
    phases = {event["phase"] for event in story.events if event["kind"] == "phase_started"}
    assert phases == {"AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "Unmasking"}
    [accepted] = [entry for entry in story.logs if entry["event"] == "study accepted"]
    assert (accepted["trusts"], accepted["adversary"]) == ("the coordinator, to follow the protocol", "curious")
    rows = rows_of(ledger_of(story.journal))
    assert [row.kind for row in rows].count(CHARGE) == 2 * PARTICIPANTS
    assert [row.kind for row in rows].count(EXACT) == 2 * PARTICIPANTS
    assert not (tmp_path / "transcripts").exists()


def others(me: int) -> bytes:
    return bytes([sum(1 << who for who in range(PARTICIPANTS) if who != me)])


def lie_about_u3(me: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    sets.u3 = others(me)
    return [pb.CoordinatorMessage(survivor_sets=sets)]


def lie_about_u2(me: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    sets.u2 = sets.u3 = others(0 if me else 1)
    return [pb.CoordinatorMessage(survivor_sets=sets)]


def too_few(me: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    sets.u3 = bytes([sum(1 << who for who in {me, 0, 1, 2})])
    return [pb.CoordinatorMessage(survivor_sets=sets)]


def signed_instead(_: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    request = pb.UnmaskingRequest(round=sets.round, attempt=sets.attempt)
    return [pb.CoordinatorMessage(unmasking_request=request)]


LIES = {
    "u3 without me": (lie_about_u3, "left out of u3"),
    "another u2": (lie_about_u2, "not the set this participant masked in"),
    "u3 too small": (too_few, "5 needed"),
    "a request with no signatures": (signed_instead, "out of order"),
}


def told(lie: Any) -> Any:
    def change(who: int, message: pb.CoordinatorMessage) -> Iterable[pb.CoordinatorMessage]:
        if message.WhichOneof("message") != "survivor_sets":
            return [message]
        other = pb.CoordinatorMessage()
        other.CopyFrom(message)
        return lie(who, other.survivor_sets)

    return change


@pytest.mark.parametrize("name", LIES)
def test_what_she_can_see_she_checks_all_the_same(
    curious_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lie, reason = LIES[name]
    story = play(curious_folder, tmp_path, monkeypatch, told(lie))
    assert "unmasking" not in story.kinds()
    assert story.codes() == {MISBEHAVED}
    warnings = [entry for entry in story.logs if entry["event"] == "refused"]
    assert warnings
    assert all(reason in entry["reason"] for entry in warnings)


def test_a_second_different_question_gets_no_answer(
    curious_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is all that keeps the two kinds of share of one participant apart: the identical question alone is answered
    again.
    """

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") != "survivor_sets" or message.survivor_sets.round != 1:
            return [message]
        other = pb.CoordinatorMessage()
        other.CopyFrom(message)
        other.survivor_sets.u3 = bytes([0b0111111])  # the last one is said to have dropped out
        return [message, message, other, message]

    story = play(curious_folder, tmp_path, monkeypatch, lie)
    replies: dict[int, list[bytes]] = {}
    for who, message in story.messages:
        if message.WhichOneof("message") == "unmasking" and message.round == 1:
            replies.setdefault(who, []).append(message.SerializeToString())
    assert len(replies) >= 5
    assert all(len(given) <= 2 and len(set(given)) == 1 for given in replies.values())
    assert any("a second, different unmasking request" in reason for reason in story.reasons())
