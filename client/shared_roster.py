"""A roster for several participants of one process: what one has verified, the others need not verify again.

Every member of a cohort checks the same signatures of the same people: over their keys, their dealings, their survivor
sets. Participants of one process trust it anyway, and fall together.
"""

from __future__ import annotations

import hashlib
import threading
from functools import cached_property

from secagg.roster import Roster

_ROUNDS_HELD = 2
_SIGNATURES = 3  # of one member in a round: keys, dealing, survivor sets

_changing = threading.Lock()  # participants compute in several threads


class SharedRoster(Roster):
    """A roster that remembers which signatures were valid; otherwise as the one it is made from."""

    @classmethod
    def of(cls, roster: Roster) -> SharedRoster:
        """The same list, with a memory of its own."""
        return cls(roster.study, roster.version, roster.entries, roster.lottery)

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        """Whether `signature` (64 bytes) is that of the participant's identity over `message`.

        Only what was valid is remembered, by a digest of all three.
        """
        length = len(signature).to_bytes(4, "little")
        name = hashlib.sha256(self.identity(participant) + length + signature + message).digest()
        valid = self._valid
        if name in valid:
            return True
        if not super().verify(participant, signature, message):
            return False
        with _changing:
            valid[name] = None
            if len(valid) > _ROUNDS_HELD * _SIGNATURES * len(self):
                valid.pop(next(iter(valid)))  # the oldest
        return True

    @cached_property
    def _valid(self) -> dict[bytes, None]:
        return {}
