"""Share commitments and their Merkle tree against an independent definition, and the attacks it must not allow."""

from hashlib import sha256
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from secagg.commitments import (
    LeavesOfHolder,
    MerkleForest,
    MerkleTree,
    pair_node,
    pair_nodes,
    siblings,
    split_paths,
    verify_path,
)
from tests.reference import commitments as reference

steady = settings(derandomize=True, deadline=None)

ARGUMENTS = {
    "kind": b"mask-key",
    "cohort_context": bytes(range(32)),
    "dealer": bytes([1]) * 32,
    "holder": bytes([2]) * 32,
    "x": 3,
    "salt": bytes(range(100, 116)),
    "share": (np.arange(16, dtype=np.uint16) * 4000).astype("<u2").tobytes(),
}


def share_leaf(
    kind: bytes, cohort_context: bytes, dealer: bytes, holder: bytes, x: int, salt: bytes, share: bytes
) -> bytes:
    return LeavesOfHolder([b"another", kind], cohort_context, holder, x).leaves([1], [dealer], [salt], [share])[0]


def some_leaves(count: int, seed: int = 0) -> list[bytes]:
    rng = Random(f"{count} {seed}")
    return [rng.randbytes(32) for _ in range(count)]


BAD_FIELDS: dict[str, list[object]] = {
    **{"kind": [b"", bytes(2**16)], "cohort_context": [b""], "dealer": [b"", bytes(33)], "holder": [b""]},
    **{"x": [0, -1, 2**32], "salt": [bytes(15), bytes(17), b""], "share": [bytes(30), bytes(33)]},
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in BAD_FIELDS.items() for value in bad])
def test_bad_fields_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError):
        share_leaf(**{**ARGUMENTS, name: value})


def test_pairs_are_ordered_and_of_whole_hashes() -> None:
    left, right = some_leaves(2)
    assert pair_node(left, right) != pair_node(right, left)
    for bad in (left[:31], left + b"\x00", b""):
        with pytest.raises(ValueError, match="32 bytes"):
            pair_node(bad, right)
        with pytest.raises(ValueError, match="32 bytes"):
            pair_node(left, bad)


@pytest.mark.parametrize("count", [*range(1, 35), 63, 64, 65, 100, 127, 1000])
def test_trees_agree_with_the_reference(count: int) -> None:
    leaves = some_leaves(count)
    tree = MerkleTree(leaves)
    assert len(tree) == count
    assert tree.root == reference.root(leaves)
    for index in range(count) if count < 35 else {0, 1, 31, count // 2, count - 2, count - 1}:
        path = tree.path(index)
        assert list(path) == reference.path(leaves, index)
        assert verify_path(tree.root, leaves[index], index, count, path)
        assert verify_path(tree.root, leaves[index], index, count, list(path))


@pytest.mark.parametrize("count", [*range(1, 18), 100, 149])
def test_a_forest_gives_the_paths_of_its_trees(count: int) -> None:
    trees = [MerkleTree(some_leaves(count, seed)) for seed in range(5)]
    forest = MerkleForest(5, count)
    for row in (3, 0, 4, 1):
        forest.store(row, trees[row])
    rows = np.array([1, 0, 3, 3, 4] * 7)
    leaves = np.arange(len(rows)) % count
    wanted = [b"".join(trees[row].path(leaf)) for row, leaf in zip(rows.tolist(), leaves.tolist(), strict=True)]
    assert split_paths(*forest.paths(rows, leaves)) == wanted
    assert [tuple(siblings(one)) for one in wanted[:2]] == [trees[1].path(0), trees[0].path(1 % count)]
    assert [len(one) for one in siblings(bytes(70))] == [32, 32, 6]
    assert split_paths(*forest.paths(rows[:0], leaves[:0])) == []
    with pytest.raises(ValueError, match="reshape"):
        forest.store(2, MerkleTree(some_leaves(count + 1)))


def test_pairs_of_many_holders_are_those_of_one_after_the_other() -> None:
    leaves = some_leaves(14)
    pairs = [pair_node(*leaves[at : at + 2]) for at in range(0, 14, 2)]
    assert pair_nodes(b"".join(leaves)) == pairs
    for wrong in (b"".join(leaves[:13]), b"".join(leaves)[:-1]):
        with pytest.raises(ValueError, match="two hashes of 32 bytes"):
            pair_nodes(wrong)


@given(count=st.integers(1, 20), data=st.data())
@steady
def test_nothing_else_verifies(count: int, data: st.DataObject) -> None:
    leaves = some_leaves(count)
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, count - 1))
    path = tree.path(index)
    other = data.draw(st.integers(0, 40).filter(lambda value: value != index))
    assert not verify_path(tree.root, leaves[index], other, count, path)
    other = data.draw(st.integers(-2, 40).filter(lambda value: value != count))
    assert not verify_path(tree.root, leaves[index], index, other, path)
    assert not verify_path(tree.root, bytes(32), index, count, path)
    assert not verify_path(bytes(32), leaves[index], index, count, path)
    assert not verify_path(tree.root, leaves[index], index, count, (*path, bytes(32)))
    if path:
        assert not verify_path(tree.root, leaves[index], index, count, path[:-1])
        assert not verify_path(tree.root, leaves[index], index, count, path[1:])
        step = data.draw(st.integers(0, len(path) - 1))
        bit = data.draw(st.integers(0, 255))
        flipped = (int.from_bytes(path[step], "big") ^ 1 << bit).to_bytes(32, "big")
        assert not verify_path(tree.root, leaves[index], index, count, (*path[:step], flipped, *path[step + 1 :]))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_malformed_hashes_are_answered_not_raised(size: int) -> None:
    leaves = some_leaves(4)
    tree = MerkleTree(leaves)
    path = tree.path(1)
    assert not verify_path(tree.root, bytes(size), 1, 4, path)
    assert not verify_path(bytes(size), leaves[1], 1, 4, path)
    assert not verify_path(tree.root, leaves[1], 1, 4, (path[0], bytes(size)))
    assert not verify_path(tree.root, leaves[1], 1, 0, ())
    assert not verify_path(tree.root, leaves[1], -1, 4, path)
    assert not verify_path(tree.root, leaves[1], 1, 2**32, path)
    assert not verify_path(tree.root, leaves[1], 2**70, 2**71, path)


