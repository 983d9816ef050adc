"""The client's log as a system service's: each message a line for the journal, and the latest the service's status.

systemd takes the level from the front of a line (sd-daemon(3)), where standard error is the journal; the line itself
stays the JSON of any other log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

from client.log_lines import join_line
from client.service_notify import Notifier

_PRIORITY: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # of syslog(3)


def use_service_lines(service: Notifier, environment: Mapping[str, str] | None = None) -> None:
    """Add both to the log as `runtime.logs.configure_logs` has set it up.

    Args:
        environment: with JOURNAL_STREAM, where standard error is the journal; by default the process's own.
    """
    processors = list(structlog.get_config()["processors"])
    renderer = processors[-1]
    in_journal = "JOURNAL_STREAM" in (os.environ if environment is None else environment)

    def line(logger: Any, name: str, message: MutableMapping[str, Any]) -> Any:
        if message.get("level") != "debug":
            # As a person reads it, without the time, which systemd tells beside it.
            service.status(join_line(logger, name, {**message, "timestamp": ""}).strip())
        level = _PRIORITY.get(str(message.get("level")), _PRIORITY["info"])
        rendered = renderer(logger, name, message)
        return f"<{level}>{rendered}" if in_journal and isinstance(rendered, str) else rendered

    structlog.configure(processors=[*processors[:-1], line])
