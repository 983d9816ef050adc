"""Vectors of B-bit values as exactly ceil(d B / 8) bytes, in a planar order that numpy handles quickly.

The layout. Let w be the bits of the value's word (8, 16, 32 or 64: the smallest that holds B), and

    G = w / gcd(B, w)     values make a group, which fills
    W = B / gcd(B, w)     words exactly, as G B = W w;
    M = floor(d / G)      groups are whole.

*Groups.* Group j (0 <= j < M) holds the G values v_g = values[g M + j], 0 <= g < G: value i < G M thus lies in
plane i // M. The group is the integer sum_g v_g 2^(g B), of W w bits. Its word k, 0 <= k < W, is the bits k w to
(k + 1) w - 1 counted from the lowest; it is written little-endian as word k M + j of the output, that is, from byte
(k M + j) w / 8.

*Tail.* The r = d - G M < G values that are left, values[G M + i] for 0 <= i < r, are the integer
sum_i v_i 2^(i B), written little-endian in ceil(r B / 8) bytes after the groups. Its unused high bits, at most 7,
are zero.

Example: B = 20 has w = 32, G = 8, W = 5. With d = 1003, M = 125: 5 planes of 125 words make 2500 bytes, and a tail
of 3 values 8 more. For B = 8, 16 and 32 a vector is just its little-endian words.

Neighbours in a plane stand in neighbouring words at the same bit, so packing is a few shifts of contiguous runs;
the usual bit stream costs forty times as much in numpy. The order is public and hides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.masking import Words, checked_dtype, word_dtype

Buffer: TypeAlias = bytes | bytearray | memoryview

# How much of each plane one pass over all planes covers. Consecutive steps share a plane or a word, so three runs of
# this length should stay in a level-2 cache; shorter ones pay for more calls.
_RUN_BYTES: Final = 1 << 17
_TOO_LARGE: Final = "a value does not fit {} bits"


@dataclass(frozen=True)
class _Place:
    """Where one value of a group lies."""

    word: int  # the word its lowest bit is in
    shift: np.unsignedinteger[Any]  # the place of that bit in the word
    spill: np.unsignedinteger[Any] | None  # how many of its bits are in there, if the others are in the next word
    aligned: bool  # shift == 0
    exact: bool  # its highest bit is the word's highest


@dataclass(frozen=True)
class _Layout:
    """What a width B fixes, whatever the vector's length; the names are those of the module's text."""

    bits: int
    dtype: np.dtype[np.unsignedinteger[Any]]
    group: int  # G
    words: int  # W
    mask: np.unsignedinteger[Any]  # 2^B - 1
    places: tuple[_Place, ...]

    @property
    def plain(self) -> bool:
        return self.group == 1


@cache
def _layout(bits: int) -> _Layout:
    dtype = word_dtype(bits)
    width = 8 * dtype.itemsize
    common = gcd(bits, width)
    places = []
    for index in range(width // common):
        word, shift = divmod(index * bits, width)
        inside = width - shift
        places.append(
            _Place(
                word,
                dtype.type(shift),
                dtype.type(inside) if inside < bits else None,
                aligned=shift == 0,
                exact=inside == bits,
            )
        )
    mask = dtype.type((1 << bits) - 1)
    return _Layout(bits, dtype, width // common, bits // common, mask, tuple(places))


def packed_size(dim: int, bits: int) -> int:
    """Return the bytes of ``dim`` values of ``bits`` bits: ceil(dim * bits / 8).

    Raises ValueError: ``dim`` is negative, or ``bits`` lies outside 1..62.
    """
    word_dtype(bits)
    if dim < 0:
        raise ValueError(f"a vector cannot have {dim} values")
    return -(-dim * bits // 8)


def pack(values: Words, bits: int) -> memoryview:
    """Pack values, each below 2^bits, shape (d,), of ``word_dtype(bits)``, into ceil(d * bits / 8) fresh bytes.

    Raises ValueError: an argument has the wrong type, shape or range.
    """
    layout = _layout(bits)
    _check_words(values, layout)
    packed = np.empty(packed_size(values.size, bits), dtype=np.uint8)
    groups, rest = divmod(values.size, layout.group)
    inputs = values[: layout.group * groups].reshape(layout.group, groups)
    outputs = packed[: inputs.size * bits // 8].view(layout.dtype).reshape(layout.words, groups)
    if layout.plain:
        outputs[...] = inputs
        return packed.data

    for run, temporary in _runs(layout, groups):
        # Checked here, where the next step has them in the cache.
        if inputs[:, run].max() > layout.mask:
            raise ValueError(_TOO_LARGE.format(bits))
        for place, plane in zip(layout.places, inputs[:, run], strict=True):
            word = outputs[place.word, run]
            # Values come in the order of their bits, so one that starts a word, or spills into it, is the first there.
            if place.aligned:
                word[...] = plane
            else:
                np.left_shift(plane, place.shift, out=temporary)
                np.bitwise_or(word, temporary, out=word)
            if place.spill is not None:
                np.right_shift(plane, place.spill, out=outputs[place.word + 1, run])
    left = values[values.size - rest :].tolist()
    if max(left, default=0) > layout.mask:
        raise ValueError(_TOO_LARGE.format(bits))
    tail: int = sum(value << (index * bits) for index, value in enumerate(left))
    packed[outputs.nbytes :] = np.frombuffer(tail.to_bytes(packed_size(rest, bits), "little"), dtype=np.uint8)
    return packed.data


def unpack(data: Buffer, dim: int, bits: int) -> Words:
    """Unpack ``dim`` values that `pack` made: a fresh array, shape (dim,), of ``word_dtype(bits)``, each below 2^bits.

    Raises ValueError: the length is not that of ``dim`` values, an unused bit is set, or an argument is out of range.
    """
    layout = _layout(bits)
    groups, tail = _checked_parts(data, dim, layout)
    if layout.plain:
        plain: Words = groups[0].copy()
        return plain

    values: Words = np.empty(dim, dtype=layout.dtype)
    whole = dim - tail.size
    values[whole:] = tail
    outputs = values[:whole].reshape(layout.group, groups.shape[1])
    for run, temporary in _runs(layout, groups.shape[1]):
        for place, plane in zip(layout.places, outputs[:, run], strict=True):
            np.right_shift(groups[place.word, run], place.shift, out=plane)
            if place.spill is not None:
                np.left_shift(groups[place.word + 1, run], place.spill, out=temporary)
                np.bitwise_or(plane, temporary, out=plane)
            if not place.exact:
                np.bitwise_and(plane, layout.mask, out=plane)
    return values


def add_packed(accumulator: Words, data: Buffer, bits: int) -> None:
    """Add a packed vector to a sum, in place, modulo 2^bits; nothing of the vector's size is allocated.

    Args:
        accumulator: shape (d,), contiguous and writable, of ``word_dtype(bits)``; need not be reduced before, and
            is reduced after.
        data: ceil(d * bits / 8) bytes, as `pack` makes them.

    Raises:
        ValueError: as `unpack`, or the accumulator has the wrong type or shape; it is then unchanged.
    """
    layout = _layout(bits)
    _check_words(accumulator, layout)
    if not accumulator.flags.c_contiguous or not accumulator.flags.writeable:
        raise ValueError("the accumulator must be contiguous and writable")
    groups, tail = _checked_parts(data, accumulator.size, layout)
    if layout.plain:
        np.add(accumulator, groups[0], out=accumulator)
        return

    whole = accumulator.size - tail.size
    rest = accumulator[whole:]
    np.add(rest, tail, out=rest)
    np.bitwise_and(rest, layout.mask, out=rest)
    planes = accumulator[:whole].reshape(layout.group, groups.shape[1])
    for run, temporary in _runs(layout, groups.shape[1]):
        for place, plane in zip(layout.places, planes[:, run], strict=True):
            # What lies above a value in its word is added too: it is a multiple of 2^B and goes with the reduction.
            if place.aligned:
                np.add(plane, groups[place.word, run], out=plane)
            else:
                np.right_shift(groups[place.word, run], place.shift, out=temporary)
                np.add(plane, temporary, out=plane)
            if place.spill is not None:
                np.left_shift(groups[place.word + 1, run], place.spill, out=temporary)
                np.add(plane, temporary, out=plane)
            np.bitwise_and(plane, layout.mask, out=plane)


def _runs(layout: _Layout, groups: int) -> Iterator[tuple[slice, Words]]:
    """Cut the planes into runs short enough for the cache, each with a temporary plane of its length."""
    step = _RUN_BYTES // layout.dtype.itemsize
    temporary = np.empty(min(step, groups), dtype=layout.dtype)
    for start in range(0, groups, step):
        stop = min(start + step, groups)
        yield slice(start, stop), temporary[: stop - start]


def _check_words(values: NDArray[Any], layout: _Layout) -> None:
    checked_dtype(values, layout.bits)
    if values.ndim != 1:
        raise ValueError(f"a vector has one axis, not {values.ndim}")


def _checked_parts(data: Buffer, dim: int, layout: _Layout) -> tuple[Words, Words]:
    """Check length and unused bits; return the groups, shape (W, M), as a view of ``data``, and the tail's values."""
    size = packed_size(dim, layout.bits)
    view = memoryview(data).cast("B")
    if len(view) != size:
        raise ValueError(f"{dim} values of {layout.bits} bits are {size} bytes, not {len(view)}")
    count, rest = divmod(dim, layout.group)
    groups = np.frombuffer(view, dtype=layout.dtype, count=layout.words * count).reshape(layout.words, count)
    start = groups.nbytes
    tail = int.from_bytes(view[start:], "little")
    if tail >> (rest * layout.bits):
        raise ValueError("unused bits at the end of a packed vector must be zero")
    low = (1 << layout.bits) - 1
    values: NDArray[Any] = np.array([tail >> (index * layout.bits) & low for index in range(rest)], dtype=layout.dtype)
    return groups, values
