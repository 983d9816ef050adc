"""What torch does at best on this machine, and how much of it a step needs: limits for measurements of training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from learning.datasets import Dataset
from learning.local_training import Batch
from learning.public_random import PublicRandom
from learning.tasks.dropout import Masks
from learning.tasks.torch_task import TorchTask

_SIDE: Final = 1024
_LONG_ENOUGH_S: Final = 0.05


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch's operations take ``count`` threads, and one afterwards, as tasks do."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def matrix_rate(threads: int) -> float:
    """Floating point operations a second of a product of 1,024 x 1,024 matrices, float32."""
    one = torch.rand(_SIDE, _SIDE)
    with torch_threads(threads):
        return 2 * _SIDE**3 / _seconds(lambda: one @ one)


def convolution_rate(threads: int) -> float:
    """The same of a 3 x 3 convolution from 32 to 64 channels on 20 images of 13 x 13: femnist-cnn's larger one."""
    images, weights = torch.rand(20, 32, 13, 13), torch.rand(64, 32, 3, 3)
    with torch_threads(threads), torch.no_grad():
        return 2 * 20 * 11 * 11 * 64 * 288 / _seconds(lambda: functional.conv2d(images, weights))


def operations_of_a_gradient(task: TorchTask, data: Dataset) -> int:
    """Floating point operations in products and convolutions of one gradient over the data, forward and back."""
    counter = FlopCounterMode(display=False)
    module = task.module()
    start = {name: tensor.detach() for name, tensor in module.named_parameters()}
    gradient = task.gradient(module, data, Masks({}, PublicRandom()))
    with counter:
        gradient(start, Batch(torch.arange(len(data))), False)
    return int(counter.get_total_flops())


def _seconds(work: Callable[[], object]) -> float:
    """Of one call: the quickest of five stretches, since other processes only ever add."""
    work()
    best = float("inf")
    for _ in range(5):
        calls, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < _LONG_ENOUGH_S:
            work()
            calls += 1
        best = min(best, spent / calls)
    return best
