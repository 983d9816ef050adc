"""The ServerApp's side: a wrapper for an existing strategy.

The wrapped strategy configures training and takes the mean of a round as if it were one node's answer. It never sees a
node's own update, and neither does this process.
"""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid, strategy as flower
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from learning.learner import Learner, State
from learning.parameters import Parameters, flatten
from learning.tasks.external import External, SyntheticOptions, bound
from learning.tasks.flower_arrays import arrays_of, check_arrays
from sordino.flower.coordinator import GridCoordinator
from sordino.flower.messages import digest_beside, to_record

_READS_EACH: Final = tuple(
    found
    for name in (
        *("Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg"),
        *("DifferentialPrivacyClientSideAdaptiveClipping", "DifferentialPrivacyClientSideFixedClipping"),
        *("DifferentialPrivacyServerSideAdaptiveClipping", "DifferentialPrivacyServerSideFixedClipping"),
    )
    if (found := getattr(flower, name, None)) is not None
)


class SecureAggregation(Strategy):
    """A strategy whose rounds are secure sums with distributed noise.

    It fits strategies that average, such as FedAvg, FedProx, FedAvgM, FedAdam, FedYogi and FedAdagrad. Each participant
    counts alike, whatever its number of examples. All nodes are asked: the study's plan says who is in a round.
    """

    def __init__(self, strategy: Strategy, study: str | Path) -> None:
        """
        Args:
            strategy: configures training, and takes the mean as one node's answer.
            study: the folder that `sordino init --task external` made, or its study.toml.

        Raises TypeError: the strategy reads each node's own update.
        """
        if isinstance(strategy, _READS_EACH):
            raise TypeError(
                f"{type(strategy).__name__} reads each node's update or adds noise itself: wrap a strategy that "
                "averages, such as FedAvg or FedAdam"
            )
        self._inner, self._folder = strategy, Path(study).expanduser()
        self._coordinator: GridCoordinator | None = None
        self._learner: _ArraysLearner | None = None
        self._result: tuple[ArrayRecord | None, MetricRecord | None] = (None, None)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Run the whole round; returns no message."""
        self._result = (None, None)
        configured = list(self._inner.configure_train(server_round, arrays, config, grid))
        if not configured:
            return []
        content = configured[0].content
        key, values = arrays_of(content)
        if self._coordinator is None:
            check_arrays(values)
            self._learner = _ArraysLearner(self._inner, content)
            task = External(SyntheticOptions(dim=len(flatten(values))))
            task.learns = self._learner
            self._coordinator = GridCoordinator(self._folder, task)
        coordinator, learner = self._coordinator, self._learner
        assert learner is not None  # noqa: S101  # made with the coordinator
        try:
            learner.begin(server_round, configured[0])
            content[key] = learner.arrays
            event = coordinator.one_round(grid, content)
        except RuntimeError as error:
            log(WARNING, "sordino: %s", error)
            self._result = learner.arrays, None  # the study's model, as its last finished round left it
            return []
        metrics = MetricRecord(
            {
                "epsilon": event.epsilon_coordinator,
                "delta": coordinator.configuration.privacy.delta,
                "participants": event.u3,
                "noise-stddev": learner.stddev,
            }
        )
        self._result = learner.arrays, metrics
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the round learnt; its metrics are those of the sum, since a node's own would say more."""
        return self._result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No message: nodes refuse to evaluate, since no noise would protect their answers."""
        if getattr(self._inner, "fraction_evaluate", 0.0) and server_round == 1:
            log(WARNING, "sordino: nodes don't evaluate, as no noise would protect their answers: use evaluate_fn")
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Log the wrapped strategy's settings, and the study's folder."""
        self._inner.summary()
        log(INFO, "\t└──> Secure aggregation, study: %s", self._folder)

    def start(self, *args: Any, **more: Any) -> Result:
        """As `flwr.serverapp.strategy.Strategy.start`; the study is closed afterwards."""
        try:
            return super().start(*args, **more)
        finally:
            if self._coordinator is not None:
                self._coordinator.close()
                self._coordinator = None


class _ArraysLearner(Learner):
    """The model as Flower's arrays, changed by the wrapped strategy.

    A checkpoint holds the model, and not what the strategy keeps besides, such as momentum.
    """

    def __init__(self, strategy: Strategy, content: RecordDict) -> None:
        """``content``: of a training message."""
        self._strategy, self.stddev = strategy, 0.0
        self._key, self._like = arrays_of(content)
        self._vector, self._beside = flatten(self._like), digest_beside(content)
        self._round = 0
        self._asked: Message | None = None

    @property
    def arrays(self) -> ArrayRecord:
        return to_record(self._vector, self._like)

    def begin(self, server_round: int, asked: Message) -> None:
        """Raises RuntimeError: nodes would get something else to train with than in the rounds before."""
        if digest_beside(asked.content) != self._beside:
            raise RuntimeError(
                "the configuration for training, or the form of the model, changed between rounds: nodes read the "
                "round's number from server-round, and all else stays"
            )
        self._round, self._asked = server_round, asked

    def broadcast(self) -> Parameters:
        return {"vector": self._vector, "bound": bound(self._beside)}

    def learn(self, mean: NDArray[np.floating[Any]], survivors: int, stddev: float = 0.0) -> None:
        asked, strategy = self._asked, self._strategy
        assert asked is not None  # noqa: S101  # a round was asked for
        counted = MetricRecord({getattr(strategy, "weighted_by_key", "num-examples"): survivors})
        model = to_record(self._vector + mean.astype(np.float32), self._like)
        one = Message(RecordDict({self._key: model, "metrics": counted}), reply_to=asked)
        arrays, _ = strategy.aggregate_train(self._round, [one])
        if arrays is not None:
            self._vector, self.stddev = flatten({name: each.numpy() for name, each in arrays.items()}), stddev

    def state(self) -> tuple[Parameters, State]:
        return {"vector": self._vector}, {}

    def load_state(self, parameters: Parameters, state: Any) -> None:
        self._vector = parameters["vector"]
