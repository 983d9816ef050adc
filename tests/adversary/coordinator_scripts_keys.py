"""Lies about who is in the cohort and by which keys: invitations, u1, advertisements, draws."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from secagg.keys import AgreementKey
from secagg.messages import Advertisement
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import CheatingCoordinator, in_attempt, one_message_changed, with_coordinator
from tests.adversary.coordinator_scripts import ALL, ANY_PRICE, COLLUDERS, HONEST, SMALL_U2, VICTIM, naive
from tests.adversary.script import Naive, Seen
from tests.reference.primitive_vectors import LOW_ORDER
from wire import coordinator_pb2 as pb

UNSIGNED = "are not signed by it"
SIZES = "members, outside"
ALTERED = "own keys unaltered"
TWICE = naive("the same public key is advertised twice", shows="goes on")
NOT_ASCENDING = naive("u1 is not strictly ascending")


def own_keys() -> tuple[AgreementKey, AgreementKey]:
    """Return a private mask key and a private channel key made by the coordinator."""
    return AgreementKey(os.urandom(32)), AgreementKey(os.urandom(32))


async def shown(attempt: Attempt, **cohort: Any) -> Seen:
    """Show the victim, and no other participant, this cohort."""
    await attempt.show(attempt.cohort(**cohort), [VICTIM])
    return attempt.verdict([VICTIM], "share_keys")


def cohort_shown(
    script: str, must: str, cohort: Callable[[Attempt], dict[str, Any]], *check: Naive, study: str = "nine"
) -> None:
    """Register a script that shows the victim a cohort made with these arguments of `Attempt.cohort`."""

    @in_attempt(must, *check, script=script, study=study)
    async def show(attempt: Attempt) -> Seen:
        return await shown(attempt, **cohort(attempt))


def changed(change: Callable[[dict[int, Advertisement]], dict[int, Advertisement]]) -> Any:
    """Make the argument of `cohort_shown` for a cohort with some other advertisements."""
    return lambda attempt: {"changed": change(attempt.advertisements)}


def by_colluder(keys: Callable[[dict[int, Advertisement]], tuple[bytes, bytes]], who: int = 7) -> Any:
    """Make the argument of `cohort_shown` for a cohort in which a colluder signs these mask and channel keys."""
    return lambda attempt: {"changed": {who: attempt.signed_by(who, *keys(attempt.advertisements))}}


cohort_shown(
    "keys-of-its-own: Shows one participant keys made by the coordinator in all other names, and opens what it seals "
    "for them.",
    "It refuses before it deals: each advertisement is signed by an identity of the roster.",
    lambda _: {"own": {who: own_keys() for who in ALL - {VICTIM}}},
    naive(UNSIGNED, shows="both secrets of participant 0 are known"),
)


@with_coordinator(
    "The participant refuses: the neighbour's signature covers the attempt's number.", naive(UNSIGNED, shows="goes on")
)
async def keys_of_an_earlier_attempt(coordinator: CheatingCoordinator) -> Seen:
    """Shows a neighbour's advertisement of an earlier attempt, whose mask key was opened there."""
    earlier = await coordinator.begin(1, 1)
    cohort = await earlier.masked()
    await earlier.finish(cohort, (ALL, ALL - {3}), HONEST - {3})
    assert cohort.private_mask_key(3) is not None
    attempt = await coordinator.begin(1, 2)
    return await shown(attempt, changed={3: earlier.advertisements[3]})


