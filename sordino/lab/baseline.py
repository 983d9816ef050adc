"""The same training without noise, as a process of low priority beside the demo.

``python -m sordino.lab.baseline DIR`` prints one JSON line a round. With ``--cohorts`` the participants of each
round are read from standard input, as a JSON list of lists of parts of the data: the survivors of the real
run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def run(directory: Path, cohorts: Sequence[Sequence[int]] | None, say: Callable[[float], None], parts: int) -> None:
    """Train as the study's file says, with its clip, without masks and without noise.

    Args:
        directory: the study's folder.
        cohorts: for each round the parts of the data that take part; None is everybody in every round.
        say: given the accuracy after each round.
        parts: how many parts the data is cut into, one a participant.
    """
    from learning.cut_data import cut_dataset
    from learning.datasets import load_part
    from learning.make_task import clip_of, make_task
    from learning.own_data import load_test
    from server.study_file import load
    from sordino.lab.training_without_noise import simulate

    configuration = load(directory)
    data = configuration.data
    train, test = load_part(data.dataset, "train"), load_test(data.dataset, data.test)
    task = make_task(configuration.study.task, dict(configuration.task))
    simulate(
        task,
        train,
        test,
        cut_dataset(data.dataset, data.partition, parts, data.alpha, data.seed, data.shards),
        configuration.server_optimizer.make(),
        rounds=configuration.study.rounds if cohorts is None else len(cohorts),
        l2_clip=clip_of(task, configuration.privacy.clip),
        seed=data.seed,
        cohorts=cohorts,
        on_round=lambda done: say(done.accuracy),
    )


def main() -> None:
    """Entry of the process: DIR PARTS PARENT [--cohorts]."""
    from runtime.processes import end_with_parent

    directory, parts, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    end_with_parent(parent)
    with contextlib.suppress(OSError):
        os.nice(19)
    cohorts = json.load(sys.stdin) if "--cohorts" in sys.argv[4:] else None
    run(directory, cohorts, lambda accuracy: print(json.dumps(accuracy), flush=True), parts)


if __name__ == "__main__":
    main()
