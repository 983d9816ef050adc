"""Learning by votes: what is sent and how long it can be, what is asked, and what becomes of the answers."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import learning.tasks.votes as votes_module
from learning.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from learning.datasets import Dataset, load_part
from learning.make_task import clip_of, make_task
from learning.options import OptionError
from learning.parameters import flatten
from learning.public_random import PublicRandom
from learning.task import ModelTask
from learning.tasks.softmax_regression import SoftmaxOptions, SoftmaxRegression
from mechanisms.encoder import Encoder, mean_stddev
from tests.support.rounds_in_memory import learner_of, plan_of, run_round, run_without_noise

QUERIES = 6
OPTIONS: dict[str, Any] = {"features": 3, "classes": 3, "queries": QUERIES, "server_epochs": 30, "local_epochs": 20}


def clusters(count: int, seed: int) -> Dataset:
    """Three classes far apart: a model trained on a few of them is right about all."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    features = 3.0 * np.eye(3)[labels] + rng.normal(0, 0.3, (count, 3))
    return Dataset(features.astype(np.float32), labels.astype(np.int64))


PUBLIC = clusters(80, 0)
PEOPLE = [clusters(12, seed) for seed in range(1, 21)]


def task_of(**options: Any) -> Any:
    return make_task("votes", OPTIONS | options)


def votes_of(task: Any, queries: NDArray[np.float32], data: Dataset, seed: bytes = b"") -> NDArray[np.float64]:
    sent = task.local_update({"queries": queries}, data, PublicRandom(seed), 1.0)["votes"]
    assert sent.dtype == np.float32
    return np.asarray(sent, dtype=np.float64)


def test_one_vote_for_each_query() -> None:
    task = task_of()
    assert (task.dim, task.l2_sensitivity, clip_of(task, None)) == (18, math.sqrt(6), math.sqrt(6))
    queries = PUBLIC.features[:QUERIES]
    sent = votes_of(task, queries, PEOPLE[0])
    assert sent.sum(axis=1).tolist() == [1.0] * QUERIES
    assert sent.argmax(axis=1).tolist() == PUBLIC.labels[:QUERIES].tolist()
    assert np.linalg.norm(sent) == pytest.approx(task.l2_sensitivity)  # the bound is met
    again = votes_of(task_of(), queries, PEOPLE[0], b"another order")
    assert (again == sent).all()  # by any process, in any round


@settings(max_examples=50, deadline=None)
@given(
    features=arrays.arrays(np.float32, (4, 3), elements=st.floats(width=32)),
    queries=arrays.arrays(np.float32, (QUERIES, 3), elements=st.floats(width=32)),
    labels=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    count=st.integers(0, 4),
)
def test_no_data_and_no_queries_make_the_vote_longer(
    features: NDArray[np.float32], queries: NDArray[np.float32], labels: list[int], count: int
) -> None:
    task = task_of(local_epochs=1)
    data = Dataset(features[:count], np.array(labels[:count], dtype=np.int64))
    sent = votes_of(task, queries, data)
    assert np.isin(sent, (0.0, 1.0)).all()
    assert sent.sum() in (0, QUERIES)
    assert np.linalg.norm(sent) <= task.l2_sensitivity
    other = votes_of(task, queries, PEOPLE[0])  # the replacement sensitivity of the paper, for Q queries
    assert np.linalg.norm(sent - other) <= math.sqrt(2 * QUERIES) * (1 + 1e-12)


def test_who_cannot_train_votes_for_nothing() -> None:
    task = task_of()
    queries = PUBLIC.features[:QUERIES]
    broken = Dataset(np.full((2, 3), np.nan, dtype=np.float32), np.zeros(2, dtype=np.int64))
    for data in (broken, PUBLIC.take([])):
        assert not votes_of(task, queries, data).any()
    assert not votes_of(task, np.full_like(queries, np.inf), PEOPLE[0]).any()


