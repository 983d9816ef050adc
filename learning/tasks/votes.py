"""Learning by votes: participants label public examples with models of their own, and only the noised votes are summed.

Source: AE-DPFL of [ZYT+20]: each participant trains on her own data from the public initial weights, votes for one
class of each query, and the class with most noised votes becomes the query's label; a global model is trained on the
queries so labelled. One vector holds the one-hot votes on all Q queries of a round. Against zero its norm is at most
sqrt(Q), met whenever she votes on all of them, whatever the size of the model; composing Q queries of sensitivity 1
with the same noise costs the same. (Two participants' vectors differ by at most sqrt(2 Q), the replacement sensitivity
of the paper.) Labels, the model trained on them and every threshold on them are post-processing.

Queries come from the coordinator's own pool with its labels dropped; figures are never of examples that were queries.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.learner import State
from learning.options import AE_DPFL, OptionError, TaskOptions, require
from learning.parameters import Parameters, check_shapes, flatten, shapes_of
from learning.public_random import PublicRandom, Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task import Classifier

LARGEST_QUESTIONS: Final = 1 << 26
"""Most values, float32, of all queries of one round."""
_MOST_KEPT_BYTES: Final = 1 << 28
"""Of local models that one process keeps, so that nobody trains anew in each round."""
_MOST_KEPT: Final = 256
_NOT_USED: Final = -1
"""Label of a query whose votes were too close to call."""


@dataclass(frozen=True, kw_only=True)
class VoteOptions(TaskOptions):
    """Options of votes, besides those of the task that is voted on (without its method).

    Attributes:
        queries: Q, examples that are voted on in a round, 1 to 10,000.
        pool: share of the coordinator's own examples that may become queries, above 0 and below 1. The rest judge the
            model.
        confidence: least estimated share of the participants for the winning class of a query; below it the query is
            left out. 0 takes all. It is judged on the noised votes, and so costs no privacy.
        server_epochs: passes of the global model over all labelled queries, from the initial weights, 1 to 1,000.
        server_rate: its step size; 0 takes the task's client_rate.
        server_batch_size: its examples a step; 0 takes the task's batch_size.
    """

    queries: int = 20
    pool: float = 0.5
    confidence: float = 0.0
    server_epochs: int = 20
    server_rate: float = 0.0
    server_batch_size: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.queries <= 10_000, "queries", self.queries, "from 1 to 10000")
        require(0 < self.pool < 1, "pool", self.pool, "above 0 and below 1")
        require(0 <= self.confidence < 1, "confidence", self.confidence, "at least 0 and below 1")
        require(1 <= self.server_epochs <= 1_000, "server_epochs", self.server_epochs, "from 1 to 1000")
        rate = self.server_rate
        require(math.isfinite(rate) and rate >= 0, "server_rate", rate, "finite and at least 0")
        require(0 <= self.server_batch_size <= 65_536, "server_batch_size", self.server_batch_size, "from 0 to 65536")


class VoteTaskOptions:
    """Options of votes and of the task that is voted on, as one mapping."""

    def __init__(self, votes: VoteOptions, base: TaskOptions) -> None:
        self.votes, self.base = votes, base

    def to_mapping(self) -> dict[str, bool | int | float | str]:
        """Every option with its value, ready for a study file."""
        base = {name: value for name, value in self.base.to_mapping().items() if name != "method"}
        return {"method": AE_DPFL, **self.votes.to_mapping(), **base}


def check_questions(queries: int, example_shape: Sequence[int]) -> None:
    """What the coordinator may send each round stays in memory until its digest is known.

    Raises:
        OptionError: all queries of a round together are too large.
    """
    values = queries * math.prod(example_shape)
    if values > LARGEST_QUESTIONS:
        raise OptionError(
            f"option 'queries' is {queries}: of examples with {math.prod(example_shape)} values a round would have "
            f"{values}, and at most {LARGEST_QUESTIONS} are taken; lower it"
        )


class Votes:
    """A classification task whose participants vote instead of sending changes of a model."""

    def __init__(self, name: str, local: Any, server: Any, options: VoteTaskOptions) -> None:
        """
        Args:
            name: under which `learning.make_task.make_task` knows the classification task.
            local: that task, as participants train it.
            server: the same, as the global model is trained.
        """
        self.name, self.options, self._local, self._server = name, options, local, server
        self.queries, self.classes = options.votes.queries, int(local.classes)
        self.contribution_shapes = {"votes": (self.queries, self.classes)}
        self.dim = self.queries * self.classes
        self.l2_sensitivity = math.sqrt(self.queries)
        self._models = _LocalModels()

    @classmethod
    def over(cls, name: str, kind: Any, given: Mapping[str, object]) -> Votes:
        """Make it from a task's class and the options of both.

        Raises:
            OptionError: an unknown option or a value outside its range, or a task that is no classification.
        """
        known = VoteOptions().to_mapping()
        votes = VoteOptions.from_mapping({key: value for key, value in given.items() if key in known})
        rest = {key: value for key, value in given.items() if key not in known and key != "method"}
        training = dict(kind.Options().to_mapping())
        if not {"local_epochs", "client_rate", "batch_size"} <= set(training):
            raise OptionError(f"method {AE_DPFL!r} is for tasks that train a classifier; task {name!r} doesn't")
        try:
            base = kind.Options.from_mapping(rest)
        except OptionError as error:
            if str(error).startswith("unknown option"):
                raise OptionError(f"{error}; of the method: {', '.join(known)}") from None
            raise
        local = kind(base)
        if not isinstance(local, Classifier):
            raise OptionError(
                f"method {AE_DPFL!r} needs a task with classes, example_shape and predict (learning.task.Classifier); "
                f"task {name!r} has none"
            )
        if np.issubdtype(getattr(local, "example_dtype", np.float32), np.integer):
            raise OptionError(
                f"method {AE_DPFL!r} asks about images or rows of numbers of one label each; task {name!r} is of words"
            )
        check_questions(votes.queries, local.example_shape)
        changed: dict[str, object] = {"local_epochs": votes.server_epochs}
        if hasattr(base, "local_steps"):
            changed["local_steps"] = 0
        if votes.server_rate:
            changed["client_rate"] = votes.server_rate
        if votes.server_batch_size:
            changed["batch_size"] = votes.server_batch_size
        server = kind(kind.Options.from_mapping({**rest, **changed}))
        return cls(name, local, server, VoteTaskOptions(votes, base))

    def initial_parameters(self) -> Parameters:
        """Return zeros shaped as a round's queries: float32 (Q, *example_shape).

        The queries themselves only the coordinator has: its learner broadcasts them, from the first round on.
        """
        return {"queries": np.zeros((self.queries, *self._local.example_shape), dtype=np.float32)}

    def local_update(
        self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = math.inf
    ) -> Parameters:
        """Return one participant's votes on the queries, float32 (Q, classes): one 1 in each row, else 0.

        Her model is the same in every round: it begins from the public initial weights, and a fixed public seed orders
        her examples. So it is kept in memory between rounds. Who has no example, or whose training diverged, votes for
        nothing.

        Raises:
            ValueError: queries, labels or shapes that don't fit the task.
        """
        check_shapes(parameters, shapes_of(self.initial_parameters()))
        votes = np.zeros((self.queries, self.classes), dtype=np.float32)
        model = self._models.of(data, self._train) if len(data) else None
        queries = parameters["queries"]
        if model is None or not np.isfinite(queries).all():
            return {"votes": votes}
        chosen = np.asarray(self._local.predict(model, queries))
        votes[np.arange(self.queries), np.clip(chosen, 0, self.classes - 1)] = 1
        return {"votes": votes}

    def _train(self, data: Dataset) -> Parameters | None:
        return _trained(self._local, data, b"local model")

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> VoteLearner:
        """The labelled queries and the model trained on them.

        Raises:
            OptionError: the coordinator's examples don't fit, or are too few for one round.
        """
        return VoteLearner(self, data)

    # ------------------------------------------------------------ for the learner

    def initial_model(self) -> Parameters:
        """The public weights that all models begin from."""
        begun: Parameters = self._server.initial_parameters()
        return begun

    def train_global(self, data: Dataset) -> Parameters:
        """Train the global model from the initial weights; where that diverges, they are returned."""
        return _trained(self._server, data, b"global model") or self.initial_model()

    def evaluate(self, model: Parameters, data: Dataset) -> dict[str, float]:
        """Accuracy and loss of a model."""
        found: dict[str, float] = self._server.evaluate(model, data)
        return found

    def check_form(self, data: Dataset) -> None:
        """As of the task that is voted with: raise ``ValueError`` unless examples are of its shape, and labelled."""
        check = getattr(self._local, "check_form", None)
        if check is not None:
            check(data)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Of one query."""
        shape: tuple[int, ...] = self._local.example_shape
        return shape


