"""What is given to ``sordino join --code`` for a folder that holds the join already, because it was interrupted.

The folder goes on as it was begun. Another policy takes the place of the one it holds, if it can be used and accepts
the study; any other option must say what the folder says, since the request or the data were chosen with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.joining.home import BY_PLACE, JoinedHome, only_process
from client.joining.policy import check_accepts, read_policy
from learning.data_names import located
from runtime.failure import ExitCode, Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from client.joining.options import JoinOptions


async def take_again(options: JoinOptions, home: JoinedHome, say: Callable[[str], None]) -> None:
    """Hold the options against the folder, and keep the policy, before an answer is asked for or used.

    Raises:
        Failure: an option says something else than the folder, or the policy refuses the study; nothing is changed.
        runtime.settings_file.ConfigurationError: the policy file can't be used; nothing is changed.
        client.enrolment.EnrolmentUnavailable, client.enrolment.EnrolmentRefused: the study can't be looked at.
    """
    held = home.settings()
    _compare(options, home, held)
    if options.policy_file is None:
        return
    from client.enrolment import look
    from wire.join_code import fingerprint

    policy, data = read_policy(options.policy_file)
    authority = bytes.fromhex(held["study"]["authority_public_key"])
    seen = await look(held["coordinator"]["enrolment"], fingerprint(authority))
    if held["study"].get("sha256", seen.study_sha256.hex()) != seen.study_sha256.hex():
        raise Failure(
            ExitCode.INPUT,
            f"{home.path}: the coordinator now shows another study than the one that you agreed to. Ask the study's "
            "owner why; nothing was changed.",
        )
    check_accepts(options.policy_file, policy, seen.document, seen.study_sha256, nothing="Nothing was changed.")
    with only_process(home):
        if home.keep_policy(data):
            say(f"Your policy in {home.path} is now that of {options.policy_file}.")


def _compare(options: JoinOptions, home: JoinedHome, held: dict[str, Any]) -> None:
    from wire.enrolment import read_request

    data, host, first = held["data"], held["host"], held["participants"][0]
    wished = read_request(home.request).request.host
    ledger = os.path.abspath(home.path / host.get("ledger", "ledger.sqlite"))
    # The authority may have given another name since.
    name = host["name"] if options.name != wished else wished
    pairs: dict[str, tuple[Any, Any]] = {
        "": (options.address or None, held["coordinator"].get("enrolment")),
        "--name": (options.name, name),
        "--ledger": (None if options.ledger is None else os.path.abspath(options.ledger), ledger),
        "--dataset": (None if options.dataset is None else located(options.dataset, Path.cwd()), data.get("dataset")),
        "--partition": (options.partition, data.get("partition")),
        "--alpha": (options.alpha, data.get("alpha")),
        "--shards": (options.shards, data.get("shards")),
        "--data": (None if options.data is None else os.path.abspath(options.data), first.get("data")),
        "--seed": (options.seed, data.get("seed")),
        "--part": (options.part, _part(first.get("part"), options.part == BY_PLACE and home.by_place)),
        "--parts": (options.parts, data.get("parts")),
    }
    other = {option: pair for option, pair in pairs.items() if pair[0] is not None and pair[0] != pair[1]}
    if not other:
        return
    holds = ", ".join(
        f"no {option}" if there is None else f"{option} {there}".strip() for option, (_, there) in other.items()
    )
    given = ", ".join(f"{option} {here}".strip() for option, (here, _) in other.items())
    raise Failure(
        ExitCode.INPUT,
        f"{home.path} already holds a join by this code with {holds}, not {given}. Give what it holds to go on with "
        "it, or ask for another code and name a new folder with --home.",
    )


def _part(held: int | str | None, by_place: bool) -> int | str | None:
    """As the option says it."""
    return BY_PLACE if by_place or held == BY_PLACE else None if held is None else int(held) + 1
