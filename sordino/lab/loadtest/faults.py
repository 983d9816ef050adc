"""The faults of a load test and the participants they hit: tables, and pure functions of the seed.

A fault is written as a table of a scenario file, or as ``name=value,name=value`` on the command line. Client processes
and their parent compute the same schedule from the seed, without communication.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, model_validator

from runtime.settings_file import Table
from runtime.settings_keys import key
from runtime.text import did_you_mean
from secagg.messages import PHASES

PhaseName: TypeAlias = Literal["advertise-keys", "share-keys", "masked-input", "consistency-check", "unmasking"]
PHASE_NAMES: Final[Mapping[str, str]] = dict(zip(get_args(PhaseName), PHASES, strict=True))
"""Name of a phase in options and scenarios -> its name in the protocol."""
ANY: Final = "any"
BETWEEN_ROUNDS: Final = "between"
WAYS: Final[Mapping[str, str]] = {
    "unsigned-keys": "advertises keys that its identity hasn't signed",
    "wrong-lengths": "seals a share that is a byte short",
    "unsigned-shares": "commits to shares without a signature",
    "inconsistent-shares": "seals random bytes for all of its neighbours",
    "unsigned-offer": "offers a vector that its identity hasn't signed",
    "other-vector": "uploads another vector than the one it signed",
    "long-upload": "uploads one byte more than a vector has",
    "short-upload": "uploads one byte less than a vector has",
    "unsigned-sets": "sends zeros for its signature over the survivors",
    "false-share": "reveals another share than the one it received",
    "silence": "sends nothing after its keys, and stays connected",
    "repetition": "sends every message twice",
}
"""A way to cheat -> what the participant does."""
_CHANGED: Final = {
    "unsigned-keys": "advertise_keys",
    "wrong-lengths": "share_keys",
    "unsigned-shares": "share_keys",
    "inconsistent-shares": "share_keys",
    "unsigned-offer": "masked_input",
    "unsigned-sets": "consistency",
    "false-share": "unmasking",
}
"""A way to cheat that changes a message -> that message's kind."""


@dataclass(frozen=True)
class Drop:
    """How one participant leaves one attempt."""

    phase: str
    """One of `secagg.messages.PHASES`: the first in which it doesn't answer."""
    within_upload: bool = False
    """With `disconnect` in MaskedInputCollection: it offers the vector and cuts the connection during the upload."""


@dataclass(frozen=True)
class Delay:
    """How late a participant answers in an attempt."""

    phase: str
    seconds: float


def dropped_count(clients: int, share: float) -> int:
    """round(share x clients), halves upwards."""
    return math.floor(share * clients + 0.5)


def drops_of(seed: int, round_: int, attempt: int, *, clients: int, share: float, at: str = ANY) -> dict[int, Drop]:
    """Participants that leave an attempt, and how.

    Args:
        clients: participants are numbered 0..clients-1, as in the roster.
        share: of them that leave, in [0, 1].
        at: a name in ``PHASE_NAMES``, or ``any``: a phase is drawn for each.

    Returns exactly ``dropped_count(clients, share)`` participants.
    """
    draws = {who: digest(b"drop", seed, round_, attempt, who) for who in range(clients)}
    leaving = sorted(draws, key=lambda who: draws[who])[: dropped_count(clients, share)]
    return {who: _drop(digest(b"phase", seed, round_, attempt, who), at) for who in sorted(leaving)}


def _drop(draw: bytes, at: str) -> Drop:
    phase = PHASES[int.from_bytes(draw[:8], "little") % len(PHASES)] if at == ANY else PHASE_NAMES[at]
    return Drop(phase, phase == "MaskedInputCollection" and draw[8] < 128)


class Fault(Table):
    """Base class of a fault; its fields are the keys of the scenario file."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """``name=value,name=value`` as a table."""
        if not isinstance(given, str):
            return given
        pairs = [part.partition("=") for part in map(str.strip, given.split(",")) if part]
        for name, equals, _ in pairs:
            if not equals:
                raise ValueError(f"must be written name=value,name=value: {name!r} has no =")
        return {name.strip(): value.strip() for name, _, value in pairs}


class Stragglers(Fault):
    """Participants that answer late, drawn anew in each round."""

    share: float = key(help="share of the participants", within=(0, 1))
    from_s: float = key(2.0, "shortest delay", unit="s", ge=0)
    to_s: float = key(10.0, "longest delay; beyond the deadline it is a dropout", unit="s", ge=0)
    at: Literal["any", PhaseName] = key(ANY, "the phase of the late answer")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.from_s > self.to_s:
            raise ValueError("from_s must be at most to_s")
        return self

    def delays(
        self, seed: int, round_: int, attempt: int, *, clients: int, others: Collection[int]
    ) -> dict[int, Delay]:
        """Participant -> its delay in an attempt; ``others``: participants that leave or cheat: they don't straggle."""
        free = [who for who in range(clients) if who not in others]
        late = _ranked(b"straggler %d %d" % (round_, attempt), seed, free)[: dropped_count(clients, self.share)]
        found = {}
        for who in late:
            draw = digest(b"delay", seed, round_, attempt, who)
            part = int.from_bytes(draw[:8], "little") / 2**64
            phase = PHASES[draw[8] % len(PHASES)] if self.at == ANY else PHASE_NAMES[self.at]
            found[who] = Delay(phase, self.from_s + part * (self.to_s - self.from_s))
        return found


