"""Masks: AES-128 keystreams added to vectors of words modulo 2^B ([BIK+17] section 4, the PRG).

A mask is the AES-128 counter-mode keystream of a 16-byte key with an all-zero 96-bit nonce and a 32-bit big-endian
block counter that starts at 2, AES_key(0^96 || 2) || AES_key(0^96 || 3) || ..., read as little-endian words. A word is
the smallest of 8, 16, 32 and 64 bits that holds B bits. Its B low bits are the mask modulo 2^B: uniform, as 2^B divides
the word's range.

Every key makes exactly one stream; a key used for a second vector would reveal the difference of the two.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
Keystream: TypeAlias = Literal["gcm", "ctr"]

MAX_BITS: Final = 62
KEY_BYTES: Final = 16

# The counter has 32 bits and starts at 2, so that GCM, which keeps block 1 for its tag, makes the same bytes.
# After 2^32 - 2 blocks it would come round to values already used (GCM) or carry into the nonce (CTR).
MAX_BLOCKS: Final = 2**32 - 2

# A slice of the vector, the keystream and the zeros it is made from (256 KiB each) fit a level-2 cache of 1 MiB.
# Half of it costs 5-10 %, and putting the masks outside costs a third on long vectors.
CHUNK_BYTES: Final = 1 << 18

# Each open stream holds about 400 bytes; a coordinator may have tens of thousands of masks to remove.
_STREAMS_AT_ONCE: Final = 4096

_BLOCK: Final = 16
_ZEROS: Final = bytes(CHUNK_BYTES)
_WHOLE_BYTES: Final = 1 << 19  # a vector and a mask of this size fit a level-2 cache
_WHOLE_ZEROS: Final = bytes(_WHOLE_BYTES)
_NONCE: Final = bytes(12)
_MODES: Final[dict[Keystream, Any]] = {"gcm": modes.GCM(bytes(12)), "ctr": modes.CTR(bytes(15) + b"\x02")}


@cache
def word_dtype(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The word of a vector modulo 2^bits: the smallest that holds it of ``<u1``, ``<u2``, ``<u4`` and ``<u8``.

    Raises ValueError: ``bits`` lies outside 1..62.
    """
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must lie between 1 and {MAX_BITS}, not {bits}")
    size = next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
    return np.dtype(f"<u{size}")


def reduce_words(words: Words, bits: int) -> None:
    """Reduce every word modulo 2^bits, in place.

    Args:
        words: any shape, writable, of ``word_dtype(bits)``.

    Raises:
        ValueError: ``bits`` lies outside 1..62, or the words have another type.
    """
    dtype = checked_dtype(words, bits)
    if bits < 8 * dtype.itemsize:
        np.bitwise_and(words, dtype.type((1 << bits) - 1), out=words)


