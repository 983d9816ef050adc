import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from .task import Net, test, train


class Client(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.node, self.config = context.node_config, context.run_config

    def model(self, parameters):
        model = Net()
        names = model.state_dict().keys()
        model.load_state_dict(dict(zip(names, map(torch.tensor, parameters), strict=True)))
        return model

    def fit(self, parameters, config):
        model = self.model(parameters)
        rate = self.config["learning-rate"] / config["server-round"]
        count = train(model, self.node["partition-id"], self.config["steps"], rate)
        return [one.numpy() for one in model.state_dict().values()], count, {}

    def evaluate(self, parameters, config):
        accuracy, loss, count = test(self.model(parameters), self.node["partition-id"])
        return loss, count, {"accuracy": accuracy}


app = ClientApp(client_fn=lambda context: Client(context).to_client())
