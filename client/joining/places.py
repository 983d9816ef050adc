"""Whose place a process takes: one that was had before, or a new one by a code, given or of the authority's desk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from client.joining.desk import code_from_desk
from client.joining.home import JoinedHome, home_at, open_home
from client.joining.homes import take_home
from client.joining.joining import Say, go_on, join_by_code, wait_until_it_listens
from client.joining.options import JoinOptions
from runtime.failure import ExitCode, Failure


def get_place(options: JoinOptions, say: Say, *, desk: Path | None, homes: Path | None) -> Path:
    """Her folder, complete; the same call again goes on where it was interrupted.

    A code is asked for at the desk only when a new folder is to be made and the coordinator listens, and the desk takes
    it back unless the folder was made: whatever is started again and again uses up no places.

    Args:
        options: with an empty code, and perhaps an empty address, where there is none.
        desk: socket of the authority's desk.
        homes: folder of homes, of which the process takes one that no other has.

    Raises:
        Failure, client.enrolment.EnrolmentUnavailable: as `client.joining.joining.join_by_code`.
    """
    home: JoinedHome | None = None
    if homes is not None:
        path, home = take_home(
            homes,
            address=options.address or None,
            authority=_authority_of(options.code),
            desk=desk,
            begin=bool(options.code) or desk is not None,
            say=say,
        )
        options = replace(options, home=path)
    elif desk is not None:
        home = home_at(options.address) if options.home is None else open_home(options.home)
    if home is not None:
        go_on(options, home, say)
        return home.path
    if desk is None:
        return join_by_code(options, say)
    asyncio.run(wait_until_it_listens(options.address, say))
    with code_from_desk(desk, say) as given:
        return join_by_code(replace(options, code=given.code, kept=given.keep), say)


def _authority_of(code: str) -> Callable[[bytes], bool]:
    """Whether a public key is that of the authority that a code names; any is where there is no code."""
    from wire.join_code import InvalidCode, JoinCode, fingerprint

    if not code:
        return lambda key: True
    try:
        wanted = JoinCode.from_text(code).fingerprint
    except InvalidCode as error:
        raise Failure(ExitCode.INPUT, f"{str(error).rstrip('.')}.") from None
    return lambda key: fingerprint(key) == wanted
