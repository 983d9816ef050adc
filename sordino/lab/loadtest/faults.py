"""What goes wrong in a load test on purpose, and for whom: descriptions, and pure functions of the seed.

Each fault is written as a table of a scenario file, or as ``name=value,name=value`` on the command line. Who it hits
follows from the seed, so client processes and their parent agree without talking to each other.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from runtime.failure import ExitCode, Failure
from secagg.messages import PHASES
from sordino.lab.loadtest.proxy import LinkConditions
from sordino.lab.loadtest.schedule import ANY, PHASE_NAMES, digest, dropped_count

BETWEEN_ROUNDS: Final = "between"
WAYS: Final[Mapping[str, str]] = {
    "unsigned-keys": "advertises keys that its identity hasn't signed",
    "wrong-lengths": "seals a share that is a byte short",
    "unsigned-shares": "commits to shares without signing that",
    "inconsistent-shares": "seals rubbish for all of its neighbours",
    "unsigned-offer": "offers a vector that its identity hasn't signed",
    "other-vector": "uploads another vector than the one it signed",
    "long-upload": "uploads a byte more than a vector has",
    "short-upload": "uploads a byte less than a vector has",
    "unsigned-sets": "sends zeros for its signature over the survivors",
    "false-share": "reveals a share that isn't the one it was dealt",
    "silence": "says nothing after its keys, and stays connected",
    "repetition": "sends every message twice",
}
"""How a participant can cheat -> what it does."""

_Fault = TypeVar("_Fault", bound="Fault")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A table of a scenario file, an option of the command."""

    option: ClassVar[str] = ""

    @classmethod
    def read(cls: type[_Fault], given: str | Mapping[str, Any]) -> _Fault:
        """From a table, or from ``name=value,name=value``.

        Raises:
            Failure: a name that isn't known, with the nearest; a value that can't be used.
        """
        table = _from_text(cls.option, given) if isinstance(given, str) else given
        if not isinstance(table, Mapping):
            raise Failure(ExitCode.INPUT, f"{cls.option} is a table, not {given!r}.")
        known = {one.name: str(one.type) for one in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in table.items():
            check_known(name, known, cls.option)
            values[name] = _typed(f"{cls.option}: {name}", value, known[name])
        try:
            made = cls(**values)
        except TypeError:
            missing = [one.name for one in dataclasses.fields(cls) if one.default is dataclasses.MISSING]
            raise Failure(ExitCode.INPUT, f"{cls.option} needs {' and '.join(missing)}.") from None
        made.check()
        return made

    def check(self) -> None:
        """Raises Failure: a value out of its range."""
        if not 0 <= getattr(self, "share", 0.0) <= 1:
            raise Failure(ExitCode.INPUT, f"{self.option}: share is from 0 to 1; for 10 % write 0.1.")
        at = getattr(self, "at", ANY)
        if at not in (ANY, *PHASE_NAMES) and not (isinstance(self, Storm) and at == BETWEEN_ROUNDS):
            more = BETWEEN_ROUNDS if isinstance(self, Storm) else ANY
            raise Failure(ExitCode.INPUT, f"{self.option}: at = {at}: choose one of {', '.join(PHASE_NAMES)}, {more}.")


@dataclass(frozen=True, kw_only=True)
class Stragglers(Fault):
    """Who answers late, another draw in each round.

    Attributes:
        share: of the participants.
        from_s, to_s: between which seconds each one's delay is drawn; beyond the deadline they are dropouts.
        at: the phase whose answer is late, or ``any``.
    """

    option: ClassVar[str] = "stragglers"
    share: float
    from_s: float = 2.0
    to_s: float = 10.0
    at: str = ANY

    def check(self) -> None:
        super().check()
        if not 0 <= self.from_s <= self.to_s:
            raise Failure(ExitCode.INPUT, "stragglers: from_s is 0 or more, and to_s no less.")


@dataclass(frozen=True, kw_only=True)
class Link(Fault):
    """A link that is worse than this machine's own, for a share of the participants, through a proxy.

    Attributes:
        share: of the participants; the same ones in all rounds.
        latency_ms, jitter_ms: one way.
        mbit_s: in each direction, millions of bits a second; 0 has no limit.
        loss: probability that a segment is lost.
        resets_per_min: how often each connection is reset, on average.
    """

    option: ClassVar[str] = "link"
    share: float
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    mbit_s: float = 0.0
    loss: float = 0.0
    resets_per_min: float = 0.0

    def check(self) -> None:
        super().check()
        try:
            self.conditions  # noqa: B018  # it refuses values out of range
        except ValueError as error:
            raise Failure(ExitCode.INPUT, f"link: {error}.") from None

    @property
    def conditions(self) -> LinkConditions:
        """What the proxy makes."""
        return LinkConditions(
            latency_s=self.latency_ms / 1000,
            jitter_s=self.jitter_ms / 1000,
            bytes_per_s=self.mbit_s * 1e6 / 8 if self.mbit_s else None,
            loss=self.loss,
            reset_per_s=self.resets_per_min / 60,
        )


@dataclass(frozen=True, kw_only=True)
class Storm(Fault):
    """Many connections are gone at once, and all come back.

    Attributes:
        round: in which one, counting those that abort; with ``at = "between"`` once it has ended.
        share: of the participants.
        at: ``between``, or the phase at whose beginning it comes.
        for_s: 0 resets the connections; else the network is a black hole for so many seconds.
    """

    option: ClassVar[str] = "storm"
    round: int
    share: float = 1.0
    at: str = BETWEEN_ROUNDS
    for_s: float = 0.0

    def check(self) -> None:
        super().check()
        if self.round < 1 or self.for_s < 0 or self.at == ANY:
            raise Failure(ExitCode.INPUT, "storm: round counts from 1, for_s is 0 or more, at is between or a phase.")


@dataclass(frozen=True, kw_only=True)
class Cheats(Fault):
    """Who cheats, the same ones in all rounds, each in a way of its own.

    Attributes:
        share: of the participants.
        ways: names in ``WAYS`` with + between them, or ``any``; they take turns.
    """

    option: ClassVar[str] = "cheats"
    share: float
    ways: str = ANY

    def check(self) -> None:
        super().check()
        for way in self.chosen_ways:
            check_known(way, WAYS, "cheats: ways")

    @property
    def chosen_ways(self) -> tuple[str, ...]:
        return tuple(WAYS) if self.ways == ANY else tuple(self.ways.split("+"))


@dataclass(frozen=True)
class Delay:
    """How late a participant answers in an attempt."""

    phase: str
    seconds: float


def check_known(name: str, known: Iterable[str], where: str) -> None:
    """Raises Failure: a name that isn't known there, with the nearest that is."""
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(names)}."
    raise Failure(ExitCode.INPUT, f"{where}: {name} is not known. {hint}")


