"""What a returning participant receives: its reconnection slot, or how the attempt ended without it."""

from __future__ import annotations

from collections import deque
from typing import Final

from server.attempt.attempt import Attempt, Proof
from server.sessions import Session
from wire import codec, coordinator_pb2 as pb

Number = tuple[int, int]
MOST_PROOFS: Final = 32
"""Of the newest attempts; each has as many signatures as its cohort asks for, some 40 KB at a thousand participants."""


class Returns:
    """Remembers what an absent participant may have missed of past attempts. ``attempt``: the one under way."""

    def __init__(self) -> None:
        self.completed: Number = (0, 0)  # the last attempt that ended in a sum
        self._proofs: deque[Proof] = deque(maxlen=MOST_PROOFS)  # newest last

    def after(self, attempt: Attempt) -> None:
        """This attempt is over."""
        proof = attempt.proof
        if proof is not None and proof[0]:
            self._proofs.append(proof)

    def prove(self, session: Session, attempt: Attempt | None) -> None:
        """Send the last survivor proof that concerns this identity: only that charge can be taken back."""
        latest = None if attempt is None else attempt.proof
        for proof in (latest, *reversed(self._proofs)):
            if proof is not None and session.identity in proof[0]:
                session.send(proof[1])  # ignored by a participant that has it already
                return

    def answer(self, session: Session, resume: pb.Resume | None, attempt: Attempt | None) -> None:
        """A session is ready. ``resume``: the attempt that its participant wants to go on with."""
        number = None if resume is None else (resume.round, resume.attempt)
        if attempt is not None:
            goes_on = number == attempt.config.number
            if attempt.returned(session, resume if goes_on else None) and goes_on:
                return
        if resume is None:
            return
        completed = number == self.completed
        reason = "" if completed else "the attempt is over, or went on without it"
        end = pb.RoundEnd(round=resume.round, attempt=resume.attempt, completed=completed, reason=reason)
        session.send(codec.message(round_end=end))
