"""Models in torch: say what the module is, and the rest is here. Import this only where such a task is used.

A user's own task takes some twenty lines::

    @dataclass(frozen=True, kw_only=True)
    class Options(TrainingOptions):
        hidden: int = 64
        initial_seed: int = 0

    class Perceptron(TorchTask):
        Options = Options
        classes = 10
        example_shape = (28, 28)

        def module(self) -> nn.Module:
            return nn.Sequential(
                nn.Flatten(), nn.Linear(784, self.options.hidden), nn.ReLU(), nn.Linear(self.options.hidden, 10)
            )

`learning.tasks.torch_images` has those that ship.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from learning.datasets import Dataset
from learning.device import CPU
from learning.parameters import Parameters, check_shapes
from learning.tasks.torch_module import IGNORED, on_threads, tensors_of
from learning.tasks.torch_training import TorchTraining

__all__ = ["IGNORED", "TorchTask"]

_R = TypeVar("_R")


class TorchTask(TorchTraining):
    """A classifier in torch. A subclass gives ``Options``, ``example_shape``, ``classes`` and `module`.

    It may also give `inputs`, `counted`, `credited` and `loss`, and ``initial_seed`` among its options. Making one sets
    torch to a single thread in this process: several participants share a machine, and sums split over threads would
    differ from run to run. Simulations have threads over participants instead, see `learning.device.use_threads`.
    """

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean loss in nats (NaN for a diverged model), each over what it counts.

        Raises ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, self.contribution_shapes)
        self.check(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")

        def judged(labels: NDArray[np.int64], outputs: torch.Tensor) -> tuple[float, ...]:
            known = torch.from_numpy(labels).to(outputs.device)
            credited, counted = self.credited(known), int(self.counted(known).sum())
            correct = int(((outputs.argmax(dim=-1) == known) & credited).sum())
            return correct, int(credited.sum()), float(self.checked_loss(outputs, known)) * counted, counted

        found = self._blockwise(parameters, data.features, data.labels, judged)
        correct, credited, loss, counted = (sum(column) for column in zip(*found, strict=True))
        return {"accuracy": correct / max(credited, 1), "loss": loss / max(counted, 1)}

    def predict(self, parameters: Parameters, examples: NDArray[Any]) -> NDArray[np.int64]:
        """As `learning.task.Classifier.predict`; of equal scores the first class."""
        check_shapes(parameters, self.contribution_shapes)

        def best(labels: NDArray[Any], outputs: torch.Tensor) -> NDArray[np.int64]:
            return outputs.argmax(dim=-1).cpu().numpy()

        found = self._blockwise(parameters, examples, examples, best)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _blockwise(
        self,
        parameters: Parameters,
        features: NDArray[Any],
        labels: NDArray[Any],
        judged: Callable[[NDArray[Any], torch.Tensor], _R],
    ) -> list[_R]:
        device = self._device()
        model = tensors_of(parameters, device)

        def of_block(start: int) -> _R:
            module = self._taken(self._template, self._spare).eval()
            block = slice(start, start + self.rows_a_block)
            with torch.no_grad():
                inputs = self.inputs(torch.from_numpy(features[block]).to(device))
                outputs = functional_call(module, model, (inputs,))
            self._spare.append(module)
            return judged(labels[block], outputs)

        starts = range(0, len(features), self.rows_a_block)
        return on_threads(of_block, starts) if device.type == CPU else [of_block(start) for start in starts]
