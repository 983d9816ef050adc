"""Sordino: federated learning in which the coordinator learns one noisy sum of the updates per round.

The public names are imported from here. Each is loaded on first use, so ``import sordino`` is light::

    from sordino import plan_study

    plan = plan_study(mechanism="ddgauss", clients=100, dim=500, bits=16, clip=1.0, epsilon=8.0, delta=1e-5,
                      rounds=15, max_dropout=0.3, adversarial=0.05)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime import VERSION
from runtime.extras import check_rooms as check_rooms

__version__ = VERSION

if TYPE_CHECKING:  # what static tools see; at run time `_PUBLIC` below says the same
    # isort: off
    from authority.new_study import make_local_study as make_local_study, new_study as new_study
    from client.host_file import HostConfiguration as HostConfiguration
    from client.saved_phases import SavedPhases as SavedPhases
    from learning.checkpoints import SavedModel as SavedModel, load_model as load_model
    from learning.datasets import Dataset as Dataset, load_dataset as load_dataset
    from learning.image_folder import read_images as read_images
    from learning.make_task import make_task as make_task
    from learning.options import TaskOptions as TaskOptions, TrainingOptions as TrainingOptions
    from learning.partitions import partition as partition
    from learning.table_files import read_table as read_table
    from learning.task import ModelTask as ModelTask, Task as Task
    from learning.tasks.backbone import BackboneOptions as BackboneOptions
    from learning.tasks.torch_task import TorchTask as TorchTask
    from mechanisms.accounting import Account as Account, RoundCharge as RoundCharge
    from mechanisms.baselines.registry import MECHANISMS as MECHANISMS
    from mechanisms.discrete_gaussian import discrete_gaussian as discrete_gaussian
    from mechanisms.encoder import Encoder as Encoder
    from mechanisms.plan import InfeasiblePlan as InfeasiblePlan, Plan as Plan
    from mechanisms.skellam import skellam as skellam
    from runtime.failure import ExitCode as ExitCode, Failure as Failure
    from runtime.settings_file import ConfigurationError as ConfigurationError
    from server.study_file import StudyConfiguration as StudyConfiguration
    from server.study_view import StudyView as StudyView
    from sordino.api.coordinator import Coordinator as Coordinator, serve as serve
    from sordino.api.participant import Participant as Participant, join as join
    from sordino.lab.simulation.run import SimulationResult as SimulationResult, simulate_study as simulate_study
    from sordino.lab.simulation.secure_sum import secure_sum as secure_sum
    from sordino.lab.simulation.settings import SimulationSettings as SimulationSettings
    from sordino.lab.simulation.settings import simulated_study as simulated_study
    from sordino.lab.sweep import Sweep as Sweep, sweep as sweep
    from sordino.planning.study_plan import StudyPlan as StudyPlan, plan_study as plan_study
    from sordino.reporting.budget import ledger_of as ledger_of
    from sordino.reporting.results import ServedStudy as ServedStudy
    # isort: on
else:  # a `__getattr__` that static tools can see would make every misspelt name an Any
    import importlib

    import runtime.extras

    _PUBLIC = {
        name: module
        for module, names in {
            "authority.new_study": ("make_local_study", "new_study"),
            "client.host_file": ("HostConfiguration",),
            "client.saved_phases": ("SavedPhases",),
            "learning.datasets": ("Dataset", "load_dataset"),
            "learning.image_folder": ("read_images",),
            "learning.make_task": ("make_task",),
            "learning.options": ("TaskOptions", "TrainingOptions"),
            "learning.partitions": ("partition",),
            "learning.checkpoints": ("SavedModel", "load_model"),
            "learning.table_files": ("read_table",),
            "learning.task": ("ModelTask", "Task"),
            "learning.tasks.backbone": ("BackboneOptions",),
            "learning.tasks.torch_task": ("TorchTask",),
            "mechanisms.accounting": ("Account", "RoundCharge"),
            "mechanisms.discrete_gaussian": ("discrete_gaussian",),
            "mechanisms.encoder": ("Encoder",),
            "mechanisms.plan": ("InfeasiblePlan", "Plan"),
            "mechanisms.skellam": ("skellam",),
            "mechanisms.baselines.registry": ("MECHANISMS",),
            "runtime.failure": ("ExitCode", "Failure"),
            "runtime.settings_file": ("ConfigurationError",),
            "server.study_file": ("StudyConfiguration",),
            "server.study_view": ("StudyView",),
            "sordino.api.coordinator": ("Coordinator", "serve"),
            "sordino.api.participant": ("Participant", "join"),
            "sordino.lab.simulation.run": ("SimulationResult", "simulate_study"),
            "sordino.lab.simulation.secure_sum": ("secure_sum",),
            "sordino.lab.simulation.settings": ("SimulationSettings", "simulated_study"),
            "sordino.lab.sweep": ("Sweep", "sweep"),
            "sordino.planning.study_plan": ("StudyPlan", "plan_study"),
            "sordino.reporting.budget": ("ledger_of",),
            "sordino.reporting.results": ("ServedStudy",),
        }.items()
        for name in names
    }
    __all__ = ["__version__", "check_rooms", *_PUBLIC]

    def __getattr__(name):
        if name not in _PUBLIC:
            raise AttributeError(f"module 'sordino' has no attribute {name!r}")
        check_rooms()
        try:
            value = getattr(importlib.import_module(_PUBLIC[name]), name)
        except ModuleNotFoundError as error:
            raise runtime.extras.missing(error) or error from error
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
