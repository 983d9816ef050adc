"""Commitments of a dealer to the shares it hands out: salted hashes under one Merkle root.

The dealer signs the root; each holder gets its path in the clear, and its two shares with a salt for each inside its
ciphertext. Leaves and nodes may be public: a leaf hides its share for as long as its salt is secret. A holder that
later reveals one of its shares reveals the salt of that share alone, so the leaf of the other still hides it.

Every hash is SHA-256 over a label with its length in front, then fields of fixed width or with their length in
front, all numbers big-endian: two different inputs never make the same bytes. Labels differ by purpose, so a leaf is
never an inner node. With H(label; ...) for such a hash:

    share leaf = H("sordino/v1/share-commitment"; kind, cohort context, dealer, holder, x (4), salt (16), share (32))
    pair node  = H("sordino/v1/share-pair"; mask leaf (32), seed leaf (32))       one per holder, in the order of x
    wrapped    = H("sordino/v1/wrapped-seed"; pair node (32), wrapped seed (1120))   in its place, where keys are hybrid
                                                                     and the dealer sends this holder the pair's seed
    inner node = H("sordino/v1/merkle-node"; left (32), right (32))
    root       = H("sordino/v1/merkle-root"; number of leaves (4), top node (32))

The four fields from kind to holder carry their length in two bytes each. The share is 16 symbols, little-endian, as on
the wire. A level of odd length hands its last node up unchanged; it is not paired with itself, which would give a list
and the same list with its last entry repeated one root. The number of leaves is under the root, so it fixes the shape
of the tree and the length of every path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hashlib import _Hash

HASH_BYTES: Final = 32
SALT_BYTES: Final = 16
SHARE_SYMBOLS: Final = 16
MAX_LEAVES: Final = 2**32 - 1


def _label(text: str) -> bytes:
    encoded = text.encode("ascii")
    return len(encoded).to_bytes(2, "big") + encoded


_SHARE: Final = _label("sordino/v1/share-commitment")
# Hashes that have taken their label in, to be copied: a seventh quicker than to make one each time.
_PAIR: Final = sha256(_label("sordino/v1/share-pair"))
_WRAPPED: Final = sha256(_label("sordino/v1/wrapped-seed"))
_NODE: Final = sha256(_label("sordino/v1/merkle-node"))
_ROOT: Final = sha256(_label("sordino/v1/merkle-root"))
_OF_A_HASH: Final = HASH_BYTES.to_bytes(2, "big")


def _hash(label: _Hash, fields: bytes) -> bytes:
    one = label.copy()
    one.update(fields)
    return one.digest()


def _hash_each(label: _Hash, rows: bytes, width: int) -> list[bytes]:
    """Hash each whole row of ``width`` bytes."""
    start, hashes = label.copy, []
    for at in range(0, len(rows) - width + 1, width):
        one = start()
        one.update(rows[at : at + width])
        hashes.append(one.digest())
    return hashes


@lru_cache(maxsize=8)  # both kinds, of the attempts that are under way
def _share_head(kind: bytes, cohort_context: bytes) -> _Hash:
    """Hash state of a leaf up to the dealer."""
    return sha256(_SHARE + _prefixed(kind) + _prefixed(cohort_context) + _OF_A_HASH)


class LeavesOfHolder:
    """Commit to the shares that one holder, at the point x from 1 to 2^32 - 1, has from many dealers.

    A commitment hides its share as long as the 16 salt bytes are fresh, uniform and secret; it is binding by the
    collision resistance of SHA-256. ``kinds`` are the labels, not empty, of the dealers' secrets.
    """

    def __init__(self, kinds: Sequence[bytes], cohort_context: bytes, holder: bytes, x: int) -> None:
        if not 1 <= x < 2**32:
            raise ValueError(f"a holder's point cannot be {x}")
        self._heads = [_share_head(kind, cohort_context) for kind in kinds]
        self._tail = _prefixed(holder) + x.to_bytes(4, "big")

    def leaves(
        self, kinds: Iterable[int], dealers: Iterable[bytes], salts: Iterable[bytes], shares: Iterable[bytes]
    ) -> list[bytes]:
        """Commit to one share of each of many dealers: 32 bytes each.

        Args:
            kinds: numbers, from 0; dealers: identities, 32 bytes; salts: 16 bytes, fresh for each share.
            shares: 16 symbols of two bytes, little-endian.

        Raises:
            ValueError: a field has another length.
        """
        heads, tail, hashes = [head.copy for head in self._heads], self._tail, []
        for kind, dealer, salt, share in zip(kinds, dealers, salts, shares, strict=True):
            if len(dealer) != HASH_BYTES or len(salt) != SALT_BYTES or len(share) != 2 * SHARE_SYMBOLS:
                raise ValueError("a leaf is made of an identity of 32 bytes, a salt of 16 and a share of 32")
            one = heads[kind]()
            one.update(b"".join((dealer, tail, salt, share)))
            hashes.append(one.digest())
        return hashes


def pair_nodes(leaves: bytes) -> list[bytes]:
    """One node for each of many holders, from two leaves of 32 bytes for each, concatenated.

    Raises ValueError: the length is not a multiple of 64.
    """
    if len(leaves) % (2 * HASH_BYTES):
        raise ValueError(f"a holder has two hashes of {HASH_BYTES} bytes")
    return _hash_each(_PAIR, leaves, 2 * HASH_BYTES)


def pair_node(mask_leaf: bytes, seed_leaf: bytes) -> bytes:
    """Join the leaves of the two shares of one holder. Raises ValueError: a leaf does not have 32 bytes."""
    _check_hash(mask_leaf)
    _check_hash(seed_leaf)
    return _hash(_PAIR, mask_leaf + seed_leaf)


def wrapped_node(pair: bytes, wrapped: bytes) -> bytes:
    """A holder's node with the wrapped seed of the pair; that of its shares alone if ``wrapped`` is empty.

    Raises ValueError: the pair node has another length than 32 bytes.
    """
    _check_hash(pair)
    return _hash(_WRAPPED, pair + wrapped) if wrapped else pair


class MerkleTree:
    """A Merkle tree over 32-byte leaves, in the order given.

    Args:
        leaves: labelled hashes; for share commitments the pair nodes of the holders, in the order of x.

    Raises:
        ValueError: there is no leaf, or one does not have 32 bytes.
    """

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not 1 <= len(leaves) <= MAX_LEAVES:
            raise ValueError(f"a tree cannot have {len(leaves)} leaves")
        if any(len(leaf) != HASH_BYTES for leaf in leaves):
            raise ValueError(f"a hash has {HASH_BYTES} bytes")
        self._count = len(leaves)
        level = b"".join(leaves)
        levels = [level]
        while len(level) > HASH_BYTES:
            parents = _hash_each(_NODE, level, 2 * HASH_BYTES)
            if len(level) % (2 * HASH_BYTES):  # an odd last node
                parents.append(level[-HASH_BYTES:])
            level = b"".join(parents)
            levels.append(level)
        self.nodes = b"".join(levels)  # level by level from the leaves
        self.root = _root(self._count, level)  # binds every leaf, its position and the number of leaves

    def __len__(self) -> int:
        return self._count

    def path(self, index: int) -> tuple[bytes, ...]:
        """The siblings from leaf ``index`` up, for `verify_path`; IndexError if there is no such leaf."""
        if not 0 <= index < len(self):
            raise IndexError(f"leaf {index} of {len(self)}")
        places, lengths = _siblings(self._count)
        starts = [HASH_BYTES * place for place in places[index, : lengths[index]].tolist()]
        return tuple(self.nodes[at : at + HASH_BYTES] for at in starts)


class MerkleForest:
    """Trees of one size, one for each dealer, and the paths of one holder in many of them.

    Args:
        trees: largest number of trees.
        leaves: number of leaves of each tree, at least one.
    """

    def __init__(self, trees: int, leaves: int) -> None:
        self._siblings, self._lengths = _siblings(leaves)
        self._size = _nodes(leaves)
        self._nodes = np.zeros((trees * self._size, HASH_BYTES), dtype=np.uint8)

    def store(self, row: int, tree: MerkleTree) -> None:
        """Store the nodes of a tree; ValueError if it is of another size."""
        nodes = np.frombuffer(tree.nodes, dtype=np.uint8).reshape(self._size, HASH_BYTES)
        self._nodes[row * self._size : (row + 1) * self._size] = nodes

    def clear(self, row: int) -> None:
        self._nodes[row * self._size : (row + 1) * self._size] = 0

    def paths(self, rows: NDArray[np.intp], leaves: NDArray[np.intp]) -> tuple[bytes, NDArray[np.intp]]:
        """The joined paths (`MerkleTree.path`) of one leaf in each of these trees; shape (m,) each, from 0.

        Returns them in one row, all as long as the longest path of the tree, and how many hashes of each are its own:
        for `split_paths`.
        """
        at = (rows * self._size)[:, None] + self._siblings[leaves]
        return np.take(self._nodes, at, axis=0).tobytes(), self._lengths[leaves]


def split_paths(row: bytes, lengths: NDArray[np.intp]) -> list[bytes]:
    """The joined path of each leaf, of what `MerkleForest.paths` returns."""
    longest, ends = len(row) // max(1, len(lengths)), (HASH_BYTES * lengths).tolist()
    return [row[longest * at : longest * at + end] for at, end in enumerate(ends)]


def _nodes(leaves: int) -> int:
    """Number of nodes of a tree, on all levels."""
    return leaves if leaves == 1 else leaves + _nodes((leaves + 1) // 2)


@lru_cache(maxsize=2)  # on a graph all trees are of one size
def _siblings(leaves: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of each leaf's siblings among the nodes, shape (leaves, longest path), and their number."""
    places: list[list[int]] = [[] for _ in range(leaves)]
    size, start, height = leaves, 0, 0
    while size > 1:
        for leaf, path in enumerate(places):
            sibling = leaf >> height ^ 1
            if sibling < size:
                path.append(start + sibling)
        size, start, height = (size + 1) // 2, start + size, height + 1
    lengths = np.array([len(path) for path in places], dtype=np.intp)
    table = np.zeros((leaves, lengths.max()), dtype=np.intp)
    for row, path in zip(table, places, strict=True):
        row[: len(path)] = path
    return table, lengths


