"""``sordino config``: what a settings file says, where each value comes from, and what it may say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runtime.settings_keys import toml_value
from sordino.cli.verbs import Json, answer, argument, flag, verb_group, verb_in

if TYPE_CHECKING:
    from client.host_file import HostConfiguration
    from runtime.settings_file import Settings
    from server.study_file import StudyConfiguration

app = verb_group(
    "config",
    "Check and explain study.toml and host.toml.\n\nSORDINO_TABLE__KEY in the environment overrides a key of either "
    "file, for example SORDINO_COORDINATOR__LISTEN=0.0.0.0:8443, and counts here too.",
)
_STUDY, _HOST = "study.toml", "host.toml"
_HINT = "Name a folder with study.toml or host.toml, or one of the two files."

Where = Annotated[
    Path,
    argument("DIR|FILE", "A study's folder, a host's folder, or one of the two files.", shown="the current folder"),
]


@verb_in(
    app,
    "check",
    "config check my-study",
    "Check a file: each mistake is a line with the file or variable, the key, the value and what is expected.\n\n"
    "Files that it names must exist. Not checked: their content, whether the data set is known, whether others can "
    "read a key (`serve` and `join` check these), whether a plan keeps the budget (`plan` and `serve` do), and whether "
    "the authority has signed these terms, that is the (fixed) keys (`serve` does).",
)
def check(path: Where = Path("."), as_json: Json = False) -> None:
    from learning.make_task import check_task_table

    file, settings = _load(path)
    check_task_table(file, settings.study.task, settings.task)
    answer(as_json, {"file": str(file), "ok": True}, [f"{file}: no mistake found."])


@verb_in(
    app,
    "show",
    "config show my-study --origin",
    "Show every key with its effective value; paths are absolute.\n\n--origin adds where it comes from: the "
    "file, a variable of the environment, or the default.",
)
def show(
    path: Where = Path("."),
    origin: Annotated[bool, flag("--origin", "Also say where each value comes from.")] = False,
    as_json: Json = False,
) -> None:
    file, settings = _load(path)
    rows = list(_rows(file, settings))
    lines = [f"{key} = {toml_value(value)}" for key, value, _ in rows]
    if origin:
        width = max(map(len, lines))
        lines = [f"{line:<{width}}  # {came}" for line, (_, _, came) in zip(lines, rows, strict=True)]
    answer(as_json, {key: {"value": value, "origin": came} for key, value, came in rows}, lines)


@verb_in(
    app,
    "schema",
    "config schema study",
    "Print the JSON schema of a file: types, ranges, defaults and the meaning of each key.",
)
def schema(
    which: Annotated[Literal["study", "host"], argument("study|host", "Which file.", shown=True)] = "study",
    as_json: Json = False,
) -> None:
    from client.host_file import HostConfiguration
    from server.study_file import StudyConfiguration

    model: type[Settings] = StudyConfiguration if which == "study" else HostConfiguration
    typer.echo(json.dumps(model.model_json_schema(), indent=None if as_json else 1, default=str))


def _load(path: Path) -> tuple[Path, HostConfiguration | StudyConfiguration]:
    """The file and its settings.

    Raises ConfigurationError: the file, a key in it, or a file that it names can't be used.
    """
    from runtime.settings_file import read_toml

    file = path
    if path.is_dir():
        file = path / (_HOST if (path / _HOST).exists() and not (path / _STUDY).exists() else _STUDY)
    if file.name == _HOST or (file.name != _STUDY and "host" in read_toml(file, hint=_HINT)):
        from client.host_file import load as load_host

        return file, load_host(file)
    from server.study_file import load as load_study

    return file, load_study(file)


def _rows(file: Path, settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """(``table.key``, value, origin) of every key; keys of lists of tables have a number."""
    from client.policy_file import policy_values
    from runtime.settings_file import read_toml, variable_of

    content = read_toml(file, hint="")
    of_policy = content.get("policy", {}).get("file")
    written = policy_values(content, file, None)

    def origin(*location: str | int) -> str:
        variable = next(filter(None, (variable_of(location[:end]) for end in range(len(location), 0, -1))), None)
        if variable is not None:
            return f"environment variable {variable}"
        held: Any = written
        for part in location:
            found = part in held if isinstance(held, dict) else isinstance(part, int) and part < len(held)
            if not found:
                return "default"
            held = held[part]
        return str(of_policy) if of_policy and location[0] == "policy" else file.name

    for table, content_of in settings.model_dump(mode="json").items():
        for number, entry in enumerate(content_of) if isinstance(content_of, list) else [(None, content_of)]:
            for key, value in entry.items():
                place = (table, key) if number is None else (table, number, key)
                if value is not None:
                    yield f"{table}.{key}" if number is None else f"{table}[{number}].{key}", value, origin(*place)