class Link(Fault):
    """A bad link through a proxy, for the same participants in all rounds."""

    share: float = key(help="share of the participants", within=(0, 1))
    latency_ms: float = key(0.0, "latency in one direction", unit="ms", ge=0)
    jitter_ms: float = key(0.0, "most that is added to the latency", unit="ms", ge=0)
    mbit_s: float = key(0.0, "bandwidth in each direction; 0: no limit", unit="Mbit/s", ge=0)
    loss: float = key(0.0, "probability that a segment is lost", ge=0, lt=1)
    resets_per_min: float = key(0.0, "resets of each connection per minute, on average", ge=0)


def links_of(links: Sequence[Link], seed: int, clients: int) -> dict[int, Link]:
    """Participant -> its link; a participant that isn't named has this machine's."""
    ranked = iter(_ranked(b"link", seed, range(clients)))
    return {who: link for link in links for who in islice(ranked, dropped_count(clients, link.share))}


class Storm(Fault):
    """Connections that all break at once."""

    round: int = key(help="the round in or after which it comes", ge=1)
    share: float = key(1.0, "share of the participants", within=(0, 1))
    at: Literal["between", PhaseName] = key(BETWEEN_ROUNDS, "between rounds, or the phase at whose start it comes")
    for_s: float = key(0.0, "0: connections are reset; else the network drops everything for", unit="s", ge=0)

    def struck(self, seed: int, clients: int) -> frozenset[int]:
        """Participants whose connections break."""
        if self.share >= 1:
            return frozenset(range(clients))
        ranked = _ranked(b"storm %d" % self.round, seed, range(clients))
        return frozenset(ranked[: dropped_count(clients, self.share)])


def in_order(storms: Sequence[Storm]) -> tuple[Storm, ...]:
    """In the order in which they come: parent and client processes count them."""
    moments = [*PHASE_NAMES, BETWEEN_ROUNDS]
    return tuple(sorted(storms, key=lambda one: (one.round, moments.index(one.at))))


def _known_ways(ways: str) -> str:
    for way in () if ways == ANY else ways.split("+"):
        if way not in WAYS:
            instead = did_you_mean(way, WAYS) or f" Use any, or some of {', '.join(WAYS)}, joined with +"
            raise ValueError(f"{way} is not a way to cheat.{instead}")
    return ways


class Cheats(Fault):
    """Participants that cheat, the same in all rounds, each in one way."""

    share: float = key(help="share of the participants", within=(0, 1))
    ways: Annotated[str, AfterValidator(_known_ways)] = key(ANY, "ways joined with +, assigned in turn")

    @property
    def chosen_ways(self) -> tuple[str, ...]:
        return tuple(WAYS) if self.ways == ANY else tuple(self.ways.split("+"))

    def participants(self, seed: int, clients: int) -> dict[int, str]:
        """Participant -> the way in which it cheats."""
        ways = self.chosen_ways
        chosen = _ranked(b"cheat", seed, range(clients))[: dropped_count(clients, self.share)]
        return {who: ways[place % len(ways)] for place, who in enumerate(chosen)}


def digest(purpose: bytes, seed: int, round_: int, attempt: int, who: int | bytes) -> bytes:
    """32 bytes that are a function of all of these."""
    name = who if isinstance(who, bytes) else who.to_bytes(8, "little")
    numbers = b"".join(number.to_bytes(16, "little", signed=True) for number in (seed, round_, attempt))
    return hashlib.sha256(b"sordino/v1/load test/" + purpose + b"\0" + numbers + name).digest()


def _ranked(purpose: bytes, seed: int, participants: Collection[int]) -> list[int]:
    """In an order that is a function of purpose and seed."""

    def rank(who: int) -> bytes:
        return hashlib.sha256(b"sordino/v1/load test fault/%s\0%d %d" % (purpose, seed, who)).digest()

    return sorted(participants, key=rank)


def messages_of(way: str, kind: str, honest: Any) -> list[Any]:
    """What is sent in the place of an honest message: each a small change of it, and many come at once, under load.

    tests/adversary tries many more, one at a time and with the checks taken out.

    ``way``: of `WAYS`; ``kind``: field of `wire.coordinator_pb2.PhaseMessage`; ``honest``: its content. Returns
    contents of the same kind: none, one, or the same one twice.
    """
    if way == "repetition":
        return [honest, honest]
    if way == "silence" and kind != "advertise_keys":
        return []
    if _CHANGED.get(way) != kind:
        return [honest]
    sent = type(honest)()
    sent.CopyFrom(honest)
    match way:
        case "unsigned-keys" | "unsigned-offer" | "unsigned-sets":
            sent.signature = bytes(64)
        case "wrong-lengths":
            sent.ciphertexts[0] = sent.ciphertexts[0][:-1]
        case "unsigned-shares":
            sent.leaves[-1] = _flipped(sent.leaves[-1])
        case "inconsistent-shares":
            for place, sealed in enumerate(sent.ciphertexts):
                sent.ciphertexts[place] = os.urandom(len(sealed))
        case "false-share":
            for entry in sent.shares:
                which = entry.WhichOneof("kind")
                if which in ("self_mask_seed", "mask_key"):
                    share = getattr(entry, which)
                    share.share = _flipped(share.share)
                    return [sent]
    return [sent]


def upload_of(way: str, packed: bytes | bytearray) -> bytes | bytearray:
    """What is uploaded in the place of an honest vector."""
    match way:
        case "other-vector":
            return _flipped(packed)
        case "long-upload":
            return packed + b"\0"
        case "short-upload":
            return packed[:-1]
    return packed


def _flipped(data: bytes | bytearray) -> bytes:
    """The first bit changed."""
    return bytes([data[0] ^ 1]) + data[1:]
