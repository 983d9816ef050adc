"""What data she brings who joins by code, and whether they look like what the study takes, before anything is sent.

Refused are data by their form alone; what of their values can't be used is told to her, and keeps her from nothing
(decision 0004).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from client.joining.folder import BY_PLACE, DataChoice, JoinedHome, only_process
from learning.data_names import BUILT_IN, OWN, check_dataset_name, located
from learning.task_names import STATISTICS, TASKS, trained_task
from runtime.failure import ExitCode, Failure
from runtime.text import counted

if TYPE_CHECKING:
    from client.enrolment import Look
    from learning.datasets import Dataset

@dataclass(frozen=True)
class JoinOptions:
    """What she chose at the command.

    Attributes:
        home: her folder; None for one named after the study.
        name: of her process on the roster; None for one made of the code.
        dataset, partition, alpha, shards, seed: of her data; None takes those of `client.joining.checks.USUAL_DATA`.
        data: a file of her own, in the place of a part of a set.
        task: module:Class on her machine, where the study's task is none that Sordino brings.
        part, parts: her part of the data, from 1; None for one made of the code, of as many as the plan has;
            `client.joining.folder.BY_PLACE` for the one that her place on the roster decides.
        policy_file: None: the plan that she is shown, once accepted, becomes her policy.
        agreed: don't ask.
        ledger: None for one in the folder.
        kept: is called as soon as her folder is there, before anything is asked for.
    """

    address: str
    code: str = field(repr=False)
    home: Path | None
    policy_file: Path | None = None
    agreed: bool = False
    name: str | None = None
    dataset: str | None = None
    partition: str | None = None
    alpha: float | None = None
    shards: int | None = None
    seed: int | None = None
    part: int | str | None = None
    parts: int | None = None
    data: Path | None = None
    task: str | None = None
    ledger: Path | None = None
    kept: Callable[[], None] = lambda: None


USUAL_DATA: Final[dict[str, Any]] = {
    "dataset": "fashion-mnist-subset",
    "partition": "dirichlet",
    "alpha": 1.0,
    "shards": 2,
    "seed": 1,
}
"""What a participant's data are unless she chooses."""


def choose_data(options: JoinOptions, seen: Look, random_part: int) -> DataChoice:
    """A file of hers, or a part of a set.

    Args:
        random_part: any number: decides which part is hers where she doesn't.

    Raises:
        Failure: no data set, or no part, is called so.
        learning.datasets.DatasetError: the set isn't here.
    """
    plan = seen.document.plan
    if options.data is not None:
        return DataChoice(**(USUAL_DATA | {"dataset": OWN}), parts=0, part=0, file=options.data.absolute())
    parts = options.parts if options.parts is not None else max(plan.clients, plan.population)
    part = random_part % parts if options.part is None else None
    if options.part is not None and options.part != BY_PLACE:
        part = int(options.part) - 1
    if part is not None and not 0 <= part < parts:
        raise Failure(ExitCode.INPUT, f"--part {options.part} is none of {parts} parts of the data: use 1 to {parts}.")
    chosen = {name: getattr(options, name) for name in USUAL_DATA if getattr(options, name) is not None}
    choice = DataChoice(**(USUAL_DATA | chosen), parts=parts, part=part)
    if choice.dataset == OWN:
        raise Failure(ExitCode.INPUT, "--dataset own needs the file: name it with --data FILE instead.")
    return replace(choice, dataset=_found(choice.dataset))


def _found(dataset: str) -> str:
    """The data set's name, its path absolute; that it is there is seen before anything is sent."""
    from learning.datasets import has_part

    try:
        check_dataset_name(dataset)
    except ValueError as error:
        raise Failure(ExitCode.INPUT, f"--dataset {dataset}: {error}.") from None
    dataset = located(dataset, Path.cwd())
    if dataset not in BUILT_IN:
        has_part(dataset, "train")
    return dataset


def read_own_file(options: JoinOptions, file: Path, seen: Look) -> Dataset:
    """Read before anything is sent: who has a place should have data for it. No value of it keeps her away.

    Raises:
        Failure: she also chose how a set is cut.
        learning.datasets.DatasetError: there is no such file, or it is of another form.
    """
    from learning.own_data import read_held

    chosen = [f"--{name}" for name in (*USUAL_DATA, "part", "parts") if getattr(options, name) is not None]
    if chosen:
        raise Failure(ExitCode.INPUT, f"{chosen[0]} says how a data set is cut; --data {file} is hers alone. Use one.")
    return read_held(file, statistics=seen.document.task in STATISTICS)


