"""The messages of cheating participants in a load test; `faults.WAYS` describes them.

Each is a small change of the honest message. tests/adversary tries many more, one at a time and with the checks taken
out; here many come at once, under load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

_Change = Callable[[Any], None]


def messages_of(way: str, kind: str, honest: Any) -> list[Any]:
    """What is sent in the place of an honest message.

    Args:
        way: of `faults.WAYS`.
        kind: field of `wire.coordinator_pb2.PhaseMessage`.
        honest: its content.

    Returns:
        Contents of the same kind: none, one, or the same one twice.
    """
    if way == "silence" and kind != "advertise_keys":
        return []
    if way == "repetition":
        return [honest, honest]
    change = _CHANGES.get((way, kind))
    if change is None:
        return [honest]
    altered = type(honest)()
    altered.CopyFrom(honest)
    change(altered)
    return [altered]


def upload_of(way: str, packed: bytes | bytearray) -> bytes | bytearray:
    """What is uploaded in the place of an honest vector."""
    match way:
        case "other-vector":
            return _flipped(packed)
        case "long-upload":
            return packed + b"\0"
        case "short-upload":
            return packed[:-1]
    return packed


def _flipped(data: bytes | bytearray) -> bytes:
    """The first bit changed."""
    return bytes([data[0] ^ 1]) + data[1:]


def _no_signature(message: Any) -> None:
    message.signature = bytes(64)


def _short_share(message: Any) -> None:
    message.ciphertexts[0] = message.ciphertexts[0][:-1]


def _other_leaf(message: Any) -> None:
    message.leaves[-1] = _flipped(message.leaves[-1])


def _rubbish(message: Any) -> None:
    for place, sealed in enumerate(message.ciphertexts):
        message.ciphertexts[place] = os.urandom(len(sealed))


def _false_share(message: Any) -> None:
    for entry in message.shares:
        kind = entry.WhichOneof("kind")
        if kind in ("self_mask_seed", "mask_key"):
            share = getattr(entry, kind)
            share.share = _flipped(share.share)
            return


_CHANGES: Final[Mapping[tuple[str, str], _Change]] = {
    ("unsigned-keys", "advertise_keys"): _no_signature,
    ("wrong-lengths", "share_keys"): _short_share,
    ("unsigned-shares", "share_keys"): _other_leaf,
    ("inconsistent-shares", "share_keys"): _rubbish,
    ("unsigned-offer", "masked_input"): _no_signature,
    ("unsigned-sets", "consistency"): _no_signature,
    ("false-share", "unmasking"): _false_share,
}
