"""One figure beside the demo: a round of five participants in five processes with about 100,000 values, over TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from authority.new_study import make_local_study
from authority.study_options import StudyOptions
from runtime.child_process import Child, stop
from runtime.processes import free_port
from server.study_view import StudyView

_ROUNDS: Final = 3
_LONGEST_S: Final = 40.0
# One step over all of one's data: the round is the protocol, with next to no training in it.
_TASK: Final = {"client_rate": 0.05, "batch_size": 1200, "local_epochs": 1, "hidden": 126}


def measure_networked_round(folder: Path, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Run a small study of a few rounds and take the median one.

    Args:
        folder: where to make the study; must not exist.
        environment: of the processes.

    Returns:
        ``participants``, ``dim``, ``bits``, ``key_to_sum_s`` (from the first key to the sum), ``upload_bytes`` (a
        participant) and ``vector_bytes`` (of it the masked vector); None when no round ended in a sum.
    """
    from server.journal import read_events

    port = free_port()
    options = StudyOptions(
        name="five",
        participants=5,
        hosts=5,
        rounds=_ROUNDS,
        task="mlp",
        task_options=_TASK,
        partition="iid",
        max_dropout=0.2,
        listen=f"127.0.0.1:{port}",
    )
    study = make_local_study(folder, options)
    logs = folder / "logs"
    logs.mkdir()
    coordinator = Child("coordinator", ["serve", str(folder), "--quiet"], logs / "coordinator.log")
    clients = [
        Child(home.name, ["join", options.client_address, "--home", str(home)], logs / f"{home.name}.log")
        for home in study.hosts
    ]
    try:
        for child in (coordinator, *clients):
            child.start(environment)
        assert coordinator.process is not None  # noqa: S101  # started on the line above
        coordinator.process.wait(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        pass  # what did end is told below
    finally:
        stop(coordinator, clients)
    view = StudyView().apply_all(read_events(folder / "coordinator" / "state.sqlite"))
    if not view.rounds:
        return None
    median = sorted(view.rounds, key=lambda done: done.key_to_sum_s)[len(view.rounds) // 2]
    return {
        "participants": options.participants,
        "dim": study.plan.dim,
        "bits": study.plan.bits,
        "key_to_sum_s": median.key_to_sum_s,
        "upload_bytes": median.upload_bytes,
        "vector_bytes": median.vector_bytes,
    }
