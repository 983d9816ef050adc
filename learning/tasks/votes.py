"""Learning by votes: participants label public examples with local models, and only the noised votes are summed.

Source: AE-DPFL of [ZYT+20]: each participant trains on its own data from the public initial weights and votes for one
class of each query. The class with the most noised votes becomes the query's label, and a global model is trained on
the labelled queries. One vector holds the one-hot votes on all Q queries of a round. Against zero its norm is at most
sqrt(Q), met when the participant votes on all of them, whatever the size of the model; composing Q queries of
sensitivity 1 with the same noise costs the same. (Two participants' vectors differ by at most sqrt(2 Q), the
replacement sensitivity of the paper.) Labels, the model trained on them and every threshold on them are
post-processing.

Queries come from the coordinator's own pool with its labels dropped; no figure is of an example that was a query.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf
from typing import Any, ClassVar, Final, Protocol, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.learner import Learner, State
from learning.make_task import make_task, model_shapes, options_of
from learning.options import OF_UPDATES, OptionError, TaskOptions, require
from learning.parameters import Floats, Parameters, Shapes, check_shapes, dimension, flatten, shapes_of, views
from learning.public_random import PublicRandom, Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task import BatchedTask, Classifier, Task
from learning.task_names import CLASSIFIER, TASKS, VOTES, check_task_name
from mechanisms.statement import LARGEST_DIM
from runtime.text import counted

LARGEST_QUESTIONS: Final = 1 << 26
"""Most values, float32, of all queries of one round."""
_MOST_KEPT_BYTES: Final = 1 << 28
"""Of local models that one process keeps, so that no model is trained anew in each round."""
_MOST_KEPT: Final = 4096
_NOT_USED: Final = -1
"""Label of a query whose votes were too close to call."""
_UNREAD: Final = TaskOptions()
_LOCAL: Final = b"local model"  # orders the examples of every participant


@dataclass(frozen=True, kw_only=True)
class VoteOptions(TaskOptions):
    """Options of votes, and of the classifier that votes, as one mapping.

    Attributes:
        of: the classifier: a task's name, or ``module:Class``.
        queries: Q, examples that are voted on in a round, 1 to 10,000.
        pool: share of the coordinator's own examples that may become queries, above 0 and below 1. The rest judge the
            model.
        confidence: least estimated share of the participants for the winning class of a query; below it the query is
            left out. 0 takes all. It is judged on the noised votes, and so costs no privacy.
        server_epochs: passes of the global model over all labelled queries, from the initial weights, 1 to 1,000.
        server_rate: its step size; 0 takes the classifier's client_rate.
        server_batch_size: its examples a step; 0 takes the classifier's batch_size.
        classifier: options of the task ``of``, but for those of updates: local models are trained by dp-fedavg.
    """

    of: str = CLASSIFIER
    queries: int = 20
    pool: float = 0.5
    confidence: float = 0.0
    server_epochs: int = 20
    server_rate: float = 0.0
    server_batch_size: int = 0
    classifier: TaskOptions = _UNREAD
    _ranges: ClassVar = {"queries": (1, 10_000), "server_epochs": (1, 1_000), "server_batch_size": (0, 65_536)}

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            check_task_name(self.of)
        except ValueError as error:
            raise OptionError(f"option 'of': task {self.of!r} {error}") from None
        require(0 < self.pool < 1, "pool", self.pool, "above 0 and below 1")
        require(0 <= self.confidence < 1, "confidence", self.confidence, "at least 0 and below 1")
        rate = self.server_rate
        require(math.isfinite(rate) and rate >= 0, "server_rate", rate, "finite and at least 0")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """Read options of votes and of the classifier; a classifier that ships is not made for it.

        Raises OptionError: as `TaskOptions.from_mapping`; also a task that trains no classifier, and a model or queries
        of a size that no participant would take.
        """
        known = {field.name for field in fields(cls)} - {"classifier"}
        votes = super().from_mapping({name: value for name, value in options.items() if name in known})
        rest = {name: value for name, value in options.items() if name not in known}
        trains = votes.of != VOTES and {"local_epochs", "client_rate", "batch_size"} <= {
            field.name for field in fields(options_of(votes.of, {}))
        }
        if not trains:
            raise OptionError(f"votes are of a task that trains a classifier; task {votes.of!r} doesn't")
        for name in OF_UPDATES:
            if name in rest:
                raise OptionError(f"option {name!r} is not for votes: it is about updates of a model; leave it out")
        try:
            made = replace(votes, classifier=options_of(votes.of, rest))
        except OptionError as error:
            if "Known options: " in str(error):
                error.message += f"; of votes: {', '.join(sorted(known))}"
            raise
        if votes.of in TASKS:
            values = dimension(model_shapes(votes.of, rest))
            if values > LARGEST_DIM:
                raise OptionError(f"task {votes.of!r} has a model of {values} values; at most {LARGEST_DIM} are tried")
        if made.example_shape is not None:
            check_questions(made.queries, made.example_shape)
        return made

    def to_mapping(self) -> dict[str, bool | int | float | str]:
        """As `TaskOptions.to_mapping`, the classifier's options among them."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "classifier"}
        return own | {name: value for name, value in self.classifier.to_mapping().items() if name != "method"}

    def for_one_step(self) -> dict[str, bool | int | float | str]:
        """One query, and one step of the classifier."""
        trained = {name: value for name, value in self.classifier.for_one_step().items() if name != "method"}
        return self.to_mapping() | trained | {"queries": 1}

    @property
    def example_shape(self) -> tuple[int, ...] | None:
        return self.classifier.example_shape

    @property
    def classes(self) -> int | None:
        """The classifier's; None where its options don't state them."""
        return getattr(self.classifier, "classes", None)

    def for_the_server(self) -> dict[str, bool | int | float | str]:
        """Options of the classifier as the global model is trained."""
        options = self.classifier.to_mapping() | {"local_epochs": self.server_epochs}
        options.pop("local_steps", None)
        if self.server_rate:
            options["client_rate"] = self.server_rate
        if self.server_batch_size:
            options["batch_size"] = self.server_batch_size
        return options


