"""Flower apps with secure aggregation and accounted, distributed noise (docs/flower.md).

Flower's Message API carries the messages of a session; identities, policy, ledgers and transcripts are those of any
study. One line changes on each side: ``ClientApp(mods=[secure_aggregation_mod])`` and
``SecureAggregation(FedAvg(), study=FOLDER)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import learning.tasks.flower_arrays  # noqa: F401  # says it where Flower is missing, or too old

if TYPE_CHECKING:
    from sordino.flower.mod import secure_aggregation_mod as secure_aggregation_mod
    from sordino.flower.strategy import SecureAggregation as SecureAggregation
else:  # a node loads nothing of the server

    def __getattr__(name):
        if name == "secure_aggregation_mod":
            from sordino.flower.mod import secure_aggregation_mod

            return secure_aggregation_mod
        if name == "SecureAggregation":
            from sordino.flower.strategy import SecureAggregation

            return SecureAggregation
        raise AttributeError(f"module 'sordino.flower' has no attribute {name!r}")
