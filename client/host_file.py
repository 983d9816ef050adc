"""What ``host.toml`` may say: one client process, the participants it hosts, and the policy they accepted.

The folder of a host is complete: keys, the coordinator's certificate authority, the authority's public key.
It can be copied to another machine; all paths are relative to the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from client.policy_file import PolicyTable, Sha256, TaskName, policy_values
from client.settings import HostSettings
from learning.data_names import OWN, check_dataset_name, located
from learning.task_names import trained_task
from runtime.settings_file import (
    ConfigurationError,
    Settings,
    Table,
    check_files,
    number_if_it_is_one,
    read_settings,
    split_address,
)

__all__ = [
    "ConditionsTable",
    "ConfigurationError",
    "CoordinatorTable",
    "DataTable",
    "HostConfiguration",
    "HostTable",
    "ParticipantTable",
    "PolicyTable",
    "StudyTable",
    "load",
]

HOST_FILE = "host.toml"
_HINT = "Name a host's folder or its host.toml; `sordino init DIR` makes them under DIR/hosts."

TaskOption = Annotated[bool | int | float | str, BeforeValidator(number_if_it_is_one)]


class HostTable(Table):
    """[host]: this client process."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The host's name in the roster."""
    journal: Path = Path("journal.sqlite")
    """What must survive a restart: attempts joined, sets signed. Never share it between processes."""
    ledger: Path = Path("ledger.sqlite")
    """What the participants have spent; the file ``ledger.sqlite.head`` beside it belongs to it.

    Name the same ledger in the host.toml of every study over the same data, whoever coordinates it: then
    `sordino budget show` tells what all of them cost together. One process at a time."""


class StudyTable(Table):
    """[study]: the one study that this host takes part in."""

    name: str = Field(min_length=1, max_length=64)
    authority_public_key: str = Field(pattern=r"^[0-9a-fA-F]{64}$")
    """The Ed25519 key that signs rosters, 64 hexadecimal digits.

    It comes from the authority, never from the coordinator."""
    task: TaskName
    sha256: Sha256 | None = None
    """SHA-256 of the study document that was agreed to: plan, budget and task. Another one is refused, whatever the
    policy allows. `sordino join --code` writes that of the study it showed."""

    @property
    def authority_public_key_bytes(self) -> bytes:
        return bytes.fromhex(self.authority_public_key)


class CoordinatorTable(Table):
    """[coordinator]: whom to connect to."""

    address: str = "localhost:8443"
    ca: Path = Path("ca.pem")
    """Certificate that the coordinator's TLS certificate must chain to."""
    certificate: Path = Path("tls/client.pem")
    """TLS client certificate; a renewed one is written beside it, as ``renewed.pem``."""
    key: Path = Path("tls/client.key")
    """Its private key, PEM, readable by its owner alone."""
    enrolment: str = ""
    """HOST:PORT of the coordinator's port for enrolment, where the certificate is renewed; empty: it is not."""
    give_up_s: float = Field(default=60.0, ge=0, le=31_536_000)
    """How long to keep trying while the coordinator can't be reached, in seconds; 0 tries for ever."""

    @field_validator("address", "enrolment")
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name == "enrolment":
            return value
        if split_address(value)[1] == 0:
            raise ValueError("must name the port that the coordinator listens on, such as localhost:8443")
        return value


class DataTable(Table):
    """[data]: the data set, and how it is cut into ``parts``; each participant holds one of them.

    With ``dataset = "own"`` nothing is cut: each participant names a file, and the other keys say nothing."""

    dataset: Annotated[str, AfterValidator(check_dataset_name)] = "fashion-mnist-subset"
    """A name that `sordino data list` shows, FORMAT:PATH, or ``own``."""
    partition: Literal["iid", "dirichlet", "shards", "natural"] = "dirichlet"
    alpha: float = Field(default=1.0, gt=0, le=1e6)
    shards: int = Field(default=2, ge=1, le=1_000_000)
    seed: int = Field(default=1, ge=0, lt=2**63)
    parts: int = Field(default=0, ge=0, le=65_519)


class ConditionsTable(Table):
    """[conditions]: when this device takes part; docs/edge.md says how each is found out.

    While one doesn't hold the process isn't connected, which the coordinator sees. Hours, and rounds a day, are in
    [policy]."""

    mains_power: bool = False
    """Only while it doesn't run on its battery."""
    idle: bool = False
    """Only while other programs use at most ``max_load`` of the processors."""
    max_load: float = Field(default=0.25, gt=0, le=1)
    """Share of all processors, over the last minute."""
    min_free_memory_mb: int = Field(default=0, ge=0, le=1_000_000)
    """Only while so much memory is free, in megabytes (10^6 bytes); 0 asks for nothing."""

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
    """[[participants]]: one identity and its data: a part of the set, or a file."""

    key: Path
    """Ed25519 private key, PKCS8 PEM, readable by its owner alone."""
    part: int | None = Field(default=None, ge=0)
    """Which part of the data set this participant holds, from 0."""
    data: Path | None = None
    """With ``dataset = "own"``: her file, .npz or .csv; see docs/data.md."""


