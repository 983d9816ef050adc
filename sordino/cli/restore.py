"""``sordino restore``: a folder from a copy that ``sordino backup`` made, unless the original is newer."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Annotated, Any

from runtime.archive import counts, read_archive
from runtime.durable import DAMAGED, is_in_use, open_to_read, taken
from runtime.failure import InputFailure
from sordino.cli.backup import described, in_words
from sordino.cli.verbs import Json, answer, argument, epilog

HELP = (
    "Make a folder from a copy that `sordino backup` made.\n\nA study can continue from a copy only if nothing "
    "happened after it: participants answer no round twice. Where the folder that the copy was taken from is still on "
    "this machine and has gone on since, or is in use, restore refuses. Elsewhere it can't know: the participants do, "
    "and `sordino serve` on a copy that is too old ends with code 41 in its first round, before a sum is opened."
)
EPILOG = epilog("restore my-study-20261125-224140.tar my-study")
_GROW = {"attempts": "attempts", "rows": "ledger rows", "versions": "roster versions"}
"""Tables of which no row is ever removed: of journals, ledgers and the authority's store; and what a row is."""
_NEXT = {
    "study": "Participants that have answered later rounds refuse it; `sordino serve` then ends with code 41.",
    "host": "What its participants have spent since isn't in its ledger: compare with `sordino budget show STUDY "
    "--participant IDENTITY` on the coordinator's side.",
    "authority": "Rosters that it has signed since must be known to it first: docs/enrolment.md, Terms, history "
    "and freshness.",
}


def run(
    archive: Annotated[Path, argument("FILE", "The copy.")],
    directory: Annotated[Path, argument("DIR", "The folder to make; must not exist, or be empty.")],
    as_json: Json = False,
) -> int:
    if not archive.is_file():
        raise InputFailure(f"{archive}: there is no such file.")
    if why := taken(directory):
        raise InputFailure(f"{directory} is {why}: name a folder that doesn't exist, and move the old one away.")
    lines: list[str] = []

    def check(manifest: dict[str, Any]) -> None:
        lines.extend([f"{directory}: {in_words(manifest)}", _NEXT[manifest["kind"]]])
        if under_way := manifest["under_way"]:
            lines.append(
                f"The coordinator was stopped in {under_way}. If it was started again after the copy was taken, don't "
                "use the copy: that attempt may have been charged since."
            )
        _check_newest(manifest)

    manifest = read_archive(archive, directory, check)
    return answer(as_json, {"folder": str(directory.resolve()), **described(manifest)}, lines)


def _check_newest(manifest: dict[str, Any]) -> None:
    """Compare a copy with the folder that it was taken from, where that is still here.

    Raises Failure: the folder is newer, or in use.
    """
    source = Path(manifest["from"])
    for name, tables in manifest["tables"].items():
        original = source / name
        with contextlib.suppress(PermissionError):
            if is_in_use(original):
                raise InputFailure(f"{source}, from which the copy was taken, is in use: stop its process.")
        if not original.is_file():
            continue
        try:
            with contextlib.closing(open_to_read(original)) as connection:
                now = counts(connection)
        except (*DAMAGED, sqlite3.Error):
            continue  # damaged, so it is no choice
        newer = [key for key in _GROW if now.get(key, 0) > tables.get(key, 0)]
        if newer:
            had = ", ".join(f"{now[key]} {_GROW[key]} (the copy {tables.get(key, 0)})" for key in newer)
            raise InputFailure(
                f"{source}, from which the copy was taken, has gone on since: {had}. Participants answer no "
                "round twice, so continue with that folder, or with a newer copy. Nothing was restored."
            )
