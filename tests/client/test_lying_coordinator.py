"""Participants and a coordinator that lies within an attempt: each refuses with a code that reveals nothing about its
data, logs the reason, and sends nothing further.

Lies about members, sets, signatures and order are scripts of tests/adversary, each also against a client without the
check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.host_in_process import Play, Story
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE

MISBEHAVED, LOCAL_FAILURE = pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED, pb.REFUSAL_CODE_LOCAL_FAILURE


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
    [("too short", "the model has 12 bytes", MISBEHAVED), ("absent", "no document", LOCAL_FAILURE)],
)
def test_another_model(played: Play, model: str, reason: str, code: int) -> None:
    """A document that is no model, or none: nothing is trained, uploaded or charged."""

    def prepare(where: Coordinator) -> None:
        document = where.study.document
        if model == "too short":  # under its own digest
            _broadcasting(where, np.zeros(3, np.float32))
            return

        def lacking(sha256: bytes) -> bytes | None:
            return None if sha256 == where.study._model_sha256 else document(sha256)

        where.study.document = lacking  # type: ignore[method-assign]

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
