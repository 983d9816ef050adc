"""What the verbs share: groups of verbs, the answer and its option --json, a progress line, options with two names.

A protocol has clients and a study has participants. Where the difference doesn't matter, each verb accepts both names
of an option, and its help shows one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from runtime.failure import ExitCode, InputFailure, listing
from runtime.text import rewritable


def argument(metavar: str, said: str, *, shown: str | bool = False) -> Any:
    """A positional argument: its name and what it is; ``shown``: its default in words, or whether to show it."""
    return typer.Argument(metavar=metavar, help=said, show_default=shown)


def option(metavar: str, said: str, *names: str, shown: str | bool = False, panel: str | None = None) -> Any:
    """An option with a value, as `argument`; ``names``: those of the parameter unless given; ``panel``: its heading."""
    return typer.Option(*names, metavar=metavar, help=said, show_default=shown, rich_help_panel=panel)


def number(said: str, least: float | None = None, most: float | None = None) -> Any:
    """An option with a number of a range, both ends included; its default is shown."""
    return typer.Option(help=said, min=least, max=most)


def flag(name: str, said: str, panel: str | None = None) -> Any:
    return typer.Option(name, help=said, rich_help_panel=panel)


Json = Annotated[bool, flag("--json", "Print one JSON object.")]
JsonAtEnd = Annotated[bool, flag("--json", "Print one JSON object at the end.")]
AsService = Annotated[
    bool, flag("--service", "Run as a system service: tell systemd that it is ready, and how it goes.")
]
EndWith = Annotated[int, typer.Option("--end-with", hidden=True, help="End when this process, the parent, has ended.")]

LOOKS: Final[dict[str, Any]] = {
    "rich_markup_mode": "rich",
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
"""Of every command and group."""
A_STUDY: Final = (ExitCode.INFEASIBLE, ExitCode.NETWORK, ExitCode.STUDY, ExitCode.INTERRUPTED)
"""What a verb that runs a study can end with."""

_PAIRS: Final = (("--clients", "--participants"), ("--dropout", "--drop"))
_SAME: Final = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_BOTH: Final = ("--drop", "--max-dropout")


def verb_group(name: str, help_text: str) -> typer.Typer:
    """An empty group of verbs, such as ``sordino budget``; called alone it shows its help."""
    group = typer.Typer(**LOOKS, name=name, no_args_is_help=True, help=help_text)
    group.callback()(lambda: None)  # otherwise a group of one verb would be that verb
    return group


def verb_in(group: typer.Typer, name: str, example: str, said: str, *codes: ExitCode) -> Callable[[Any], Any]:
    """Make a function a verb of a group, called ``name``; ``example``: with the group's name; ``said``: its help."""
    return group.command(name, help=said, epilog=epilog(example, *codes))


def epilog(example: str, *codes: ExitCode) -> str:
    """The end of a help page: an example, and the exit codes; those that every verb has are not among ``codes``.

    ``example``: several stand on lines of their own, each perhaps with a note behind three blanks.
    """
    found = ["[bold]sordino {}[/bold]{}{}".format(*line.partition("   ")) for line in example.splitlines()]
    title = "Example: " if len(found) == 1 else "Examples:\n"
    codes_said = listing(*sorted((ExitCode.OK, ExitCode.INPUT, *codes)))
    return title + "\n".join(found) + f"\n\n{codes_said}"


def answer(as_json: bool, body: Mapping[str, Any], lines: Iterable[str]) -> int:
    """Print a verb's result, for programs or for people; returns the exit code of success."""
    typer.echo(json.dumps(body) if as_json else "\n".join(lines))
    return int(ExitCode.OK)


def counting(things: str) -> Callable[[int, int], None]:
    """A function of the number done and the total; on a terminal it rewrites one line, and clears it at the end."""

    def tell(done: int, of: int) -> None:
        if rewritable():
            end = "\r\x1b[K" if done == of else ""
            print(f"\r{done:,} of {of:,} {things}" + end, end="", file=sys.stderr, flush=True)

    return tell


def respelled(arguments: Sequence[str], command_of: Callable[[Sequence[str]], tuple[Any, int]]) -> list[str]:
    """The arguments, with every option in the spelling of its verb.

    ``command_of``: of the first words, the click command that they name, or None, and how many they are.

    Raises Failure: ``--dropout``, of a verb that has both the share that a plan allows for and the share that leaves;
    ``--cohort`` of a plan.
    """
    known, words = command_of(arguments)
    if known is None:
        return list(arguments)
    options = {option for parameter in known.params for option in parameter.opts}
    found, rest = list(arguments[:words]), arguments[words:]
    for at, word in enumerate(rest):
        if word == "--":
            return [*found, *rest[at:]]
        option, equals, value = word.partition("=")
        other = _SAME.get(option)
        if option == "--cohort" and option not in options and options.issuperset(("--clients", "--population")):
            raise InputFailure("--cohort is --clients here: participants of one round, drawn from --population.")
        if option == "--dropout" and option not in options and options.issuperset(_BOTH):
            raise InputFailure(
                "--dropout has two meanings here. Use --drop for the share that leaves, or --max-dropout for the share "
                "that the plan allows for."
            )
        if other is not None and option not in options and other in options:
            word = other + equals + value
        found.append(word)
    return found
