"""Ten nodes in this process, over a grid that a test can bend."""

from __future__ import annotations

import copy
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from structlog.testing import capture_logs

from client.saved_phases import SavedPhases
from runtime.failure import InputFailure
from secagg.saved_phases import open_phase
from sordino.flower import SecureAggregation, secure_aggregation_mod
from sordino.flower.messages import RECORD, Down, Up, digest_beside
from sordino.flower.mod import NO_ANSWER
from tests.flower.local_grid import LocalGrid
from tests.support.commands import in_a_process
from wire import coordinator_pb2 as pb

pytestmark = pytest.mark.xdist_group("processes")  # deadlines are short: no SuperNodes start beside it
NODES, DIM = 10, 30
STAGES = ("round_start", "cohort_keys", "neighbour_shares", "survivor_sets", "unmasking_request")


def app(step: Callable[[int], float] = lambda node: (1 + node) / 60, **returns: Any) -> Callable[[], ClientApp]:
    """Makes an app that adds ``step(node)`` to every value."""

    def make() -> ClientApp:
        one = ClientApp(mods=[secure_aggregation_mod])

        @one.train()
        def train(message: Message, context: Context) -> Message:
            added = step(int(context.node_config["partition-id"]))
            arrays = ArrayRecord([each + np.float32(added) for each in message.content["arrays"].to_numpy_ndarrays()])
            content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, "secret": added}), **returns}
            return Message(RecordDict(content), reply_to=message)

        @one.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)

        return one

    return make


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    options = ["--task", "external", "--task-option", f"dim={DIM}", "--dataset", "own", "--rounds", "4"]
    options += ["--participants", str(NODES), "--hosts", str(NODES), "--epsilon", "1000"]
    said = in_a_process("init", folder, *options).stdout
    assert "flwr run APP" in said
    assert "sordino serve" not in said  # Flower's messages are the sessions
    file = folder / "study.toml"
    file.write_text(re.sub(r"\b(15|20|60) (?= *#)", "10 ", file.read_text()))
    return folder


def bent(kind: type[LocalGrid], study: Path, make: Callable[[], ClientApp] = app()) -> Any:
    homes = sorted((study / "hosts").iterdir())
    return kind(make, {100 + at: {"partition-id": at, "sordino-home": str(one)} for at, one in enumerate(homes)})


def zeros() -> ArrayRecord:
    return ArrayRecord([np.zeros((4, 5), np.float32), np.zeros(10, np.float32)])


def run(study: Path, grid: LocalGrid, rounds: int = 1, strategy: Any = None) -> Any:
    wrapped = SecureAggregation(strategy or FedAvg(fraction_evaluate=0.0), study=study)
    result = wrapped.start(grid, zeros(), num_rounds=rounds)
    grid.settle()
    return result


def values(result: Any) -> np.ndarray:
    return np.concatenate([one.reshape(-1) for one in result.arrays.to_numpy_ndarrays()])


def in_ledger(home: Path) -> bool:
    with sqlite3.connect(home / "ledger.sqlite") as ledger:
        return bool(ledger.execute("SELECT count(*) FROM rows").fetchone()[0])


def kind_of(message: Message) -> str:
    down = Down.read(message.content)
    assert down is not None
    return str(pb.CoordinatorMessage.FromString(down.message).WhichOneof("message"))


def test_the_model_moves_by_the_mean_and_all_ledgers_know(study: Path) -> None:
    result = run(study, bent(LocalGrid, study), rounds=2)
    metrics = result.train_metrics_clientapp[2]
    noise = sum(one["noise-stddev"] ** 2 for one in result.train_metrics_clientapp.values()) ** 0.5
    assert set(metrics) == {"epsilon", "delta", "participants", "noise-stddev"}  # nothing of a node
    assert metrics["participants"] == NODES
    assert abs(values(result).mean() - 2 * 5.5 / 60) < 6 * noise / DIM**0.5 + 0.005  # clips, granularity
    assert f"{metrics['epsilon']:.4g}" in in_a_process("budget", "show", study).stdout
    transcripts = sorted((study / "coordinator" / "transcripts").glob("*.transcript"))
    in_a_process("transcript", "verify", *transcripts, "--authority", study / "coordinator" / "authority.pub")
    own = in_a_process("budget", "show", "--participant", study / "hosts" / "host-01")
    assert "rows, nothing changed" in own.stdout


