"""SQLite files from outside: read beside their writer, and changed as anybody with the file could."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def query(path: Path, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(sql, values).fetchall()


def execute(path: Path, *statements: str | tuple[str, Sequence[Any]]) -> None:
    """All of them, or none."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for one in statements:
            connection.execute(*((one,) if isinstance(one, str) else one))
