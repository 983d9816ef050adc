"""Lies that would have more noise taken back than the plan can spare: about the number of survivors, and twice.

If k of nine survive, each reveals the seeds of parts of its noise (`mechanisms.noise_parts`), more for a larger k. What
`Attempt.lost` compares with the plan is the noise in each sum that opens whose seeds the coordinator never got.
"""

from __future__ import annotations

from dataclasses import replace

from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import CheatingCoordinator, coordinator_script, in_attempt, with_coordinator
from tests.adversary.coordinator_scripts import ALL, COLLUDERS, FEWER_SIGNED, HONEST, SMALL, naive
from tests.adversary.coordinator_scripts_again import KEPT_AND_ASKED_AGAIN
from tests.adversary.coordinator_scripts_ring import on_a_ring
from tests.adversary.script import Places, Seen
from tests.support.coordinator_notes import Notes

TOO_LITTLE = "opens with less noise than was promised"
# It takes those for dropouts that did not sign, and reveals shares of their mask keys.
SILENT_ARE_DROPOUTS = naive(
    changed=(
        ("_reveal(cohort, self._u2, self._u3", "_reveal(cohort, self._u2, {who for who, _ in message.signatures}"),
        ("released_seeds(len(u3))", "released_seeds(len(u2))"),  # here the same number
    ),
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
    "Counts two participants that it let upload nothing among the survivors, so that the others take back more noise.",
    "They can't know it and reveal the seeds, but no sum opens: it contains the masks with the two.",
    SILENT_ARE_DROPOUTS,
    outcome="no sum",
)
async def survivors_that_never_uploaded(attempt: Attempt) -> Seen:
    return await counted(attempt, attempt.cohort(), frozenset({5, 6}))


@coordinator_script(
    "The same with one participant on a ring, where it shows the neighbours the upload that this one signed.",
    "They reveal the seeds, but no sum opens: the ring of the survivors is connected, and masks with the one stay in.",
    SILENT_ARE_DROPOUTS,
    outcome="no sum",
)
async def ring_survivor_that_never_uploaded(places: Places) -> Seen:
    async with on_a_ring(places) as ring:
        return await counted(ring.attempt, ring.cohort, frozenset({ring.drops}))


LATE = 6  # uploads nothing
UPLOADED = HONEST - {LATE}


async def masked_without_one(attempt: Attempt) -> Notes:
    cohort = await attempt.show()
    await attempt.tell_u2(cohort, ALL, UPLOADED)
    return cohort


@in_attempt(
    "Counts a participant that never uploaded as a survivor to two of six, and as a dropout to the others, who are "
    "enough to open the sum: the two would reveal too many seeds.",
    "The two refuse: too few have signed the survivors that they were shown.",
    naive(FEWER_SIGNED, shows=TOO_LITTLE),
)
async def more_survivors_for_some(attempt: Attempt) -> Seen:
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
    "Has a sum opened, then shows survivors with one more, that never uploaded, to get the seeds of further parts.",
    "All refuse the second sets: each has signed once and answered once.",
    replace(KEPT_AND_ASKED_AGAIN, shows=TOO_LITTLE),
)
async def further_seeds_afterwards(attempt: Attempt) -> Seen:
    cohort = await masked_without_one(attempt)
    await attempt.finish(cohort, (ALL, ALL - {LATE}), UPLOADED)
    assert attempt.opened(cohort, ALL - {LATE})
    await attempt.finish(cohort, (ALL, ALL), UPLOADED)
    return attempt.verdict(UPLOADED)


@with_coordinator(
    "Gets the seeds of all parts in an attempt without dropouts, and tries them on a later attempt with few survivors.",
    "None fits: seeds are drawn anew in each attempt.",
    naive(changed=(("cohort.random_bytes(NOISE_SEED_BYTES)", "cohort.identity(cohort.me)"),), shows=TOO_LITTLE),
    outcome="sum of the others",
)
async def noise_seeds_of_an_earlier_attempt(coordinator: CheatingCoordinator) -> Seen:
    await (await coordinator.begin(1, 1)).run()
    attempt = await coordinator.begin(1, 2)
    cohort, few = await attempt.masked(), SMALL | COLLUDERS
    await attempt.finish(cohort, (ALL, few), SMALL)
    assert attempt.opened(cohort, few)
    return coordinator.came_out("sum of the others")
