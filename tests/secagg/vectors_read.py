"""The test vectors in tests/vectors/, read, and the two sides that hear what stands in them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from secagg import errors
from tests.reference.setting import Numbers, Setting
from tests.reference.sharing import Stream
from wire import codec

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
Case = dict[str, Any]
ERRORS: dict[str, type[Exception]] = {
    "InvalidArgument": ValueError,
    "InvalidParameters": errors.InvalidParameters,
    "InvalidKey": errors.InvalidKey,
    "Malformed": codec.MalformedMessage,
}
# Strings that are no bytes; every other string in a vector is.
TEXTS = {"name", "about", "format", "label", "study", "host", "vector", "kind", "error", "phase", "round"}
TEXTS |= {"graph", "adversary", "key_agreement"}
ROUNDS = ("rounds.json", "rounds_by_width.json", "ring_rounds.json", "hybrid_rounds.json", "noise_rounds.json")
NUMBERS = {"values", "masked", "mask", "input", "sum"}  # lists of decimal strings


def read(value: Any, name: str = "") -> Any:
    """A vector's JSON with its bytes as bytes."""
    if isinstance(value, dict):
        return {(int(key) if key.isdigit() else key): read(one, key) for key, one in value.items()}
    if isinstance(value, list):
        if name in NUMBERS:
            return [int(one) for one in value]
        return [read(one, name) for one in value]
    return bytes.fromhex(value) if isinstance(value, str) and name not in TEXTS else value


@cache
def vectors(name: str) -> Case:
    return read(json.loads((VECTORS / name).read_text(encoding="utf-8")))


def numbers_in(case: Case) -> Case:
    stated = {name: case[name] for name in Numbers.__dataclass_fields__ if name in case}
    return stated | ({"released": tuple(case["released"])} if "released" in case else {})


def setting_from(case: Case) -> Setting:
    numbers = Numbers(**numbers_in(case))
    roster = tuple((entry["identity"], entry["host"]) for entry in case["roster"])
    names = ("study", "roster_version", "round", "attempt", "study_digest", "model_digest")
    names += ("previous_roster", "newest")
    stated = case.get("sharing")
    sharing = (stated["degree"], stated["threshold"]) if stated else None
    return Setting(**{name: case[name] for name in names}, roster=roster, numbers=numbers, sharing=sharing)


def source(data: bytes) -> Any:
    return Stream(data).take
