"""How the fields of JSON objects are written, and read where another machine may have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple


class BadField(ValueError):
    """What is wrong with a field; begins with its name."""


class Kind(NamedTuple):
    """A kind of field: its value as JSON, and the inverse, which raises `BadField` for what can't be one."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def values_of(content: Any) -> dict[str, Any]:
    """The fields of a dataclass in their order, and nothing else that the object may hold: digests depend on it."""
    return {one.name: getattr(content, one.name) for one in fields(content)}


def write_fields(kinds: Mapping[str, Kind], values: Mapping[str, Any]) -> dict[str, Any]:
    """The object of these values."""
    return {name: kind.write(values[name]) for name, kind in kinds.items()}


def read_fields(kinds: Mapping[str, Kind], found: Any) -> dict[str, Any]:
    """The values of an object that has all of these fields, and may have others. Raises BadField: it hasn't."""
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in of_type(found, dict):
            raise BadField(f"{name} is missing")
        try:
            values[name] = kind.read(found[name])
        except BadField as error:
            raise BadField(f"{name} {error}") from error
    return values


def of_type(value: Any, *types: type) -> Any:
    """The value, if it is of one of these types."""
    if type(value) not in types:
        raise BadField("is of another type")
    return value


def sized(data: bytes, length: int | None) -> bytes:
    if length not in (None, len(data)):
        raise BadField(f"is of another length than {length} bytes")
    return data


def hexadecimal(length: int | None = None) -> Kind:
    """Bytes, of this length unless it is None."""

    def read(value: Any) -> bytes:
        try:
            data = bytes.fromhex(of_type(value, str))
        except BadField:
            raise
        except ValueError:
            raise BadField("isn't hexadecimal") from None
        return sized(data, length)

    return Kind(bytes.hex, read)


def whole(least: int = 0) -> Kind:
    """Numbers below 2^53."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value < 1 << 53:
            raise BadField(f"isn't a whole number from {least}")
        return value

    return Kind(int, read)


def listed(kind: Kind) -> Kind:
    """A tuple of such values."""
    return Kind(lambda values: list(map(kind.write, values)), lambda value: tuple(map(kind.read, of_type(value, list))))


def optional(kind: Kind) -> Kind:
    """Such a value, or None."""
    return Kind(
        lambda value: None if value is None else kind.write(value),
        lambda value: None if value is None else kind.read(value),
    )


def instance(of: Callable[..., Any], **kinds: Kind) -> Kind:
    """An instance of a class, by its attributes."""
    return Kind(lambda value: write_fields(kinds, values_of(value)), lambda value: of(**read_fields(kinds, value)))


def plain(*types: type) -> Kind:
    """Values as they are in JSON, written as the first type."""
    return Kind(types[0], lambda value: of_type(value, *types))


TEXT: Final = plain(str)
FILE: Final = Kind(bytes.decode, lambda value: of_type(value, str).encode("utf-8", "surrogatepass"))
"""The bytes of a text file."""
HEX_32: Final = hexadecimal(32)
HEX_64: Final = hexadecimal(64)
