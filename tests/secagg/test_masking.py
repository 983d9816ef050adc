"""Masks against single AES blocks, and sums against plain Python integers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext
from hypothesis import given, settings, strategies as st

from secagg import masking
from secagg.masking import (
    CHUNK_BYTES,
    MAX_BLOCKS,
    apply_masks,
    check_stream_length,
    choose_keystream,
    reduce_words,
    word_dtype,
)
from tests.reference.aes import keystream
from tests.reference.vectors_mod_2b import mask as mask_of
from tests.support.attempts_in_memory import mask_words

steady = settings(derandomize=True, deadline=None)

KEY = bytes(range(16))
all_bits = st.integers(1, 62)


@pytest.fixture(params=["gcm", "ctr"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(masking, "_chosen", request.param)
    return str(request.param)


def test_words_are_the_smallest_that_hold_the_bits() -> None:
    sizes = [word_dtype(bits).itemsize for bits in range(1, 63)]
    assert sizes == [1] * 8 + [2] * 8 + [4] * 16 + [8] * 30
    assert all(word_dtype(bits) == np.dtype(f"<u{word_dtype(bits).itemsize}") for bits in range(1, 63))


@pytest.mark.parametrize("bits", [-1, 0, 63, 64])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 62"):
        word_dtype(bits)


def test_the_two_variants_are_two_implementations() -> None:
    # Else the tests that compare their bytes would compare one with itself. Only GCM has a tag.
    assert isinstance(masking._open_stream(KEY, "gcm"), AEADEncryptionContext)
    assert not isinstance(masking._open_stream(KEY, "ctr"), AEADEncryptionContext)


def test_published_vector(variant: str) -> None:
    # GCM test case 2 of McGrew and Viega, "The Galois/Counter Mode of Operation": key, nonce and plaintext all zero.
    block = bytes.fromhex("0388dace60b6a392f328c2b971b2fe78")
    assert mask_words(bytes(16), 8, 16).tobytes() == block
    assert mask_words(bytes(16), 2, 62).tolist() == [
        int.from_bytes(block[:8], "little") % 2**62,
        int.from_bytes(block[8:], "little") % 2**62,
    ]


@pytest.mark.parametrize("bits", [8, 16, 20, 62])
def test_a_stream_runs_on_across_chunks(variant: str, bits: int) -> None:
    words_a_chunk = CHUNK_BYTES // word_dtype(bits).itemsize
    for dim in (words_a_chunk - 1, words_a_chunk, words_a_chunk + 1, 2 * words_a_chunk + 3):
        expected = np.frombuffer(keystream(KEY, dim * word_dtype(bits).itemsize), dtype=word_dtype(bits))
        assert np.array_equal(mask_words(KEY, dim, bits), expected & expected.dtype.type(2**bits - 1))


@given(bits=all_bits, dim=st.integers(0, 40), data=st.data())
@steady
def test_masks_add_and_subtract_modulo_2_to_the_bits(bits: int, dim: int, data: st.DataObject) -> None:
    top = 2 ** (8 * word_dtype(bits).itemsize) - 1  # the accumulator need not be reduced
    start = data.draw(st.lists(st.integers(0, top), min_size=dim, max_size=dim))
    masks = data.draw(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.sampled_from([1, -1])), max_size=5))
    words = np.array(start, dtype=word_dtype(bits))
    apply_masks(words, masks, bits)

    expected = start
    for key, sign in masks:
        expected = [a + sign * m for a, m in zip(expected, mask_of(key, dim, bits), strict=True)]
    assert words.tolist() == [value % 2**bits for value in expected]


def test_long_vectors_and_many_streams_cancel(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_STREAMS_AT_ONCE", 3)
    rng = np.random.default_rng(5)
    start = rng.integers(0, 2**20, 150_001).astype(np.uint32)
    keys = [rng.bytes(16) for _ in range(10)]
    words = start.copy()
    apply_masks(words, [(key, 1) for key in keys], 20)
    expected = start.astype(np.uint64)
    for key in keys:
        expected += np.frombuffer(keystream(key, 4 * start.size), dtype="<u4")
    assert np.array_equal(words, expected % 2**20)
    apply_masks(words, [(key, -1) for key in reversed(keys)], 20)
    assert np.array_equal(words, start)


def test_reduce_words() -> None:
    words = np.arange(256, dtype=np.uint8).reshape(16, 16)
    reduce_words(words, 3)
    assert words.reshape(-1).tolist() == [value % 8 for value in range(256)]
    reduce_words(words, 8)
    with pytest.raises(ValueError, match="need words of type"):
        reduce_words(words, 9)


def test_threads_may_mask_at_once() -> None:
    def work(index: int) -> np.ndarray:
        words = np.zeros(100_000, dtype=np.uint32)
        apply_masks(words, [(bytes([index]) * 16, 1)] * 3, 32)
        return words

    with ThreadPoolExecutor(4) as pool:
        for index, words in enumerate(pool.map(work, range(4))):
            assert np.array_equal(words, mask_words(bytes([index]) * 16, 100_000, 32) * np.uint32(3))


@pytest.mark.parametrize(("bits", "words_a_block"), [(8, 16), (16, 8), (20, 4), (62, 2)])
def test_the_counter_limit(bits: int, words_a_block: int) -> None:
    assert MAX_BLOCKS == 2**32 - 2
    check_stream_length(MAX_BLOCKS * words_a_block, bits)
    for too_long in (MAX_BLOCKS * words_a_block + 1, 2**32 * words_a_block, 2**62):
        with pytest.raises(ValueError, match="one key makes at most"):
            check_stream_length(too_long, bits)


def test_the_counter_limit_holds_for_accumulators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "MAX_BLOCKS", 10)
    apply_masks(np.zeros(40, dtype=np.uint32), [(KEY, 1)], 20)
    words = np.zeros(41, dtype=np.uint32)
    with pytest.raises(ValueError, match="one key makes at most"):
        apply_masks(words, [(KEY, 1)], 20)
    assert not words.any()


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([(KEY, 1), (KEY[:15], 1)], "16 bytes, not 15"),
        ([(KEY, 1), (KEY * 2, 1)], "16 bytes, not 32"),  # AES-256 would take it and make other masks
        ([(KEY, 1), (KEY, 0)], "not 0"),
        ([(KEY, 1), (KEY, 2)], "not 2"),
    ],
)
def test_bad_masks_leave_the_accumulator_alone(masks: list[tuple[bytes, int]], message: str) -> None:
    words = np.full(100, 2**32 - 1, dtype=np.uint32)
    with pytest.raises(ValueError, match=message):
        apply_masks(words, masks, 20)
    assert (words == 2**32 - 1).all()


def read_only(words: np.ndarray) -> np.ndarray:
    words.flags.writeable = False
    return words


@pytest.mark.parametrize(
    ("accumulator", "message"),
    [
        (np.zeros(4, dtype=np.uint64), "words of type"),
        (np.zeros(4, dtype=np.int32), "words of type"),
        (np.zeros(4, dtype=">u4"), "words of type"),
        (np.zeros((2, 2), dtype=np.uint32), "one contiguous"),
        (np.zeros(8, dtype=np.uint32)[::2], "one contiguous"),
        (read_only(np.zeros(4, dtype=np.uint32)), "writable"),
    ],
)
def test_bad_accumulators_are_refused(accumulator: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_masks(accumulator, [(KEY, 1)], 20)


def slow_for(slow: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that only moves while the stream opened last is of the slow kind."""
    current = {"variant": "", "now": 0.0}
    open_stream = masking._open_stream

    def opening(key: bytes, variant: masking.Keystream) -> object:
        current["variant"] = variant
        return open_stream(key, variant)

    def clock() -> float:
        current["now"] += 1.0 if current["variant"] == slow else 0.5
        return float(current["now"])

    monkeypatch.setattr(masking, "_open_stream", opening)
    monkeypatch.setattr(masking, "_chosen", None)
    return clock


@pytest.mark.parametrize(("slow", "chosen"), [("gcm", "ctr"), ("ctr", "gcm")])
def test_the_faster_keystream_is_chosen_once(slow: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = slow_for(slow, monkeypatch)
    assert choose_keystream() == "gcm"  # asked without a clock: nothing is measured or settled
    assert choose_keystream(clock) == chosen
    assert choose_keystream() == chosen

    def unused() -> float:
        raise AssertionError("measured twice")

    assert choose_keystream(unused) == chosen
    assert mask_words(KEY, 1000, 20).tolist() == mask_of(KEY, 1000, 20)
