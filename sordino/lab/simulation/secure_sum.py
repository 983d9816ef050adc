"""Secure aggregation of a simulated round: the protocol core in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from secagg.context import RoundConfig
from secagg.in_memory import InMemoryAttempt, fresh_roster
from secagg.messages import MASKED_INPUT
from secagg.parameters import RoundParameters
from secagg.server_unmasking import Completed, Unmasking

_NAME: Final = "simulation"


class SecureSum(InMemoryAttempt):
    """An attempt after the encrypted shares: its cohort is fixed, no vectors have been sent.

    Keys are drawn from the operating system, for this attempt alone; a roster of the cohort is signed with them.

    Args:
        parameters: of the plan.
        members: participants of the round, ascending, whose numbers are those of ``finish``; at least the quorum, else
            `secagg.errors.TooFewClients`.
    """

    def __init__(self, parameters: RoundParameters, members: tuple[int, ...], round: int, attempt: int) -> None:
        roster, identities = fresh_roster(_NAME, len(members), os.urandom)
        config = RoundConfig(
            roster=roster,
            round=round,
            attempt=attempt,
            study_digest=hashlib.sha256(_NAME.encode()).digest(),
            model_digest=bytes(32),
            parameters=parameters,
        )
        self._members = members
        self._vectors: Mapping[int, NDArray[Any]] = {}
        super().__init__(
            config, dict(enumerate(identities)), lambda _: os.urandom, lambda who: self._vectors[members[who]]
        )
        self.step()  # AdvertiseKeys
        self.step()  # ShareKeys
        self.context: bytes = self.coordinator.cohort.context
        """32 bytes that seed the attempt's rotation, as in a study."""

    def exchange(self, who: int) -> None:
        """Exchange one participant's messages; do nothing once the coordinator has enough shares."""
        if not (isinstance(self.coordinator, Unmasking) and self.coordinator.enough):
            super().exchange(who)

    def finish(self, vectors: Mapping[int, NDArray[Any]]) -> Completed:
        """Mask, sum and unmask. To be called once.

        ``vectors``: of the survivors, by their numbers: (padded_dim,) words below 2^B. All other members leave after
        the encrypted shares; `secagg.errors.TooFewClients` if the plan needs more survivors.

        Returns the end of the attempt, with u3 under the members' numbers.
        """
        self._vectors = vectors
        self.leaving = {MASKED_INPUT: [who for who, number in enumerate(self._members) if number not in vectors]}
        done = self.run()
        u3, u4, u5 = (frozenset(self._members[who] for who in one) for one in (done.u3, done.u4, done.u5))
        return Completed(done.cohort_context, u3, u4, u5, done.total)
