"""The same training without masks and noise: the accuracy that a study would reach without noise.

A simulation in which each round has the survivors of the real one. Updates are still clipped, so the difference to a
real run is the price of noise and rounding alone. The demo runs this module as a process of low priority:

    python -m sordino.lab.baseline DIR PARTS RESULTS [COHORTS] --end-with PID

It writes the accuracy after each round as a line of the file RESULTS. The JSON file COHORTS names the participants of
each round, the survivors of the real run: a list of lists of parts of the data.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sordino.lab.simulation.rounds import Cohort, Rounds
from sordino.lab.simulation.settings import SimulationSettings, resized


class RecordedRounds(Rounds):
    """Rounds whose survivors are known: parts of the data, one sequence for each round."""

    def __init__(self, settings: SimulationSettings, cohorts: Sequence[Sequence[int]]) -> None:
        super().__init__(settings)
        self._cohorts = cohorts

    def survivors(self, cohort: Cohort, round_: int, attempt: int) -> Cohort:
        return np.array(sorted(self._cohorts[round_ - 1]), np.int64)


def run(directory: Path, parts: int, cohorts: Sequence[Sequence[int]] | None) -> Iterator[float]:
    """Train as the study's file says, with its clip, without masks and without noise; yield each round's accuracy.

    Args:
        directory: the study's folder.
        parts: that the data is cut into, one for each participant.
        cohorts: for each round the participants whose updates count; None: all participants in every round.
    """
    from server.study_file import load

    configuration = load(directory)
    length = configuration.study.rounds if cohorts is None else len(cohorts)
    study = resized(configuration, parts, participants=parts, rounds=length, mechanism="none")
    everybody = [range(parts)] * length
    rounds = RecordedRounds(SimulationSettings(study=study, seed=configuration.data.seed), cohorts or everybody)
    for row in rounds.run():
        yield row["accuracy"]


def main(arguments: list[str]) -> None:
    from runtime.processes import end_with_parent

    directory, parts, results, *cohorts, _, parent = arguments
    end_with_parent(int(parent))
    with contextlib.suppress(OSError):
        os.nice(19)
    chosen = json.loads(Path(cohorts[0]).read_text()) if cohorts else None
    with Path(results).open("w") as lines:
        for accuracy in run(Path(directory), int(parts), chosen):
            print(accuracy, file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
