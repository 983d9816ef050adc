"""The participant's policy as its owner writes it: the table ``[policy]`` of host.toml, or of another file.

All limits are checked against each other when they are read: a policy that contradicts itself joins nothing.
docs/policy.md lists the keys and what is refused by each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from client.settings import Policy, parse_window
from learning.task_names import check_task_name
from runtime.settings_file import ConfigurationError, Settings, Table, read_settings

POLICY_FILE = "policy.toml"
_HINT = "A policy file holds one table, [policy]; docs/policy.md shows one."

TaskName = Annotated[str, AfterValidator(check_task_name)]
MechanismName = Literal["ddgauss", "skellam", "gaussian", "local-gaussian"]


def _window(text: str) -> str:
    parse_window(text)
    return text


Hours = Annotated[str, AfterValidator(_window)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]


class PolicyTable(Table):
    """[policy]: what these participants accept. A study or round that breaks it is refused; the policy is never sent.

    What is left out isn't limited, unless a default is stated.
    """

    max_epsilon: float = Field(gt=0)
    """Most epsilon_coordinator that one participant may spend in one study."""
    max_delta: float = Field(default=1e-5, gt=0, lt=1)
    """Largest delta at which a study may state it."""
    max_epsilon_round: float | None = Field(default=None, gt=0)
    """Most that one round may cost: unamplified, with the fewest honest participants, at ``max_delta``."""
    max_epsilon_total: float | None = Field(default=None, gt=0)
    """Most over all studies of this ledger, of all coordinators; studies with one kind of guarantee only."""
    max_delta_total: float | None = Field(default=None, gt=0, lt=1)
    """At which the total is stated; ``max_delta`` where it is left out."""
    mechanism: MechanismName | None = None
    """The only one that is accepted: short for ``mechanisms`` with one name."""
    mechanisms: tuple[MechanismName, ...] | None = None
    """Those that are accepted. Left out: any but ``gaussian``, whose coordinator sees the sum without noise."""
    min_cohort: int | None = Field(default=None, ge=1)
    """Fewest participants that a round begins with (the plan's quorum)."""
    min_survivors: int | None = Field(default=None, ge=1)
    """Fewest participants in a sum (the plan's min_survivors)."""
    min_honest_survivors: int = Field(ge=1)
    """Fewest honest participants in a sum (h_min); the others hide this one's update."""
    min_colluders: int = Field(default=2, ge=0)
    """Participants that the study must at least assume to collude with the coordinator (A)."""
    min_adversarial: float | None = Field(default=None, ge=0, lt=1)
    """Share of adversarial participants that the study must at least assume."""
    min_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Share of participants leaving a round that the study must at least reckon with."""
    max_clip: float | None = Field(default=None, gt=0)
    """Largest L2 norm that an update is clipped to; where clips adapt, in every round."""
    min_bits: int | None = Field(default=None, ge=1, le=62)
    max_bits: int | None = Field(default=None, ge=1, le=62)
    """Bits of one value on the wire."""
    max_dimension: int | None = Field(default=None, ge=1)
    """Most values in an update."""
    tasks: tuple[TaskName, ...] | None = None
    task_digests: tuple[Sha256, ...] | None = None
    """SHA-256 of a task's name and options, as `join` shows it."""
    study_digests: tuple[Sha256, ...] | None = None
    """SHA-256 of a study document, as `join` shows it."""
    model_digests: tuple[Sha256, ...] | None = None
    """SHA-256 of the models that a round may begin from, for a study whose model is public and stays the same."""
    max_rounds_per_day: int | None = Field(default=None, ge=1)
    """Most attempts within 24 hours that are charged to this ledger, over all its studies."""
    hours: tuple[Hours, ...] | None = None
    """Local times of day at which rounds are taken part in, such as ``["22:00-06:00"]``."""
    curious_coordinator: bool = False
    """Accept a study in which no participant signs whose updates are in a sum."""
    one_machine: bool = False
    """Accept that one host runs more participants than are assumed to collude: a trial on one machine."""

    def to_policy(self) -> Policy:
        """The same values without pydantic, for the process that runs."""
        return Policy.from_values(json.loads(self.model_dump_json()))

    @field_validator("mechanisms", "tasks", "task_digests", "study_digests", "model_digests", "hours", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and not value:
            raise ValueError("is empty, so nothing could be accepted: name at least one, or leave the key out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mechanism is not None and self.mechanisms is not None:
            raise ValueError("mechanism and mechanisms both stand there: keep mechanisms alone")
        _ordered(self, "min_bits", "max_bits")
        _ordered(self, "max_epsilon_round", "max_epsilon")
        _ordered(self, "max_epsilon", "max_epsilon_total")
        if self.max_delta_total is not None:
            if self.max_epsilon_total is None:
                raise ValueError("max_delta_total stands there without max_epsilon_total: add that, or remove it")
            _ordered(self, "max_delta", "max_delta_total")
        return self


def _ordered(table: PolicyTable, lower: str, upper: str) -> None:
    least, most = getattr(table, lower), getattr(table, upper)
    if least is not None and most is not None and least > most:
        raise ValueError(f"{lower} = {least:g} is above {upper} = {most:g}: lower the first or raise the second")


class _PolicyFile(Settings):
    """A whole policy file."""

    policy: PolicyTable


def load_policy(path: Path) -> PolicyTable:
    """Read a policy file, or the ``policy.toml`` in a folder. It holds one table, ``[policy]``.

    Raises:
        ConfigurationError: the file or a key in it can't be used, or its limits contradict each other.
    """
    file = path / POLICY_FILE if path.is_dir() else path

    def with_table(content: dict[str, Any]) -> dict[str, Any]:
        if "policy" not in content and set(content) & set(PolicyTable.model_fields):
            raise ConfigurationError(f"{file}: its keys stand in no table: put [policy] on a line before them.")
        return content

    return read_settings(_PolicyFile, file, hint=_HINT, prepare=with_table).policy


def policy_values(content: dict[str, Any], file: Path, policy: PolicyTable | None) -> dict[str, Any]:
    """What host.toml says, with its policy in place: its own table, that of the file it names, or ``policy``.

    Args:
        content: of host.toml as TOML gave it.
        file: host.toml, beside which the policy file is looked for.
        policy: given at the command, in the place of whatever host.toml says.

    Raises:
        ConfigurationError: host.toml both names a file and has limits of its own, or the file can't be used.
    """
    table = content.get("policy")
    if policy is None and isinstance(table, dict) and "file" in table:
        others = sorted(set(table) - {"file"})
        if others:
            raise ConfigurationError(
                f"{file}: policy.file stands beside {', '.join(others)}: keep the file, or the limits here without it."
            )
        if not isinstance(table["file"], str) or not table["file"]:
            raise ConfigurationError(f"{file}: policy.file must be the name of a policy file, such as {POLICY_FILE!r}.")
        policy = load_policy(file.resolve().parent / table["file"])
    if policy is None:
        return content
    return content | {"policy": policy.model_dump(exclude_none=True)}
