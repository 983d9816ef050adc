"""Policies over real gRPC: what a refusal gives away, when a host comes back, and a budget over several studies."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import client.connection
import client.policy
import server.study
import server.trained_model
from client.host_file import load
from client.policy import task_digest
from tests.client.conftest import refused
from tests.support.host_in_process import Play, Story, ledger_of, play, rows_of
from tests.support.study_in_process import make_folder
from wire import coordinator_pb2 as pb
from wire.records.ledger import read_ledger
from wire.records.ledger_rows import epsilon

POLICY = pb.REFUSAL_CODE_POLICY


def completed(story: Story) -> list[int]:
    return [event["round"] for event in story.of("round_completed")]


# ---------------------------------------------------------------- what leaves the client


@dataclass
class Sent:
    """Everything a client hands to gRPC: the bytes of every message, and metadata."""

    messages: list[tuple[str, bytes]] = field(default_factory=list)  # kind, bytes
    metadata: list[tuple[str, int]] = field(default_factory=list)  # name, length

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.messages}

    def shape(self) -> set[tuple[str, int]]:
        """Kinds with their sizes. How often each was sent hangs on who was quick, also under one policy."""
        return {(kind, len(data)) for kind, data in self.messages} | set(self.metadata)

    def everything(self) -> bytes:
        return b"".join(data for _, data in self.messages)


class RecordingChannel:
    """A channel that notes what goes through it."""

    def __init__(self, channel: Any, sent: Sent) -> None:
        self._channel, self._sent = channel, sent

    def __getattr__(self, kind: str) -> Any:
        given = getattr(self._channel, kind)
        if kind not in ("stream_stream", "stream_unary", "unary_stream", "unary_unary"):
            return given

        def opened(method: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
            def serialize(message: Any) -> bytes:
                data = bytes(message) if request_serializer is None else request_serializer(message)
                self._sent.messages.append((kind_of(method, data), data))
                return data

            call = given(method, request_serializer=serialize, response_deserializer=response_deserializer)

            def noted(*arguments: Any, **options: Any) -> Any:
                self._sent.metadata += [(name, len(value)) for name, value in options.get("metadata", ())]
                return call(*arguments, **options)

            return noted

        return opened


def kind_of(method: str, data: bytes) -> str:
    if not method.endswith("/Session"):
        return method.rpartition("/")[2]
    message = pb.ParticipantMessage.FromString(data)
    kind = message.WhichOneof("message") or "nothing"
    return f"{kind} {message.phase.WhichOneof('message')}" if kind == "phase" else kind


def recorded(folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Story, Sent]:
    work.mkdir()
    sent, opened = Sent(), client.connection.open_channel

    def open_channel(*arguments: Any, **options: Any) -> Any:
        return RecordingChannel(opened(*arguments, **options), sent)

    with monkeypatch.context() as patch:
        patch.setattr(client.connection, "open_channel", open_channel)
        story = play(folder, work, patch, **settings)
    return story, sent


SECRET = "5e" * 32
NEVER = "03:00-03:01"


@pytest.fixture
def afternoon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's clock says 15:00."""
    here = time.struct_time((2027, 1, 15, 15, 0, 0, 4, 15, 0))
    clock = SimpleNamespace(time=time.time, localtime=lambda at: here, strftime=time.strftime)
    monkeypatch.setattr(client.policy, "time", clock)


@pytest.fixture(scope="module")
def accepted(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Sent]:
    """A whole study under a policy of few limits."""
    with pytest.MonkeyPatch.context() as patch:
        return recorded(study_folder, tmp_path_factory.mktemp("accepted") / "study", patch)


def says_nothing_of(sent: Sent) -> None:
    for text in (SECRET, NEVER, "max_epsilon", "hours", "policy"):
        assert text.encode() not in sent.everything()
    assert bytes.fromhex(SECRET) not in sent.everything()


