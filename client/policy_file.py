"""The participants' policy: the table ``[policy]`` of host.toml or of a policy file.

Limits are compared with each other when they are read: a host with a contradictory policy doesn't start. docs/policy.md
lists the keys and what each refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, StringConstraints, field_validator, model_validator

from client.settings import Policy, parse_window
from learning.task_names import check_task_name
from runtime.settings_file import ConfigurationError, Settings, Table, read_settings
from runtime.settings_keys import key

POLICY_FILE = "policy.toml"
_HINT = "A policy file holds one table, [policy]; docs/policy.md shows one."

TaskName = Annotated[str, AfterValidator(check_task_name)]
KeyAgreementName = Literal["x25519", "x25519-mlkem768"]
MechanismName = Literal["ddgauss", "skellam", "gaussian", "local-gaussian"]


def _window(text: str) -> str:
    parse_window(text)
    return text


Hours = Annotated[str, AfterValidator(_window)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]


class PolicyTable(Table):
    """[policy]: what these participants accept. A study or round that breaks it is refused; the policy is never sent.

    A key that is left out sets no limit, unless it states a default.
    """

    max_epsilon: float = key(help="most epsilon_coordinator that one participant may spend in one study", gt=0)
    max_delta: float = key(1e-5, "largest delta that a study may have", gt=0, lt=1)
    max_epsilon_round: float | None = key(
        None,
        "most that one round may cost: without amplification, with the fewest honest participants, at max_delta",
        gt=0,
    )
    max_epsilon_total: float | None = key(
        None, "most over all studies of this ledger, of any coordinator; studies with one kind of guarantee only", gt=0
    )
    max_delta_total: float | None = key(None, "delta at which the total is stated", shown="max_delta", gt=0, lt=1)
    mechanism: MechanismName | None = key(
        None, "the only mechanism accepted; with gaussian the coordinator sees sums without noise"
    )
    mechanisms: tuple[MechanismName, ...] | None = key(
        None, "mechanisms accepted", shown="any but gaussian, whose coordinator sees the sum without noise"
    )
    min_cohort: int | None = key(None, "fewest participants that a round begins with (the plan's quorum)", ge=1)
    min_survivors: int | None = key(None, "fewest participants in a sum (the plan's min_survivors)", ge=1)
    min_honest_survivors: int = key(
        help="fewest honest participants in a sum (h_min), which hide each other's updates", ge=1
    )
    min_colluders: int = key(2, "participants that the study must at least assume to collude (A)", ge=0)
    min_adversarial: float | None = key(
        None, "share of adversarial participants that the study must at least assume", ge=0, lt=1
    )
    min_dropout: float | None = key(
        None, "share of participants leaving a round that the study must at least assume", ge=0, lt=1
    )
    key_agreements: tuple[KeyAgreementName, ...] | None = key(None, "key agreements accepted")
    max_roster_valid_h: float | None = key(
        None, "longest time in hours for which a revocation may be withheld; where it may be for ever is refused", gt=0
    )
    max_clip: float | None = key(
        None, "largest L2 norm that an update is clipped to; where clips adapt, in every round", gt=0
    )
    min_bits: int | None = key(None, "fewest bits of one value on the wire", within=(1, 62))
    max_bits: int | None = key(None, "most bits of one value on the wire", within=(1, 62))
    max_dimension: int | None = key(None, "most values in an update", ge=1)
    max_held_out: float | None = key(
        None,
        "largest share of the examples that may be held out to evaluate the model on; 0: evaluate nothing",
        within=(0, 0.5),
    )
    tasks: tuple[TaskName, ...] | None = key(None, "tasks accepted")
    task_digests: tuple[Sha256, ...] | None = key(None, "SHA-256 of a task's name and options, as `join` shows it")
    study_digests: tuple[Sha256, ...] | None = key(None, "SHA-256 of a study document, as `join` shows it")
    model_digests: tuple[Sha256, ...] | None = key(
        None, "SHA-256 of the models that a round may begin from, where the model is public and stays the same"
    )
    max_rounds_per_day: int | None = key(
        None, "most attempts within 24 hours that are charged to this ledger, over all its studies", ge=1
    )
    hours: tuple[Hours, ...] | None = key(
        None, 'local times of day at which this host takes part in rounds, such as ["22:00-06:00"]'
    )
    curious_coordinator: bool = key(
        False, "accept a coordinator that is trusted to follow the protocol: participants don't sign who is in a sum"
    )
    one_machine: bool = key(
        False, "accept more participants on one host than are assumed to collude: a trial on one machine"
    )

    def to_policy(self) -> Policy:
        """The same values without pydantic, for the process that runs."""
        return Policy(**self.model_dump())

    @field_validator(
        *("mechanisms", "key_agreements", "tasks", "task_digests", "study_digests", "model_digests", "hours"),
        mode="before",
    )
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and not value:
            raise ValueError("is empty, so nothing could be accepted: name at least one, or leave the key out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mechanism is not None and self.mechanisms is not None:
            raise ValueError("mechanism and mechanisms are both set: keep only mechanisms")
        _ordered(self, "min_bits", "max_bits")
        _ordered(self, "max_epsilon_round", "max_epsilon")
        _ordered(self, "max_epsilon", "max_epsilon_total")
        if self.max_delta_total is not None:
            if self.max_epsilon_total is None:
                raise ValueError("max_delta_total is set without max_epsilon_total: add that key, or remove this one")
            _ordered(self, "max_delta", "max_delta_total")
        return self


def _ordered(table: PolicyTable, lower: str, upper: str) -> None:
    least, most = getattr(table, lower), getattr(table, upper)
    if least is not None and most is not None and least > most:
        raise ValueError(f"{lower} = {least:g} is above {upper} = {most:g}: lower the first or raise the second")


class _PolicyFile(Settings):
    policy: PolicyTable


def load_policy(path: Path) -> PolicyTable:
    """Read a policy file, or the ``policy.toml`` in a folder, with its only table ``[policy]``.

    Raises ConfigurationError if the file or a key can't be used, or limits contradict each other.
    """
    file = path / POLICY_FILE if path.is_dir() else path

    def with_table(content: dict[str, Any]) -> dict[str, Any]:
        if "policy" not in content and set(content) & set(PolicyTable.model_fields):
            raise ConfigurationError(f"{file}: its keys are in no table: put [policy] on a line before them.")
        return content

    return read_settings(_PolicyFile, file, hint=_HINT, prepare=with_table).policy


def policy_values(content: dict[str, Any], file: Path, policy: PolicyTable | None) -> dict[str, Any]:
    """The content of host.toml (``file``) with its policy: its own table, that of the file it names, or ``policy``.

    Raises ConfigurationError if host.toml both names a file and has limits, or the file can't be used.
    """
    table = content.get("policy")
    if policy is None and isinstance(table, dict) and "file" in table:
        others = sorted(set(table) - {"file"})
        if others:
            raise ConfigurationError(
                f"{file}: policy.file and {', '.join(others)} are both set: keep the file, or the limits without it."
            )
        if not isinstance(table["file"], str) or not table["file"]:
            raise ConfigurationError(f"{file}: policy.file must be the name of a policy file, such as {POLICY_FILE!r}.")
        policy = load_policy(file.resolve().parent / table["file"])
    if policy is None:
        return content
    return content | {"policy": policy.model_dump(exclude_none=True)}
