"""The public stream: fixed words, right laws. Fixed seeds: a test that passes today passes always."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from learning.public_random import PublicRandom


def test_words_are_shake_256_of_the_seed() -> None:
    """The documented construction, spelled out, so that another implementation can follow it."""
    part = b"n" + bytes([7])
    seed = hashlib.sha256(b"sordino/v1/public-random" + len(part).to_bytes(8, "little") + part).digest()
    wanted = hashlib.shake_256(seed + (1).to_bytes(8, "little")).digest(24)
    assert PublicRandom(7).words(3).tobytes() == wanted


def test_seeds_that_look_alike_name_different_streams() -> None:
    seeds: list[tuple[int | bytes, ...]] = [(1, 2), (2, 1), (12,), (b"\x01", 2), (1, b"\x02")]
    streams = [PublicRandom(*seed) for seed in seeds]
    assert len({stream.words(1).tobytes() for stream in streams}) == len(streams)
    with pytest.raises(ValueError, match=">= 0"):
        PublicRandom(-1)


def test_permutations_are_permutations_and_differ() -> None:
    stream = PublicRandom(3)
    first, second = stream.permutation(1000), stream.permutation(1000)
    assert sorted(first.tolist()) == list(range(1000))
    assert (first != second).any()


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5])
def test_gamma_has_its_mean_and_variance(shape: float) -> None:
    """Both equal the shape; 4.5 standard errors, so a right sampler fails one seed of 10^5."""
    sample = np.exp(PublicRandom(b"gamma", 5).gamma(shape, 200_000))
    assert abs(sample.mean() - shape) < 4.5 * np.sqrt(shape / sample.size)
    fourth = 3 * shape**2 + 6 * shape
    assert abs(sample.var() - shape) < 4.5 * np.sqrt((fourth - shape**2) / sample.size)


def test_dirichlet_sums_to_one_even_where_gammas_underflow() -> None:
    shares = PublicRandom(1).dirichlet(0.001, 50)
    assert shares.sum() == pytest.approx(1)
    assert np.isfinite(shares).all()


def test_a_partition_and_a_batch_order_load_no_numpy_random() -> None:
    code = (
        "import sys, numpy as np; from learning.partitions import partition; from learning.task import update_rng;"
        "partition(np.arange(100) % 10, 'dirichlet', 5, 1.0, 1); update_rng(1, 2, 3).permutation(9);"
        "print('numpy.random' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"