def test_a_refused_study_gets_an_opening(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {"max_epsilon": {"max_epsilon": 7.0}, "digest": {"study_digests": (SECRET,), "min_cohort": 7}}
    shapes = []
    for name, policy in policies.items():
        story, sent = recorded(study_folder, tmp_path / name, monkeypatch, policy=policy)
        refused(story, "refused by this host's policy: ")
        assert sent.kinds() == {"open", "proof", "Download"}
        says_nothing_of(sent)
        shapes.append(sent.shape())
    assert shapes[0] == shapes[1]


def test_a_refused_round_gets_a_code_whatever_the_policy_and_the_data(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, afternoon: None
) -> None:
    cases: dict[str, dict[str, Any]] = {
        "hours": {"policy": {"hours": (NEVER,)}},
        "model": {"policy": {"model_digests": (SECRET,)}},
        "other data": {"policy": {"hours": (NEVER,)}, "data": {"seed": 77, "partition": "iid"}},
    }
    shapes = []
    for name, changes in cases.items():
        story, sent = recorded(study_folder, tmp_path / name, monkeypatch, **changes)
        assert story.codes() == {POLICY}
        assert story.ended == 0  # the client stays to the end
        assert sent.kinds() == {"open", "proof", "ready", "Download", "refusal"}
        says_nothing_of(sent)
        for kind, data in sent.messages:
            if kind == "refusal":  # nothing but its code: not a byte more than these fields make
                refusal = pb.ParticipantMessage.FromString(data).refusal
                only = pb.Refusal(round=refusal.round, attempt=refusal.attempt, code=POLICY)
                assert data == pb.ParticipantMessage(refusal=only).SerializeToString()
        assert story.rows() == []
        shapes.append(sent.shape())
    assert shapes[0] == shapes[1] == shapes[2]


def test_an_accepted_study_gets_the_same_whatever_the_policy(
    accepted: tuple[Story, Sent], study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, afternoon: None
) -> None:
    many: dict[str, Any] = {
        "hours": ("14:00-16:00", NEVER),
        "max_rounds_per_day": 9,
        "max_epsilon_total": 5000.0,
        "max_epsilon": 4000.0,
        "tasks": ("mlp", "softmax-regression"),
        "mechanisms": ("ddgauss", "skellam"),
        "min_cohort": 5,
    }
    shapes, counts = [], []
    for story, sent in (accepted, recorded(study_folder, tmp_path / "many", monkeypatch, policy=many)):
        assert story.ended == 0
        assert completed(story) == [1, 2]
        says_nothing_of(sent)
        shapes.append(sent.shape())
        counts.append(Counter(kind for kind, _ in sent.messages if kind != "phase unmasking"))
    assert shapes[0] == shapes[1]
    assert counts[0] == counts[1]
    assert {"phase advertise_keys", "phase masked_input", "phase unmasking", "Upload"} <= {one for one, _ in shapes[0]}


def test_what_a_policy_may_pin_is_shown(accepted: tuple[Story, Sent], study_folder: Path) -> None:
    [said] = [entry for entry in accepted[0].logs if entry["event"] == "study accepted"]
    options = dict(load(study_folder / "hosts" / "host-01").task)
    assert said["task_sha256"] == task_digest("softmax-regression", options).hex()
    [study] = read_ledger(ledger_of(accepted[0].journal))[2].studies
    assert said["study_sha256"] == study


# ---------------------------------------------------------------- refused for now


@pytest.mark.parametrize(
    ("clip", "code", "reason"),
    [
        (1.5, POLICY, "clip: updates are clipped to 1.5, max_clip allows 1.25"),
        (math.nan, pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED, "a clip must lie between"),
    ],
    ids=["too large", "no number"],
)
def test_clips_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: Play, clip: float, code: int, reason: str
) -> None:
    """The plan's first clips keep to the policy; the coordinator chooses those of each round."""
    folder = make_folder(tmp_path / "study", clip_update="geometric", clip=1.0)

    def written(model: Any, *_: Any) -> bytes:
        return model.astype("<f4").tobytes() + np.array([clip], "<f8").tobytes()

    monkeypatch.setattr(server.trained_model, "write_model", written)
    story = played(folder=folder, prepare=quick, policy={"max_clip": 1.25})
    assert story.ended == 0
    assert story.codes() == {code}
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert any(reason in one for one in story.reasons()), story.reasons()
    assert story.rows() == []


def quick(where: Any) -> None:
    where.study._pace.configured_s["MaskedInputCollection"] = 0.5


@dataclass
class Clock:
    """The client's clock, moved when the coordinator begins an attempt."""

    hours: Sequence[int]  # by attempt
    begun: list[tuple[int, int]] = field(default_factory=list)
    strftime = staticmethod(time.strftime)
    time = staticmethod(time.time)

    def localtime(self, _: float) -> time.struct_time:
        return time.struct_time((2027, 1, 15, self.hours[max(len(self.begun) - 1, 0)], 0, 0, 4, 15, 0))

    def lie(self, _: int, message: pb.CoordinatorMessage) -> Iterator[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            number = (message.round_start.round, message.round_start.attempt)
            if number not in self.begun:
                self.begun.append(number)
        yield message


def test_after_its_hours_have_come_it_takes_part(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock((12, 21, 23, 23))
    monkeypatch.setattr(client.policy, "time", clock)
    story = played(clock.lie, attempts=3, policy={"hours": ("22:00-06:00",)})
    assert story.ended == 0
    assert story.codes() == {POLICY}
    assert clock.begun == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert completed(story) == [1, 2]
    rules = {entry["rule"] for entry in story.logs if entry["event"] == "refused by policy"}
    assert rules == {"hours"}
    assert any("it is 12:00 here, hours allows 22:00-06:00" in reason for reason in story.reasons())
    assert {(row.round, row.attempt) for row in story.rows()} == {(1, 3), (2, 1)}


def test_a_round_that_is_drawn_out_past_the_hours(played: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again before the charge: who only asks when a round begins uploads at any hour the coordinator likes."""
    clock = Clock((23, 23))

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "neighbour_shares":
            clock.hours = (6, 6)
        return [message]

    monkeypatch.setattr(client.policy, "time", clock)
    story = played(lie, prepare=quick, policy={"hours": ("22:00-06:00",)})
    assert story.codes() == {POLICY}
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert any("it is 06:00 here" in reason for reason in story.reasons())
    assert story.rows() == []


# ---------------------------------------------------------------- a budget over studies


def total_of(ledger: Path) -> float:
    [together] = read_ledger(ledger)[2].across_studies()
    return epsilon(together.order, together.renyi, 0.1, together.draws)


def test_a_second_study_over_the_total_is_refused(accepted: tuple[Story, Sent], tmp_path: Path, played: Play) -> None:
    """Another name, another coordinator, another journal, after a restart; the same ledger.

    Without a total it would begin at nothing: see test_policy.test_a_renamed_study_gets_no_fresh_budget.
    """
    ledger = ledger_of(accepted[0].journal)
    limit, rows = 1.05 * total_of(ledger), rows_of(ledger)
    renamed = make_folder(tmp_path / "eight", name="eight")
    story = played(folder=renamed, host={"ledger": ledger}, policy={"max_epsilon_total": limit})
    refused(story, "epsilon-in-total: the 2 rounds of the study's plan would bring epsilon")
    assert rows_of(ledger) == rows  # before anything is paid
