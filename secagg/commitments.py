"""Commitments of a dealer to the shares it hands out: salted hashes under one Merkle root.

The dealer signs the root; each holder gets its path in the clear, and its two shares with a salt for each inside its
ciphertext. Leaves and nodes may be public: a leaf hides its share for as long as its salt is secret. A holder that
later reveals one of its shares reveals the salt of that share alone, so the leaf of the other still hides it.

Every hash is SHA-256 over a label with its length in front, then fields of fixed width or with their length in
front, all numbers big-endian: two different inputs never make the same bytes. Labels differ by purpose, so a leaf is
never an inner node. With H(label; ...) for such a hash:

    share leaf = H("sordino/v1/share-commitment"; kind, cohort context, dealer, holder, x (4), salt (16), share (32))
    pair node  = H("sordino/v1/share-pair"; mask leaf (32), seed leaf (32))       one per holder, in the order of x
    leaf node  = H("sordino/v1/merkle-leaf"; pair node (32))
    inner node = H("sordino/v1/merkle-node"; left (32), right (32))
    root       = H("sordino/v1/merkle-root"; number of leaves (4), top node (32))

The four fields from kind to holder carry their length in two bytes each. The share is 16 symbols, little-endian, as on
the wire. A level of odd length hands its last node up unchanged; it is not paired with itself, which would give a list
and the same list with its last entry repeated one root. The number of leaves is under the root, so it fixes the shape
of the tree and the length of every path.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

HASH_BYTES: Final = 32
SALT_BYTES: Final = 16
SHARE_SYMBOLS: Final = 16
MAX_LEAVES: Final = 2**32 - 1


def _label(text: str) -> bytes:
    encoded = text.encode("ascii")
    return len(encoded).to_bytes(2, "big") + encoded


_SHARE: Final = _label("sordino/v1/share-commitment")
_PAIR: Final = _label("sordino/v1/share-pair")
_LEAF: Final = _label("sordino/v1/merkle-leaf")
_NODE: Final = _label("sordino/v1/merkle-node")
_ROOT: Final = _label("sordino/v1/merkle-root")
_OF_A_HASH: Final = HASH_BYTES.to_bytes(2, "big")
_ONE_LENGTH: Final = frozenset({HASH_BYTES})


def share_leaf(
    kind: bytes,
    cohort_context: bytes,
    dealer: bytes,
    holder: bytes,
    x: int,
    salt: bytes,
    share: NDArray[np.uint16],
) -> bytes:
    """Commit to one share.

    Hiding as long as the 16 salt bytes are fresh, uniform and secret; binding by the collision resistance of SHA-256.

    Args:
        kind: which of the dealer's secrets the share belongs to, not empty.
        cohort_context: the hash that names study, round, attempt and u1.
        dealer: identity of who shares the secret.
        holder: identity of who holds this share.
        x: the holder's point, from 1 to 2^32 - 1.
        salt: 16 bytes, fresh for each share.
        share: shape (16,), uint16.

    Returns:
        32 bytes.

    Raises:
        ValueError: an argument has the wrong type, length or range.
    """
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    if share.shape != (SHARE_SYMBOLS,) or share.dtype != np.uint16:
        raise ValueError(f"a share is {SHARE_SYMBOLS} uint16 symbols, not {share.shape} of {share.dtype}")
    if not 1 <= x < 2**32:
        raise ValueError(f"a holder's point cannot be {x}")
    fields = _prefixed(kind) + _prefixed(cohort_context) + _prefixed(dealer) + _prefixed(holder)
    return sha256(_SHARE + fields + x.to_bytes(4, "big") + salt + share.astype("<u2", copy=False).tobytes()).digest()


class LeavesOfHolder:
    """`share_leaf` for the shares that one holder has from many dealers: what is the same in all is joined once.

    Args:
        kinds, cohort_context, holder, x: as of `share_leaf`; all kinds that are asked for.
    """

    def __init__(self, kinds: Sequence[bytes], cohort_context: bytes, holder: bytes, x: int) -> None:
        if not 1 <= x < 2**32:
            raise ValueError(f"a holder's point cannot be {x}")
        self._heads = [_SHARE + _prefixed(kind) + _prefixed(cohort_context) for kind in kinds]
        self._tail = _prefixed(holder) + x.to_bytes(4, "big")

    def leaf(self, kind: int, dealer: bytes, salt: bytes, share: bytes) -> bytes:
        """Commit to one share.

        Args:
            kind: number of the kind, from 0.
            dealer: identity, 32 bytes.
            salt: 16 bytes.
            share: 16 symbols of two bytes, little-endian.

        Raises:
            ValueError: a field has another length.
        """
        if len(dealer) != HASH_BYTES or len(salt) != SALT_BYTES or len(share) != 2 * SHARE_SYMBOLS:
            raise ValueError("a leaf is made of an identity of 32 bytes, a salt of 16 and a share of 32")
        return sha256(b"".join((self._heads[kind], _OF_A_HASH, dealer, self._tail, salt, share))).digest()


def pair_nodes(leaves: Sequence[bytes]) -> list[bytes]:
    """Of the leaves of many holders, two for each: a node for each holder.

    Raises:
        ValueError: a leaf does not have 32 bytes, or one has no partner.
    """
    if not _ONE_LENGTH.issuperset(map(len, leaves)):
        raise ValueError(f"a hash has {HASH_BYTES} bytes")
    pairs = zip(leaves[::2], leaves[1::2], strict=True)
    return [sha256(_PAIR + mask_leaf + seed_leaf).digest() for mask_leaf, seed_leaf in pairs]


def pair_node(mask_leaf: bytes, seed_leaf: bytes) -> bytes:
    """Join the leaves of the two shares of one holder.

    Raises:
        ValueError: a leaf does not have 32 bytes.
    """
    _check_hash(mask_leaf)
    _check_hash(seed_leaf)
    return sha256(_PAIR + mask_leaf + seed_leaf).digest()


class MerkleTree:
    """A Merkle tree over 32-byte leaves, in the order given.

    Args:
        leaves: at least one; for share commitments the pair nodes of the holders, in the order of x.

    Raises:
        ValueError: there is no leaf, or one does not have 32 bytes.
    """

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not 1 <= len(leaves) <= MAX_LEAVES:
            raise ValueError(f"a tree cannot have {len(leaves)} leaves")
        if not _ONE_LENGTH.issuperset(map(len, leaves)):
            raise ValueError(f"a hash has {HASH_BYTES} bytes")
        level = [sha256(_LEAF + leaf).digest() for leaf in leaves]
        self._levels = [level]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)  # an odd last node has no partner here
            parents = [sha256(_NODE + left + right).digest() for left, right in pairs]
            if len(level) % 2:
                parents.append(level[-1])
            level = parents
            self._levels.append(level)
        self._root = _root(len(leaves), level[0])

    @property
    def root(self) -> bytes:
        """The 32 bytes that bind every leaf, its position and the number of leaves."""
        return self._root

    def __len__(self) -> int:
        return len(self._levels[0])

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings from leaf ``index`` up, for `verify_path`.

        Raises:
            IndexError: there is no such leaf.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"leaf {index} of {len(self)}")
        siblings = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                siblings.append(level[index ^ 1])
            index //= 2
        return tuple(siblings)

    def paths(self) -> list[tuple[bytes, ...]]:
        """Return the path of every leaf, in order; equal to ``[path(i) for i in range(len(tree))]``."""
        above: list[tuple[bytes, ...]] = [()]
        for level in reversed(self._levels[:-1]):
            last = len(level) - 1
            above = [
                above[index // 2] if index == last and index % 2 == 0 else (level[index ^ 1], *above[index // 2])
                for index in range(len(level))
            ]
        return above


def verify_path(root: bytes, leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bool:
    """Tell whether ``leaf`` is leaf number ``index`` of the ``count`` leaves under ``root``.

    Arguments may come from a peer: whatever is malformed in them makes the answer False, never an error.

    Args:
        root: 32 bytes, signed by the dealer.
        leaf: 32 bytes.
        index: from 0.
        count: how many leaves the tree must have, as the verifier knows it.
        path: siblings from the leaf up; exactly as many as the position in a tree of that size has.
    """
    if len(leaf) != HASH_BYTES or not 0 <= index < count <= MAX_LEAVES:
        return False
    sides = list(_sides(index, count))
    if len(path) != len(sides) or any(len(sibling) != HASH_BYTES for sibling in path):
        return False
    node = sha256(_LEAF + leaf).digest()
    for sibling, sibling_is_left in zip(path, sides, strict=True):
        node = sha256(_NODE + (sibling + node if sibling_is_left else node + sibling)).digest()
    return _root(count, node) == root


def _sides(index: int, count: int) -> Iterator[bool]:
    """For each level at which the node has a sibling: does the sibling lie to the left?"""
    while count > 1:
        if index ^ 1 < count:
            yield index % 2 == 1
        index, count = index // 2, (count + 1) // 2


def _root(count: int, top: bytes) -> bytes:
    return sha256(_ROOT + count.to_bytes(4, "big") + top).digest()


def _prefixed(field: bytes) -> bytes:
    length = len(field)
    if length == HASH_BYTES:  # nearly all: identities and contexts
        return _OF_A_HASH + field
    if not 1 <= length < 2**16:
        raise ValueError(f"a committed field has 1 to 65535 bytes, not {length}")
    return length.to_bytes(2, "big") + field


def _check_hash(value: bytes) -> None:
    if len(value) != HASH_BYTES:
        raise ValueError(f"a hash has {HASH_BYTES} bytes, not {len(value)}")
