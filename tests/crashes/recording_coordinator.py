"""`sordino serve` with a record: the real coordinator, which tells its parent what it receives and asks.

    python -m tests.crashes.recording_coordinator STUDY PARENT

Each fact of `recorded_study.watch` is a line of JSON on standard output, written before the coordinator goes on; what
`sordino serve` has to say goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import server.coordinator
from runtime.failure import Failure
from runtime.logs import configure_logs
from runtime.processes import end_with_parent
from server.events import Event, to_json
from server.study import Study
from server.study_file import load
from tests.crashes.recorded_study import watch


def tell(fact: dict[str, Any]) -> None:
    """To whoever reads; waits while the pipe is full."""
    line = json.dumps(fact, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]


class RecordedStudy(Study):
    """The real study, watched from its beginning."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        watch(self, tell)


def event(happened: Event) -> None:
    """How rounds end."""
    fact = to_json(happened)
    if fact["kind"] in ("attempt_started", "round_completed", "attempt_aborted", "study_finished"):
        kept = {name: fact[name] for name in ("round", "attempt", "u3", "reason", "phase", "seconds") if name in fact}
        tell({"what": "event", "event": fact["kind"], "at": time.monotonic(), **kept})


def main(arguments: list[str]) -> int:
    """The process: see the module."""
    folder, parent = arguments
    end_with_parent(int(parent))
    configure_logs()
    server.coordinator.Study = RecordedStudy  # type: ignore[misc]
    try:
        return server.coordinator.serve(load(Path(folder)), on_event=event)
    except Failure as error:
        print(f"coordinator: {error}", file=sys.stderr)
        return int(error.code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