def test_a_shorter_clip_would_change_the_count() -> None:
    """What the clip's default is for: half of sqrt(Q) halves all votes, and two halves are no vote."""
    task = task_of()
    with pytest.raises(OptionError, match="a clip of 1 would distort the sum"):
        clip_of(task, 1.0)
    sent = votes_of(task, PUBLIC.features[:QUERIES], PEOPLE[0]).reshape(-1)
    for clip in (math.sqrt(QUERIES), math.sqrt(QUERIES) / 2):
        encoder = Encoder(plan_of(task, 20, epsilon=60.0, clip=clip), bytes(32))
        assert np.linalg.norm(encoder._clipped(sent)) == pytest.approx(clip, rel=1e-6)


def test_a_round_costs_what_its_queries_cost_one_by_one() -> None:
    """Renyi cost of one vector of bound sqrt(Q) with Gaussian noise: Q times that of one query, alpha / 2 sigma^2."""
    task = task_of()
    plan = plan_of(task, 20, mechanism="gaussian", bits=30)
    orders = np.array([1.5, 2.0, 8.0, 32.0])
    one_query = orders / (2 * plan.central_stddev**2)
    assert plan.round_curve(plan.h_min)(orders) == pytest.approx(QUERIES * one_query, rel=1e-3)


def test_rounds_without_noise() -> None:
    task = task_of()
    learner = learner_of(task, PUBLIC)
    learner.prepare(6)
    asked = []
    for _ in range(6):
        asked.append(learner.broadcast()["queries"])
        run_without_noise(task, learner, PEOPLE)
    queries = np.concatenate(asked)
    rows = {row.tobytes(): label for row, label in zip(PUBLIC.features, PUBLIC.labels, strict=True)}
    truth = [rows[row.tobytes()] for row in queries]
    assert len(set(map(bytes, queries))) == 36  # nothing is asked twice
    assert learner.state()[1]["labels"].tolist() == truth
    assert learner.evaluate()["accuracy"] > 0.95
    released = learner.released()
    assert (released["statistic"], released["queries"], released["labelled"]) == ("votes", 36, 36)
    assert 0.9 < released["winning_share"] <= 1
    assert not learner.broadcast()["queries"].any()  # of the 40 in the pool 4 are left: too few for a round
    with pytest.raises(ValueError, match="all 40 public examples have been asked about"):
        learner.learn(np.zeros(task.dim), 20, 0.1)


def test_the_model_is_judged_on_what_was_never_asked() -> None:
    learner = learner_of(task_of(), PUBLIC)
    asked = set(map(bytes, learner._queries))
    judges = set(map(bytes, learner._judges.features))
    assert (len(asked), len(judges)) == (40, 40)
    assert not asked & judges
    other = learner_of(task_of(pool=0.25), PUBLIC)
    assert (len(other._queries), len(other._judges)) == (20, 60)
    assert set(map(bytes, other._queries)) <= asked  # the same public order


def test_labels_with_the_encoders_noise() -> None:
    """A winner loses where noise of deviation s sqrt(2) exceeds its lead, 6 of them at least, below:
    60 queries with 2 rivals each are all right but for 1.2e-7.
    """
    task = task_of(queries=30, pool=0.8)
    plan = plan_of(task, 20, rounds=2, epsilon=60.0)
    learner, exact = learner_of(task, PUBLIC), learner_of(task, PUBLIC)
    for _ in range(2):
        votes = np.sort(np.mean([votes_of(task, exact.broadcast()["queries"], one) for one in PEOPLE], axis=0))
        leads = votes[:, -1] - votes[:, -2]
        assert mean_stddev(plan, 20) * math.sqrt(2) * 6 < leads.min()
        run_round(task, learner, plan, PEOPLE)
        run_without_noise(task, exact, PEOPLE)
    assert learner.state()[1]["labels"].tolist() == exact.state()[1]["labels"].tolist()
    assert learner.evaluate() == exact.evaluate()


def test_doubtful_queries_are_left_out() -> None:
    task = task_of(confidence=0.6)
    learner = learner_of(task, PUBLIC)
    mean = np.zeros((QUERIES, 3))
    mean[:, 1] = [0.9, 0.59, 0.61, 0.2, -0.1, 0.7]
    learner.learn(mean.reshape(-1), 20, 0.05)
    assert learner.state()[1]["labels"].tolist() == [1, -1, 1, -1, -1, 1]
    assert learner.released()["labelled"] == 3
    assert learner_of(task_of(confidence=0.9), PUBLIC).evaluate()["loss"] == pytest.approx(math.log(3))
    every = learner_of(task_of(), PUBLIC)
    every.learn(mean.reshape(-1) - 0.2, 20, 0.05)  # with noise even a winner's share may be below 0
    assert every.state()[1]["labels"].tolist() == [1, 1, 1, 1, 0, 1]


