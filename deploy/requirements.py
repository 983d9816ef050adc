"""Prints what the project needs, a line each: `requirements.py PYPROJECT [EXTRA...]`. For building images."""

import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
print(*project["dependencies"], *(line for name in sys.argv[2:] for line in extras[name]), sep="\n")
