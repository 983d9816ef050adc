"""Lies about who takes part and who survived: u1, u2, u3, and the signatures shown for them.

In the study "nine" seven honest participants, 0 to 6, and two colluders, 7 and 8, share with threshold 6; a sum has at
least six inputs, four of them honest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from secagg.messages import to_bitmap
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import CheatingCoordinator, in_attempt, one_message_changed, with_coordinator
from tests.adversary.script import Naive, Seen
from tests.support.attempts_in_memory import Sets
from tests.support.coordinator_notes import Notes
from tests.support.naive_variants import CLIENT
from wire import coordinator_pb2 as pb

VICTIM = 0
ALL = frozenset(range(9))
HONEST, COLLUDERS = frozenset(range(7)), frozenset({7, 8})


def naive(*fragments: str, changed: Mapping[str, str] = {}, shows: str = "", also: tuple[Naive, ...] = ()) -> Naive:
    """Make a client without these checks of its core, wherever in its modules they are."""
    parts: dict[str, Naive] = {}
    for fragment in fragments:
        one = parts.setdefault(name := CLIENT.home(fragment).__name__, Naive(name))
        parts[name] = replace(one, without=(*one.without, fragment))
    for old, new in changed.items():
        one = parts.setdefault(name := CLIENT.home(old).__name__, Naive(name))
        parts[name] = replace(one, changed={**one.changed, old: new})
    first, *others = parts.values()
    return replace(first, shows=shows, also=(*others, *also))


READS_U3 = "        u3 = self._survivors(message)\n"
LATEST_U2 = "        self._u2 = type(self._u2)(message.u2, self._cohort.u1)\n"  # it takes the u2 it is sent last
MISSED = naive(
    "u2 is not the set this participant masked in",
    changed={f"{READS_U3}        statement": f"{READS_U3}{LATEST_U2}        statement"},
)
# The ledger has no price for a sum below the plan's bound, so its row alone would stop the answer.
ANY_PRICE = Naive.instead(
    "wire.records.ledger_rows",
    "honest = plan.h_min if survivors is None else survivors - plan.colluders",
    "honest = plan.h_min",
)
FEW_NEIGHBOURS = "neighbours in u2, {graph.threshold} needed"
SMALL_U2 = "u2 has {len(u2)} members"
FEWER_SIGNED = "signatures over the survivors"
COVERS = "doesn't cover these sets"
ASCENDING_SIGNERS = "the signers are not an ascending list of members of u3"


# ---------------------------------------------------------------- u2


@in_attempt(
    "It refuses to sign a u2 that it did not mask with; too few signatures are left for the others to answer.",
    replace(MISSED, shows="the input of participant 0 is exposed"),
)
async def neighbours_said_to_have_missed_u2(attempt: Attempt) -> Seen:
    """Claims to one participant that three of its neighbours missed u2, and later to all that three others dropped out:
    all that the participant masked with are then colluders or dropouts."""
    cohort = await attempt.show()
    others, dropped = frozenset({1, 2, 3}), frozenset({4, 5, 6})
    await attempt.tell_u2(cohort, {VICTIM} | dropped | COLLUDERS, [VICTIM])
    await attempt.tell_u2(cohort, ALL, others | dropped)
    await attempt.finish(cohort, (ALL, ALL - dropped), others | {VICTIM})
    return attempt.verdict([VICTIM], "consistency")


@in_attempt("Both refuse to sign a u2 that holds the other.", replace(MISSED, shows="goes on"))
async def two_neighbours_missed_each_other(attempt: Attempt) -> Seen:
    """Claims to each of two neighbours that the other missed u2, so that neither upload contains the mask between
    them."""
    cohort = await attempt.show()
    for one, other in ((0, 1), (1, 0)):
        await attempt.tell_u2(cohort, ALL - {other}, [one])
    await attempt.tell_u2(cohort, ALL, HONEST - {0, 1})
    await attempt.finish(cohort, (ALL, ALL))
    return attempt.verdict([0, 1], "consistency")


@in_attempt(
    "Both halves are below the quorum, and refuse before they mask.",
    naive(SMALL_U2, FEW_NEIGHBOURS, shows="goes on"),
    naive(
        SMALL_U2,
        "u3 has {len(u3)}",
        changed={"needed = cohort.config.parameters.signatures_needed(len(cohort.u1))": "needed = 4"},
        also=(
            Naive.instead(
                "secagg.parameters",
                "found or Sharing(u1 - 1, complete_graph_threshold(u1, self.colluders))",
                "Sharing(8, 4)",
            ),
            ANY_PRICE,
        ),
        shows="the sum of 3 honest inputs opens, 4 were promised",
    ),
)
async def two_halves_missed_each_other(attempt: Attempt) -> Seen:
    """Claims to each half of the cohort that the other half missed u2, with colluders in both, to get two sums in one
    attempt."""
    cohort = await attempt.show()
    halves = frozenset({0, 1, 2}) | COLLUDERS, frozenset({3, 4, 5}) | COLLUDERS
    for half in halves:
        await attempt.tell_u2(cohort, half, half & HONEST)
    for half in halves:
        await attempt.finish(cohort, (half, half), half & HONEST)
    return attempt.verdict(range(6), "masked_input")


DEALERS_IN_U2 = "the dealings are not those of the neighbours in u2"


@one_message_changed("neighbour_shares", "It refuses the list before it masks.", naive(DEALERS_IN_U2, shows="goes on"))
def u2_with_colluders_repeated(_: int, message: pb.NeighbourShares) -> None:
    """Fills u2 with repeated dealings of the colluders, so that a victim masks with no other participant."""
    entries = [entry for entry in message.shares if entry.dealer in COLLUDERS]
    del message.shares[:]
    message.shares.extend(entry for entry in entries for _ in range(4))


@one_message_changed("neighbour_shares", "All refuse before they mask.", naive(DEALERS_IN_U2))
def stranger_in_u2(_: int, message: pb.NeighbourShares) -> None:
    """Lists a participant in u2 that is not in u1, with a dealing copied from a colluder."""
    message.shares[-1].dealer = 99


@in_attempt("It refuses before it masks.", naive(SMALL_U2, shows="goes on"), study="strict")
async def u2_too_small(attempt: Attempt) -> Seen:
    """Claims to a victim that two missed u2, in a plan whose quorum is eight of nine."""
    cohort = await attempt.show()
    await attempt.tell_u2(cohort, ALL - {5, 6}, [VICTIM])
    return attempt.verdict([VICTIM], "masked_input")


@in_attempt("It refuses before it masks.", naive("this participant's dealing was left out of u2", shows="goes on"))
async def left_out_of_u2(attempt: Attempt) -> Seen:
    """Claims to a participant that its own dealing missed u2, so that no other one shares a mask with it."""
    cohort = await attempt.show()
    alone = to_bitmap(ALL - {VICTIM}, cohort.u1)
    attempt.coordinator.twist["neighbour_shares"] = lambda _, message: setattr(message, "u2", alone)
    await attempt.tell_u2(cohort, ALL, [VICTIM])
    return attempt.verdict([VICTIM], "masked_input")


@in_attempt(
    "Each participant that sees a dealing not signed for its own cohort ends the attempt.",
    naive(
        "the dealing of {dealt.dealer} is not signed by it", shows="the sum of 3 honest inputs opens, 4 were promised"
    ),
)
async def dealing_of_another_cohort(attempt: Attempt) -> Seen:
    """Shows two cohorts of one attempt to different participants and lists one member in both, which dealt in the
    second. The second calls it a dropout, and its mask key opens; the first calls it a survivor, and its masks come
    off."""
    few, opened, many = frozenset({0, 1, 2}), frozenset({3}), frozenset({4, 5, 6})
    second = attempt.cohort({0} | opened | many | COLLUDERS)
    await attempt.show(second, opened | many)
    u2 = frozenset(second.u1)
    await attempt.tell_u2(second, u2, many)
    await attempt.finish(second, (u2, u2 - opened), many)
    first = attempt.cohort(few | opened | COLLUDERS)
    await attempt.show(first, few)
    u2 = frozenset(first.u1)
    await attempt.tell_u2(first, u2, few)
    await attempt.finish(first, (u2, u2), few)
    return attempt.verdict(few | many, "masked_input")


# ---------------------------------------------------------------- u3

SMALL = frozenset({0, 1, 2, 3})  # with the colluders a u3 of six


@in_attempt(
    "All refuse to sign.",
    naive("u3 has {len(u3)}", shows="the sum of 4 honest inputs opens, 6 were promised", also=(ANY_PRICE,)),
    study="strict",
)
async def u3_too_small(attempt: Attempt) -> Seen:
    """Claims that all but four honest participants and the colluders dropped out, in a plan that promises sums of
    eight."""
    await attempt.finish(await attempt.masked(), (ALL, SMALL | COLLUDERS), SMALL)
    return attempt.verdict(SMALL, "consistency")


@in_attempt(
    "All refuse to sign.",
    naive("u3 is not a subset of u2", shows="the sum of 5 honest inputs opens, 6 were promised"),
    study="strict",
)
async def u3_beyond_u2(attempt: Attempt) -> Seen:
    """Adds to u3 a participant that was never in u2, so that it looks large enough."""
    cohort = await attempt.show(to=HONEST - {6})
    u2 = ALL - {6}
    await attempt.tell_u2(cohort, u2)
    present = u2 - {5}
    await attempt.finish(cohort, (u2, present | {6}), present - COLLUDERS)
    return attempt.verdict(present - COLLUDERS, "consistency")


@in_attempt(
    "It refuses to sign; the others sign and open their sum.",
    naive("this participant's upload was left out of u3", shows="goes on"),
    outcome="sum of the others",
)
async def left_out_of_u3(attempt: Attempt) -> Seen:
    """Asks a participant to sign, and then to open, a sum without its own upload."""
    cohort = await attempt.masked()
    await attempt.finish(cohort, (ALL, ALL - {VICTIM}))
    seen = attempt.verdict([VICTIM], "consistency")
    if seen.outcome == "refused" and attempt.opened(cohort, ALL - {VICTIM}):
        return attempt.coordinator.came_out("sum of the others")
    return seen


@in_attempt(
    "All refuse to sign.",
    Naive.lacking(
        "secagg.messages",
        "unused bits of the bitmap are set",
        also=(naive("u3 is not a subset of u2"), ANY_PRICE),
        shows="the sum of 4 honest inputs opens, 6 were promised",
    ),
    study="strict",
)
async def bits_beyond_the_bitmap(attempt: Attempt) -> Seen:
    """Pads a u3 of six with two bits of no participant, so that it counts the eight that the plan promises."""

    def pad(_: int, message: pb.SurvivorSets) -> None:
        message.u3 = message.u3[:-1] + bytes([message.u3[-1] | 0b110])  # nine members: one bit of the last byte

    attempt.coordinator.twist["survivor_sets"] = pad
    await attempt.finish(await attempt.masked(), (ALL, SMALL | COLLUDERS), SMALL)
    return attempt.verdict(SMALL, "consistency")


@one_message_changed(
    "survivor_sets",
    "All refuse to sign.",
    Naive.lacking("secagg.messages", "one bit for each member of u1", shows="goes on"),
)
def longer_bitmap(_: int, message: pb.SurvivorSets) -> None:
    """Sends a u3 with a byte more than u1 has members."""
    message.u3 += b"\0"


# ---------------------------------------------------------------- signatures


def split_lists() -> dict[int, Sets]:
    """Return sets for each honest participant: six or more survivors, itself among them, but different ones.

    Each of 0 to 4 is called a dropout to four others; with two colluders that makes six shares of its mask key.
    """
    gone = {one: {(one + step) % 5 for step in (1, 2, 3)} for one in range(5)} | {5: {0, 1, 2}, 6: {3, 4}}
    return {one: (ALL, ALL - frozenset(dropped)) for one, dropped in gone.items()}


async def to_the_split(attempt: Attempt, requests: Any, twist: Any = lambda who, request: None) -> Seen:
    """Send each participant other survivors; `requests` makes of the signatures what each is shown."""
    cohort = await attempt.masked()
    lists = split_lists()
    signed = await attempt.ask_to_sign(cohort, lists)
    attempt.coordinator.twist["unmasking_request"] = twist
    await attempt.ask_to_unmask(cohort, lists, requests(cohort, lists, signed))
    return attempt.verdict(never="unmasking")


SPLIT_OPENS = "the sum of 2 honest inputs opens, 4 were promised"  # of participants 5 and 6


@in_attempt(
    "All refuse: they require more than (|u1| + A) / 2 signatures over the same sets.",
    naive(FEWER_SIGNED, shows=SPLIT_OPENS),
)
async def other_survivors_for_each(attempt: Attempt) -> Seen:
    """Sends different survivors to each of seven honest participants, and shows each its own signature and the
    colluders'."""

    def own(cohort: Notes, lists: dict[int, Sets], signed: dict[int, bytes]) -> Any:
        return {one: {one: signed[one]} | attempt.colluders_sign(cohort, lists[one]) for one in signed}

    return await to_the_split(attempt, own)


