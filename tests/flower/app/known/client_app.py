"""Each node adds a thousandth of its partition's number, and one, to every value."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sordino.flower import secure_aggregation_mod

app = ClientApp(mods=[secure_aggregation_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    step = (1 + int(context.node_config["partition-id"])) / 1000
    arrays = [one + step for one in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)
