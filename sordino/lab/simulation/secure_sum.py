"""One attempt of the protocol core in memory: both sides as deployed, every key, share, mask and signature, no network.

`sordino/lab/bench/secagg.py` times its phases; here it runs for its sum. Messages pass as the core's objects, and each
participant sees only what the coordinator would send it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from secagg import client_phases, server_phases
from secagg.context import RoundConfig
from secagg.keys import IdentityKey
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from secagg.server_unmasking import Completed

_NAME: Final = "simulation"


class SecureSum:
    """An attempt that has come as far as the encrypted shares: its cohort is fixed, nobody has sent a vector.

    Keys are drawn from the operating system, for this attempt alone; a roster of the cohort is signed with them.

    Args:
        parameters: of the plan.
        members: participants of the round, ascending, whose numbers are those of ``finish``; at least the quorum.
        round, attempt: >= 1.

    Raises:
        secagg.errors.TooFewClients: fewer members than the quorum.
    """

    def __init__(self, parameters: RoundParameters, members: tuple[int, ...], round: int, attempt: int) -> None:
        self._members = members
        identities = sorted((IdentityKey.generate(os.urandom) for _ in members), key=lambda key: key.public)
        authority = Ed25519PrivateKey.generate()
        entries = tuple(RosterEntry(key.public, f"host-{at}") for at, key in enumerate(identities))
        signed = sign_roster(Roster(_NAME, 1, entries), authority)
        roster = verify_roster(signed, authority.public_key().public_bytes_raw())
        config = RoundConfig(
            roster=roster,
            round=round,
            attempt=attempt,
            study_digest=hashlib.sha256(_NAME.encode()).digest(),
            model_digest=bytes(32),
            parameters=parameters,
        )
        self._signed = parameters.signed
        advertise = server_phases.AdvertiseKeys(config, frozenset(range(len(members))))
        self._clients: dict[int, Any] = {}
        for who, identity in enumerate(identities):
            self._clients[who], advertisement = client_phases.AdvertiseKeys(config, identity, os.urandom).advertise()
            advertise.receive(who, advertisement)
        share, keys = advertise.close()
        for who in keys:
            self._clients[who], shares = self._clients[who].receive(keys[who])
            share.receive(who, shares)
        self._context = share.cohort.context
        self._collection, self._shares = share.close()

    @property
    def context(self) -> bytes:
        """32 bytes that seed the attempt's rotation, as in a study."""
        return self._context

    def finish(self, vectors: Mapping[int, NDArray[Any]]) -> Completed:
        """Mask, sum and unmask; whoever has no vector left after the encrypted shares. To be called once.

        Args:
            vectors: of the survivors, by their numbers: (padded_dim,) words below 2^B.

        Returns:
            The end of the attempt, with u3 under the members' numbers.

        Raises:
            secagg.errors.TooFewClients: fewer survivors than the plan allows.
        """
        collection, clients = self._collection, self._clients
        for who, number in enumerate(self._members):
            if number not in vectors:
                del clients[who]
                continue
            clients[who], upload = clients[who].receive(self._shares[who]).mask(vectors[number])
            collection.receive(who, upload)
        check, requests = collection.close()
        if self._signed:
            for who in requests:
                clients[who], signature = clients[who].receive(requests[who])
                check.receive(who, signature)
            unmasking, requests = check.close()
        else:
            unmasking = check.without_signatures()
        for who in requests:
            if unmasking.enough:
                break
            _, reply = clients[who].receive(requests[who])
            unmasking.receive(who, reply)
        done = unmasking.close()
        named = [frozenset(self._members[who] for who in one) for one in (done.u3, done.u4, done.u5)]
        return Completed(done.cohort_context, *named, done.total)
