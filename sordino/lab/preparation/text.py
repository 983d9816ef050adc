"""Data sets that can be made, or were, in words and figures: what ``sordino data`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from authority.new_study import Making
from learning.partitions import FEWEST_EXAMPLES
from learning.prepared_data import PreparedSet
from sordino.lab.preparation.catalogue import Entry
from sordino.lab.preparation.fetching import installed, spoken
from sordino.lab.preparation.made import Options


def what_it_needs(made: PreparedSet) -> str:
    """What else `init` needs for this set: the task that fits its examples, and no more participants than users.

    What examples look like, the task takes from the set (`authority.study_data.fitted`).
    """
    described = f" {made.manifest['use']}" if "use" in made.manifest else ""
    if made.manifest["arrays"]["train_features"]["dtype"] == "int32":  # words or categories
        sequences = len(made.manifest["arrays"]["train_labels"]["shape"]) == 2
        classes = made.manifest["train"]["classes"]
        described += " --task lstm" if sequences else f" --task histogram --task-option bins={classes}"
    users = made.users("train")
    usual = most = Making().participants
    if users is not None:
        most = int((np.bincount(users) >= FEWEST_EXAMPLES).sum())
    if most < usual:
        described += f" --participants {most} --hosts {min(most, 4)}" + (" --max-dropout 0" if most < 10 else "")
    return described


def shown(entry: Entry, options: Options, paths: list[Path], target: Path) -> list[str]:
    """What is shown before the question whether to make the set."""
    lines = [f"{entry.name}: {entry.title}", ""]

    def line(key: str, text: str) -> None:
        lines.append(f"  {key:<9} {text}")

    content, users = entry.described(options)
    line("holds", content)
    line("users", users or "none: a partition makes them up")
    line("licence", entry.licence)
    for number, package in enumerate(entry.packages):
        line("source", f"{package}, {package.megabytes:g} MB")
        line("sha256", f"{package.sha256} ({package.file})")
        here = paths[number] if paths else installed(package)
        line("", f"read from {here}" if here is not None else f"fetched by: {spoken(package)}")
    line("result", str(target) + (", in the place of what is there" if target.exists() else ""))
    return lines


def about(entry: Entry) -> dict[str, Any]:
    return {
        "title": entry.title,
        "content": entry.described()[0],
        "users": entry.described()[1],
        "real_users": entry.real,
        "licence": entry.licence,
        "packages": [{"package": str(one), "file": one.file, "sha256": one.sha256} for one in entry.packages],
    }


def figures(made: PreparedSet) -> dict[str, Any]:
    keys = ("title", "licence", "train", "test", "real_users")
    return {"name": made.folder.name, "folder": str(made.folder), "sha256": made.sha256} | {
        key: made.manifest[key] for key in keys if key in made.manifest
    }


def sizes(made: PreparedSet) -> str:
    train, test = made.manifest["train"], made.manifest.get("test", {"examples": 0})
    users = f", {train['users']:,} users to train" if "users" in train else ""
    stand_in = "" if made.manifest.get("real_users", True) else " (stand-ins)"
    return f"{train['examples']:,} + {test['examples']:,} examples{users}{stand_in}"


def megabytes(entry: Entry) -> str:
    size = sum(package.megabytes for package in entry.packages if installed(package) is None)
    return f"{size:g} MB" if size else "nothing"
