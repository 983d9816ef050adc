"""What can go wrong in a round, as types that carry the facts.

A peer's fault drops that peer (`InvalidMessage`, `UnexpectedMessage`). Too few peers or a broken invariant ends the
attempt (`TooFewClients`, `ReconstructionFailed`). On the participant's side, a coordinator that breaks a rule ends the
attempt for that participant (`CoordinatorMisbehaved`). The shells map these types to status codes.
"""

from __future__ import annotations

from collections.abc import Mapping


class ProtocolError(Exception):
    """Root of all errors of the protocol core about a peer or a round."""


class InvalidParameters(ValueError):
    """Parameters that would break a promise of the protocol; refused at construction."""


class InvalidMessage(ProtocolError):
    """A participant's message failed a check: the participant is dropped, the phase is unchanged."""

    def __init__(self, phase: str, sender: int, reason: str) -> None:
        super().__init__(f"{phase}: participant {sender}: {reason}")
        self.phase, self.sender, self.reason = phase, sender, reason


class UnexpectedMessage(ProtocolError):
    """A message that this phase doesn't accept from this participant (unknown, late, repeated or another kind)."""

    def __init__(self, phase: str, sender: int) -> None:
        self.phase, self.sender, self.reason = phase, sender, "not expected in this phase"
        super().__init__(f"{phase}: participant {sender}: {self.reason}")


class TooFewClients(ProtocolError):
    """Fewer participants than the plan allows: the attempt aborts and reveals nothing."""

    def __init__(self, phase: str, received: int, needed: int) -> None:
        super().__init__(f"{phase}: {received} participants, {needed} needed")
        self.phase, self.received, self.needed = phase, received, needed


class ReconstructionFailed(ProtocolError):
    """The sum can't be opened because of inconsistent dealings; ``culprits``: dealer -> evidence."""

    def __init__(self, culprits: Mapping[int, str]) -> None:
        super().__init__("Unmasking: " + "; ".join(f"participant {who}: {why}" for who, why in culprits.items()))
        self.phase, self.culprits = "Unmasking", dict(culprits)


class CoordinatorMisbehaved(ProtocolError):
    """A message of the coordinator broke a rule: this participant leaves the attempt and answers no further message."""

    def __init__(self, phase: str, reason: str) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase, self.reason = phase, reason


class InvalidKey(ProtocolError):
    """A public key of the wrong length or of low order, or an agreement whose result is all zero."""
