"""What a cheating coordinator learns about one cohort, and what can be opened with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secagg.keys import KEM_CIPHERTEXT_BYTES, AgreementKey, ShareChannel
from secagg.messages import MASK_KEY, SELF_MASK_SEED, SealedShares
from tests.support.attempts_in_memory import Cohort, Sets


@dataclass
class Notes(Cohort):
    """One cohort as some participants were shown it, with all that was revealed in it.

    `phases` holds only the colluders'. `channel_keys` holds the private ones that the coordinator has: the colluders',
    and those that it made and showed in a member's name.
    """

    identity_keys: dict[int, Any] = field(default_factory=dict)  # of colluders
    channel_keys: dict[int, AgreementKey] = field(default_factory=dict)
    inputs: dict[int, Any] = field(default_factory=dict)  # what was masked; only for the verdict

    def forge(self, colluder: int, sets: Sets) -> bytes:
        return self.identity_keys[colluder].sign(self.statement(sets))  # type: ignore[no-any-return]

    def read(self, dealer: int, sealed: SealedShares) -> None:
        """Open what the dealer sealed for members whose private channel keys the coordinator has."""
        ends = (self.config.roster.identity(dealer), self.advertisements[dealer].channel_key)
        for receiver, ciphertext in zip(self.graph.neighbours(dealer), sealed.ciphertexts, strict=True):
            if receiver not in self.channel_keys:
                continue
            end = (self.config.roster.identity(receiver), self.advertisements[receiver].channel_key)
            shared, encapsulated = self.channel_keys[receiver].agree(ends[1]), b""
            if self.config.parameters.hybrid:
                encapsulated, ciphertext = ciphertext[:KEM_CIPHERTEXT_BYTES], ciphertext[KEM_CIPHERTEXT_BYTES:]
                shared += self.channel_keys[receiver].decapsulate(encapsulated)
            covered = self.wrapped(dealer).get(receiver, b"")
            plaintext = ShareChannel(shared, ends, end, self.context, encapsulated, covered).open(ciphertext)
            for kind in (MASK_KEY, SELF_MASK_SEED) if plaintext is not None else ():
                symbols = np.frombuffer(plaintext[48 * kind + 16 : 48 * kind + 48], dtype="<u2").astype(np.uint16)
                self.shares.setdefault((dealer, kind), {})[self.graph.x(receiver)] = symbols

    def openable(self, honest: frozenset[int]) -> list[frozenset[int]]:
        """Return the smallest sets of honest inputs whose sum opens; all others that open are unions of these.

        A member's own mask must be known. If the mask with a neighbour is unknown, neither opens without the other, and
        both must have masked with it.
        """
        uploaded = honest & self.uploads.keys()
        bare = {who for who in uploaded if self.secret(who, SELF_MASK_SEED) is not None}
        keys = {who for who in self.u1 if self.private_mask_key(who) is not None}
        ties = {who: set() if who in keys else self.masked_with[who] - keys for who in uploaded}
        found: list[frozenset[int]] = []
        for who in bare:
            together, waiting = set(), {who}
            while waiting:
                one = waiting.pop()
                together.add(one)
                waiting |= ties.get(one, set()) - together
            if together <= bare and all(one in ties[other] for one in together for other in ties[one]):
                found.append(frozenset(together))
        return [one for one in dict.fromkeys(found) if not any(other < one for other in found)]

    def opens(self, members: Iterable[int]) -> bool:
        """Tell whether exactly the sum of these inputs opens."""
        members = tuple(members)
        opened = self.open_sum(members)
        if opened is None:
            return False
        total = sum(self.inputs[one].astype(object) for one in members) % (1 << self.config.parameters.bits)
        return bool((opened.astype(object) == total).all())
