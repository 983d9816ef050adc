"""The client's log: plain sentences on a terminal, JSON elsewhere, one line per attempt, and a service's status.

Where systemd reads standard error, each line of JSON begins with its level (sd-daemon(3)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from runtime.service_notify import Notifier
from runtime.text import counted

_LEFT_OUT: Final = frozenset({"level", "timestamp", "event", "exc_info"})


def join_line(logger: object, name: str, message: MutableMapping[str, Any]) -> str:
    """``14:52:07  round 3: 10 of 10 here in the sum of 95; epsilon 2.31 of at most 8``; a processor of structlog."""
    event = str(message.get("event", ""))
    text = {"round over": _round, "study accepted": _study}.get(event, _other)(message)
    level = str(message.get("level", "info"))
    line = text if level in ("info", "debug") else f"{level}: {text}"
    # Some text comes from the coordinator: it must not begin a line or control a terminal.
    return f"{message.get('timestamp', '')}  " + "".join(one if one.isprintable() else " " for one in line)


def _round(message: MutableMapping[str, Any]) -> str:
    attempt = f", attempt {message['attempt']}" if "attempt" in message else ""
    ends = []
    if "sum_of" in message:
        ends.append(f"{message['in_the_sum']} in the sum of {message['sum_of']}")
    if "outcome_unknown" in message:
        ends.append(f"outcome unknown of {message['outcome_unknown']} that uploaded")
    end = ", ".join(ends) or "no participant here in a sum"
    end += f" ({message['reason']})" if message.get("reason") else ""
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


@dataclass
class _Attempt:
    begun: set[bytes] = field(default_factory=set)
    over: set[bytes] = field(default_factory=set)
    uploaded: set[bytes] = field(default_factory=set)  # and not left out
    summed: set[bytes] = field(default_factory=set)
    survivors: int = 0
    reason: str = ""


class RoundLines:
    """Collects the results of a process's participants; logs one line when an attempt is over for all that began it.

    ``spent`` returns what to add about the budget, by name.
    """

    def __init__(self, spent: Callable[[], dict[str, Any]]) -> None:
        self._spent = spent
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._log = structlog.get_logger()

    def begun(self, number: tuple[int, int], who: bytes) -> None:
        """A participant begins an attempt (round, attempt)."""
        for earlier in [one for one in self._attempts if one < number]:
            self.over(earlier, who, "the coordinator reported no end")
        self._attempts.setdefault(number, _Attempt()).begun.add(who)

    def uploads(self, number: tuple[int, int], who: bytes) -> None:
        """From here on a sum may hold this participant's input."""
        if (attempt := self._attempts.get(number)) is not None:
            attempt.uploaded.add(who)

    def in_sum(self, number: tuple[int, int], who: bytes, survivors: int) -> None:
        """A sum of this many participants, including this one, is being opened."""
        if (attempt := self._attempts.get(number)) is not None:
            attempt.summed.add(who)
            attempt.survivors = survivors

    def over(self, number: tuple[int, int], who: bytes, reason: str = "", *, left_out: bool = False) -> None:
        """The attempt is over for a participant; the reason matters unless a sum holds its input.

        ``left_out``: it has heard that no sum holds it.
        """
        attempt = self._attempts.get(number)
        if attempt is None or who not in attempt.begun:
            return
        attempt.over.add(who)
        if left_out:
            attempt.uploaded.discard(who)
        attempt.reason = attempt.reason or reason
        if attempt.over >= attempt.begun:
            self._say(number)

    def gone(self, who: bytes) -> None:
        """A participant's session has ended, and so have all its attempts."""
        for number in list(self._attempts):
            self.over(number, who, "the connection ended")

    def _say(self, number: tuple[int, int]) -> None:
        attempt = self._attempts.pop(number)
        fields: dict[str, Any] = {"round": number[0]}
        if number[1] > 1:
            fields["attempt"] = number[1]
        unknown, here = attempt.uploaded - attempt.summed, f"of {len(attempt.begun)} here"
        if attempt.summed or not unknown:
            fields["in_the_sum"] = f"{len(attempt.summed)} {here}"
        if unknown:
            fields["outcome_unknown"] = f"{len(unknown)} {here}"
        if attempt.summed:
            fields["sum_of"] = attempt.survivors
        elif attempt.reason:
            fields["reason"] = attempt.reason
        self._log.info("round over", **fields, **self._spent())


_PRIORITY: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # of syslog(3)


def use_service_lines(service: Notifier, environment: Mapping[str, str] | None = None) -> None:
    """Add both to the log of `runtime.logs.configure_logs`; with JOURNAL_STREAM, standard error is the journal."""
    processors = list(structlog.get_config()["processors"])
    renderer = processors[-1]
    in_journal = "JOURNAL_STREAM" in (os.environ if environment is None else environment)

    def line(logger: Any, name: str, message: MutableMapping[str, Any]) -> Any:
        if message.get("level") != "debug":
            # As a sentence, without the time, which systemd shows beside it.
            service.status(join_line(logger, name, {**message, "timestamp": ""}).strip())
        level = _PRIORITY.get(str(message.get("level")), _PRIORITY["info"])
        rendered = renderer(logger, name, message)
        return f"<{level}>{rendered}" if in_journal and isinstance(rendered, str) else rendered

    structlog.configure(processors=[*processors[:-1], line])