def test_going_on_from_a_checkpoint(tmp_path: Any) -> None:
    task = task_of()
    first = learner_of(task, PUBLIC)
    run_without_noise(task, first, PEOPLE)
    save_checkpoint(tmp_path / "round.safetensors", Checkpoint(*first.state(), {}))
    loaded = load_checkpoint(tmp_path / "round.safetensors")
    second = learner_of(task_of(), PUBLIC)
    second.load_state(loaded.parameters, loaded.optimizer_state)
    second.prepare(6)
    assert second.released() == first.released()  # before a round has been learnt
    assert first.released()["winning_share"] > 0.5
    assert (second.broadcast()["queries"] == first.broadcast()["queries"]).all()
    assert second.evaluate() == first.evaluate()
    for learner in (first, second):
        run_without_noise(task, learner, PEOPLE)
    assert (flatten(first.state()[0]) == flatten(second.state()[0])).all()
    for labels in ([0.0] * 5, [3.0] * 6, [0.0] * 600, [[0.0] * 6]):
        with pytest.raises(ValueError, match="labels that don't fit"):
            second.load_state(loaded.parameters, {**loaded.optimizer_state, "labels": np.array(labels)})
    for share in ([], [1.5], [math.nan], [0.5, 0.5]):
        with pytest.raises(ValueError, match="winning share"):
            second.load_state(loaded.parameters, {**loaded.optimizer_state, "winning_share": np.array(share)})
    with pytest.raises(ValueError, match="another task's"):
        second.load_state({"mean": np.zeros(3, dtype=np.float32)}, loaded.optimizer_state)


def test_too_few_public_examples_are_told_before_the_first_round() -> None:
    learner = learner_of(task_of(), PUBLIC)
    with pytest.raises(OptionError, match=r"7 rounds of 6 queries need 42 .* 40 \(pool 0.5 of 80\).* queries to 5"):
        learner.prepare(7)
    with pytest.raises(OptionError, match="1 round of 600 queries"):
        learner_of(task_of(queries=600), PUBLIC).prepare(1)
    with pytest.raises(OptionError, match=r"shape \[28, 28\], task 'softmax-regression' takes \[3\]"):
        learner_of(task_of(), load_part("fashion-mnist-subset", "test"))


def test_examples_that_cannot_be_asked_about_are_refused() -> None:
    several = Dataset(PUBLIC.features, np.zeros((80, 2), dtype=np.int64))
    for data, told in ((several, "one label each"), (PUBLIC.take([]), "it has none: name a file of them")):
        with pytest.raises(OptionError, match=told):
            learner_of(task_of(), data)


@pytest.mark.parametrize("name", ["mlp", "cnn", "femnist-cnn"])
def test_every_classifier_votes(name: str) -> None:
    if name != "mlp":
        pytest.importorskip("torch")
    task = make_task("votes", {"of": name, "queries": 4, "classes": 10, "local_epochs": 1, "server_epochs": 1})
    data = load_part("fashion-mnist-subset", "train")
    learner = learner_of(task, load_part("fashion-mnist-subset", "test").take(range(60)))
    run_without_noise(task, learner, [data.take(range(start, start + 20)) for start in (0, 20)])
    assert learner.released()["labelled"] == 4
    assert 0 <= learner.evaluate()["accuracy"] <= 1


def test_a_round_of_queries_has_a_largest_size() -> None:
    """Whoever takes part keeps what the coordinator sends in memory until its digest is known."""
    pixels = {"features": 150_528, "classes": 2}
    assert make_task("votes", pixels | {"queries": 445}).initial_parameters()["queries"].size <= 1 << 26
    with pytest.raises(OptionError, match=r"'queries' is 446: .* at most 67108864 are taken; lower it"):
        make_task("votes", pixels | {"queries": 446})


def test_words_are_no_queries() -> None:
    pytest.importorskip("torch")
    with pytest.raises(OptionError, match="task 'lstm' is of words"):
        make_task("votes", {"of": "lstm"})


