"""Options that some verbs call one thing and some another: each verb takes both, and its help shows its own.

A protocol has clients and a study has participants; where it makes no difference which of them is meant, nobody should
have to remember which verb says what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from runtime.failure import ExitCode, Failure

_PAIRS: Final = (("--clients", "--participants"), ("--dropout", "--drop"))
_SAME: Final = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_BOTH: Final = ("--drop", "--max-dropout")


def respelled(command: Any, arguments: Sequence[str]) -> list[str]:
    """The arguments with every option in the spelling of the verb that they are for.

    Args:
        command: the root, of click.

    Raises:
        Failure: ``--dropout``, of a verb that has both the share that a plan allows for and the one that leaves.
    """
    rest, known = list(arguments), command
    while rest and hasattr(known, "commands"):
        known = known.commands.get(rest.pop(0))
    if known is None or hasattr(known, "commands"):
        return list(arguments)
    options = {option for parameter in known.params for option in parameter.opts}
    found = list(arguments[: len(arguments) - len(rest)])
    for at, word in enumerate(rest):
        if word == "--":
            return found + rest[at:]
        option, equals, value = word.partition("=")
        other = _SAME.get(option)
        if option == "--dropout" and option not in options and options.issuperset(_BOTH):
            raise Failure(
                ExitCode.INPUT,
                "--dropout could be two things here. Say --drop for the share that leaves, or --max-dropout for the "
                "share that the plan allows for.",
            )
        if other is not None and option not in options and other in options:
            word = other + equals + value
        found.append(word)
    return found
