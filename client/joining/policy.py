"""The policy of a participant who joins by code: hers from a file, or the plan that she accepts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.failure import ExitCode, Failure

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
    # As with a trusted mechanism: she was told what the coordinator could do (`client.joining.text`), and agreed.
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
