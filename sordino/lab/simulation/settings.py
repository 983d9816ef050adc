"""Settings of a simulation: a study's options, and those of a simulation only."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from authority.new_study import Sizes, study_of_size
from learning.data_names import OWN
from learning.task_names import FLOWER, trained_task
from runtime.failure import InputFailure
from runtime.option_values import check_needs
from runtime.settings_file import Table, build, explain
from runtime.settings_keys import flat_values, key, settings_keys
from runtime.text import did_you_mean, dotted
from server.study_file import StudyConfiguration
from server.study_tables import PrivacyTable

if TYPE_CHECKING:
    from sordino.planning.study_plan import StudyPlan

NO_NOISE: Final = "none"
EXACT: Final = "exact"
REAL: Final = "real"
RAY: Final = "ray"

# Of a study: what only a network, a disk or an authority needs.
_NOT_SIMULATED: Final = ("deadlines", "coordinator")
_option = partial(key, panel="Simulation")
# How the work is done, not what comes out: a simulation may go on with others.
WAYS: Final = frozenset({"workers", "threads", "engine", "device"})


class SimulationError(InputFailure, ValueError):
    """An invalid setting, or another simulation's file; one sentence names what to change."""


class SimulatedPrivacy(PrivacyTable):
    """[privacy] of a simulation, with more mechanisms and ways to draw a cohort."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian", "none"] = _option(  # type: ignore[assignment]  # wider
        "ddgauss",
        "ddgauss, skellam, local-gaussian, gaussian; or none: no noise, NOT PRIVATE",
        shown="ddgauss, or DIR's",
    )
    sampling: Literal["none", "lottery", "epochs", "poisson", "fixed"] = _option(  # type: ignore[assignment]  # wider
        "none",
        "how cohorts are drawn: none, lottery, epochs; for comparison only fixed, and, with mechanism gaussian or "
        "none, poisson",
        shown="none, with --cohort lottery, or DIR's",
    )


class SimulatedStudy(StudyConfiguration):
    """`StudyConfiguration` with `SimulatedPrivacy`."""

    privacy: SimulatedPrivacy = key(help="", option=None)


OF_STUDY: Final = frozenset({*settings_keys(SimulatedStudy), *settings_keys(Sizes)})
"""Names that `simulated_study` takes."""


def simulated_study(**values: Any) -> SimulatedStudy:
    """Make a study to simulate, from keys of `SimulatedStudy` and `authority.new_study.Sizes` by their flat names.

    A ``cohort`` is drawn by a lottery unless ``sampling`` states another law.

    Raises Failure: cohorts that can't be drawn, a value can't be or has no effect, or no key has such a name.
    """
    for name in values.keys() - OF_STUDY:
        if name in SimulationSettings.model_fields:
            raise SimulationError(f"{name} is a setting of the simulation; use SimulationSettings({name}=...)")
        near = did_you_mean(name, OF_STUDY)
        raise SimulationError(f"a study has no setting {name}; options of its task go into task_options={{...}}.{near}")
    study = _made(values)
    check_needs(study, values, unusual=True)
    return study


def _made(values: Mapping[str, Any]) -> SimulatedStudy:
    values = {"sampling": "none" if values.get("cohort") is None else "lottery"} | dict(values)
    sizes = build(Sizes, {name: values.pop(name) for name in settings_keys(Sizes) if name in values})
    return study_of_size(SimulatedStudy, values, sizes)


def resized(study: StudyConfiguration, places: int, **changed: Any) -> SimulatedStudy:
    """Change values of a study: keys of `SimulatedStudy`, ``participants`` and ``cohort``.

    ``places``: participants of ``study``, if its file doesn't say. Raises as `simulated_study`.
    """
    drawn = study.privacy.sampling != "none"
    kept = drawn and changed.get("sampling") != "none"
    named = kept and "participants" not in changed  # else the population is that number
    values = flat_values(study)
    held = {"participants": study.places or places, "cohort": study.study.participants if kept else None}
    dropped = {"in_a_round": True, "largest_roster": True, "sampling": not drawn, "population": not named}
    values = {name: one for name, one in values.items() if not dropped.get(name)}
    made = _made(values | held | changed)
    check_needs(made, changed)
    return made


class Files(Table):
    """What a simulation reads, and what it writes."""

    data: Path | None = _option(
        None,
        "where a file or subfolder of each participant lies: data of their own, in place of --dataset",
        metavar="FOLDER",
    )
    output: Path | None = _option(
        None,
        "write a line of JSON a round, and a checkpoint, FILE.safetensors, to go on from",
        metavar="FILE",
        shown="no file",
    )
    checkpoint_every: int = _option(
        10,
        "rounds from one checkpoint to the next",
        ge=1,
        needs=("--output, where checkpoints go", lambda files: files.output is not None),
    )


class SimulationOptions(Table):
    """Settings of a simulation besides those of its study."""

    target: Literal["coordinator", "released", "conditional"] = _option(
        "coordinator", "whose epsilon is planned for: coordinator, released, or conditional, for comparison only"
    )
    drop: float = _option(0.0, "share of a round's participants that leave it before their vector", ge=0, lt=1)
    drop_law: Literal["independent", "exact"] = _option(
        "independent", "independent: each with that chance. exact: that share, to whole participants"
    )
    secagg: Literal["ideal", "real"] = _option(
        "ideal", "ideal: the sum it stands for. real: its keys, shares and masks, in memory; slow for many"
    )
    evaluate_every: int = _option(
        1, "rounds from one evaluation to the next; the last is always evaluated", within=(1, 2**31)
    )
    evaluate_on: int = _option(
        0,
        "of the coordinator's examples, those on which all evaluations but the last are made, drawn by the seed",
        shown="all",
        within=(0, 2**31),
    )
    evaluate_each: bool = _option(
        False, "after the last round evaluate the model on each participant's examples, those held out if some are"
    )
    workers: int = _option(1, "processes that train and encode", within=(1, 256))
    threads: int = _option(
        0,
        "threads of each process that train, encode and evaluate",
        shown="the cores divided by --workers; with Ray, and in a pool of processes, 1",
        within=(0, 256),
    )
    engine: Literal["local", "ray"] = _option(
        "local", "local: processes of this machine. ray: workers of Ray, also on the cluster that RAY_ADDRESS names"
    )
    device: Literal["cpu", "cuda", "auto"] = _option("cpu", "of tasks that train with torch: cpu, cuda or auto")


class SimulationSettings(SimulationOptions):
    """One simulation: the same settings give the same cohorts, dropouts and batch orders; noise is always fresh.

    Attributes:
        study: of `simulated_study`; participants may be thousands. Its mechanism may also be "none": clipped updates
            are averaged without noise, which is NOT PRIVATE; its sampling also "poisson" or "fixed", which can be
            planned for but not served. Settings only for a network have no effect.
        seed: of cohorts, dropouts, batch orders and rotations, >= 0. That of the partition is the study's.
        batched: train many participants at once if the task can.
        data: folder with a .csv or .npz of each participant, if the study's data set is "own"; else None.

    Raises SimulationError: a value outside its range, or no setting has such a name.
    """

    study: SimulatedStudy = Field(default_factory=simulated_study)
    seed: int = Field(default=1, ge=0, le=2**63)
    batched: bool = True
    data: str | None = None

    if not TYPE_CHECKING:  # static tools read the fields

        def __init__(self, **values: Any) -> None:
            for name in values.keys() - type(self).model_fields.keys():
                if name in OF_STUDY:
                    raise SimulationError(f"{name} is a setting of the study; use study=simulated_study({name}=...)")
                near = did_you_mean(name, type(self).model_fields)
                raise SimulationError(f"a simulation has no setting {name}.{near}")
            if isinstance(folder := values.get("data"), os.PathLike):
                values["data"] = os.fspath(folder)
            try:
                super().__init__(**values)
            except ValidationError as error:
                sentence = explain(type(self), error.errors(include_url=False)[0])
                raise SimulationError(sentence.rstrip(".")) from error

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.study.privacy.mechanism == NO_NOISE and self.secagg == REAL:
            raise ValueError(
                'mechanism "none" averages updates as they are, so there is nothing to mask; use secagg "ideal", or a '
                "mechanism that codes them"
            )
        if self.data is None and self.study.data.dataset == OWN:
            raise ValueError(
                "data isn't named, and the data set 'own' lies with each participant: name the folder that holds a "
                "file of each, or a data set that is here"
            )
        if self.data is not None and self.study.data.dataset != OWN:
            raise ValueError(
                f"data names a folder of own files, and the study the data set {self.study.data.dataset!r}: leave data "
                "out, or use the data set 'own'"
            )
        if self.secagg == REAL and self.engine == RAY:
            raise ValueError('secagg "real" runs in one process; use the engine "local"')
        sampling = self.study.privacy.sampling
        if self.target == "conditional" and sampling in ("none", "epochs"):
            raise ValueError('the target "conditional" needs sampling; use sampling "fixed" and a cohort')
        if self.by_coins:
            self._check_coins()
        return self

    def _check_coins(self) -> None:
        """Refuse what takes a round of a known number, or of participants that depend on one another."""
        from mechanisms.statement import GAUSSIAN

        privacy = self.study.privacy
        if privacy.mechanism not in (GAUSSIAN, NO_NOISE) or self.secagg == REAL:
            raise ValueError(
                'sampling "poisson" draws any number of participants, so a round\'s noise must not be made of their '
                'shares; use sampling "fixed", whose published figure is the same, or mechanism "gaussian" and secagg '
                '"ideal"'
            )
        if self.drop:
            raise ValueError(
                'with sampling "poisson" leaving by chance is the same as not being drawn; use a smaller cohort, and '
                "drop 0"
            )
        if privacy.population != self.participants:
            raise ValueError(
                f'sampling "poisson" draws from all participants: population is {privacy.population}, and must be '
                f"{self.participants}"
            )
        if self.study.evaluation.of_plan():
            raise ValueError(
                'sampling "poisson" draws a number that nobody knows, so evaluations of participants have no mean; '
                "leave evaluate out"
            )

    def changed(self, **values: Any) -> Self:
        """Return these settings with other values. Raises SimulationError: a value outside its range."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | values)

    @property
    def participants(self) -> int:
        return self.study.places

    @property
    def threads_here(self) -> int:
        """Return the threads of each process."""
        alone = self.engine != RAY and (self.workers > 1 or parent_process() is None)
        return self.threads or (max(1, len(os.sched_getaffinity(0)) // self.workers) if alone else 1)

    @property
    def private(self) -> bool:
        return self.study.privacy.mechanism != NO_NOISE

    @property
    def cohort(self) -> int:
        """Return the most participants of one round; with sampling the drawn number, or the one that coins expect."""
        return self.study.study.participants or 0

    @property
    def by_coins(self) -> bool:
        """Return whether independent coins draw each cohort: `Statement.by_coins`, also without noise."""
        from mechanisms.statement import POISSON

        return self.study.privacy.sampling == POISSON

    def settled(self) -> SimulationSettings:
        """Return these settings with min_survivors and quorum as numbers."""
        return self.changed(study=self.study.settled())

    def plan(self) -> StudyPlan | None:
        """Return the public plan, as of a served study; None without noise; `InfeasiblePlan` if no plan exists."""
        from sordino.planning.study_plan import StudyPlan

        return StudyPlan.of(self.study.plan(target=self.target)) if self.private else None

    def coding(self) -> dict[str, Any]:
        """Return clip rule and sketch, as arguments of `wire.study.plan_study`."""
        from learning.parameters import layers_of

        privacy = self.study.settled().privacy
        assert privacy.clip is not None  # noqa: S101  # settled
        coding = privacy.coding(layers_of(self.study.make_task().contribution_shapes), privacy.clip)
        return {name: value for name, value in coding.items() if name != "rotation"}

    def to_json(self) -> dict[str, Any]:
        """Return every relevant setting as JSON, with min_survivors, quorum and the name of the data settled, and
        digests of named files, own data and the task's own module.
        """
        settled = self.settled().study
        found = flat_values(settled)
        keys = settings_keys(type(settled))
        study = {name: found[name] for name, one in keys.items() if one.table not in _NOT_SIMULATED}
        drawn = settled.privacy.sampling != "none"
        study |= {"participants": settled.places, "cohort": study.pop("in_a_round") if drawn else None}
        study |= {"dataset": settled.data.dataset, "max_attempts": settled.coordinator.max_attempts}
        study["task_options"] = dict(settled.make_task().options.to_mapping())
        named = {"start_from": settled.data.start, "test": settled.data.test, "module": _own_module(settled)}
        study |= {name: _sha256(Path(path)) for name, path in named.items() if path}
        for name in ("in_a_round", "largest_roster", "pause_s"):
            study.pop(name, None)
        found = {"study": json.loads(json.dumps(study, default=str))} | self.model_dump(exclude={"study"})
        return found if self.data is None else found | {"data": _sha256(Path(self.data))}


def _own_module(study: StudyConfiguration) -> str:
    """The file of a task of the user's own, which was made before; empty where the task ships."""
    name = trained_task(study.study.task, study.task).removeprefix(FLOWER).partition(":")
    module = sys.modules.get(name[0]) if name[1] and not name[0].startswith("sordino.") else None
    return getattr(module, "__file__", None) or ""


def _sha256(path: Path) -> str:
    """Of a file, or of all files in a folder."""
    from learning.blocks import file_sha256

    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    listed = [f"{file.relative_to(path)} {file_sha256(file)}" for file in files]
    return f"sha256:{hashlib.sha256(chr(10).join(listed).encode()).hexdigest()}"


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first relevant difference, as ``name was ... and is ...``; None if a simulation may continue."""
    flat_before, flat_now = dotted(before), dotted(now)
    for name in sorted(set(flat_before) | set(flat_now)):
        if name not in WAYS and flat_before.get(name) != flat_now.get(name):
            return f"{name} was {flat_before.get(name)!r} and is {flat_now.get(name)!r}"
    return None
