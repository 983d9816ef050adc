"""Make a study that runs on one machine: its file, the authority, the roster, certificates, and the hosts.

Used by ``sordino init`` and by the lab. The plan is made first, so an infeasible study leaves nothing behind, and the
folder appears whole or not at all.
"""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from authority.study_data import check_data
from learning.data_names import APP, BROUGHT, OWN, located
from learning.task_names import TASKS, VOTES, trained_task
from runtime.address import join_address, ports_from, split_address
from runtime.durable import taken, whole_folder
from runtime.failure import ExitCode, Failure, InputFailure
from runtime.option_values import check_needs
from runtime.settings_file import Settings, build
from runtime.settings_keys import flat_values, key, settings_keys, settings_toml
from server.study_file import StudyConfiguration
from server.study_tables import DATA, NETWORK, PRIVACY, STUDY

if TYPE_CHECKING:
    from authority.folder import AuthorityKeys
    from authority.founding import CarriedAuthority
    from mechanisms.plan import Plan
    from secagg.roster import RosterEntry


Study = TypeVar("Study", bound=StudyConfiguration)
ONE_MACHINE: Final = (
    "One machine plays all parts here, so the guarantee is the honest-but-curious one: the owner of this "
    "machine controls coordinator, authority and participants alike."
)
_HEADER: Final = (
    "A Sordino study, read by `sordino serve`; SORDINO_COORDINATOR__LISTEN=0.0.0.0:8443 and the like override keys.",
    "What is marked (fixed) is part of what participants sign: to change it, make a new folder with `sordino init`.",
)
_START: Final = "start.safetensors"  # in a study's folder: the model that it begins from
_FILES: Final = ("test", "start")  # keys of [data] that name files of the coordinator's
_HOST_HEADER: Final = (
    "One client process of a Sordino study. `sordino join --home` reads this file. The folder is complete: copy it",
    "whole to the machine that holds the data, and change [coordinator] address. A table [conditions] with",
    "mains_power = true or idle = true says when this device takes part (docs/edge.md).",
)


class Sizes(Settings):
    """How many there are: what `study_of_size` turns into the keys of a study."""

    participants: int = key(100, "participants made with the study", ge=0, panel=STUDY)
    enrol: int = key(0, "places kept for participants who join with a code", ge=0, panel=STUDY)
    cohort: int | None = key(None, "drawn cohorts: participants of one round", shown="all", ge=2, panel=PRIVACY)


class Making(Sizes):
    """What only the making of a study needs, beside the study itself."""

    hosts: int = key(
        10,
        "client processes that the participants are spread over",
        shown="10, or one for each participant where they are fewer",
        ge=0,
        panel=STUDY,
    )
    data: Path | None = key(
        None,
        "where a file or subfolder of each participant lies, for a trial on one machine: host.toml names them",
        metavar="FOLDER",
        shown="no folder",
        panel=DATA,
    )
    names: tuple[str, ...] = key(
        (),
        "host name or address that the coordinator is reached by; repeatable, the first is put into host.toml",
        option="host",
        metavar="NAME",
        panel=NETWORK,
    )


