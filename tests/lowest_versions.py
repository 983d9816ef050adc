"""The lowest versions that pyproject.toml allows, as pip's constraints: ``python tests/lowest_versions.py EXTRA...``.

`make test-lowest` installs them and runs the tests of the cores, the ports and the demo: lower bounds stay true.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def lowest(extras: set[str]) -> list[str]:
    """``NAME==VERSION`` for each requirement of the project and of these extras, in ascending order.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    stated = project["dependencies"] + [one for name in extras for one in project["optional-dependencies"][name]]
    found = set()
    for requirement in stated:
        bound = re.match(r"([\w.-]+)[^;]*?>=\s*([\w.]+)", requirement)
        if bound is None:
            raise ValueError(f"{requirement} has no lower bound")
        found.add(f"{bound[1]}=={bound[2]}")
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(lowest(set(sys.argv[1:]))))