def check_questions(queries: int, example_shape: Sequence[int]) -> None:
    """What the coordinator may send each round stays in memory until its digest is known.

    Raises OptionError: all queries of a round together are too large.
    """
    values = queries * math.prod(example_shape)
    if values > LARGEST_QUESTIONS:
        raise OptionError(
            f"option 'queries' is {queries}: of examples with {math.prod(example_shape)} values a round would have "
            f"{values}, and at most {LARGEST_QUESTIONS} are taken; lower it"
        )


class _TrainedClassifier(Task, Classifier, Protocol):
    """What votes need of the classifier; for static types alone."""


class Votes:
    """A task whose participants vote with a classifier instead of sending changes of a model."""

    Options: Final = VoteOptions

    name: Final = VOTES

    def __init__(self, options: VoteOptions) -> None:
        """
        Raises OptionError: the task ``of`` is no classifier of images or rows, or its queries are too large.
        """
        self._local = _classifier(options.of, options.classifier.to_mapping())
        self.options = replace(options, classifier=self._local.options)  # with the digest of a backbone
        check_questions(options.queries, self._local.example_shape)
        self.server = _classifier(options.of, options.for_the_server())
        self.queries, self.classes = options.queries, int(self._local.classes)
        self.contribution_shapes: Shapes = {"votes": (self.queries, self.classes)}
        self.dim = self.queries * self.classes
        self.l2_sensitivity = math.sqrt(self.queries)
        self._models = _models_of(type(self._local), self._local.options)

    @classmethod
    def stated_shapes(cls, options: VoteOptions) -> Shapes:
        """Names and shapes of a contribution; the classifier is made only where its options state no classes."""
        classes = cls(options).classes if options.classes is None else options.classes
        return {"votes": (options.queries, classes)}

    def initial_parameters(self) -> Parameters:
        """Return zeros shaped as a round's queries: float32 (Q, *example_shape).

        Only the coordinator has the queries themselves: its learner broadcasts them, from the first round on.
        """
        return {"queries": np.zeros((self.queries, *self._local.example_shape), dtype=np.float32)}

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Return one participant's votes on the queries, float32 (Q, classes): one 1 in each row, else 0.

        The participant's model is the same in every round: it begins from the public initial weights, and a fixed
        public seed orders the examples. So it is kept in memory between rounds. A participant without examples, or
        whose training diverged, votes for nothing. Raises ValueError: queries, labels or shapes that don't fit the
        task.
        """
        check_shapes(parameters, shapes_of(self.initial_parameters()))
        votes = np.zeros((self.queries, self.classes), dtype=np.float32)
        model = self._models.of(data, self._local) if len(data) else None
        queries = parameters["queries"]
        if model is None or not np.isfinite(queries).all():
            return {"votes": votes}
        chosen = np.asarray(self._local.predict(model, queries))
        votes[np.arange(self.queries), np.clip(chosen, 0, self.classes - 1)] = 1
        return {"votes": votes}

    def local_updates(
        self,
        parameters: Parameters,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float = inf,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """As `learning.task.BatchedTask.local_updates`; models are trained at once if the classifier can do that."""
        self._models.train(data, self._local)
        votes = np.empty((len(data), self.dim), dtype=np.float32) if out is None else out
        for place, (one, rng) in enumerate(zip(data, rngs, strict=True)):
            votes[place] = self.local_update(parameters, one, rng, l2_clip)["votes"].reshape(-1)
        return votes

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> VoteLearner:
        """Return the coordinator's half: the labelled queries and the model trained on them.

        Raises OptionError: the coordinator's examples don't fit, or are too few for one round.
        """
        return VoteLearner(self, data)

    def check_form(self, data: Dataset) -> None:
        """Raise ``ValueError`` unless examples have the classifier's shape and labels."""
        check = getattr(self._local, "check_form", None)
        if check is not None:
            check(data)

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self._local.example_shape


