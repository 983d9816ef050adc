"""Shared by all processes, whatever their role: settings and key files, durable writes, logs, exit codes."""

from typing import Final

VERSION: Final = "0.1.0"  # of the product: its only home, which pyproject.toml reads
