"""Hashes over labelled fields, and HKDF ([FIPS 180-4], [RFC 5869])."""

from __future__ import annotations

import hashlib
import hmac


def u64(value: int) -> bytes:
    """A number as a field: 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


def labelled(label: str, *fields: bytes) -> bytes:
    """length(label) label count(fields) [length(field) field]...; lengths and count as `u64`."""
    text = u64(len(label)) + label.encode("ascii") + u64(len(fields))
    for field in fields:
        text += u64(len(field)) + field
    return text


def labelled_hash(label: str, *fields: bytes) -> bytes:
    """SHA-256 of `labelled`."""
    return hashlib.sha256(labelled(label, *fields)).digest()


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Extract, then expand, as [RFC 5869] sections 2.2 and 2.3 write them."""
    prk = hmac.new(salt, secret, hashlib.sha256).digest()
    output, block, counter = b"", b"", 1
    while len(output) < length:
        block = hmac.new(prk, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
        counter += 1
    return output[:length]
