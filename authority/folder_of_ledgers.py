"""A folder of ledgers that several studies go on with: whose each file is, written down, and held against every study.

What was spent is added up within a file, which is named by its host. So a study may go on with a folder only where
every host has the participants that it had in the others, and each of them the same data: else what one participant
spends would lie in two files, and neither `sordino budget` nor a policy's ``max_epsilon_total`` would add them up.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from learning.data_checks import concrete
from learning.data_names import OWN
from runtime.failure import ExitCode, Failure

if TYPE_CHECKING:
    from authority.study_options import StudyOptions

LAYOUT: Final = "layout.json"
FORMAT: Final = 1
_LARGEST: Final = 1 << 26
_MOST_HOSTS: Final = 3  # that a message names
_OPTIONS: Final = {  # in the order in which they are told
    "dataset": "--dataset",
    "partition": "--partition",
    "alpha": "--alpha",
    "shards": "--shards",
    "seed": "--seed",
    "parts": "--participants and --enrol together",
    "participants": "--participants",
}


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


def layout_of(options: StudyOptions) -> dict[str, Any]:
    """Which data each participant has, and which host: what two studies over one folder must have in common.

    Args:
        options: with at least one host.
    """
    dataset = concrete(options.dataset)
    own = dataset == OWN
    return {
        "format": FORMAT,
        "dataset": dataset,
        # As a ledger names a part: nothing else says which rows it holds. Who has a file of her own has it in any cut.
        "partition": None if own else options.partition,
        "alpha": options.alpha if not own and options.partition == "dirichlet" else None,
        "shards": options.shards if not own and options.partition == "shards" else None,
        "seed": None if own else options.seed,
        "parts": None if own else options.places,
        "participants": options.participants,
        "hosts": parts_of_hosts(options.participants, options.hosts),
    }


def check_hosts(options: StudyOptions) -> None:
    """Raises Failure: there is a folder for the hosts' ledgers, and no host is made."""
    if options.ledgers and (options.authority is not None or not options.hosts):
        raise Failure(
            ExitCode.INPUT,
            "--ledgers is for the hosts that init makes, and here everybody joins with a code: leave it out; who has "
            "spent in other studies says sordino join --ledger FILE.",
        )


def go_on_with(folder: Path, options: StudyOptions) -> None:
    """Make the folder if it is new, and write the layout of this study into it; or hold it against the one there.

    Raises:
        Failure: the folder can't be made, others may write to it, or its ledgers are those of another layout.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder)
        _agree(folder, layout_of(options))
    except OSError as error:
        raise Failure(
            ExitCode.INPUT,
            f"--ledgers {folder}: {error.strerror}. Name a folder, or a new one in a folder that exists.",
        ) from None


def _check_private(folder: Path) -> None:
    """A sticky bit doesn't help: whoever may make a file puts a ledger of her own where there is none yet."""
    about = folder.stat()
    if about.st_uid not in (os.geteuid(), 0):
        raise Failure(
            ExitCode.INPUT,
            f"--ledgers {folder} belongs to another user (number {about.st_uid}), who could replace the ledgers in it: "
            "run chown on it, or name another folder.",
        )
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Failure(
            ExitCode.INPUT,
            f"--ledgers {folder}: others can write to it, and so replace the ledgers in it. Run chmod go-w on it, or "
            "name another folder.",
        )


def _agree(folder: Path, ours: Mapping[str, Any]) -> None:
    place = folder / LAYOUT
    if not place.exists():
        kept = sorted(path.name for path in folder.glob("*.sqlite"))
        if kept:
            raise Failure(
                ExitCode.INPUT,
                f"--ledgers {folder} holds {kept[0]}, but not {LAYOUT}, which says whose it is. Put {LAYOUT} back, or "
                "name another folder.",
            )
        if _write(place, ours):
            return
    theirs = _read(place)
    different = [key for key in _OPTIONS if theirs.get(key) != ours[key]]
    if "participants" in different and "parts" in different:
        different.remove("parts")
    told = [_difference(key, theirs, ours) for key in different]
    if theirs.get("hosts") != ours["hosts"] and "participants" not in different:
        told.append(_hosts(theirs, ours))
    if not told:
        return
    raise Failure(
        ExitCode.INPUT,
        f"--ledgers {folder} is of studies with other hosts or data: {'; '.join(told)}. What a participant spent "
        "would lie in two files, and nothing would add it up. Choose as there, or name another folder.",
    )


def _difference(key: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    there, here = ("not set" if one.get(key) is None else one[key] for one in (theirs, ours))
    return f"{_OPTIONS[key]} is {here}, there {there}"


def _hosts(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    here, there = (one.get("hosts") or {} for one in (ours, theirs))
    if len(here) != len(there):
        return f"--hosts is {len(here)}, there {len(there)}"
    moved = [name for name in here if here[name] != there.get(name)]
    named = ", ".join(moved[:_MOST_HOSTS]) + (f" and {len(moved) - _MOST_HOSTS} more" if moved[_MOST_HOSTS:] else "")
    return f"{named} had other participants there"


def _write(place: Path, layout: Mapping[str, Any]) -> bool:
    """False where another `sordino init` was quicker."""
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(layout) + "\n")
    return True


def _read(place: Path) -> dict[str, Any]:
    try:
        with place.open("rb") as file:
            found = json.loads(file.read(_LARGEST))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("hosts"), dict):
        raise Failure(
            ExitCode.INPUT,
            f"{place} doesn't say whose the ledgers beside it are, as this version writes it. Put it back from a copy, "
            "or name another folder with --ledgers.",
        )
    return found
