"""Secrets of a run, and a search for them that undoes spellings instead of listing them.

A text is turned back into bytes in every way that a log could have spelled them: as they are, hexadecimal in both cases
and with separators, base64 at each of its four places, Python's and protobuf's escapes (once and twice), lists and
arrays of numbers of one, two, four and eight bytes, one large number in either byte order, a join code. Any eight bytes
in a row of a secret, wherever they lie in it, are found.

Vectors of integers are found by two neighbours that a text shows side by side, vectors of floats by three, rounded as
numpy and others round; planted updates by one value, since nothing else has their magnitude and first digits.
"""

from __future__ import annotations

import base64
import binascii
import pickle
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WINDOW: Final = 8
SENTINEL: Final = 7.391
SENTINEL_EXPONENTS: Final = (-17, 17)
LEAST_INTEGER: Final = 10_000
"""Two neighbours as large as this are nobody's round numbers, ports or times."""

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|u00([0-9a-fA-F]{2})|([0-7]{3})|([nrtabfv\\'\"]))")
_SIMPLE = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(rf"(?:{_NUMBER})(?:[,;\s]+(?:{_NUMBER}))*")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def planted(shape: tuple[int, ...], exponent: int, seed: int) -> NDArray[np.float32]:
    """An update that nothing else looks like: 7.391... times a power of ten, with signs and last digits of its own."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], shape)
    return (signs * SENTINEL * (1 + 1e-4 * rng.random(shape)) * 10.0**exponent).astype(np.float32)


class Secrets:
    """By kind: bytes, vectors of integers, vectors of floats."""

    def __init__(self) -> None:
        self.data: dict[str, set[bytes]] = {}
        self.integers: dict[str, list[NDArray[np.int64]]] = {}
        self.floats: dict[str, list[NDArray[np.float64]]] = {}

    def note(self, kind: str, value: Any) -> Any:
        """Bytes, or an array of 16-bit symbols; returns the value."""
        data = value.astype("<u2").tobytes() if isinstance(value, np.ndarray) else bytes(value)
        if len(data) >= WINDOW:
            self.data.setdefault(kind, set()).add(data)
        return value

    def note_vector(self, kind: str, values: NDArray[Any]) -> NDArray[Any]:
        if values.dtype.kind == "f":
            self.floats.setdefault(kind, []).append(values.astype(np.float64).ravel())
        else:
            self.integers.setdefault(kind, []).append(values.astype(np.int64).ravel())
        return values

    def kinds(self) -> set[str]:
        return {*self.data, *self.integers, *self.floats}

    def save(self, path: Path) -> None:
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def load(cls, path: Path) -> Secrets:
        found = pickle.loads(path.read_bytes())
        assert isinstance(found, cls)
        return found


class Search:
    """Looks for the secrets of a run in texts."""

    def __init__(self, secrets: Secrets) -> None:
        self._kinds = sorted(secrets.data)
        windows, kinds = [], []
        for index, kind in enumerate(self._kinds):
            for secret in secrets.data[kind]:
                found = _windows(secret)
                windows.append(found)
                kinds.append(np.full(found.size, index))
        every = np.concatenate([np.zeros(0, np.uint64), *windows])
        self._windows, first = np.unique(every, return_index=True)
        self._kind_of = np.concatenate([np.zeros(0, int), *kinds])[first]
        self._low = np.zeros(1 << 24, bool)  # by the three low bytes: nearly every window of a text ends here
        self._low[self._windows & np.uint64(0xFFFFFF)] = True
        self._pairs: dict[tuple[int, int], str] = {}
        for kind, vectors in secrets.integers.items():
            for vector in vectors:
                values = vector.tolist()
                self._pairs |= {(a, b): kind for a, b in pairwise(values) if min(abs(a), abs(b)) >= LEAST_INTEGER}
        self._triples: dict[tuple[str, ...], str] = {}
        for kind, vectors_ in secrets.floats.items():
            for vector_ in vectors_:
                rounded = [_rounded(value) for value in vector_.tolist()]
                triples = zip(rounded, rounded[1:], rounded[2:], strict=False)
                self._triples |= {triple: kind for triple in triples if len(set(triple)) > 1}

    def kinds_in(self, told: str | bytes) -> set[str]:
        """Kinds of secrets of which something is told."""
        raw = told.encode("utf-8", "surrogateescape") if isinstance(told, str) else told
        found: set[str] = set()
        for blob in spelled_out(raw):
            for at in range(min(WINDOW, max(len(blob) - WINDOW + 1, 0))):
                view = np.frombuffer(blob, "<u8", count=(len(blob) - at) // WINDOW, offset=at)
                view = view[self._low[view & np.uint64(0xFFFFFF)]]
                hits = np.flatnonzero(np.isin(self._windows, view)) if view.size else ()
                found |= {self._kinds[self._kind_of[hit]] for hit in hits}
        for numbers in _runs(raw.decode("utf-8", "replace")):
            found |= set(self._in_numbers(numbers))
        return found

    def _in_numbers(self, texts: list[str]) -> Iterator[str]:
        values = [_value(text) for text in texts]
        for a, b in pairwise(values):
            if isinstance(a, int) and isinstance(b, int) and (a, b) in self._pairs:
                yield self._pairs[a, b]
        rounded = [
            _rounded(float(value)) if sum(map(str.isdigit, text)) >= 4 else ""
            for text, value in zip(texts, values, strict=True)
        ]
        for triple in zip(rounded, rounded[1:], rounded[2:], strict=False):
            if triple in self._triples:
                yield self._triples[triple]
        for value in values:
            if any(abs(abs(value) / 10.0**e - SENTINEL) < 0.002 for e in SENTINEL_EXPONENTS):
                yield "update"


def spelled_out(told: bytes) -> Iterator[bytes]:
    """The bytes that a text may stand for."""
    yield told
    once = _unescaped(told)
    yield once
    yield _unescaped(once)
    hexadecimal, encoded, numbers = [], [], []
    for match in re.finditer(rb"(?:[0-9a-fA-F]{2}[ :\n-]?|0x[0-9a-fA-F]{2},? ?){8,}", told):
        digits = re.sub(rb"0x|[^0-9a-fA-F]", b"", match[0])
        hexadecimal += [bytes.fromhex(digits[at : at + (len(digits) - at) // 2 * 2].decode()) for at in (0, 1)]
    for match in re.finditer(rb"[0-9a-fA-F]{16,}", told):
        digits = match[0]
        hexadecimal += [bytes.fromhex(digits[at : at + (len(digits) - at) // 2 * 2].decode()) for at in (0, 1)]
    yield b"\x00|\x00".join(hexadecimal)
    for match in re.finditer(rb"[A-Za-z0-9+/_-]{11,}", told):
        letters = match[0].translate(bytes.maketrans(b"-_", b"+/"))
        for at in range(4):
            part = letters[at : at + (len(letters) - at) // 4 * 4]
            # What is left over still holds one or two bytes.
            rest = letters[at + len(part) :]
            try:
                encoded.append(base64.b64decode(part + (rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b"")))
            except binascii.Error:
                encoded.append(base64.b64decode(part))
    yield b"\x00|\x00".join(encoded)
    for run in _runs(told.decode("utf-8", "replace")):
        values = [int(text) for text in run if text.lstrip("+-").isdigit()]
        for width in (1, 2, 4, 8):
            if len(values) * width >= WINDOW:
                held = [value & (256**width - 1) if abs(value) < 256**width else 0 for value in values]
                numbers.append(np.array(held, dtype=f"<u{width}").tobytes())
        for value in values:
            if value >= 256 ** (WINDOW - 1):
                length = (value.bit_length() + 7) // 8
                numbers += [value.to_bytes(length, order) for order in ("little", "big")]
    yield b"\x00|\x00".join(numbers)
    codes = []
    for match in re.finditer(rb"SORD2[-0-9A-Za-z]{20,}", told, re.IGNORECASE):
        letters_ = match[0].decode().upper()[5:].replace("-", "").translate(str.maketrans("OIL", "011"))
        number = 0
        for letter in letters_:
            number = number * 32 + max(0, _CROCKFORD.find(letter))
        codes += [(number >> shift).to_bytes(len(letters_), "big") for shift in range(8)]
    yield b"\x00|\x00".join(codes)


def _windows(data: bytes) -> NDArray[np.uint64]:
    """All runs of eight bytes of a secret, less those of few different bytes, which are anybody's."""
    if len(data) < WINDOW:
        return np.zeros(0, np.uint64)
    view = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), WINDOW)
    changes = (np.diff(np.sort(view, axis=1), axis=1) != 0).sum(axis=1)
    return np.ascontiguousarray(view[changes >= 4]).view("<u8").ravel()


def _unescaped(told: bytes) -> bytes:
    def plain(match: re.Match[bytes]) -> bytes:
        if match[1] or match[2]:
            return bytes([int(match[1] or match[2], 16)])
        if match[3]:
            return bytes([int(match[3], 8) & 255])
        return _SIMPLE.get(match[4], match[4])

    return _ESCAPE.sub(plain, told)


def _runs(told: str) -> Iterator[list[str]]:
    """Numbers that stand side by side, with nothing but blanks, commas or line ends between them."""
    for match in _NUMBERS.finditer(told):
        if len(match[0]) < 5:  # no run of values, no large one, none with the first digits of an update
            continue
        yield re.split(r"[,;\s]+", match[0])


def _value(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _rounded(value: float) -> str:
    return f"{value:.3e}"


def leaks(search: Search, told: Iterable[tuple[str, str | bytes]]) -> dict[str, set[str]]:
    """For each named text the kinds that it tells of; names without any are left out."""
    return {name: kinds for name, text in told if (kinds := search.kinds_in(text))}
