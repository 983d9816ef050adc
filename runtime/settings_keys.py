"""What a settings model says of its keys, once. Options, comments, ranges, defaults and docs come from it.

A settings file is a pydantic model of tables (`runtime.settings_file`). Each key is declared with `key`.
`settings_keys` lists the keys, `settings_toml` writes the commented file, tests/server/study_docs.py the table for the
docs. `runtime.settings_file.build` makes a model from values by option name, `sordino.cli.options` options of the same
keys, `runtime.option_values` a model of what was given.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Key:
    """What is said of a key beside its type, default and range.

    Attributes:
        spellings: further spellings of the option, such as ``--dropout``; a switch states its opposite here.
        needs: (words, holds): the key has an effect only where ``holds`` is true of the whole model.
    """

    help: str  # one clause: the help of its option, its comment in the file and its line in the docs
    unit: str = ""  # of a number, such as "s"; empty for counts and shares
    initial: Any = None  # what a new file begins with where the key has no default; None: it has to be stated
    shown: str = ""  # the default in words, where the value says too little
    option: str | None = ""  # name of its option in Python; "": the key's own; None: it has no option
    flag: str = ""  # spelling of the option, where it isn't the name in Python with dashes
    spellings: tuple[str, ...] = ()
    panel: str = ""  # heading that its option stands under
    metavar: str = ""  # what stands for the value in the help
    example: str = ""  # a usual value, for the message about one out of range
    needs: tuple[str, Callable[[Any], bool]] | None = None
    fixed: bool = False  # participants sign it, so a change makes another study
    formerly: tuple[str, ...] = ()  # earlier names of the key; a file that has one is refused with the present name


_WIDTH: Final = 120
_NAMES: Final = frozenset(Key.__dataclass_fields__)


def key(default: Any = ..., help: Any = "", **about: Any) -> Any:
    """Declare a key: fields of `Key`, and arguments of `pydantic.Field` such as ``gt`` or ``default_factory``.

    ``within``: least and largest value, both included.
    """
    if "within" in about:
        about["ge"], about["le"] = about.pop("within")
    said = Key(help, **{name: value for name, value in about.items() if name in _NAMES})
    limits = {name: value for name, value in about.items() if name not in _NAMES}
    if "default_factory" not in limits:
        limits["default"] = default
    info: FieldInfo = Field(description=said.help, **limits)
    info.metadata.append(said)
    return info


@dataclass(frozen=True)
class SettingsKey:
    """A key where it stands."""

    table: str  # its table; empty for one of the model itself
    name: str  # in the table
    about: Key
    field: FieldInfo

    @property
    def written(self) -> str:
        """Its name in the file."""
        return self.field.alias or self.name

    @property
    def dotted(self) -> str:
        """``privacy.epsilon``."""
        return f"{self.table}.{self.written}" if self.table else self.written

    @property
    def flat(self) -> str:
        """Its name among all keys of the model, and that of its option in Python."""
        return self.about.option or self.written

    @property
    def option(self) -> str:
        """``--clip-by-layer``."""
        return self.about.flag or "--" + self.flat.replace("_", "-")

    def value_in(self, settings: BaseModel) -> Any:
        """Its value."""
        return getattr(getattr(settings, self.table) if self.table else settings, self.name)

    @property
    def default(self) -> Any:
        """Of a file that leaves it out, else what a new file begins with; None where there is neither."""
        return self.about.initial if self.field.is_required() else self.field.get_default(call_default_factory=True)

    @property
    def kind(self) -> type:
        """Of its value: bool, int, float, str, Path or dict; names are str."""
        (first, *_) = _parts(self.field.annotation)
        found: type = str if get_origin(first) is Literal else get_origin(first) or first
        return found

    @property
    def choices(self) -> tuple[str, ...]:
        """The names it may hold; empty where it isn't a choice."""
        (first, *_) = _parts(self.field.annotation)
        return tuple(map(str, get_args(first))) if get_origin(first) is Literal else ()

    @property
    def range(self) -> str:
        """Its range in words: ``more than 0 and at most 1000``; empty where it has none."""
        limits = {type(limit).__name__: limit for limit in self.field.metadata}
        words = {"Ge": "at least", "Gt": "more than", "Le": "at most", "Lt": "below"}
        found = {name: _number(getattr(limits[name], name.lower())) for name in words if name in limits}
        if found.keys() == {"Ge", "Le"}:
            return f"{found['Ge']} to {found['Le']}"
        return " and ".join(f"{words[name]} {limit}" for name, limit in found.items())


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type without None; what `typing.Annotated` adds is left out."""
    while get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for one in get_args(annotation) if one is not type(None) for part in _parts(one))
    return (annotation,)


def is_table(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def settings_keys(model: type[BaseModel]) -> dict[str, SettingsKey]:
    """All declared keys of a model and its tables, by their flat names, in the order of the file."""
    found: dict[str, SettingsKey] = {}
    for name, field in model.model_fields.items():
        inside = field.annotation.model_fields if is_table(field.annotation) else {}  # type: ignore[union-attr]  # a model
        for table, one, info in [(name, *item) for item in inside.items()] if inside else [("", name, field)]:
            for about in info.metadata:
                if isinstance(about, Key) and (table or not is_table(info.annotation)):
                    entry = SettingsKey(table, one, about, info)
                    assert entry.flat not in found, f"two keys are called {entry.flat}"  # noqa: S101  # our own models
                    found[entry.flat] = entry
    return found


def flat_values(settings: BaseModel) -> dict[str, Any]:
    """Every declared key's value by its flat name."""
    return {flat: one.value_in(settings) for flat, one in settings_keys(type(settings)).items()}


