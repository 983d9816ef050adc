"""Scenario files: the options of a load test in TOML, under their names on the command line with _ in the place of -.

What may be given more than once is a list there (`crash = [2, 4]`) or an array of tables (`[[link]]`); the other faults
are tables (`[stragglers]`). `description` says what the scenario is for. docs/load_tests.md has an example.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtime.failure import ExitCode, Failure
from sordino.lab.loadtest.availability import Availability
from sordino.lab.loadtest.faults import Cheats, Fault, Link, Storm, Stragglers, check_known

_NUMBER: Final = (int, float)
_PLAIN: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "clients": ("clients", (int,)),
    "processes": ("processes", (int,)),
    "dim": ("dim", (int,)),
    "bits": ("bits", (int,)),
    "rounds": ("rounds", (int,)),
    "drop": ("drop", _NUMBER),
    "at": ("at", (str,)),
    "drop_style": ("drop_style", (str,)),
    "seed": ("seed", (int,)),
    "deadline": ("deadline_s", _NUMBER),
    "resume": ("resume_s", _NUMBER),
    "pause": ("pause_s", _NUMBER),
    "noise": ("noise", (bool,)),
    "verify_once": ("verify_once", (bool,)),
    "max_p95": ("max_p95_s", _NUMBER),
    "min_completed": ("min_completed", (int,)),
    "min_share": ("min_share", _NUMBER),
    "max_rss": ("max_rss_mb", _NUMBER),
    "max_unplanned": ("max_unplanned", (int,)),
    "noise_within": ("noise_within", _NUMBER),
}
"""Name -> field of `LoadOptions`, and what it may be."""
_TABLES: Final[Mapping[str, tuple[str, type[Fault]]]] = {
    "stragglers": ("stragglers", Stragglers),
    "cheats": ("cheats", Cheats),
    "availability": ("availability", Availability),
}
_LISTS: Final[Mapping[str, tuple[str, type[Fault]]]] = {"link": ("links", Link), "storm": ("storms", Storm)}
NAMES: Final = ("description", *_PLAIN, *_TABLES, *_LISTS, "crash")


def read_scenario(path: Path) -> dict[str, Any]:
    """A file's values as fields of `LoadOptions`.

    Raises:
        Failure: it can't be read, or a name or value can't be used; names the nearest.
    """
    try:
        text = path.read_text()
        values = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(ExitCode.INPUT, f"the scenario {path} can't be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise Failure(ExitCode.INPUT, f"the scenario {path} is no TOML: {error}.") from None
    for name in values:
        check_known(name, NAMES, str(path))
    if isinstance(table := values.get("availability"), dict) and table.get("trace"):
        values["availability"] = table | {"trace": str(path.parent / str(table["trace"]))}  # beside the scenario
    try:
        return fields_of(values, str(path))
    except Failure as error:
        if error.message.startswith(str(path)):
            raise
        raise Failure(error.code, f"{path}: {error.message}", error.suggestion) from None


def fields_of(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values under the names of scenario files as fields of `LoadOptions`; those that are None are left out.

    Args:
        where: they come from, for an error message.

    Raises:
        Failure: a value can't be used.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or name == "description":
            continue
        if name in _PLAIN:
            field, kinds = _PLAIN[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise Failure(ExitCode.INPUT, f"{where}: {name} = {value!r} is not {_words(kinds)}.")
            if kinds is _NUMBER:
                value = _finite(value, name, where)
            found[field] = value
        elif name in _TABLES:
            field, kind = _TABLES[name]
            found[field] = kind.read(value)
        elif name in _LISTS:
            field, kind = _LISTS[name]
            if not isinstance(value, list | tuple):
                raise Failure(ExitCode.INPUT, f"{where}: write [[{name}]], since there may be several.")
            found[field] = tuple(kind.read(one) for one in value)
        else:
            if not isinstance(value, list | tuple) or not all(type(one) is int for one in value):
                raise Failure(ExitCode.INPUT, f"{where}: {name} is a list of rounds, such as [2, 4].")
            found["crashes"] = tuple(sorted(value))
    return found


def _finite(value: Any, name: str, where: str) -> float:
    with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
        if math.isfinite(value):
            return float(value)
    raise Failure(ExitCode.INPUT, f"{where}: {name} = {value} is not a finite number.")


def _words(kinds: tuple[type, ...]) -> str:
    return {int: "a whole number", str: "a text", bool: "true or false"}[kinds[0]] if len(kinds) == 1 else "a number"
