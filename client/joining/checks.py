"""Checks before anything is sent: of the participant's options, data, policy and ledger.

Data are refused only for their form. Unusable values are reported to the participant and don't keep it from joining:
the coordinator would see that it stays away (decision 0004).
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from client.enrolment import Look, look
from client.host_file import DataTable, HostConfiguration, HostTable
from client.joining.description import changed_terms, listed, terms_of
from client.joining.folder import BY_PLACE, HOST_FILE, DataChoice, JoinedHome, only_process
from client.joining.options import JoinOptions
from client.journal import newest_seen
from client.policy import PolicyRefusal, check_study, check_terms
from client.policy_file import POLICY_FILE, PolicyTable, load_policy
from learning.data_names import APP, BUILT_IN, OWN, check_dataset_name, located
from learning.datasets import Dataset, has_part, load_partition
from learning.make_task import make_task, options_of
from learning.options import OptionError
from learning.own_data import other_labels, read_held, unread_told
from learning.task_names import FLOWER, STATISTICS, TASKS, trained_task
from runtime.durable import StorageError
from runtime.failure import InputFailure
from runtime.text import minute, peer_text, terminal_width
from secagg.sharing import CURIOUS
from wire.enrolment import read_request
from wire.join_code import fingerprint
from wire.records.ledger import is_begun, read_ledger
from wire.records.ledger_totals import Totals
from wire.study import StudyDocument

_NOTHING: Final = "Nothing was sent, and no folder was made."
USUAL_DATA: Final[dict[str, Any]] = DataTable().model_dump(exclude={"parts"})
"""The data of a participant if no option names others."""


# ------------------------------------------------------------ the task


def check_task(options: JoinOptions, task: str, task_options: Mapping[str, object]) -> None:
    """Code from outside Sordino runs here only if the participant named it: to import a module is to run it.

    Raises InputFailure if --task doesn't name that code or names another task, and for a statistic with impossible
    options, before the participant is asked.
    """
    trained = trained_task(task, task_options)
    if options.task not in (None, task, trained):
        raise InputFailure(f"--task {options.task}: the study's task is {task}.")
    if trained not in TASKS and options.task != trained:
        raise InputFailure(
            f"the study's task {trained!r} is not part of Sordino: joining would run that module from this machine. "
            f"Read it, and if you trust it, add --task {peer_text(trained)}."
        )
    if task in STATISTICS:
        try:
            make_task(task, dict(task_options))
        except OptionError as error:
            raise InputFailure(
                f"the study's task {task!r} is impossible ({peer_text(str(error))}): inform the study's owner."
            ) from None


# ------------------------------------------------------------ the data


def choose_data(options: JoinOptions, seen: Look, random_part: int) -> DataChoice:
    """The participant's own file, or a part of a set; ``random_part``, any number, decides where no option does.

    Raises InputFailure if there is no such data set or part, `learning.blocks.DatasetError` if it isn't on this
    machine.
    """
    plan, app = seen.document.plan, seen.document.task.startswith(FLOWER)
    if app and (options.data_identity is None or options.data is not None or options.dataset not in (None, APP)):
        raise InputFailure(
            "the study's task is a Flower app, which loads your data by itself: add --data-identity NAME, a name "
            "for these data that is the same in all studies over them, and leave --data and --dataset out."
        )
    if options.data_identity is not None and not app:
        raise InputFailure("--data-identity names data that a Flower app loads, and the study's task is none.")
    if options.data is not None:
        return DataChoice(**(USUAL_DATA | {"dataset": OWN}), parts=0, part=0, file=options.data.absolute())
    # An app is given all its data unless the owner cuts them: what its identity names mustn't depend on the terms.
    parts = options.parts if options.parts is not None else 1 if app else max(plan.clients, plan.population)
    part = random_part % parts if options.part is None else None
    if options.part is not None and options.part != BY_PLACE:
        part = int(options.part) - 1
    if part is not None and not 0 <= part < parts:
        raise InputFailure(f"--part {options.part} is outside the {parts} parts of the data: use 1 to {parts}.")
    chosen = {name: getattr(options, name) for name in USUAL_DATA if getattr(options, name) is not None}
    if app:
        chosen["dataset"] = APP
    choice = DataChoice(**(USUAL_DATA | chosen), parts=parts, part=part, identity=options.data_identity)
    if app:
        return choice
    if choice.dataset == OWN:
        raise InputFailure("--dataset own needs the file: name it with --data FILE instead.")
    try:
        check_dataset_name(choice.dataset)
    except ValueError as error:
        raise InputFailure(f"--dataset {choice.dataset} {error}.") from None
    dataset = located(choice.dataset, Path.cwd())
    if dataset not in BUILT_IN:
        has_part(dataset, "train")
    return replace(choice, dataset=dataset)


def read_own_file(options: JoinOptions, file: Path, seen: Look) -> Dataset:
    """The examples of a participant's own file.

    Raises InputFailure with an option for the cut of a set, `learning.blocks.DatasetError` for a missing or unusable
    file.
    """
    chosen = [f"--{name}" for name in (*USUAL_DATA, "part", "parts") if getattr(options, name) is not None]
    if chosen:
        raise InputFailure(f"{chosen[0]} states how a data set is cut, and the file of --data isn't cut: use one.")
    return read_held(file, trained_task(seen.document.task, seen.document.task_options))


def read_example(data: DataChoice, seen: Look) -> Dataset | None:
    """One example of a set on this machine, for its form; None if the task is in a module, which isn't run here."""
    if trained_task(seen.document.task, seen.document.task_options) not in TASKS:
        return None
    return load_partition(data.dataset, np.zeros(1, dtype=np.int64))


