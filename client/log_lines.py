"""What a participant's owner reads on a terminal while she takes part: the client's log as plain sentences.

Elsewhere the log is JSON, with every field.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from runtime.plurals import counted

_LEFT_OUT: Final = frozenset({"level", "timestamp", "event", "exc_info"})


def join_line(logger: object, name: str, message: MutableMapping[str, Any]) -> str:
    """``14:52:07  round 3: 10 of 10 here in the sum of 95; epsilon 2.31 of at most 8``; a processor of structlog."""
    said = str(message.get("event", ""))
    told = {"round over": _round, "study accepted": _study}.get(said, _other)(message)
    level = str(message.get("level", "info"))
    line = told if level in ("info", "debug") else f"{level}: {told}"
    # Some of it comes from the other side: nothing in it begins a line or steers a terminal.
    return f"{message.get('timestamp', '')}  " + "".join(one if one.isprintable() else " " for one in line)


def _round(message: MutableMapping[str, Any]) -> str:
    attempt = f", attempt {message['attempt']}" if "attempt" in message else ""
    if "sum_of" in message:
        end = f"{message['in_the_sum']} in the sum of {message['sum_of']}"
    else:
        end = "nobody here in a sum" + (f" ({message['reason']})" if message.get("reason") else "")
    spent = f"; epsilon {message['epsilon']:.3f} of at most {message['max_epsilon']:g}" if "epsilon" in message else ""
    return f"round {message['round']}{attempt}: {end}{spent}"


def _study(message: MutableMapping[str, Any]) -> str:
    return (
        f"study {message['study']} accepted: {counted(message['participants'], 'participant')}, "
        f"{counted(message['rounds'], 'round')}, "
        f"epsilon at most {message['epsilon']:g} at delta {message['delta']:g} ({message['mechanism']}, "
        f"{message['adjacency']}, if at most {message['A']} collude; trusts {message['trusts']}); "
        f"study_sha256 {message['study_sha256']}, task_sha256 {message['task_sha256']}"
    )


def _other(message: MutableMapping[str, Any]) -> str:
    more = ", ".join(f"{key}: {value}" for key, value in message.items() if key not in _LEFT_OUT)
    return str(message.get("event", "")) + (f" ({more})" if more else "")
