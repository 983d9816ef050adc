"""What is checked before anything is sent: the participant's options, its data, its policy and its ledger.

Data are refused for their form alone. Values that can't be used are reported to the participant and don't keep it from
joining: the coordinator would see that it stays away (decision 0004).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from client.enrolment import Look, look
from client.host_file import HostConfiguration
from client.joining.folder import BY_PLACE, DataChoice, JoinedHome, only_process
from client.policy import PolicyRefusal, check_study, check_terms
from client.policy_file import POLICY_FILE, PolicyTable, load_policy
from learning.data_checks import check_form_fits, check_task_takes
from learning.data_names import BUILT_IN, OWN, check_dataset_name, located
from learning.datasets import Dataset, has_part, load_partition
from learning.make_task import make_task, options_of
from learning.options import OptionError
from learning.own_data import read_held, unread_told
from learning.task_names import STATISTICS, TASKS, trained_task
from runtime.durable import StorageError
from runtime.failure import InputFailure
from runtime.text import counted, peer_text
from secagg.sharing import CURIOUS
from wire.enrolment import read_request
from wire.join_code import fingerprint
from wire.records.ledger import head_file, read_ledger
from wire.records.ledger_totals import Totals
from wire.study import StudyDocument

_NOTHING: Final = "Nothing was sent, and no folder was made."
USUAL_DATA: Final[dict[str, Any]] = {
    "dataset": "fashion-mnist-subset",
    "partition": "dirichlet",
    "alpha": 1.0,
    "shards": 2,
    "seed": 1,
}
"""The data of a participant where no option names others."""


@dataclass(frozen=True)
class JoinOptions:
    """The options of `sordino join` with a join code.

    Attributes:
        code: may be empty for `client.joining.joining.get_place`, and so may the address.
        home: the participant's folder; None for one named after the study.
        policy_file: None: the plan that is shown becomes the policy once it is accepted.
        agreed: join without a question.
        name: of the process on the roster; None for one derived from the code.
        dataset, partition, alpha, shards, seed: None for those of `USUAL_DATA`.
        part, parts: the part of the data, from 1, and how many there are; None for a part derived from the code, of as
            many as the plan has participants; `BY_PLACE` for the part that the place on the roster decides.
        data: the participant's own file, in the place of a part of a set.
        task: module:Class on this machine, where the study's task isn't one of Sordino's.
        ledger: None for one in the folder.
        kept: is called as soon as the folder is written, before the request leaves.
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


# ------------------------------------------------------------ the task


def check_task(options: JoinOptions, task: str, task_options: Mapping[str, object]) -> None:
    """Code from outside Sordino runs here only if the participant has named it: to import a module is to run it.

    Raises:
        InputFailure: the study's task is a module's that --task doesn't name, or --task names another one; or it is a
            statistic with impossible options, which nobody should be asked to agree to.
    """
    trained = trained_task(task, task_options)
    if options.task not in (None, task, trained):
        raise InputFailure(f"--task {options.task}: the study's task is {task}.")
    if trained not in TASKS and options.task != trained:
        raise InputFailure(
            f"the study's task {trained!r} is no part of Sordino: joining would run that module from this machine. "
            f"Read it, and if you trust it add --task {peer_text(trained)}."
        )
    if task in STATISTICS:
        try:
            make_task(task, dict(task_options))
        except OptionError as error:
            raise InputFailure(
                f"the study's task {task!r} is impossible ({peer_text(str(error))}): tell the study's owner."
            ) from None


# ------------------------------------------------------------ the data


def choose_data(options: JoinOptions, seen: Look, random_part: int) -> DataChoice:
    """The participant's own file, or a part of a set.

    Args:
        random_part: any number: decides the part where no option does.

    Raises:
        InputFailure: there is no such data set or part.
        learning.blocks.DatasetError: the set isn't on this machine.
    """
    plan = seen.document.plan
    if options.data is not None:
        return DataChoice(**(USUAL_DATA | {"dataset": OWN}), parts=0, part=0, file=options.data.absolute())
    parts = options.parts if options.parts is not None else max(plan.clients, plan.population)
    part = random_part % parts if options.part is None else None
    if options.part is not None and options.part != BY_PLACE:
        part = int(options.part) - 1
    if part is not None and not 0 <= part < parts:
        raise InputFailure(f"--part {options.part} is none of {parts} parts of the data: use 1 to {parts}.")
    chosen = {name: getattr(options, name) for name in USUAL_DATA if getattr(options, name) is not None}
    choice = DataChoice(**(USUAL_DATA | chosen), parts=parts, part=part)
    if choice.dataset == OWN:
        raise InputFailure("--dataset own needs the file: name it with --data FILE instead.")
    try:
        check_dataset_name(choice.dataset)
    except ValueError as error:
        raise InputFailure(f"--dataset {choice.dataset}: {error}.") from None
    dataset = located(choice.dataset, Path.cwd())
    if dataset not in BUILT_IN:
        has_part(dataset, "train")
    return replace(choice, dataset=dataset)