cohort_shown(
    "neighbours-change-names: Shows two neighbours' advertisements under each other's name.",
    "A participant that sees them refuses.",
    changed(lambda real: {3: real[4], 4: real[3]}),
    naive(UNSIGNED, shows="goes on"),
)
cohort_shown(
    "keys-change-roles: Shows a neighbour's channel key as its mask key and its mask key as its channel key.",
    "A participant that sees them refuses.",
    changed(lambda real: {3: replace(real[3], mask_key=real[3].channel_key, channel_key=real[3].mask_key)}),
    naive(UNSIGNED, shows="goes on"),
)
cohort_shown(
    "own-key-altered: Shows a participant another mask key as its own.",
    "It refuses.",
    changed(lambda real: {VICTIM: replace(real[VICTIM], mask_key=own_keys()[0].public)}),
    naive(ALTERED, shows="goes on"),
)
cohort_shown(
    "oneself-missing: Shows a participant a cohort without itself.",
    "It refuses.",
    lambda _: {"u1": ALL - {VICTIM}},
    naive(ALTERED),
)
cohort_shown(
    "two-colluders-with-one-key: Lets a colluder advertise, under its own signature, the mask key of an honest "
    "neighbour.",
    "All refuse: a key occurs only once in a cohort.",
    by_colluder(lambda real: (real[3].mask_key, real[7].channel_key)),
    TWICE,
)
cohort_shown(
    "one-key-in-both-roles: Lets a colluder advertise one key as mask key and as channel key.",
    "All refuse.",
    by_colluder(lambda real: (real[7].channel_key, real[7].channel_key)),
    TWICE,
)
cohort_shown(
    "a-colluders-short-key: Lets a colluder advertise, and sign, a mask key of 31 bytes.",
    "All refuse before they deal.",
    by_colluder(lambda real: (bytes(31), real[7].channel_key)),
    naive("has another length", also=(Naive.lacking("wire.codec", "must have {lengths[0]} bytes"),), shows="goes on"),
)


@one_message_changed(
    "cohort_keys",
    "A participant that needs the keys refuses.",
    naive("an advertisement of a neighbour is missing", shows="crashes"),
)
def neighbour_by_digest_alone(who: int, keys: pb.CohortKeys) -> None:
    """Shows the digest of a neighbour's advertisement without the keys in it."""
    keys.members[1 if who == 0 else 0].advertisement_sha256 = bytes(32)


# An agreement with a point of low order is all zero for every private key.
AGREES_ON_ZERO = Naive(
    "secagg.keys",
    without=("the agreement is all zero",),
    changed={
        'raise InvalidKey("the public key is of low order or not 32 bytes long") from error': "shared = bytes(32)"
    },
    shows="goes on",
)


def of_low_order(script: str, must: str, role: str, never: str) -> None:
    """Register a script of colluder 7 with each key of low order in a role, one a round."""

    @with_coordinator(must, AGREES_ON_ZERO, script=script)
    async def run(coordinator: CheatingCoordinator) -> Seen:
        for round_, point in enumerate(LOW_ORDER, 1):
            attempt = await coordinator.begin(round_)
            own = attempt.advertisements[7]
            keys = {"mask_key": own.mask_key, "channel_key": own.channel_key, role: point}
            advertised = attempt.signed_by(7, **keys)
            attempt.phases[7]._advertisement = advertised  # the colluder deals as if it were its own
            cohort = attempt.cohort(changed={7: advertised})
            await attempt.show(cohort)
            await attempt.tell_u2(cohort, ALL, [VICTIM])
            seen = attempt.verdict([VICTIM], never)
            if seen.outcome != "refused":
                return seen
        return seen


of_low_order(
    "low-order-channel-key: Lets a colluder advertise a channel key of low order: everyone could read what is sealed "
    "with it.",
    "All refuse before they deal.",
    "channel_key",
    "share_keys",
)
of_low_order(
    "low-order-mask-key: Lets a colluder advertise a mask key of low order, so that everyone knows the masks with it.",
    "All refuse before they mask.",
    "mask_key",
    "masked_input",
)


# ---------------------------------------------------------------- who is in the cohort


