"""A host's settings as the running client holds them: plain frozen dataclasses, one for each table of host.toml.

`client.host_file` checks host.toml and describes its keys with pydantic, whose models cost 15 MB of resident memory for
the life of the process. A fresh process therefore gets the checked values as JSON (`client.process`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple


@dataclass(frozen=True)
class Host:
    name: str
    journal: Path
    ledger: Path


@dataclass(frozen=True)
class Study:
    name: str
    authority_public_key: str
    task: str
    sha256: str | None = None

    @property
    def authority_public_key_bytes(self) -> bytes:
        """The 32 bytes of the key that signs rosters."""
        return bytes.fromhex(self.authority_public_key)


@dataclass(frozen=True)
class Coordinator:
    address: str
    ca: Path
    give_up_s: float
    certificate: Path
    key: Path
    enrolment: str


@dataclass(frozen=True)
class Data:
    dataset: str
    partition: str
    alpha: float
    seed: int
    parts: int
    shards: int = 2


@dataclass(frozen=True)
class Policy:
    """[policy]; `client.policy_file` describes the keys."""

    max_epsilon: float
    max_delta: float
    mechanism: str | None
    min_honest_survivors: int
    min_colluders: int
    one_machine: bool
    curious_coordinator: bool = False
    max_held_out: float | None = None
    max_epsilon_round: float | None = None
    max_epsilon_total: float | None = None
    max_delta_total: float | None = None
    mechanisms: tuple[str, ...] | None = None
    min_cohort: int | None = None
    min_survivors: int | None = None
    min_adversarial: float | None = None
    min_dropout: float | None = None
    key_agreements: tuple[str, ...] | None = None
    max_roster_valid_h: float | None = None
    max_clip: float | None = None
    min_bits: int | None = None
    max_bits: int | None = None
    max_dimension: int | None = None
    tasks: tuple[str, ...] | None = None
    task_digests: tuple[str, ...] | None = None
    study_digests: tuple[str, ...] | None = None
    model_digests: tuple[str, ...] | None = None
    max_rounds_per_day: int | None = None
    hours: tuple[str, ...] | None = None

    @property
    def accepted_mechanisms(self) -> tuple[str, ...]:
        """Names; empty if every mechanism is accepted that needs no trust in the coordinator."""
        return self.mechanisms or ((self.mechanism,) if self.mechanism is not None else ())

    @property
    def total_delta(self) -> float:
        """The delta at which the total over all studies is stated."""
        return self.max_delta if self.max_delta_total is None else self.max_delta_total


@dataclass(frozen=True)
class Conditions:
    mains_power: bool = False
    idle: bool = False
    max_load: float = 0.25
    min_free_memory_mb: int = 0


@dataclass(frozen=True)
class HostedParticipant:
    key: Path
    part: int | None
    data: Path | None = None
    data_identity: str | None = None


@dataclass(frozen=True)
class HostSettings:
    """All of host.toml, checked, with absolute paths."""

    host: Host
    study: Study
    coordinator: Coordinator
    task: Mapping[str, bool | int | float | str]
    data: Data
    policy: Policy
    participants: tuple[HostedParticipant, ...]
    conditions: Conditions = Conditions()

    def to_json(self) -> str:
        """For the process that will run; holds paths of keys, never keys."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> HostSettings:
        values: dict[str, Any] = json.loads(text)
        policy: dict[str, Any] = {
            key: tuple(one) if isinstance(one, list) else one for key, one in values["policy"].items()
        }
        return cls(
            host=Host(**_with_paths(values["host"], "journal", "ledger")),
            study=Study(**values["study"]),
            coordinator=Coordinator(**_with_paths(values["coordinator"], "ca", "certificate", "key")),
            task=values["task"],
            data=Data(**values["data"]),
            policy=Policy(**policy),
            participants=tuple(HostedParticipant(**_with_paths(one, "key", "data")) for one in values["participants"]),
            conditions=Conditions(**values.get("conditions", {})),
        )


def _with_paths(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: Path(value) if key in names and value is not None else value for key, value in table.items()}


MINUTES: Final = 24 * 60
_WINDOW: Final = re.compile(r"(\d{2}):([0-5]\d)-(\d{2}):([0-5]\d)", re.ASCII)


class Window(NamedTuple):
    """From ``start`` to before ``end``, in minutes after midnight; over midnight where end < start."""

    start: int  # 0 to 1439
    end: int  # 1 to 1440

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day, 0 to 1439, lies within."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def parse_window(text: str) -> Window:
    """``HH:MM-HH:MM``; 24:00 ends a day. Raises ValueError for another form or time, or an empty window."""
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("must read HH:MM-HH:MM, such as 22:00-06:00")
    first_hour, first_minute, last_hour, last_minute = (int(part) for part in found.groups())
    start, end = first_hour * 60 + first_minute, last_hour * 60 + last_minute
    if start >= MINUTES or end > MINUTES:
        raise ValueError("must hold times of day from 00:00 to 24:00, such as 22:00-06:00")
    if start == end:
        raise ValueError("must not be empty: 00:00-24:00 is the whole day")
    return Window(start, end or MINUTES)


def within(windows: Iterable[str], minute: int) -> bool:
    """Whether a minute of the day, 0 to 1439, lies in one of the windows."""
    return any(parse_window(text).holds(minute) for text in windows)