def read_example(data: DataChoice, seen: Look) -> Dataset | None:
    """One example of a set that is here, for its form; None where nothing is to be seen before she takes part.

    What ships is known to fit tasks as they ship, but not with options that say what examples look like. A module of
    somebody's own is run by nothing here.
    """
    import numpy as np

    from learning.datasets import load_partition

    if trained_task(seen.document.task, seen.document.task_options) not in TASKS:
        return None
    return load_partition(data.dataset, np.zeros(1, dtype=np.int64))


def check_form(held: Dataset, of: str, seen: Look) -> None:
    """Before she is asked: who can't take part needn't read all of it.

    Raises:
        Failure: no examples of this form fit.
    """
    from learning.data_checks import check_form_fits

    document = seen.document
    check_form_fits(document.task, document.task_options, held, of, planned=document.plan.dim)


def unread(file: Path, held: Dataset, seen: Look) -> list[str]:
    """What of her file can't be used."""
    from learning.make_task import make_task
    from learning.own_data import unread_told

    task, options = seen.document.task, dict(seen.document.task_options)
    try:
        told = unread_told(task, make_task(task, options) if task in STATISTICS else None, held, file)
    except ValueError:
        return []
    return [*told, *_other_labels(task, options, held, file)]


def _other_labels(task: str, options: dict[str, Any], held: Dataset, file: Path) -> list[str]:
    """That no training will end, where labels are none of the study's: told to her alone, and never in her way."""
    from learning.make_task import options_of

    if trained_task(task, options) not in TASKS or task in STATISTICS or not len(held):
        return []
    classes = getattr(options_of(task, options), "classes", None)
    if not isinstance(classes, int):
        return []
    count = int(((held.labels < 0) | (held.labels >= classes)).sum())
    if not count:
        return []
    return [
        f"data file {file}: {counted(count, 'label')} of {held.labels.size} {'is' if count == 1 else 'are'} none from "
        f"0 to {classes - 1}, as the study's task takes them: this participant takes part, is charged, and sends zeros"
    ]


def try_own(of: str, held: Dataset, seen: Look) -> None:
    """Try the study's task on the form of her data: once she agreed, for its options are a stranger's till then.

    Raises:
        Failure: no examples of this form fit; what stands in it makes no difference.
    """
    from learning.data_checks import check_task_takes

    document = seen.document
    check_task_takes(document.task, document.task_options, held, of, planned=document.plan.dim)


if TYPE_CHECKING:
    from client.enrolment import Look
    from client.policy_file import PolicyTable
    from wire.records.ledger_totals import Totals
    from wire.study import StudyDocument

_NOTHING: Final = "Nothing was sent, and no folder was made."


def read_policy(given: Path) -> tuple[PolicyTable, bytes]:
    """A policy, checked, with the bytes of its file.

    Args:
        given: the file, or a folder with a policy.toml.

    Raises:
        runtime.settings_file.ConfigurationError: it can't be used.
    """
    from client.policy_file import POLICY_FILE, load_policy

    file = given / POLICY_FILE if given.is_dir() else given
    return load_policy(file), file.read_bytes()


def check_accepts(
    given: Path,
    policy: PolicyTable,
    document: StudyDocument,
    study_sha256: bytes,
    *,
    nothing: str,
    totals: Totals | None = None,
) -> None:
    """Hold a study against a policy that was given as a file.

    Args:
        nothing: what was not done, as a sentence.
        totals: of her ledger; None where it isn't looked at.

    Raises:
        Failure: the policy refuses it.
    """
    from client.policy import PolicyRefusal, check_terms

    try:
        check_terms(policy.to_policy(), document, study_sha256, totals)
    except PolicyRefusal as error:
        raise Failure(ExitCode.INPUT, f"{given}: your policy refuses this study ({error}). {nothing}") from None


def accepted_plan(seen: Look) -> dict[str, Any]:
    """The plan that she accepts as her policy: this very study document, and no worse terms."""
    from secagg.sharing import CURIOUS

    plan = seen.document.plan
    # As with a trusted mechanism: she was told what the coordinator could do (`joining.description`), and agreed.
    trusted = {"curious_coordinator": True} if plan.adversary == CURIOUS else {}
    return {
        "max_epsilon": plan.budget_coordinator,
        "max_delta": plan.delta,
        "mechanisms": [plan.mechanism],
        "min_cohort": plan.quorum,
        "min_survivors": plan.min_survivors,
        "min_honest_survivors": plan.h_min,
        "min_colluders": plan.colluders,
        "study_digests": [seen.study_sha256.hex()],
        **trusted,
    }


def spent_in(ledger: Path | None) -> Totals:
    """What a ledger that she names holds already; nothing where there is none yet.

    Raises:
        Failure: it can't be read, or was changed.
    """
    from runtime.durable import StorageError
    from wire.records.ledger import head_file, read_ledger
    from wire.records.ledger_totals import Totals

    if ledger is None or not (ledger.exists() or head_file(ledger).exists()):
        return Totals()
    try:
        return read_ledger(ledger)[2]
    except StorageError as error:
        raise Failure(ExitCode.INPUT, f"--ledger: {error}. {_NOTHING}") from None


