"""The nodes' side of `flower_rounds`: one training, as Flower apps with and without sordino.flower, and with SecAgg+.

It is a module of its own, as an app that `flwr run` loads: with each message, Flower's simulation sends the processes
of the nodes the names of these functions. The code of a script's own functions it would send whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from torch import nn

IMAGES, BATCH = 4_000, 32  # images of one node: 50,000 in ten parts, of which four fifths train


def network() -> nn.Module:
    """62,006 values: that of the quickstart, for images 3 x 32 x 32."""
    torch.set_num_threads(1)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def dimension() -> int:
    return sum(one.numel() for one in network().state_dict().values())


def train(model: nn.Module) -> None:
    """One epoch."""
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), nn.CrossEntropyLoss()
    images, labels = torch.rand(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    for _ in range(IMAGES // BATCH):
        optimizer.zero_grad()
        loss(model(images), labels).backward()
        optimizer.step()


def train_here(message: Message, context: Context) -> Message:
    """What an app registers."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model)
    metrics = MetricRecord({"num-examples": IMAGES})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def at_home(study: Path, message: Message, context: Context, call_next: Any) -> Message:
    """The mod of sordino.flower, with the home that ``study`` has for the node."""
    from sordino.flower import secure_aggregation_mod

    number = int(context.node_config["partition-id"])
    home = {"sordino-home": str(study / "hosts" / f"host-{number + 1:02d}")}
    here = Context(context.run_id, context.node_id, context.node_config | home, context.state, {})
    answer = secure_aggregation_mod(message, here, call_next)
    context.state = here.state
    return answer


class LegacyClient(NumPyClient):
    """The same training in the legacy API."""

    def fit(self, parameters: Any, config: Any) -> Any:
        model = network()
        names = list(model.state_dict())
        model.load_state_dict({name: torch.from_numpy(one) for name, one in zip(names, parameters, strict=True)})
        train(model)
        return [one.numpy() for one in model.state_dict().values()], IMAGES, {}


def legacy_client(context: Context) -> Client:
    """What an app in the legacy API is made with."""
    return LegacyClient().to_client()