def cheats_of(cheats: Cheats | None, seed: int, clients: int) -> dict[int, str]:
    """Participant -> the way in which it cheats."""
    if cheats is None:
        return {}
    ways = cheats.chosen_ways
    chosen = _ranked(b"cheat", seed, range(clients))[: dropped_count(clients, cheats.share)]
    return {who: ways[place % len(ways)] for place, who in enumerate(chosen)}


def links_of(links: Sequence[Link], seed: int, clients: int) -> dict[int, Link]:
    """Participant -> its link; whoever isn't named has none but this machine's."""
    ranked, found, place = _ranked(b"link", seed, range(clients)), {}, 0
    for link in links:
        size = dropped_count(clients, link.share)
        found |= dict.fromkeys(ranked[place : place + size], link)
        place += size
    return found


def struck_by(storm: Storm, seed: int, clients: int) -> frozenset[int]:
    """Whose connections a storm takes."""
    if storm.share >= 1:
        return frozenset(range(clients))
    ranked = _ranked(b"storm %d" % storm.round, seed, range(clients))
    return frozenset(ranked[: dropped_count(clients, storm.share)])


def stragglers_of(
    stragglers: Stragglers | None, seed: int, round_: int, attempt: int, *, clients: int, others: Iterable[int]
) -> dict[int, Delay]:
    """Participant -> its delay in an attempt.

    Args:
        others: who doesn't straggle, since it leaves or cheats.
    """
    if stragglers is None:
        return {}
    skipped = frozenset(others)
    free = [who for who in range(clients) if who not in skipped]
    late = _ranked(b"straggler %d %d" % (round_, attempt), seed, free)[: dropped_count(clients, stragglers.share)]
    found = {}
    for who in late:
        draw = digest(b"delay", seed, round_, attempt, who)
        part = int.from_bytes(draw[:8], "little") / 2**64
        phase = PHASES[draw[8] % len(PHASES)] if stragglers.at == ANY else PHASE_NAMES[stragglers.at]
        found[who] = Delay(phase, stragglers.from_s + part * (stragglers.to_s - stragglers.from_s))
    return found


def _ranked(purpose: bytes, seed: int, whom: Iterable[int]) -> list[int]:
    """In an order that follows from the seed."""

    def key(who: int) -> bytes:
        return hashlib.sha256(b"sordino/v1/load test fault/%s\0%d %d" % (purpose, seed, who)).digest()

    return sorted(whom, key=key)


def _from_text(option: str, text: str) -> dict[str, Any]:
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise Failure(ExitCode.INPUT, f"--{option} {text}: write name=value,name=value; {part!r} has no =.")
        found[name.strip()] = value.strip()
    return found


def _typed(where: str, value: Any, wanted: str) -> Any:
    """A value as its field has it; text from the command line is read as a number where one belongs."""
    try:
        if wanted == "str":
            if isinstance(value, str):
                return value
        elif not isinstance(value, bool) and isinstance(value, int | float | str):
            if wanted == "float" and math.isfinite(float(value)):
                return float(value)
            if wanted == "int" and float(value) == int(value):
                return int(value)
    except (ValueError, OverflowError):
        pass
    kind = {"int": "a whole number", "float": "a finite number"}.get(wanted, "a text")
    raise Failure(ExitCode.INPUT, f"{where} is {kind}, not {value!r}.")
