"""The name of the data that a participant trains on, by which her ledger knows it again under another identity."""

from __future__ import annotations

import hashlib
import json

from client.settings import Data
from learning.data_names import BUILT_IN
from learning.datasets import dataset_identity, resolve_dataset


def data_name(data: Data, part: int) -> str:
    """SHA-256 of the data set, how it is cut, and which part is hers; 64 hexadecimal digits.

    Equal for equal examples, as far as settings tell: parts of one cut are disjoint, and what another cut shares with
    them has another name. ``iid`` ignores alpha, so the name does.

    Raises:
        learning.datasets.DatasetError: an unknown data set.
    """
    concrete = resolve_dataset(data.dataset)
    alpha = float(data.alpha) if data.partition == "dirichlet" else None
    # A set that was prepared, or lies in files, is known by its content: a name stands for another set elsewhere.
    known_by = concrete if concrete in BUILT_IN else dataset_identity(concrete)
    cut = [known_by, data.partition, alpha, data.seed, data.parts, part]
    return _digest([*cut, data.shards] if data.partition == "shards" else cut)


def user_data_name(identity: str, user: int) -> str:
    """Of all examples of one user, however many others take part and whichever of them were chosen.

    Args:
        identity: of the set (``learning.datasets.dataset_identity``).
        user: its number in the set.
    """
    return _digest([identity, "user", user])


def own_data_name(content_sha256: str, identity: bytes = b"") -> str:
    """Of a file of her own, by its examples, wherever it lies. A file that was changed has another name.

    Args:
        identity: her public key where another participant of the same host has a file of the same content.
    """
    return _digest(["own", content_sha256, *([identity.hex()] if identity else [])])


def no_data_name(identity: bytes) -> str:
    """Of a file without rows: hers alone. No example is in two such files, so what they tell doesn't add up; under one
    name it would, and only whoever has nothing would refuse, once all their charges together reach the budget.

    Args:
        identity: her public key, 32 bytes.
    """
    return _digest(["own", "no rows", identity.hex()])


def _digest(told: list[object]) -> str:
    return hashlib.sha256(b"sordino/v1/data\x00" + json.dumps(told, separators=(",", ":")).encode()).hexdigest()