def test_local_models_are_kept_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, train = list[int](), votes_module._trained  # ids: what is trained on must be free to go
    monkeypatch.setattr(votes_module, "_trained", lambda task, *more: trained.append(id(more[0])) or train(task, *more))
    monkeypatch.setattr(votes_module, "_MOST_KEPT", 3)
    votes_module._models_of.cache_clear()
    task = task_of()
    queries = PUBLIC.features[:QUERIES]
    for data in [*PEOPLE[:3]] * 2:
        votes_of(task, queries, data)
    assert len(trained) == 3
    votes_of(task, queries, PEOPLE[3])
    assert len(task._models._kept) == 3
    votes_of(task, queries, PEOPLE[0])  # the one that was asked longest ago
    assert len(trained) == 5
    votes_of(task, queries, clusters(5, 99))  # gone when this line is over
    gc.collect()
    assert len(task._models._kept) == 2


def test_many_at_once_vote_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who can't: one without examples, and one whose training diverges. Studies that differ in queries share."""
    wild = Dataset(np.full((4, 3), 1e30, dtype=np.float32), np.arange(4) % 3)
    data = [*PEOPLE[:4], PUBLIC.take([]), wild]
    orders = [PublicRandom(bytes([place])) for place in range(len(data))]
    queries = {"queries": PUBLIC.features[:QUERIES]}
    votes_module._models_of.cache_clear()
    alone = [flatten(task_of().local_update(queries, one, rng)) for one, rng in zip(data, orders, strict=True)]
    votes_module._models_of.cache_clear()
    monkeypatch.setattr(votes_module, "_trained", None)
    together = task_of().local_updates(queries, data, orders)
    np.testing.assert_array_equal(together, alone)
    assert together.sum(axis=1).tolist() == [QUERIES] * 4 + [0, 0]
    monkeypatch.setattr(SoftmaxRegression, "local_updates", None)
    fewer = {"queries": PUBLIC.features[: QUERIES - 1]}
    voted = task_of(queries=QUERIES - 1).local_updates(fewer, data, orders)
    np.testing.assert_array_equal(voted, together[:, : voted.shape[1]])


def test_options_of_both_are_written_and_read_again() -> None:
    task = task_of(server_rate=0.25, client_rate=0.5)
    written = task.options.to_mapping()
    assert written["of"] == "softmax-regression"
    assert make_task("votes", written).options == task.options
    assert (task.server.options.client_rate, task.server.options.local_epochs) == (0.25, 30)
    assert (task._local.options.client_rate, task._local.options.local_epochs) == (0.5, 20)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        *((name, {}, f"trains a classifier; task '{name}' doesn't") for name in ("histogram", "synthetic", "votes")),
        ("nothing", {}, "option 'of': task 'nothing' is unknown"),
        ("softmax-regression", {"quaries": 3}, "unknown option 'quaries'.*; of votes: confidence, of, pool, queries"),
        ("softmax-regression", {"queries": 0}, "from 1 to 10000"),
        ("softmax-regression", {"pool": 1}, "above 0 and below 1"),
        ("softmax-regression", {"sparsity": 0.5}, "counts for the method lus"),
        ("softmax-regression", {"method": "blur"}, "option 'method' is not for votes"),
        ("softmax-regression", {"client_schedule": "linear"}, "option 'client_schedule' is not for votes"),
        ("softmax-regression", {"classifier": 1}, "unknown option 'classifier'"),
        ("tests.learning.test_votes:NoClassifier", {}, "a task with classes, example_shape, evaluate and predict"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make_task("votes", {"of": name, **options})


def test_the_method_of_earlier_releases_names_the_task() -> None:
    with pytest.raises(OptionError, match=r"'ae-dpfl' is now the task votes, .*: --task votes --task-option of=NAME"):
        make_task("mlp", {"method": "ae-dpfl", "queries": 3})


class NoClassifier(ModelTask):
    """Has options of training and no classes."""

    Options = SoftmaxOptions
    initial_parameters = lambda *_: {"weights": np.zeros(1, np.float32)}  # type: ignore[assignment] # noqa: E731
    local_update = evaluate = lambda *_: {}  # type: ignore[assignment]

    def __init__(self, options: Any) -> None:
        self.options = options