def check_host(
    text: str, file: Path | None, policy: PolicyTable | None, seen: Look, totals: Totals | None = None
) -> None:
    """Hold the study against host.toml as it will be, before anything is sent or written.

    Args:
        text: of host.toml.
        file, policy: where she gave one, as `read_policy` found it.
        totals: of her ledger, as `spent_in` found it.

    Raises:
        Failure: a value in host.toml can't be, or her policy refuses the study.
    """
    from pydantic import ValidationError

    from client.host_file import HostConfiguration
    from client.policy import PolicyRefusal, check_study

    content = tomllib.loads(text)
    if policy is not None and file is not None:
        check_accepts(file, policy, seen.document, seen.study_sha256, nothing=_NOTHING, totals=totals)
        content["policy"] = policy.model_dump(exclude_none=True)
    try:
        settings = HostConfiguration(**content).settings()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) + ": " if first["loc"] else ""
        message = str(first["msg"]).removeprefix("Value error, ")
        raise Failure(ExitCode.INPUT, f"{where}{message}. Change the option that it comes from.") from None
    try:
        check_study(settings, seen.document, seen.study_sha256, totals)
    except PolicyRefusal as error:
        raise Failure(ExitCode.INPUT, f"your policy refuses this study ({error}). {_NOTHING}") from None


async def take_again(options: JoinOptions, home: JoinedHome, say: Callable[[str], None]) -> None:
    """Hold the options against the folder, and keep the policy, before an answer is asked for or used.

    Raises:
        Failure: an option says something else than the folder, or the policy refuses the study; nothing is changed.
        runtime.settings_file.ConfigurationError: the policy file can't be used; nothing is changed.
        client.enrolment.EnrolmentUnavailable, client.enrolment.EnrolmentRefused: the study can't be looked at.
    """
    held = home.settings()
    _compare(options, home, held)
    if options.policy_file is None:
        return
    from client.enrolment import look
    from wire.join_code import fingerprint

    policy, data = read_policy(options.policy_file)
    authority = bytes.fromhex(held["study"]["authority_public_key"])
    seen = await look(held["coordinator"]["enrolment"], fingerprint(authority))
    if held["study"].get("sha256", seen.study_sha256.hex()) != seen.study_sha256.hex():
        raise Failure(
            ExitCode.INPUT,
            f"{home.path}: the coordinator now shows another study than the one that you agreed to. Ask the study's "
            "owner why; nothing was changed.",
        )
    check_accepts(options.policy_file, policy, seen.document, seen.study_sha256, nothing="Nothing was changed.")
    with only_process(home):
        if home.keep_policy(data):
            say(f"Your policy in {home.path} is now that of {options.policy_file}.")


def _compare(options: JoinOptions, home: JoinedHome, held: dict[str, Any]) -> None:
    from wire.enrolment import read_request

    data, host, first = held["data"], held["host"], held["participants"][0]
    wished = read_request(home.request).request.host
    ledger = os.path.abspath(home.path / host.get("ledger", "ledger.sqlite"))
    # The authority may have given another name since.
    name = host["name"] if options.name != wished else wished
    pairs: dict[str, tuple[Any, Any]] = {
        "": (options.address or None, held["coordinator"].get("enrolment")),
        "--name": (options.name, name),
        "--ledger": (None if options.ledger is None else os.path.abspath(options.ledger), ledger),
        "--dataset": (None if options.dataset is None else located(options.dataset, Path.cwd()), data.get("dataset")),
        "--partition": (options.partition, data.get("partition")),
        "--alpha": (options.alpha, data.get("alpha")),
        "--shards": (options.shards, data.get("shards")),
        "--data": (None if options.data is None else os.path.abspath(options.data), first.get("data")),
        "--seed": (options.seed, data.get("seed")),
        "--part": (options.part, _part(first.get("part"), options.part == BY_PLACE and home.by_place)),
        "--parts": (options.parts, data.get("parts")),
    }
    other = {option: pair for option, pair in pairs.items() if pair[0] is not None and pair[0] != pair[1]}
    if not other:
        return
    holds = ", ".join(
        f"no {option}" if there is None else f"{option} {there}".strip() for option, (_, there) in other.items()
    )
    given = ", ".join(f"{option} {here}".strip() for option, (here, _) in other.items())
    raise Failure(
        ExitCode.INPUT,
        f"{home.path} already holds a join by this code with {holds}, not {given}. Give what it holds to go on with "
        "it, or ask for another code and name a new folder with --home.",
    )


def _part(held: int | str | None, by_place: bool) -> int | str | None:
    """As the option says it."""
    return BY_PLACE if by_place or held == BY_PLACE else None if held is None else int(held) + 1
