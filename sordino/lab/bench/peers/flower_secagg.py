"""One round of Flower's SecAgg+ in this process: its CPU seconds, and whether its sum is right.

Run by the python of ``.venv-peers``; needs nothing of this repository. Flower's own ``SecAggPlusWorkflow`` and
``secaggplus_mod`` do all the work. What this file adds is what a network would do: a grid that hands every message
to its participant in memory. The clock runs inside Flower's code only; copying messages, making the inputs and
checking the sum are not counted, and neither are serialisation and transport, which this run doesn't have.

What is left out in Flower's favour: no model is sent down, the strategy doesn't average (the workflow's result is
taken as it is), logging is off, a dropped participant simply doesn't answer, and the process keeps to one core,
because Flower's thread pool for Shamir's scheme holds the interpreter lock and costs 4 % more on two.

Prints one JSON object. Exit status: 0 the sum is right, 1 it is wrong or the round was halted, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

# One BLAS thread; no messages to Flower's makers. Both are read when the packages are first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
PROTOCOL_RECORD = "secaggplus_configs"
CLIPPING_RANGE = 8.0  # Flower's defaults from here on
QUANTIZATION_RANGE = 1 << 22
MODULUS_RANGE = 1 << 32


class RoundHalted(RuntimeError):
    """Flower ended the round without a sum."""


@dataclass
class Clock:
    """CPU seconds of all threads, and wall seconds, inside the calls that were timed."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    def call(self, function: Any, *args: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return function(*args)
        finally:
            self.cpu_s += time.process_time() - cpu
            self.wall_s += time.perf_counter() - wall


def _never(*args: Any, **kwargs: Any) -> Any:
    """Stands for the abstract methods that the SecAgg+ workflow never calls."""
    raise RuntimeError("the SecAgg+ workflow needs one round in memory, no proxies, models or runs")


class UnusedProxy(ClientProxy):
    """A proxy that only carries its node number; the workflow calls no method of it."""

    get_properties = get_parameters = fit = evaluate = reconnect = _never

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node


class KeepTheSum(Strategy):
    """Select all participants, send no model, keep the workflow's result unaveraged."""

    initialize_parameters = configure_evaluate = aggregate_evaluate = evaluate = _never

    def __init__(self) -> None:
        self.result: Parameters | None = None

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        nothing = Parameters(tensors=[], tensor_type="numpy.ndarray")
        return [(proxy, FitIns(nothing, {})) for proxy in client_manager.all().values()]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        self.result = results[0][1].parameters
        return None, {}


@dataclass
class InMemoryGrid(Grid):
    """Deliver each message to its participant's mod, one after the other, and return the answers."""

    contents: dict[int, RecordDict]  # what each participant's training would return
    drop: int  # participants to lose before the masked input
    draw: random.Random
    clients: dict[int, Clock] = field(default_factory=dict)
    whole: Clock = field(default_factory=Clock)
    dropped: set[int] = field(default_factory=set)
    contexts: dict[int, Context] = field(default_factory=dict)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.whole.call(self._deliver_all, list(messages))

    def _deliver_all(self, messages: list[Message]) -> list[Message]:
        stage = messages[0].content.config_records[PROTOCOL_RECORD]["stage"]
        if stage == "collect_masked_vectors":
            self.dropped = set(self.draw.sample(sorted(self.contents), self.drop))
        living = [message for message in messages if message.metadata.dst_node_id not in self.dropped]
        return [self._deliver(message) for message in living]

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        # The participant's mod takes entries out of the record, and the workflow gives all of them the same one.
        record = message.content.config_records[PROTOCOL_RECORD]
        message.content = RecordDict({PROTOCOL_RECORD: ConfigRecord(dict(record), keep_input=True)})
        context = self.contexts.get(node)
        if context is None:
            context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            self.contexts[node] = context
        return self.clients.setdefault(node, Clock()).call(secaggplus_mod, message, context, self._train)

    def _train(self, message: Message, context: Context) -> Message:
        return Message(self.contents[message.metadata.dst_node_id], reply_to=message)

    set_run = push_messages = pull_messages = _never
    run = property(_never)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def get_node_ids(self) -> list[int]:
        return sorted(self.contents)