def _trained(task: Any, data: Dataset, purpose: bytes) -> Parameters | None:
    """A model trained from the task's initial weights in a public order of the examples; None where it diverged."""
    initial = task.initial_parameters()
    change = task.local_update(initial, data, PublicRandom(b"ae-dpfl", purpose), math.inf)
    model = {name: initial[name] + change[name] for name in initial}
    return model if np.isfinite(flatten(model)).all() else None


class _LocalModels:
    """Models of the participants of this process, the least recently used ones let go.

    They are known by the very data set object, and forgotten with it.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[weakref.ref[Dataset], Parameters | None]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, data: Dataset, train: Any) -> Parameters | None:
        """The model trained on ``data``; trained now where it isn't kept."""
        with self._lock:
            found = self._kept.get(id(data))
            if found is not None and found[0]() is data:
                self._kept.move_to_end(id(data))
                return found[1]
        model: Parameters | None = train(data)  # not under the lock: others of this process train meanwhile
        size = 0 if model is None else sum(array.nbytes for array in model.values())
        most = min(_MOST_KEPT, _MOST_KEPT_BYTES // max(size, 1))
        with self._lock:
            self._kept[id(data)] = (weakref.ref(data), model)
            for key in [key for key, (reference, _) in self._kept.items() if reference() is None]:
                del self._kept[key]
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return model


class VoteLearner:
    """The coordinator's half: queries out, noised votes in, a model trained on the labels that they give."""

    def __init__(self, task: Votes, data: Dataset) -> None:
        """
        Args:
            data: the coordinator's own; a public shuffle parts it into queries and examples to judge the model by.

        Raises:
            OptionError: the examples don't fit the task, or are too few for one round.
        """
        if not len(data):
            raise OptionError(
                f"method {AE_DPFL!r} asks about examples of the coordinator's own, and it has none: name a file of them"
            )
        if data.features.shape[1:] != task.example_shape:
            raise OptionError(
                f"method {AE_DPFL!r} asks about the coordinator's own examples: they have shape "
                f"{list(data.features.shape[1:])}, task {task.name!r} takes {list(task.example_shape)}"
            )
        if data.labels.ndim != 1:
            raise OptionError(f"method {AE_DPFL!r} needs examples of one label each; the coordinator's have several")
        self._task, self._options = task, task.options.votes
        order = PublicRandom(b"ae-dpfl", b"queries").permutation(len(data))
        size = math.floor(self._options.pool * len(data))
        self._queries = _as_float(data.features[order[:size]])
        self._judges = data.take(np.sort(order[size:]))
        self._labels = np.zeros(0, dtype=np.int64)
        self._winning_share = 0.0  # mean over the queries of the round learnt last, of the winning class
        self._model = task.initial_model()
        self.prepare(1)

    def prepare(self, rounds: int) -> None:
        """Raises OptionError: the pool holds fewer queries than ``rounds`` need."""
        needed, pool = rounds * self._task.queries, len(self._queries)
        if needed > pool:
            raise OptionError(
                f"{rounds} rounds of {self._task.queries} queries need {needed} public examples; the coordinator has "
                f"{pool} (pool {self._options.pool:g} of {pool + len(self._judges)}): lower queries to "
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

    def learn(self, mean: NDArray[np.floating[Any]], survivors: int, stddev: float = 0.0) -> None:
        """Label the round's queries and train the model anew on all labels so far.

        Raises:
            ValueError: the mean doesn't fit or isn't finite, or no queries were left to ask; nothing changes then.
        """
        begin, count = len(self._labels), self._task.queries
        if mean.shape != (self._task.dim,) or not np.isfinite(mean).all():
            raise ValueError(f"a mean of votes is {self._task.dim} finite numbers")
        if begin + count > len(self._queries):
            raise ValueError(f"all {len(self._queries)} public examples have been asked about: plan fewer rounds")
        votes = mean.reshape(count, self._task.classes)
        winning = votes.max(axis=1)
        labels = np.where(winning >= self._options.confidence, votes.argmax(axis=1), _NOT_USED)
        self._labels = np.concatenate([self._labels, labels.astype(np.int64)])
        self._winning_share = float(np.clip(winning.mean(), 0, 1))
        self._model = self._retrained()

    def _retrained(self) -> Parameters:
        used = np.flatnonzero(self._labels != _NOT_USED)
        if not used.size:
            return self._task.initial_model()
        return self._task.train_global(Dataset(self._queries[used], self._labels[used]))

    def evaluate(self) -> dict[str, float]:
        """Figures of the model on those of the coordinator's examples that are never queries."""
        return self._task.evaluate(self._model, self._judges)

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

    def load_state(self, parameters: Parameters, state: Mapping[str, NDArray[np.floating[Any]]]) -> None:
        """Raises ValueError: another task's."""
        labels, share = state.get("labels"), state.get("winning_share")
        known = set(state) == {"labels", "winning_share"} and shapes_of(parameters) == shapes_of(self._model)
        if labels is None or share is None or not known:
            raise ValueError("the checkpoint holds another task's model or labels")
        usable = labels.ndim == 1 and len(labels) <= len(self._queries) and len(labels) % self._task.queries == 0
        if not usable or not np.isin(labels, np.arange(_NOT_USED, self._task.classes)).all():
            raise ValueError("the checkpoint holds labels that don't fit the task")
        if share.shape != (1,) or not 0 <= share[0] <= 1:
            raise ValueError("the checkpoint holds a winning share that is none")
        self._model, self._labels, self._winning_share = dict(parameters), labels.astype(np.int64), float(share[0])


def _as_float(examples: NDArray[Any]) -> NDArray[np.float32]:
    """Pixels as they are sent: bytes become shares of 255."""
    if examples.dtype == np.uint8:
        return examples.astype(np.float32) / np.float32(255)
    return examples.astype(np.float32)
