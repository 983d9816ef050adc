"""A settings model from the values of a command's options; every mistake is one sentence with its option.

Ranges, names and what an option needs are stated by the keys (`runtime.settings_keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from runtime.failure import Failure, InputFailure
from runtime.settings_file import build, explain, number_if_it_is_one, refusal
from runtime.settings_keys import SettingsKey, settings_keys
from runtime.text import did_you_mean

Model = TypeVar("Model")
Table = TypeVar("Table", bound=BaseModel)


def settled(
    make: Callable[[], Model], study: Callable[[Model], Any], given: Mapping[str, Any], *models: type[BaseModel]
) -> Model:
    """Make a model, every refusal in the words of its options; options without effect are refused.

    Args:
        make: the model, from ``given`` and more.
        study: of what is made, the settings model whose keys ``given`` holds by flat name.
        models: that settings model, and others that ``make`` builds.

    Raises Failure: a value that can't be, or one that needs another.
    """
    try:
        made = make()
    except (ValidationError, InputFailure) as error:
        cause = error.__cause__ if isinstance(error, InputFailure) else error
        if not isinstance(cause, ValidationError):
            raise
        raise in_options(cause, *models) from None
    check_needs(study(made), given)
    return made


def check_needs(study: BaseModel, given: Mapping[str, Any], *, unusual: bool = False) -> None:
    """Refuse values without effect, by their flat names. Raises Failure: one needs another, which isn't so.

    ``unusual``: only values that aren't defaults, where ``given`` may hold all.
    """
    keys = settings_keys(type(study))
    for one, value in [(keys[name], value) for name, value in given.items() if name in keys]:
        needs = one.about.needs
        if needs is not None and not needs[1](study) and not (unusual and value == one.field.default):
            shown = "" if value is True else f" {value}"
            raise InputFailure(f"{one.option}{shown} needs {needs[0]}; or leave it out.")


def built(model: type[Table], values: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Table:
    """`settled` for a model of values by flat name; ``given``: those that came from options, by default all."""
    made: Table = settled(lambda: build(model, values), lambda made: made, values if given is None else given, model)
    return made


def in_options(error: ValidationError, *models: type[BaseModel]) -> Failure:
    """The first refusal of settings models, in the words of its option; an unknown key before a missing one."""
    detail = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    where = [part for part in detail["loc"] if isinstance(part, str)]
    for one in (one for model in models for one in settings_keys(model).values()):
        if where == [part for part in (one.table, one.written) if part]:
            return refused(one, detail)
        if len(where) > 1 and not one.table and one.written == where[0]:  # its value is a table: --storm round=2
            return InputFailure(explain(models[0], detail, f"{one.option}: {where[-1]}"))
    whole = len(where) < 2 and detail["type"] == "value_error"  # keys that contradict each other: it names them
    return InputFailure(refusal("", detail) if whole else explain(models[0], detail))


def refused(one: SettingsKey, detail: Any) -> Failure:
    """``--bits 99 is out of range. Use 1 to 62.``"""
    value, kind = detail.get("input"), detail["type"]
    shown = f"{one.option} {value:g}" if isinstance(value, float) else f"{one.option} {value}"
    if kind == "literal_error":
        return unknown(one.option, str(value), one.choices)
    if one.range and kind not in ("value_error",):
        example = f", such as {one.about.example}" if one.about.example else ""
        return InputFailure(f"{shown} is out of range. Use {one.range}{example}.")
    return InputFailure(refusal(one.option, detail).replace(f"{one.option} = ", f"{one.option} ", 1))


def unknown(option: str, given: str, allowed: Sequence[str]) -> Failure:
    """``--graph rng is unknown. Use one of: auto, complete, harary. Did you mean ...?``"""
    near = did_you_mean(given, allowed)
    return InputFailure(f"{option} {given} is unknown. Use one of: {', '.join(allowed)}.{near}")


def check_ranges(model: type[BaseModel], option: str = "", /, **given: float) -> None:
    """Check numbers against the ranges of a model's keys: ``epsilon=-1`` is about ``--epsilon``, or about ``option``.

    Raises Failure: one lies outside.
    """
    keys = settings_keys(model)
    for name, value in given.items():
        try:
            checked: Any = Annotated[keys[name].field.annotation, keys[name].field]
            TypeAdapter(checked).validate_python(value)
        except ValidationError as error:
            one = keys[name]
            named = replace(one, about=replace(one.about, flag=option)) if option else one
            raise refused(named, error.errors(include_url=False)[0]) from None


def one_of(option: str, given: str | None, allowed: Sequence[str]) -> None:
    """Raises Failure: ``given`` is no name that the option knows."""
    if given is not None and given not in allowed:
        raise unknown(option, given, allowed)


def check_picture(option: str, file: Path) -> None:
    """Raises Failure: the ending is no picture's, or there is no such folder."""
    if file.suffix.lower() not in (".png", ".svg"):
        raise InputFailure(f"{option} {file} must end in .png or .svg.")
    check_folder(option, file)


def check_folder(option: str, file: Path) -> None:
    """Raises Failure: the file's folder doesn't exist, or the file is a folder."""
    if not file.parent.is_dir() or file.is_dir():
        raise InputFailure(f"{option} {file} can't be written: name a file in a folder that exists.")


def task_options(pairs: Sequence[str] | None, named: Mapping[str, object]) -> dict[str, object]:
    """Options of a task: the given ones of ``named``, and KEY=VALUE pairs.

    Raises Failure: a pair is malformed, or a key is given twice.
    """
    found = {name: value for name, value in named.items() if value is not None}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InputFailure(f"--task-option {pair}: write KEY=VALUE.")
        if key in found:
            raise InputFailure(f"--task-option {pair}: {key} is given twice.")
        found[key] = {"true": True, "false": False}.get(text, number_if_it_is_one(text))
    return found
