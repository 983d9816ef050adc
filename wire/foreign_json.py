"""JSON from strangers: an object with exactly the fields that its format has, and each of its type."""

from __future__ import annotations

import json
import re
from typing import Any, Final

HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_fields(
    data: bytes,
    format_: str,
    texts: tuple[str, ...],
    largest: int,
    error: type[ValueError],
    *,
    numbers: tuple[str, ...] = (),
    truths: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A JSON object with exactly these keys and kinds of values.

    Raises:
        ValueError: of the kind ``error``.
    """
    if len(data) > largest:
        raise error(f"more than {largest} bytes")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise error("not readable as JSON") from problem
    if type(fields) is not dict or fields.get("format") != format_:
        raise error(f"not of the format {format_}, which this version reads")
    if set(fields) != {"format", *texts, *numbers, *truths}:
        raise error("fields are missing, or there are unknown ones")
    if not (
        all(type(fields[name]) is str for name in texts)
        and all(type(fields[name]) in (int, float) for name in numbers)
        and all(type(fields[name]) is bool for name in truths)
    ):
        raise error("a field is of another type")
    return fields


def from_hex(text: str, length: int | None, error: type[ValueError]) -> bytes:
    """Bytes of a field, of this length where there is only one; else a ValueError of the kind ``error``."""
    try:
        value = bytes.fromhex(text)
    except ValueError as problem:
        raise error("a field isn't hexadecimal") from problem
    if length is not None and len(value) != length:
        raise error("a field is of another length")
    return value


def is_study(name: str) -> bool:
    """Whether a study may have this name, as rosters have it."""
    return 0 < len(name) <= 64 and name.isascii() and name.isprintable()