def checked_dtype(words: NDArray[Any], bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """`word_dtype`, if these words have it; else ValueError."""
    dtype = word_dtype(bits)
    if words.dtype != dtype:
        raise ValueError(f"{bits} bits need words of type {dtype}, not {words.dtype}")
    return dtype


def check_stream_length(dim: int, bits: int) -> None:
    """Refuse a vector that is too long for one keystream.

    Raises ValueError: ``dim`` words need more than 2^32 - 2 blocks of 16 bytes, or ``bits`` lies outside 1..62.
    """
    blocks = -(-dim * word_dtype(bits).itemsize // _BLOCK)
    if blocks > MAX_BLOCKS:
        raise ValueError(f"a mask of {dim} words needs {blocks} blocks; one key makes at most {MAX_BLOCKS}")


def apply_masks(accumulator: Words, masks: Sequence[tuple[bytes, int]], bits: int) -> None:
    """Add or subtract masks, in place, and reduce modulo 2^bits.

    The outer loop runs over chunks of the vector, so that a chunk stays in the processor's cache; each stream runs on
    from chunk to chunk. numpy and OpenSSL both release the interpreter lock.

    Args:
        accumulator: words, shape (d,), contiguous and writable, of ``word_dtype(bits)``; need not be reduced.
        masks: pairs (key of 16 bytes, +1 to add or -1 to subtract the mask of that key).

    Raises:
        ValueError: an argument has the wrong type, length, sign or range; the accumulator is then unchanged.
    """
    checked_dtype(accumulator, bits)
    if accumulator.ndim != 1 or not accumulator.flags.c_contiguous or not accumulator.flags.writeable:
        raise ValueError("the accumulator must be one contiguous, writable vector")
    check_stream_length(accumulator.size, bits)
    for key, sign in masks:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a mask key has {KEY_BYTES} bytes, not {len(key)}")
        if sign not in (1, -1):
            raise ValueError(f"a mask is added (+1) or subtracted (-1), not {sign}")

    for first in range(0, len(masks), _STREAMS_AT_ONCE):
        _apply(accumulator, masks[first : first + _STREAMS_AT_ONCE])
    reduce_words(accumulator, bits)


def _apply(accumulator: Words, masks: Sequence[tuple[bytes, int]]) -> None:
    """Run all streams over all chunks, modulo 2^word."""
    variant = choose_keystream()
    if variant == "gcm" and accumulator.nbytes <= _WHOLE_BYTES:
        _apply_whole(accumulator, masks)
        return
    streams: list[tuple[CipherContext, np.ufunc]] = [
        (_open_stream(key, variant), np.add if sign == 1 else np.subtract) for key, sign in masks
    ]
    # update_into asks for room for one block more than it writes.
    scratch = np.empty(min(CHUNK_BYTES, accumulator.nbytes) + _BLOCK, dtype=np.uint8)
    for chunk in _chunks(accumulator):
        zeros = memoryview(_ZEROS)[: chunk.nbytes]
        words = scratch[: chunk.nbytes].view(chunk.dtype)
        for stream, operation in streams:
            stream.update_into(zeros, scratch.data)
            operation(chunk, words, out=chunk)


def _apply_whole(accumulator: Words, masks: Sequence[tuple[bytes, int]]) -> None:
    """The same for a vector that fits the cache: there the unused tag costs less than opening a stream."""
    zeros = memoryview(_WHOLE_ZEROS)[: accumulator.nbytes]
    scratch = np.empty(accumulator.nbytes + _BLOCK, dtype=np.uint8)  # with room for the tag
    words = scratch[: accumulator.nbytes].view(accumulator.dtype)
    for key, sign in masks:
        AESGCM(key).encrypt_into(_NONCE, zeros, None, scratch.data)
        (np.add if sign == 1 else np.subtract)(accumulator, words, out=accumulator)


def _chunks(vector: Words) -> Iterator[Words]:
    step = CHUNK_BYTES // vector.itemsize
    return (vector[start : start + step] for start in range(0, vector.size, step))


def _open_stream(key: bytes, variant: Keystream) -> CipherContext:
    """Encrypting zeros yields the keystream. GCM is counter mode plus a tag, which is never requested."""
    return Cipher(algorithms.AES(key), _MODES[variant]).encryptor()


_chosen: Keystream | None = None  # affects speed only: a process-wide value changes no result


def choose_keystream(clock: Callable[[], float] | None = None) -> Keystream:
    """Choose the faster of the two ways to make the keystream, once for this process.

    Both make the same bytes, so peers need not agree. Where OpenSSL has wide AES instructions for it, GCM is twice as
    fast as CTR; elsewhere CTR can win, since it computes no tag. Until a process passes a clock, GCM is used.

    Args:
        clock: any monotonic clock, such as ``time.perf_counter``; None only returns the current choice. The first call
            with a clock takes about a millisecond; later calls keep its answer.
    """
    global _chosen
    if _chosen is None and clock is not None:
        _chosen = "gcm" if _shortest_run("gcm", clock) <= _shortest_run("ctr", clock) else "ctr"
    return _chosen or "gcm"


def _shortest_run(variant: Keystream, clock: Callable[[], float]) -> float:
    """Return the shortest of some runs over one chunk, in the clock's unit."""
    scratch = bytearray(CHUNK_BYTES + _BLOCK)
    stream = _open_stream(bytes(KEY_BYTES), variant)
    times = []
    for _ in range(8):
        start = clock()
        stream.update_into(_ZEROS, scratch)
        times.append(clock() - start)
    return min(times)
