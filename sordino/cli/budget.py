"""``sordino budget``: what was spent, and whether the ledger is what was written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from sordino.exit_codes import ExitCode, Failure, listing

NAME = "budget"
app = typer.Typer(
    name=NAME,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=(
        "Read the privacy ledger of a coordinator or of a participant.\n\nEvery sum is charged before it is opened. "
        "The ledger is only appended to, and each row holds the hash of the row before it. Both commands check all of "
        "it, write nothing, and may run beside `serve` and `join`."
    ),
)
_CODES = listing(ExitCode.OK, ExitCode.INPUT, ExitCode.LEDGER)

Where = Annotated[
    Path,
    typer.Argument(
        metavar="DIR|FILE",
        help="A study's folder, a host's folder, or a ledger.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    "show",
    help=(
        "What every participant has spent, and the rows behind it.\n\nA coordinator's ledger has one row for each sum, "
        "with u3; a participant's has a row for each upload at the most it can cost, and one that replaces it when the "
        "cost is known. Publish the head: whoever has it can tell later that no row before it was changed."
    ),
    epilog="Example: [bold]sordino budget show my-study[/bold]\n\n" + _CODES,
)
def show(
    path: Where,
    participant: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Only this one: a roster position, or how an identity begins in a participant's ledger.",
            show_default="all",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    from sordino.budget import choose, figures, find, lines, read
    from wire.durable import StorageError

    try:
        contents = read(find(path))
        body = figures(contents, choose(contents, participant))
    except StorageError as error:
        raise _failure(error) from error
    typer.echo(json.dumps(body) if as_json else "\n".join(lines(contents, body)))
    return int(ExitCode.OK)


@app.command(
    "verify",
    help=(
        "Check that no row of a ledger was changed, removed, moved or inserted, and that none is missing at its end."
        "\n\nIt is held against the file beside it, against its journal, and with --head against a head that was "
        "published. docs/ledger.md says what that shows."
    ),
    epilog="Example: [bold]sordino budget verify my-study[/bold]\n\n" + _CODES,
)
def verify(
    path: Where,
    head: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="A head that the ledger must have had.", show_default="none"),
    ] = None,
    as_json: Json = False,
) -> int:
    from sordino.budget import find, read, row_of_head
    from wire.durable import StorageError
    from wire.ledger import ChangedLedger

    try:
        contents = read(find(path))
        had_at = None if head is None else row_of_head(contents, head)
    except ChangedLedger as error:
        print(f"sordino budget: {error}", file=sys.stderr)
        if as_json:
            body = {"ok": False, "row": error.row, "error": str(error), "exit_code": int(ExitCode.LEDGER)}
            typer.echo(json.dumps(body))
        return int(ExitCode.LEDGER)
    except StorageError as error:
        raise _failure(error) from error
    if as_json:
        found = {
            "ok": True,
            "ledger": str(contents.place.ledger.resolve()),
            "rows": contents.head.rows,
            "head": contents.head.hash.hex(),
            "checked_against": contents.held_against,
        }
        typer.echo(json.dumps(found if had_at is None else found | {"head_row": had_at}))
        return int(ExitCode.OK)
    count = f"{contents.head.rows} row" + ("" if contents.head.rows == 1 else "s")
    typer.echo(f"{count}, nothing changed; held against {' and '.join(contents.held_against)}.")
    if had_at is not None:
        typer.echo(f"The head that was named is that of row {had_at}.")
    typer.echo(f"Head {contents.head.hash.hex()}")
    return int(ExitCode.OK)


def _failure(error: Exception) -> Failure:
    from wire.ledger import ChangedLedger

    return Failure(ExitCode.LEDGER if isinstance(error, ChangedLedger) else ExitCode.INPUT, str(error))