def _classifier(name: str, options: Mapping[str, object]) -> _TrainedClassifier:
    made = make_task(name, options)
    if not isinstance(made, Classifier):
        raise OptionError(
            f"votes are of a task with classes, example_shape, evaluate and predict (learning.task.Classifier); task "
            f"{name!r} has none"
        )
    if np.issubdtype(getattr(made, "example_dtype", np.float32), np.integer):
        raise OptionError(f"votes are on images or rows of numbers of one label each; task {name!r} is of words")
    return made


def _trained(task: _TrainedClassifier, data: Dataset, purpose: bytes) -> Parameters | None:
    """A model trained from the task's initial weights in a public order of the examples; None where it diverged."""
    initial = task.initial_parameters()
    change = task.local_update(initial, data, PublicRandom(b"ae-dpfl", purpose), math.inf)
    model = {name: initial[name] + change[name] for name in initial}
    return model if np.isfinite(flatten(model)).all() else None


class _LocalModels:
    """Models of the participants of this process, each kept while its data set is; the least recently used are dropped.

    None where training diverged.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Dataset, Parameters | None] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, data: Dataset, task: _TrainedClassifier) -> Parameters | None:
        """Return the task's model trained on ``data``; it is trained now if it isn't kept."""
        with self._lock:
            if data in self._kept:
                model = self._kept[data] = self._kept.pop(data)
                return model
        model = _trained(task, data, _LOCAL)  # not under the lock: others of this process train meanwhile
        self._keep(data, model, task)
        return model

    def train(self, data: Sequence[Dataset], task: _TrainedClassifier) -> None:
        """Train the models that aren't kept, as many as will be, at once if the task can do that."""
        if not isinstance(task, BatchedTask):
            return
        with self._lock:
            missing = [one for one in data if len(one) and one not in self._kept][: _most_kept(task)]
        if not missing:
            return
        initial = task.initial_parameters()
        orders = [PublicRandom(b"ae-dpfl", _LOCAL) for _ in missing]
        models = task.local_updates(initial, missing, orders, math.inf) + flatten(initial)
        for one, model in zip(missing, models, strict=True):
            whole = np.isfinite(model).all()
            self._keep(one, views(model.copy(), shapes_of(initial), writable=True) if whole else None, task)

    def _keep(self, data: Dataset, model: Parameters | None, task: _TrainedClassifier) -> None:
        """As the one used last."""
        with self._lock:
            self._kept.pop(data, None)
            self._kept[data] = model
            while len(self._kept) > _most_kept(task):
                del self._kept[next(iter(self._kept))]


