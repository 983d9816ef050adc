"""What the server does: FedAvg, and a look at the model after each round."""

import time

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fashion.task import Net, evaluate

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    began = time.perf_counter()

    def look(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(model), "seconds": time.perf_counter() - began})

    strategy = FedAvg(fraction_evaluate=0.0)
    rounds = context.run_config["num-server-rounds"]
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds, evaluate_fn=look)