def read_own_file(options: JoinOptions, file: Path, seen: Look) -> Dataset:
    """Read before anything is sent: a participant that gets a place should have data for it.

    Raises:
        InputFailure: another option says how a set is cut.
        learning.blocks.DatasetError: there is no such file, or it has another form.
    """
    chosen = [f"--{name}" for name in (*USUAL_DATA, "part", "parts") if getattr(options, name) is not None]
    if chosen:
        raise InputFailure(f"{chosen[0]} says how a data set is cut, and the file of --data isn't cut: use one.")
    return read_held(file, statistics=seen.document.task in STATISTICS)


def read_example(data: DataChoice, seen: Look) -> Dataset | None:
    """One example of a set on this machine, for its form; None where the task is a module's, which isn't run here.

    The sets and tasks of Sordino fit each other, but not with every option that states the examples' form.
    """
    if trained_task(seen.document.task, seen.document.task_options) not in TASKS:
        return None
    return load_partition(data.dataset, np.zeros(1, dtype=np.int64))


def check_form(held: Dataset, of: str, seen: Look) -> None:
    """Before the question, so that nobody reads the description of a study that can't be joined.

    Raises:
        Failure: no examples of this form fit.
    """
    document = seen.document
    check_form_fits(document.task, document.task_options, held, of, planned=document.plan.dim)


def try_own(of: str, held: Dataset, seen: Look) -> None:
    """Try the study's task on zeros in the form of the data; after the question, because its options are a stranger's.

    Raises:
        Failure: no examples of this form fit; their values make no difference.
    """
    document = seen.document
    check_task_takes(document.task, document.task_options, held, of, planned=document.plan.dim)


def unread(file: Path, held: Dataset, seen: Look) -> list[str]:
    """Sentences, for the participant alone, about the values of its file that can't be used."""
    task, options = seen.document.task, dict(seen.document.task_options)
    try:
        sentences = unread_told(task, make_task(task, options) if task in STATISTICS else None, held, file)
    except ValueError:
        return []
    if trained_task(task, options) not in TASKS or task in STATISTICS or not len(held):
        return sentences
    classes = getattr(options_of(task, options), "classes", None)
    if isinstance(classes, int) and (count := int(((held.labels < 0) | (held.labels >= classes)).sum())):
        are = "is none" if count == 1 else "are none"
        sentences.append(
            f"data file {file}: {counted(count, 'label')} of {held.labels.size} {are} of the labels 0 to {classes - 1} "
            "of the study's task: no training will succeed; this participant takes part, is charged, and sends zeros"
        )
    return sentences


# ------------------------------------------------------------ the policy and the ledger


def read_policy(given: Path) -> tuple[PolicyTable, bytes]:
    """A policy, checked, with the bytes of its file.

    Args:
        given: the file, or a folder with a policy.toml.

    Raises:
        runtime.settings_file.ConfigurationError: it can't be used.
    """
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
    """Check a study against a policy that was given as a file.

    Args:
        nothing: a sentence that says what was not done.
        totals: of the participant's ledger; None where it isn't looked at.

    Raises:
        InputFailure: the policy refuses it.
    """
    try:
        check_terms(policy.to_policy(), document, study_sha256, totals)
    except PolicyRefusal as error:
        raise InputFailure(f"{given}: your policy refuses this study ({error}). {nothing}") from None


def accepted_plan(seen: Look) -> dict[str, Any]:
    """The plan that is shown, as the policy of a participant that accepts it: this study document, no worse terms."""
    plan = seen.document.plan
    # As with a trusted mechanism: the description has said what the coordinator could do.
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
    """What the ledger of --ledger holds already; nothing where there is none yet.

    Raises:
        InputFailure: it can't be read, or was changed.
    """
    if ledger is None or not (ledger.exists() or head_file(ledger).exists()):
        return Totals()
    try:
        return read_ledger(ledger)[2]
    except StorageError as error:
        raise InputFailure(f"--ledger: {error}. {_NOTHING}") from None


