"""Names of tasks and of server optimizers, for settings that are checked before anything of numpy's size is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from runtime.text import did_you_mean

SYNTHETIC: Final = "synthetic"
"""Of load tests: it reads no examples."""
BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "softmax-regression": ("learning.tasks.softmax_regression", "SoftmaxRegression"),
    "mlp": ("learning.tasks.mlp", "Mlp"),
    "regression": ("learning.tasks.regression", "Regression"),
    "cnn": ("learning.tasks.torch_images", "Cnn"),
    "femnist-cnn": ("learning.tasks.torch_images", "FemnistCnn"),
    "resnet18": ("learning.tasks.torch_images", "ResNet18"),
    "lstm": ("learning.tasks.lstm", "Lstm"),
    "sum": ("learning.tasks.sums", "Sum"),
    "mean": ("learning.tasks.sums", "Mean"),
    "histogram": ("learning.tasks.histogram", "Histogram"),
    "quantile": ("learning.tasks.quantile", "Quantile"),
    "votes": ("learning.tasks.votes", "Votes"),
    SYNTHETIC: ("learning.tasks.external", "Synthetic"),
    "external": ("learning.tasks.external", "External"),
}
"""Name to module and class."""

TASKS: Final = tuple(BUILT_IN)
STATISTICS: Final = ("sum", "mean", "histogram", "quantile")
"""Those of them that have no model."""
REGRESSION: Final = "regression"
"""Predicts a number: labels of a participant's file are float32 for it, not classes."""
VOTES: Final = "votes"
"""Participants vote with a classifier, the task that its option ``of`` names."""
CLASSIFIER: Final = "softmax-regression"
"""The one that votes are of by default."""
BOUNDED: Final = (*STATISTICS, VOTES)
"""Those of them that send no model, and bound the norm of a contribution themselves."""
WITHOUT_TORCH: Final = ("softmax-regression", "mlp", REGRESSION, *STATISTICS, SYNTHETIC, "external")
"""Those of them that compute with numpy, and so on no accelerator."""
FLOWER: Final = "flower:"
"""Begins the name of a task that is a Flower app's: ``flower:my_app.client_app:app``."""
FLOWER_TASK: Final = ("learning.tasks.flower_app", "FlowerApp")
FEDAVG, FEDADAGRAD, FEDADAM, FEDYOGI = "fedavg", "fedadagrad", "fedadam", "fedyogi"
ADAPTIVE: Final = (FEDADAGRAD, FEDADAM, FEDYOGI)
SERVER_OPTIMIZERS: Final = (FEDAVG, *ADAPTIVE)
DEFAULT_RATES: Final[Mapping[str, float]] = {FEDAVG: 1.0, FEDADAGRAD: 0.1, FEDADAM: 0.03, FEDYOGI: 0.03}
"""Step of each where none is chosen. The adaptive ones move every value by about their rate, however small the mean
update is: 1, as of FedAvg, throws a model about. As [RCZ+21] found, 0.01 to 0.1 is where to look."""
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
_OWN: Final = re.compile(rf"({FLOWER})?{_NAME}(\.{_NAME})*:{_NAME}")


def trained_task(task: str, options: Mapping[str, object]) -> str:
    """Return the task whose examples and device count: of votes the classifier's name, of all others ``task``.

    It is what ``options`` state, which may be no task's name.
    """
    return str(options.get("of", CLASSIFIER)) if task == VOTES else task


def check_task_name(name: str) -> str:
    """Return ``name`` if `learning.make_task.make_task` could know it: one of ``TASKS``, ``module:Class``, or
    ``flower:module:app``.

    Raises ValueError: none of them; the message goes on after the name.
    """
    if name in TASKS or (len(name) <= 128 and _OWN.fullmatch(name)):
        return name
    if "/" in name or name.endswith(".py"):
        raise ValueError(
            "is unknown; for a class of your own write module:Class, the file's name without .py and "
            "without its folder, and run the command in that folder"
        )
    near = did_you_mean(name, TASKS)
    raise ValueError(
        f"is unknown.{near} Use one of: {', '.join(TASKS)}, module:Class of your own, or {FLOWER}module:app of Flower"
    )