class HostConfiguration(Settings):
    """One client process as its owner configured it; frozen, validated once."""

    host: HostTable
    study: StudyTable
    coordinator: CoordinatorTable = CoordinatorTable()
    task: dict[str, TaskOption] = Field(default_factory=dict)
    """Options of the task; the task itself checks them."""
    data: DataTable
    policy: PolicyTable
    """Limits here, or ``file = "policy.toml"`` with the table in a file of its own."""
    participants: tuple[ParticipantTable, ...] = Field(min_length=1)
    conditions: ConditionsTable = ConditionsTable()

    def settings(self) -> HostSettings:
        """The same values without pydantic, for the process that runs."""
        return HostSettings.from_json(self.model_dump_json())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        keys = [entry.key for entry in self.participants]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"participants: {twice} stands there twice. Give each participant its own key")
        self._check_data()
        for task in (self.study.task, trained_task(self.study.task, self.task)):
            if self.policy.tasks is not None and task not in self.policy.tasks:
                raise ValueError(
                    f"policy.tasks doesn't hold {task!r}, so this host would refuse its own study: add it, or leave "
                    "the study"
                )
        return self

    def _check_data(self) -> None:
        """Raises ValueError: a participant's data isn't named as the data set needs it, or two name the same."""
        own = self.data.dataset == OWN
        needed, other = ("data", "part") if own else ("part", "data")
        if not own and self.data.parts < 1:
            raise ValueError("data.parts is missing: into how many parts the data set is cut")
        for index, entry in enumerate(self.participants):
            if getattr(entry, needed) is None or getattr(entry, other) is not None:
                which = "a file of her own, data = \"FILE\"" if own else "a part of the data set, part = NUMBER"
                raise ValueError(
                    f"participants[{index}]: with data.dataset = {self.data.dataset!r} each participant has {which}, "
                    f"and no {other}"
                )
        files = [entry.data for entry in self.participants if entry.data is not None]
        same = next((file for file in files if files.count(file) > 1), None)
        if same is not None:
            raise ValueError(
                f"participants: two of them have data = {str(same)!r}. Each participant holds data of her own: what "
                "two identities tell of the same data adds up"
            )
        parts = [entry.part for entry in self.participants if entry.part is not None]
        shared = next((part for part in parts if parts.count(part) > 1), None)
        if shared is not None:
            raise ValueError(
                f"participants: two of them have part = {shared}. Each participant holds a part of her own: what two "
                "identities tell of the same data adds up"
            )
        for index, entry in enumerate(self.participants):
            if entry.part is not None and entry.part >= self.data.parts:
                raise ValueError(
                    f"participants[{index}].part = {entry.part} is outside the {self.data.parts} parts of "
                    f"the data: use 0 to {self.data.parts - 1}"
                )


def load(path: Path, policy: PolicyTable | None = None) -> HostConfiguration:
    """Read a host's file, or the ``host.toml`` in a host's folder; all paths come back absolute.

    Args:
        path: the file or the folder.
        policy: in the place of the one that host.toml holds or names.

    Raises:
        ConfigurationError: the file, a key in it, or a file that it names can't be used.
    """
    file = path / HOST_FILE if path.is_dir() else path
    configuration = read_settings(
        HostConfiguration, file, hint=_HINT, prepare=lambda content: policy_values(content, file, policy)
    )
    base = file.resolve().parent
    participants = tuple(
        entry.model_copy(update={"key": base / entry.key, "data": None if entry.data is None else base / entry.data})
        for entry in configuration.participants
    )
    readable = {f"participants[{index}].key": entry.key for index, entry in enumerate(participants)}
    files = {name: base / getattr(configuration.coordinator, name) for name in ("ca", "certificate", "key")}
    readable |= {f"coordinator.{name}": file for name, file in files.items()}
    check_files(file, readable, hint="Correct the path, or copy the host's folder again, whole.")
    return configuration.model_copy(
        update={
            "host": configuration.host.model_copy(
                update={name: base / getattr(configuration.host, name) for name in ("journal", "ledger")}
            ),
            "coordinator": configuration.coordinator.model_copy(update=files),
            "data": configuration.data.model_copy(update={"dataset": located(configuration.data.dataset, base)}),
            "participants": participants,
        }
    )
