"""What can go wrong in a round, as types that carry the facts.

A peer's fault drops that peer (`InvalidMessage`, `UnexpectedMessage`); too few peers or a broken invariant ends the
attempt (`TooFewClients`, `ReconstructionFailed`); on the participant's side a coordinator that breaks a rule ends the
attempt for that participant (`CoordinatorMisbehaved`). The core knows no status codes: the shells map these types.
"""

from __future__ import annotations

from collections.abc import Mapping


class ProtocolError(Exception):
    """Root of everything the protocol core raises about a peer or a round."""


class InvalidParameters(ValueError):
    """Parameters under which a promise of the protocol would not hold; refused at construction."""


class InvalidMessage(ProtocolError):
    """A participant's message failed a check: the participant is dropped, the phase is unchanged."""

    def __init__(self, phase: str, sender: int, reason: str) -> None:
        super().__init__(f"{phase}: participant {sender}: {reason}")
        self.phase, self.sender, self.reason = phase, sender, reason


class UnexpectedMessage(ProtocolError):
    """A message that this phase doesn't take from this participant (unknown, late, repeated or another kind)."""

    def __init__(self, phase: str, sender: int, reason: str = "not expected in this phase") -> None:
        super().__init__(f"{phase}: participant {sender}: {reason}")
        self.phase, self.sender, self.reason = phase, sender, reason


class TooFewClients(ProtocolError):
    """Fewer participants than the plan allows: the attempt aborts and reveals nothing."""

    def __init__(self, phase: str, received: int, needed: int) -> None:
        super().__init__(f"{phase}: {received} participants, {needed} needed")
        self.phase, self.received, self.needed = phase, received, needed


class ReconstructionFailed(ProtocolError):
    """The sum can't be opened because of inconsistent dealings: whose, and how that shows."""

    def __init__(self, culprits: Mapping[int, str]) -> None:
        super().__init__("Unmasking: " + "; ".join(f"participant {who}: {why}" for who, why in culprits.items()))
        self.phase, self.culprits = "Unmasking", dict(culprits)


class CoordinatorMisbehaved(ProtocolError):
    """A message of the coordinator broke a rule: this participant ends the attempt and answers nothing more."""

    def __init__(self, phase: str, reason: str) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase, self.reason = phase, reason


class InvalidKey(ProtocolError):
    """A public key of the wrong length or of low order, or an agreement whose result is all zero."""
