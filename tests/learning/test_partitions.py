"""Partitions: every index exactly once, deterministic, nobody left without data."""

import numpy as np
import pytest

from learning.datasets import load_labels
from learning.partitions import PARTITIONS, partition, partition_digest

LABELS = np.arange(6_000) % 10


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("clients", [1, 7, 100, 1_200])
@pytest.mark.parametrize("alpha", [0.001, 0.1, 1.0, 1e6])
def test_every_index_goes_to_exactly_one(name: str, clients: int, alpha: float) -> None:
    parts = partition(LABELS, name, clients, alpha, seed=11)
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(6_000))
    assert min(len(part) for part in parts) >= 5
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(part) for part in partition(LABELS, "iid", 7, seed=1)]
    assert max(sizes) - min(sizes) <= 1


def test_alpha_sets_the_skew() -> None:
    def largest_share(alpha: float) -> float:
        parts = partition(LABELS, "dirichlet", 50, alpha, seed=2)
        return float(np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts]))

    assert largest_share(0.05) > 0.7 > largest_share(1.0) > 0.25 > largest_share(1_000.0)


def test_seed_decides_and_the_digest_tells() -> None:
    first = partition_digest(partition(LABELS, "dirichlet", 100, 1.0, 3))
    assert partition_digest(partition(LABELS, "dirichlet", 100, 1.0, 3)) == first
    assert partition_digest(partition(LABELS, "dirichlet", 100, 1.0, 4)) != first
    assert partition_digest(partition(LABELS, "iid", 100, 1.0, 3)) != first


def test_partition_of_the_shipped_subset_stays_as_it_is() -> None:
    """Two machines must cut alike: a change of this code shows here."""
    parts = partition(load_labels("fashion-mnist-subset"), "dirichlet", 100, 1.0, 0)
    assert partition_digest(parts) == "2cc2e3257b12bdb49e5b8aa961edf9481e3003d13e22aa324950f1b11da35970"


def test_global_random_state_is_neither_read_nor_moved() -> None:
    np.random.seed(1)
    first = partition(LABELS, "dirichlet", 10, 1.0, 0)
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    np.random.seed(2)
    second = partition(LABELS, "dirichlet", 10, 1.0, 0)
    assert partition_digest(first) == partition_digest(second)
    np.random.seed(1)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "shards"}, "known partitions: iid, dirichlet"),
        ({"clients": 0}, "participants"),
        ({"clients": 1_201}, "too few for 1201 participants"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"seed": -1}, "seed"),
        ({"fewest_examples": 0}, ">= 1"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"name": "dirichlet", "clients": 10, "alpha": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        partition(LABELS, **{**good, **arguments})  # type: ignore[arg-type]
