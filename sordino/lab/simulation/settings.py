"""What is simulated: a study's options, and what only a simulation can choose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from authority.new_study import check_places
from authority.study_options import StudyOptions, coding_of, plan_for
from learning.data_names import OWN
from mechanisms.statement import VECTOR_MECHANISMS
from runtime.failure import InputFailure

if TYPE_CHECKING:
    from learning.server_optimizers import ServerOptimizer
    from learning.task import Task
    from mechanisms.plan import Plan
    from server.study_file import StudyConfiguration

NO_NOISE: Final = "none"
MECHANISMS: Final = (*VECTOR_MECHANISMS, NO_NOISE)
SAMPLINGS: Final = ("none", "lottery", "poisson", "fixed")
INDEPENDENT, EXACT = "independent", "exact"
DROP_LAWS: Final = (INDEPENDENT, EXACT)
IDEAL, REAL = "ideal", "real"
SECAGGS: Final = (IDEAL, REAL)
LOCAL, RAY = "local", "ray"
ENGINES: Final = (LOCAL, RAY)
MOST_WORKERS: Final = 256

# Of a study: what only a network, a disk or an authority needs.
_NOT_SIMULATED: Final = frozenset(
    {"hosts", "enrol", "authority", "listen", "names", "deadline_s", "training_s", "connect_s", "one_machine"}
)
# How the work is done, not what comes out: a simulation may go on with others.
WAYS: Final = frozenset({"workers", "engine", "device"})


class SimulationError(InputFailure, ValueError):
    """A setting of a simulation that can't be, or a file that isn't its own; one sentence that names what to change."""


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """One simulation, whole: the same settings give the same cohorts, dropouts and batch orders; noise is always fresh.

    Attributes:
        study: as of ``sordino init``; ``participants`` may be thousands. Its mechanism may also be "none": clipped
            updates are averaged without noise, which is NOT PRIVATE, and its sampling "poisson" or "fixed", which can
            be planned for but not served. What only a network needs counts for nothing.
        target: whose epsilon is planned for: "coordinator", "released", or "conditional", for comparison only.
        seed: of cohorts, dropouts, batch orders and rotations, >= 0. That of the partition is the study's.
        drop: share of a round's participants that leave before they send their vector, in [0, 1).
        drop_law: "independent": each with that probability. "exact": that share, rounded to whole participants.
        secagg: "ideal": the sum modulo 2^B that secure aggregation stands for. "real": the protocol core in memory.
        evaluate_every: rounds from one evaluation to the next, >= 1; the last round is always evaluated.
        batched: train many participants at once where the task can.
        workers: processes that train and encode, >= 1.
        engine: "local": this machine's processes. "ray": workers of Ray, for which it must be installed.
        device: of tasks that can choose: "cpu", "cuda" or "auto".
        data: folder with a .csv or .npz of each participant, where the study's data set is "own"; else None.

    Raises:
        SimulationError: a value outside its range.
    """

    study: StudyOptions = field(default_factory=StudyOptions)
    target: str = "coordinator"
    seed: int = 1
    drop: float = 0.0
    drop_law: str = INDEPENDENT
    secagg: str = IDEAL
    evaluate_every: int = 1
    batched: bool = True
    workers: int = 1
    engine: str = LOCAL
    device: str = "cpu"
    data: str | None = None

    def __post_init__(self) -> None:
        from learning.device import DEVICES

        names = (
            ("mechanism", self.study.mechanism, MECHANISMS),
            ("sampling", self.study.sampling, SAMPLINGS),
            ("target", self.target, ("coordinator", "released", "conditional")),
            ("drop_law", self.drop_law, DROP_LAWS),
            ("secagg", self.secagg, SECAGGS),
            ("engine", self.engine, ENGINES),
            ("device", self.device, DEVICES),
        )
        for name, given, allowed in names:
            if given not in allowed:
                raise SimulationError(f"{name} {given!r} is unknown; use one of: {', '.join(allowed)}")
        if not (math.isfinite(self.drop) and 0 <= self.drop < 1):
            raise SimulationError(f"drop {self.drop} is no share: it lies from 0 to below 1")
        for name, value, least, most in (
            ("seed", self.seed, 0, 2**63),
            ("evaluate_every", self.evaluate_every, 1, 2**31),
            ("workers", self.workers, 1, MOST_WORKERS),
        ):
            if not least <= value <= most:
                raise SimulationError(f"{name} {value} is out of range; use {least} to {most}")
        if self.study.mechanism == NO_NOISE and self.secagg == REAL:
            raise SimulationError(
                'mechanism "none" averages updates as they are, so there is nothing to mask; use secagg "ideal", or a '
                "mechanism that codes them"
            )
        if self.data is None and self.study.dataset == OWN:
            raise SimulationError(
                "data isn't named, and the data set 'own' lies with each participant: name the folder that holds a "
                "file of each, or a data set that is here"
            )
        if self.data is not None and self.study.dataset != OWN:
            raise SimulationError(
                f"data holds the participants' own files, and the data set is {self.study.dataset!r}: use one of them"
            )
        if self.secagg == REAL and self.engine == RAY:
            raise SimulationError('secagg "real" runs in one process; use the engine "local"')
        if self.target == "conditional" and self.study.sampling == "none":
            raise SimulationError('the target "conditional" needs sampling; use sampling "poisson" and a cohort')
        try:
            self.optimizer()
        except ValueError as error:
            raise SimulationError(str(error)) from None
        check_places(replace(self.study, hosts=1))

    def optimizer(self) -> ServerOptimizer:
        """The coordinator's, at rest.

        Raises:
            ValueError: a number outside its range.
        """
        from learning.server_optimizers import make_server_optimizer

        study = self.study
        return make_server_optimizer(
            study.server_optimizer,
            study.server_rate,
            study.server_momentum,
            study.server_second_momentum,
            study.server_adaptivity,
        )

    @property
    def participants(self) -> int:
        """Everybody: those that a round's are drawn from, or all of them."""
        return self.study.places

    @property
    def private(self) -> bool:
        """Whether there is noise at all."""
        return self.study.mechanism != NO_NOISE

    @property
    def cohort(self) -> int:
        """Most participants of one round, and those that are drawn where cohorts are."""
        return self.study.in_a_round

    def settled(self) -> SimulationSettings:
        """With min_survivors and quorum as numbers."""
        return replace(self, study=self.study.settled())

    def task(self) -> Task:
        """The study's task.

        Raises:
            learning.options.OptionError, learning.own_task.TaskUnavailable: it can't be made.
        """
        from learning.make_task import make_task

        return make_task(self.study.task, dict(self.study.task_options))

    def plan(self) -> Plan | None:
        """The public plan, as of a served study; None without noise.

        Raises:
            mechanisms.plan.InfeasiblePlan: no plan keeps the budget and the protocol's rules.
        """
        return plan_for(self.study, target=self.target) if self.private else None

    def coding(self) -> dict[str, Any]:
        """Clip rule and sketch, as arguments of `wire.study.plan_study`."""
        from learning.parameters import layers_of

        return coding_of(self.study, layers_of(self.task().contribution_shapes))

    def to_json(self) -> dict[str, Any]:
        """Every setting that counts, min_survivors, quorum and the name of the data settled, JSON values."""
        from learning.datasets import resolve_dataset

        settled = self.settled()
        values = {one.name: getattr(settled, one.name) for one in dataclasses.fields(self) if one.name != "study"}
        study = {
            one.name: getattr(settled.study, one.name)
            for one in dataclasses.fields(StudyOptions)
            if one.name not in _NOT_SIMULATED
        }
        study["dataset"] = resolve_dataset(settled.study.dataset)
        study["task_options"] = dict(self.task().options.to_mapping())
        return {"study": {name: _plain(value) for name, value in study.items()}} | values


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that differs and matters, as ``key: before, now``; None where a simulation may go on."""
    flat_before, flat_now = _flat(before), _flat(now)
    for key in sorted(set(flat_before) | set(flat_now)):
        if key not in WAYS and flat_before.get(key) != flat_now.get(key):
            return f"{key} was {flat_before.get(key)!r} and is {flat_now.get(key)!r}"
    return None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def study_of(configuration: StudyConfiguration, on_the_roster: int) -> StudyOptions:
    """The options behind a study's file.

    Args:
        on_the_roster: participants on the roster that lies beside it; what counts where the file doesn't say how many.
    """
    study, privacy, optimizer = configuration.study, configuration.privacy, configuration.server_optimizer
    cohort = study.participants or on_the_roster
    lottery = privacy.sampling != "none"
    same = {one.name for one in dataclasses.fields(StudyOptions)}
    tables = {**dict(configuration.data), **dict(privacy)}
    tables = {name: value for name, value in tables.items() if name in same}
    tables |= {
        "name": study.name,
        "rounds": study.rounds,
        "task": study.task,
        "task_options": dict(configuration.task),
        "participants": (privacy.largest_roster or privacy.population or cohort) if lottery else cohort,
        "cohort": cohort if lottery else None,
        "population": privacy.population,
        "max_attempts": configuration.coordinator.max_attempts,
        "server_optimizer": optimizer.name,
        "server_rate": optimizer.rate,
        "server_momentum": optimizer.momentum,
        "server_second_momentum": optimizer.second_momentum,
        "server_adaptivity": optimizer.adaptivity,
    }
    return StudyOptions(**tables)
