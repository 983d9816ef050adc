"""A study for each method, clip rule, mechanism, optimiser, model and statistic, as options of ``sordino init``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FEW: Final = ("--participants", "6", "--hosts", "2", "--rounds", "2", "--epsilon", "50", "--max-dropout", "0.2")
_TORCH: Final = ("--task", "cnn", "--local-epochs", "1")


def _of(*options: str) -> tuple[str, ...]:
    return (*_FEW, "--bits", "20", *options)


_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "dp-fedavg": (),
    "dp-fedsgd": ("--method", "dp-fedsgd"),
    "fedprox": ("--method", "fedprox", "--task-option", "proximal_weight=0.1"),
    "blur": ("--method", "blur", "--clip", "0.3"),
    "lus": ("--method", "lus", "--task-option", "sparsity=0.7"),
    "blur-lus": ("--method", "blur-lus", "--clip", "0.3", "--task-option", "local_steps=30"),
}

STUDIES: Final[Mapping[str, tuple[str, ...]]] = {
    **{f"{name}, numpy": _of(*options) for name, options in _METHODS.items()},
    **{f"{name}, torch": _of(*_TORCH, *options) for name, options in _METHODS.items() if name != "dp-fedsgd"},
    "votes, numpy": _of("--task", "votes", "--task-option", "queries=20"),
    "votes, torch": _of("--task", "votes", "--task-option", "of=cnn", *_TORCH[2:], "--task-option", "queries=20"),
    "dp-fedsgd, torch": _of("--task", "cnn", "--method", "dp-fedsgd"),
    "clip adapts": _of("--clip-update", "geometric"),
    "clips adapt by layer": _of("--task", "mlp", "--clip-by-layer", "--clip-update", "geometric"),
    "clip adapts in steps": _of("--clip-update", "linear"),
    "clips by layer in proportion": _of("--task", "mlp", "--clip-by-layer", "--clip-scaling", "proportional"),
    "noise by layer": _of("--task", "cnn", "--clip-by-layer", "--clip-scaling", "least-noise"),
    "skellam": _of("--mechanism", "skellam"),
    "central gaussian": _of("--mechanism", "gaussian"),
    "local noise": _of("--mechanism", "local-gaussian"),
    "count-mean sketch": _of("--task", "mlp", "--sketch-rows", "5", "--sketch-ratio", "10"),
    "fedadam": _of("--server-optimizer", "fedadam", "--server-rate", "0.1"),
    "fedyogi": _of("--server-optimizer", "fedyogi", "--server-rate", "0.1"),
    "fedadagrad": _of("--server-optimizer", "fedadagrad", "--server-rate", "0.1"),
    "weights and schedules": _of("--task-option", "weight_cap=100", "--server-schedule", "cosine"),
    "a layer of its own": _of("--task", "mlp", "--task-option", "personal=output", "--evaluate", "participants"),
    "lottery": (
        *("--participants", "12", "--hosts", "3", "--rounds", "2", "--epsilon", "50", "--max-dropout", "0.2"),
        *("--bits", "20", "--sampling", "lottery", "--cohort", "8", "--population", "12"),
    ),
    "sum": _of("--task", "sum", "--task-option", "column=label", "--task-option", "high=9"),
    "mean": _of("--task", "mean", "--task-option", "column=label", "--task-option", "high=9"),
    "histogram": _of("--task", "histogram", "--task-option", "column=label", "--task-option", "bins=10"),
    "quantile": _of("--task", "quantile", "--task-option", "column=label", "--task-option", "high=9"),
    "shards": _of("--partition", "shards", "--shards", "2"),
}
"""Quick ones: 6 participants in two processes, two rounds each."""

LARGE: Final[Mapping[str, tuple[str, ...]]] = {
    "femnist-cnn, 20 participants, 18 bits": (
        *("--participants", "20", "--hosts", "2", "--rounds", "2", "--epsilon", "50", "--bits", "18"),
        *("--task", "femnist-cnn", "--task-option", "classes=10", "--max-dropout", "0.2", "--training-s", "300"),
    ),
    "resnet18, 10 participants": (
        *("--participants", "10", "--hosts", "2", "--rounds", "1", "--epsilon", "50", "--bits", "18"),
        *("--task", "resnet18", "--task-option", "local_steps=5", "--max-dropout", "0.2", "--training-s", "600"),
    ),
}
"""Models of the papers' sizes: minutes."""
