"""Read one TOML settings file into a frozen pydantic model; the environment overrides the file.

All settings files (``study.toml``, ``host.toml``, ``authority.toml``) follow the same rules: unknown keys are refused,
``SORDINO_TABLE__KEY`` overrides a key, and each mistake is one line that names the file or the variable, the key, the
value found and what is expected.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from runtime.failure import InputFailure
from runtime.settings_keys import is_table, settings_keys
from runtime.text import did_you_mean

ENVIRONMENT_PREFIX = "SORDINO_"
TABLES = {  # of all settings files: a variable may be for another one
    "authority",
    "conditions",
    "coordinator",
    "data",
    "deadlines",
    "engine",
    "evaluation",
    "host",
    "participants",
    "policy",
    "privacy",
    "server_optimizer",
    "study",
    "task",
}
NAME_IN_WORDS = "letters, digits, . _ - after a first letter or digit"
_PLAIN = {  # by the beginning of pydantic's kind of error
    "bool": "should be true or false",
    "int": "should be a whole number",
    "int_from": "should be a whole number",
    "float": "should be a number",
    "string": "should be a text",
    "path": "should be a text",
    "model": "should be a table",
    "dict": "should be a table",
    "tuple": "should be a list",
}
_LIMIT = 80  # characters of a refused value that are repeated in an error


class ConfigurationError(InputFailure, ValueError):
    """A settings file, a variable that overrides it, or a value in its place can't be used; says what to change."""


class Table(BaseModel):
    """One table of a settings file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Settings(Table):
    """A whole settings file. `read_settings` lets ``SORDINO_TABLE__KEY`` in the environment win over the file."""


Model = TypeVar("Model", bound=Settings)
Within = TypeVar("Within", bound=Table)
Made = TypeVar("Made", bound=BaseModel)


def read_settings(
    model: type[Model], path: Path, *, hint: str, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Model:
    """Parse a TOML file and validate it against the model.

    Args:
        hint: a sentence that says how such a file is made; ends the message when there is no file.
        prepare: takes the file's content and returns the content to validate, for example completed by a table from
            another file; may raise `ConfigurationError`.

    Raises ConfigurationError: the file can't be read, isn't TOML, or holds a value that the model refuses.
    """
    content = read_toml(path, hint=hint)
    for key in content:
        if key.startswith("_"):  # pydantic-settings would read it as one of its own options, such as _env_file
            raise ConfigurationError(f"{path}: {key} is not a known key.{_suggestion(model, (key,))}")
    for name in os.environ:
        table, key, _ = name.lower().partition("__")
        if key and (wrong := table.removeprefix("sordino_")) not in {*TABLES, table}:
            near = did_you_mean(wrong, TABLES)
            raise ConfigurationError(f"environment variable {name}: there is no table [{wrong}].{near}")
    if prepare is not None:
        content = prepare(content)
    from pydantic_settings import SettingsError

    try:
        return model.model_construct(**dict(_sourced(model)(**content)))
    except ValidationError as error:
        details = error.errors(include_url=False)
        lines = [f"{origin(path, detail['loc'])}: {explain(model, detail)}" for detail in details]
        raise ConfigurationError("\n".join(lines)) from None
    except SettingsError as error:
        raise ConfigurationError(
            f"environment: {error}. Set single keys, such as {ENVIRONMENT_PREFIX}COORDINATOR__LISTEN=0.0.0.0:8443."
        ) from None


@cache
def _sourced(model: type[Settings]) -> Any:
    """The model with its values from the environment first; no .env file or secrets folder."""
    from pydantic_settings import BaseSettings, SettingsConfigDict

    class FromEnvironment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, env_nested_delimiter="__")

        @classmethod
        def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[Any, ...]:
            return sources["env_settings"], sources["init_settings"]

    # Bases in this order: what the model says of its fields wins.
    return type(model.__name__, (model, FromEnvironment), {"__module__": __name__})


def read_toml(path: Path, *, hint: str) -> dict[str, Any]:
    """Parse ``path``; ``hint`` as of `read_settings`. Raises ConfigurationError: it can't be read, or isn't TOML."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file. {hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not a UTF-8 text file (byte {error.start}). {hint}") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror or error}.") from None
    try:
        return tomllib.loads(text)
    except ValueError as error:  # beside the errors of tomllib, what int() says of a number of 5000 digits
        quotes = " (text needs quotes)" if str(error).startswith("Invalid value") else ""
        raise ConfigurationError(f"{path}: not valid TOML: {error}{quotes}.") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: not valid TOML: lists or tables are nested too deeply.") from None


def absolute(table: Within, base: Path) -> Within:
    """The table of a settings file with its paths, which are relative to the file's folder, made absolute."""
    return table.model_copy(update={name: base / value for name, value in table if isinstance(value, Path)})


def check_files(path: Path, files: Mapping[str, Path], *, hint: str) -> None:
    """Check that the files which a settings file names (dotted key -> absolute path) exist and can be read; ``hint``
    says what to do about a missing one.

    Raises ConfigurationError: names every key whose file is missing or unreadable.
    """
    lines = []
    for key, file in files.items():
        if not file.is_file():
            lines.append(f"{path}: {key}: there is no file {file}. {hint}")
        elif not os.access(file, os.R_OK):
            lines.append(f"{path}: {key}: {file} can't be read by this user. Change its owner or mode.")
    if lines:
        raise ConfigurationError("\n".join(lines))