def one_round(clients: int, dim: int, drop: float, threshold: int, seed: int) -> dict[str, Any]:
    numbers = np.random.default_rng(seed)
    draw = random.Random(seed)
    nodes = draw.sample(range(1 << 32, 1 << 63), clients)
    inputs = {node: numbers.uniform(-1.0, 1.0, dim).astype(np.float32) for node in nodes}
    contents = {node: trained(vector) for node, vector in inputs.items()}

    strategy, manager = KeepTheSum(), SimpleClientManager()
    for node in nodes:
        manager.register(UnusedProxy(node))
    base = Context(run_id=1, node_id=SERVER_NODE, node_config={}, state=RecordDict(), run_config={})
    context = LegacyContext(base, config=ServerConfig(num_rounds=1), strategy=strategy, client_manager=manager)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    nothing = Parameters(tensors=[], tensor_type="numpy.ndarray")
    context.state.array_records[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(nothing, True)

    workflow = SecAggPlusWorkflow(
        num_shares=1.0,  # the complete graph
        reconstruction_threshold=threshold,
        max_weight=1.0,  # every input weighs 1: the whole quantisation range is used
        clipping_range=CLIPPING_RANGE,
        quantization_range=QUANTIZATION_RANGE,
        modulus_range=MODULUS_RANGE,
    )
    grid = InMemoryGrid(contents, drop=round(drop * clients), draw=draw)
    total = Clock()
    total.call(workflow, grid, context)
    if strategy.result is None:
        raise RoundHalted(f"Flower halted the round: {clients} participants, threshold {threshold}, drop {drop}")

    survivors = [node for node in nodes if node not in grid.dropped]
    (mean,) = parameters_to_ndarrays(strategy.result)
    expected = np.sum([inputs[node] for node in survivors], axis=0, dtype=np.float64)
    error = float(np.max(np.abs(mean * len(survivors) - expected)))
    # One step for the stochastic rounding and half a step for the float32 arithmetic before it, per survivor.
    tolerance = 1.5 * len(survivors) * 2 * CLIPPING_RANGE / QUANTIZATION_RANGE
    server_cpu, server_wall = total.cpu_s - grid.whole.cpu_s, total.wall_s - grid.whole.wall_s
    clients_cpu = math.fsum(clock.cpu_s for clock in grid.clients.values())
    survivors_cpu = math.fsum(grid.clients[node].cpu_s for node in survivors)
    return {
        "sum_ok": error <= tolerance,
        "max_error": error,
        "tolerance": tolerance,
        "dropped": len(grid.dropped),
        "survivors": len(survivors),
        "cpu_s": server_cpu + clients_cpu,
        "server_cpu_s": server_cpu,
        "client_cpu_s": survivors_cpu / len(survivors),
        "wall_s": server_wall + math.fsum(clock.wall_s for clock in grid.clients.values()),
    }


def trained(vector: np.ndarray) -> RecordDict:
    """What a participant's app returns to the mod: the vector, with weight 1."""
    answer = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), num_examples=1, metrics={})
    return recorddict_compat.fitres_to_recorddict(answer, keep_input=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, required=True, help="participants, 3 to 1024")
    parser.add_argument("--dim", type=int, required=True, help="values each of them adds")
    parser.add_argument("--drop", type=float, default=0.0, help="share lost before the masked input, below 0.5")
    parser.add_argument("--threshold", type=int, help="shares that rebuild a secret; default: half of all and 2")
    parser.add_argument("--seed", type=int, default=1, help="of inputs and dropouts; Flower draws its keys itself")
    given = parser.parse_args(arguments)
    if not 3 <= given.clients <= MODULUS_RANGE // QUANTIZATION_RANGE:
        parser.error("--clients: 3 to 1024, or the sum overflows Flower's default modulus")
    if given.dim < 1:
        parser.error("--dim: at least 1")
    if not 0.0 <= given.drop < 0.5:
        parser.error("--drop: at least 0 and below 0.5")
    # By default the least safe one with two colluders: floor((n + 2) / 2) + 1.
    threshold = (given.clients + 2) // 2 + 1 if given.threshold is None else given.threshold
    if not 2 <= threshold < given.clients:
        parser.error(f"--threshold: 2 to {given.clients - 1}")

    logging.disable(logging.CRITICAL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = SERVER_NODE
    random.seed(given.seed)  # Flower shuffles the participants with it
    try:
        one_round(5, 100, 0.2, 3, given.seed)  # warm-up, not counted
        figures = one_round(given.clients, given.dim, given.drop, threshold, given.seed)
    except RoundHalted as halted:
        print(halted, file=sys.stderr)
        return 1
    print(
        json.dumps(
            {
                "peer": "flower",
                **{name: getattr(given, name) for name in ("clients", "dim", "drop")},
                "threshold": threshold,
                **figures,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
                "settings": {
                    "clipping_range": CLIPPING_RANGE,
                    "quantization_range": QUANTIZATION_RANGE,
                    "modulus_range": MODULUS_RANGE,
                },
                "versions": {
                    **{name: version(name) for name in ("flwr", "cryptography", "pycryptodome", "numpy")},
                    "python": platform.python_version(),
                },
            }
        )
    )
    return 0 if figures["sum_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
