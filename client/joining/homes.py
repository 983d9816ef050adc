"""One folder for many participants that are started alike, such as containers: each process takes a home of its own.

A home is held by a lock on a file beside it, which the kernel drops when the process ends, however it ends. The first
by name that nobody holds is taken, so a container that is made anew goes on as somebody who was there before; where
all are held a new one begins. Homes that are of no use are left out: who was revoked, or belongs to another authority.
Only the authority's own word counts for that, from its desk or signed. The coordinator's doesn't: it could have every
participant begin anew, with a new ledger over the same data.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from client.joining.desk import state_at_desk
from client.joining.home import REQUEST_FILE, JoinedHome, open_home
from runtime.failure import ExitCode, Failure

Say = Callable[[str], None]


def take_home(
    homes: Path, *, address: str | None, authority: Callable[[bytes], bool], desk: Path | None, begin: bool, say: Say
) -> tuple[Path, JoinedHome | None]:
    """A home for this process and what it becomes by exec; its lock is held until that ends.

    Args:
        homes: the folder; made where it isn't there.
        address: the coordinator's port for enrolment, where it is named; homes of others are left out.
        authority: whether an authority's public key (32 bytes) is the one that is meant.
        desk: where the authority says who was revoked.
        begin: whether a new home may be begun.

    Returns:
        Its path, and the home; None where it is to be made there.

    Raises:
        Failure: the folder can't be used, or nothing is free and none may begin.
    """
    try:
        homes.mkdir(parents=True, exist_ok=True)
        present = sorted(one.parent.parent.name for one in homes.glob(f"[!.]*/{REQUEST_FILE}"))
        for name in _names(present, begin):
            held = _hold(homes / f".{name}.lock")
            if held is None:
                continue
            why = ""
            try:
                home = open_home(homes / name)
                if home is not None:
                    why = _of_no_use(home, address, authority, desk, say)
            except Failure as failure:
                home, why = None, failure.message
            if not why and (home is not None or begin):
                _keep(held)
                return homes / name, home
            os.close(held)
            if why:
                say(f"{homes / name} is left out: {why.rstrip('.')}.")
    except OSError as error:
        raise Failure(
            ExitCode.INPUT, f"--homes {homes} can't be used ({error.strerror or error}): name a folder to write to."
        ) from error
    raise Failure(
        ExitCode.INPUT, f"no home in {homes} is free: start this with --desk PATH or --code CODE to begin another."
    )


def _names(present: list[str], begin: bool) -> Iterator[str]:
    yield from present
    if begin:
        yield from (name for name in (f"home-{number:02}" for number in itertools.count(1)) if name not in present)


def _hold(path: Path) -> int | None:
    """A lock that ends with the process; None where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _keep(descriptor: int) -> None:
    """Until the client ends, which takes this process's place by exec."""
    os.set_inheritable(descriptor, True)


def _of_no_use(
    home: JoinedHome, address: str | None, authority: Callable[[bytes], bool], desk: Path | None, say: Say
) -> str:
    """Why a home isn't taken; empty if it is."""
    settings = home.settings()
    if address is not None and settings["coordinator"]["enrolment"] != address:
        return f"it belongs to the coordinator at {settings['coordinator']['enrolment']}"
    key = bytes.fromhex(settings["study"]["authority_public_key"])
    if not authority(key):
        return "it belongs to another authority"
    if home.refused:
        return f"the authority refused it: {home.refused}"
    said = None
    if desk is not None:
        said = state_at_desk(desk, home.identity, study=home.study, authority=key, say=say)
    if said == "revoked":
        return "its identity was revoked; its ledger says what was spent"
    if said == "unknown" and home.complete:
        return "the authority doesn't know its identity: it may have been restored from an older copy"
    return ""