def test_a_study_goes_on_and_ends(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = run(study, bent(LocalGrid, study), rounds=3)
    second = run(study, bent(LocalGrid, study), rounds=3)
    assert list(second.train_metrics_clientapp) == [1]  # the fourth round, on the model of the third
    assert values(second).mean() > values(first).mean()
    assert "the study is over: rounds done; more rounds need a new study" in caplog.text
    third = run(study, bent(LocalGrid, study))
    assert not third.train_metrics_clientapp
    np.testing.assert_array_equal(values(third), values(second))  # the study's model, not the app's beginning


def test_too_few_nodes_are_named_at_once(study: Path) -> None:
    file, grid = study / "study.toml", bent(LocalGrid, study)
    file.write_text(re.sub(r"max_attempts = \d+", "max_attempts = 1", file.read_text()))
    for node in range(102, 100 + NODES):
        del grid.contexts[node]
    with capture_logs() as lines:
        assert not run(study, grid).train_metrics_clientapp
    [told] = [one["event"] for one in lines if one["event"].startswith("the study needs")]
    assert told.startswith("the study needs 7 nodes, and there are 2: start more")


@pytest.mark.parametrize("stage", STAGES)
def test_nodes_killed_in_a_stage_leave_a_right_sum(study: Path, stage: str) -> None:
    class Killing(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            answer = super().visit(node, message)
            if node < 102 and kind_of(message) == stage:  # it has acted, and its answer is lost with it
                raise ConnectionError("killed")
            return answer

        def pull_messages(self, message_ids: Any) -> list[Message]:
            done = [one for one in message_ids if one in self._answers and self._answers[one].done()]
            return [self._answers.pop(one).result() for one in done if self._answers[one].exception() is None]

    grid = bent(Killing, study)
    result = run(study, grid)
    metrics = result.train_metrics_clientapp[1]
    in_the_sum = range(NODES) if stage in STAGES[3:] else range(2, NODES)
    found, steps = metrics["participants"], [(1 + one) / 60 for one in in_the_sum]
    assert 7 <= found <= len(steps)  # a busy machine may lose another one
    least, most, noise = np.mean(steps[:found]), np.mean(steps[-found:]), 6 * metrics["noise-stddev"] / DIM**0.5 + 0.005
    assert least - noise < values(result).mean() < most + noise


@pytest.fixture
def recorded(study: Path) -> tuple[LocalGrid, list[tuple[int, Message, Context]]]:
    """A grid after a round; every message, with the context that its node had then."""
    seen: list[tuple[int, Message, Context]] = []

    class Recording(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            seen.append((node, copy.deepcopy(message), copy.deepcopy(self.contexts[node])))
            return super().visit(node, message)

    grid = bent(Recording, study)
    run(study, grid)
    return grid, seen


def again(grid: LocalGrid, node: int, message: Message, context: Context) -> Up | None:
    """What a framework gets that goes back to an earlier context and delivers its message once more."""
    grid.contexts[node] = copy.deepcopy(context)
    answer = LocalGrid.visit(grid, node, copy.deepcopy(message))
    if answer.has_error():
        assert answer.error.reason == NO_ANSWER
        return None
    up = Up.read(answer.content)
    assert up is not None
    said = [pb.ParticipantMessage.FromString(one) for one in up.messages]
    return None if {one.WhichOneof("message") for one in said} <= {"refusal"} and not up.upload else up


@pytest.mark.parametrize("stage", STAGES)
def test_a_rolled_back_context_answers_nothing(recorded: Any, stage: str) -> None:
    grid, seen = recorded
    for node, message, context in [
        one for one in seen if one[1].content[RECORD]["message"] and kind_of(one[1]) == stage
    ][:3]:
        assert again(grid, node, message, context) is None


def test_it_would_if_states_were_not_single_use(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on a participant that keeps the keys of its states."""
    honest, kept = SavedPhases.resume, {}

    def naive(self: SavedPhases, sealed: bytes, config: Any, identity: Any) -> Any:
        if sealed not in kept:
            kept[sealed] = self._at(config, identity)[2]
            return honest(self, sealed, config, identity)
        return open_phase(sealed, config, identity, kept[sealed], os.urandom)

    monkeypatch.setattr(SavedPhases, "resume", naive)
    seen: list[tuple[int, Message, Context]] = []

    class Recording(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            if kind_of(message) == "survivor_sets":
                seen.append((node, copy.deepcopy(message), copy.deepcopy(self.contexts[node])))
            return super().visit(node, message)

    grid = bent(Recording, study)
    run(study, grid)
    assert again(grid, *seen[0]) is not None


def test_whatever_else_is_asked_is_refused_in_the_same_words(study: Path) -> None:
    grid = bent(LocalGrid, study)
    model = RecordDict({"arrays": zeros(), "config": ConfigRecord({})})
    for kind, content in (
        ("train", model),
        ("evaluate", model),
        ("train", RecordDict({RECORD: ConfigRecord({"x": 1})})),
    ):
        [answer] = grid.send_and_receive([Message(content, dst_node_id=100, message_type=kind)])
        assert answer.error.reason == NO_ANSWER
        assert not answer.has_content()


def test_a_node_trains_only_once_it_is_charged(study: Path) -> None:
    """A model that comes with an earlier message would show how long training takes, as often as one likes."""
    trained: list[int] = []

    def step(node: int) -> float:
        trained.append(node)
        return 0.0

    class Early(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            if "arrays" not in message.content:
                message.content["arrays"], message.content["config"] = zeros(), ConfigRecord({})
            answer = super().visit(node, message)
            assert kind_of(message) == "neighbour_shares" or not trained or node in done
            if kind_of(message) == "neighbour_shares":
                done.add(node)
            return answer

    done: set[int] = set()
    grid = bent(Early, study, app(step))
    run(study, grid)
    assert sorted(trained) == list(range(NODES))


def other_shape(content: RecordDict) -> None:
    content["arrays"] = ArrayRecord([np.zeros(DIM, np.float32)])


def no_round(content: RecordDict) -> None:
    """For an app that reads it, and fails without it."""
    content["config"] = ConfigRecord({})


def round_of_another_type(content: RecordDict) -> None:
    content["config"] = ConfigRecord({"server-round": 1.0})


@pytest.mark.parametrize("bend", [other_shape, no_round, round_of_another_type])
def test_something_else_for_all_but_one_leaves_nobody_alone(study: Path, bend: Callable[[RecordDict], None]) -> None:
    """Else the sum would hold one update among zeros."""

    class Bending(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            if "arrays" in message.content and node != 105:
                bend(message.content)
            return super().visit(node, message)

    grid = bent(Bending, study)
    result = run(study, grid)
    assert not result.train_metrics_clientapp  # all others refuse before they are charged
    assert not in_ledger(study / "hosts" / "host-01")
    assert in_ledger(study / "hosts" / "host-06")


def test_the_digest_of_what_nodes_train_with_tells_values_apart() -> None:
    def digest(**more: Any) -> bytes:
        return digest_beside(RecordDict({"arrays": zeros(), "config": ConfigRecord(more)}))

    assert digest(**{"server-round": 1}) == digest(**{"server-round": 2})
    others: list[dict[str, Any]] = [{}, {"server-round": 1}, {"server-round": 1.0}, {"server-round": "1"}]
    others += [{"names": one} for one in (["61"], [b"a"], [1], [1.0], 1, True)]
    assert len({digest(**one) for one in others}) == len(others)


def test_a_flipped_byte_on_the_way_excludes_nobody(study: Path) -> None:
    class Flipping(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            answer = super().visit(node, message)
            record = answer.content[RECORD] if answer.has_content() else {}
            if record.get("upload") and node == 103 and not self.flipped:
                self.flipped = True
                record["upload"] = record["upload"][:-1] + bytes([record["upload"][-1] ^ 1])
            return answer

        flipped = False

    grid = bent(Flipping, study)
    result = run(study, grid, rounds=2)
    assert [one["participants"] for one in result.train_metrics_clientapp.values()] == [NODES - 1, NODES]


def test_a_reply_of_another_kind_ends_nothing(study: Path) -> None:
    class Odd(LocalGrid):
        def visit(self, node: int, message: Message) -> Message:
            answer = super().visit(node, message)
            if node == 100:
                answer.content[RECORD] = ConfigRecord({"opened": 1})
            return answer

    grid = bent(Odd, study)
    assert 7 <= run(study, grid).train_metrics_clientapp[1]["participants"] < NODES


def test_an_app_that_fails_or_changes_shapes_sends_zeros(study: Path) -> None:
    def step(node: int) -> float:
        if node == 0:
            raise RuntimeError("data of a patient")
        return 1.0

    result = run(study, bent(LocalGrid, study, app(step)))
    metrics = result.train_metrics_clientapp[1]
    assert metrics["participants"] == NODES
    expected = 9 / 10 / np.sqrt(DIM)  # each update is clipped to norm 1
    assert abs(values(result).mean() - expected) < 6 * metrics["noise-stddev"] / DIM**0.5 + 0.005


def test_strategies_that_average_work_and_others_are_refused(study: Path) -> None:
    moved = run(study, bent(LocalGrid, study), strategy=FedAdam(fraction_evaluate=0.0, eta=0.5))
    assert np.isfinite(values(moved)).all()
    assert np.abs(values(moved)).max() > 0.1  # by about eta, whatever the mean's size
    with pytest.raises(TypeError, match="FedMedian reads each node's update"):
        SecureAggregation(FedMedian(), study=study)


def test_wrong_models_are_one_sentence(study: Path) -> None:
    wrapped = SecureAggregation(FedAvg(fraction_evaluate=0.0), study=study)
    counters = ArrayRecord([np.zeros(DIM, np.float32), np.zeros(1, np.int64)])
    with pytest.raises(ValueError, match="has no floats, and only floats can be averaged with noise"):
        wrapped.start(bent(LocalGrid, study), counters, num_rounds=1)
    with pytest.raises(InputFailure, match=f"plan is for {DIM} values, and the app's model has 7"):
        wrapped.start(bent(LocalGrid, study), ArrayRecord([np.zeros(7, np.float32)]), num_rounds=1)


def test_a_missing_mod_and_hosts_of_many_are_told(study: Path, caplog: pytest.LogCaptureFixture) -> None:
    def bare() -> ClientApp:
        one = ClientApp()

        @one.train()
        def train(message: Message, context: Context) -> Message:
            return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

        return one

    file = study / "study.toml"
    file.write_text(re.sub(r"connect_s = \d+", "connect_s = 2", file.read_text()))
    file.write_text(re.sub(r"max_attempts = \d+", "max_attempts = 1", file.read_text()))
    run(study, bent(LocalGrid, study, bare))
    assert "the round has no sum: Connecting: 0 participants are connected, 7 needed; does the app have" in caplog.text
    crowded = study.parent / "crowded"
    options = ["--task", "external", "--task-option", f"dim={DIM}", "--dataset", "own", "--participants", "20"]
    in_a_process("init", crowded, *options, "--hosts", "10", "--one-machine")
    with pytest.raises(InputFailure, match="a host of the study has 2 participants, and a Flower node is one"):
        run(crowded, bent(LocalGrid, study))


def test_the_digest_covers_all_but_values_and_the_round() -> None:
    def content(
        rate: float = 0.1, shape: tuple[int, ...] = (4, 5), round_: int = 1, name: str = "config"
    ) -> RecordDict:
        config = ConfigRecord({"rate": rate, "server-round": round_})
        return RecordDict({"arrays": ArrayRecord([np.ones(shape, np.float32)]), name: config})

    same = digest_beside(content())
    assert digest_beside(content(round_=7)) == same
    others = [content(rate=0.0), content(shape=(5, 4)), content(name="other")]
    assert len({same, *map(digest_beside, others)}) == 4
