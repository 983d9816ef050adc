"""Seconds of a round in Flower's simulation: FedAvg as it is, with Flower's SecAgg+, and with sordino.flower.

Run by the python of ``.venv-peers``. Ten nodes train the same network on as many images each as in Flower's PyTorch
quickstart; the images are random, since only time counts. SecAgg+ needs Flower's legacy API, so its app is written for
that. A round's seconds are those between two evaluations on the server, which do nothing; the first round, in which
processes start, isn't counted. All three run one after the other, again and again, each in a process of its own: in one
process SecAgg+ of flwr 1.41 waits for ever after another simulation.

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from flwr.app import ArrayRecord, Context
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from sordino.lab.bench.peers.flower_app import IMAGES, at_home, dimension, legacy_client, network, train_here

NODES = 10
WAYS = ("plain", "secagg+", "sordino")
LONGEST_S = 300.0  # for one run


def server_app(rounds: int, looks: list[float], wrap: Callable[[Any], Any] = lambda one: one) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def look(server_round: int, arrays: ArrayRecord) -> None:
            looks.append(time.perf_counter())

        strategy = wrap(FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES))
        start = ArrayRecord(network().state_dict())
        result = strategy.start(grid, start, num_rounds=rounds, evaluate_fn=look)
        if len(result.train_metrics_clientapp) != rounds:
            looks.clear()

    return app


def legacy_server_app(rounds: int, looks: list[float]) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def look(server_round: int, parameters: Any, config: Any) -> None:
            looks.append(time.perf_counter())

        start = ndarrays_to_parameters([one.numpy() for one in network().state_dict().values()])
        strategy = LegacyFedAvg(
            fraction_evaluate=0.0, min_available_clients=NODES, evaluate_fn=look, initial_parameters=start
        )
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
        # Flower's defaults, with the threshold that the study of ours has.
        workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=7, max_weight=float(IMAGES))
        DefaultWorkflow(fit_workflow=workflow)(grid, legacy)

    return app


def round_seconds(way: str, rounds: int, study: Path) -> list[float]:
    looks: list[float] = []
    if way == "secagg+":
        client = ClientApp(client_fn=legacy_client, mods=[secaggplus_mod])
        server = legacy_server_app(rounds, looks)
    elif way == "plain":
        client, server = ClientApp(), server_app(rounds, looks)
    else:
        from sordino.flower import SecureAggregation

        new_study(study, rounds)

        client = ClientApp(mods=[functools.partial(at_home, study)])
        server = server_app(rounds, looks, lambda one: SecureAggregation(one, study=study))
    if way != "secagg+":
        client.train()(train_here)
    run_simulation(server, client, NODES, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    if len(looks) != rounds + 1:
        raise RuntimeError(f"{way} ended after {len(looks) - 1} of {rounds} rounds")
    return [after - before for before, after in itertools.pairwise(looks[1:])]


def new_study(folder: Path, rounds: int) -> None:
    options = {"task": "external", "dataset": "own", "participants": NODES, "hosts": NODES, "rounds": rounds}
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "sordino", "init", str(folder), *words, "--task-option", f"dim={dimension()}"]
    subprocess.run([*command, "--epsilon", "8"], check=True, capture_output=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of each run, the first not counted; at least 2")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each way")
    parser.add_argument("--way", choices=WAYS, help="one run of this alone")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as work:
        if given.way:
            logging.disable(logging.CRITICAL)
            print(json.dumps(round_seconds(given.way, given.rounds, Path(work) / "study")))
            return 0
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for way in WAYS * given.repeats:
            command = [sys.executable, __file__, "--way", way, "--rounds", str(given.rounds)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_S)
            found[way] += json.loads(ran.stdout.splitlines()[-1])
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    ratios = {f"{way}_over_plain": round(medians[way] / medians["plain"], 3) for way in WAYS[1:]}
    print(
        json.dumps(
            {
                "nodes": NODES,
                "dim": dimension(),
                "images": IMAGES,
                "seconds": {way: [round(one, 3) for one in seconds] for way, seconds in found.items()},
                "median_s": {way: round(one, 3) for way, one in medians.items()},
                **ratios,
                "versions": {name: version(name) for name in ("flwr", "torch", "ray")},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
