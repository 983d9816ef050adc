"""``sordino new``: write a project that runs as it is. Its files are templates in `project/` beside this module."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from runtime.durable import taken, whole_folder
from runtime.failure import InputFailure
from sordino.cli.verbs import Json, answer, argument, epilog

HELP = (
    "Write a project that runs as it is: a model of your own, a reader for files of your own, made-up files, a study "
    "and a test.\n\nNAME must be new or empty. Change model.py, then the files in data/: the pages on your own model "
    "and your own data have the rules."
)
EPILOG = epilog("new my-project")


def run(directory: Annotated[Path, argument("NAME", "Folder to make.")], as_json: Json = False) -> int:
    if why := taken(directory):
        raise InputFailure(f"{directory} is {why}. Name a folder that is new or empty.")
    if " " in str(directory.resolve()):
        raise InputFailure(f"{directory}: make can't work in a folder with a blank in its path. Name another one.")
    with whole_folder(directory) as folder:
        for template in files("sordino.cli").joinpath("project").iterdir():
            text = template.read_text(encoding="utf-8").replace("# NAME", f"# {directory.resolve().name}")
            (folder / template.name.removesuffix(".txt")).write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, "made_up.py"], cwd=folder, check=True)
        made = sorted(path.name for path in folder.iterdir())
    body = {"directory": str(directory.resolve()), "made": made}
    return answer(as_json, body, [f"Made {directory}: {', '.join(made)}.", f"Run it: cd {directory} && make simulate"])
