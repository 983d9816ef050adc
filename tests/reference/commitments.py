"""Salted commitments to shares, and the Merkle tree over them, defined by recursion."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

KINDS = (b"mask key", b"self-mask seed")


def _hash(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the label with its length (2 bytes, big-endian) in front, and the parts."""
    return sha256(len(label).to_bytes(2, "big") + label + b"".join(parts)).digest()


def share_leaf(kind: bytes, context: bytes, dealer: bytes, holder: bytes, x: int, salt: bytes, share: bytes) -> bytes:
    """The commitment to one share of 32 bytes with a salt of 16."""
    assert len(salt) == 16
    assert len(share) == 32
    fields = b"".join(len(field).to_bytes(2, "big") + field for field in (kind, context, dealer, holder))
    return _hash(b"sordino/v1/share-commitment", fields, x.to_bytes(4, "big"), salt, share)


def pair_node(mask_leaf: bytes, seed_leaf: bytes) -> bytes:
    """Both commitments of one holder."""
    return _hash(b"sordino/v1/share-pair", mask_leaf, seed_leaf)


def wrapped_node(pair: bytes, wrapped: bytes) -> bytes:
    """With the wrapped seed that its holder gets, if it gets one."""
    return _hash(b"sordino/v1/wrapped-seed", pair, wrapped) if wrapped else pair


def _split_at(count: int) -> int:
    """The largest power of two below the count: what the left half of a tree holds."""
    return 1 << ((count - 1).bit_length() - 1)


def _top(entries: Sequence[bytes]) -> bytes:
    if len(entries) == 1:
        return entries[0]
    at = _split_at(len(entries))
    return _hash(b"sordino/v1/merkle-node", _top(entries[:at]), _top(entries[at:]))


def _under_root(count: int, top: bytes) -> bytes:
    return _hash(b"sordino/v1/merkle-root", count.to_bytes(4, "big"), top)


def root(entries: Sequence[bytes]) -> bytes:
    """The root over entries of 32 bytes."""
    return _under_root(len(entries), _top(entries))


def path(entries: Sequence[bytes], index: int) -> list[bytes]:
    """The siblings of an entry, from the bottom up."""
    if len(entries) == 1:
        return []
    at = _split_at(len(entries))
    if index < at:
        return [*path(entries[:at], index), _top(entries[at:])]
    return [*path(entries[at:], index - at), _top(entries[:at])]


def _climb(entry: bytes, index: int, count: int, siblings: Sequence[bytes]) -> bytes | None:
    """The top of a tree of ``count`` entries in which the entry has these siblings; None if their number is wrong."""
    if count == 1:
        return None if siblings else entry
    if not siblings:
        return None
    at, last = _split_at(count), siblings[-1]
    if index < at:
        left = _climb(entry, index, at, siblings[:-1])
        return None if left is None else _hash(b"sordino/v1/merkle-node", left, last)
    right = _climb(entry, index - at, count - at, siblings[:-1])
    return None if right is None else _hash(b"sordino/v1/merkle-node", last, right)


def path_valid(expected: bytes, entry: bytes, index: int, count: int, siblings: Sequence[bytes]) -> bool:
    """Whether the entry is number ``index`` of ``count`` under the root; anything malformed isn't."""
    if len(entry) != 32 or any(len(sibling) != 32 for sibling in siblings) or not 0 <= index < count < 2**32:
        return False
    top = _climb(entry, index, count, siblings)
    return top is not None and _under_root(count, top) == expected
