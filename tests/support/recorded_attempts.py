"""Attempts in memory that record each step of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secagg.context import RoundConfig
from tests.support.attempts_in_memory import ADVERTISE, Attempt, Script, Tamper
from tests.support.comparable import twin


@dataclass
class Step:
    """A phase of the coordinator before any message arrived, and the messages that it then took."""

    server: Any
    up: dict[int, Any]
    clients: dict[int, Any]  # phases of the senders in ``up``, after they sent it
    asked: dict[int, Any]  # phases of participants before they were asked; empty in the first phase
    down: dict[int, Any]  # the coordinator's message to each


class Recorded(Attempt):
    """An attempt that records each step."""

    def __init__(self, config: RoundConfig, script: Script | None = None, *, tamper_down: Tamper | None = None) -> None:
        super().__init__(config, script, tamper_down=tamper_down)
        self.steps: dict[str, Step] = {}

    def exchange(self, who: int) -> None:
        super().exchange(who)
        if who in self.phases:
            self._step.up[who] = self.sent[self.coordinator.name, who]

    def step(self) -> None:
        name = self.coordinator.name
        asked, down = ({}, {}) if name == ADVERTISE else (twin(self.phases), dict(self.messages))
        self.steps[name] = self._step = Step(twin(self.coordinator), {}, {}, asked, down)
        super().step()
        self._step.clients = {who: twin(self.phases[who]) for who in self._step.up}
