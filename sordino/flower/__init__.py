"""Flower apps with secure aggregation and accounted, distributed noise (docs/flower.md).

Flower's Message API carries the messages of a session; identities, policy, ledgers and transcripts are those of any
study. One line changes on each side: ``ClientApp(mods=[secure_aggregation_mod])`` and
``SecureAggregation(FedAvg(), study=FOLDER)``.
"""

try:
    import flwr.serverapp.strategy  # noqa: F401
except ImportError as error:
    raise ImportError("sordino.flower needs flwr 1.41 or later: pip install 'sordino[flower,server]'") from error

from sordino.flower.mod import secure_aggregation_mod
from sordino.flower.strategy import SecureAggregation

__all__ = ["SecureAggregation", "secure_aggregation_mod"]