def unread(file: Path, held: Dataset, seen: Look) -> list[str]:
    """Sentences, only for the participant, about unusable values in its file."""
    task, options = seen.document.task, dict(seen.document.task_options)
    try:
        sentences = unread_told(task, make_task(task, options) if task in STATISTICS else None, held, file)
    except ValueError:
        return []
    if trained_task(task, options) not in TASKS or task in STATISTICS or not len(held):
        return sentences
    if wrong := other_labels(options_of(task, options), held):
        why = "no training will succeed; this participant takes part, is charged, and sends zeros"
        sentences.append(f"data file {file}: {wrong}: {why}")
    return sentences


# ------------------------------------------------------------ the policy and the ledger


def read_policy(given: Path) -> tuple[PolicyTable, bytes]:
    """A policy from a file, or from the policy.toml in a folder, with the file's bytes. Raises as `load_policy`."""
    file = given / POLICY_FILE if given.is_dir() else given
    return load_policy(file), file.read_bytes()


def check_accepts(given: Path, policy: PolicyTable, seen: Look, *, nothing: str, totals: Totals | None = None) -> None:
    """Check a study against the policy of a file; raises InputFailure, which ends with the sentence ``nothing``.

    ``totals`` are those of the participant's ledger; None if that isn't checked.
    """
    try:
        check_terms(policy.to_policy(), seen.document, seen.study_sha256, totals)
    except PolicyRefusal as error:
        raise InputFailure(f"{given}: your policy refuses this study ({error}). {nothing}") from None


def accepted_plan(seen: Look) -> dict[str, Any]:
    """The shown plan as the policy of a participant that accepts it: this study document, no worse terms."""
    plan = seen.document.plan
    # The description has stated what a trusted coordinator could do.
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
    """The totals of --ledger, empty if there is no file yet.

    Raises InputFailure: it is unreadable or changed, or there isn't even its folder.
    """
    if ledger is not None and not ledger.parent.is_dir():
        raise InputFailure(f"--ledger {ledger}: there is no folder {ledger.parent}. {_NOTHING}")
    if ledger is None or not is_begun(ledger):
        return Totals()
    try:
        return read_ledger(ledger)[2]
    except StorageError as error:
        raise InputFailure(f"--ledger: {error}. {_NOTHING}") from None


