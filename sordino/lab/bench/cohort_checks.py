"""A participant's checks of a large cohort other than signatures: roster, lottery, members, keys, numbers."""

from __future__ import annotations

import os
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.client_phases import AdvertiseKeys, ShareKeys
from secagg.context import RoundConfig, winners
from secagg.keys import IdentityKey
from secagg.lottery import Draws
from secagg.messages import Advertisement, CohortKeys
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster

ROUNDS = 30


class _Unsigned(Roster):
    """A roster that accepts every signature; signature checks are measured separately."""

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        return True


def cohort_checks(cohort: int, population: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the timed calls: those per roster version, and those per attempt.

    Args:
        cohort: participants of the round, drawn by the lottery from ``population``.

    Returns:
        Reading and checking the roster's file; and from the round's beginning to a checked u1.
    """
    authority, identity = Ed25519PrivateKey.generate(), IdentityKey.generate(os.urandom)
    public = authority.public_key().public_bytes_raw()
    identities = sorted([identity.public, *(os.urandom(32) for _ in range(population - 1))])
    entries = tuple(RosterEntry(one, f"host-{at:06d}") for at, one in enumerate(identities))
    draws = Draws.draw("bench", 1, ROUNDS, os.urandom)
    data = sign_roster(Roster("bench", 1, entries, draws.lottery), authority)
    roster = _Unsigned("bench", 1, entries, draws.lottery)
    me = roster.positions[identity.public]
    # The first round for which the lottery draws the participant; if there is none, another lottery is drawn.
    lucky = (one for one in range(1, ROUNDS + 1) if me in winners(roster, one, draws.ticket(one), cohort))
    round_ = next(lucky, None)
    if round_ is None:
        return cohort_checks(cohort, population)
    colluders = cohort // 20
    fewest = (cohort + colluders) // 2 + 1
    parameters = RoundParameters(
        cohort=cohort, colluders=colluders, min_survivors=fewest, quorum=fewest, bits=16, dim=1000
    )
    ticket = draws.ticket(round_)
    others = {
        who: Advertisement(os.urandom(32), os.urandom(32), os.urandom(64))
        for who in sorted(winners(roster, round_, ticket, cohort))
    }

    def read() -> object:
        return verify_roster(data, public)

    def check() -> object:
        config = RoundConfig(
            roster=roster,
            round=round_,
            attempt=1,
            study_digest=bytes(32),
            model_digest=bytes(32),
            parameters=parameters,
            ticket=ticket,
        )
        phase, mine = AdvertiseKeys(config, identity, os.urandom).advertise()
        assert isinstance(phase, ShareKeys)  # noqa: S101
        return phase._check(CohortKeys(tuple((others | {me: mine}).items())))

    return read, check
