"""Decoders inside the protocol core: packed vectors, bitmaps, Merkle paths, shares, keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from secagg import shamir
from secagg.commitments import MerkleTree, verify_path
from secagg.errors import InvalidKey
from secagg.keys import AgreementKey, is_low_order
from secagg.masking import word_dtype
from secagg.messages import Subset, to_bitmap
from secagg.packing import add_packed, pack, packed_size, unpack
from secagg.signatures import verify_signature
from tests.fuzz.target import Steering, Target, must
from tests.reference.primitive_vectors import LOW_ORDER
from tests.support.attempts_in_memory import identities, keyed_source

_MOST_VALUES: Final = 70


def read_packed(data: bytes) -> None:
    """First two bytes: width and dimension. A vector that is taken is packed in the same bytes, and added as it is."""
    choose = Steering(data[:2])
    bits, dim, body = 1 + choose.below(62), choose.below(_MOST_VALUES), data[2:]
    accumulator = (np.arange(dim) * 3).astype(word_dtype(bits)) & word_dtype(bits).type((1 << bits) - 1)
    before = accumulator.copy()
    try:
        values = unpack(body, dim, bits)
    except ValueError:
        try:
            add_packed(accumulator, body, bits)
        except ValueError:
            must(bool((accumulator == before).all()), "a refused vector changed the sum")
            return
        must(False, "a vector was added that can't be unpacked")
    must(len(body) == packed_size(dim, bits), "a vector of another length was unpacked")
    must(pack(values, bits) == body, "a vector is packed in other bytes")
    add_packed(accumulator, body, bits)
    wanted = [(a + b) % (1 << bits) for a, b in zip(before.tolist(), values.tolist(), strict=True)]
    must(accumulator.tolist() == wanted, "a packed vector was added wrongly")


def packed_seeds() -> Iterator[bytes]:
    for bits, dim in ((1, 9), (8, 5), (16, 4), (20, 11), (31, 33), (62, 3), (7, 0)):
        values = np.arange(dim).astype(word_dtype(bits)) & word_dtype(bits).type((1 << bits) - 1)
        yield bytes([bits - 1, dim]) + bytes(pack(values, bits))


def read_bitmap(data: bytes) -> None:
    """First byte: how many there are."""
    u1 = tuple(range(3, 3 + Steering(data[:1]).below(70)))
    with contextlib.suppress(ValueError):
        must(to_bitmap(frozenset(Subset(data[1:], u1)), u1) == data[1:], "a set has two bitmaps")


def read_path(data: bytes) -> None:
    """Index, count, root, leaf and path: nothing but the path of the tree is true."""
    choose = Steering(data)
    count = 1 + choose.below(9)
    index = choose.below(count + 2) - 1
    leaves = [bytes([at]) * 32 for at in range(count)]
    tree = MerkleTree(leaves)
    honest = tree.path(index) if 0 <= index < count else ()
    path = list(honest)
    for _ in range(choose.below(4)):
        at = choose.below(len(path) + 1)
        match choose.below(4):
            case 0:
                path[at : at + 1] = []
            case 1:
                path.insert(at, choose.take(32))
            case 2:
                path[at : at + 1] = [choose.take(choose.below(40))]
            case _:
                path[at : at + 1] = [leaves[choose.below(count)]]
    leaf = leaves[index] if 0 <= index < count and choose.below(2) == 0 else choose.take(choose.below(40))
    told = count if choose.below(4) else choose.below(300)
    true = verify_path(tree.root, leaf, index, told, path)
    right = 0 <= index < count and leaf == leaves[index] and told == count and tuple(path) == honest
    must(true == right, "a Merkle path that isn't that of the tree was believed, or the tree's own was not")


def read_keys(data: bytes) -> None:
    """Public keys and signatures of peers, of any length."""
    choose = Steering(data)
    key, signature = choose.take(choose.below(70)), choose.take(choose.below(70))
    identity = identities(2)[0]
    must(not verify_signature(identity.public, signature, b"never signed"), "a signature was forged")
    verify_signature(key, signature, data)
    own = AgreementKey(keyed_source("fuzz")(32))
    try:
        shared = own.agree(key)
    except InvalidKey:
        return
    must(len(key) == 32 and not is_low_order(key) and any(shared), "an agreement without a secret")


def key_seeds() -> Iterator[bytes]:
    for key in LOW_ORDER:
        yield bytes([32]) + key + bytes([64]) + bytes(64)
    yield bytes([32]) + identities(2)[1].public + bytes([64]) + identities(2)[1].sign(b"x")


def read_shares(data: bytes) -> None:
    """Symbols of revealed shares: in the field they are combined, else refused."""
    choose = Steering(data)
    threshold = 2 + choose.below(4)
    count = threshold + choose.below(3)
    symbols = np.frombuffer(choose.take(32 * count), dtype="<u2").reshape(count, 16).astype(np.uint16)
    xs = [1 + choose.below(6) for _ in range(count)]
    good = bool((symbols < shamir.PRIME).all()) and len(set(xs[:threshold])) == threshold
    try:
        found = shamir.combine(xs[:threshold], symbols[:threshold], threshold)
    except ValueError:
        return
    must(good or not bool((symbols[:threshold] >= shamir.PRIME).any()), "symbols outside the field were combined")
    must(bool((found < shamir.PRIME).all()), "a secret outside the field")


_NOTHING: Final = (bytes(64), bytes(range(200)))
TARGETS: Final = (
    Target("packed_vector", read_packed, packed_seeds, None, 1024),
    Target("bitmap", read_bitmap, lambda: [b"\x05\x1f", b"\x09\xff\x01"], None, 64),
    Target("merkle_path", read_path, lambda: _NOTHING, None, 256),
    Target("peer_keys", read_keys, key_seeds, None, 160),
    Target("shares", read_shares, lambda: _NOTHING, None, 256),
)
