"""Settings of a simulation: a study's options, and those of a simulation only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from authority.new_study import Sizes, study_of_size
from learning.data_names import OWN
from runtime.failure import InputFailure
from runtime.settings_keys import build, flat_values, key, settings_keys
from server.study_file import StudyConfiguration
from server.study_tables import PrivacyTable

if TYPE_CHECKING:
    from mechanisms.plan import Plan

NO_NOISE: Final = "none"
INDEPENDENT, EXACT = "independent", "exact"
DROP_LAWS: Final = (INDEPENDENT, EXACT)
IDEAL, REAL = "ideal", "real"
SECAGGS: Final = (IDEAL, REAL)
LOCAL, RAY = "local", "ray"
ENGINES: Final = (LOCAL, RAY)
MOST_WORKERS: Final = 256

# Of a study: what only a network, a disk or an authority needs.
_NOT_SIMULATED: Final = ("deadlines", "coordinator")
_PANEL: Final = "Simulation"
# How the work is done, not what comes out: a simulation may go on with others.
WAYS: Final = frozenset({"workers", "engine", "device"})


class SimulationError(InputFailure, ValueError):
    """An invalid setting, or another simulation's file; one sentence names what to change.

    Attributes:
        setting: name of the setting at the beginning of the sentence, or empty.
        problem: the sentence without it.
    """

    def __init__(self, problem: str, setting: str = "") -> None:
        super().__init__(f"{setting} {problem}" if setting else problem)
        self.setting, self.problem = setting, problem


class SimulatedPrivacy(PrivacyTable):
    """[privacy] of a simulation, with more mechanisms and ways to draw a cohort."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian", "none"] = key(  # type: ignore[assignment]  # wider
        "ddgauss",
        help="ddgauss, skellam, local-gaussian, gaussian; or none: no noise, NOT PRIVATE",
        shown="ddgauss, or DIR's",
        panel=_PANEL,
    )
    sampling: Literal["none", "lottery", "epochs", "poisson", "fixed"] = key(  # type: ignore[assignment]  # wider
        "none",
        help="how cohorts are drawn: none, lottery, epochs; poisson or fixed, which are for comparison only",
        shown="none, with --cohort lottery",
        panel=_PANEL,
    )


class SimulatedStudy(StudyConfiguration):
    """`StudyConfiguration` with `SimulatedPrivacy`."""

    privacy: SimulatedPrivacy = key(help="", option=None)


def simulated_study(**values: Any) -> SimulatedStudy:
    """Make a study to simulate, from keys of `SimulatedStudy` and `authority.new_study.Sizes` by their flat names.

    Raises:
        Failure: cohorts that can't be drawn.
        pydantic.ValidationError: an invalid value.
    """
    sizes = build(Sizes, {name: values.pop(name) for name in settings_keys(Sizes) if name in values})
    return study_of_size(SimulatedStudy, values, sizes)


