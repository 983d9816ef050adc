"""Participants and a model that is missing, or that breaks their training: nothing they answer depends on their data.

Other lies, about models and numbers too, are scripts of tests/adversary, each also against a client without the check.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.host_in_process import Play, Story
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE


def charged(story: Story) -> list[Any]:
    return [row for row in story.rows() if row.kind == CHARGE]


def test_a_model_that_is_not_there(played: Play) -> None:
    """Nothing is trained, uploaded or charged."""

    def prepare(where: Coordinator) -> None:
        document = where.study.document

        def lacking(sha256: bytes) -> bytes | None:
            return None if sha256 == where.study._model_sha256 else document(sha256)

        where.study.document = lacking  # type: ignore[method-assign]

    story = played(prepare=prepare)
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert story.codes() == {pb.REFUSAL_CODE_LOCAL_FAILURE}
    assert charged(story) == []
    assert "no document" in story.told()


def test_a_model_that_breaks_the_training_gets_an_answer_like_any_other(played: Play) -> None:
    """A failure of training may depend on an example: a refusal would reveal it without noise. Zeros are sent."""

    def prepare(where: Coordinator) -> None:
        where.study._model._learner._vector = np.full(where.study._plan.dim, 3e38, np.float32)

    story = played(prepare=prepare)
    assert story.refusals == []
    first = {(who, message.WhichOneof("message")) for who, message in story.messages if message.round == 1}
    assert {who for who, kind in first if kind == "masked_input"} == set(range(PARTICIPANTS))
    assert story.of("round_completed")[0]["u3"] == PARTICIPANTS
    replies = [one.unmasking for _, one in story.messages if one.round == 1 and one.HasField("unmasking")]
    assert {len(reply.noise_seeds) for reply in replies} == {3}  # all, as in any round without dropouts
    assert "zeros are sent" in story.told()
    assert len(charged(story)) >= PARTICIPANTS