def test_bytes_cannot_move_between_siblings_of_a_path() -> None:
    leaves = some_leaves(4)
    tree = MerkleTree(leaves)
    low, high = tree.path(0)
    assert not verify_path(tree.root, leaves[0], 0, 4, (low + high[:1], high[1:]))


def naive_root(leaves: list[bytes]) -> bytes:
    level = leaves
    while len(level) > 1:
        level = level + level[-1:] if len(level) % 2 else level
        level = [sha256(level[i] + level[i + 1]).digest() for i in range(0, len(level), 2)]
    return level[0]


def test_the_naive_tree_falls_to_both_attacks() -> None:
    leaves = some_leaves(3)
    assert naive_root(leaves) == naive_root(leaves + leaves[-1:])
    leaves = some_leaves(4)
    parents = [sha256(leaves[0] + leaves[1]).digest(), sha256(leaves[2] + leaves[3]).digest()]
    assert naive_root(leaves) == naive_root(parents)


def test_roots_of_all_small_lists_differ() -> None:
    alphabet = some_leaves(2)
    roots = set()
    lists = 0
    for count in range(1, 9):
        for choice in range(2**count):
            roots.add(MerkleTree([alphabet[choice >> i & 1] for i in range(count)]).root)
            lists += 1
    assert len(roots) == lists


def test_bad_trees_are_refused() -> None:
    with pytest.raises(ValueError, match="0 leaves"):
        MerkleTree([])
    with pytest.raises(ValueError, match="32 bytes"):
        MerkleTree([bytes(32), bytes(31)])
    tree = MerkleTree(some_leaves(3))
    for index in (-1, 3):
        with pytest.raises(IndexError):
            tree.path(index)


def test_an_inner_node_is_no_leaf() -> None:
    # Second preimage: two leaves' parent shown as one leaf of a smaller tree, and as a leaf one level up.
    leaves = some_leaves(4)
    tree = MerkleTree(leaves)
    left, right = tree.path(2)[1], tree.path(0)[1]  # the two nodes below the top
    assert MerkleTree([left, right]).root != tree.root
    assert not verify_path(tree.root, left, 0, 2, (right,))
    assert not verify_path(tree.root, left, 0, 4, (right,))


def test_a_repeated_last_leaf_changes_the_root() -> None:
    # Where odd nodes are paired with themselves these lists have one root (CVE-2012-2459).
    for count in (1, 3, 5, 6, 7, 9, 11):
        leaves = some_leaves(count)
        for repeated in range(1, count + 1):
            assert MerkleTree(leaves + leaves[-repeated:]).root != MerkleTree(leaves).root
