"""The table's law, read off its arrays and run over all inputs, is exactly w / sum(w)."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest

from mechanisms.discrete_gaussian import gaussian_weights
from mechanisms.noise_table import CELLS, NoiseTable, Scratch
from mechanisms.randomness import Keystream, RandomnessFailed, fresh_keystream, uniform_below
from mechanisms.skellam import skellam_weights
from tests.mechanisms.conftest import keyed
from tests.mechanisms.lattice_laws import exact_law, law_of


class Script:
    """A source that plays given bytes and then stops the test."""

    def __init__(self, *parts: bytes) -> None:
        self.left = b"".join(parts)

    def fill(self, out: np.ndarray) -> None:
        assert len(self.left) >= out.size, "the sampler drew more than the script holds"
        out[:] = np.frombuffer(self.left[: out.size], np.uint8)
        self.left = self.left[out.size :]


CASES = [
    ([5, 3, 1], 1),
    ([1], 3),
    ([1, 0, 7], 4),
    ([32768, 16384], 1),  # fills the first table exactly: nothing is left for another
    (gaussian_weights(Fraction(1, 4), 1), 1),
    (gaussian_weights(Fraction(1), 1), 1),
    (gaussian_weights(Fraction(314159, 65536), 1), 1),
    (gaussian_weights(Fraction(100**2), 1), 1),
    (gaussian_weights(Fraction(10**6), 7), 7),
    (skellam_weights(Fraction(1, 4), 1), 1),
    (skellam_weights(Fraction(7, 3), 1), 1),
    (skellam_weights(Fraction(10**6), 14), 14),
]


@pytest.mark.parametrize(("half", "step"), CASES, ids=range(len(CASES)))
def test_the_law_read_off_the_arrays_equals_the_integer_weights(half: list[int], step: int) -> None:
    assert law_of(NoiseTable(half, step)) == exact_law(half, step)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_any_depth_has_the_same_law(depth: int) -> None:
    half = gaussian_weights(Fraction(9), 1)
    assert law_of(NoiseTable(half, 1, depth=depth)) == exact_law(half, 1)


def test_wrong_tables_fail_the_same_check() -> None:
    half = gaussian_weights(Fraction(9), 1)
    one_cell = NoiseTable(half, 1)
    one_cell.lookups[0][0][100] += 1
    assert law_of(one_cell) != exact_law(half, 1)

    last_unit = NoiseTable(half, 1)
    last_unit.cumulative = [c + (i == 0) for i, c in enumerate(last_unit.cumulative)]
    assert law_of(last_unit) != exact_law(half, 1)

    # The naive sampler: probabilities as doubles.
    rounded = [int(w / half[0] * 2.0**53) for w in half]
    assert law_of(NoiseTable(rounded, 1)) != exact_law(half, 1)

    # Inversion that stops after the first table, its remainder given to the last value.
    cut = NoiseTable(half, 1, depth=1)
    cut.cumulative = list(accumulate([0] * (len(cut.values) - 1) + [1]))
    assert law_of(cut) != exact_law(half, 1)


def test_an_exhaustive_run_reaches_every_stage_and_draws_what_the_arrays_say() -> None:
    """All first words, all second words behind an open one, and the integers of the bisection at every edge."""
    half = [5, 3, 1]
    table, scratch = NoiseTable(half, 1, depth=2), Scratch(CELLS)
    assert law_of(table) == exact_law(half, 1)
    (one, full), (other, behind) = table.lookups
    assert max(full, behind) < CELLS
    every_word = np.arange(CELLS, dtype="<u2").tobytes()
    drawn = np.zeros(CELLS, np.int32)
    # The open words of the first table all go to a full cell of the second here.
    table.draw(drawn, Script(every_word, bytes(2 * (CELLS - full))), scratch)
    assert np.array_equal(drawn[:full], one[:full])

    last = table.cumulative[-1]
    size = ((last - 1).bit_length() + 7) // 8
    drawn = np.zeros(CELLS, np.int32)
    # Every first word open, every second word once: the open ones bisect at 0.
    all_open = np.full(CELLS, full, dtype="<u2").tobytes()
    table.draw(drawn, Script(all_open, every_word, bytes(size * (CELLS - behind))), scratch)
    assert np.array_equal(drawn[:behind], other[:behind])

    both_open = full.to_bytes(2, "little") + behind.to_bytes(2, "little")
    for value, (before, after) in zip(table.values, pairwise([0, *table.cumulative]), strict=True):
        for target in {before, after - 1} if before < after else ():
            drawn = np.zeros(1, np.int32)
            table.draw(drawn, Script(both_open, target.to_bytes(size, "little")), scratch)
            assert drawn[0] == value


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 13, 200, 256, 257, 1000])
def test_uniform_below_is_uniform(bound: int) -> None:
    """Every masked candidate once: below the bound it is the answer, above it is drawn again."""
    bits = (bound - 1).bit_length()
    size = (bits + 7) // 8
    answers = Counter()
    for candidate in range(1 << bits):
        noise = (
            (candidate | (1 << bits)) % (1 << 8 * size) if bits % 8 else candidate
        )  # bits above the mask are ignored
        script = Script(noise.to_bytes(size, "little"), (0).to_bytes(size, "little"))
        answer = uniform_below(bound, script)
        if candidate < bound:
            assert answer == candidate
            assert len(script.left) == size
            answers[answer] += 1
        else:
            assert answer == 0
            assert not script.left
    assert set(answers.values()) == {1}
    assert len(answers) == bound
    with pytest.raises(ValueError):
        uniform_below(0, Script())


def test_bad_tables_are_refused() -> None:
    for half, step in (([], 1), ([0, 1], 1), ([1, -1], 1), ([1, 1], 0), ([1, 1], 1 << 31)):
        with pytest.raises(ValueError):
            NoiseTable(half, step)
    with pytest.raises(ValueError):
        NoiseTable([1, 1], 1, depth=0)
    assert NoiseTable([1, 1], (1 << 15) - 1, np.int16).values.tolist() == [-(2**15) + 1, 0, 2**15 - 1]
    with pytest.raises(ValueError, match="int16"):
        NoiseTable([1, 1], 1 << 15, np.int16)


def test_keystreams_need_a_whole_key_and_hide_it() -> None:
    with pytest.raises(RandomnessFailed):
        Keystream(bytes(31))
    with pytest.raises(RandomnessFailed):
        fresh_keystream(lambda n: b"short")
    assert "secret" in repr(fresh_keystream(keyed("repr")))
    whole, parts = np.empty(200_001, np.uint8), np.empty(200_001, np.uint8)
    Keystream(bytes(32)).fill(whole)
    stream = Keystream(bytes(32))
    stream.fill(parts[:77_777])
    stream.fill(parts[77_777:])
    assert np.array_equal(whole, parts)
    # RFC 8439 A.1, test vector 1: the keystream of the zero key and nonce.
    assert whole[:16].tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
