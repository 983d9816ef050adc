"""Participants and a coordinator that lies within an attempt: each refuses with a code that reveals nothing about its
data, logs the reason, and never sends the message that the lie aims at.

One or two lies about each message; tests/adversary has the others, each also against a client without the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.host_in_process import Play, Story, on
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE

MISBEHAVED, LOCAL_FAILURE = pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED, pb.REFUSAL_CODE_LOCAL_FAILURE
ALL = ["advertise_keys", "share_keys", "masked_input", "upload", "consistency", "unmasking"]


@dataclass(frozen=True)
class Lie:
    """A change of one kind of message, as `on` takes it, and the message that the coordinator must never get."""

    name: str
    kind: str
    never: str
    reason: str
    change: Callable[[int, Any], Iterable[pb.CoordinatorMessage] | None]


def other_than(me: int) -> int:
    return 0 if me else 1


# ---------------------------------------------------------------- u1


# ---------------------------------------------------------------- u2 and the shares


def bits(*members: int) -> bytes:
    return bytes([sum(1 << member for member in members)])


def all_but_another(me: int) -> bytes:
    """As u2, this denies a neighbour that the participant masked with: its mask key would be requested from others."""
    return bits(*(who for who in range(PARTICIPANTS) if who != other_than(me)))


def sets(**fields: bytes | Callable[[int], bytes]) -> Callable[[int, Any], None]:
    """A change that sets fields: to a value, or to a function of the participant."""

    def change(me: int, content: Any) -> None:
        for name, value in fields.items():
            setattr(content, name, value(me) if callable(value) else value)

    return change


# ---------------------------------------------------------------- the request


# ---------------------------------------------------------------- order and numbers


def request_before_sets(_: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    return [pb.CoordinatorMessage(unmasking_request=pb.UnmaskingRequest(round=sets.round, attempt=sets.attempt))]


LIES = [
    Lie("another u2", "survivor_sets", "consistency", "not the set this participant masked", sets(u2=all_but_another)),
    Lie("request before sets", "survivor_sets", "unmasking", "out of order", request_before_sets),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_refused(played: Play, lie: Lie) -> None:
    story = played(on(lie.kind, lie.change))
    assert not story.kinds() & set(ALL[ALL.index(lie.never) :])
    assert story.codes() == {MISBEHAVED}
    # Without three of seven the attempt ends, perhaps before the others refuse.
    assert len({who for who, _ in story.refusals}) >= 3
    warnings = [entry for entry in story.logs if entry["event"] == "refused"]
    assert warnings
    assert all(lie.reason in entry["reason"] for entry in warnings)
    # The client stays until the study ends, which here happens after one attempt.
    assert story.ended == 0
    assert story.of("round_completed") == []
    if lie.never in ALL[:3]:
        assert charged(story) == []


def charged(story: Story) -> list[Any]:
    return [row for row in story.rows() if row.kind == CHARGE]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ((2, 1), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((1, 1), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((1, 99), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((0, 5), LOCAL_FAILURE),
        ((2, 0), LOCAL_FAILURE),
    ],
)
def test_numbers_only_grow(played: Play, number: tuple[int, int], code: int) -> None:
    """An attempt that was joined, or an earlier one, is skipped: its keys are gone; masks never cover two vectors."""
    start = pb.RoundStart()

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            start.CopyFrom(message.round_start)
        if message.WhichOneof("message") != "cohort_keys" or message.cohort_keys.round != 2:
            return [message]
        again = pb.CoordinatorMessage(round_start=start)
        again.round_start.round, again.round_start.attempt = number
        return [again]

    story = played(lie, prepare=over_when_all_have_refused)
    assert story.codes() == {code}
    second = [message for _, message in story.messages if message.round != 1]
    assert {message.WhichOneof("message") for message in second} == {"advertise_keys"}
    assert len(second) == PARTICIPANTS
    assert len(story.refusals) == PARTICIPANTS


def over_when_all_have_refused(where: Coordinator) -> None:
    """Refusals are held until all participants have sent one; then they end the attempt under way.

    So no clock decides how many there are: if one were missing, the attempt would end at its deadline without any.
    """
    kept: dict[int, tuple[Any, pb.Refusal, int]] = {}
    hand_on = where.study.refusal

    def refusal(session: Any, message: pb.Refusal, size: int) -> None:
        assert session.participant not in kept, "a second refusal"
        kept[session.participant] = session, message, size
        if len(kept) == PARTICIPANTS:
            for one, told, length in kept.values():
                told.round, told.attempt = 2, 1
                hand_on(one, told, length)

    where.study.refusal = refusal  # type: ignore[method-assign]


def _broadcasting(where: Coordinator, values: NDArray[np.float32]) -> None:
    learner = where.study._model._learner
    if values.shape != learner._vector.shape:
        learner._shapes = {"model": values.shape}
    learner._vector = values


@pytest.mark.parametrize(
    ("model", "reason", "code"),
    [
        ("other bytes", "doesn't have the digest", MISBEHAVED),
        ("too long", "longer than", MISBEHAVED),
        ("too short", "the model has 12 bytes", MISBEHAVED),
        ("absent", "no document", LOCAL_FAILURE),
    ],
)
def test_another_model(played: Play, model: str, reason: str, code: int) -> None:
    """The document under the model's digest is not the model: nothing is trained, uploaded or charged."""

    def prepare(where: Coordinator) -> None:
        document, dim = where.study.document, where.study._plan.dim
        if model == "too short":  # under its own digest
            _broadcasting(where, np.zeros(3, np.float32))
            return
        bad = {"other bytes": b"\1" * (4 * dim), "too long": bytes(4 * dim + 1), "absent": None}[model]

        def lying(sha256: bytes) -> bytes | None:
            return bad if sha256 == where.study._model_sha256 else document(sha256)

        where.study.document = lying  # type: ignore[method-assign]

    story = played(prepare=prepare)
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert story.codes() == {code}
    assert charged(story) == []
    assert reason in story.told()


def test_a_model_that_breaks_the_training_gets_an_answer_like_any_other(played: Play) -> None:
    """A failure of training may depend on an example: a refusal would reveal it without noise. Zeros are sent."""

    def prepare(where: Coordinator) -> None:
        _broadcasting(where, np.full(where.study._plan.dim, 3e38, np.float32))

    story = played(prepare=prepare)
    assert story.refusals == []
    first = {(who, message.WhichOneof("message")) for who, message in story.messages if message.round == 1}
    assert {who for who, kind in first if kind == "masked_input"} == set(range(PARTICIPANTS))
    assert story.of("round_completed")[0]["u3"] == PARTICIPANTS
    replies = [one.unmasking for _, one in story.messages if one.round == 1 and one.HasField("unmasking")]
    assert {len(reply.noise_seeds) for reply in replies} == {3}  # all, as in any round without dropouts
    assert "zeros are sent" in story.told()
    assert len(charged(story)) >= PARTICIPANTS
