"""The model, its data and its training: nothing here knows of Flower or Sordino."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sordino import load_dataset

torch.set_num_threads(1)


class Net(nn.Module):
    """Two convolutions and two dense layers: 44,426 values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 4 * 4, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


def load_data(partition: int, partitions: int) -> DataLoader:
    """Every partitions-th training image."""
    train, _ = load_dataset("fashion-mnist-subset")
    images = torch.from_numpy(train.features[partition::partitions]).float().unsqueeze(1) / 255
    return DataLoader(TensorDataset(images, torch.from_numpy(train.labels[partition::partitions])), 32, shuffle=True)


def train(model: Net, data: DataLoader, epochs: int, rate: float) -> float:
    """SGD on the cross-entropy; returns the mean loss of the last epoch."""
    optimizer, losses = torch.optim.SGD(model.parameters(), rate, momentum=0.9), []
    for _ in range(epochs):
        losses = []
        for images, labels in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def evaluate(model: Net) -> float:
    """Accuracy on the test images."""
    _, test = load_dataset("fashion-mnist-subset")
    with torch.no_grad():
        guessed = model(torch.from_numpy(test.features).float().unsqueeze(1) / 255).argmax(1).numpy()
    return float((guessed == test.labels).mean())
