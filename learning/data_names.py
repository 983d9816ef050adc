"""Names of data sets and of partitions, for settings that are checked before numpy or anything of its size is loaded.

A data set is named in one of five ways:

- a set that ships: ``BUILT_IN``;

- one that ``sordino data prepare`` has made on this machine: its name, such as ``mnist``;

- files of a published format, where they lie: ``FORMAT:PATH``, such as ``cifar10:/data/cifar-10-batches-bin``;

- ``own``: each participant names its own file;

- ``app``: the participants' data are loaded by the task, a Flower app.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from learning.task_names import FLOWER

BUILT_IN: Final = ("fashion-mnist-subset",)

PREPARABLE: Final = (
    *("mnist", "fashion", "femnist-shaped", "shakespeare", "vietnam-health", "exam-scores"),
    *("insteval", "movielens", "covid-clinics", "heart"),
)
"""Sets that ``sordino data prepare`` can make: the keys of ``sordino.lab.preparation.catalogue.CATALOGUE``."""

FORMATS: Final = ("cifar10", "femnist", "leaf", "stackoverflow")
"""Published formats that are read where they lie."""

OWN: Final = "own"
"""Each participant has its own file; nothing is cut."""

APP: Final = "app"
"""The task loads the data; each participant has the number of a partition, and declares an identity of its data."""

BROUGHT: Final = (OWN, APP)
"""Those that participants bring, and that nothing here cuts."""

PARTITIONS: Final = ("iid", "dirichlet", "shards", "natural")

FOLDER_VARIABLE: Final = "SORDINO_DATA_FOLDER"
# Not SORDINO_DATA: settings files take that for their whole table [data].

_PREPARED: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def data_folder() -> Path:
    """Where prepared sets lie: ``$SORDINO_DATA_FOLDER``, else ``~/.local/share/sordino/data``."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".local" / "share" / "sordino" / "data"


def is_prepared_name(name: str) -> bool:
    """Whether a prepared set may be called this: lower-case words with hyphens, and no name that is taken."""
    return len(name) <= 64 and _PREPARED.fullmatch(name) is not None and name not in (*BUILT_IN, *BROUGHT)


def format_and_path(name: str) -> tuple[str, Path] | None:
    """Both halves of ``FORMAT:PATH``; None for a name of another kind."""
    kind, colon, path = name.partition(":")
    return (kind, Path(path)) if colon and path and kind in FORMATS else None


def check_dataset_name(name: str) -> str:
    """Return ``name`` if a data set could be called this; whether there is one is seen when it is loaded.

    Raises ValueError: none could; the message goes on after the name.
    """
    if name in (*BUILT_IN, *BROUGHT) or is_prepared_name(name) or (len(name) <= 4096 and format_and_path(name)):
        return name
    raise ValueError(
        f"is unknown. Use one of {', '.join(BUILT_IN)}, a name that `sordino data list` shows, "
        f"FORMAT:PATH with FORMAT one of {', '.join(FORMATS)}, {OWN!r} for files of the participants' own, or {APP!r} "
        "with a Flower app"
    )


def check_loaded(task: str, dataset: str) -> None:
    """Raises ValueError: a Flower app with a data set, or ``app`` with a task that loads nothing."""
    if task.startswith(FLOWER) != (dataset == APP):
        raise ValueError(
            f"data.dataset = {dataset!r} doesn't go with the task {task!r}: a task {FLOWER}MODULE:APP loads its data "
            f"by itself, so it has dataset = {APP!r}, and no other task has"
        )


def located(name: str, base: Path) -> str:
    """The name with its path, if it has one, made absolute: paths of a settings file are relative to that file."""
    found = format_and_path(name)
    return f"{found[0]}:{(base / found[1].expanduser()).absolute()}" if found else name