def resized(study: StudyConfiguration, places: int, **changed: Any) -> SimulatedStudy:
    """Change values of a study: keys of `SimulatedStudy`, ``participants`` and ``cohort``.

    Args:
        places: participants of ``study``, if its file doesn't say.
    """
    drawn = study.privacy.sampling != "none"
    values = flat_values(study)
    held = {"participants": study.places or places, "cohort": study.study.participants if drawn else None}
    for name in ("in_a_round", "largest_roster", *(() if drawn else ("population",))):
        values.pop(name)
    return simulated_study(**values | held | changed)


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """One simulation: the same settings give the same cohorts, dropouts and batch orders; noise is always fresh.

    Attributes:
        study: of `simulated_study`; participants may be thousands. Its mechanism may also be "none": clipped updates
            are averaged without noise, which is NOT PRIVATE; its sampling also "poisson" or "fixed", which can be
            planned for but not served. Settings only for a network have no effect.
        target: the planned epsilon: "coordinator", "released", or "conditional", for comparison only.
        seed: of cohorts, dropouts, batch orders and rotations, >= 0. That of the partition is the study's.
        drop: share of a round's participants that leave before they send their vector, in [0, 1).
        drop_law: "independent": each with that probability. "exact": that share, rounded to whole participants.
        secagg: "ideal": the ideal sum modulo 2^B. "real": the protocol core in memory.
        evaluate_every: rounds from one evaluation to the next, >= 1; the last round is always evaluated.
        batched: train many participants at once if the task can.
        workers: processes that train and encode, >= 1.
        engine: "local": this machine's processes. "ray": workers of Ray, which must be installed.
        device: of tasks that can choose: "cpu", "cuda" or "auto".
        data: folder with a .csv or .npz of each participant, if the study's data set is "own"; else None.

    Raises:
        SimulationError: a value outside its range.
    """

    study: SimulatedStudy = field(default_factory=simulated_study)
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
            ("target", self.target, ("coordinator", "released", "conditional")),
            ("drop_law", self.drop_law, DROP_LAWS),
            ("secagg", self.secagg, SECAGGS),
            ("engine", self.engine, ENGINES),
            ("device", self.device, DEVICES),
        )
        for name, given, allowed in names:
            if given not in allowed:
                raise SimulationError(f"{given!r} is unknown; use one of: {', '.join(allowed)}", name)
        if not (math.isfinite(self.drop) and 0 <= self.drop < 1):
            raise SimulationError(f"{self.drop} is no share: it lies from 0 to below 1", "drop")
        for name, value, least, most in (
            ("seed", self.seed, 0, 2**63),
            ("evaluate_every", self.evaluate_every, 1, 2**31),
            ("workers", self.workers, 1, MOST_WORKERS),
        ):
            if not least <= value <= most:
                raise SimulationError(f"{value} is out of range; use {least} to {most}", name)
        if self.study.privacy.mechanism == NO_NOISE and self.secagg == REAL:
            raise SimulationError(
                'mechanism "none" averages updates as they are, so there is nothing to mask; use secagg "ideal", or a '
                "mechanism that codes them"
            )
        if self.data is None and self.study.data.dataset == OWN:
            raise SimulationError(
                "isn't named, and the data set 'own' lies with each participant: name the folder that holds a file of "
                "each, or a data set that is here",
                "data",
            )
        if self.data is not None and self.study.data.dataset != OWN:
            raise SimulationError(
                f"holds the participants' own files, and the data set is {self.study.data.dataset!r}: use one of them",
                "data",
            )
        if self.secagg == REAL and self.engine == RAY:
            raise SimulationError('"real" runs in one process; use the engine "local"', "secagg")
        if self.target == "conditional" and self.study.privacy.sampling in ("none", "epochs"):
            raise SimulationError('the target "conditional" needs sampling; use sampling "poisson" and a cohort')

    @property
    def participants(self) -> int:
        """Return the number of all participants."""
        return self.study.places

    @property
    def private(self) -> bool:
        """Return whether noise is added."""
        return self.study.privacy.mechanism != NO_NOISE

    @property
    def cohort(self) -> int:
        """Return the most participants of one round; with sampling the drawn number."""
        return self.study.study.participants or 0

    def settled(self) -> SimulationSettings:
        """Return these settings with min_survivors and quorum as numbers."""
        return replace(self, study=self.study.settled())

    def plan(self) -> Plan | None:
        """Return the public plan, as of a served study; None without noise; `InfeasiblePlan` if no plan exists."""
        return self.study.plan(target=self.target) if self.private else None

    def coding(self) -> dict[str, Any]:
        """Return clip rule and sketch, as arguments of `wire.study.plan_study`."""
        from learning.parameters import layers_of

        privacy = self.study.settled().privacy
        assert privacy.clip is not None  # noqa: S101  # settled
        coding = privacy.coding(layers_of(self.study.make_task().contribution_shapes), privacy.clip)
        return {name: value for name, value in coding.items() if name != "rotation"}

    def to_json(self) -> dict[str, Any]:
        """Return every relevant setting as JSON, with min_survivors, quorum and the name of the data settled."""
        from learning.datasets import resolve_dataset

        settled = self.settled().study
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "study"}
        found = flat_values(settled)
        keys = settings_keys(type(settled))
        study = {name: found[name] for name, one in keys.items() if one.table not in _NOT_SIMULATED}
        drawn = settled.privacy.sampling != "none"
        study |= {"participants": settled.places, "cohort": study.pop("in_a_round") if drawn else None}
        study |= {"dataset": resolve_dataset(settled.data.dataset), "max_attempts": settled.coordinator.max_attempts}
        study["task_options"] = dict(settled.make_task().options.to_mapping())
        for name in ("in_a_round", "largest_roster", "pause_s"):
            study.pop(name, None)
        return {"study": {name: _plain(value) for name, value in study.items()}} | values


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first relevant difference, as ``name was ... and is ...``; None if a simulation may continue."""
    flat_before, flat_now = _flat(before), _flat(now)
    for name in sorted(set(flat_before) | set(flat_now)):
        if name not in WAYS and flat_before.get(name) != flat_now.get(name):
            return f"{name} was {flat_before.get(name)!r} and is {flat_now.get(name)!r}"
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
