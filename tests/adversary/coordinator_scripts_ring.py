"""Lies that need a ring: where not all are neighbours, a few can be cut off from the others.

14 participants on the ring of tests/support/small_rings.py, of degree 6 with threshold 5. The coordinator waits until
the ring is known and then corrupts four members at the best places, two on either side of an arc. One may drop out,
and the ring holds; a sum has 9 honest inputs.

    place     0      1 2  3 4 5 6  7       8 9  10 11 12 13
              drops  A A  near     victim  A A  far
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from unittest import mock

from secagg.parameters import RoundParameters
from secagg.sharing import Sharing
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import CheatingCoordinator, cheating, coordinator_script
from tests.adversary.coordinator_scripts import ANY_PRICE, FEW_NEIGHBOURS, naive
from tests.adversary.script import Places, Seen
from tests.support.coordinator_notes import Notes
from tests.support.small_rings import CUT, CUT_COLLUDERS, CUT_DROPS, CUT_FAR, CUT_NEAR, CUT_VICTIM

NOT_UPLOADED = "did not upload what was masked in this u2"
ONE_UPLOAD = "there must be one upload for each neighbour that isn't a signer"


@dataclass(frozen=True)
class Ring:
    """An attempt whose ring is known, with the members by their places on it."""

    coordinator: CheatingCoordinator
    attempt: Attempt
    cohort: Notes
    drops: int
    near: frozenset[int]
    victim: int
    far: frozenset[int]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self.cohort.u1)

    @property
    def signers(self) -> frozenset[int]:
        return self.near | self.far

    async def masked(self, hidden: Iterable[int], others: Iterable[int]) -> None:
        """Claim to the victim that some missed u2, and send the others the truth."""
        await self.attempt.show(self.cohort)
        await self.attempt.tell_u2(self.cohort, self.members - frozenset(hidden), [self.victim])
        await self.attempt.tell_u2(self.cohort, self.members, others)

    async def opened(self, survivors: frozenset[int], *, evidence: bool = True) -> None:
        """Let the signers and the colluders open what all but the victim agree on."""
        await self.attempt.finish(self.cohort, (self.members, survivors), self.signers, evidence=evidence)


@contextlib.asynccontextmanager
async def on_a_ring(places: Places, study: str = "ring") -> AsyncIterator[Ring]:
    """Begin an attempt: all have advertised, and the ring and its four colluders are known."""
    real = RoundParameters.sharing
    [(members, degree, threshold)] = CUT

    def sharing(parameters: RoundParameters, u1: int) -> Sharing:
        return Sharing(degree, threshold) if u1 == members else real(parameters, u1)

    with mock.patch.object(RoundParameters, "sharing", sharing):
        async with cheating(places, study, colluders=0) as coordinator:
            attempt = await coordinator.begin()
            ring = attempt.cohort().graph.ring
            attempt.cohorts.clear()
            attempt.corrupt(ring[at] for at in CUT_COLLUDERS)
            near, far = (frozenset(ring[at] for at in part) for part in (CUT_NEAR, CUT_FAR))
            yield Ring(coordinator, attempt, attempt.cohort(), ring[CUT_DROPS], near, ring[CUT_VICTIM], far)


def neighbour_missed_u2(
    name: str, does: str, must: str, check: str, *, evidence: bool = True, of: str = "victim"
) -> None:
    """Register a script in which the victim masks only with the arc and with colluders, and others give its seed."""

    @coordinator_script(does, must, naive(check, shows="the sum of 5 honest inputs opens, 9 were promised"), name=name)
    async def run(places: Places) -> Seen:
        async with on_a_ring(places) as ring:
            answering = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.far
            await ring.masked(answering, ring.signers)
            if of == "another":
                ring.cohort.signed_uploads[ring.victim] = ring.cohort.signed_uploads[min(ring.near)]
            await ring.opened(ring.members - {ring.drops}, evidence=evidence)
            return ring.attempt.verdict(answering, "unmasking")


neighbour_missed_u2(
    "ring-neighbours-missed-u2",
    "Claims to a participant beside an arc of the ring that its neighbours on the other side missed u2. It will not "
    "sign another u2, and need not: the others are enough, and can reveal its seed.",
    "Its neighbours refuse: its signed upload states another u2 than theirs.",
    NOT_UPLOADED,
)
neighbour_missed_u2(
    "ring-upload-not-shown",
    "The same, without showing what the participant uploaded.",
    "Its neighbours refuse: they require the upload of each neighbour that did not sign.",
    ONE_UPLOAD,
    evidence=False,
)
neighbour_missed_u2(
    "ring-upload-of-another",
    "The same, and shows as the participant's upload that of another member, which does state their u2.",
    "Its neighbours refuse: an upload is signed by its sender.",
    NOT_UPLOADED,
    of="another",
)


@coordinator_script(
    "Claims to a victim that all its honest neighbours missed u2, in a plan that allows that many to be missing.",
    "It refuses before it masks: as many neighbours as the threshold must be in u2.",
    naive(FEW_NEIGHBOURS, shows="goes on"),
    naive(FEW_NEIGHBOURS, NOT_UPLOADED, shows="exposed"),
)
async def ring_left_with_colluders(places: Places) -> Seen:
    async with on_a_ring(places, "looser") as ring:
        honest = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.coordinator.honest
        await ring.masked(honest, ring.signers | {ring.drops})
        await ring.opened(ring.members)
        return ring.attempt.verdict([ring.victim], "masked_input")


@coordinator_script(
    "Calls two participants dropouts that, with the four colluders, are all that ties an arc to the rest of the ring.",
    "All refuse to sign: there are more dropouts than the ring's degree was chosen for.",
    naive("u3 has {len(u3)}", also=(ANY_PRICE,), shows="the sum of 4 honest inputs opens, 9 were promised"),
)
async def ring_arc_cut_out(places: Places) -> Seen:
    async with on_a_ring(places) as ring:
        await ring.masked((), ring.signers | {ring.drops})
        await ring.opened(ring.members - {ring.drops, ring.victim})
        return ring.attempt.verdict(ring.signers, "consistency")
