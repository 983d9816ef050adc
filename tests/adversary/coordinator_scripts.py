"""Lies about who takes part and who survived: u1, u2, u3, and the signatures that are shown for them.

In the study "nine" seven honest participants, 0 to 6, and two colluders, 7 and 8, share with threshold 6; a sum has at
least six inputs, of which four are honest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secagg.messages import to_bitmap
from tests.adversary.cheating_coordinator import cheating
from tests.adversary.coordinator_notes import Notes
from tests.adversary.script import COORDINATOR, Naive, Places, Seen, scripted
from tests.support.attempts_in_memory import Sets
from tests.support.naive_variants import CLIENT
from wire import coordinator_pb2 as pb

VICTIM = 0
ALL = frozenset(range(9))
HONEST, COLLUDERS = frozenset(range(7)), frozenset({7, 8})
FEW = frozenset({5, 6}) | COLLUDERS  # whose sum the split lists open: two honest inputs


def naive(
    *fragments: str, changed: tuple[tuple[str, str], ...] = (), shows: str = "", also: tuple[Naive, ...] = ()
) -> Naive:
    """A client without these checks of its core, in whatever modules they stand."""
    parts: dict[str, Naive] = {}
    for fragment in fragments:
        one = parts.setdefault(name := CLIENT.home(fragment).__name__, Naive(name))
        parts[name] = replace(one, without=(*one.without, fragment))
    for pair in changed:
        one = parts.setdefault(name := CLIENT.home(pair[0]).__name__, Naive(name))
        parts[name] = replace(one, changed=(*one.changed, pair))
    first, *others = parts.values()
    return replace(first, shows=shows, also=(*others, *also))


MISSED = naive(
    "u2 is not the set this participant masked in",
    changed=(  # and takes the u2 it is told last
        (
            "        u3 = self._survivors(message)\n        statement",
            "        u3 = self._survivors(message)\n"
            "        self._u2 = type(self._u2)(message.u2, self._cohort.u1)\n"
            "        statement",
        ),
    ),
)
# The ledger has no price for a sum below the plan's bound, so that its row alone would stop the answer.
ANY_PRICE = Naive(
    "wire.records.ledger_rows",
    changed=(("honest = plan.h_min if survivors is None else survivors - plan.colluders", "honest = plan.h_min"),),
)
FEW_NEIGHBOURS = "neighbours in u2, {graph.threshold} needed"
SMALL_U2 = "u2 has {len(u2)} members"
FEWER_SIGNED = "signatures over the survivors"
COVERS = "doesn't cover these sets"
ASCENDING_SIGNERS = "the signers are not an ascending list of members of u3"


# ---------------------------------------------------------------- u2


@scripted(
    name="neighbours-said-to-have-missed-u2",
    cheat=COORDINATOR,
    does="Tells one participant that three of her neighbours missed u2, and everybody later that three others dropped "
    "out: all whom she masked with are then colluders or dropouts.",
    must="She refuses to sign a u2 that she did not mask with; too few signatures are left for anybody to answer.",
    outcome="refused",
    check=(replace(MISSED, shows="the input of participant 0 is exposed"),),
)
async def missed_u2(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        others, dropped = frozenset({1, 2, 3}), frozenset({4, 5, 6})
        await attempt.tell_u2(cohort, {VICTIM} | dropped | COLLUDERS, [VICTIM])
        await attempt.tell_u2(cohort, ALL, others | dropped)
        sets = ALL, ALL - dropped
        signed = await attempt.ask_to_sign(cohort, sets, others | {VICTIM})
        await attempt.ask_to_unmask(cohort, sets, signed | attempt.colluders_sign(cohort, sets), others | {VICTIM})
        return attempt.verdict([VICTIM], "consistency")


@scripted(
    name="two-neighbours-missed-each-other",
    cheat=COORDINATOR,
    does="Tells two neighbours, each of the other, that she missed u2, so that the mask between them is in neither "
    "upload.",
    must="Both refuse to sign a u2 that holds the other.",
    outcome="refused",
    check=(replace(MISSED, shows="goes on"),),
)
async def missed_each_other(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        for one, other in ((0, 1), (1, 0)):
            await attempt.tell_u2(cohort, ALL - {other}, [one])
        await attempt.tell_u2(cohort, ALL, HONEST - {0, 1})
        await attempt.finish(cohort, (ALL, ALL))
        return attempt.verdict([0, 1], "consistency")


@scripted(
    name="two-halves-missed-each-other",
    cheat=COORDINATOR,
    does="Tells each half of the cohort that the other half missed u2, with colluders in both, for two sums in one "
    "attempt.",
    must="Both halves are below the quorum, and refuse before they mask.",
    outcome="refused",
    check=(
        naive(SMALL_U2, FEW_NEIGHBOURS, shows="goes on"),
        naive(
            SMALL_U2,
            "u3 has {len(u3)}",
            changed=(("needed = cohort.config.parameters.signatures_needed(len(cohort.u1))", "needed = 4"),),
            also=(
                Naive(
                    "secagg.parameters",
                    changed=(
                        ("found or Sharing(u1 - 1, complete_graph_threshold(u1, self.colluders))", "Sharing(8, 4)"),
                    ),
                ),
                ANY_PRICE,
            ),
            shows="the sum of 3 honest inputs opens, 4 were promised",
        ),
    ),
)
async def two_halves(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        halves = frozenset({0, 1, 2}) | COLLUDERS, frozenset({3, 4, 5}) | COLLUDERS
        for half in halves:
            await attempt.tell_u2(cohort, half, half & HONEST)
        for half in halves:
            signed = await attempt.ask_to_sign(cohort, (half, half), half & HONEST)
            signed |= attempt.colluders_sign(cohort, (half, half))
            await attempt.ask_to_unmask(cohort, (half, half), signed, half & HONEST)
        return attempt.verdict(range(6), "masked_input")


@scripted(
    name="u2-with-colluders-repeated",
    cheat=COORDINATOR,
    does="Fills u2 up with the colluders' dealings, shown again and again, so that a victim masks with nobody else.",
    must="She refuses the list before she masks.",
    outcome="refused",
    check=(naive("the dealings are not those of the neighbours in u2", shows="goes on"),),
)
async def colluders_repeated(places: Places) -> Seen:
    def repeat(_: int, message: pb.NeighbourShares) -> None:
        entries = [entry for entry in message.shares if entry.dealer in COLLUDERS]
        del message.shares[:]
        message.shares.extend(entry for entry in entries for _ in range(4))

    return await twisted(places, "neighbour_shares", repeat, never="masked_input")


@scripted(
    name="stranger-in-u2",
    cheat=COORDINATOR,
    does="Lists somebody in u2 who is not in u1, with a dealing copied from a colluder.",
    must="Everybody refuses before they mask.",
    outcome="refused",
    check=(naive("the dealings are not those of the neighbours in u2"),),
)
async def stranger_in_u2(places: Places) -> Seen:
    def rename(_: int, message: pb.NeighbourShares) -> None:
        message.shares[-1].dealer = 99

    return await twisted(places, "neighbour_shares", rename, never="masked_input")


@scripted(
    name="u2-too-small",
    cheat=COORDINATOR,
    does="Tells a victim that two missed u2, in a plan whose quorum is eight of nine.",
    must="She refuses before she masks.",
    outcome="refused",
    check=(naive(SMALL_U2, shows="goes on"),),
)
async def u2_too_small(places: Places) -> Seen:
    async with cheating(places, "strict") as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort, ALL - {5, 6}, [VICTIM])
        return attempt.verdict([VICTIM], "masked_input")


@scripted(
    name="left-out-of-u2",
    cheat=COORDINATOR,
    does="Tells a participant that her own dealing missed u2, so that nobody shares a mask with her.",
    must="She refuses before she masks.",
    outcome="refused",
    check=(naive("this participant's dealing was left out of u2", shows="goes on"),),
)
async def left_out_of_u2(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        alone = to_bitmap(ALL - {VICTIM}, cohort.u1)
        coordinator.twist["neighbour_shares"] = lambda _, message: setattr(message, "u2", alone)
        await attempt.tell_u2(cohort, ALL, [VICTIM])
        return attempt.verdict([VICTIM], "masked_input")


@scripted(
    name="dealing-of-another-cohort",
    cheat=COORDINATOR,
    does="Shows two cohorts of one attempt to different people and lists one member in both, who dealt in the second: "
    "called a dropout there, its mask key opens, and called a survivor in the first, its masks come off.",
    must="A dealing that was not signed for the cohort she sees ends the attempt for whoever sees it.",
    outcome="refused",
    check=(
        naive(
            "the dealing of {dealt.dealer} is not signed by it",
            shows="the sum of 3 honest inputs opens, 4 were promised",
        ),
    ),
)
async def two_cohorts(places: Places) -> Seen:
    few, opened, many = frozenset({0, 1, 2}), frozenset({3}), frozenset({4, 5, 6})
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        second = attempt.cohort({0} | opened | many | COLLUDERS)
        await attempt.show(second, opened | many)
        u2 = frozenset(second.u1)
        await attempt.tell_u2(second, u2, many)
        sets = u2, u2 - opened
        signed = await attempt.ask_to_sign(second, sets, many)
        await attempt.ask_to_unmask(second, sets, signed | attempt.colluders_sign(second, sets), many)
        first = attempt.cohort(few | opened | COLLUDERS)
        await attempt.show(first, few)
        everybody = frozenset(first.u1)
        await attempt.tell_u2(first, everybody, few)
        signed = await attempt.ask_to_sign(first, (everybody, everybody), few)
        signed |= attempt.colluders_sign(first, (everybody, everybody))
        await attempt.ask_to_unmask(first, (everybody, everybody), signed, few)
        return attempt.verdict(few | many, "masked_input")


# ---------------------------------------------------------------- u3


@scripted(
    name="u3-too-small",
    cheat=COORDINATOR,
    does="Says that all but four honest participants and the colluders dropped out, in a plan that promises sums of "
    "eight.",
    must="Everybody refuses to sign.",
    outcome="refused",
    check=(naive("u3 has {len(u3)}", shows="the sum of 4 honest inputs opens, 6 were promised", also=(ANY_PRICE,)),),
)
async def u3_too_small(places: Places) -> Seen:
    few = frozenset({0, 1, 2, 3}) | COLLUDERS
    async with cheating(places, "strict") as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await finish_with(attempt, cohort, (ALL, few), few - COLLUDERS)
        return attempt.verdict(few - COLLUDERS, "consistency")


@scripted(
    name="u3-beyond-u2",
    cheat=COORDINATOR,
    does="Fills u3 up with somebody who was never in u2, so that it looks large enough.",
    must="Everybody refuses to sign.",
    outcome="refused",
    check=(naive("u3 is not a subset of u2", shows="the sum of 5 honest inputs opens, 6 were promised"),),
)
async def u3_beyond_u2(places: Places) -> Seen:
    async with cheating(places, "strict") as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show(to=HONEST - {6})
        u2 = ALL - {6}
        await attempt.tell_u2(cohort, u2)
        present = u2 - {5}
        await finish_with(attempt, cohort, (u2, present | {6}), present - COLLUDERS)
        return attempt.verdict(present - COLLUDERS, "consistency")


@scripted(
    name="left-out-of-u3",
    cheat=COORDINATOR,
    does="Asks a participant to sign, and then to open, a sum from which her own upload is left out.",
    must="She refuses to sign; the others sign and open their sum.",
    outcome="sum of the others",
    check=(naive("this participant's upload was left out of u3", shows="goes on"),),
)
async def left_out(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await attempt.finish(cohort, (ALL, ALL - {VICTIM}))
        seen = attempt.verdict([VICTIM], "consistency")
        if seen.outcome == "refused" and attempt.opened(cohort, ALL - {VICTIM}):
            return coordinator.came_out("sum of the others")
        return seen


@scripted(
    name="bits-beyond-the-bitmap",
    cheat=COORDINATOR,
    does="Pads a u3 of six with two bits that belong to nobody, so that it counts the eight that the plan promises.",
    must="Everybody refuses to sign.",
    outcome="refused",
    check=(
        Naive(
            "secagg.messages",
            without=("unused bits of the bitmap are set",),
            also=(naive("u3 is not a subset of u2"), ANY_PRICE),
            shows="the sum of 4 honest inputs opens, 6 were promised",
        ),
    ),
)
async def stray_bits(places: Places) -> Seen:
    few = frozenset({0, 1, 2, 3}) | COLLUDERS

    def pad(_: int, message: pb.SurvivorSets) -> None:
        message.u3 = message.u3[:-1] + bytes([message.u3[-1] | 0b110])  # nine members: one bit of the last byte

    async with cheating(places, "strict") as coordinator:
        coordinator.twist["survivor_sets"] = pad
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await finish_with(attempt, cohort, (ALL, few), few - COLLUDERS)
        return attempt.verdict(few - COLLUDERS, "consistency")


@scripted(
    name="longer-bitmap",
    cheat=COORDINATOR,
    does="Sends a u3 with a byte more than u1 has members.",
    must="Everybody refuses to sign.",
    outcome="refused",
    check=(Naive("secagg.messages", without=("one bit for each member of u1",), shows="goes on"),),
)
async def longer_bitmap(places: Places) -> Seen:
    def longer(_: int, message: pb.SurvivorSets) -> None:
        message.u3 += b"\0"

    return await twisted(places, "survivor_sets", longer, never="consistency")


# ---------------------------------------------------------------- signatures


def split_lists() -> dict[int, Sets]:
    """Each honest participant is told of six or more survivors, itself among them, but of different ones.

    Each of 0 to 4 is called a dropout to four others, and with two colluders that makes six shares of its mask key.
    """
    gone = {one: {(one + step) % 5 for step in (1, 2, 3)} for one in range(5)} | {5: {0, 1, 2}, 6: {3, 4}}
    return {one: (ALL, ALL - frozenset(dropped)) for one, dropped in gone.items()}


async def to_the_split(places: Places, requests: Any) -> Seen:
    """Everybody is told another list of survivors; `requests` makes of the signatures what each is shown."""
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        lists = split_lists()
        signed = await attempt.ask_to_sign(cohort, lists)
        await attempt.ask_to_unmask(cohort, lists, requests(attempt, cohort, lists, signed))
        return attempt.verdict(never="unmasking")


@scripted(
    name="other-survivors-for-each",
    cheat=COORDINATOR,
    does="Tells each of seven honest participants of other survivors, and shows each her own signature and the "
    "colluders'.",
    must="Everybody refuses: more than (|u1| + A) / 2 signatures over the same sets are wanted.",
    outcome="refused",
    check=(naive(FEWER_SIGNED, shows="the sum of 2 honest inputs opens, 4 were promised"),),
)
async def few_signatures(places: Places) -> Seen:
    return await to_the_split(
        places,
        lambda attempt, cohort, lists, signed: {
            one: {one: signed[one]} | attempt.colluders_sign(cohort, lists[one]) for one in signed
        },
    )


@scripted(
    name="signatures-over-other-survivors",
    cheat=COORDINATOR,
    does="Tells each of other survivors, and shows everybody the signatures that the others gave over theirs.",
    must="Everybody refuses: a signature counts for the sets it covers.",
    outcome="refused",
    check=(naive(COVERS, shows="the sum of 2 honest inputs opens, 4 were promised"),),
)
async def other_signatures(places: Places) -> Seen:
    def mixed(attempt: Any, cohort: Notes, lists: dict[int, Sets], signed: dict[int, bytes]) -> Any:
        given = signed | attempt.colluders_sign(cohort, lists[0])
        return {one: {who: given[who] for who in sorted(lists[one][1])} for one in signed}

    return await to_the_split(places, mixed)


@scripted(
    name="one-signature-repeated",
    cheat=COORDINATOR,
    does="Tells each of other survivors, and shows each her own signature six times.",
    must="Everybody refuses: the signers must be different members of u3.",
    outcome="refused",
    check=(naive(ASCENDING_SIGNERS, shows="the sum of 2 honest inputs opens, 4 were promised"),),
)
async def repeated_signature(places: Places) -> Seen:
    def six_times(_: int, request: pb.UnmaskingRequest) -> None:
        own = next(entry for entry in request.signatures if entry.participant not in COLLUDERS)
        entries = [pb.SurvivorSignature(participant=own.participant, signature=own.signature) for _ in range(6)]
        del request.signatures[:]
        request.signatures.extend(entries)

    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        lists = split_lists()
        signed = await attempt.ask_to_sign(cohort, lists)
        coordinator.twist["unmasking_request"] = six_times
        await attempt.ask_to_unmask(cohort, lists, {one: {one: signed[one]} for one in signed})
        return attempt.verdict(never="unmasking")


@scripted(
    name="signers-from-outside-u3",
    cheat=COORDINATOR,
    does="Makes up the number of signatures with two that colluders give, who are called dropouts.",
    must="Everybody refuses: whoever isn't in u3 has no say in it.",
    outcome="refused",
    check=(naive(ASCENDING_SIGNERS, shows="goes on"),),
)
async def outside_signers(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        sets = ALL, ALL - COLLUDERS
        signed = await attempt.ask_to_sign(cohort, sets)
        shown = {who: signed[who] for who in range(4) if who in signed}
        shown |= {who: cohort.forge(who, sets) for who in COLLUDERS}
        await attempt.ask_to_unmask(cohort, sets, shown)
        return attempt.verdict(never="unmasking")


@scripted(
    name="one-signature-short",
    cheat=COORDINATOR,
    does="Asks to open the agreed sum with one signature fewer than the rule wants.",
    must="Everybody refuses.",
    outcome="refused",
    check=(naive(FEWER_SIGNED, shows="goes on"),),
)
async def one_short(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        signed = await attempt.ask_to_sign(cohort, (ALL, ALL))
        await attempt.ask_to_unmask(cohort, (ALL, ALL), dict(sorted(signed.items())[:5]))
        return attempt.verdict(never="unmasking")


@scripted(
    name="signatures-of-an-earlier-attempt",
    cheat=COORDINATOR,
    does="Asks to open a sum with the signatures that everybody gave over the same sets in the attempt before.",
    must="Everybody refuses: the attempt is in what was signed.",
    outcome="refused",
    check=(naive(COVERS, shows="goes on"),),
)
async def earlier_signatures(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        earlier = await coordinator.begin(1, 1)
        cohort = await earlier.show()
        await earlier.tell_u2(cohort)
        signed = await earlier.ask_to_sign(cohort, (ALL, ALL))
        attempt = await coordinator.begin(1, 2)
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await attempt.ask_to_sign(cohort, (ALL, ALL), [VICTIM])
        await attempt.ask_to_unmask(cohort, (ALL, ALL), signed, [VICTIM])
        return attempt.verdict([VICTIM], "unmasking")


# ---------------------------------------------------------------- helpers


async def finish_with(attempt: Any, cohort: Notes, sets: Sets, who: frozenset[int]) -> None:
    """Ask these to sign and to open these sets, with all signatures there are."""
    signed = await attempt.ask_to_sign(cohort, sets, who)
    await attempt.ask_to_unmask(cohort, sets, signed | attempt.colluders_sign(cohort, sets), who)


async def twisted(places: Places, kind: str, change: Any, never: str, victims: frozenset[int] = HONEST) -> Seen:
    """An honest attempt but for one message to the victims."""
    async with cheating(places) as coordinator:
        coordinator.twist[kind] = lambda who, message: change(who, message) if who in victims else None
        attempt = await coordinator.begin()
        await attempt.run()
        return attempt.verdict(victims, never)
