"""Masks divided among threads give the same words as one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from secagg import masking
from secagg.parallel import Parallel


@pytest.mark.parametrize("bits", [16, 20, 33])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_same_words(bits: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_WORTH_A_THREAD", 1024)
    masks = [(bytes([number] * 16), 1 if number % 3 else -1) for number in range(11)]
    begun = np.arange(5000).astype(masking.word_dtype(bits))
    alone, divided = begun.copy(), begun.copy()
    masking.apply_masks(alone, masks, bits)
    calls = []
    with ThreadPoolExecutor(width) as pool:

        def count(function, shares):  # type: ignore[no-untyped-def]
            shares = list(shares)
            calls.append(len(shares))
            return pool.map(function, shares)

        masking.apply_masks(divided, masks, bits, Parallel(count, width))
    assert np.array_equal(alone, divided)
    assert calls == ([width] if width > 1 else [])


def test_short_work_stays_in_one_thread() -> None:
    def never(*_):  # type: ignore[no-untyped-def]
        raise AssertionError("divided")

    words = np.zeros(1000, dtype=masking.word_dtype(20))
    masking.apply_masks(words, [(bytes(16), 1)] * 3, 20, Parallel(never, 4))
    assert words.any()


def test_a_failure_in_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_WORTH_A_THREAD", 1)

    def broken(*_):  # type: ignore[no-untyped-def]
        raise MemoryError

    monkeypatch.setattr(masking, "_apply", broken)
    words = np.zeros(1000, dtype=masking.word_dtype(20))
    with ThreadPoolExecutor(2) as pool, pytest.raises(MemoryError):
        masking.apply_masks(words, [(bytes(16), 1)] * 4, 20, Parallel(pool.map, 2))
