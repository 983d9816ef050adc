"""`sordino.secure_sum`, the protocol in one call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import secure_sum


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(np.int64, -(2**56), 2**56), (np.int8, -128, 127), (np.uint16, 0, 65535)]
)
def test_the_sum_of_those_that_stay(dtype: Any, low: int, high: int) -> None:
    vectors = np.random.default_rng().integers(low, high, (9, 30), dtype, endpoint=True)
    vectors[:, 0] = low  # the sum that needs all bits
    assert np.array_equal(secure_sum(list(vectors)), vectors.sum(axis=0, dtype=np.int64))
    staying = np.delete(vectors, [2, 8], axis=0)
    assert np.array_equal(secure_sum(list(vectors), drop=[2, 8]), staying.sum(axis=0, dtype=np.int64))


def test_zeros() -> None:
    assert secure_sum([[0, 0]] * 3).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("vectors", "drop", "error"),
    [
        ([[1]] * 2, [], "at least 3 vectors, not 2"),
        ([[1], [2], [3, 4]], [], "same length"),
        ([[]] * 3, [], "same length"),
        ([[1.0]] * 3, [], "scale and round first"),
        ([[1]] * 5, [1, 2], "drop names at most 1 of the places 0 to 4"),
        ([[1]] * 5, [5], "drop names at most 1 of the places 0 to 4"),
        ([[2**62]] * 5, [], "the sum needs 66 bits, and 62 is the most"),
    ],
)
def test_one_clear_error(vectors: Any, drop: list[int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        secure_sum(vectors, drop=drop)


def test_the_page_encodes_and_decodes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
    encoded, decoded = re.findall(r"```python\n(.*?)```", page, re.S)[-1].split("mean =")
    update = np.random.default_rng().normal(size=500)
    names: dict[str, Any] = {"context": bytes(32), "update": update, "survivors": 100}
    exec(encoded, names)
    words = (names["encoder"].encode(update, os.urandom).astype(np.int64) for _ in range(100))
    names["total"] = (sum(words) % (1 << 16)).astype(np.uint16)
    exec(f"mean ={decoded}", names)
    assert np.linalg.norm(names["mean"] - update / np.linalg.norm(update)) < 2 * names["plan"].noise_norm


def test_it_needs_neither_grpc_nor_protobuf_nor_torch() -> None:
    code = (
        "import sys, sordino; sordino.secure_sum([[1]] * 3)\n"
        "from sordino import Account, Encoder, Plan, SavedPhases, skellam\n"
        "print({'grpc', 'google', 'torch', 'pydantic'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