def _most_kept(task: _TrainedClassifier) -> int:
    return min(_MOST_KEPT, max(_MOST_KEPT_BYTES // (4 * task.dim), 1))


@lru_cache(maxsize=2)
def _models_of(classifier: type, options: TaskOptions) -> _LocalModels:
    """Shared by the studies of this process that train the same models: simulations differ in queries and noise."""
    return _LocalModels()


class VoteLearner(Learner):
    """The coordinator's half: queries out, noised votes in, a model trained on the labels that they give."""

    def __init__(self, task: Votes, data: Dataset) -> None:
        """
        ``data``: the coordinator's own; a public shuffle splits it into queries and examples that judge the model.

        Raises OptionError: the examples don't fit the task, or are too few for one round.
        """
        if not len(data):
            raise OptionError("votes are on the coordinator's own examples, and it has none: name a file of them")
        if data.features.shape[1:] != task.example_shape:
            raise OptionError(
                f"votes are on the coordinator's own examples: they have shape {list(data.features.shape[1:])}, task "
                f"{task.options.of!r} takes {list(task.example_shape)}"
            )
        if data.labels.ndim != 1:
            raise OptionError("votes need examples of one label each; the coordinator's have several")
        self._task, self._options = task, task.options
        order = PublicRandom(b"ae-dpfl", b"queries").permutation(len(data))
        size = math.floor(self._options.pool * len(data))
        self._queries = data.features[order[:size]].astype(np.float32)
        if data.features.dtype == np.uint8:
            self._queries /= np.float32(255)  # pixels in 0..1
        self._judges = data.take(np.sort(order[size:]))
        self._labels = np.zeros(0, dtype=np.int64)
        self._winning_share = 0.0  # mean over the queries of the round learnt last, of the winning class
        self._model = task.server.initial_parameters()

    def prepare(self, rounds: int) -> None:
        """Raise OptionError: the pool holds fewer queries than ``rounds`` need."""
        needed, pool = rounds * self._task.queries, len(self._queries)
        if needed > pool:
            raise OptionError(
                f"{counted(rounds, 'round')} of {self._task.queries} queries need {needed} public examples; the "
                f"coordinator has {pool} (pool {self._options.pool:g} of {pool + len(self._judges)}): lower queries to "
                f"{max(pool // rounds, 1)}, ask in fewer rounds, or raise pool"
            )
        if not len(self._judges):
            raise OptionError("option 'pool' leaves no example to judge the model by: lower it")

    def broadcast(self) -> Parameters:
        """The next round's queries, float32 (Q, *example_shape); zeros where none are left, after the last round."""
        begin = len(self._labels)
        queries = self._queries[begin : begin + self._task.queries]
        # A transcript of the last round names what a next one would begin from, and there need be none.
        return {"queries": queries.copy()} if len(queries) == self._task.queries else self._task.initial_parameters()

    def learn(self, mean: Floats, survivors: int, stddev: float = 0.0) -> None:
        """Label the round's queries and train the model anew on all labels so far.

        Raises ValueError: the mean doesn't fit or isn't finite, or no queries were left to ask; nothing changes then.
        """
        begin, count = len(self._labels), self._task.queries
        if mean.shape != (self._task.dim,) or not np.isfinite(mean).all():
            raise ValueError(f"a mean of votes is {self._task.dim} finite numbers")
        if begin + count > len(self._queries):
            raise ValueError(f"all {len(self._queries)} public examples have been asked about: plan fewer rounds")
        votes = mean.reshape(count, self._task.classes)
        winning = votes.max(axis=1)
        least = self._options.confidence or -math.inf  # noise may leave all classes of a query below 0
        labels = np.where(winning >= least, votes.argmax(axis=1), _NOT_USED)
        self._labels = np.concatenate([self._labels, labels.astype(np.int64)])
        self._winning_share = float(np.clip(winning.mean(), 0, 1))
        used, server = np.flatnonzero(self._labels != _NOT_USED), self._task.server
        labelled = Dataset(self._queries[used], self._labels[used])
        trained = _trained(server, labelled, b"global model") if used.size else None
        self._model = trained or server.initial_parameters()

    def evaluate(self) -> dict[str, float]:
        """Figures of the model on those of the coordinator's examples that are never queries."""
        return self._task.server.evaluate(self._model, self._judges)

    def released(self) -> dict[str, Any]:
        """How many queries were labelled; the model is in the checkpoints, with the labels."""
        if not len(self._labels):
            return {}
        return {
            "statistic": "votes",
            "queries": len(self._labels),
            "labelled": int(np.count_nonzero(self._labels != _NOT_USED)),
            "winning_share": self._winning_share,
        }

    def state(self) -> tuple[Parameters, State]:
        """The model, the labels of all queries so far, and the winning share of the round learnt last."""
        labels = self._labels.astype(np.float64)
        return dict(self._model), {"labels": labels, "winning_share": np.array([self._winning_share])}

    def load_state(self, parameters: Parameters, state: Mapping[str, Floats]) -> None:
        """Raises ValueError: another task's."""
        labels, share = state.get("labels"), state.get("winning_share")
        known = set(state) == {"labels", "winning_share"} and shapes_of(parameters) == shapes_of(self._model)
        if labels is None or share is None or not known:
            raise ValueError("the checkpoint holds another task's model or labels")
        usable = labels.ndim == 1 and len(labels) <= len(self._queries) and len(labels) % self._task.queries == 0
        if not usable or not np.isin(labels, np.arange(_NOT_USED, self._task.classes)).all():
            raise ValueError("the checkpoint holds labels that don't fit the task")
        if share.shape != (1,) or not 0 <= share[0] <= 1:
            raise ValueError("the checkpoint holds a winning share that isn't one number from 0 to 1")
        self._model, self._labels, self._winning_share = dict(parameters), labels.astype(np.int64), float(share[0])
