"""Lines of JSON that a verb prints while it runs, with the three keys that the lines of the logs have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def json_line(event: str, body: Mapping[str, Any], *, level: str = "info", at: float | None = None) -> str:
    """One object: ``timestamp`` (ISO 8601, UTC), ``level`` and ``event`` first, then the body.

    Args:
        at: seconds since 1970; now where it is left out.
    """
    when = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    head = {"timestamp": when.isoformat(timespec="microseconds").replace("+00:00", "Z"), "level": level, "event": event}
    return json.dumps(head | dict(body) | head)
