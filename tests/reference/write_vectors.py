"""Write the test vectors, the same in every run: ``python -m tests.reference.write_vectors [FOLDER]``.

The default is tests/vectors; docs/test_vectors.md describes the files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reference import (
    mask_and_share_vectors as masks_and_shares,
    primitive_vectors as primitives,
    ring_vectors as rings,
    round_vectors as rounds,
)
from tests.reference.coordinator_refusals import coordinator_refusals, malformed_messages
from tests.reference.noise_vectors import noise_rounds
from tests.reference.participant_refusals import participant_refusals
from tests.reference.ring_refusals import ring_refusals

FORMAT = "sordino-test-vectors-1"
LINE = 240  # characters: a hash of 32 bytes has 64
FOLDER = Path(__file__).resolve().parents[1] / "vectors"

FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "hashing.json": primitives.hashing_vectors,
    "contexts.json": primitives.context_vectors,
    "keys.json": primitives.key_vectors,
    "masks.json": masks_and_shares.mask_vectors,
    "packing.json": masks_and_shares.packing_vectors,
    "shamir.json": masks_and_shares.shamir_vectors,
    "commitments.json": masks_and_shares.commitment_vectors,
    "sealed_shares.json": masks_and_shares.sealed_share_vectors,
    "rounds.json": rounds.round_vectors,
    "rounds_by_width.json": rounds.width_vectors,
    "graph.json": rings.graph_vectors,
    "ring_rounds.json": rings.ring_rounds,
    "hybrid_rounds.json": rings.hybrid_rounds,
    "noise_rounds.json": noise_rounds,
    "participant_refusals.json": participant_refusals,
    "coordinator_refusals.json": coordinator_refusals,
    "ring_refusals.json": ring_refusals,
    "malformed.json": malformed_messages,
}


def plain(value: Any) -> Any:
    """Bytes as hexadecimal digits, participants' numbers as keys of objects; everything else as it is."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def lines(value: Any, depth: int = 0) -> str:
    """JSON in which whatever fits stands on one line."""
    text = json.dumps(value, ensure_ascii=True)
    if len(text) + depth <= LINE or not isinstance(value, dict | list):
        return text
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {lines(one, depth + 1)}" for key, one in value.items()]
        begin, end = "{}"
    else:
        parts = [lines(one, depth + 1) for one in value]
        begin, end = "[]"
    inside = " " * (depth + 1)
    return f"{begin}\n{inside}" + f",\n{inside}".join(parts) + f"\n{' ' * depth}{end}"


def text_of(name: str) -> str:
    return lines({"format": FORMAT, **plain(FILES[name]())}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(text_of(name), encoding="utf-8")
        print(f"{folder / name}: {(folder / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