@in_attempt("All refuse: a signature counts only for the sets it covers.", naive(COVERS, shows=SPLIT_OPENS))
async def signatures_over_other_survivors(attempt: Attempt) -> Seen:
    """Sends different survivors to each participant, and shows all of them the signatures that the others gave over
    theirs."""

    def mixed(cohort: Notes, lists: dict[int, Sets], signed: dict[int, bytes]) -> Any:
        given = signed | attempt.colluders_sign(cohort, lists[0])
        return {one: {who: given[who] for who in sorted(lists[one][1])} for one in signed}

    return await to_the_split(attempt, mixed)


@in_attempt("All refuse: the signers must be different members of u3.", naive(ASCENDING_SIGNERS, shows=SPLIT_OPENS))
async def one_signature_repeated(attempt: Attempt) -> Seen:
    """Sends different survivors to each participant, and shows each its own signature six times."""

    def six_times(_: int, request: pb.UnmaskingRequest) -> None:
        own = next(entry for entry in request.signatures if entry.participant not in COLLUDERS)
        entries = [pb.SurvivorSignature(participant=own.participant, signature=own.signature) for _ in range(6)]
        del request.signatures[:]
        request.signatures.extend(entries)

    return await to_the_split(
        attempt, lambda cohort, lists, signed: {one: {one: signed[one]} for one in signed}, six_times
    )


