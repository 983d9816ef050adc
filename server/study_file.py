"""One study, as its owner configures it: the one model of study.toml.

Every key is declared once, with its unit, range, default and meaning (`runtime.settings_keys`). From these come the
options of ``sordino init``, ``plan`` and ``simulate``, the commented study.toml that ``init`` writes, its validation,
the environment variables, the JSON schema and the table in docs/study_file.md. ``load`` reads a file once and gives
back a frozen :class:`StudyConfiguration` with absolute paths.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from learning.data_names import APP, BROUGHT, check_loaded, located
from learning.options import OptionError
from learning.task_names import DEFAULT_RATES, STATISTICS
from runtime.settings_file import (
    ConfigurationError,
    Settings,
    TaskOption,
    absolute,
    check_files,
    number_if_it_is_one,
    read_settings,
)
from runtime.settings_keys import key
from server.study_tables import (
    PARTICIPANTS,
    CoordinatorTable,
    DataTable,
    DeadlineTable,
    EngineTable,
    EvaluationTable,
    PrivacyTable,
    ServerOptimizerTable,
    StudyTable,
)

if TYPE_CHECKING:
    from learning.datasets import Dataset
    from learning.learner import Learner
    from learning.task import Task
    from mechanisms.evaluation import Evaluation
    from mechanisms.plan import Plan
    from wire.records.roster_file import RosterFile
    from wire.study import StudyDocument

STUDY_FILE = "study.toml"
_HINT = "Name a study's folder or its study.toml; `sordino init DIR` makes one."


class StudyConfiguration(Settings):
    """One study as its owner configured it; frozen, validated once.

    ``SORDINO_COORDINATOR__LISTEN=0.0.0.0:8443`` and the like override single keys of the file.
    """

    study: StudyTable = key(help="", option=None)
    task: dict[str, TaskOption] = key(
        default_factory=dict, help="(fixed) what each participant computes in a round", option="task_options"
    )
    data: DataTable = key(
        DataTable(), "each host.toml states its own; signed is only whether the data set is own", option=None
    )
    privacy: PrivacyTable = key(help="(fixed)", option=None)
    evaluation: EvaluationTable = key(EvaluationTable(), "", option=None)
    deadlines: DeadlineTable = key(
        DeadlineTable(), "longest wait in seconds; a phase ends early when all have answered", option=None
    )
    server_optimizer: ServerOptimizerTable = key(ServerOptimizerTable(), "", option=None)
    engine: EngineTable = key(EngineTable(), "how many processes the coordinator is", option=None)
    coordinator: CoordinatorTable = key(CoordinatorTable(), "paths are relative to this file", option=None)

    @property
    def places(self) -> int:
        """The largest roster that the plan covers; 0 where neither it nor the size of a round is stated."""
        return self.privacy.largest_roster or self.privacy.population or self.study.participants or 0

    def make_task(self) -> Task:
        """The study's task. Raises `OptionError`, `TaskUnavailable`: it can't be made."""
        from learning.make_task import make_task

        return make_task(self.study.task, dict(self.task))

    def make_learner(self, task: Task, data: Dataset) -> Learner:
        """The coordinator's half, before the first round, evaluated on ``data``.

        Raises learning.options.OptionError: it can't serve as many rounds, or begin with the file named.
        """
        from learning.checkpoints import CheckpointError
        from learning.learner import ModelLearner

        learner = task.learner(self.server_optimizer.make(self.study.rounds), data)
        learner.prepare(self.study.rounds)
        if self.data.start:
            if not isinstance(learner, ModelLearner):
                raise OptionError(f"task {task.name!r} has no model that could begin from a file: leave start_from out")
            try:
                learner.start_from(Path(self.data.start))
            except CheckpointError as error:
                raise OptionError(f"start_from: {error}") from error
        return learner

    def _clip(self, task: Task) -> float:
        from learning.make_task import clip_of

        privacy = self.privacy
        return clip_of(task, privacy.clip, adaptive=privacy.clip_update != "fixed", sketch=privacy.sketch_rows > 0)

    def _evaluation(self, task: Task) -> Evaluation:
        found = self.evaluation.of_plan()
        if found and not getattr(task, "judged", ()):  # a class of the user's own may lack it
            raise OptionError(
                f"task {task.name!r} has no model that participants could evaluate, or nothing that evaluates it: "
                "leave evaluate out"
            )
        return found

    def settled(self) -> Self:
        """With ``clip``, ``min_survivors``, ``quorum`` and the optimizer's ``rate`` as numbers.

        Raises learning.options.OptionError: the task can't be made, or the clip would distort what it computes.
        """
        from secagg.parameters import assumed_colluders, colluders_in_cohort, default_min_survivors
        from wire.study import cohorts_drawn

        privacy, clients = self.privacy, self.study.participants or 0
        survivors = privacy.min_survivors
        if survivors is None:
            shares = (privacy.adversarial, privacy.max_dropout)
            colluders = assumed_colluders(clients, *shares)
            if privacy.population is not None:
                draws = cohorts_drawn(privacy.sampling, self.study.rounds)
                sizes = {privacy.population, self.places}
                colluders = max(colluders, *(colluders_in_cohort(size, clients, *shares, draws) for size in sizes))
            survivors = default_min_survivors(clients, colluders, privacy.max_dropout)
        optimizer = self.server_optimizer
        rate = DEFAULT_RATES.get(optimizer.name, 1.0) if optimizer.rate is None else optimizer.rate
        settled = {
            "clip": self._clip(self.make_task()),
            "min_survivors": survivors,
            "quorum": privacy.quorum or survivors,
        }
        return self.model_copy(
            update={
                "privacy": privacy.model_copy(update=settled),
                "server_optimizer": optimizer.model_copy(update={"rate": rate}),
            }
        )

    def plan(self, participants: int | None = None, **others: Any) -> Plan:
        """The plan of this study.

        Args:
            participants: most of one round, where the file doesn't say.
            others: further arguments of `wire.study.plan_study`, for plans that aren't served.

        Raises mechanisms.plan.InfeasiblePlan: no plan keeps the budget and the protocol's rules;
        learning.options.OptionError: the task can't be made, or the clip would distort what it computes.
        """
        from learning.parameters import layers_of
        from wire.study import plan_study

        task = self.make_task()
        layers = layers_of(task.contribution_shapes)
        return plan_study(
            **self.privacy.of_plan(),
            clients=self.study.participants or participants or 0,
            dim=sum(layers),
            rounds=self.study.rounds,
            **self.privacy.coding(layers, self._clip(task)),
            evaluation=self._evaluation(task),
            **others,
        )

    def document(self, participants: int | None = None) -> StudyDocument:
        """The terms of this study, which its authority signs. Arguments and errors as of `plan`."""
        from wire.study import StudyDocument

        # "2", 2 and 2.0 are the same option, which a file may give back in another form: not two documents.
        options = {}
        for name, given in self.task.items():
            value = number_if_it_is_one(given)
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            options[name] = int(value) if whole else value
        return StudyDocument(
            study=self.study.name,
            task=self.make_task().name,
            task_options=options,
            plan=self.plan(participants),
            roster_valid_s=math.ceil(self.study.roster_valid_h * 3600),  # 0 only where it says 0
            own_data=self.data.dataset in BROUGHT,
        )

    @model_validator(mode="after")
    def _tables_agree(self) -> Self:
        if self.privacy.sampling != "none" and self.study.participants is None:
            sampling = self.privacy.sampling
            raise ValueError(f'study.participants is missing: with sampling = "{sampling}" it says how many are drawn')
        check_loaded(self.study.task, self.data.dataset)
        if self.data.dataset == APP and self.data.test:
            raise ValueError("data.test has no effect: the coordinator doesn't evaluate a Flower app. Leave it out")
        own = self.data.test or self.data.dataset not in BROUGHT
        here = not self.task.get("personal") and self.study.task not in STATISTICS
        if self.evaluation.patience and not (self.evaluation.by == PARTICIPANTS or (own and here)):
            name = "name test examples of the coordinator's in data.test (--test), " if here else ""
            raise ValueError(
                f"evaluation.patience has no figure to wait for: leave it out, {name}or have a model evaluated by its "
                f'participants (evaluation.by = "{PARTICIPANTS}", --evaluate)'
            )
        offset, longest = self.privacy.offer_offset_s, self.deadlines.masked_input_s
        if offset >= longest:
            raise ValueError(
                f"privacy.offer_offset_s = {offset:g} is not below deadlines.masked_input_s = {longest:g}: every offer "
                "would be late. Set the deadline to what vectors need beyond the offset"
            )
        return self

    def roster_file(self) -> RosterFile:
        """The roster on disk. Raises `ConfigurationError`: the authority's public key can't be used."""
        from wire.records.roster_file import ENROLMENT_FOLDER, RosterFile

        table = self.coordinator
        return RosterFile(
            table.roster,
            table.lottery,
            table.state.parent / ENROLMENT_FOLDER,
            study=self.study.name,
            authority_public=self.read_authority_public_key(),
        )

    def read_authority_public_key(self) -> bytes:
        """The 32 bytes of the key that signs rosters.

        Raises ConfigurationError: the file isn't 64 hexadecimal digits.
        """
        path = self.coordinator.authority_public_key
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != 32:
            raise ConfigurationError(
                f"{path}: not an Ed25519 public key (64 hexadecimal digits). "
                "Copy authority.pub from where the authority's key was made."
            )
        return key


def load(path: Path) -> StudyConfiguration:
    """Read a study's file, or the ``study.toml`` in a study's folder; all paths come back absolute.

    Raises ConfigurationError: the file, a key in it, or a file that it names can't be used.
    """
    file = path / STUDY_FILE if path.is_dir() else path
    configuration = read_settings(StudyConfiguration, file, hint=_HINT)
    size, privacy = ("study.participants", configuration.study.participants), configuration.privacy
    counts = [(f"privacy.{name}", getattr(privacy, name)) for name in ("min_survivors", "quorum", "population")]
    for (name, given), (most, limit) in [(counts[0], size), (counts[1], size), (size, counts[2])]:
        if given and limit and given > limit:
            raise ConfigurationError(f"{file}: {name} = {given} is above {most} = {limit}. Set it to {limit} or less.")
    base = file.resolve().parent
    table = absolute(configuration.coordinator, base)
    made_later = {"state", "lottery", "transcript_key"} | (set() if table.enrolment_listen else {"card"})
    paths = {name: value for name, value in table if isinstance(value, Path) and name not in made_later}
    readable = {f"coordinator.{name}": value for name, value in paths.items()}
    if configuration.data.test and not (base / configuration.data.test).is_dir():
        readable["data.test"] = base / configuration.data.test
    if configuration.data.start:
        readable["data.start"] = base / configuration.data.start
    check_files(file, readable, hint="Correct the path, or restore the file from a copy.")
    data = configuration.data
    files = {name: str(base / given) if (given := getattr(data, name)) else "" for name in ("test", "start")}
    located_data = data.model_copy(update=files | {"dataset": located(data.dataset, base)})
    return configuration.model_copy(update={"coordinator": table, "data": located_data})
