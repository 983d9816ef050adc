"""Options of the command from the keys of a settings model, and the model from what was given.

An option that is not given is None, so a verb knows what was chosen. Ranges, names and what an option needs are stated
by the keys (`runtime.settings_keys`); every mistake is one sentence with its option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

from runtime.failure import Failure, InputFailure
from runtime.settings_file import explain, refusal
from runtime.settings_keys import SettingsKey, build, settings_keys
from runtime.text import did_you_mean

Model = TypeVar("Model")
Table = TypeVar("Table", bound=BaseModel)
RING: Final = "ring"  # what is printed of harary, and may be given for it

# Names that an option takes in another verb only, and what to do about them.
_ELSEWHERE: Final = {
    ("mechanism", "binomial"): "is planned only (sordino plan), neither served nor simulated. Use ddgauss or skellam.",
    ("mechanism", "randomised-response"): "sends no vectors, so there is no such plan. In Python it is "
    'sordino.MECHANISMS["randomised-response"].',
    ("adversary", "semi-malicious"): "is for comparison only (sordino plan, graph, bench): a study is served under "
    "malicious or curious.",
}


def options(
    *models: type[BaseModel],
    without: Collection[str] = (),
    only: Collection[str] | None = None,
    panel: str = "",
    **changed: Mapping[str, Any],
) -> list[inspect.Parameter]:
    """One parameter for each key of the models that has an option; all default to None.

    Args:
        without, only: flat names.
        panel: heading for all of them, where the verb has its own.
        changed: by flat name, other arguments of `typer.Option`; ``spellings``: no further ones.
    """
    found = []
    for model in models:
        for flat, one in settings_keys(model).items():
            if one.about.panel and flat not in without and (only is None or flat in only):
                found.append(_parameter(flat, one, panel, dict(changed.get(flat, {}))))
    return found


def _parameter(flat: str, one: SettingsKey, panel: str, changed: dict[str, Any]) -> inspect.Parameter:
    about, kind = one.about, one.kind
    spellings = about.spellings if changed.pop("spellings", True) else ()
    names = ["/".join((one.option, *spellings))] if kind is bool else [one.option, *spellings]
    arguments: dict[str, Any] = {
        "help": _sentence(one),
        "rich_help_panel": panel or about.panel,
        "show_default": about.shown or _shown(one.default),
    }
    if about.metavar or one.choices:
        arguments["metavar"] = about.metavar or "NAME"
    annotation: Any = list[str] if kind is tuple else kind if kind in (bool, int, float) else str
    option = typer.Option(*names, **arguments | changed)
    return inspect.Parameter(
        flat, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation | None, option]
    )


def _sentence(one: SettingsKey) -> str:
    """The help as a sentence; a name that the option takes keeps its spelling."""
    about = one.about
    first = about.help.split()[0].rstrip(":;,")
    start = about.help if first in one.choices else about.help[:1].upper() + about.help[1:]
    return start + (f", {'seconds' if about.unit == 's' else about.unit}" if about.unit else "") + "."


def _shown(value: Any) -> str | bool:
    if value in (None, "", ()) or isinstance(value, dict):
        return False
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def with_options(run: Callable[..., int], parameters: Sequence[inspect.Parameter]) -> Callable[..., int]:
    """A verb whose ``**given`` takes these options, as `typer` reads it; ``run`` has its own options first."""
    own = [one for one in inspect.signature(run, eval_str=True).parameters.values() if one.name != "given"]
    both = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + list(parameters)

    def verb(**values: Any) -> int:
        return run(**values)

    verb.__signature__ = inspect.Signature(both, return_annotation=int)  # type: ignore[attr-defined]  # typer reads it
    verb.__annotations__ = {one.name: one.annotation for one in both}
    verb.__name__, verb.__doc__ = run.__name__, run.__doc__
    return verb


def chosen(given: Mapping[str, Any], *models: type[BaseModel]) -> dict[str, Any]:
    """What was given of the keys of some models, by flat name. Raises Failure: a name that only another verb takes."""
    known = {name for model in models for name in settings_keys(model)}
    found = {name: value for name, value in given.items() if name in known and value not in (None, [])}
    for (name, value), why in _ELSEWHERE.items():
        if found.get(name) == value and value not in _choices(name, models):
            raise InputFailure(f"--{name} {value} {why}")
    if "graph" in found:
        one_of("--graph", found["graph"], (*_choices("graph", models), RING))
        found["graph"] = found["graph"].replace(RING, "harary")
    for name, value in found.items():
        one_of(f"--{name.replace('_', '-')}", str(value), _choices(name, models) or (str(value),))
    return found


def _choices(name: str, models: Sequence[type[BaseModel]]) -> tuple[str, ...]:
    return next((settings_keys(model)[name].choices for model in models if name in settings_keys(model)), ())


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
    except ValidationError as error:
        raise in_options(error, *models) from None
    keys = settings_keys(type(study(made)))
    for name, value in given.items():
        needs = keys[name].about.needs if name in keys else None
        if needs is not None and not needs[1](study(made)):
            shown = "" if value is True else f" {value}"
            raise InputFailure(f"{keys[name].option}{shown} needs {needs[0]}; or leave it out.")
    return made


def built(model: type[Table], values: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Table:
    """`settled` for a model of values by flat name; ``given``: those that came from options, by default all."""
    made: Table = settled(lambda: build(model, values), lambda made: made, values if given is None else given, model)
    return made


def in_options(error: ValidationError, *models: type[BaseModel]) -> Failure:
    """The first refusal of settings models, in the words of its option; an unknown key before a missing one."""
    detail = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    where = [part for part in detail["loc"] if isinstance(part, str)]
    for one in (one for model in models for one in settings_keys(model).values()):
        if where in ([one.table, one.written], [one.written]):
            return refused(one, detail)
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


def check_ranges(option: str = "", **given: float) -> None:
    """Check numbers against the ranges of a study's keys: ``epsilon=-1`` is about ``--epsilon``, or about ``option``.

    Raises Failure: one lies outside.
    """
    from server.study_file import StudyConfiguration

    keys = settings_keys(StudyConfiguration)
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
    from runtime.settings_file import number_if_it_is_one

    found = {name: value for name, value in named.items() if value is not None}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InputFailure(f"--task-option {pair}: write KEY=VALUE.")
        if key in found:
            raise InputFailure(f"--task-option {pair}: {key} is given twice.")
        found[key] = {"true": True, "false": False}.get(text, number_if_it_is_one(text))
    return found
