"""Secure aggregation of a simulated round: the protocol core in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg.context import RoundConfig
from secagg.in_memory import InMemoryAttempt, fresh_roster
from secagg.masking import MAX_BITS, word_dtype
from secagg.messages import MASKED_INPUT
from secagg.parameters import FEWEST_COLLUDERS, RoundParameters, complete_graph_threshold
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


def secure_sum(vectors: Sequence[ArrayLike], *, drop: Collection[int] = ()) -> NDArray[np.int64]:
    """One secure sum in this process, for a first look: real keys, shares, masks and signatures, no network, no noise.

    Args:
        vectors: of 3 or more participants, each (dim,) integers.
        drop: places in ``vectors`` of participants that leave after the encrypted shares; the others rebuild their
            masks.

    Returns:
        (dim,) the sum over those that stay. Of the vectors, the coordinator's side sees this sum and their masked form.

    Raises ValueError: too few vectors, other shapes or types, too large, or more leave than the threshold allows.
    """
    given = [np.asarray(vector) for vector in vectors]
    count, dropped = len(given), frozenset(drop)
    if count <= FEWEST_COLLUDERS:
        raise ValueError(f"a secure sum needs at least {FEWEST_COLLUDERS + 1} vectors, not {count}")
    if len({vector.shape for vector in given}) != 1 or given[0].ndim != 1 or not given[0].size:
        raise ValueError("the vectors must have one dimension and the same length")
    if not all(np.issubdtype(vector.dtype, np.integer) for vector in given):
        raise ValueError("the vectors must hold integers: scale and round first, as sordino.Encoder does")
    least = complete_graph_threshold(count, FEWEST_COLLUDERS)
    if not dropped <= set(range(count)) or count - len(dropped) < least:
        raise ValueError(f"drop names at most {count - least} of the places 0 to {count - 1}")
    largest = max(max(int(vector.max()), -int(vector.min())) for vector in given)
    bits = (count * largest).bit_length() + 1
    if bits > MAX_BITS:
        raise ValueError(f"the sum needs {bits} bits, and {MAX_BITS} is the most: use smaller values")
    parameters = RoundParameters(
        cohort=count, colluders=FEWEST_COLLUDERS, min_survivors=least, quorum=least, bits=bits, dim=given[0].size
    )
    # Of negative numbers the residues modulo 2^bits.
    words = {who: (one.astype(np.int64) & (1 << bits) - 1).astype(word_dtype(bits)) for who, one in enumerate(given)}
    staying = {who: word for who, word in words.items() if who not in dropped}
    total = SecureSum(parameters, tuple(words), 1, 1).finish(staying).total.astype(np.int64)
    return total - (total >> bits - 1 << bits)