def verify_path(root: bytes, leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bool:
    """Whether ``leaf`` is leaf number ``index`` of the ``count`` leaves under ``root``.

    Arguments may come from a peer: malformed ones give False, never an error.

    Args:
        root, leaf: 32 bytes.
        count: number of leaves that the tree must have, known to the verifier; ``index`` counts from 0.
        path: siblings from the leaf up, exactly those of this position in a tree of this size.
    """
    if len(leaf) != HASH_BYTES or not 0 <= index < count <= MAX_LEAVES:
        return False
    sides = list(_sides(index, count))
    if len(path) != len(sides) or any(len(sibling) != HASH_BYTES for sibling in path):
        return False
    node = leaf
    for sibling, sibling_is_left in zip(path, sides, strict=True):
        node = _hash(_NODE, sibling + node if sibling_is_left else node + sibling)
    return _root(count, node) == root


def siblings(path: bytes) -> list[bytes]:
    """Split a joined path for `verify_path`; a remainder becomes a sibling of invalid length."""
    return [path[at : at + HASH_BYTES] for at in range(0, len(path), HASH_BYTES)]


def _sides(index: int, count: int) -> Iterator[bool]:
    """For each level at which the node has a sibling: whether the sibling is on the left."""
    while count > 1:
        if index ^ 1 < count:
            yield index % 2 == 1
        index, count = index // 2, (count + 1) // 2


def _root(count: int, top: bytes) -> bytes:
    return _hash(_ROOT, count.to_bytes(4, "big") + top)


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
