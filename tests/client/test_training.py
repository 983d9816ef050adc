"""A task that fails, or returns what no contribution is, makes its participant send zeros: never a refusal."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from client.training import Contribution, LocalTraining, failure_summary
from learning.make_task import make_task
from mechanisms.encoder import InvalidUpdate, RoundingFailed
from mechanisms.evaluation import NO_METRICS
from mechanisms.model_step import STEP_BITS
from secagg.packing import packed_size
from tests.support.host_in_process import Play, Story
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE

SHAPES = {"weights": (2,), "bias": (1,)}
WEIGHTS, BIAS = np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)


class Returns:
    """A task that returns what it is made with."""

    contribution_shapes, dim = SHAPES, 3

    def __init__(self, found: Any) -> None:
        self._found = found

    def initial_parameters(self) -> Any:
        return {"weights": WEIGHTS, "bias": BIAS}

    def local_update(self, *_: Any) -> Any:
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found


def training(task: Any) -> LocalTraining:
    return LocalTraining(task, [1], None, structlog.get_logger())  # type: ignore[arg-type]  # nothing else is used


def trained(task: Any) -> tuple[Any, list[Any]]:
    """What a participant with that task would encode, and what its log says."""
    with structlog.testing.capture_logs() as logs:
        one = training(task)
        made = one.contribution({}, 1.0)
        one.tell()
    return None if made is None else made.update, logs


def test_a_contribution_as_it_was_stated() -> None:
    update, logs = trained(Returns({"weights": WEIGHTS, "bias": BIAS}))
    assert update.tolist() == [1, 2, 3]
    assert not logs


@pytest.mark.parametrize(
    "found",
    [
        {"bias": BIAS, "weights": WEIGHTS},
        {"weight": WEIGHTS, "bias": BIAS},
        {"weights": WEIGHTS[:, None], "bias": BIAS},
        {"weights": WEIGHTS},
        None,
        KeyError("a secret of an example"),
        SystemExit("a secret of an example"),
        KeyboardInterrupt("a secret of an example"),
        GeneratorExit("a secret of an example"),
        asyncio.CancelledError("a secret of an example"),
        concurrent.futures.CancelledError("a secret of an example"),
    ],
)
def test_anything_else_is_zeros_and_a_line_without_data(found: Any) -> None:
    update, logs = trained(Returns(found))
    assert update is None
    assert [(line["event"], line["log_level"]) for line in logs] == [("training failed, zeros are sent", "error")]
    assert "secret" not in str(logs)


def test_the_end_says_how_often_zeros_were_sent() -> None:
    """Each round's line is long gone by then, and the end looked like a success."""
    diverged = {"weights": WEIGHTS, "bias": BIAS * np.float32(np.nan)}
    task, told = Returns(None), []
    one = training(task)
    with structlog.testing.capture_logs() as logs:
        for found in ({"weights": WEIGHTS, "bias": BIAS}, ValueError("a secret of an example"), diverged):
            task._found = found
            one.contribution({}, 1.0)
            one.tell()
            told.append(failure_summary([one]))
    assert told[0] == ""
    assert re.fullmatch(r"your training failed in 1 of 2 rounds \(ValueError( at .+)?\): zeros .* charged", told[1])
    assert told[2] == "your training failed in 2 of 3 rounds (it diverged): zeros were sent, and charged"
    assert failure_summary([one, one]).startswith("training of 2 participants here failed in 4 of 6 rounds")
    assert "secret" not in str(logs)


LEAKS = """from dataclasses import dataclass
import sys
import numpy as np
from sordino import ModelTask, TaskOptions

@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    way: str = "note"

class Leaks(ModelTask):
    Options = Options

    def __init__(self, options):
        self.options = options

    def initial_parameters(self):
        return {"weights": np.zeros(2), "bias": np.zeros(1)}

    def local_update(self, parameters, data, rng, l2_clip):
        secret = "a secret " + "of an example"
        if self.options.way == "exit":
            sys.exit(secret)
        error = {"note": ValueError, "cause": KeyError}[self.options.way](secret)
        error.add_note(secret)
        raise error

    def evaluate(self, parameters, data):
        return {"loss": 0.0}
"""


