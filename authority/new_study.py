"""Make a study that runs on one machine: its file, the authority, the roster, certificates, and the hosts.

Used by ``sordino init`` and by the demo. The plan is made first, so an infeasible study leaves nothing
behind, and the folder appears whole or not at all.
"""

from __future__ import annotations

import datetime
import math
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from authority.study_data import check_data
from authority.study_options import StudyOptions, plan_for
from learning.data_checks import concrete
from learning.data_names import OWN
from learning.task_names import TASKS, VOTES, trained_task
from runtime.failure import ExitCode, Failure

if TYPE_CHECKING:
    from authority.folder import AuthorityKeys
    from mechanisms.plan import Plan
    from secagg.roster import RosterEntry


ONE_MACHINE = (
    "One machine plays all parts here, so the guarantee is the honest-but-curious one: whoever controls this "
    "machine controls coordinator, authority and participants alike."
)


@dataclass(frozen=True)
class LocalStudy:
    """A study as made.

    Attributes:
        data_files: where the participants made with it put their own files, each without its suffix; in the order of
            the hosts. Empty where a set is cut.
    """

    directory: Path
    options: StudyOptions
    plan: Plan
    hosts: tuple[Path, ...]
    data_files: tuple[Path, ...] = ()


def make_local_study(directory: Path, options: StudyOptions) -> LocalStudy:
    """Write a whole study into ``directory``, which must be new or empty.

    Raises:
        Failure: the folder isn't empty, or an option can't be used.
        mechanisms.plan.InfeasiblePlan: as ``plan_for``.
        secagg.roster.InvalidRoster: an authority from elsewhere has signed one that doesn't fit the plan.
    """
    from wire.study import check_roster_fits

    _check_place(directory)
    check_places(options)
    options = replace(options, test=str(Path(options.test).absolute()) if options.test else "")
    check_data(options)
    chosen = options.settled()
    check_public_examples(chosen)
    plan = plan_for(chosen)
    largest = math.ceil(chosen.participants / max(chosen.hosts, 1))
    if not chosen.one_machine and plan.colluders < largest:
        raise Failure(
            ExitCode.INFEASIBLE,
            f"the largest host holds {largest} participants, but only A = {plan.colluders} are assumed to collude",
            f"--adversarial {math.ceil(largest / chosen.in_a_round * 1000) / 1000:g}, or --hosts "
            f"{math.ceil(chosen.participants / max(plan.colluders, 1))}, or --one-machine to say that one machine "
            "plays all parts",
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        if chosen.authority is not None:
            check_roster_fits(plan, chosen.authority.roster)
        names = _write(work, chosen, plan)
        _check_files(work, names)
        work.chmod(0o755)
        for folder in (path for path in work.rglob("*") if path.is_dir()):
            # Whatever the umask: a key is refused when others could put another one in its place.
            folder.chmod(folder.stat().st_mode & ~0o022)
        os.replace(work, directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    hosts = tuple(directory / "hosts" / name for name in names)
    keys = (path for host in hosts for path in sorted((host / "keys").glob("participant-*.key")))
    files = tuple(path.parent.parent / "data" / path.stem for path in keys) if chosen.dataset == OWN else ()
    return LocalStudy(directory, chosen, plan, hosts, files)


def parts_of_hosts(participants: int, hosts: int) -> dict[str, list[int]]:
    """Each host's name and the parts of its participants, from 0: runs of equal length, give or take one.

    Args:
        participants: >= hosts.
        hosts: >= 0.
    """
    width = max(2, len(str(hosts)))
    found: dict[str, list[int]] = {f"host-{number:0{width}d}": [] for number in range(1, hosts + 1)}
    names = list(found)
    for part in range(participants if hosts else 0):
        found[names[part * hosts // participants]].append(part)
    return found


def check_places(options: StudyOptions) -> None:
    """Raises Failure: hosts, places or a lottery that can't be."""
    from runtime.settings_file import split_address

    none = options.participants == options.hosts == 0 and options.enrol > 0
    if not none and not 1 <= options.hosts <= options.participants:
        raise Failure(
            ExitCode.INPUT,
            f"{options.hosts} hosts can't share {options.participants} participants. "
            "Give each host at least one: lower --hosts or raise --participants.",
        )
    smallest = options.smallest_roster
    if smallest is None:
        if options.cohort is not None or options.population is not None:
            raise Failure(ExitCode.INPUT, "--cohort and --population are of a lottery: add --sampling lottery.")
    elif options.cohort is None:
        raise Failure(ExitCode.INPUT, "--sampling lottery draws a cohort for each round: say how many with --cohort.")
    elif options.population is None and options.participants == 0:
        raise Failure(
            ExitCode.INPUT,
            "With --participants 0 say --population: the smallest roster with which rounds run, from "
            f"{options.cohort} to {options.places}."
            if options.cohort <= options.places
            else f"--cohort {options.cohort} is more than the {options.places} places of --enrol.",
        )
    elif not options.cohort <= smallest <= options.participants + options.enrol:
        raise Failure(
            ExitCode.INPUT,
            f"a lottery draws --cohort {options.cohort} from --population {smallest} or more, and the study has places "
            f"for {options.participants + options.enrol} (--participants and --enrol): each must be at most the next.",
        )
    try:
        port = split_address(options.listen)[1]
    except ValueError as error:
        raise Failure(
            ExitCode.INPUT,
            f"the study can't be written. study.toml: coordinator.listen = {options.listen!r} {error}.",
        ) from None
    if options.enrol and not 0 < port < 65_535:
        raise Failure(
            ExitCode.INPUT, f"--listen {options.listen}: enrolment takes the port after it. Use a port of 1 to 65534."
        )


def check_public_examples(options: StudyOptions) -> None:
    """Whether the coordinator has as many examples as votes of all rounds ask about.

    Raises:
        learning.options.OptionError: they are too few, or of another shape than the task's.
        learning.datasets.DatasetError: there is no such set or file here.
    """
    from learning.make_task import make_task
    from learning.own_data import load_test
    from learning.server_optimizers import make_server_optimizer

    if options.task != VOTES:
        return
    task = make_task(options.task, dict(options.task_options))
    data = load_test(concrete(options.dataset), options.test)
    task.learner(make_server_optimizer(options.server_optimizer), data).prepare(options.rounds)


def _check_place(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise Failure(ExitCode.INPUT, f"{directory} is not a folder. Name one that is new or empty.")
    if directory.is_dir() and any(directory.iterdir()):
        raise Failure(ExitCode.INPUT, f"{directory} is not empty. Name a folder that is new or empty.")


def _write(work: Path, options: StudyOptions, plan: Plan) -> list[str]:
    """Fill ``work``; returns the hosts' names."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from authority.folder import AuthorityKeys, ed25519_pem, make_coordinator_files
    from authority.study_files import host_toml, study_toml
    from learning.make_task import make_task
    from secagg.roster import RosterEntry
    from wire.authority_statements import InvalidCard
    from wire.certificates import SERVER_DAYS, host_uri, new_key, private_pem

    if options.authority is not None:
        options.authority.copy(work)
        _write_public(work / ".gitignore", b"*\n")
        task = dict(make_task(options.task, dict(options.task_options)).options.to_mapping())
        text = study_toml(options, dataset=concrete(options.dataset), task=task)
        _write_public(work / "study.toml", text.encode())
        return []
    clock = time.time()
    now = datetime.datetime.fromtimestamp(int(clock), datetime.UTC)
    authority = AuthorityKeys.make(options.name, now)
    public = authority.public.hex()
    dataset = concrete(options.dataset)
    task = dict(make_task(options.task, dict(options.task_options)).options.to_mapping())
    try:
        files = make_coordinator_files(options.name, authority, options.client_address, options.names, now)
    except InvalidCard as error:
        raise Failure(ExitCode.INPUT, f"the study can't be written. study.name, coordinator.listen: {error}.") from None
    except ValueError as error:
        raise Failure(ExitCode.INPUT, f"--host: {error}.") from None

    digits = max(3, len(str(options.participants)))
    hosts = parts_of_hosts(options.participants, options.hosts)
    entries: list[RosterEntry] = []
    for name, parts in hosts.items():
        participants: list[tuple[str, int | str]] = []
        for part in parts:
            key = Ed25519PrivateKey.generate()
            file = f"keys/participant-{part + 1:0{digits}d}.key"
            _write_secret(work / "hosts" / name / file, ed25519_pem(key))
            # Without a suffix: she puts a .csv or an .npz there.
            participants.append((file, f"data/participant-{part + 1:0{digits}d}" if dataset == OWN else part))
            entries.append(RosterEntry(key.public_key().public_bytes_raw(), name))
        text = host_toml(
            options,
            host=name,
            authority_public_key=public,
            dataset=dataset,
            task=task,
            participants=participants,
            h_min=plan.h_min,
            colluders=plan.colluders,
        )
        _write_public(work / "hosts" / name / "host.toml", text.encode())
        if dataset == OWN:
            (work / "hosts" / name / "data").mkdir(mode=0o700)
        _write_public(work / "hosts" / name / "ca.pem", authority.tls.pem)
        tls_key = new_key()
        certificate = authority.tls.issue_client(tls_key.public_key(), host_uri(name), now, SERVER_DAYS)
        _write_public(work / "hosts" / name / "tls" / "client.pem", certificate)
        _write_secret(work / "hosts" / name / "tls" / "client.key", private_pem(tls_key))
    _write_authority(work, options, authority, entries, clock)
    files.write(work / "coordinator")
    (work / "coordinator").chmod(0o755)
    _write_public(work / "tls" / "ca.pem", files.tls_ca)
    # Keys must never be committed, wherever the folder lies.
    _write_public(work / ".gitignore", b"*\n")
    _write_public(work / "study.toml", study_toml(options, dataset=dataset, task=task).encode())
    return list(hosts)


def _write_authority(
    work: Path, options: StudyOptions, keys: AuthorityKeys, entries: list[RosterEntry], clock: float
) -> None:
    """The authority's folder, and the first roster that it signs."""
    from pydantic import ValidationError

    from authority.folder import AuthorityTable, write_folder
    from authority.founding import write_roster
    from authority.roster import begin
    from authority.store import locked

    trained = trained_task(options.task, options.task_options)
    try:
        settings = AuthorityTable(
            study=options.name,
            coordinator=options.client_enrolment,
            draws=options.rounds if options.sampling == "lottery" else 0,
            places=options.places,
            own_data=options.dataset == OWN,
            task=trained if trained not in TASKS else "",
        )
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise Failure(
            ExitCode.INPUT, f"the study can't be written. study.name = {options.name!r}: {detail['msg']}."
        ) from None
    folder = write_folder(work / "authority", settings, keys)
    with locked(folder.state) as store:
        write_roster(begin(folder, store, entries, clock), work)


def _check_files(work: Path, names: list[str]) -> None:
    """Read back what was written: an option that the files can't hold is refused now, not at the first start.
    """
    import client.host_file
    import server.study_file
    from runtime.settings_file import ConfigurationError

    try:
        server.study_file.load(work)
        for name in names[:1]:
            client.host_file.load(work / "hosts" / name)
    except ConfigurationError as error:
        told = str(error).replace(f"{work}/", "")
        raise Failure(ExitCode.INPUT, f"the study can't be written. {told}") from None


def _write_public(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by the owner alone from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
