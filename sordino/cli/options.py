"""Options of the command from the keys of a settings model.

An option that is not given is None, so a verb knows what was chosen. `runtime.option_values` makes the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from runtime.failure import InputFailure
from runtime.option_values import one_of
from runtime.settings_keys import SettingsKey, settings_keys

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
    ranges: bool = False,
    **changed: Mapping[str, Any],
) -> list[inspect.Parameter]:
    """One parameter for each key of the models that has an option; all default to None.

    Args:
        without, only: flat names.
        panel: heading for all of them, where the verb has its own.
        ranges: say the range of each.
        changed: by flat name, other arguments of `typer.Option`; ``spellings``: no further ones.
    """
    found = []
    for model in models:
        for flat, one in settings_keys(model).items():
            if one.about.panel and flat not in without and (only is None or flat in only):
                found.append(_parameter(flat, one, panel, {"help": _sentence(one, ranges), **changed.get(flat, {})}))
    return found


def _parameter(flat: str, one: SettingsKey, panel: str, changed: dict[str, Any]) -> inspect.Parameter:
    about, kind = one.about, one.kind
    spellings = about.spellings if changed.pop("spellings", True) else ()
    names = ["/".join((one.option, *spellings))] if kind is bool else [one.option, *spellings]
    arguments: dict[str, Any] = {
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


def _sentence(one: SettingsKey, with_range: bool) -> str:
    """The help as a sentence; a name that the option takes keeps its spelling."""
    about = one.about
    first = about.help.split()[0].rstrip(":;,")
    start = about.help if first in one.choices else about.help[:1].upper() + about.help[1:]
    unit = f", {'seconds' if about.unit == 's' else about.unit}" if about.unit else ""
    return start + unit + (f" ({one.range})" if with_range and one.range else "") + "."


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
