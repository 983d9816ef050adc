"""The packed layout against a reference that follows its text bit by bit with Python integers."""

from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from secagg import packing
from secagg.masking import word_dtype
from secagg.packing import add_packed, pack, packed_size, unpack
from tests.reference import vectors_mod_2b

steady = settings(derandomize=True, deadline=None)

ALL_BITS = range(1, 63)
DIMS = (0, 1, 2, 3, 5, 63, 64, 65, 127, 128, 1000)


def some_values(dim: int, bits: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([dim, bits, seed]).integers(0, 2**bits, dim, dtype=np.uint64)
    return values.astype(word_dtype(bits))


@pytest.fixture(params=[None, 64])
def run_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The real length of a run, and one so short that small vectors have many runs and a shorter last one."""
    if request.param is not None:
        monkeypatch.setattr(packing, "_RUN_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.usefixtures("run_bytes")
def test_every_width_follows_the_text(bits: int) -> None:
    for dim in DIMS:
        values = some_values(dim, bits)
        packed = pack(values, bits)
        assert packed == vectors_mod_2b.pack(values.tolist(), bits)
        assert len(packed) == packed_size(dim, bits) == (dim * bits + 7) // 8
        unpacked = unpack(packed, dim, bits)
        assert unpacked.dtype == word_dtype(bits)
        assert np.array_equal(unpacked, values)


@given(bits=st.integers(1, 62), data=st.data())
@steady
def test_any_vector_comes_back(bits: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=150))
    values = np.array(numbers, dtype=word_dtype(bits))
    packed = pack(values, bits)
    assert packed == vectors_mod_2b.pack(numbers, bits)
    assert unpack(packed, len(numbers), bits).tolist() == numbers


@pytest.mark.parametrize("bits", [1, 5, 8, 12, 16, 17, 20, 33, 62])
def test_long_vectors(bits: int) -> None:
    group = 8 * word_dtype(bits).itemsize // gcd(bits, 8 * word_dtype(bits).itemsize)
    dim = group * (packing._RUN_BYTES // word_dtype(bits).itemsize) + group + 1 if group < 9 else 100_003
    values = some_values(dim, bits)
    packed = pack(values, bits)
    assert len(packed) == (dim * bits + 7) // 8
    assert np.array_equal(unpack(packed, dim, bits), values)


def test_vectors_worked_out_by_hand() -> None:
    # B = 4: w = 8, G = 2, W = 1. Of five values M = 2 pairs (v0, v2), (v1, v3), then v4 alone.
    assert pack(np.array([1, 2, 3, 4, 5], dtype=np.uint8), 4).hex() == "314205"
    # B = 12: w = 16, G = 4, W = 3. One group: 0x444333222111, as words 2111, 3322, 4443.
    assert pack(np.array([0x111, 0x222, 0x333, 0x444], dtype=np.uint16), 12).hex() == "112122334344"
    # B = 20: w = 32, G = 8. Three values are all tail: 0xccccc_bbbbb_aaaaa in 8 bytes, 4 bits unused.
    assert pack(np.array([0xAAAAA, 0xBBBBB, 0xCCCCC], dtype=np.uint32), 20).hex() == "aaaababbbbcccc0c"
    assert pack(np.array([1, 0, 1, 1], dtype=np.uint8), 1).hex() == "0d"


@pytest.mark.parametrize("bits", [16, 20])
def test_data_may_be_any_buffer_at_any_address(bits: int) -> None:
    values = some_values(1003, bits)
    packed = bytes(pack(values, bits))
    for data in (bytearray(packed), memoryview(packed), memoryview(b"\x00" + packed)[1:]):
        assert np.array_equal(unpack(data, 1003, bits), values)
        total = values.copy()
        add_packed(total, data, bits)
        assert np.array_equal(total, values * values.dtype.type(2) & values.dtype.type(2**bits - 1))


@pytest.mark.parametrize("bits", [16, 20])
def test_what_is_unpacked_is_a_copy(bits: int) -> None:
    data = bytearray(pack(some_values(100, bits), bits))
    unpacked = unpack(data, 100, bits)
    before = unpacked.copy()
    data[:] = bytes(len(data))
    assert np.array_equal(unpacked, before)
    unpacked += 1


@pytest.mark.parametrize("bits", [16, 20])
def test_values_need_not_be_contiguous(bits: int) -> None:
    values = some_values(2001, bits)
    assert pack(values[::2], bits) == pack(values[::2].copy(), bits)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.usefixtures("run_bytes")
def test_packed_vectors_add_up_modulo_2_to_the_bits(bits: int) -> None:
    for dim in DIMS:
        vectors = [some_values(dim, bits, seed) for seed in range(4)]
        vectors.append(np.full(dim, 2**bits - 1, dtype=word_dtype(bits)))
        total = np.zeros(dim, dtype=word_dtype(bits))
        for vector in vectors:
            add_packed(total, pack(vector, bits), bits)
        assert total.tolist() == [
            sum(column) % 2**bits for column in zip(*(vector.tolist() for vector in vectors), strict=True)
        ]


@given(bits=st.integers(1, 62), dim=st.integers(0, 100), data=st.data())
@settings(steady, max_examples=50)
def test_a_sum_need_not_be_reduced_before(bits: int, dim: int, data: st.DataObject) -> None:
    top = 2 ** (8 * word_dtype(bits).itemsize) - 1
    start = data.draw(st.lists(st.integers(0, top), min_size=dim, max_size=dim))
    total = np.array(start, dtype=word_dtype(bits))
    vector = some_values(dim, bits)
    add_packed(total, pack(vector, bits), bits)
    assert total.tolist() == [(a + b) % 2**bits for a, b in zip(start, vector.tolist(), strict=True)]


def refused(data: bytes, dim: int, bits: int, message: str) -> None:
    """Both readers refuse, and the sum stays as it was."""
    with pytest.raises(ValueError, match=message):
        unpack(data, dim, bits)
    total = some_values(dim, bits, seed=9)
    before = total.copy()
    with pytest.raises(ValueError, match=message):
        add_packed(total, data, bits)
    assert np.array_equal(total, before)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_unused_bits_must_be_zero(bits: int) -> None:
    for dim in range(1, 70):
        packed = bytes(pack(some_values(dim, bits), bits))
        unused = -dim * bits % 8
        for bit in range(8 - unused, 8):
            refused(packed[:-1] + bytes([packed[-1] | 1 << bit]), dim, bits, "unused bits")


@pytest.mark.parametrize("bits", [1, 3, 8, 16, 20, 32, 62])
@pytest.mark.parametrize("dim", [0, 1, 7, 100])
def test_wrong_lengths_are_refused(bits: int, dim: int) -> None:
    packed = bytes(pack(some_values(dim, bits), bits))
    refused(packed + b"\x00", dim, bits, "bytes, not")
    refused(packed * 2 + b"\x00", dim, bits, "bytes, not")
    if packed:
        refused(packed[:-1], dim, bits, "bytes, not")
        refused(b"", dim, bits, "bytes, not")


@pytest.mark.parametrize("bits", [bits for bits in ALL_BITS if bits not in (8, 16, 32)])
def test_values_of_too_many_bits_are_refused(bits: int) -> None:
    for dim in (1, 64, 200):
        for place in {0, dim // 2, dim - 1}:
            values = some_values(dim, bits)
            values[place] = 2**bits  # it would spill into a neighbour
            with pytest.raises(ValueError, match="does not fit"):
                pack(values, bits)


def test_other_words_are_refused() -> None:
    for wrong in (np.zeros(3, dtype=np.uint64), np.zeros(3, dtype=np.int32), np.zeros(3, dtype=np.float64)):
        with pytest.raises(ValueError, match="words of type"):
            pack(wrong, 20)
        with pytest.raises(ValueError, match="words of type"):
            add_packed(wrong, bytes(8), 20)
    with pytest.raises(ValueError, match="one axis"):
        pack(np.zeros((2, 2), dtype=np.uint32), 20)
    with pytest.raises(ValueError, match="contiguous"):
        add_packed(np.zeros(6, dtype=np.uint32)[::2], bytes(8), 20)
    frozen = np.zeros(3, dtype=np.uint32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        add_packed(frozen, bytes(8), 20)


@pytest.mark.parametrize("bits", [-3, 0, 63, 64])
def test_other_widths_are_refused(bits: int) -> None:
    for call in (
        lambda: packed_size(3, bits),
        lambda: pack(np.zeros(3, dtype=np.uint64), bits),
        lambda: unpack(bytes(24), 3, bits),
        lambda: add_packed(np.zeros(3, dtype=np.uint64), bytes(24), bits),
    ):
        with pytest.raises(ValueError, match="between 1 and 62"):
            call()


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 values"):
        unpack(b"", -1, 20)
