"""The command ``sordino``: one file a verb, and one place where every error becomes a sentence and an exit code.

A verb's module is loaded when the verb is called: ``sordino --help`` loads no numpy, ``sordino join`` nothing of the
server.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from runtime import VERSION
from runtime.extras import check_rooms, missing
from runtime.failure import ExitCode, Failure, InputFailure, NetworkFailure
from runtime.processes import leave_no_core, one_thread_each, too_old
from runtime.text import did_you_mean, printable
from sordino.cli.verbs import LOOKS, respelled

VERBS: Final = {
    "demo": "Run a whole study on this machine: real processes, real data, TLS, deliberate dropouts.",
    "new": "Write a project that runs as it is: a model, a data reader, a study, a test.",
    "init": "Make a study that can be served and joined at once.",
    "plan": "Compute noise, thresholds and bytes from a privacy budget, before anything runs.",
    "graph": "Compute degree and threshold of the k-regular graph, with reasons.",
    "serve": "Run the coordinator of a study.",
    "status": "Say what a study does, once or as it happens.",
    "join": "Take part in a study with this machine's data.",
    "report": "Write a study's report as one page.",
    "simulate": "Run a study without a network, with thousands of participants.",
    "loadtest": "Load a real coordinator with many real participants, and check every sum.",
    "authority": "Decide who may take part: invite, approve, sign, revoke. Keep its keys away from the coordinator.",
    "budget": "Show what was spent, and check that the ledger is unaltered.",
    "data": "List and prepare data sets.",
    "experiment": "Reproduce published experiments with a study's encoder and plan.",
    "transcript": "Check a finished round offline.",
    "roster": "Check who takes part, and that all see the same roster.",
    "doctor": "Check this machine and a party's folder: one line a check, ok or what to do.",
    "backup": "Copy a coordinator's, a host's or an authority's folder into one file, also while it runs.",
    "restore": "Make a folder from such a copy.",
    "config": "Check study.toml and host.toml, show effective values, print their schema.",
    "bench": "Measure each hot path beside its limit on this machine.",
}
"""Name of each verb, which is its module here, and what it does in a line."""


@cache
def verb(name: str) -> Any:
    """The click command of a verb. Its module is loaded only now: ``--help`` of all verbs loads none of them."""
    module = importlib.import_module(f"sordino.cli.{name}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    alone = typer.Typer(**LOOKS)
    alone.command(name, help=module.HELP, epilog=module.EPILOG)(module.run)
    return typer.main.get_command(alone)


class _Verbs(TyperGroup):
    """The verbs: a line for each in the help, and the command itself where one is called."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=line, rich_markup_mode="rich") for name, line in VERBS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if found is None or name is None else verb(name), rest


app = typer.Typer(
    **LOOKS,
    name="sordino",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Federated learning in which the coordinator learns one noisy sum of updates a round, nothing else of them.\n\n"
        "Try it: [bold]sordino demo[/bold]. By hand: [bold]sordino init my-study[/bold], then "
        "[bold]sordino serve my-study[/bold] in one terminal and "
        "[bold]sordino join --home my-study/hosts/host-01[/bold] in another."
    ),
    epilog="--help works everywhere. Every command takes --json; groups, such as budget, list their commands.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sordino {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process, without a traceback in any case."""
    # Several processes share the machine, and no matrix product here is large: a second BLAS thread would only spin.
    one_thread_each()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        check_rooms()
        # Refused before loading numpy kills the process without a message.
        if not os.environ.get("SORDINO_ANY_PROCESSOR") and (why := too_old()):
            raise InputFailure(f"{why}.")
        if arguments is None:  # the process is ours
            leave_no_core()  # for all verbs, since most of them hold a key at some time
        code = _invoke(given)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed, and nothing remains to be said
            sys.exit(int(ExitCode.INPUT))
        failure = explain(error)
        helps = failure.code is ExitCode.INTERNAL or (failure.in_user_code and error.__cause__ is not None)
        if os.environ.get("SORDINO_TRACEBACK") and helps:
            raise
        _tell(failure, given)
        code = int(failure.code)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    # `python -m` ends a process by SIGINT, whatever its code, when a KeyboardInterrupt once passed through source text
    # that was executed, as each dataclass is while modules load (CPython's run_eval_code_obj). The next text resets it.
    exec("")
    sys.exit(code)


@cache
def _command() -> Any:
    """All verbs with their options; building it takes typer a while."""
    return typer.main.get_command(app)


def _command_of(words: Sequence[str]) -> tuple[Any, int]:
    """The command that some words name, and how many of them; None where they name a group or nothing."""
    if not words or words[0] not in VERBS:
        return None, 0
    command = verb(words[0])
    if not hasattr(command, "commands"):
        return command, 1
    return (command.commands.get(words[1]), 2) if len(words) > 1 else (None, 1)


def _invoke(arguments: list[str]) -> int:
    command = _command()
    result = command.main(args=respelled(arguments, _command_of), prog_name="sordino", standalone_mode=False)
    return int(result) if isinstance(result, int) else 0


