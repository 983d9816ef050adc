"""When participants are online: by a model or by a trace, in seconds since the load test began.

In the model each participant is online and offline in turn, for times with a Weibull distribution, which fits measured
sessions of volunteer computers better than an exponential one (a shape below 1: many short stays, a few long ones). The
first state is drawn with its share of the time in the long run.

A trace is a CSV file with the columns participant, from_s, to_s, or JSON lines with these names: the periods in which a
participant (0 for the first on the roster) is online. A participant that isn't named is always online.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from pydantic import model_validator

from runtime.failure import InputFailure
from runtime.settings_keys import key
from sordino.lab.loadtest.faults import Fault

_LEAST_S: Final = 0.5  # of a stay or an absence: a shorter one ends before the handshake does
Stay: TypeAlias = tuple[float, float]


class Availability(Fault):
    """Participants that go online and offline, in real time."""

    online_s: float = key(0.0, "mean time online", unit="s", ge=0)
    offline_s: float = key(0.0, "mean time offline", unit="s", ge=0)
    shape: float = key(0.7, "of the Weibull distribution of both; 1 is exponential", within=(0.1, 20))
    trace: str = key("", "a file in place of the model; in a scenario its path is relative to the scenario")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trace and (self.online_s or self.offline_s):
            raise ValueError("takes a trace or a model (online_s, offline_s), not both")
        if not self.trace and not (self.online_s and self.offline_s):
            raise ValueError("needs online_s and offline_s above 0, or a trace")
        return self

    def away_share(self, clients: int) -> float:
        """Share of participants that are offline on average, in [0, 1]; with a trace the largest at any time.

        Raises Failure: the trace can't be used.
        """
        if not self.trace:
            return self.offline_s / (self.online_s + self.offline_s)
        trace = read_trace(Path(self.trace))
        moments = {0.0, *(end for stays in trace.values() for _, end in stays if math.isfinite(end))}
        away = max(
            sum(all(not begin <= at < end for begin, end in stays) for stays in trace.values()) for at in moments
        )
        return min(1.0, away / clients)


class Presence:
    """When each participant is online; the same in every process."""

    def __init__(self, availability: Availability | None, seed: int) -> None:
        """Raises Failure: the trace can't be used."""
        self._availability, self._seed = availability, seed
        self._trace = read_trace(Path(availability.trace)) if availability is not None and availability.trace else {}
        self._known: dict[int, tuple[list[Stay], Iterator[Stay]]] = {}

    def stays(self, who: int) -> Iterator[Stay]:
        """Yield the online periods (from, to) in seconds since the beginning, ascending; the last may be open."""
        availability = self._availability
        if availability is None or (availability.trace and who not in self._trace):
            return iter([(0.0, math.inf)])
        if availability.trace:
            return iter(self._trace[who])
        return self._drawn(availability, who)

    def online(self, who: int, at_s: float, before_s: float = 0.0) -> bool:
        """Whether a participant is online at a moment, and was during the ``before_s`` before it."""
        known, more = self._known.setdefault(who, ([], self.stays(who)))
        while not known or known[-1][1] <= at_s:
            following = next(more, None)
            if following is None:
                break
            known.append(following)
        return any(begin <= max(0.0, at_s - before_s) and at_s < end for begin, end in known)

    def _drawn(self, availability: Availability, who: int) -> Iterator[Stay]:
        drawn = random.Random(f"sordino/v1/load test availability/{self._seed}/{who}")
        mean = math.gamma(1 + 1 / availability.shape)

        def seconds(of: float) -> float:
            return max(_LEAST_S, drawn.weibullvariate(of / mean, availability.shape))

        at_s = 0.0
        if drawn.random() < availability.offline_s / (availability.online_s + availability.offline_s):
            at_s = seconds(availability.offline_s)
        while True:
            until = at_s + seconds(availability.online_s)
            yield at_s, until
            at_s = until + seconds(availability.offline_s)


def read_trace(path: Path) -> dict[int, list[Stay]]:
    """Return each participant's online periods. Raises Failure: the file can't be read, or a line can't be used; names
    the line.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputFailure(f"availability: the trace {path} can't be read: {error}.") from None
    found: dict[int, list[Stay]] = {}
    is_json = text.lstrip().startswith("{")
    for number, row in _json_lines(path, text) if is_json else enumerate(csv.DictReader(text.splitlines()), 2):
        try:
            who, stay = int(row["participant"]), (float(row["from_s"]), float(row["to_s"]))
        except (KeyError, TypeError, ValueError):
            raise _bad(path, number, "needs participant, from_s and to_s, all numbers") from None
        if who < 0 or not 0 <= stay[0] < stay[1]:
            raise _bad(path, number, "needs a participant of 0 or more, and from_s below to_s")
        found.setdefault(who, []).append(stay)
    for who, stays in found.items():
        stays.sort()
        if any(later[0] < earlier[1] for earlier, later in itertools.pairwise(stays)):
            raise InputFailure(f"availability: two stays of participant {who} overlap in the trace {path}.")
    if not found:
        raise InputFailure(f"availability: the trace {path} names no participant.")
    return found


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise _bad(path, number, "is not a JSON object")
            yield number, row


def _bad(path: Path, number: int, why: str) -> InputFailure:
    return InputFailure(f"availability: line {number} of the trace {path} {why}.")