def check_host(text: str, file: Path | None, policy: PolicyTable | None, seen: Look, totals: Totals) -> None:
    """Check the study against host.toml as it will be written.

    Args:
        text: of host.toml.
        file, policy: of --policy, as `read_policy` returns it.
        totals: as `spent_in` returns them.

    Raises:
        InputFailure: a value in host.toml is invalid, or the policy refuses the study.
    """
    content = tomllib.loads(text)
    for entry in content["participants"]:  # a place that isn't known yet can't stand in the way: each one has its part
        entry |= {"part": 0} if entry.get("part") == BY_PLACE else {}
    if policy is not None and file is not None:
        check_accepts(file, policy, seen.document, seen.study_sha256, nothing=_NOTHING, totals=totals)
        content["policy"] = policy.model_dump(exclude_none=True)
    try:
        settings = HostConfiguration(**content).settings()
        check_study(settings, seen.document, seen.study_sha256, totals)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) + ": " if first["loc"] else ""
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InputFailure(f"{where}{message}. Change the option that it comes from.") from None
    except PolicyRefusal as error:
        raise InputFailure(f"your policy refuses this study ({error}). {_NOTHING}") from None


# ------------------------------------------------------------ a folder that holds the join already


async def check_again(options: JoinOptions, home: JoinedHome, say: Callable[[str], None]) -> None:
    """Check the options of a repeated command against its folder, and keep its policy, before an answer is used.

    The folder stays as it was begun, because the request or the data were chosen with it: an option must say what the
    folder says. Another policy alone replaces the one that it holds, if it accepts the study.

    Raises:
        InputFailure: an option and the folder differ, or the policy refuses the study; nothing is changed.
        runtime.settings_file.ConfigurationError: the policy file can't be used; nothing is changed.
        client.enrolment.EnrolmentUnavailable, client.enrolment.EnrolmentRefused: the study can't be looked at.
    """
    held = home.settings()
    _compare(options, home, held)
    if options.policy_file is None:
        return
    policy, data = read_policy(options.policy_file)
    authority = bytes.fromhex(held["study"]["authority_public_key"])
    seen = await look(held["coordinator"]["enrolment"], fingerprint(authority))
    if held["study"].get("sha256", seen.study_sha256.hex()) != seen.study_sha256.hex():
        raise InputFailure(
            f"{home.path}: the coordinator now shows another study than the one that you agreed to. Ask the study's "
            "owner why; nothing was changed."
        )
    check_accepts(options.policy_file, policy, seen.document, seen.study_sha256, nothing="Nothing was changed.")
    with only_process(home):
        if home.keep_policy(data):
            say(f"Your policy in {home.path} is now that of {options.policy_file}.")


def _compare(options: JoinOptions, home: JoinedHome, held: dict[str, Any]) -> None:
    data, host, first = held["data"], held["host"], held["participants"][0]
    asked = read_request(home.request).request.host
    ledger = os.path.abspath(home.path / host.get("ledger", "ledger.sqlite"))
    part: int | str | None = first.get("part")
    if part == BY_PLACE or (options.part == BY_PLACE and home.by_place):
        part = BY_PLACE
    elif part is not None:
        part = int(part) + 1
    pairs: dict[str, tuple[Any, Any]] = {
        "": (options.address or None, held["coordinator"].get("enrolment")),
        # The authority may have given another name since.
        "--name": (options.name, host["name"] if options.name != asked else asked),
        "--ledger": (None if options.ledger is None else os.path.abspath(options.ledger), ledger),
        "--dataset": (None if options.dataset is None else located(options.dataset, Path.cwd()), data.get("dataset")),
        "--partition": (options.partition, data.get("partition")),
        "--alpha": (options.alpha, data.get("alpha")),
        "--shards": (options.shards, data.get("shards")),
        "--data": (None if options.data is None else os.path.abspath(options.data), first.get("data")),
        "--seed": (options.seed, data.get("seed")),
        "--part": (options.part, part),
        "--parts": (options.parts, data.get("parts")),
    }
    other = {option: pair for option, pair in pairs.items() if pair[0] is not None and pair[0] != pair[1]}
    if not other:
        return
    holds = ", ".join(
        f"no {option}" if there is None else f"{option} {there}".strip() for option, (_, there) in other.items()
    )
    given = ", ".join(f"{option} {here}".strip() for option, (here, _) in other.items())
    raise InputFailure(
        f"{home.path} already holds a join by this code with {holds}, not {given}. To continue it repeat what it "
        "holds; otherwise ask for another code and name a new folder with --home."
    )
