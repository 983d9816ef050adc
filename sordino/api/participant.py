"""A host's part in a study, from a join code or a folder to the end of the study. Loads nothing of the server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from runtime.failure import ExitCode, InputFailure
from runtime.processes import refuse_running_loop
from sordino.api import show_as_sentence

if TYPE_CHECKING:
    from client.settings import HostSettings

PathLike = str | os.PathLike[str]
_PATHS: Final = ("policy", "desk", "homes", "data", "ledger")


class ParticipantOptions(TypedDict, total=False):
    """Options of `Participant`, those of `sordino join`: all but ``address`` and ``policy`` are for joining."""

    address: str | None  # HOST:PORT of the coordinator, to join its port for enrolment; by default that of host.toml
    policy: PathLike | None  # a file with one table, [policy]
    code: str | None  # the join code that the study's authority gave, good once
    yes: bool  # agree to the study that is shown, without being asked
    desk: PathLike | None  # the authority's local enrolment socket, in place of a code
    homes: PathLike | None  # a folder of homes: one that no other process has, or a new one
    name: str | None  # of this process on the roster
    task: str | None  # MODULE:CLASS of the study's task, where it isn't one of Sordino's
    ledger: PathLike | None  # of what is spent, for all studies over the same data
    data: PathLike | None  # a file or folder of your own; in place of a part of a set:
    data_identity: str | None  # what the ledger knows the data by that a Flower app loads
    dataset: str | None
    partition: str | None
    alpha: float | None
    shards: int | None
    seed: int | None
    part: int | str | None  # from 1, or "place"
    parts: int | None


class Participant:
    """The participants of one host, in the event loop that runs.

    ::

        await Participant("my-study/hosts/host-01").run()
        await Participant(code="SORD2-...", address="study.example:8444", data="visits.csv", yes=True).run()
    """

    def __init__(
        self, home: PathLike | None = None, *, say: Callable[[str], None] = print, **options: Unpack[ParticipantOptions]
    ) -> None:
        """
        Args:
            home: the host's folder, or its host.toml; by default the current one. With a code the folder to make, by
                default named after the study.
            say: is given each line about a study that is joined.
            options: `ParticipantOptions`.
        """
        self._home = None if home is None else Path(home)
        self._say = say
        unknown = options.keys() - ParticipantOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"Participant has no option {', '.join(sorted(unknown))}")
        self._options: dict[str, Any] = {
            name: one for name, one in options.items() if one is not None and one is not False
        }
        for name in _PATHS & self._options.keys():
            self._options[name] = Path(self._options[name])

    async def settings(self) -> HostSettings:
        """Get a place in the study where a code is given, and read the folder: what `run` does first.

        Whoever is interrupted repeats it: nothing is lost.

        Raises Failure: an option, the code, the folder or a file in it can't be used; the authority refuses; the
        coordinator can't be reached.
        """
        options, home = dict(self._options), self._home
        address, policy, agreed = (options.pop(name, None) for name in ("address", "policy", "yes"))
        code, desk, homes = (options.get(name) for name in ("code", "desk", "homes"))
        if address is not None:
            _check_address(address)
        if code is not None and desk is not None:
            raise InputFailure("--code and --desk are two ways to the same: use one.")
        if home is not None and homes is not None:
            raise InputFailure("--home names one home, --homes a folder of them: use one.")
        if code is not None or desk is not None or homes is not None:
            from client.joining.joining import get_place
            from client.joining.options import JoinOptions
            from runtime.health_file import showing_life
            from runtime.option_values import settled

            if address is None and (code is not None or desk is not None):
                option = "--code" if code is not None else "--desk"
                raise InputFailure(f"HOST:PORT is missing: {option} needs the coordinator's port for enrolment.")
            options["part"] = _part(options.get("part"))
            stated = {"address": address or "", "home": home, "policy_file": policy, "agreed": bool(agreed)}
            wanted = settled(lambda: JoinOptions(**options, **stated), lambda made: made, {}, JoinOptions)
            with showing_life():  # the authority may admit it days later
                home = await get_place(wanted, self._say)
            address, policy = None, None  # both are in the folder now
        elif agreed or options:
            raise InputFailure(
                "--yes, --name, --task, --ledger and the options of the data are for joining, with --code or --desk. "
                "Add one of the two; or leave them out to take part with a folder that has joined, as its host.toml "
                "says."
            )
        return await self._of_folder(home or Path(), address, policy)

    async def _of_folder(self, home: Path, address: str | None, policy: Path | None) -> HostSettings:
        """Of a folder that is complete, or as soon as it is."""
        from client.host_file import load
        from client.policy_file import load_policy

        if home.is_dir() and not (home / "host.toml").exists():
            if (home / "study.toml").exists():
                raise InputFailure(
                    f"{_named(home)} is a study's folder; its hosts are under {home / 'hosts'}: "
                    f"sordino join --home {home / 'hosts' / 'host-01'}"
                )
            raise InputFailure(
                f"{_named(home)} holds no host.toml, so it isn't a host's folder. Name one with --home, or join a "
                f"study: sordino join {address or 'HOST:PORT'} --code CODE"
            )
        if home.is_dir():
            from client.joining.folder import unfinished

            if unfinished(home) is not None:
                from client.joining.joining import finish_joining
                from runtime.health_file import showing_life

                with showing_life():
                    await finish_joining(home, self._say)
        configuration = load(home, None if policy is None else load_policy(policy))
        if address is not None:
            table = configuration.coordinator.model_copy(update={"address": address})
            configuration = configuration.model_copy(update={"coordinator": table})
        return configuration.settings()

    async def run(self) -> None:
        """Take part until the study has ended; returns at once where it has ended before, or its owner has left it.

        Data and keys are read before the first wait. If the task is cancelled, an attempt under way is left as by any
        participant that drops out, and the journal is kept: another run continues.

        Raises Failure: as `settings`; the study breaks the policy; the coordinator can't be reached or gave up.
        """
        from client.owners_word import nothing_left
        from client.participant_host import opened_host
        from runtime.logs import log_warnings_only

        log_warnings_only()
        try:
            settings = await self.settings()
            if said := nothing_left(settings):
                self._say(f"{said[:1].upper()}{said[1:]}.")
                return
            with opened_host(settings) as host:
                await host.stay()
        except asyncio.CancelledError as error:
            show_as_sentence(error)
            raise


def join(
    home: PathLike | None = None, *, say: Callable[[str], None] = print, **options: Unpack[ParticipantOptions]
) -> None:
    """Take part in a study until it ends, or until SIGTERM; arguments and errors as of `Participant`.

    Raises KeyboardInterrupt: Ctrl-C, once the connection is closed and the journal is kept.
    """
    refuse_running_loop("await sordino.Participant(...).run()")
    from client import participant_host
    from runtime.logs import log_warnings_only
    from runtime.processes import leave_no_core

    leave_no_core()
    log_warnings_only()
    settings = asyncio.run(Participant(home, say=say, **options).settings())
    if participant_host.join(settings) == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt


def _part(part: int | str | None) -> int | str | None:
    from client.joining.folder import BY_PLACE

    text = str(part)
    if part is None or part == BY_PLACE:
        return part
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise InputFailure(f"--part {text} is no part: use a number from 1, or {BY_PLACE}.")
    return int(text)


def _named(folder: Path) -> str:
    return "the current folder" if folder == Path() else str(folder)


def _check_address(address: str) -> None:
    from runtime.address import split_address

    try:
        _, port = split_address(address)
    except ValueError as error:
        raise InputFailure(f"{address} {error}.") from None
    if port == 0:
        raise InputFailure(f"{address} names no port to connect to; use the coordinator's.")