@in_attempt(
    "It refuses before it deals: u1 must have the plan's quorum.",
    naive(SIZES, shows="goes on"),
    naive(SIZES, SMALL_U2, "u3 has {len(u3)}", shows="the input of participant 0 is exposed", also=(ANY_PRICE,)),
)
async def victim_among_colluders(attempt: Attempt) -> Seen:
    """Shows a victim a cohort of itself and the two colluders."""
    u1 = COLLUDERS | {VICTIM}
    cohort = attempt.cohort(u1)
    await attempt.show(cohort, [VICTIM])
    await attempt.tell_u2(cohort, u1, [VICTIM])
    await attempt.finish(cohort, (u1, u1), [VICTIM])
    return attempt.verdict([VICTIM], "share_keys")


@one_message_changed("cohort_keys", "All refuse.", NOT_ASCENDING)
def members_not_ascending(_: int, keys: pb.CohortKeys) -> None:
    """Shows u1 in another order, so that positions on the polynomials, and signs of masks, would differ."""
    members = list(keys.members)
    members[2], members[3] = members[3], members[2]
    del keys.members[:]
    keys.members.extend(members)


@one_message_changed("cohort_keys", "All refuse.", NOT_ASCENDING)
def colluder_listed_twice(who: int, keys: pb.CohortKeys) -> None:
    """Lists a colluder twice in u1, so that the cohort looks larger than it is."""
    del keys.members[1 if who == 0 else 0]
    keys.members.append(keys.members[-1])


@one_message_changed(
    "cohort_keys", "All refuse.", naive("u1 names a participant that is not on the roster", shows="crashes")
)
def stranger_in_u1(_: int, keys: pb.CohortKeys) -> None:
    """Invents a member of u1 that is not on the roster."""
    keys.members[-1].participant = 99


# ---------------------------------------------------------------- what the round is about

SAME_MODEL = Naive.instead("secagg.context", "            self.model_digest,\n", "", shows="one sum over two models")


@with_coordinator(
    "Keys do not verify across the two models: all refuse before they deal.",
    naive(UNSIGNED, shows="goes on"),
    SAME_MODEL,
)
async def another_model_to_one(coordinator: CheatingCoordinator) -> Seen:
    """Lets one participant train another model than the others, so that its update can be told apart in the sum."""
    model = bytes(len(coordinator.public.model) - 4) + b"\x00\x00\x80\x3f"
    other = await coordinator.begin(model=model, to=[VICTIM])
    attempt = await coordinator.begin(to=HONEST - {VICTIM})
    attempt.advertisements[VICTIM] = other.advertisements[VICTIM]
    cohort = await attempt.masked()
    await attempt.finish(cohort, (ALL, ALL))
    if attempt.opened(cohort, ALL):
        return coordinator.came_out("one sum over two models")
    return attempt.verdict(never="share_keys")


OTHER_DOCUMENT = Naive.lacking("client.participant", "the round names another study document", shows="goes on")


@with_coordinator("All refuse.", OTHER_DOCUMENT)
async def another_study_in_a_round(coordinator: CheatingCoordinator) -> Seen:
    """Announces a round of another study document than the accepted one."""
    coordinator.study_sha256 = coordinator.add(b"another")
    return (await coordinator.begin()).verdict(never="advertise_keys")


@with_coordinator(
    "All refuse, and take part in round 1 afterwards.",
    Naive.lacking("client.participant", "of a plan with {plan.rounds}", shows="goes on"),
    outcome="sum",
)
async def round_beyond_the_plan(coordinator: CheatingCoordinator) -> Seen:
    """Announces round 1,000,000 of a plan with 12: a client that joined it could join no earlier round."""
    seen = (await coordinator.begin(1_000_000)).verdict(never="advertise_keys")
    return await completes(coordinator, 1) if seen.outcome == "refused" else seen


async def completes(coordinator: CheatingCoordinator, round_: int) -> Seen:
    """Run an honest attempt afterwards."""
    attempt = await coordinator.begin(round_)
    if attempt.opened(await attempt.run(), ALL):
        return coordinator.came_out("sum")
    return attempt.verdict()
