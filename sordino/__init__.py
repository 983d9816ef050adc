"""Sordino: federated learning in which the coordinator learns one noisy sum of updates a round, nothing else of them.

What is public is imported from here; everything is loaded on first use, so ``import sordino`` is light::

    from sordino import plan_study

    plan = plan_study(mechanism="ddgauss", clients=100, dim=500, bits=16, clip=1.0, epsilon=8.0, delta=1e-5,
                      rounds=15, max_dropout=0.3, adversarial=0.05)
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

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
_ROOMS = ("authority", "client", "learning", "mechanisms", "runtime", "secagg", "server", "wire")

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


def check_rooms() -> None:
    """Say so when a file beside the user's script hides one of our packages.

    Our packages have plain names (``client``, ``server``, ...). Python looks beside the running script first,
    so a file ``client.py`` there is imported in place of ours.

    Raises:
        ImportError: naming the file to rename.
    """
    home = Path(__file__).resolve().parent.parent
    for room in _ROOMS:
        try:
            found = importlib.util.find_spec(room)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ImportError(f"sordino's package {room!r} isn't installed. Install sordino again.")
        origin = Path(found.origin).resolve() if found.origin else None
        if origin is None or origin != home / room / "__init__.py":
            where = origin or Path(next(iter(found.submodule_search_locations or ["?"])))
            raise ImportError(
                f"{where} hides sordino's own package {room!r}. Rename it, or run the script from another folder."
            )
