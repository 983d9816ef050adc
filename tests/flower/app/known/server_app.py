"""Zeros, to which each round adds the nodes' mean; the model and the metrics go into a file."""

import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sordino.flower import SecureAggregation

app = ServerApp()
SHAPES = ((20, 30), (10,))


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = SecureAggregation(FedAvg(fraction_evaluate=0.0), study=context.run_config["sordino-study"])
    arrays = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
    result = strategy.start(grid, arrays, num_rounds=int(context.run_config["rounds"]))
    found = {
        "model": [one.tolist() for one in result.arrays.to_numpy_ndarrays()],
        "metrics": {round_: dict(one) for round_, one in result.train_metrics_clientapp.items()},
    }
    Path(str(context.run_config["result"])).write_text(json.dumps(found))
