"""``sordino budget``: what was spent, and whether the ledger is unaltered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer.core import TyperCommand

from runtime.failure import ExitCode
from sordino.cli.verbs import Json, answer, argument, epilog, option, verb_group, verb_in
from sordino.reporting.party import kind_of

app = verb_group(
    "budget",
    "Read the privacy ledger of a coordinator or of a participant.\n\nEvery sum is charged before it is opened. "
    "The ledger is append-only, and each row holds the hash of the row before it. Both verbs check all of it, write "
    "nothing, and may run beside `serve` and `join`.",
)
Where = Annotated[Path, argument("DIR|FILE", "A study's folder, a host's folder, or a ledger.")]
OWN = ""  # the value of ``--participant`` without a name: all participants of the ledger's host


class _NameIsOptional(TyperCommand):
    """``--participant`` may come without a name: at the end, before another option or before a folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `OWN` where no name is given."""
        from wire.records.ledger import LEDGER_FILE

        filled: list[str] = []
        for position, word in enumerate(args):
            filled.append(word)
            if word != "--participant":
                continue
            following = args[position + 1] if position + 1 < len(args) else "-"
            path = Path(following)
            place = path.is_file() or kind_of(path) is not None or (path / LEDGER_FILE).is_file()
            if following.startswith("-") or place:
                filled.append(OWN)
        return super().parse_args(ctx, filled)


@app.command(
    "show",
    cls=_NameIsOptional,
    help=(
        "Show what every participant has spent, and the rows behind it. Without DIR|FILE: in the current folder.\n\n"
        "A coordinator's ledger has one row for each sum, "
        "with u3; a participant's has a row for each upload at the most it can cost, and one that replaces it when the "
        "cost is known. Publish the head: it proves later that no row before it was changed.\n\n"
        "--participant without a name, on a host's folder, summarises what was spent from the data there, in each "
        "study and in all together, and what the host's policy allows."
    ),
    epilog=epilog("budget show my-study\nbudget show --participant   (on a participant's host)", ExitCode.LEDGER),
)
def show(
    path: Where = Path("."),
    participant: Annotated[
        str | None,
        option(
            "[WHO]",
            "Only this one: its number in this ledger (kept when the roster changes), or how its identity begins. "
            "Without a name: this host's, compared with its policy.",
            shown="all",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from sordino.reporting.budget import choose, figures, find, lines, own_lines, read

    contents = read(find(path))
    own = participant == OWN
    body = figures(contents, None if own else choose(contents, participant))
    answer(as_json, body, own_lines(contents, body) if own else lines(contents, body))


@verb_in(
    app,
    "verify",
    "budget verify my-study",
    "Check that no row of a ledger was changed, removed, moved or inserted, and that none is missing at its end."
    "\n\nThe ledger is compared with the file beside it, with its journal, and with --head with a published head. "
    "docs/ledger.md says what that shows.",
    ExitCode.LEDGER,
)
def verify(
    path: Where,
    head: Annotated[str | None, option("HEX", "A head that the ledger must have had.", shown="none")] = None,
    as_json: Json = False,
) -> int:
    from sordino.reporting.budget import ending, find, read, row_of_head

    contents = read(find(path))
    had_at = None if head is None else row_of_head(contents, head)
    found = {
        "ok": True,
        "ledger": str(contents.place.ledger.resolve()),
        "rows": contents.head.rows,
        "head": contents.head.hash.hex(),
        "checked_against": contents.held_against,
        **({} if had_at is None else {"head_row": had_at}),
    }
    rows, last = ending(contents)
    said = [] if had_at is None else [f"The given head is that of row {had_at}."]
    return answer(as_json, found, [rows, *said, last])
