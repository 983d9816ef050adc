"""What a study has learned, as whoever wants to use it reads it: names, arrays, and where they come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from learning.checkpoints import load_checkpoint
from learning.parameters import Parameters


@dataclass(frozen=True)
class SavedModel:
    """The model after some round.

    Attributes:
        parameters: float32 arrays by their names, in the order of the task's ``initial_parameters``; of a statistic the
            mean contribution.
        study: its name.
        task: as ``--task`` names it.
        round: after whose sum it was written, from 1.
    """

    parameters: Parameters
    study: str
    task: str
    round: int


def load_model(path: str | os.PathLike[str]) -> SavedModel:
    """Read the model that ``sordino serve`` or ``sordino simulate --output`` has written; the file is never unpickled.

    Args:
        path: such as ``my-study/coordinator/checkpoints/round-000040.npz``, or ``run.jsonl.npz``.

    Raises:
        FileNotFoundError: there is no such file.
        learning.checkpoints.CheckpointError: it is damaged, its digest tells, or no model of a study.
    """
    found = load_checkpoint(Path(path))
    about = found.metadata
    return SavedModel(
        found.parameters, str(about.get("study", "")), str(about.get("task", "")), int(about.get("round", 0))
    )
