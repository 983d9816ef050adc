"""``sordino roster``: check a study's roster, its history and the statement that it is the newest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from runtime.failure import InputFailure
from runtime.text import counted, minute
from sordino.cli.transcript import KEY_HELP, read_authority
from sordino.cli.verbs import Json, answer, argument, option, verb_group, verb_in

app = verb_group(
    "roster",
    "Check the roster of a study, offline.\n\nThe authority signs each version of the roster with the terms in force "
    "and the digest of the version before, and states for a limited time which version is the newest. Everybody may "
    "check that; no secret is needed.",
)


@verb_in(
    app,
    "verify",
    "roster verify my-study --authority my-study/coordinator/authority.pub",
    "Check roster.json, with history.json and newest.json beside it where they are.\n\nSays which version it is, "
    "under which terms, whether its history has no gap, and until when it is the newest. Compare the digests with "
    "those that others see: participants with the same digest have the same history.",
)
def verify(
    folder: Annotated[Path, argument("FOLDER", "The folder with roster.json, or the file.")],
    authority: Annotated[str, option("KEY", KEY_HELP)],
    as_json: Json = False,
) -> int:
    file = folder / "roster.json" if folder.is_dir() else folder
    data, known = file.read_bytes(), read_authority(authority)
    from secagg.roster import InvalidRoster, verify_roster
    from wire.roster_history import HISTORY_FILE, NEWEST_FILE, read_history, verify_newest

    if len(known) != 32:
        raise InputFailure("--authority: a roster holds no key to compare a fingerprint with: name authority.pub.")
    history, newest = (file.with_name(name) for name in (HISTORY_FILE, NEWEST_FILE))
    try:
        roster = verify_roster(data, known)
        heads = read_history(history.read_bytes()) if history.exists() else ()
        stated = verify_newest(newest.read_bytes(), known) if newest.exists() else None
        if heads and heads[-1].digest() != roster.digest():
            raise InvalidRoster(f"{HISTORY_FILE} is not the history of this roster")
        if stated is not None and stated.roster != roster.digest():
            raise InvalidRoster(f"{NEWEST_FILE} states that version {stated.version} is the newest, not this roster")
    except InvalidRoster as error:
        raise InputFailure(f"{file}: {error}.") from None
    body = {
        "study": roster.study,
        "version": roster.version,
        "participants": len(roster),
        "roster": roster.digest().hex(),
        "terms": roster.terms.hex(),
        "versions_known": len(heads),
        "newest_until": None if stated is None else stated.until,
    }
    lines = [
        f"Version {roster.version} of the roster of {roster.study} holds: {counted(len(roster), 'participant')}.",
        f"  digest  {roster.digest().hex()}",
        f"  terms   {roster.terms.hex()}",
        f"Its history has {counted(len(heads), 'version')}." if heads else f"There is no {HISTORY_FILE} beside it.",
    ]
    if stated is not None:
        until = minute(stated.until)
        lines.append(f"It is the newest until {until}." if time.time() < stated.until else f"That ended on {until}.")
    return answer(as_json, body, lines)