@dataclass(frozen=True)
class NewStudy:
    """A study to be made; with an authority made elsewhere without participants, who all join with its codes."""

    study: StudyConfiguration  # its file, as far as it is chosen
    making: Making
    authority: CarriedAuthority | None = None

    @property
    def client_address(self) -> str:
        """What the hosts connect to, with a name that the certificate holds; several gateways with commas."""
        listen = ports_from(self.study.coordinator.listen, self.study.engine.gateways)
        return ",".join(map(self._reached_at, listen))

    @property
    def client_enrolment(self) -> str:
        """Where requests to join go; empty where none are taken."""
        listen = self.study.coordinator.enrolment_listen
        return self._reached_at(listen) if listen else ""

    def _reached_at(self, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if self.making.names:
            return join_address(self.making.names[0], port)
        return f"localhost:{port}" if host in ("0.0.0.0", "[::]", "127.0.0.1") else listen

    def changed(self, **values: Any) -> NewStudy:
        """With some keys changed, by their flat names."""
        held = flat_values(self.study) | flat_values(self.making)
        for name in ("in_a_round", "largest_roster", "enrolment_listen", "population"):  # they follow from the sizes
            held.pop(name)
        if self.study.privacy.sampling != "none":
            held["population"] = self.study.privacy.population
        return new_study(self.authority, **held | values)


def new_study(authority: CarriedAuthority | None = None, **values: Any) -> NewStudy:
    """A study to be made, from keys of `StudyConfiguration` and `Making` by their flat names; the rest are defaults.

    ``deadline_s`` among the values is the longest wait of each phase that has none of its own.

    Raises Failure: sizes that contradict each other, a value has no effect, or it can't be (ConfigurationError).
    """
    defaults: dict[str, Any] = {"one_machine": True}
    if values.get("gateways"):  # another gateway takes that long to hold all participants of one that failed
        defaults["resume_s"] = 10.0
    values = defaults | values
    deadline_s = values.pop("deadline_s", None)
    if deadline_s is not None:
        phases = ("advertise_keys_s", "share_keys_s", "training_s", "consistency_check_s", "unmasking_s")
        values = dict.fromkeys(phases, deadline_s) | values
    given = {name: values.pop(name) for name in settings_keys(Making) if name in values}
    making = build(Making, given)
    if "hosts" not in given:
        making = making.model_copy(update={"hosts": min(making.hosts, making.participants)})
    none = making.participants == making.hosts == 0 and making.enrol > 0
    if not none and not 1 <= making.hosts <= making.participants:
        raise InputFailure(
            f"--hosts {making.hosts} can't share --participants {making.participants}: each host needs at least one. "
            f"Use --hosts {f'1 to {making.participants}' if making.participants else 0}."
        )
    listen = str(values.get("listen", "127.0.0.1:8443"))
    try:
        port = split_address(listen)[1]
    except ValueError as error:
        raise InputFailure(f"--listen {listen} {error}.") from None
    if making.enrol:
        ports = max(1, int(values.get("gateways", 0)))
        if not 0 < port <= 65_535 - ports:
            most = 65_535 - ports
            raise InputFailure(f"--listen {listen}: enrolment takes the port after it. Use a port of 1 to {most}.")
        values["enrolment_listen"] = f"{listen.rpartition(':')[0]}:{port + ports}"
    study = study_of_size(StudyConfiguration, values, making)
    check_needs(study, values, unusual=True)
    return NewStudy(study, making, authority)


def study_of_size(model: type[Study], values: Mapping[str, Any], sizes: Sizes) -> Study:
    """A study from values by flat name (``population`` may be among them), with the keys that follow from its sizes.

    Raises Failure: cohorts that can't be drawn, or a value can't be (ConfigurationError).
    """
    from secagg.shamir import PRIME

    places, cohort = sizes.participants + sizes.enrol, sizes.cohort
    population = values.get("population")
    option, size = ("--participants", places) if cohort is None else ("--cohort", cohort)
    if size > PRIME - 2:
        raise InputFailure(f"{option} {size} is more than a round can have. Use at most {PRIME - 2:,}.")
    sampling = values.get("sampling", "none")
    if sampling == "none":
        if cohort is not None or population is not None:
            raise InputFailure("--cohort and --population need drawn cohorts: add --sampling lottery or epochs.")
        return build(model, {"in_a_round": max(places, 1), **values})
    if cohort is None:
        raise InputFailure(f"--sampling {sampling} draws a cohort for each round: say how many with --cohort.")
    if population is None and sizes.participants == 0:
        raise InputFailure(
            "With --participants 0 say --population: the smallest roster with which rounds run, from "
            f"{cohort} to {places}."
            if cohort <= places
            else f"--cohort {cohort} is more than the {places} places of --enrol."
        )
    smallest = sizes.participants if population is None else population
    if smallest > places:
        raise InputFailure(
            f"--population {smallest} exceeds the study's {places} places (--participants plus --enrol). Use at most "
            f"--population {places}, or more places."
        )
    if cohort > smallest:
        raise InputFailure(
            f"--cohort {cohort} exceeds --population {smallest} (by default --participants). Use at most --cohort "
            f"{smallest}, or more participants."
        )
    return build(model, {**values, "in_a_round": cohort, "population": smallest, "largest_roster": places})


@dataclass(frozen=True)
class LocalStudy:
    """A study as made.

    ``data_files``: where the participants made with it put their own files, without suffix, in the order of the hosts;
    empty where a set is cut.
    """

    directory: Path
    study: StudyConfiguration  # its file, settled
    new: NewStudy
    plan: Plan
    hosts: tuple[Path, ...]
    data_files: tuple[Path, ...] = ()


def make_local_study(directory: str | os.PathLike[str], new: NewStudy) -> LocalStudy:
    """Write a whole study into ``directory``, which must be new or empty.

    Raises Failure: the folder isn't empty, or an option can't be used; InfeasiblePlan: no plan keeps the budget and the
    protocol's rules; InvalidRoster: an authority from elsewhere has signed one that doesn't fit the plan.
    """
    from wire.study import check_roster_fits

    directory = Path(directory)
    if why := taken(directory):
        raise InputFailure(f"{directory} is {why}. Name a folder that is new or empty.")
    check_data(new.study, new.making.participants)
    _check_own_files(new)
    study = new.study.settled()
    data = {name: str(Path(given).absolute()) if (given := getattr(study.data, name)) else "" for name in _FILES}
    data["dataset"] = located(study.data.dataset, Path.cwd())
    task = dict(study.make_task().options.to_mapping())
    study = study.model_copy(update={"data": study.data.model_copy(update=data), "task": task})
    _check_learner(study)
    plan = study.plan()
    making = new.making
    largest = math.ceil(making.participants / max(making.hosts, 1))
    if not study.coordinator.one_machine and plan.colluders < largest:
        raise Failure(
            ExitCode.INFEASIBLE,
            f"the largest host holds {largest} participants, but only A = {plan.colluders} are assumed to collude",
            f"Use --adversarial {math.ceil(largest / plan.clients * 1000) / 1000:g}, or --hosts "
            f"{math.ceil(making.participants / max(plan.colluders, 1))}, or --one-machine if one machine plays "
            "all parts",
        )
    with whole_folder(directory) as work:
        if new.authority is not None:
            check_roster_fits(plan, new.authority.roster)
        if study.data.start:
            _write_public(work / _START, Path(study.data.start).read_bytes())
            study = study.model_copy(update={"data": study.data.model_copy(update={"start": _START})})
        names = _write(work, new, study, plan)
        _check_files(work, names)
        work.chmod(0o755)
        for folder in (path for path in work.rglob("*") if path.is_dir()):
            # Whatever the umask: a key is refused when others could put another one in its place.
            folder.chmod(folder.stat().st_mode & ~0o022)
    hosts = tuple(directory / "hosts" / name for name in names)
    keys = (path for host in hosts for path in sorted((host / "keys").glob("participant-*.key")))
    own = study.data.dataset == OWN
    files = tuple(path.parent.parent / "data" / path.stem for path in keys) if own and making.data is None else ()
    return LocalStudy(directory, study, new, plan, hosts, files)


def _check_own_files(new: NewStudy) -> None:
    """Check that the task can use every file of ``--data``.

    Raises DatasetError, TaskMistake: it can't, or they aren't as many as the participants.
    """
    from learning.own_data import load_own

    study, folder = new.study, new.making.data
    if folder is not None:
        trained = trained_task(study.study.task, study.task)
        load_own(str(folder), new.making.participants, study.make_task(), trained, study.data.test)


def _check_learner(study: StudyConfiguration) -> None:
    """Check that the coordinator has as many examples as votes of all rounds ask about, and the model to begin from.

    Raises OptionError: they are too few, or of another shape than the task's; or it isn't the task's; DatasetError: no
    such set or file here.
    """
    from learning.own_data import load_test

    if study.study.task == VOTES or study.data.start:
        data = load_test(study.data.dataset, study.data.test, trained_task(study.study.task, study.task))
        study.make_learner(study.make_task(), data)


def _parts_of_hosts(participants: int, hosts: int) -> dict[str, list[int]]:
    """Each host's name and the parts of its participants, from 0: runs of equal length, give or take one."""
    width = max(2, len(str(hosts)))
    found: dict[str, list[int]] = {f"host-{number:0{width}d}": [] for number in range(1, hosts + 1)}
    names = list(found)
    for part in range(participants if hosts else 0):
        found[names[part * hosts // participants]].append(part)
    return found


def _write(work: Path, new: NewStudy, study: StudyConfiguration, plan: Plan) -> list[str]:
    """Fill ``work`` from a settled study with every option of the task; returns the hosts' names."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from authority.folder import AuthorityKeys, make_coordinator_files
    from client.host_file import CoordinatorTable, HostTable, StudyTable, host_toml
    from learning.options import OPTION_HELP
    from learning.own_data import own_files
    from secagg.roster import RosterEntry
    from wire.authority_statements import InvalidCard
    from wire.certificates import SERVER_DAYS, host_uri, new_key, private_pem
    from wire.study import TERMS_FILE

    making, name, dataset = new.making, study.study.name, study.data.dataset
    cut = frozenset({"partition", "alpha", "shards", "seed"}) if dataset in BROUGHT else frozenset()
    text = settings_toml(study, _HEADER, comments=OPTION_HELP, leave_out=cut)
    _write_public(work / "study.toml", text.encode())
    # Keys must never be committed, wherever the folder lies.
    _write_public(work / ".gitignore", b"*\n")
    if new.authority is not None:
        new.authority.copy(work)
        _write_public(work / TERMS_FILE, study.document().to_bytes())
        return []
    clock = time.time()
    now = datetime.datetime.fromtimestamp(int(clock), datetime.UTC)
    authority = AuthorityKeys.make(name, now)
    try:
        files = make_coordinator_files(name, authority, new.client_address, making.names, now)
    except InvalidCard as error:
        raise InputFailure(f"the study can't be written. study.name, coordinator.listen: {error}.") from None
    except ValueError as error:
        raise InputFailure(f"--host: {error}.") from None

    data: dict[str, Any] = {"dataset": dataset}
    if dataset == APP:
        data["parts"] = study.places
    elif dataset != OWN:
        data = {**study.data.model_dump(exclude={*_FILES}), "parts": study.places}
    trained = trained_task(study.study.task, study.task)
    brought = [] if making.data is None else own_files(making.data.absolute(), trained)
    digits = max(3, len(str(making.participants)))
    hosts = _parts_of_hosts(making.participants, making.hosts)
    entries: list[RosterEntry] = []
    for host, parts in hosts.items():
        participants: list[dict[str, Any]] = []
        for part in parts:
            secret = Ed25519PrivateKey.generate()
            file = f"keys/participant-{part + 1:0{digits}d}.key"
            _write_secret(work / "hosts" / host / file, private_pem(secret))
            held: dict[str, Any] = {"part": part}
            if dataset == OWN:  # where there is no file yet, a name without a suffix: one of any kind is put there
                held = {"data": str(brought[part]) if brought else f"data/participant-{part + 1:0{digits}d}"}
            elif dataset == APP:
                held["data_identity"] = f"{study.study.task}, partition {part} of {study.places}"
            participants.append({"key": file, **held})
            entries.append(RosterEntry(secret.public_key().public_bytes_raw(), host))
        text = host_toml(
            _HOST_HEADER,
            host=HostTable(name=host),
            study=StudyTable(name=name, task=study.study.task, authority_public_key=authority.public.hex()),
            coordinator=CoordinatorTable(
                address=new.client_address,
                enrolment=new.client_enrolment,
                give_up_s=60.0 if study.coordinator.one_machine else 0.0,  # a trial ends by itself
            ),
            policy=_policy(study, plan),
            task=study.task,
            data=data,
            participants=participants,
        )
        _write_public(work / "hosts" / host / "host.toml", text.encode())
        if dataset == OWN and not brought:
            (work / "hosts" / host / "data").mkdir(mode=0o700)
        _write_public(work / "hosts" / host / "ca.pem", authority.tls.pem)
        tls_key = new_key()
        certificate = authority.tls.issue_client(tls_key.public_key(), host_uri(host), now, SERVER_DAYS)
        _write_public(work / "hosts" / host / "tls" / "client.pem", certificate)
        _write_secret(work / "hosts" / host / "tls" / "client.key", private_pem(tls_key))
    _write_authority(work, new, study, plan.draws if plan.drawn else 0, authority, entries, clock)
    files.write(work / "coordinator")
    (work / "coordinator").chmod(0o755)
    _write_public(work / "tls" / "ca.pem", authority.tls.pem)
    return list(hosts)


def _policy(study: StudyConfiguration, plan: Plan) -> dict[str, Any]:
    """What the hosts made with a study accept: its privacy, and no less."""
    privacy = study.privacy
    curious = {"curious_coordinator": True} if privacy.adversary == "curious" else {}
    return {
        "max_epsilon": privacy.epsilon,
        "max_delta": privacy.delta,
        "mechanism": privacy.mechanism,
        "min_honest_survivors": plan.h_min,
        "min_colluders": plan.colluders,
        "one_machine": study.coordinator.one_machine,
        **curious,
    }


def _write_authority(
    work: Path,
    new: NewStudy,
    study: StudyConfiguration,
    draws: int,
    keys: AuthorityKeys,
    entries: list[RosterEntry],
    clock: float,
) -> None:
    """The authority's folder, and the first roster that it signs."""
    from pydantic import ValidationError

    from authority.folder import AuthorityTable, write_folder
    from authority.founding import write_roster
    from authority.roster import begin
    from authority.store import locked

    trained = trained_task(study.study.task, study.task)
    try:
        settings = AuthorityTable(
            study=study.study.name,
            coordinator=new.client_enrolment,
            draws=draws,
            places=study.places,
            own_data=study.data.dataset in BROUGHT,
            task=trained if trained not in TASKS else "",
        )
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        raise InputFailure(f"the study can't be written. study.name = {study.study.name!r}: {detail['msg']}.") from None
    folder = write_folder(work / "authority", settings, keys)
    with locked(folder) as store:
        begin(store, entries, clock, terms=study.document().to_bytes())
        write_roster(store, work, clock)


def _check_files(work: Path, names: list[str]) -> None:
    """Read back what was written: an option that the files can't hold is refused now, not at the first start."""
    import client.host_file
    import server.study_file
    from runtime.settings_file import ConfigurationError

    try:
        server.study_file.load(work)
        for name in names[:1]:
            client.host_file.load(work / "hosts" / name)
    except ConfigurationError as error:
        why = str(error).replace(f"{work}/", "")
        raise InputFailure(f"the study can't be written. {why}") from None


def _write_public(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by the owner alone from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