@contextmanager
def refused_values() -> Iterator[None]:
    """Raises InputFailure for a value that a model of host.toml, or of one of its tables, refuses."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fields = HostConfiguration.model_fields.items()
        table = [name for name, one in fields if getattr(one.annotation, "__name__", "") == error.title]
        where = ".".join(map(str, (*table, *first["loc"])))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InputFailure(f"{where}{': ' if where else ''}{message}. Change the option that it comes from.") from None


def check_host(text: str, file: Path | None, policy: PolicyTable | None, seen: Look, totals: Totals) -> None:
    """Check the study against the text of the new host.toml, and the policy of --policy with its file.

    Raises InputFailure if a value in host.toml is invalid or the policy refuses the study.
    """
    content = tomllib.loads(text)
    for entry in content["participants"]:  # a place that isn't known yet: any part is valid
        entry |= {"part": 0} if entry.get("part") == BY_PLACE else {}
    if policy is not None and file is not None:
        check_accepts(file, policy, seen, nothing=_NOTHING, totals=totals)
        content["policy"] = policy.model_dump(exclude_none=True)
    with refused_values():
        settings = HostConfiguration(**content).settings()
    try:
        check_study(settings, seen.document, seen.study_sha256, totals)
    except PolicyRefusal as error:
        raise InputFailure(f"your policy refuses this study ({error}). {_NOTHING}") from None


# ------------------------------------------------------------ a folder that holds the join already


async def accept_terms(
    home: JoinedHome, task: str | None, say: Callable[[str], None], agree: Callable[[], None]
) -> None:
    """Show how the study's terms differ from those that were accepted, ask, and accept them.

    What was spent stays in the ledger. A policy in a file of its own is not changed, and must accept the new terms.

    Args:
        task: module:Class that the participant names, where the task isn't one of Sordino's.
        agree: asks; raises InputFailure if the participant doesn't agree.

    Raises InputFailure (the policy refuses them, or the task isn't named), or those of `client.enrolment.look`.
    """
    held, seen = await _look_again(home)
    if seen.card.study != home.study:
        raise InputFailure(f"{home.path}: the coordinator runs the study {seen.card.study!r} now: nothing was changed.")
    if held["study"].get("sha256") == seen.study_sha256.hex():
        say(f"{home.path} has accepted these terms already.")
        return
    document, before = seen.document, home.terms()
    rows = terms_of(document) if before is None else changed_terms(StudyDocument.from_bytes(before), document)
    for line in ("The terms have changed", "", *listed(rows, terminal_width() - 2), ""):
        say(line)
    options = JoinOptions(task=task or held["study"]["task"])
    check_task(options, document.task, document.task_options)
    host = HostTable(**held["host"])
    version, stated = newest_seen(home.path / host.journal, home.study)
    if seen.newest.version < version or seen.newest.signed < stated:
        raise InputFailure(
            f"{home.path}: the coordinator shows version {seen.newest.version} of the roster, signed "
            f"{minute(seen.newest.signed)}: this host has seen a later one. Nothing was changed."
        )
    policy = held.get("policy", {})
    if set(policy) == {"file"}:
        file = home.path / policy["file"]
        checked = read_policy(file)[0]
    else:  # what the terms set is taken from them; the limits that its owner has set stay
        file, limits = home.path / HOST_FILE, {name: policy[name] for name in policy if name not in _OF_TERMS}
        policy, before_ = limits | accepted_plan(seen), policy
        checked = PolicyTable(**policy)
        for name in sorted({*policy, *before_}):
            if policy.get(name) != before_.get(name):
                say(f"policy.{name}: {_value(before_, name)} becomes {_value(policy, name)}")
    totals = spent_in(home.path / host.ledger)
    check_accepts(file, checked, seen, nothing="Nothing was changed.", totals=totals)
    agree()
    study = {**held["study"], "task": document.task, "sha256": seen.study_sha256.hex()}
    tables = {"study": study, "task": dict(document.task_options), "policy": policy}
    with only_process(home):
        home.accept(document.to_bytes(), tables)
    say(f"{home.path} takes part under the new terms from now on.")


async def _look_again(home: JoinedHome) -> tuple[dict[str, Any], Look]:
    """host.toml, and the study as it is now; errors of `client.enrolment.look`."""
    held = home.settings()
    authority = bytes.fromhex(held["study"]["authority_public_key"])
    return held, await look(held["coordinator"]["enrolment"], fingerprint(authority))


_OF_TERMS: Final = ("mechanism", "curious_coordinator")


def _value(policy: Mapping[str, Any], name: str) -> str:
    return json.dumps(policy[name]) if name in policy else "not set"


async def check_again(options: JoinOptions, home: JoinedHome, say: Callable[[str], None]) -> None:
    """Compare the options of a repeated command with its folder, and keep its policy, before an answer is used.

    Request and data were chosen with the folder, so options must agree with it. Only a policy may differ: it replaces
    that of the folder, if it accepts the study. An error changes nothing: InputFailure (an option differs, or the
    policy refuses the study), `runtime.settings_file.ConfigurationError` (policy file), or those of
    `client.enrolment.look`.
    """
    held = home.settings()
    _compare(options, home, held)
    if options.policy_file is None:
        return
    policy, data = read_policy(options.policy_file)
    _, seen = await _look_again(home)
    if held["study"].get("sha256", seen.study_sha256.hex()) != seen.study_sha256.hex():
        raise InputFailure(
            f"{home.path}: the study now has other terms than those that you agreed to: see what has changed with "
            "`sordino join --accept`; nothing was changed."
        )
    check_accepts(options.policy_file, policy, seen, nothing="Nothing was changed.")
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
        # The authority may have assigned another name.
        "--name": (options.name, host["name"] if options.name != asked else asked),
        "--ledger": (None if options.ledger is None else os.path.abspath(options.ledger), ledger),
        "--dataset": (None if options.dataset is None else located(options.dataset, Path.cwd()), data.get("dataset")),
        "--data": (None if options.data is None else os.path.abspath(options.data), first.get("data")),
        "--data-identity": (options.data_identity, first.get("data_identity")),
        "--part": (options.part, part),
    }
    cut = ("partition", "alpha", "shards", "seed", "parts")
    pairs |= {f"--{name}": (getattr(options, name), data.get(name)) for name in cut}
    other = {option: pair for option, pair in pairs.items() if pair[0] is not None and pair[0] != pair[1]}
    if not other:
        return
    holds = ", ".join(
        f"no {option}" if there is None else f"{option} {there}".strip() for option, (_, there) in other.items()
    )
    given = ", ".join(f"{option} {here}".strip() for option, (here, _) in other.items())
    raise InputFailure(
        f"{home.path} already holds a join by this code with {holds}, not {given}. To continue it, repeat its options; "
        "otherwise ask for another code and name a new folder with --home."
    )
