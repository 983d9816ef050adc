"""Lies that need a ring, where a few can be cut off from the others; and lies about noise to be taken back.

14 participants on the ring of tests/support/small_rings.py, of degree 6 with threshold 5. The coordinator waits until
the ring is known and then corrupts four members at the best places, two on either side of an arc. One may drop out,
and the ring holds; a sum has 9 honest inputs.

    place     0      1 2  3 4 5 6  7       8 9  10 11 12 13
              drops  A A  near     victim  A A  far
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from unittest import mock

from secagg.parameters import RoundParameters
from secagg.sharing import Sharing
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import (
    CheatingCoordinator,
    cheating,
    coordinator_script,
    in_attempt,
    with_coordinator,
)
from tests.adversary.coordinator_scripts import (
    ALL,
    ANY_PRICE,
    COLLUDERS,
    FEW_NEIGHBOURS,
    FEWER_SIGNED,
    HONEST,
    SMALL,
    naive,
)
from tests.adversary.coordinator_scripts_again import KEPT_AND_ASKED_AGAIN
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


def neighbour_missed_u2(script: str, must: str, check: str, *, evidence: bool = True, of: str = "victim") -> None:
    """Register a script in which the victim masks only with the arc and with colluders, and others give its seed."""

    @coordinator_script(must, naive(check, shows="the sum of 5 honest inputs opens, 9 were promised"), script=script)
    async def run(places: Places) -> Seen:
        async with on_a_ring(places) as ring:
            answering = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.far
            await ring.masked(answering, ring.signers)
            if of == "another":
                ring.cohort.signed_uploads[ring.victim] = ring.cohort.signed_uploads[min(ring.near)]
            await ring.opened(ring.members - {ring.drops}, evidence=evidence)
            return ring.attempt.verdict(answering, "unmasking")


neighbour_missed_u2(
    "ring-neighbours-missed-u2: Claims to a participant beside an arc of the ring that its neighbours on the other "
    "side missed u2. It will not sign another u2, and need not: the others are enough, and can reveal its seed.",
    "Its neighbours refuse: its signed upload states another u2 than theirs.",
    NOT_UPLOADED,
)
neighbour_missed_u2(
    "ring-upload-not-shown: The same, without showing what the participant uploaded.",
    "Its neighbours refuse: they require the upload of each neighbour that did not sign.",
    ONE_UPLOAD,
    evidence=False,
)
neighbour_missed_u2(
    "ring-upload-of-another: The same, and shows as the participant's upload that of another member, which does state "
    "their u2.",
    "Its neighbours refuse: an upload is signed by its sender.",
    NOT_UPLOADED,
    of="another",
)


@coordinator_script(
    "It refuses before it masks: as many neighbours as the threshold must be in u2.",
    naive(FEW_NEIGHBOURS, shows="goes on"),
    naive(FEW_NEIGHBOURS, NOT_UPLOADED, shows="exposed"),
)
async def ring_left_with_colluders(places: Places) -> Seen:
    """Claims to a victim that all its honest neighbours missed u2, in a plan that allows that many to be missing."""
    async with on_a_ring(places, "looser") as ring:
        honest = frozenset(ring.cohort.graph.neighbours(ring.victim)) & ring.coordinator.honest
        await ring.masked(honest, ring.signers | {ring.drops})
        await ring.opened(ring.members)
        return ring.attempt.verdict([ring.victim], "masked_input")


@coordinator_script(
    "All refuse to sign: there are more dropouts than the ring's degree was chosen for.",
    naive("u3 has {len(u3)}", also=(ANY_PRICE,), shows="the sum of 4 honest inputs opens, 9 were promised"),
)
async def ring_arc_cut_out(places: Places) -> Seen:
    """Calls two participants dropouts that, with the four colluders, are all that ties an arc to the rest of the
    ring."""
    async with on_a_ring(places) as ring:
        await ring.masked((), ring.signers | {ring.drops})
        await ring.opened(ring.members - {ring.drops, ring.victim})
        return ring.attempt.verdict(ring.signers, "consistency")


# ---------------------------------------------------------------- more noise taken back than the plan can spare

# If k of nine survive, each reveals the seeds of parts of its noise (`mechanisms.noise_parts`), more for a larger k.
# What `Attempt.lost` compares with the plan is the noise in each sum that opens whose seeds the coordinator never got.

TOO_LITTLE = "opens with less noise than was promised"
# It takes those for dropouts that did not sign, and reveals shares of their mask keys.
SILENT_ARE_DROPOUTS = naive(
    changed={
        "_reveal(cohort, self._u2, self._u3": "_reveal(cohort, self._u2, {who for who, _ in message.signatures}",
        "released_seeds(len(u3))": "released_seeds(len(u2))",  # here the same number
    },
    shows=TOO_LITTLE,
)


async def counted(attempt: Attempt, cohort: Notes, missing: frozenset[int]) -> Seen:
    """Withhold the upload credits of some, and count them among the survivors: all that uploaded reveal all seeds."""
    coordinator, everyone = attempt.coordinator, frozenset(cohort.u1)
    await attempt.show(cohort)
    await attempt.tell_u2(cohort, everyone, missing, credit=False)
    for who in missing:
        offer = attempt.heard(who, "masked_input")
        cohort.signed_uploads[who] = (offer.sha256, offer.signature)
    present = coordinator.honest - missing
    await attempt.tell_u2(cohort, everyone, present)
    await attempt.finish(cohort, (everyone, everyone), present)
    given = {len(attempt.heard(who, "unmasking").noise_seeds) for who in present}
    assert given == {attempt.config.parameters.noise_seeds}, "the seeds aren't all revealed"
    seen = coordinator.came_out("no sum", "all seeds are revealed")
    if not seen.broken:  # nor is it the sum that is left when all masks that the coordinator knows are taken off
        cohort.masked_with = {who: near - missing for who, near in cohort.masked_with.items()}
        seen = coordinator.came_out(seen.outcome, seen.detail)
    return seen


@in_attempt(
    "They can't know it and reveal the seeds, but no sum opens: it contains the masks with the two.",
    SILENT_ARE_DROPOUTS,
    outcome="no sum",
)
async def survivors_that_never_uploaded(attempt: Attempt) -> Seen:
    """Counts two participants that it let upload nothing among the survivors, so that the others take back more
    noise."""
    return await counted(attempt, attempt.cohort(), frozenset({5, 6}))


@coordinator_script(
    "They reveal the seeds, but no sum opens: the ring of the survivors is connected, and masks with the one stay in.",
    SILENT_ARE_DROPOUTS,
    outcome="no sum",
)
async def ring_survivor_that_never_uploaded(places: Places) -> Seen:
    """The same with one participant on a ring, where it shows the neighbours the upload that this one signed."""
    async with on_a_ring(places) as ring:
        return await counted(ring.attempt, ring.cohort, frozenset({ring.drops}))


LATE = 6  # uploads nothing
UPLOADED = HONEST - {LATE}


async def masked_without_one(attempt: Attempt) -> Notes:
    cohort = await attempt.show()
    await attempt.tell_u2(cohort, ALL, UPLOADED)
    return cohort


@in_attempt(
    "The two refuse: too few have signed the survivors that they were shown.", naive(FEWER_SIGNED, shows=TOO_LITTLE)
)
async def more_survivors_for_some(attempt: Attempt) -> Seen:
    """Counts a participant that never uploaded as a survivor to two of six, and as a dropout to the others, who are
    enough to open the sum: the two would reveal too many seeds."""
    cohort, some = await masked_without_one(attempt), frozenset({0, 1})
    sets = {who: (ALL, ALL if who in some else ALL - {LATE}) for who in UPLOADED}
    signed = await attempt.ask_to_sign(cohort, sets, UPLOADED)
    shown = {
        who: {one: signed[one] for one in signed if sets[one] == own} | attempt.colluders_sign(cohort, own)
        for who, own in sets.items()
    }
    await attempt.ask_to_unmask(cohort, sets, shown, UPLOADED)
    assert attempt.opened(cohort, ALL - {LATE})
    return attempt.verdict(some, "unmasking")


@in_attempt(
    "All refuse the second sets: each has signed once and answered once.",
    replace(KEPT_AND_ASKED_AGAIN, shows=TOO_LITTLE),
)
async def further_seeds_afterwards(attempt: Attempt) -> Seen:
    """Has a sum opened, then shows survivors with one more, that never uploaded, to get the seeds of further parts."""
    cohort = await masked_without_one(attempt)
    await attempt.finish(cohort, (ALL, ALL - {LATE}), UPLOADED)
    assert attempt.opened(cohort, ALL - {LATE})
    await attempt.finish(cohort, (ALL, ALL), UPLOADED)
    return attempt.verdict(UPLOADED)


@with_coordinator(
    "None fits: seeds are drawn anew in each attempt.",
    naive(changed={"cohort.random_bytes(NOISE_SEED_BYTES)": "cohort.identity(cohort.me)"}, shows=TOO_LITTLE),
    outcome="sum of the others",
)
async def noise_seeds_of_an_earlier_attempt(coordinator: CheatingCoordinator) -> Seen:
    """Gets the seeds of all parts in an attempt without dropouts, and tries them on a later attempt with few
    survivors."""
    await (await coordinator.begin(1, 1)).run()
    attempt = await coordinator.begin(1, 2)
    cohort, few = await attempt.masked(), SMALL | COLLUDERS
    await attempt.finish(cohort, (ALL, few), SMALL)
    assert attempt.opened(cohort, few)
    return coordinator.came_out("sum of the others")