@pytest.mark.parametrize(("way", "kind"), [("note", "ValueError"), ("exit", "SystemExit"), ("cause", "KeyError")])
def test_a_users_class_is_named_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    """What a task writes beside an error, notes included, may be of an example."""
    (tmp_path / "leaks.py").write_text(LEAKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "leaks", raising=False)
    update, logs = trained(make_task("leaks:Leaks", {"way": way}))
    assert update is None
    sys.modules.pop("leaks", None)
    assert [line["error"] for line in logs] == [kind]
    assert logs[0]["where"].startswith(f"{tmp_path / 'leaks.py'}, line ")
    assert "secret" not in str(logs)


class BreaksOn:
    """An encoder in a process that a task has told to raise what is a warning elsewhere."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def encode(self, update: Any, *_: Any) -> Any:
        if update is not None:
            raise self._error
        return "noise alone"


@pytest.mark.parametrize("kind", [InvalidUpdate, RoundingFailed, FloatingPointError, RuntimeWarning])
def test_what_can_not_be_encoded_is_noise_alone(kind: type[Exception]) -> None:
    """Whether clipping or rounding raises may depend on the data: a refusal would be an answer about it."""
    made = Contribution(np.zeros(3, np.float32), NO_METRICS)
    with structlog.testing.capture_logs() as logs:
        found = training(Returns(None)).encode(BreaksOn(kind("secret")), made)  # type: ignore[arg-type]
    assert found == "noise alone"
    assert [line["event"] for line in logs] == ["encoding failed, zeros are sent"]
    assert "secret" not in str(logs)


# ---------------------------------------------------------------- a coordinator that chooses the model


# Other lies of a coordinator are scripts of tests/adversary, each also against a client without the check.


def charged(story: Story) -> list[Any]:
    return [row for row in story.rows() if row.kind == CHARGE]


def test_a_model_that_is_not_there(played: Play) -> None:
    """Nothing is trained, uploaded or charged."""

    def prepare(where: Coordinator) -> None:
        document = where.study.document

        def lacking(sha256: bytes, held: bytes = b"") -> bytes | None:
            return None if sha256 == where.study._model_sha256 else document(sha256, held)

        where.study.document = lacking  # type: ignore[method-assign]

    story = played(prepare=prepare)
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert story.codes() == {pb.REFUSAL_CODE_LOCAL_FAILURE}
    assert charged(story) == []
    assert "no document" in story.told()


@pytest.mark.parametrize("change", ["none", "another value", "too short", "another length"])
def test_a_model_comes_as_a_step_from_the_one_before(played: Play, change: str) -> None:
    """Whatever the coordinator sends in its place: a step that makes another model costs a download, nothing else."""
    sent: list[tuple[bool, int]] = []  # whether a model was held, and the answer's length

    def prepare(where: Coordinator) -> None:
        document = where.study.document

        def watched(sha256: bytes, held: bytes = b"") -> bytes | None:
            found = document(sha256, held)
            if sha256 == where.study._model_sha256:
                assert found is not None
                if held and change != "none":
                    found = {"another value": found[:-1] + bytes([found[-1] ^ 1]), "too short": found[:10]}.get(
                        change, found + b"x"
                    )
                sent.append((bool(held), len(found)))
            return found

        where.study.document = watched  # type: ignore[method-assign]

    story = played(prepare=prepare)
    dim = story.of("study_started")[0]["plan"]["dim"]
    step = 4 + packed_size(dim, STEP_BITS)
    assert [one["u3"] for one in story.of("round_completed")] == [PARTICIPANTS, PARTICIPANTS]
    whole, other = (False, 4 * dim), {"another value": step, "too short": 10, "another length": step + 1}
    assert sent == [whole, (True, step)] if change == "none" else [whole, (True, other[change]), whole]
    assert ("the whole model is fetched" in story.told()) == (change != "none")


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
