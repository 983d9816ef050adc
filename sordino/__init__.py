"""Sordino: federated learning in which the coordinator learns one noisy sum of updates a round, nothing else of them.

What is public is imported from here; everything is loaded on first use, so ``import sordino`` is light::

    from sordino import plan_study

    plan = plan_study(mechanism="ddgauss", clients=100, dim=500, bits=16, clip=1.0, epsilon=8.0, delta=1e-5,
                      rounds=15, max_dropout=0.3, adversarial=0.05)
"""

from __future__ import annotations

import importlib
from typing import Any

from runtime import VERSION
from runtime.extras import check_rooms

__version__ = VERSION

_PUBLIC = {
    "Plan": "mechanisms.plan",
    "InfeasiblePlan": "mechanisms.plan",
    "Encoder": "mechanisms.encoder",
    "MECHANISMS": "mechanisms.registry",
    "plan_study": "wire.study",
    "Dataset": "learning.datasets",
    "load_dataset": "learning.datasets",
    "partition": "learning.partitions",
    "Task": "learning.task",
    "ModelTask": "learning.task",
    "TorchTask": "learning.tasks.torch_task",
    "TaskOptions": "learning.options",
    "TrainingOptions": "learning.options",
    "make_task": "learning.task",
    "SavedModel": "learning.saved_model",
    "load_model": "learning.saved_model",
    "StudyOptions": "authority.new_study",
    "SimulationSettings": "sordino.lab.simulation.settings",
    "SimulationResult": "sordino.lab.simulation.run",
    "simulate_study": "sordino.lab.simulation.run",
    "StudyConfiguration": "server.study_file",
    "HostConfiguration": "client.host_file",
    "ConfigurationError": "runtime.settings_file",
    "StudyView": "sordino.reporting.study_view",
    "ExitCode": "runtime.failure",
}

__all__ = ["__version__", "check_rooms", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    check_rooms()
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
