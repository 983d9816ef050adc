"""Run the adversary suite and print its table.

    python -m tests.adversary                                 all of them: two minutes
    python -m tests.adversary --list
    python -m tests.adversary --only ring --only u2
    python -m tests.adversary --write
    python -m tests.adversary --write --only a-new-script

Every script runs on the real code over gRPC with mutual TLS, and again for each check that it names, with that check
removed. Exit code 1 if the outcome of any run is not as stated.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

if importlib.util.find_spec("pytest") is None:  # the scripts import it
    sys.exit('This needs the environment of the tests: run `make adversary ADVERSARY_ARGS="--only flood"`.')

# Connections are cut on purpose.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import structlog
from rich.console import Console
from rich.progress import Progress

from tests.adversary import table
from tests.adversary.script import COORDINATOR, PARTICIPANT, Places, scripts


def unsaid(*_: Any) -> Any:
    """Drop what clients and coordinators log; it is not part of the table."""
    raise structlog.DropEvent


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.adversary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="WORD", help="scripts whose name holds this; again for more")
    parser.add_argument("--cheat", choices=(COORDINATOR, PARTICIPANT), help="only one side's scripts")
    parser.add_argument("--list", action="store_true", help="print the scripts' names, one a line, and run none")
    parser.add_argument(
        "--write", action="store_true", help="write the table to docs/threat_model.md; other scripts keep their rows"
    )
    arguments = parser.parse_args()
    chosen = scripts(arguments.cheat) if arguments.cheat else scripts()
    if arguments.only:
        for word in arguments.only:
            if not any(word in one.name for one in chosen):
                whose = f"of a {arguments.cheat}'s scripts" if arguments.cheat else "of a script"
                parser.error(f"no name {whose} holds {word!r}; --list prints them all")
        chosen = [one for one in chosen if any(word in one.name for word in arguments.only)]
    if arguments.list:
        print(*(one.name for one in chosen), sep="\n")
        return 0
    new = sorted({one.name for one in scripts()} - {one.name for one in chosen} - table.on_page().keys())
    if arguments.write and new:
        parser.error(f"--write must run {', '.join(new)} too, which the page does not list yet")

    structlog.configure(processors=[unsaid])  # `capture_logs` puts its own there while it listens
    logging.getLogger().addHandler(logging.NullHandler())  # nor what libraries log
    console = Console()
    with tempfile.TemporaryDirectory(prefix="sordino-adversary-") as folder, Progress(transient=True) as progress:
        task = progress.add_task("scripts", total=len(chosen))
        played = table.play(chosen, Places(Path(folder)), lambda _: progress.advance(task))
    table.print_table(console, played)
    failed = any(one.wrong for one in played)
    if arguments.write and not failed:
        table.write(scripts(), played)
        console.print(f"written: {table.PAGE}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
