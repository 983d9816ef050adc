"""Changes of an input that leave its form intact: of bytes, of JSON text, of protobuf messages.

A fuzzer that flips bits rarely gets past the parser. These change one value inside a document, or one field inside a
message, and write the whole again. `Choices` decides: at random in a fuzzer, or by an input that is a script.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.target import Choices

NUMBERS: Final = (0, 1, -1, 2, 7, 255, 256, 4096, 4097, 65521, 2**31, 2**32, 2**40, 2**53, 2**63, 2**64, 10**30)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, "", "0", "\ud800", "\x00\x1b[2J", "é", "-1", "1/2", [], {}, [[]], [0], {"": 0}),
    *(*NUMBERS, 0.0, -0.0, 1.0, 0.5, 1e-320, 1e300, float("inf"), float("nan"), -1e-9),
)
_MOST_REPEATED: Final = 64  # entries that a change adds to a list


def change_bytes(data: bytes, choose: Choices) -> bytes:
    """A few bits, bytes or the length."""
    at = choose.below(len(data)) if data else 0

    def with_a_bit_changed() -> bytes:
        return data[:at] + bytes([data[at] ^ 1 << choose.below(8)]) + data[at + 1 :] if data else b"\x00"

    changes: tuple[Callable[[], bytes], ...] = (
        with_a_bit_changed,
        with_a_bit_changed,
        lambda: data[:at] + choose.take(1) + data[at + 1 :],
        lambda: data[:at],
        lambda: data + choose.take(1 + choose.below(4)),
        lambda: data[:at] + data[at + 1 + choose.below(8) :],
        lambda: bytes(len(data)),
        lambda: b"\xff" * len(data),
        lambda: data[:at] + choose.take(4) + data[at + 4 :],
    )
    return changes[choose.below(len(changes))]()


def change_text(text: str, choose: Choices) -> str:
    """The same for text, which stays text."""
    at = choose.below(len(text)) if text else 0
    changes: tuple[Callable[[], str], ...] = (
        lambda: text[:at] + chr(choose.below(0x250)) + text[at + 1 :],
        lambda: text[:at],
        lambda: text[:at] + text[at + 1 :],
        lambda: text + text[at:],
        text.swapcase,
        lambda: text[:at] + ("\ud800", "\n", "\x00", "٣", " ", '"', "-----")[choose.below(7)] + text[at:],
        lambda: text[:at] + "0123456789abcdef+/=-._"[choose.below(22)] + text[at + 1 :],
    )
    return changes[choose.below(len(changes))]()


def change_encoded(data: bytes, choose: Choices) -> bytes:
    """`change_text` of UTF-8."""
    return change_text(data.decode("utf-8", "replace"), choose).encode("utf-8", "replace")


# ---------------------------------------------------------------- JSON


def canonical(tree: Any) -> bytes:
    """Sorted names, no blanks: as what is hashed is written."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def compact(tree: Any) -> bytes:
    """No blanks, names in their order."""
    return json.dumps(tree, separators=(",", ":")).encode()


def indented(tree: Any) -> bytes:
    """As files are written that people may look at."""
    return (json.dumps(tree, indent=1) + "\n").encode()


def json_mutation(write: Callable[[Any], bytes] = compact, end: bytes = b"") -> Callable[[bytes, Choices], bytes]:
    """One to three values of a document; other input is changed as bytes."""

    def mutate(data: bytes, choose: Choices) -> bytes:
        if not choose.below(8):
            return change_bytes(data, choose)
        try:
            tree = json.loads(data)
            for _ in range(1 + choose.below(3)):
                tree = change_json(tree, choose)
            return write(tree) + end
        except (ValueError, RecursionError):
            return change_bytes(data, choose)

    return mutate


def change_json(tree: Any, choose: Choices) -> Any:
    """A copy with one change somewhere in it; texts that hold a document are entered as well."""
    if isinstance(tree, dict) and tree and choose.below(6):
        name = sorted(tree)[choose.below(len(tree))]
        return {**tree, name: change_json(tree[name], choose)}
    if isinstance(tree, list) and tree and choose.below(4):
        at = choose.below(len(tree))
        return [*tree[:at], change_json(tree[at], choose), *tree[at + 1 :]]
    if isinstance(tree, str) and tree[:1] in ("{", "[") and choose.below(4):
        try:
            inner = json.loads(tree)
        except (ValueError, RecursionError):
            return change_text(tree, choose)
        changed = change_json(inner, choose)
        return (indented if tree.endswith("\n") else canonical)(changed).decode()
    if isinstance(tree, str) and tree.startswith("-----BEGIN") and choose.below(8):
        return pem_mutation(tree.encode("utf-8", "replace"), choose).decode("latin-1")
    if not choose.below(4):
        return VALUES[choose.below(len(VALUES))]
    match tree:
        case bool():
            return not tree
        case int():
            return (tree + 1, tree - 1, -tree, 2 * tree, float(tree % 2**53), str(tree))[choose.below(6)]
        case float():
            return (tree * (1 + 1e-12), tree / 2, -tree, tree * 1e9, 1 / tree if tree else 1.0)[choose.below(5)]
        case str():
            return change_text(tree, choose)
        case list():
            return _change_list(tree, choose)
        case dict():
            return _change_table(tree, choose)
    return VALUES[choose.below(len(VALUES))]


