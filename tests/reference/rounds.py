"""Whole attempts: dropouts, lies, and all messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.reference.curves import ed25519_public
from tests.reference.setting import PHASES, Message, Numbers, Refused, Setting
from tests.reference.sharing import Stream, listed_bytes


class ParticipantSide(Protocol):
    """What a round asks of any implementation of a participant: its answer to a message of the coordinator."""

    def hear(self, phase: str, message: Message, vector: list[int]) -> Message: ...


class CoordinatorSide(Protocol):
    """What a round asks of a coordinator."""

    noise_seeds: dict[int, list[bytes]]  # of u5, once the sum is open

    def receive(self, sender: int, message: Message) -> None: ...
    def close(self) -> Any: ...


@dataclass
class Record:
    """What was said in an attempt: by phase and participant; and how it ended."""

    to_coordinator: dict[str, dict[int, Message]] = field(default_factory=dict)
    to_participants: dict[str, dict[int, Message]] = field(default_factory=dict)
    refused: list[tuple[Refused, Message]] = field(default_factory=list)  # by either side, while the attempt went on
    total: list[int] | None = None
    noise_seeds: dict[int, list[bytes]] = field(default_factory=dict)  # those of surplus noise that is still in it
    ended_by: Refused | None = None


def identity_seeds(count: int, name: str = "identities") -> list[bytes]:
    """Ed25519 seeds in the order of their public keys, as in a roster."""
    seeds = [listed_bytes(f"{name} {i}", 32) for i in range(count)]
    return sorted(seeds, key=ed25519_public)


def setting_of(
    count: int,
    *,
    bits: int,
    dim: int,
    colluders: int = 2,
    quorum: int | None = None,
    min_survivors: int | None = None,
    round_: int = 7,
    attempt: int = 2,
    sharing: tuple[int, int] | None = None,
    adversary: str = "malicious",
    key_agreement: str = "x25519",
    released: tuple[int, ...] = (),
) -> Setting:
    """A setting of distinct values. By default both bounds are the signatures needed, and the graph is complete.

    ``sharing``: degree and threshold on a ring.
    """
    fewest = (count + max(2, colluders)) // 2 + 1
    least = min_survivors or fewest
    graph = "harary" if sharing else "complete"
    numbers = Numbers(count, colluders, least, quorum or least, bits, dim, graph, adversary, key_agreement, released)
    roster = tuple((ed25519_public(seed), f"host-{i % 3}") for i, seed in enumerate(identity_seeds(count)))
    digests = (listed_bytes(name, 32) for name in ("study document", "model", "previous roster", "newest roster"))
    return Setting("test-vectors", 3, roster, round_, attempt, *digests, numbers, sharing)


def stream_of(agreed: Setting, who: int, name: str = "") -> Stream:
    """One participant's randomness, more than it takes.

    65521 and 65535, which aren't symbols, come first, before the largest symbol, 65520, and again where coefficients
    are drawn.
    """
    name = f"{name} randomness of {who} in {agreed.round_context().hex()}"
    drawn = listed_bytes(name, 300 + 320 * len(agreed.roster))
    skipped = b"\xf1\xff\xff\xff"
    return Stream(skipped + b"\xf0\xff" + drawn[:100] + skipped + drawn[100:])


def input_of(agreed: Setting, who: int) -> list[int]:
    """A vector with the largest and the smallest value in front."""
    bits, dim = agreed.numbers.bits, agreed.numbers.dim
    drawn = listed_bytes(f"input of {who}", 8 * dim)
    values = [int.from_bytes(drawn[8 * i : 8 * i + 8], "little") % 2**bits for i in range(dim)]
    return [2**bits - 1, 0, *values][:dim]


Change = Callable[[Message], Message]


def run_round(
    participants: Mapping[int, ParticipantSide],
    coordinator: CoordinatorSide,
    inputs: Mapping[int, list[int]],
    silent: Mapping[str, set[int]] | None = None,
    change: Mapping[tuple[str, int], Change] | None = None,
    phases: tuple[str, ...] = PHASES,
) -> Record:
    """All phases.

    Args:
        silent: phase -> participants that are silent from then on.
        change: (phase, sender) -> what becomes of the message to the coordinator.
    """
    record, gone = Record(), set[int]()
    downs: dict[int, Message] = {who: {} for who in participants}
    for phase in phases:
        record.to_participants[phase] = {} if phase == "AdvertiseKeys" else downs
        record.to_coordinator[phase] = {}
        gone |= (silent or {}).get(phase, set())
        for who, down in sorted(downs.items()):
            if who in gone:
                continue
            try:
                up = participants[who].hear(phase, down, inputs[who])
            except Refused as refusal:
                record.refused.append((refusal, down))
                gone.add(who)
                continue
            up = (change or {}).get((phase, who), lambda message: message)(up)
            try:
                coordinator.receive(who, up)
            except Refused as refusal:
                record.refused.append((refusal, up))
                gone.add(who)
                continue
            record.to_coordinator[phase][who] = up
        try:
            downs = coordinator.close()
        except Refused as refusal:
            record.ended_by = refusal
            return record
    record.total, record.noise_seeds = downs, coordinator.noise_seeds  # type: ignore[assignment]
    return record