def number_if_it_is_one(value: Any) -> Any:
    """The environment holds only text: turn "20" and "0.5" into numbers where a key may have several types."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def _plain(value: Any) -> Any:
    """Paths as texts, NumPy's numbers as Python's."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if getattr(value, "ndim", 1) == 0 else value


def _task_option(value: Any) -> Any:
    found = number_if_it_is_one(_plain(value))
    if not isinstance(found, bool | int | float | str) or found in (math.inf, -math.inf) or found != found:
        raise ValueError("should be a text, true or false, or a finite number")
    return found


TaskOption = Annotated[bool | int | float | str, BeforeValidator(_task_option)]
"""One option of a task, in the table [task] of study.toml and host.toml."""


def build(model: type[Made], values: Mapping[str, Any]) -> Made:
    """A model from values by their flat names (`settings_keys`); the others are the defaults.

    Raises ConfigurationError, caused by pydantic.ValidationError: a value can't be; without cause: no key has such a
    name.
    """
    keys = settings_keys(model)
    for name in values.keys() - keys.keys():
        raise ConfigurationError(f"{name} is not a known key.{did_you_mean(name, keys)}")
    body: dict[str, Any] = {one.table: {} for one in keys.values() if one.table}
    for flat, one in keys.items():
        place = body[one.table] if one.table else body
        if flat in values:
            place[one.name] = _plain(values[flat])
        elif one.field.is_required() and one.about.initial is not None:
            place[one.name] = one.about.initial
    try:
        return model(**body)
    except ValidationError as error:
        raise ConfigurationError(explain(model, error.errors(include_url=False)[0])) from error


def explain(model: type[BaseModel], detail: Any, key: str = "") -> str:
    """One sentence for one refused key of a model (of `ValidationError.errors`); ``key``: else its name in the file."""
    location: Sequence[str | int] = detail["loc"]
    key = key or _dotted(location)
    if detail["type"] == "missing":
        return f"{key} is missing. Add it."
    if detail["type"] == "extra_forbidden":
        return f"{key} is not a known key.{_suggestion(model, location)}"
    return refusal(key, detail)


def refusal(key: str, detail: Any) -> str:
    """``privacy.epsilon = -1 should be greater than 0.``: what pydantic says of one value, as a sentence; ``key`` may
    be empty.
    """
    kind, value = detail["type"], detail.get("input")
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    message = message.removeprefix("Input ") if message.startswith("Input should") else message
    message = message[:1].lower() + message[1:]
    if kind == "string_pattern_mismatch":
        message = "should be 64 hexadecimal digits" if "{64}" in message else f"should be {NAME_IN_WORDS}"
    else:
        message = _PLAIN.get(kind.rpartition("_")[0], message).removeprefix("string ")
    end = "" if message.endswith("?") else "."
    if isinstance(value, Mapping | BaseModel) or value is None:
        return f"{key + ': ' if key else ''}{message}{end}"
    shown = repr(value) if len(repr(value)) <= _LIMIT else repr(value)[:_LIMIT] + "..."
    separator = "" if message.startswith(("should", "must", "is ")) else ":"
    return f"{key} = {shown}{separator} {message}{end}"


def _dotted(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def origin(path: Path, location: Sequence[str | int]) -> str:
    """The file, or the environment variable that has set the key."""
    variable = variable_of(location)
    return str(path) if variable is None else f"environment variable {variable}"


def variable_of(location: Sequence[str | int]) -> str | None:
    """The variable of the environment that sets a key, or a table as a whole, where there is one."""
    wanted = ENVIRONMENT_PREFIX + "__".join(str(part) for part in location).upper()
    return next((name for name in os.environ if name.upper() == wanted), None)


def _suggestion(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """The nearest known key of the unknown key's table; if there is none, all of them."""
    table: Any = model
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = _fields(table).get(str(part))
        table = _model_within(field.annotation) if field is not None else None
    known, name = list(_fields(table)), str(location[-1])
    for one in settings_keys(model).values():
        if name in one.about.formerly:
            return f" It is called {one.dotted} now."
    near = did_you_mean(name, known)
    elsewhere = [one.dotted for one in settings_keys(model).values() if one.name == name and one.table]
    if not near and elsewhere:
        return f" It stands in another table: {elsewhere[0]}."
    return near or (f" Known here: {', '.join(known)}." if known else " Remove it.")


def _fields(table: Any) -> dict[str, FieldInfo]:
    """A model's fields by their names in a file."""
    fields: dict[str, FieldInfo] = getattr(table, "model_fields", {})
    return {field.alias or name: field for name, field in fields.items()}


def _model_within(annotation: Any) -> Any:
    """``Table`` in ``Table``, ``tuple[Table, ...]`` or ``Table | None``."""
    return next((part for part in (annotation, *getattr(annotation, "__args__", ())) if is_table(part)), None)
