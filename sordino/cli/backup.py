"""``sordino backup``: a copy of a party's folder in one file, also while its process runs."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.archive import write_archive
from runtime.durable import is_in_use
from runtime.failure import ExitCode, InputFailure
from runtime.text import counted, rewritable
from sordino.cli.verbs import Json, answer, argument, epilog, option
from sordino.reporting.party import AUTHORITY, STUDY, kind_of, party_of

HELP = (
    "Copy the folder of a coordinator, a host or an authority into one file.\n\nIts process may run meanwhile: the "
    "copy is the state of one moment, as a crash would have left it then. Of a coordinator it is one at which no "
    "attempt waits for its charge, which may take until the end of the round. The ledger is checked first. Other "
    "parties' folders in it, as `sordino init` makes them for a trial, are left out: each party keeps its own copy. "
    "`sordino restore` makes a folder of it.\n\nThe file holds the party's private keys. It is readable by you alone; "
    "keep it as you keep the folder, and on another machine."
)
EPILOG = epilog("backup my-study --out copies/monday.tar", ExitCode.LEDGER)
_KEYS = {
    "study": "the coordinator's keys: whoever has it can pass for the coordinator",
    "host": "the participants' keys: whoever has it can pass for them",
    "authority": "the keys that sign rosters and certificates: whoever has it decides who takes part",
}


def run(
    directory: Annotated[Path, argument("DIR", "A study's, a host's or an authority's folder.")],
    out: Annotated[Path | None, option("FILE", "The copy; must not exist.", shown="DIR-DATE-TIME.tar, here")] = None,
    as_json: Json = False,
) -> int:
    from client.saved_phases import STATES_FILE
    from sordino.reporting.budget import place_of, read
    from wire.records.ledger import beside_copy

    party = party_of(directory)
    folder = party.folder.resolve()
    archive = out or Path(time.strftime(f"{folder.name}-%Y%m%d-%H%M%S.tar", time.gmtime()))
    if archive.resolve().is_relative_to(folder):
        raise InputFailure(f"{archive} would lie in the folder that it is a copy of: name a file elsewhere.")
    _check_inside(party.files, folder)
    # A copy of a ledger that isn't what was written would hide the newest good one.
    if party.kind != AUTHORITY and (place := place_of(party)).ledger.exists():
        read(place)
    about = {"kind": party.kind, "study": party.study, "from": str(folder), "under_way": ""}
    moment = partial(_moment, party.files["state"].resolve(), about) if party.kind == STUDY else lambda databases: True

    def leave_out(path: Path) -> bool:
        # A state of a Flower node that is restored could be used twice, and would sign two survivor sets.
        return path.name == STATES_FILE or kind_of(path) is not None

    manifest = write_archive(archive, folder, about, leave_out=leave_out, beside=beside_copy, now=moment)
    size = archive.stat().st_size
    body = {"archive": str(archive.resolve()), "bytes": size, "files": len(manifest["files"]), **described(manifest)}
    lines = [
        f"{archive}: {counted(body['files'], 'file')}, {size / 1e6:,.1f} MB. {in_words(manifest)}",
        f"It holds {_KEYS[party.kind]}. Keep it on another machine, readable by you alone.",
    ]
    return answer(as_json, body, lines)


def _moment(state: Path, about: dict[str, str], databases: Mapping[Path, sqlite3.Connection]) -> bool:
    """Whether no attempt is under way whose charge is still to come.

    From a copy of such a moment the coordinator would believe that the attempt was cut off without a charge; and
    participants that have joined no later one couldn't tell. Of a coordinator that is stopped any moment will do.
    """
    connection = databases.get(state)
    if connection is None:
        return True
    sql = "SELECT round, attempt FROM attempts WHERE outcome IS NULL AND ledger_row IS NULL"
    open_, before = connection.execute(sql).fetchone(), about["under_way"]
    about["under_way"] = f"round {open_[0]}, attempt {open_[1]}" if open_ else ""
    if not open_ or not is_in_use(state):
        return True
    if before != about["under_way"] and rewritable():
        typer.echo(f"waiting until {about['under_way']}, is charged or over", err=True)
    return False


def _check_inside(files: dict[str, Path], folder: Path) -> None:
    """Raises Failure: a file lies where a copy of the folder doesn't reach."""
    for key, path in files.items():
        if path.exists() and not path.resolve().is_relative_to(folder):
            raise InputFailure(
                f"{key} is {path}, which lies outside {folder} and wouldn't be in the copy: stop the process, and copy "
                "both yourself."
            )


def described(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a copy holds, for programs."""
    rows: dict[str, int] = {}
    for tables in manifest["tables"].values():
        rows |= {name: tables[name] for name in ("attempts", "versions") if name in tables}
        if "head" in tables:  # a ledger
            rows["ledger_rows"] = tables["rows"]
        if "rounds" in tables:
            rows["rounds"] = tables["rounds"]
    return {"kind": manifest["kind"], "study": manifest["study"], "made": manifest["made"], **rows}


def in_words(manifest: dict[str, Any]) -> str:
    """The same as a sentence."""
    known = described(manifest)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(known["made"]))
    nouns = {"rounds": "round", "attempts": "attempt", "ledger_rows": "ledger row", "versions": "roster version"}
    held = ", ".join(counted(known[key], noun) for key, noun in nouns.items() if key in known)
    whose = {"study": "The study", "host": "A host of", "authority": "The authority of"}[known["kind"]]
    return f"{whose} {known['study']} as of {when}" + (f": {held}." if held else ".")
