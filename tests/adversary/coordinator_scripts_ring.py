"""Lies that need a ring: where not everybody is everybody's neighbour, a few can be cut off from the others.

14 participants on the ring of tests/secagg/small_rings.py, of degree 6 with threshold 5. The coordinator waits until
the ring is known, and then has four in its pay that stand where it hurts most, two on either side of an arc. One may
drop out, and the ring holds; a sum has 9 honest inputs.

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
from tests.adversary.cheating_coordinator import CheatingCoordinator, cheating
from tests.adversary.coordinator_notes import Notes
from tests.adversary.coordinator_scripts import ANY_PRICE, FEW_NEIGHBOURS, naive
from tests.adversary.script import COORDINATOR, Places, Seen, scripted
from tests.support.small_rings import CUT, CUT_COLLUDERS, CUT_DROPS, CUT_FAR, CUT_NEAR, CUT_VICTIM

NOT_UPLOADED = "did not upload what was masked in this u2"
ONE_UPLOAD = "there must be one upload for each neighbour that isn't a signer"


@dataclass(frozen=True)
class Ring:
    """An attempt whose ring is known, with everybody's place on it."""

    coordinator: CheatingCoordinator
    attempt: Attempt
    cohort: Notes
    drops: int
    near: frozenset[int]
    victim: int
    far: frozenset[int]

    @property
    def everybody(self) -> frozenset[int]:
        return frozenset(self.cohort.u1)

    @property
    def signers(self) -> frozenset[int]:
        return self.near | self.far

    async def masked(self, hidden: Iterable[int], others: Iterable[int]) -> None:
        """The victim is told that some missed u2; the others are told the truth."""
        await self.attempt.show(self.cohort)
        await self.attempt.tell_u2(self.cohort, self.everybody - frozenset(hidden), [self.victim])
        await self.attempt.tell_u2(self.cohort, self.everybody, others)

    async def opened(self, survivors: frozenset[int], *, evidence: bool = True) -> None:
        """Those who sign, and the colluders, open what all but the victim agree on."""
        sets = self.everybody, survivors
        signed = await self.attempt.ask_to_sign(self.cohort, sets, self.signers)
        signed |= self.attempt.colluders_sign(self.cohort, sets)
        await self.attempt.ask_to_unmask(self.cohort, sets, signed, self.signers, evidence=evidence)


@contextlib.asynccontextmanager
async def on_a_ring(places: Places, study: str = "ring") -> AsyncIterator[Ring]:
    """Everybody has advertised, the ring is known, and so are the four who collude."""
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


async def told_that_a_neighbour_missed_u2(places: Places, *, evidence: bool = True, of: str = "victim") -> Seen:
    """The victim masks with the arc and with colluders; her seed is asked for elsewhere."""
    async with on_a_ring(places) as ring:
        answering = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.far
        await ring.masked(answering, ring.signers)
        if of == "another":
            ring.cohort.signed_uploads[ring.victim] = ring.cohort.signed_uploads[min(ring.near)]
        await ring.opened(ring.everybody - {ring.drops}, evidence=evidence)
        return ring.attempt.verdict(answering, "unmasking")


@scripted(
    name="ring-neighbours-missed-u2",
    cheat=COORDINATOR,
    does="Tells somebody beside an arc of the ring that her neighbours on its other side missed u2. She will not sign "
    "another u2, and needn't: the others are enough, and her seed is theirs to give.",
    must="Her neighbours refuse: her signed upload says another u2 than theirs.",
    outcome="refused",
    check=(naive(NOT_UPLOADED, shows="the sum of 5 honest inputs opens, 9 were promised"),),
)
async def ring_missed_u2(places: Places) -> Seen:
    return await told_that_a_neighbour_missed_u2(places)


@scripted(
    name="ring-upload-not-shown",
    cheat=COORDINATOR,
    does="The same, and shows nobody what she uploaded.",
    must="Her neighbours refuse: of whoever did not sign, they want to see the upload.",
    outcome="refused",
    check=(naive(ONE_UPLOAD, shows="the sum of 5 honest inputs opens, 9 were promised"),),
)
async def ring_no_upload(places: Places) -> Seen:
    return await told_that_a_neighbour_missed_u2(places, evidence=False)


@scripted(
    name="ring-upload-of-another",
    cheat=COORDINATOR,
    does="The same, and shows another member's upload as hers, which does say their u2.",
    must="Her neighbours refuse: an upload is signed by whose it is.",
    outcome="refused",
    check=(naive(NOT_UPLOADED, shows="the sum of 5 honest inputs opens, 9 were promised"),),
)
async def ring_other_upload(places: Places) -> Seen:
    return await told_that_a_neighbour_missed_u2(places, of="another")


@scripted(
    name="ring-left-with-colluders",
    cheat=COORDINATOR,
    does="Tells a victim that all her honest neighbours missed u2, in a plan that lets so many be missing.",
    must="She refuses before she masks: as many neighbours as the threshold must be in u2.",
    outcome="refused",
    check=(
        naive(FEW_NEIGHBOURS, shows="goes on"),
        naive(FEW_NEIGHBOURS, NOT_UPLOADED, shows="exposed"),
    ),
)
async def ring_with_colluders(places: Places) -> Seen:
    async with on_a_ring(places, "looser") as ring:
        honest = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.coordinator.honest
        await ring.masked(honest, ring.signers | {ring.drops})
        await ring.opened(ring.everybody)
        return ring.attempt.verdict([ring.victim], "masked_input")


@scripted(
    name="ring-arc-cut-out",
    cheat=COORDINATOR,
    does="Calls two participants dropouts who, with the four colluders, are all that ties an arc to the rest of the "
    "ring.",
    must="Everybody refuses to sign: more dropouts than the ring's degree was chosen for.",
    outcome="refused",
    check=(naive("u3 has {len(u3)}", also=(ANY_PRICE,), shows="the sum of 4 honest inputs opens, 9 were promised"),),
)
async def ring_arc(places: Places) -> Seen:
    async with on_a_ring(places) as ring:
        await ring.masked((), ring.signers | {ring.drops})
        await ring.opened(ring.everybody - {ring.drops, ring.victim})
        return ring.attempt.verdict(ring.signers, "consistency")
