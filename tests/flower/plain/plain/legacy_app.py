import torch
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from .task import Net, train


class Client(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.node, self.config = context.node_config, context.run_config

    def fit(self, parameters, config):
        model = Net()
        names = model.state_dict().keys()
        model.load_state_dict(dict(zip(names, map(torch.tensor, parameters), strict=True)))
        rate = self.config["learning-rate"] / config["server-round"]
        count = train(model, self.node["partition-id"], self.config["steps"], rate)
        return [one.numpy() for one in model.state_dict().values()], count, {}


app = ClientApp(client_fn=lambda context: Client(context).to_client())
