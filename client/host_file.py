"""``host.toml``: one client process, the participants that it hosts, and their policy.

The folder of a host is complete (keys, the coordinator's certificate authority, the authority's public key) and can be
copied to another machine: all paths are relative to the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ValidationInfo, field_validator, model_validator

from client.policy_file import PolicyTable, Sha256, TaskName, policy_values
from client.settings import HostSettings
from learning.data_names import APP, OWN, check_dataset_name, check_loaded, located
from learning.options import OPTION_HELP
from learning.task_names import trained_task
from runtime.address import split_addresses
from runtime.settings_file import Settings, Table, TaskOption, absolute, check_files, read_settings
from runtime.settings_keys import key as declared, tables_toml

HOST_FILE = "host.toml"
_HINT = "Name a host's folder or its host.toml; `sordino init DIR` makes them under DIR/hosts."


class HostTable(Table):
    """[host]: this client process."""

    name: str = declared(
        help="this host's name on the roster",
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        option="host_name",
    )
    journal: Path = declared(
        Path("journal.sqlite"), "attempts joined and sets signed; keep it, never share it between processes"
    )
    ledger: Path = declared(
        Path("ledger.sqlite"),
        "what was spent; keep it with ledger.sqlite.head, and name it in all studies over this data",
    )


class StudyTable(Table):
    """[study]: the study that this host takes part in."""

    name: str = declared(help="the study's name", min_length=1, max_length=64, option="study_name")
    task: TaskName = declared(help="what is computed", option="task_name")
    authority_public_key: str = declared(
        help="Ed25519, signs rosters; it must come from the authority, not from the coordinator",
        pattern=r"^[0-9a-fA-F]{64}$",
    )
    sha256: Sha256 | None = declared(None, "of the accepted study document (plan, budget, task); any other is refused")


class CoordinatorTable(Table):
    """[coordinator]: the coordinator, and this process's TLS files."""

    address: str = declared("localhost:8443", "HOST:PORT of the coordinator; of its gateways, with commas")
    ca: Path = declared(Path("ca.pem"), "the coordinator's TLS certificate must chain to it")
    certificate: Path = declared(
        Path("tls/client.pem"), "certificate of this process; a renewed one is written beside it, as renewed.pem"
    )
    key: Path = declared(Path("tls/client.key"), "its private key; secret", option="tls_key")
    enrolment: str = declared("", "HOST:PORT where the certificate is renewed; empty: it isn't renewed")
    give_up_s: float = declared(
        60.0,
        "how long to keep trying while the coordinator can't be reached or has given up; 0: until it is stopped",
        unit="s",
        within=(0, 31_536_000),
    )

    @field_validator("address", "enrolment")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name == "enrolment":
            return value
        if len(split_addresses(value)) > 1 and info.field_name == "enrolment":
            raise ValueError("must be one HOST:PORT")
        return value


class DataTable(Table):
    """[data]: the data set and its cut into ``parts``, of which each participant holds one.

    With ``dataset = "own"`` each participant names a file instead, and the other keys have no effect; with
    ``dataset = "app"`` all but ``parts``."""

    dataset: Annotated[str, AfterValidator(check_dataset_name)] = declared(
        "fashion-mnist-subset",
        "a name of `sordino data list`, FORMAT:PATH, own: each participant has a file (docs/data.md), or app: "
        "the task, a Flower app, loads them",
    )
    partition: Literal["iid", "dirichlet", "shards", "natural"] = declared(
        "dirichlet", "how the examples are divided, as in the study's file"
    )
    alpha: float = declared(1.0, "concentration of the Dirichlet mixture", gt=0, le=1e6)
    shards: int = declared(2, "shards: runs of one class for each participant", within=(1, 1_000_000))
    seed: int = declared(1, "seed of the partition; public", ge=0, lt=2**63)
    parts: int = declared(0, "parts that the data set is cut into; each participant holds one", within=(0, 65_519))


class ConditionsTable(Table):
    """[conditions]: when this device takes part; docs/edge.md says how each is measured.

    While one doesn't hold, the process isn't connected, and the coordinator sees that. Hours and rounds per day are in
    [policy], because their refusals look like all others."""

    mains_power: bool = declared(False, "only while it doesn't run on battery")
    idle: bool = declared(False, "only while other programs use at most max_load of the processors")
    max_load: float = declared(0.25, "share of all processors, over the last minute", gt=0, le=1)
    min_free_memory_mb: int = declared(
        0, "only while this much memory is free, 10^6 bytes; 0: no condition", within=(0, 1_000_000)
    )

    @model_validator(mode="before")
    @classmethod
    def _unmetered_is_gone(cls, values: Any) -> Any:
        if isinstance(values, dict) and "unmetered" in values:
            raise ValueError("the key unmetered is gone, because metered networks are no longer detected: remove it")
        return values

    @model_validator(mode="after")
    def _load_of_an_idle_machine(self) -> Self:
        if not self.idle and self.max_load != type(self).model_fields["max_load"].default:
            raise ValueError(f"max_load = {self.max_load:g} says when the device is idle: add idle = true")
        return self


class ParticipantTable(Table):
    """[[participants]]: one identity and its data: a part of the set, a file, or what an app loads for it."""

    key: Path = declared(help="Ed25519 private key, PKCS8 PEM; secret")
    part: int | None = declared(None, "part of the data set that this participant holds, from 0", ge=0)
    data: Path | None = declared(
        None, "this participant's file or folder; a name without a suffix stands for that of any kind"
    )
    data_identity: str | None = declared(
        None,
        "app: whose data the app loads for this participant; what equal identities spend adds up in the ledger",
        min_length=1,
        max_length=256,
    )


