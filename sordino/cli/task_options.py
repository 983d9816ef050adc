"""Options that say what a study computes, shared by the verbs that make or simulate one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer

from learning.task_names import TASKS
from runtime.failure import ExitCode, Failure

PANEL: Final = "Study"

TASK = typer.Option(
    metavar="NAME",
    help=f"What is computed: {', '.join(TASKS)}; or module:Class of your own, in a file beside you or installed.",
    rich_help_panel=PANEL,
)
METHOD = typer.Option(
    metavar="NAME",
    help="How participants train: dp-fedavg, dp-fedsgd, fedprox, blur, lus, blur-lus.",
    rich_help_panel=PANEL,
    show_default="dp-fedavg",
)
_OWN = "the task's own"
CLIENT_RATE = typer.Option(help="Step size of local training.", rich_help_panel=PANEL, show_default=_OWN)
BATCH_SIZE = typer.Option(help="Examples in one step.", rich_help_panel=PANEL, show_default=_OWN)
LOCAL_EPOCHS = typer.Option(help="Passes over one's own data in a round.", rich_help_panel=PANEL, show_default=_OWN)
TASK_OPTION = typer.Option(
    "--task-option",
    metavar="KEY=VALUE",
    help="Any other option of the task; repeatable.",
    rich_help_panel=PANEL,
    show_default=False,
)
SERVER_OPTIMIZER = typer.Option(
    metavar="NAME",
    help="How the coordinator applies the mean: fedavg, fedadam, fedyogi or fedadagrad.",
    rich_help_panel=PANEL,
)
SERVER_RATE = typer.Option(
    help="Step along the mean update.",
    rich_help_panel=PANEL,
    show_default="1; fedadam and fedyogi 0.03, fedadagrad 0.1",
)
SERVER_MOMENTUM = typer.Option(help="Momentum of the coordinator; 0 is plain averaging.", rich_help_panel=PANEL)
SERVER_SECOND_MOMENTUM = typer.Option(help="fedadam, fedyogi: of the mean's squares.", rich_help_panel=PANEL)
SERVER_ADAPTIVITY = typer.Option(
    help="Adaptive ones: added to the root of those squares.", rich_help_panel=PANEL
)


def options_of(pairs: Sequence[str] | None, **named: object) -> dict[str, object]:
    """Options of a task: those with an option of their own where they are given, and KEY=VALUE pairs.

    Raises:
        Failure: a pair is malformed, or a key is given twice.
    """
    from runtime.settings_file import number_if_it_is_one

    found = {name: value for name, value in named.items() if value is not None}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise Failure(ExitCode.INPUT, f"--task-option {pair}: write KEY=VALUE.")
        if key in found:
            raise Failure(ExitCode.INPUT, f"--task-option {pair}: {key} is given twice.")
        found[key] = {"true": True, "false": False}.get(text, number_if_it_is_one(text))
    return found