def explain(error: Exception) -> Failure:
    """The failure behind an exception of any room.

    Rooms raise a `Failure` themselves. Only here do the errors of the cores, of the command line and of Python become
    one.
    """
    if isinstance(error, Failure):
        if error.in_user_code and error.__cause__ is not None:
            error.suggestion = "SORDINO_TRACEBACK=1 shows all of the traceback"
        return error
    message = str(error).strip() or type(error).__name__
    if isinstance(error, typer.Abort):
        return Failure(ExitCode.INTERRUPTED, ExitCode.INTERRUPTED.short)
    if hasattr(error, "format_message"):  # what typer raises for a wrong command line
        return InputFailure(_refused_value(error) or _usage(error))
    if isinstance(error, PermissionError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return InputFailure(f"{error.filename}: {error.strerror}. Check the path and its mode.")
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return NetworkFailure(message)
    if isinstance(error, OSError):
        return InputFailure(f"{error.filename or ''}: {error.strerror or message}".lstrip(": "))
    if isinstance(error, ModuleNotFoundError):
        if lacking := missing(error):
            return lacking
    elif isinstance(error, ImportError):
        return InputFailure(message)
    return _of_a_core(error, message) or Failure(
        ExitCode.INTERNAL, f"a fault in sordino: {type(error).__name__}: {message}. SORDINO_TRACEBACK=1 shows where."
    )


def _of_a_core(error: Exception, message: str) -> Failure | None:
    """The failure behind an error of the two cores, which have no exit codes; loads them only now."""
    from mechanisms.refusals import InfeasiblePlan
    from secagg.errors import InvalidParameters
    from secagg.roster import InvalidRoster

    if isinstance(error, InfeasiblePlan):
        return Failure(ExitCode.INFEASIBLE, error.reason, error.suggestion or None)
    return InputFailure(message) if isinstance(error, InvalidParameters | InvalidRoster) else None


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    where = f" See `{context.command_path} --help`." if context is not None else ""
    message = str(error.format_message())
    unknown = re.match(r"No such command '([^']+)'", message)
    if unknown is not None and context is not None and context.parent is None:
        word = unknown[1]
        inside = [f"`sordino {name} {word}`" for name in VERBS if word in getattr(verb(name), "commands", ())]
        if inside:
            return f"{unknown[0]}. Did you mean {' or '.join(inside)}?{where}"
    return message.rstrip(".") + ("" if message.rstrip(".").endswith("?") else ".") + where


def _refused_value(error: Any) -> str | None:
    """What is wrong with the value of an option, in our words; None for all other errors."""
    cause, parameter = error.__cause__, getattr(error, "param", None)
    # Below typer 0.29, which Flower pins, only a sentence says what was given.
    told = re.fullmatch(r"'(.*)' is not a valid (int|float).*", getattr(error, "message", ""))
    if parameter is None or not (told or hasattr(cause, "errors")):
        return None
    detail: dict[str, Any] = {"input": told[1], "type": f"{told[2]}_parsing"} if told else cause.errors()[0]
    option, given, limits = parameter.opts[0], detail.get("input"), detail.get("ctx", {})
    shown = f"{option} {given}" if option.startswith("-") else f"{given}"  # an argument has no name for users
    kind = detail["type"]
    if option == "--adversarial" and given in ("malicious", "semi-malicious", "curious"):
        return "--adversarial is a share such as 0.05; what the coordinator may do is --adversary."
    if kind in ("greater_than_equal", "less_than_equal"):
        use = f"at least {limits['ge']}" if "ge" in limits else f"at most {limits['le']}"
        return f"{shown} is out of range. Use {use}."
    if kind in ("int_parsing", "int_from_float", "int_type", "int_parsing_size"):
        return f"{shown} is not a whole number."
    if kind in ("float_parsing", "float_type"):
        if share := re.fullmatch(r"(\d+(?:\.\d+)?) *%", str(given)):
            return f"{shown} is not a number: for {share[1]} % write {float(share[1]) / 100:g}."
        return f"{shown} is not a number."
    names = re.findall(r"'([^']*)'", str(detail["msg"]).partition("is not one of")[2])
    if not names:
        return None
    return f"{shown} is unknown. Use one of: {', '.join(names)}.{did_you_mean(given, names)}"


def _spoken(arguments: Sequence[str]) -> str:
    """The command as it was called, without options: ``sordino plan``, ``sordino budget show``."""
    words = [part for part in arguments if not part.startswith("-")]
    inside = getattr(verb(words[0]), "commands", ()) if words and words[0] in VERBS else ()
    return " ".join(["sordino", *words[: 2 if inside else 1]])


def _tell(failure: Failure, arguments: Sequence[str]) -> None:
    """One plain sentence on stderr; with --json also one object on stdout."""
    if failure.code is not ExitCode.INTERRUPTED:
        # For errors of all rooms: some quote another machine, or a file that another person wrote.
        end = "" if failure.message.endswith((".", "?", "!")) else "."
        print(printable(f"{_spoken(arguments)}: {failure.message}{end}"), file=sys.stderr)
        if failure.suggestion:
            suggestion = failure.suggestion[:1].upper() + failure.suggestion[1:].rstrip(".") + "."
            print(printable(suggestion), file=sys.stderr)
    if "--json" in arguments:
        body = {"error": failure.message, "suggestion": failure.suggestion, "exit_code": int(failure.code)}
        print(json.dumps(body | failure.about), flush=True)
