from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import Net, Normed, Weighted, listed, test, train  # noqa: F401

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    model, config = Net(), context.run_config
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    round_ = message.content["config"]["server-round"]
    rate = message.content["config"].get("rate", config["learning-rate"])
    count = train(model, context.node_config["partition-id"], config["steps"], rate / round_)
    arrays = model.state_dict()
    if round_ == config["broken-round"]:
        arrays["weight"] = arrays["weight"].T
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": count})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    accuracy, loss, count = test(model, context.node_config["partition-id"])
    metrics = MetricRecord({"eval_acc": accuracy, "eval_loss": loss, "num-examples": count})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
