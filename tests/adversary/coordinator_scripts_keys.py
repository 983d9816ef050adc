"""Lies about who is in the cohort and by which keys: invitations, u1, advertisements, draws."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from secagg.keys import AgreementKey
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import CheatingCoordinator, cheating
from tests.adversary.coordinator_scripts import (
    ALL,
    ANY_PRICE,
    COLLUDERS,
    HONEST,
    SMALL_U2,
    VICTIM,
    finish_with,
    naive,
    twisted,
)
from tests.adversary.script import COORDINATOR, Naive, Places, Seen, scripted
from tests.support.attempts_in_memory import LOW_ORDER
from wire import coordinator_pb2 as pb

UNSIGNED = "are not signed by it"
SIZES = "members, outside"


def own_keys() -> tuple[AgreementKey, AgreementKey]:
    """A private mask key and a private channel key of the coordinator's own."""
    return AgreementKey(os.urandom(32)), AgreementKey(os.urandom(32))


async def shown(attempt: Attempt, never: str = "share_keys", **cohort: Any) -> Seen:
    """Show the victim this cohort and nobody anything else."""
    await attempt.show(attempt.cohort(**cohort), [VICTIM])
    return attempt.verdict([VICTIM], never)


@scripted(
    name="keys-of-its-own",
    cheat=COORDINATOR,
    does="Shows one participant keys of the coordinator's own in everybody else's name, and opens what she seals for "
    "them.",
    must="She refuses before she deals: each advertisement is signed by an identity of the roster.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="both secrets of participant 0 are known"),),
)
async def in_the_middle(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        return await shown(attempt, own={who: own_keys() for who in ALL - {VICTIM}})


@scripted(
    name="keys-of-an-earlier-attempt",
    cheat=COORDINATOR,
    does="Shows a neighbour's advertisement of an earlier attempt, whose mask key was opened there.",
    must="She refuses: the attempt is in what the neighbour signed.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="goes on"),),
)
async def replayed_keys(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        earlier = await coordinator.begin(1, 1)
        cohort = await earlier.show()
        await earlier.tell_u2(cohort)
        await finish_with(earlier, cohort, (ALL, ALL - {3}), HONEST - {3})
        assert cohort.private_mask_key(3) is not None
        attempt = await coordinator.begin(1, 2)
        return await shown(attempt, changed={3: earlier.advertisements[3]})


@scripted(
    name="neighbours-change-names",
    cheat=COORDINATOR,
    does="Shows two neighbours' advertisements under one another's name.",
    must="Whoever sees them refuses.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="goes on"),),
)
async def names_changed(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        one, other = attempt.advertisements[3], attempt.advertisements[4]
        return await shown(attempt, changed={3: other, 4: one})


@scripted(
    name="keys-change-roles",
    cheat=COORDINATOR,
    does="Shows a neighbour's channel key as its mask key and its mask key as its channel key.",
    must="Whoever sees them refuses.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="goes on"),),
)
async def roles_changed(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        one = attempt.advertisements[3]
        return await shown(attempt, changed={3: replace(one, mask_key=one.channel_key, channel_key=one.mask_key)})


@scripted(
    name="own-key-altered",
    cheat=COORDINATOR,
    does="Shows a participant another mask key as her own.",
    must="She refuses.",
    outcome="refused",
    check=(naive("own keys unaltered", shows="goes on"),),
)
async def own_key_altered(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        mine = replace(attempt.advertisements[VICTIM], mask_key=own_keys()[0].public)
        return await shown(attempt, changed={VICTIM: mine})


@scripted(
    name="oneself-missing",
    cheat=COORDINATOR,
    does="Shows a participant a cohort without herself.",
    must="She refuses.",
    outcome="refused",
    check=(naive("own keys unaltered"),),
)
async def oneself_missing(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        return await shown(attempt, u1=ALL - {VICTIM})


@scripted(
    name="neighbour-by-digest-alone",
    cheat=COORDINATOR,
    does="Shows the digest of a neighbour's advertisement and not the keys in it.",
    must="Whoever needs the keys refuses.",
    outcome="refused",
    check=(naive("an advertisement of a neighbour is missing", shows="crashes"),),
)
async def by_digest(places: Places) -> Seen:
    def digest(who: int, keys: pb.CohortKeys) -> None:
        keys.members[1 if who == 0 else 0].advertisement_sha256 = bytes(32)

    return await twisted(places, "cohort_keys", digest, never="share_keys")


@scripted(
    name="two-colluders-with-one-key",
    cheat=COORDINATOR,
    does="Has a colluder advertise, under its own signature, the mask key of an honest neighbour.",
    must="Everybody refuses: no key twice in a cohort.",
    outcome="refused",
    check=(naive("the same public key is advertised twice", shows="goes on"),),
)
async def one_key_twice(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        copied = attempt.signed_by(7, attempt.advertisements[3].mask_key, attempt.advertisements[7].channel_key)
        return await shown(attempt, changed={7: copied})


@scripted(
    name="one-key-in-both-roles",
    cheat=COORDINATOR,
    does="Has a colluder advertise one key as mask key and as channel key.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive("the same public key is advertised twice", shows="goes on"),),
)
async def one_key_both_roles(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        key = attempt.advertisements[7].channel_key
        return await shown(attempt, changed={7: attempt.signed_by(7, key, key)})


@scripted(
    name="a-colluders-short-key",
    cheat=COORDINATOR,
    does="Has a colluder advertise, and sign, a mask key of 31 bytes.",
    must="Everybody refuses before they deal.",
    outcome="refused",
    check=(
        naive(
            "is not 32 bytes long",
            also=(Naive("wire.codec", without=("must have {length} bytes",)),),
            shows="goes on",
        ),
    ),
)
async def short_key(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        return await shown(attempt, changed={7: attempt.signed_by(7, bytes(31), attempt.advertisements[7].channel_key)})


# An agreement with a point of low order is all zero, whatever the private key is.
AGREES_ON_ZERO = Naive(
    "secagg.keys",
    without=("the agreement is all zero",),
    changed=(
        (
            'raise InvalidKey("the public key is of low order or not 32 bytes long") from error',
            "shared = bytes(32)",
        ),
    ),
    shows="goes on",
)


@scripted(
    name="low-order-channel-key",
    cheat=COORDINATOR,
    does="Has a colluder advertise a channel key of low order: what is sealed with it, anybody on the way could read.",
    must="Everybody refuses before they deal.",
    outcome="refused",
    check=(AGREES_ON_ZERO,),
)
async def low_order_channel(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        for round_, point in enumerate(LOW_ORDER, 1):
            attempt = await coordinator.begin(round_)
            advertised = attempt.signed_by(7, attempt.advertisements[7].mask_key, point)
            seen = await shown(attempt, changed={7: advertised})
            if seen.outcome != "refused":
                return seen
        return seen


@scripted(
    name="low-order-mask-key",
    cheat=COORDINATOR,
    does="Has a colluder advertise a mask key of low order, so that the masks with it are known to everybody.",
    must="Everybody refuses before they mask.",
    outcome="refused",
    check=(AGREES_ON_ZERO,),
)
async def low_order_mask(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        for round_, point in enumerate(LOW_ORDER, 1):
            attempt = await coordinator.begin(round_)
            advertised = attempt.signed_by(7, point, attempt.advertisements[7].channel_key)
            attempt.phases[7]._advertisement = advertised  # the colluder deals as if it were its own
            cohort = attempt.cohort(changed={7: advertised})
            await attempt.show(cohort)
            await attempt.tell_u2(cohort, ALL, [VICTIM])
            seen = attempt.verdict([VICTIM], "masked_input")
            if seen.outcome != "refused":
                return seen
        return seen


# ---------------------------------------------------------------- who is in the cohort


@scripted(
    name="victim-among-colluders",
    cheat=COORDINATOR,
    does="Shows a victim a cohort of herself and the two colluders.",
    must="She refuses before she deals: u1 must have the plan's quorum.",
    outcome="refused",
    check=(
        naive(SIZES, shows="goes on"),
        naive(
            SIZES,
            SMALL_U2,
            "u3 has {len(u3)}",
            shows="the input of participant 0 is exposed",
            also=(ANY_PRICE,),
        ),
    ),
)
async def among_colluders(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = attempt.cohort(COLLUDERS | {VICTIM})
        await attempt.show(cohort, [VICTIM])
        u1 = frozenset(cohort.u1)
        await attempt.tell_u2(cohort, u1, [VICTIM])
        await finish_with(attempt, cohort, (u1, u1), frozenset({VICTIM}))
        return attempt.verdict([VICTIM], "share_keys")


@scripted(
    name="members-not-ascending",
    cheat=COORDINATOR,
    does="Shows u1 in another order, so that positions on the polynomials, and signs of masks, would differ.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive("u1 is not strictly ascending"),),
)
async def not_ascending(places: Places) -> Seen:
    def swap(_: int, keys: pb.CohortKeys) -> None:
        members = list(keys.members)
        members[2], members[3] = members[3], members[2]
        del keys.members[:]
        keys.members.extend(members)

    return await twisted(places, "cohort_keys", swap, never="share_keys")


@scripted(
    name="colluder-listed-twice",
    cheat=COORDINATOR,
    does="Lists a colluder twice in u1, so that the cohort looks larger than it is.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive("u1 is not strictly ascending"),),
)
async def listed_twice(places: Places) -> Seen:
    def twice(who: int, keys: pb.CohortKeys) -> None:
        del keys.members[1 if who == 0 else 0]
        keys.members.append(keys.members[-1])

    return await twisted(places, "cohort_keys", twice, never="share_keys")


@scripted(
    name="stranger-in-u1",
    cheat=COORDINATOR,
    does="Invents a member of u1 who is not on the roster.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive("u1 names a participant that is not on the roster", shows="crashes"),),
)
async def stranger(places: Places) -> Seen:
    def invent(_: int, keys: pb.CohortKeys) -> None:
        keys.members[-1].participant = 99

    return await twisted(places, "cohort_keys", invent, never="share_keys")


# ---------------------------------------------------------------- what the round is about

SAME_MODEL = Naive(
    "secagg.context", changed=(("            self.model_digest,\n", ""),), shows="one sum over two models"
)


@scripted(
    name="another-model-to-one",
    cheat=COORDINATOR,
    does="Has one participant train another model than the others, so that her update can be told apart in the sum.",
    must="Nobody's keys verify for anybody else across the two models: all refuse before they deal.",
    outcome="refused",
    check=(naive(UNSIGNED, shows="goes on"), SAME_MODEL),
)
async def another_model(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        model = bytes(len(coordinator.public.model) - 4) + b"\x00\x00\x80\x3f"
        other = await coordinator.begin(model=model, to=[VICTIM])
        attempt = await coordinator.begin(to=HONEST - {VICTIM})
        attempt.advertisements[VICTIM] = other.advertisements[VICTIM]
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await attempt.finish(cohort, (ALL, ALL))
        if attempt.opened(cohort, ALL):
            return coordinator.came_out("one sum over two models")
        return attempt.verdict(never="share_keys")


@scripted(
    name="another-study-in-a-round",
    cheat=COORDINATOR,
    does="Announces a round of another study document than the one that was accepted.",
    must="Everybody refuses.",
    outcome="refused",
    check=(Naive("client.participant", without=("the round names another study document",), shows="goes on"),),
)
async def another_study(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        coordinator.study_sha256 = coordinator.add(b"another")
        attempt = await coordinator.begin()
        return attempt.verdict(never="advertise_keys")


@scripted(
    name="round-beyond-the-plan",
    cheat=COORDINATOR,
    does="Announces round 1,000,000 of a plan with 12: once joined, no earlier round could be.",
    must="Everybody refuses, and takes part in round 1 afterwards.",
    outcome="sum",
    check=(Naive("client.participant", without=("of a plan with {plan.rounds}",), shows="goes on"),),
)
async def beyond_the_plan(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        far = await coordinator.begin(1_000_000)
        seen = far.verdict(never="advertise_keys")
        return await completes(coordinator, 1, 1) if seen.outcome == "refused" else seen


async def completes(coordinator: CheatingCoordinator, round_: int, attempt: int) -> Seen:
    """An honest attempt afterwards."""
    one = await coordinator.begin(round_, attempt)
    cohort = await one.run()
    if one.opened(cohort, ALL):
        return coordinator.came_out("sum")
    return one.verdict()
