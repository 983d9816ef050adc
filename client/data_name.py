"""The name of the data that a participant trains on, by which her ledger knows it again under another identity."""

from __future__ import annotations

import hashlib
import json

from client.settings import Data
from learning.datasets import resolve_dataset


def data_name(data: Data, part: int) -> str:
    """SHA-256 of the data set, how it is cut, and which part is hers; 64 hexadecimal digits.

    Equal for equal examples, as far as settings tell: parts of one cut are disjoint, and what another cut shares with
    them has another name. ``iid`` ignores alpha, so the name does.

    Raises:
        learning.datasets.DatasetError: an unknown data set.
    """
    alpha = float(data.alpha) if data.partition != "iid" else None
    cut = [resolve_dataset(data.dataset), data.partition, alpha, data.seed, data.parts, part]
    return hashlib.sha256(b"sordino/v1/data\x00" + json.dumps(cut, separators=(",", ":")).encode()).hexdigest()
