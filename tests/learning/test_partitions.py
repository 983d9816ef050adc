"""Partitions: every index exactly once, deterministic, no participant without data."""

import numpy as np
import pytest

from learning.datasets import Dataset, load_labels
from learning.partitions import hold_out, partition
from tests.learning.digests import partition_digest

LABELS = np.arange(6_000) % 10


@pytest.mark.parametrize("name", ["iid", "dirichlet", "shards"])
@pytest.mark.parametrize("clients", [1, 7, 100, 600])
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


def test_shards_of_one_label_make_participants_of_two_labels() -> None:
    """[MMR+17], section 3: 100 participants, 200 shards, most of them with two digits only."""
    parts = partition(LABELS, "shards", 100, seed=5)
    assert {len(part) for part in parts} == {60}
    assert max(len(np.unique(LABELS[part])) for part in parts) == 2  # here shards don't straddle two labels
    one = partition(LABELS, "shards", 100, seed=5, shards=1)
    assert {len(np.unique(LABELS[part])) for part in one} == {1}
    many = partition(LABELS, "shards", 100, seed=5, shards=20)
    assert np.mean([len(np.unique(LABELS[part])) for part in many]) > 6


USERS = np.repeat([9, 3, 12, 7, 5], [10, 4, 30, 5, 11])  # user 3 has too few examples


def test_natural_gives_each_participant_one_user() -> None:
    parts = partition(np.zeros((60, 20), np.int64), "natural", 4, users=USERS)
    assert [set(USERS[part]) for part in parts] == [{5}, {7}, {9}, {12}]  # in the order of their numbers
    assert [len(part) for part in parts] == [11, 5, 10, 30]  # all that is theirs
    mixed = USERS[np.arange(60) * 7 % 60]
    for part in partition(np.zeros(60, np.int64), "natural", 4, users=mixed):
        assert len(set(mixed[part])) == 1
        assert (np.diff(part) > 0).all()


def test_natural_chooses_users_by_the_seed() -> None:
    chosen = set()
    for seed in range(40):
        parts = partition(np.zeros(60, np.int64), "natural", 2, seed=seed, users=USERS)
        users = [int(USERS[part[0]]) for part in parts]
        assert users == sorted(users)
        assert 3 not in users
        chosen.add(tuple(users))
    assert len(chosen) == 6  # every pair of the four


def test_digests_stay_as_they_are() -> None:
    """Two machines must cut alike: a change of this code shows here."""
    shipped = partition(load_labels("fashion-mnist-subset"), "dirichlet", 100, 1.0, 0)
    assert partition_digest(shipped) == "2cc2e3257b12bdb49e5b8aa961edf9481e3003d13e22aa324950f1b11da35970"
    shards = partition(LABELS, "shards", 30, seed=7)
    natural = partition(LABELS, "natural", 30, seed=7, users=np.arange(6_000) % 71)
    assert partition_digest(shards) == "9fe8660c2d200d1c2c70a78225cc877029daf5b6ee79d50219bcbe99222a2c02"
    assert partition_digest(natural) == "2b49353a5d070b1635a6bf4f9a083a9cd88beb4a3d12f897e7925f3ac35cba11"


@pytest.mark.parametrize("name", ["dirichlet", "shards"])
def test_sequences_have_no_one_label_to_go_by(name: str) -> None:
    with pytest.raises(ValueError, match="each has 20: use iid or natural"):
        partition(np.zeros((60, 20), np.int64), name, 2, users=USERS)
    assert len(partition(np.zeros((60, 20), np.int64), "iid", 2)) == 2


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
        ({"name": "by-role"}, "known partitions: iid, dirichlet, shards, natural"),
        ({"name": "natural"}, "whose each example is"),
        ({"name": "natural", "users": np.arange(6_000) // 4}, "0 of the data set's 1500 users"),
        ({"name": "natural", "users": np.arange(6_000) // 1_000}, "too few for 10 participants: take at most 6"),
        ({"name": "shards", "shards": 0}, "use 1 to 600"),
        ({"name": "shards", "shards": 601}, "use 1 to 600"),
        ({"name": "shards", "clients": 1_000, "shards": 4}, "4 shards of 1 examples are fewer than 5"),
        ({"clients": 0}, "participants"),
        ({"clients": 1_201}, "too few for 1201 participants"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"name": "dirichlet", "clients": 10, "alpha": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        partition(LABELS, **{**good, **arguments})  # type: ignore[arg-type]


def test_the_same_examples_are_held_out_in_any_order_and_with_their_doubles() -> None:
    """A split by position would train on what it evaluates on as soon as a file is sorted anew or lists a row twice."""
    random = np.random.default_rng(1)
    features = random.normal(size=(50, 3)).astype(np.float32)
    doubled = np.concatenate([features, features[:25]])
    labels = np.arange(75, dtype=np.int64) % 25 % 3
    trained, held = hold_out(Dataset(doubled, labels), 0.2)
    assert len(trained) + len(held) == 75
    assert 15 <= len(held) <= 17
    assert not {row.tobytes() for row in held.features} & {row.tobytes() for row in trained.features}
    order = random.permutation(75)
    again = hold_out(Dataset(doubled[order], labels[order]), 0.2)[1]
    assert sorted(map(bytes, again.features)) == sorted(map(bytes, held.features))


@pytest.mark.parametrize(("rows", "held"), [(0, 0), (1, 0), (2, 1), (3, 1), (10, 2)])
def test_something_is_left_to_train_on(rows: int, held: int) -> None:
    data = Dataset(np.arange(rows, dtype=np.float32)[:, None], np.zeros(rows, np.int64))
    assert [len(part) for part in hold_out(data, 0.2)] == [rows - held, held]
    same = Dataset(np.zeros((rows, 1), np.float32), np.zeros(rows, np.int64))
    assert len(hold_out(same, 0.2)[0]) == rows


def test_what_is_held_out_depends_on_nothing_else() -> None:
    """After a restart, or in another release, a participant must not train on what it held out before."""
    data = Dataset(np.arange(20, dtype=np.float32)[:, None], np.zeros(20, np.int64))
    assert hold_out(data, 0.2)[1].features[:, 0].tolist() == [4, 5, 11, 18]


def test_where_most_are_equal_the_share_is_the_nearest_possible() -> None:
    """A threshold by the hash alone would hold out ninety of these hundred in four studies of five."""
    for seed in range(40):
        features = np.random.default_rng(seed).normal(size=(11, 2)).astype(np.float32)[[0] * 90 + [*range(1, 11)]]
        held = hold_out(Dataset(features, np.zeros(100, np.int64)), 0.2)[1]
        assert 1 <= len(held) <= 10 or len(held) == 90
        assert len(held) < 90 or not {row.tobytes() for row in features[90:]} & {row.tobytes() for row in held.features}


def test_other_kinds_of_numbers_hold_out_the_same_examples() -> None:
    numbers = np.arange(40).reshape(20, 2)
    of_each = [hold_out(Dataset(numbers.astype(kind), np.zeros(20, np.int64)), 0.2)[1] for kind in ("u1", "i4", "f4")]
    assert len({tuple(map(tuple, one.features.tolist())) for one in of_each}) == 1
