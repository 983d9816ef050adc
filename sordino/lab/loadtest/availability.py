"""Who is there at all: participants that come and go by a model or by a trace, in seconds since the test began.

The model: each one is online and offline in turn, for times with a Weibull law, which fits measured sessions of
computers that people share better than an exponential one (a shape below 1: many short stays, a few long ones). The
first state is drawn with the share of time that it takes in the long run.

A trace is a CSV file with the columns participant, from_s, to_s, or JSON lines with these names: from when to when a
participant (0 for the first on the roster) is online. Whoever isn't named is always there.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from runtime.failure import ExitCode, Failure
from sordino.lab.loadtest.faults import Fault

_LEAST_S: Final = 0.5  # of a stay or an absence: a shorter one is over before the handshake is
_LONG: Final = math.inf


@dataclass(frozen=True, kw_only=True)
class Availability(Fault):
    """When participants are there.

    Attributes:
        online_s, offline_s: means of the Weibull law.
        shape: of it, for both; 1 is exponential.
        trace: a file in the place of the model.
    """

    option: ClassVar[str] = "availability"
    online_s: float = 0.0
    offline_s: float = 0.0
    shape: float = 0.7
    trace: str = ""

    def check(self) -> None:
        super().check()
        if self.trace:
            if self.online_s or self.offline_s:
                raise Failure(ExitCode.INPUT, "availability: a trace or a model (online_s, offline_s), not both.")
            read_trace(Path(self.trace))
        elif not (self.online_s > 0 and self.offline_s > 0 and 0.1 <= self.shape <= 20):
            raise Failure(
                ExitCode.INPUT,
                "availability: give online_s and offline_s above 0 (and shape from 0.1 to 20), or a trace.",
            )

    def away_share(self, clients: int) -> float:
        """Share of participants that are away on average, in [0, 1]; of a trace at its worst moment."""
        if not self.trace:
            return self.offline_s / (self.online_s + self.offline_s)
        trace = read_trace(Path(self.trace))
        moments = {0.0, *(end for stays in trace.values() for _, end in stays if math.isfinite(end))}
        away = max(sum(not _within(stays, at) for stays in trace.values()) for at in moments)
        return min(1.0, away / clients)


Stay = tuple[float, float]


class Presence:
    """When each participant is online; the same in every process."""

    def __init__(self, availability: Availability | None, seed: int) -> None:
        self._availability, self._seed = availability, seed
        self._trace = read_trace(Path(availability.trace)) if availability is not None and availability.trace else {}
        self._known: dict[int, tuple[list[Stay], Iterator[Stay]]] = {}

    def stays(self, who: int) -> Iterator[Stay]:
        """(from, to) in seconds since the beginning, ascending; the last one may be without an end."""
        availability = self._availability
        if availability is None or (availability.trace and who not in self._trace):
            return iter([(0.0, _LONG)])
        if availability.trace:
            return iter(self._trace[who])
        return self._drawn(availability, who)

    def online(self, who: int, at_s: float, before_s: float = 0.0) -> bool:
        """Whether a participant is there at a moment, and was all the seconds before it that are asked about."""
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
    """Participant -> its stays.

    Raises:
        Failure: the file can't be read, or a line says nothing that can be used; names the line.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(ExitCode.INPUT, f"availability: the trace {path} can't be read: {error}.") from None
    found: dict[int, list[Stay]] = {}
    is_json = text.lstrip().startswith("{")
    rows = _json_lines(path, text) if is_json else enumerate(csv.DictReader(text.splitlines()), 2)
    for number, row in rows:
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
            raise Failure(ExitCode.INPUT, f"availability: the trace {path} has participant {who} there twice at once.")
    if not found:
        raise Failure(ExitCode.INPUT, f"availability: the trace {path} names nobody.")
    return found


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError:
                raise _bad(path, number, "is no JSON") from None
            if not isinstance(row, dict):
                raise _bad(path, number, "is no JSON object")
            yield number, row


def _bad(path: Path, number: int, why: str) -> Failure:
    return Failure(ExitCode.INPUT, f"availability: line {number} of the trace {path} {why}.")


def _within(stays: list[Stay], at_s: float) -> bool:
    return any(begin <= at_s < end for begin, end in stays)
