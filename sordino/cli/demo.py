"""``sordino demo``: see it work on this machine, in about a minute."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from runtime.extras import check_extra
from runtime.failure import ExitCode, Failure
from runtime.text import folded
from sordino.cli.verbs import A_STUDY, JsonAtEnd, epilog, flag, number, option

HELP = (
    "Run a whole study on this machine: a coordinator and ten client processes train on real data.\n\nTen processes "
    "with ten participants each talk to a coordinator over TLS on loopback and train a softmax regression on "
    "Fashion-MNIST, with secure aggregation and discrete Gaussian noise. In the middle of round 5 two processes "
    "are killed on purpose; three rounds later they start again. At the end it prints the accuracy beside that of "
    "the same training without noise, and the privacy spent, and writes report.html. A live page shows the same; its "
    "address is printed. Ctrl-C stops every process."
)
EPILOG = epilog("demo --rounds 5 --out my-demo", *A_STUDY, ExitCode.BUDGET)


def run(
    rounds: Annotated[int, number("Rounds of training.", 1)] = 15,
    processes: Annotated[int, number("Client processes.", 1)] = 10,
    participants: Annotated[int, number("Participants in all, spread evenly.", 3)] = 100,
    out: Annotated[Path | None, option("DIR", "Folder for the study, new or empty.", shown="./demo-DATE-TIME")] = None,
    hold: Annotated[bool, flag("--hold", "At the end keep the live page open, until Ctrl-C.")] = False,
    as_json: JsonAtEnd = False,
) -> int:
    check_extra("server")  # before anything is made or started: coordinator and report need it
    from authority.new_study import ONE_MACHINE
    from sordino.lab.demo import DemoOptions, default_folder, demo_page, final_lines, run_demo
    from sordino.reporting.live_page import shown_beside
    from sordino.reporting.panel import Display, StudyPanel

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that every process is stopped too
    options = DemoOptions(rounds=rounds, processes=processes, participants=participants)
    folder = out or default_folder()
    page = demo_page(folder)
    with shown_beside(page) as address:
        try:
            with Display(StudyPanel(), plain=as_json) as display:
                result = run_demo(options, folder, display, page, address)
        except KeyboardInterrupt:
            if folder.exists():
                typer.echo(f"\nstopped; what was recorded is in {folder}", err=True)
            raise
        if as_json:
            typer.echo(json.dumps(result))
        else:
            typer.echo("\n" + "\n".join(final_lines(result)) + "\n\n" + "\n".join(folded(ONE_MACHINE, 98)))
            if out is None:
                typer.echo(f"\nkept in {result['directory']}; --out DIR chooses another folder")
        if hold:
            typer.echo(f"\nthe page stays on http://{address}/ until Ctrl-C", err=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    if result["rounds"] != rounds:
        raise Failure(ExitCode.STUDY, f"{result['rounds']} of {rounds} rounds ended in a sum.")
    return int(ExitCode.OK)