def settings_toml(
    settings: BaseModel,
    header: Sequence[str] = (),
    *,
    comments: Mapping[str, str] | None = None,
    leave_out: frozenset[str] = frozenset(),
) -> str:
    """The commented file, which `runtime.settings_file.read_settings` reads back. Keys that are None are left out.

    Args:
        header: comment lines above it.
        comments: of keys, in the place of those that are declared; for options of a task the only ones.
        leave_out: flat names.
    """
    tables: dict[str, dict[str, Any]] = {}
    for flat, one in settings_keys(type(settings)).items():
        value = one.value_in(settings)
        if isinstance(value, Mapping):
            tables[one.name] = dict(value)
        elif flat not in leave_out:
            tables.setdefault(one.table, {})[one.name] = value
    return tables_toml(type(settings), {name: table for name, table in tables.items() if table}, header, comments)


def tables_toml(
    model: type[BaseModel],
    tables: Mapping[str, Any],
    header: Sequence[str] = (),
    comments: Mapping[str, str] | None = None,
) -> str:
    """A commented file of some tables, or of lists of tables; keys that are None are left out.

    Args:
        model: declares the keys and their comments.
        tables: by name, in the order of the file.
        header, comments: as of `settings_toml`.
    """
    blocks = ["\n".join(f"# {line}".rstrip() for line in header)] if header else []
    for name, held in tables.items():
        field = model.model_fields[name]
        several = isinstance(held, list | tuple)
        for table in held if several else [held]:
            rows = [
                (f"{_toml_key(one)} = {toml_value(value)}", (comments or {}).get(one) or _comment(field, one))
                for one, value in table.items()
                if value is not None
            ]
            width = max((len(line) for line, comment in rows if comment and len(line) < _WIDTH // 2), default=0)
            said = f"  # {field.description}" if field.description else ""
            title = f"[[{name}]]" if several else f"[{name}]{said}"
            blocks.append("\n".join([title, *(line for row in rows for line in _commented(*row, width))]))
    return "\n\n".join(blocks) + "\n"


def _commented(line: str, comment: str, width: int) -> list[str]:
    """The line with its comment behind it, or above it where both are too long for one line."""
    if not comment:
        return [line]
    if max(width, len(line)) + 4 + len(comment) <= _WIDTH:
        return [f"{line:<{width}}  # {comment}"]
    return [*textwrap.wrap(comment, _WIDTH, initial_indent="# ", subsequent_indent="# "), line]


def _comment(field: FieldInfo, name: str) -> str:
    """That of a key in a table, or in a list of tables."""
    for part in (field.annotation, *get_args(field.annotation)):
        known = part.model_fields.get(name) if is_table(part) else None
        for about in () if known is None else known.metadata:
            if isinstance(about, Key):
                return ("(fixed) " if about.fixed else "") + about.help
    return ""


def with_table(
    model: type[BaseModel], text: str, name: str, table: Any, comments: Mapping[str, str] | None = None
) -> str:
    """A file with another table, or list of tables, of that name; all else stays as it was, comments included.

    Raises ValueError: the file isn't TOML, or its layout hides where the table begins and ends.
    """
    title = rf"\[\[?{re.escape(name)}\]\]?"
    until = rf"(?=(?:^(?:#[^\n]*)?\n)*^\[(?!\[?{re.escape(name)}\])|\Z)"
    written = tables_toml(model, {name: table}, comments=comments) + "\n"
    changed = re.sub(rf"^{title}[^\n]*\n.*?{until}", lambda _: written, text, count=1, flags=re.M | re.S)
    changed = changed.rstrip("\n") + "\n"
    if tomllib.loads(changed) != tomllib.loads(text) | {name: table}:
        raise ValueError(f"the table [{name}] can't be replaced")
    return changed


def _toml_key(name: str) -> str:
    """Names of a task's options come from strangers."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 1e15:
        return repr(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # A JSON string is a TOML basic string, but for one character.
    return json.dumps(str(value)).replace("\x7f", "\\u007f")
