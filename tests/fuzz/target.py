"""What a fuzz target is: a function of bytes that raises where the code under it breaks a promise.

For any bytes `run` returns, or there is a finding. A target states what the decoder promises: the one kind of error
that it may raise, and that what it read is written back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final, Protocol

LARGEST: Final = 16 << 10
"""Bytes of an input, where a target says nothing else."""


class Finding(AssertionError):
    """A decoder or a phase breaks a promise other than that of its errors."""


def must(holds: bool, sentence: str) -> None:
    """A promise; not `assert`, so that it is kept without assertions as well."""
    if not holds:
        raise Finding(sentence)


class Choices(Protocol):
    """Where a mutation takes its decisions from: a generator of random numbers, or the bytes of an input."""

    def below(self, count: int) -> int:
        """A number from 0 to count - 1; count is at least 1."""

    def take(self, count: int) -> bytes:
        """So many bytes."""


class Dice:
    """Decisions of a seeded generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)

    def take(self, count: int) -> bytes:
        return self._random.randbytes(count)


class Steering:
    """Decisions written down in bytes, one byte for a small one; once they are used up, all are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that weren't used yet."""
        return max(0, len(self._data) - self._at)

    def below(self, count: int) -> int:
        size = 1 if count <= 256 else 2 if count <= 65536 else 4
        return int.from_bytes(self.take(size), "little") % count

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken + bytes(count - len(taken))


Mutation = Callable[[bytes, Choices], bytes]


@dataclass(frozen=True)
class Target:
    """One decoder, or one phase."""

    name: str  # also that of its folder in the corpus
    run: Callable[[bytes], None]  # raises where there is a finding
    seeds: Callable[[], Iterable[bytes]]  # what honest peers write
    mutate: Mutation | None = None  # changes an input without destroying its form; None where bytes have no form
    largest: int = LARGEST  # bytes of an input
    tokens: tuple[bytes, ...] = ()  # words of the format, for the fuzzer's dictionary

    def changed(self, data: bytes, choose: Choices, changes: int) -> bytes:
        """An input after some changes; of one byte each where bytes have no form."""
        for _ in range(changes):
            if self.mutate is not None:
                data = self.mutate(data, choose)
            elif data:
                place = choose.below(len(data))
                data = data[:place] + choose.take(1) + data[place + 1 :]
        return data


@contextmanager
def trusting(*modules: ModuleType, name: str = "verify_signature") -> Iterator[None]:
    """Every signature holds: a fuzzer can't sign, and what lies behind the check is to be fuzzed as well."""
    kept: list[tuple[ModuleType, Any]] = [(module, getattr(module, name)) for module in modules]
    try:
        for module, _ in kept:
            setattr(module, name, lambda *_: True)
        yield
    finally:
        for module, check in kept:
            setattr(module, name, check)


@cache
def targets() -> dict[str, Target]:
    """All of them by name."""
    from tests.fuzz import core_targets, data_targets, document_targets, file_targets, network_targets, phase_targets

    found: dict[str, Target] = {}
    for room in (core_targets, data_targets, document_targets, file_targets, network_targets, phase_targets):
        for one in room.TARGETS:
            must(one.name not in found, f"two targets have the name {one.name}")
            found[one.name] = one
    return found