class HostConfiguration(Settings):
    """A whole host.toml; frozen, validated once."""

    host: HostTable = declared(help="", option=None)
    study: StudyTable = declared(help="", option=None)
    coordinator: CoordinatorTable = declared(CoordinatorTable(), "", option=None)
    policy: PolicyTable = declared(help="a round that breaks it is refused; never sent", option=None)
    task: dict[str, TaskOption] = declared(
        default_factory=dict, help="options of the task, as in the study's file", option="task_options"
    )
    data: DataTable = declared(help="", option=None)
    participants: tuple[ParticipantTable, ...] = declared(help="", min_length=1, option=None)
    conditions: ConditionsTable = declared(ConditionsTable(), "when this device takes part", option=None)

    def settings(self) -> HostSettings:
        """The same values without pydantic, for the process that runs."""
        return HostSettings.from_json(self.model_dump_json())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        twice = _repeated([entry.key for entry in self.participants])
        if twice is not None:
            raise ValueError(f"participants: {twice} is listed twice. Give each participant its own key")
        self._check_data()
        for task in (self.study.task, trained_task(self.study.task, self.task)):
            if self.policy.tasks is not None and task not in self.policy.tasks:
                raise ValueError(
                    f"policy.tasks doesn't hold {task!r}, so this host would refuse its own study: add it, or leave "
                    "the study"
                )
        return self

    def _check_data(self) -> None:
        """Raises ValueError: a participant's data isn't named as the data set requires, or two name the same."""
        check_loaded(self.study.task, self.data.dataset)
        own, app = self.data.dataset == OWN, self.data.dataset == APP
        needed, other = ("data", "part") if own else ("part", "data")
        if not own and self.data.parts < 1:
            raise ValueError("data.parts is missing: the number of parts that the data set is cut into")
        for index, entry in enumerate(self.participants):
            if getattr(entry, needed) is None or getattr(entry, other) is not None:
                which = 'a file, data = "FILE"' if own else "a part of the data set, part = NUMBER"
                raise ValueError(
                    f"participants[{index}]: with data.dataset = {self.data.dataset!r} each participant has {which}, "
                    f"and no {other}"
                )
            if (entry.data_identity is None) == app:
                raise ValueError(
                    f"participants[{index}]: with data.dataset = {self.data.dataset!r} each participant "
                    f'{"declares" if app else "has no"} data_identity = "NAME": the ledger\'s name of data that a '
                    "Flower app loads"
                )
        for name in (needed, "data_identity"):
            shared = _repeated([one for entry in self.participants if (one := getattr(entry, name)) is not None])
            if shared is not None:
                raise ValueError(
                    f"participants: two of them have {name} = {shared}. Give each participant its own data: what "
                    "two identities reveal about the same data adds up"
                )
        for index, entry in enumerate(self.participants):
            if entry.part is not None and entry.part >= self.data.parts:
                raise ValueError(
                    f"participants[{index}].part = {entry.part} is outside the {self.data.parts} parts of "
                    f"the data: use 0 to {self.data.parts - 1}"
                )


def _repeated(values: Sequence[Any]) -> Any:
    """The first value that occurs twice; None if there is none."""
    return next((value for value, number in Counter(values).items() if number > 1), None)


def host_toml(
    header: Sequence[str],
    *,
    host: HostTable,
    study: StudyTable,
    coordinator: CoordinatorTable,
    policy: Mapping[str, Any],
    task: Mapping[str, TaskOption],
    data: Mapping[str, Any],
    participants: Sequence[Mapping[str, Any]],
) -> str:
    """A host.toml with comments, which `load` reads; ``header`` has the lines of the comment at its top.

    The last four are tables as they are written: a policy may also name its file, and a part isn't always known yet.
    """
    tables = {
        "host": host.model_dump(),
        "study": study.model_dump(),
        "coordinator": coordinator.model_dump(),
        "policy": policy,
        "task": task,
        "data": data,
        "participants": participants,
    }
    return tables_toml(HostConfiguration, tables, header, OPTION_HELP)


def load(path: Path, policy: PolicyTable | None = None) -> HostConfiguration:
    """Read a host.toml, or that of a folder, and make its paths absolute; ``policy`` replaces the one that it names.

    Raises `runtime.settings_file.ConfigurationError` if the file, a key, or a file that it names can't be used.
    """
    file = path / HOST_FILE if path.is_dir() else path
    configuration = read_settings(
        HostConfiguration, file, hint=_HINT, prepare=lambda content: policy_values(content, file, policy)
    )
    base = file.resolve().parent
    participants = tuple(absolute(entry, base) for entry in configuration.participants)
    coordinator = absolute(configuration.coordinator, base)
    readable = {f"participants[{index}].key": entry.key for index, entry in enumerate(participants)}
    readable |= {f"coordinator.{name}": file for name, file in coordinator if isinstance(file, Path)}
    check_files(file, readable, hint="Correct the path, or copy the host's folder again, whole.")
    return configuration.model_copy(
        update={
            "host": absolute(configuration.host, base),
            "coordinator": coordinator,
            "data": configuration.data.model_copy(update={"dataset": located(configuration.data.dataset, base)}),
            "participants": participants,
        }
    )