@in_attempt("All refuse: a signer must be in u3.", naive(ASCENDING_SIGNERS, shows="goes on"))
async def signers_from_outside_u3(attempt: Attempt) -> Seen:
    """Fills up the number of signatures with two of colluders that are called dropouts."""
    cohort = await attempt.masked()
    sets = ALL, ALL - COLLUDERS
    signed = await attempt.ask_to_sign(cohort, sets)
    shown = {who: signed[who] for who in range(4) if who in signed}
    shown |= {who: cohort.forge(who, sets) for who in COLLUDERS}
    await attempt.ask_to_unmask(cohort, sets, shown)
    return attempt.verdict(never="unmasking")


@in_attempt("All refuse.", naive(FEWER_SIGNED, shows="goes on"))
async def one_signature_short(attempt: Attempt) -> Seen:
    """Asks to open the agreed sum with one signature fewer than the rule requires."""
    cohort = await attempt.masked()
    signed = await attempt.ask_to_sign(cohort, (ALL, ALL))
    await attempt.ask_to_unmask(cohort, (ALL, ALL), dict(sorted(signed.items())[:5]))
    return attempt.verdict(never="unmasking")


@with_coordinator("All refuse: a signature covers the attempt's number.", naive(COVERS, shows="goes on"))
async def signatures_of_an_earlier_attempt(coordinator: CheatingCoordinator) -> Seen:
    """Asks to open a sum with the signatures that all gave over the same sets in the attempt before."""
    earlier = await coordinator.begin(1, 1)
    signed = await earlier.ask_to_sign(await earlier.masked(), (ALL, ALL))
    attempt = await coordinator.begin(1, 2)
    cohort = await attempt.masked()
    await attempt.ask_to_sign(cohort, (ALL, ALL), [VICTIM])
    await attempt.ask_to_unmask(cohort, (ALL, ALL), signed, [VICTIM])
    return attempt.verdict([VICTIM], "unmasking")
