"""Where a study is now, folded from its events: the round, the phase, and whom that waits for.

Counts only: nothing here says who.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.messages import PHASES, UNMASKING

STARTING, ENROLMENT, CONNECTING, LEARNING = "Starting", "Enrolment", "Connecting", "Learning"
BETWEEN, PAUSING, FINISHED = "Between", "Pausing", "Finished"
STATES: Final = (STARTING, ENROLMENT, CONNECTING, *PHASES, LEARNING, BETWEEN, PAUSING, FINISHED)
"""What a study does: the phases of the protocol, and what lies between them."""
_WAITS: Final[Mapping[str, str]] = {
    PAUSING: "the next round to be due",
    FINISHED: "participants who haven't heard that the study is over",
}


@dataclass
class StudyProgress:
    """Events applied so far. `apply` never fails on an event that it doesn't know, or that lacks something.

    Attributes:
        needed, expected, received: of the phase or the wait that is under way; 0 in between. ``received`` is up to
            half a second old.
        cohort: participants with which the attempt under way began, or the last one.
        remaining: those of them that haven't left it. Where too few connected: how many did.
        under_way: an attempt is.
    """

    round: int = 0
    attempt: int = 0
    state: str = STARTING
    needed: int = 0
    expected: int = 0
    received: int = 0
    cohort: int = 0
    remaining: int = 0
    under_way: bool = False

    def apply(self, event: Mapping[str, Any]) -> None:
        """One event of `server.study.Study`, or of its journal."""
        handler = getattr(self, f"_on_{event.get('kind', '')}", None)
        if handler is not None:
            handler(event)

    @property
    def waited_for(self) -> int:
        """Participants, or people to enrol, that are still waited for."""
        return max(0, self.expected - self.received)

    @property
    def waiting_for(self) -> str:
        """The same in words; empty where the coordinator itself is at work."""
        if self.state == ENROLMENT:
            return f"people to enrol: {self.received} on the roster, {self.needed} needed"
        if self.state == CONNECTING:
            return f"the round's participants: {self.received} of {self.expected} are connected, {self.needed} needed"
        if self.state in PHASES:
            return f"answers: {self.received} of {self.expected} received, {self.needed} needed"
        return _WAITS.get(self.state, "")

    def _wait(self, state: str, received: int = 0, needed: int = 0, expected: int = 0) -> None:
        self.state, self.received, self.needed, self.expected = state, received, needed, expected

    def _number(self, event: Mapping[str, Any]) -> None:
        self.round, self.attempt = int(event.get("round", self.round)), int(event.get("attempt", self.attempt))

    # ------------------------------------------------------------ events

    def _on_study_started(self, _: Mapping[str, Any]) -> None:
        self._wait(BETWEEN)

    def _on_waiting_for_enrolment(self, event: Mapping[str, Any]) -> None:
        self._number(event)
        needed = _count(event, "needed")
        self._wait(ENROLMENT, _count(event, "received"), needed, needed)

    def _on_waiting_for_participants(self, event: Mapping[str, Any]) -> None:
        self._number(event)
        self._wait(CONNECTING, _count(event, "received"), _count(event, "needed"), _count(event, "expected"))

    def _on_pausing(self, event: Mapping[str, Any]) -> None:
        self._wait(PAUSING)

    def _on_attempt_started(self, event: Mapping[str, Any]) -> None:
        self._number(event)
        self._wait(BETWEEN)
        self.cohort = self.remaining = _count(event, "cohort")
        self.under_way = True

    def _on_phase_started(self, event: Mapping[str, Any]) -> None:
        expected = min(_count(event, "expected"), self.remaining)  # whoever left is waited for no more
        self._wait(str(event.get("phase", BETWEEN)), 0, _count(event, "needed"), expected)

    def _on_phase_progress(self, event: Mapping[str, Any]) -> None:
        self.received = _count(event, "received")

    def _on_participant_dropped(self, _: Mapping[str, Any]) -> None:
        self.remaining = max(0, self.remaining - 1)
        self.expected = min(self.expected, self.remaining)

    def _on_phase_ended(self, event: Mapping[str, Any]) -> None:
        self._wait(LEARNING if event.get("phase") == UNMASKING else BETWEEN)

    def _on_attempt_aborted(self, event: Mapping[str, Any]) -> None:
        self._number(event)
        if not self.under_way:  # it never began: too few connected
            self.cohort = self.remaining = _count(event, "received")
        self._over(BETWEEN)

    def _on_round_completed(self, event: Mapping[str, Any]) -> None:
        self._number(event)
        self._over(BETWEEN)

    def _on_study_finished(self, _: Mapping[str, Any]) -> None:
        self._over(FINISHED)

    def _over(self, state: str) -> None:
        self._wait(state)
        self.under_way = False


def _count(event: Mapping[str, Any], name: str) -> int:
    value = event.get(name, 0)
    return value if isinstance(value, int) else 0