def _change_list(values: list[Any], choose: Choices) -> list[Any]:
    at = choose.below(len(values)) if values else 0
    changes: tuple[Callable[[], list[Any]], ...] = (
        lambda: values[:at] + values[at + 1 :],
        lambda: [*values[: at + 1], *values[at:]],
        lambda: values[::-1],
        lambda: values * 2,
        lambda: [*values, VALUES[choose.below(len(VALUES))]],
    )
    return changes[choose.below(len(changes))]()


def _change_table(table: dict[str, Any], choose: Choices) -> dict[str, Any]:
    names = sorted(table)
    name = names[choose.below(len(names))] if names else ""
    other = names[choose.below(len(names))] if names else "x"
    return (
        {key: value for key, value in table.items() if key != name},
        {**table, name + "_": 0},
        {**table, name: table.get(other)},
        {**table, name: table.get(other), other: table.get(name)},
    )[choose.below(4)]


def pem_mutation(data: bytes, choose: Choices) -> bytes:
    """Of PEM text: the bytes inside one block are changed, and the block is armoured again."""
    lines = data.split(b"\n")
    begins = [at for at, line in enumerate(lines) if line.startswith(b"-----BEGIN")]
    if not begins or not choose.below(4):
        return change_bytes(data, choose)
    begin = begins[choose.below(len(begins))]
    end = next((at for at in range(begin, len(lines)) if lines[at].startswith(b"-----END")), None)
    try:
        inner = base64.b64decode(b"".join(lines[begin + 1 : end]))
    except ValueError:
        return change_bytes(data, choose)
    for _ in range(1 + choose.below(2)):
        inner = change_bytes(inner, choose)
    text = base64.b64encode(inner)
    return b"\n".join(
        [*lines[: begin + 1], *(text[at : at + 64] for at in range(0, len(text), 64)), *(lines[end:] if end else [])]
    )


# ---------------------------------------------------------------- protobuf


def message_mutation(kind: type[Message]) -> Callable[[bytes, Choices], bytes]:
    """One to three fields of a serialised message; other input is changed as bytes."""

    def mutate(data: bytes, choose: Choices) -> bytes:
        message = kind()
        try:
            message.ParseFromString(data)
        except Exception:  # DecodeError has another base in each implementation
            return change_bytes(data, choose)
        if not choose.below(8):
            return change_bytes(data, choose)
        for _ in range(1 + choose.below(3)):
            change_message(message, choose)
        return message.SerializeToString()

    return mutate


def change_message(message: Message, choose: Choices) -> None:
    """Change one field of a message in place, at any depth."""
    fields = list(message.DESCRIPTOR.fields)
    present = [field for field, _ in message.ListFields()]
    if not fields:
        return
    chosen = present if present and choose.below(8) else fields
    field = chosen[choose.below(len(chosen))]
    if _repeated(field):
        _change_repeated(message, field, choose)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        inner = getattr(message, field.name)
        if choose.below(8):
            inner.SetInParent()
            change_message(inner, choose)
        else:
            message.ClearField(field.name)
    elif not choose.below(12):
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _changed(field, getattr(message, field.name), choose))


def _repeated(field: FieldDescriptor) -> bool:
    known = getattr(field, "is_repeated", None)  # the label is deprecated in newer versions
    return bool(known) if known is not None else field.label == FieldDescriptor.LABEL_REPEATED


def _change_repeated(message: Message, field: FieldDescriptor, choose: Choices) -> None:
    values = getattr(message, field.name)
    at = choose.below(len(values)) if values else 0
    other = choose.below(len(values)) if values else 0
    inner = field.type == FieldDescriptor.TYPE_MESSAGE
    match choose.below(18):  # mostly what is in the list, seldom the list
        case 0 if values:
            del values[at]
        case 1 if values:
            values.append(values[at])
        case 2 if values:
            kept = list(values)
            kept[at], kept[other] = kept[other], kept[at]
            _replace(values, kept, inner)
        case 3:
            if inner:
                values.add()
            else:
                values.append(_changed(field, b"" if field.type == FieldDescriptor.TYPE_BYTES else 0, choose))
        case 4 if values:
            _replace(values, list(values)[:at], inner)
        case 5 if values:
            _replace(values, list(values)[at:] + [values[at]] * choose.below(_MOST_REPEATED), inner)
        case _ if values and inner:
            change_message(values[at], choose)
        case _ if values:
            values[at] = _changed(field, values[at], choose)


def _replace(values: Any, kept: list[Any], inner: bool) -> None:
    copies = [type(one).FromString(one.SerializeToString()) for one in kept] if inner else kept
    del values[:]
    values.extend(copies)


def _changed(field: FieldDescriptor, value: Any, choose: Choices) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_BYTES:
            return change_bytes(value, choose)
        case FieldDescriptor.TYPE_STRING:
            return change_text(value, choose).encode("utf-8", "replace").decode()
        case FieldDescriptor.TYPE_BOOL:
            return not value
        case FieldDescriptor.TYPE_UINT32:
            return (value + 1, value - 1, 0, 2**32 - 1, choose.below(2**16))[choose.below(5)] % 2**32
        case FieldDescriptor.TYPE_UINT64:
            return (value + 1, value - 1, 0, 2**64 - 1, choose.below(2**16))[choose.below(5)] % 2**64
        case FieldDescriptor.TYPE_ENUM:
            return choose.below(6)
        case FieldDescriptor.TYPE_DOUBLE:
            return struct.unpack("<d", choose.take(8))[0]
    return value
