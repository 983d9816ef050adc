"""Machines that hold claims against what they see, after every step."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, NoReturn

from hypothesis.stateful import RuleBasedStateMachine

from tests.support.naive_variants import CLIENT, Side


class Broken(AssertionError):
    """A claim that doesn't hold."""

    def __init__(self, claim: str, text: str) -> None:
        super().__init__(f"{claim}: {text}")
        self.claim = claim


class ClaimingMachine(RuleBasedStateMachine):
    """A state machine that raises `Broken` for the claims that it watches: for all where ``watch`` is empty."""

    client: ClassVar[Side] = CLIENT
    watch: ClassVar[frozenset[str]] = frozenset()
    seen: ClassVar[Counter[str]] = Counter()  # over all examples: what was reached
    checked: ClassVar[Counter[str]] = Counter()  # how often each claim was held against something
    broken = False

    def claim(self, holds: bool, name: str, text: str) -> None:
        self.checked[name] += 1
        if not holds and (not self.watch or name in self.watch):
            self.fail(name, text)

    def fail(self, name: str, text: str) -> NoReturn:
        self.broken = True
        raise Broken(name, text)
