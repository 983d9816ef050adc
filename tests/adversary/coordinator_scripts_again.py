"""Asking again: both kinds of share, rounds and attempts, requests, uploads, charges; a victim who is cut off."""

from __future__ import annotations

from typing import Any
from unittest import mock

from secagg.messages import SurvivorSets, UnmaskingRequest, to_bitmap
from secagg.parameters import RoundParameters
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import cheating, serving
from tests.adversary.coordinator_notes import Notes
from tests.adversary.coordinator_scripts import ALL, COLLUDERS, HONEST, VICTIM, finish_with, naive
from tests.adversary.script import COORDINATOR, Naive, Places, Seen, scripted
from tests.adversary.watched_clients import joined
from tests.support.attempts_in_memory import Sets
from wire import codec
from wire import coordinator_pb2 as pb

PARTICIPANT = "client.participant"
# Without it, a phase answers as often as it is asked.
OVER = "this phase is over for this participant"


# ---------------------------------------------------------------- shares


@scripted(
    name="both-kinds-of-share",
    cheat=COORDINATOR,
    does="Has a sum opened, then shows other survivor sets, without one who was in it, and asks for shares again.",
    must="Everybody refuses the second sets: each has signed once and answered once.",
    outcome="refused",
    check=(
        Naive(
            PARTICIPANT,
            changed=(
                (
                    '            case "survivor_sets":\n',
                    '            case "survivor_sets":\n'
                    "                self._kept = attempt.phase = getattr(self, '_kept', attempt.phase)\n",
                ),
                (
                    "            await self._journal.answer(",
                    "            self._first, again = exact, hasattr(self, '_first')\n"
                    "            None if again else await self._journal.answer(",
                ),
            ),
            also=(naive(OVER, changed=(("    held.clear()\n", ""),)),),
            shows="both secrets of participant 3 are known",
        ),
    ),
)
async def both_kinds(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.run()
        assert attempt.opened(cohort, ALL)
        await finish_with(attempt, cohort, (ALL, ALL - {3}), HONEST - {3})
        return attempt.verdict(HONEST - {3})


@scripted(
    name="a-second-request",
    cheat=COORDINATOR,
    does="Asks for the shares a second time with other signatures, over the very same sets.",
    must="Everybody refuses: only the identical request is answered again.",
    outcome="refused",
    check=(naive("a second, different unmasking request", shows="goes on"),),
)
async def second_request(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        signed = await attempt.ask_to_sign(cohort, (ALL, ALL))
        await attempt.ask_to_unmask(cohort, (ALL, ALL), signed)
        await attempt.ask_to_unmask(cohort, (ALL, ALL), attempt.colluders_sign(cohort, (ALL, ALL)) | signed)
        return attempt.verdict()


@scripted(
    name="the-same-request-again",
    cheat=COORDINATOR,
    does="Asks for the shares again with the identical request, as after a restart.",
    must="Everybody gives the same bytes again, and nothing new is known.",
    outcome="the same answer",
    check=(
        naive(
            changed=(
                (
                    "        return self._reply",
                    "        return UnmaskingReply(self._reply.shares[:-1] + (None,))",
                ),
            ),
            shows="gave two different answers",
        ),
    ),
)
async def same_request(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.run()
        signed = {who: attempt.heard(who, "consistency").signature for who in HONEST}
        signed |= attempt.colluders_sign(cohort, (ALL, ALL))
        for _ in range(2):
            await attempt.ask_to_unmask(cohort, (ALL, ALL), signed)
        counts = {coordinator.clients[who].kinds().count("unmasking") for who in HONEST}
        if counts != {3}:
            return attempt.verdict()
        return coordinator.came_out("the same answer", "three times the same bytes")


# ---------------------------------------------------------------- uploads


@scripted(
    name="masked-twice",
    cheat=COORDINATOR,
    does="Tells a participant another u2 after her upload, for a second vector under the same masks.",
    must="She refuses: one vector is masked, once.",
    outcome="refused",
    check=(
        Naive(
            PARTICIPANT,
            changed=(
                (
                    '        phase = _expect(attempt.phase, MaskedInputCollection, "neighbour_shares")\n',
                    "        phase = self._kept = getattr(self, '_kept', attempt.phase)\n",
                ),
                (
                    "        await self._journal.charge(self._entry(attempt.terms, attempt.number))\n",
                    "        if self._charged is None:\n"
                    "            await self._journal.charge(self._entry(attempt.terms, attempt.number))\n",
                ),
            ),
            also=(naive(OVER),),
            shows="gave two different answers: masked_input",
        ),
    ),
)
async def masked_twice(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await attempt.tell_u2(cohort, ALL - {3, 4}, [VICTIM])
        return attempt.verdict([VICTIM])


@scripted(
    name="upload-credit-twice",
    cheat=COORDINATOR,
    does="Grants a second credit, so that the upload comes twice.",
    must="Everybody refuses, having sent it once.",
    outcome="refused",
    check=(
        Naive(
            PARTICIPANT,
            changed=(("if await self.behaviour.upload(", "if not await self.behaviour.upload("),),
            shows="goes on",
        ),
    ),
)
async def credit_twice(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await attempt.take_uploads(cohort, ALL, HONEST)
        return attempt.verdict()


@scripted(
    name="upload-credit-too-early",
    cheat=COORDINATOR,
    does="Grants a credit before anything was masked.",
    must="Everybody refuses.",
    outcome="refused",
    check=(Naive(PARTICIPANT, without=("an upload credit that wasn't asked for",), shows="crashes"),),
)
async def credit_too_early(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        await attempt.show()
        round_, number = attempt.number
        credit = pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=round_, attempt=number))
        await coordinator.tell(dict.fromkeys(HONEST, credit))
        return attempt.verdict(never="masked_input")


@scripted(
    name="resumed-without-a-break",
    cheat=COORDINATOR,
    does="Says that it has taken one message less than it has, although no connection broke.",
    must="Everybody refuses, and says nothing again.",
    outcome="refused",
    check=(
        Naive(
            PARTICIPANT,
            changed=(
                (
                    'raise CoordinatorMisbehaved("Resumed", "the count is impossible, or no session asked to resume")',
                    "return",
                ),
            ),
            shows="goes on",
        ),
    ),
)
async def resumed_without_a_break(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        round_, number = attempt.number
        resumed = pb.CoordinatorMessage(resumed=pb.Resumed(round=round_, attempt=number, received=0))
        await coordinator.tell(dict.fromkeys(HONEST, resumed))
        return attempt.verdict()


# ---------------------------------------------------------------- rounds and attempts

# Round and attempt are looked up in the journal's file, and held against what this process knows of it.
FORGETS = Naive(
    "client.journal",
    changed=(
        ("if (round_, attempt) <= self._last.get(key, (0, 0)):", "if False:"),
        ("INSERT INTO attempts (study, identity, round,", "INSERT OR REPLACE INTO attempts (study, identity, round,"),
    ),
    shows="gave two different answers: advertise_keys",
)


@scripted(
    name="an-attempt-again",
    cheat=COORDINATOR,
    does="Announces an attempt again after everybody has uploaded in it, for fresh keys under the same number.",
    must="Everybody sits it out: the keys of an attempt exist once.",
    outcome="sits it out",
    check=(FORGETS,),
)
async def attempt_again(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        first = await coordinator.begin(1, 2)
        cohort = await first.show()
        await first.tell_u2(cohort)
        again = await coordinator.begin(1, 2)
        return again.verdict()


@scripted(
    name="an-earlier-attempt",
    cheat=COORDINATOR,
    does="Goes back to an earlier attempt, then to an earlier round.",
    must="Everybody sits both out: numbers only grow.",
    outcome="sits it out",
    check=(Naive(FORGETS.module, changed=FORGETS.changed, shows="goes on"),),
)
async def earlier_attempt(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        await coordinator.begin(2, 2)
        for round_, number in ((2, 1), (1, 7)):
            seen = (await coordinator.begin(round_, number)).verdict(never="advertise_keys")
            if seen.outcome != "sits it out":
                return seen
        return seen


@scripted(
    name="an-attempt-again-after-a-restart",
    cheat=COORDINATOR,
    does="Announces an attempt again to clients that were stopped in the middle of it and started anew.",
    must="Everybody sits it out: what was joined is on disk before keys are advertised.",
    outcome="sits it out",
    check=(
        Naive(
            "client.journal",
            changed=(
                ("self._last[key] = max(self._last.get(key, (0, 0)), (round_, attempt))", "pass"),
                (
                    "INSERT INTO attempts (study, identity, round,",
                    "INSERT OR REPLACE INTO attempts (study, identity, round,",
                ),
            ),
            shows="gave two different answers: advertise_keys",
        ),
    ),
)
async def after_a_restart(places: Places) -> Seen:
    async with serving(places) as coordinator:
        async with joined(coordinator):
            first = await coordinator.begin()
            cohort = await first.show()
            await first.tell_u2(cohort)
        await coordinator.until_left()
        async with joined(coordinator):
            again = await coordinator.begin()
            return again.verdict()


# ---------------------------------------------------------------- charges


@scripted(
    name="cut-off-after-every-upload",
    cheat=COORDINATOR,
    does="Disconnects a victim after her upload, announces the next attempt, and so on, for one masked input after the "
    "other.",
    must="Each upload is charged, and her budget, which no coordinator keeps for her, ends it.",
    outcome="refused by policy",
    check=(
        Naive("client.policy", without=("epsilon-in-plan",), shows="uploads beyond the plan's budget"),
        Naive(
            PARTICIPANT,
            changed=(
                (
                    "        await self._journal.charge(self._entry(attempt.terms, attempt.number))\n",
                    "",
                ),
            ),
            shows="sent its input and was not charged",
        ),
    ),
)
async def cut_off(places: Places) -> Seen:
    async with cheating(places, "three") as coordinator:
        for number in range(1, 7):
            attempt = await coordinator.begin(1, number)
            seen = attempt.verdict([VICTIM], "advertise_keys")
            if seen.outcome != "goes on":
                return seen
            cohort = await attempt.show()
            await attempt.tell_u2(cohort)
            coordinator.disconnect(VICTIM)
            await coordinator.ready()
        return coordinator.came_out("goes on", f"{number} uploads beyond the plan's budget for 3")


@scripted(
    name="cut-off-while-uploading",
    cheat=COORDINATOR,
    does="Breaks the victim's stream while her upload is under way, and announces the same attempt when she is back.",
    must="She was charged before the first byte, and sits that attempt out.",
    outcome="sits it out",
    check=(FORGETS,),
)
async def cut_off_while_uploading(places: Places) -> Seen:
    async with cheating(places) as coordinator:

        async def cut(who: int) -> None:
            if who == VICTIM:
                coordinator.disconnect(who)

        coordinator.while_uploading = cut
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        await coordinator.ready()
        again = await coordinator.begin(to=[VICTIM])
        return again.verdict([VICTIM])


@scripted(
    name="more-attempts-than-a-day-allows",
    cheat=COORDINATOR,
    does="Announces attempt after attempt to a participant who allows two a day.",
    must="She refuses the third by her policy.",
    outcome="refused by policy",
    check=(Naive("client.policy", changed=(("if charged >= most:", "if False:"),), shows="goes on"),),
)
async def a_day(places: Places) -> Seen:
    async with cheating(places, policy={"max_rounds_per_day": 2}) as coordinator:
        for number in range(1, 5):
            attempt = await coordinator.begin(1, number)
            seen = attempt.verdict(never="advertise_keys")
            if seen.outcome != "goes on":
                break
            await attempt.run()
        charged = {number for one in coordinator.clients.values() for number, kind, _ in one.said if kind == "upload"}
        return seen if len(charged) == 2 else coordinator.came_out("goes on", f"{len(charged)} attempts")


# ---------------------------------------------------------------- charges taken back


async def told_it_was_left_out(places: Places, u3: frozenset[int], signatures: Any) -> Seen:
    """The sum holds the victim's input; a proof says otherwise, and would make her budget whole again."""
    async with cheating(places) as coordinator:
        attempt = await coordinator.begin()
        cohort = await attempt.show()
        await attempt.tell_u2(cohort)
        signed = await attempt.ask_to_sign(cohort, (ALL, ALL))
        everybody = signed | attempt.colluders_sign(cohort, (ALL, ALL))
        await attempt.ask_to_unmask(cohort, (ALL, ALL), everybody, HONEST - {VICTIM})
        assert attempt.opened(cohort, ALL)
        request = UnmaskingRequest(tuple(signatures(attempt, cohort, (ALL, u3), everybody)))
        sets = SurvivorSets(to_bitmap(ALL, cohort.u1), to_bitmap(u3, cohort.u1))
        proof = codec.write_survivor_proof(*attempt.number, sets, request)
        await coordinator.tell({VICTIM: pb.CoordinatorMessage(survivor_proof=proof)})
        return attempt.verdict([VICTIM])


def forged(attempt: Attempt, cohort: Notes, sets: Any, _: Any) -> list[tuple[int, bytes]]:
    return sorted((who, cohort.forge(who, sets)) for who in COLLUDERS)


TAKEN_BACK = "takes back the charge for a sum that holds its input"


@scripted(
    name="a-charge-taken-back-by-colluders",
    cheat=COORDINATOR,
    does="Opens a sum with a participant's input and tells her, signed by the colluders alone, that it was left out.",
    must="She refuses, and stays charged.",
    outcome="refused",
    check=(naive("signatures over the survivors", shows=TAKEN_BACK),),
)
async def taken_back_by_colluders(places: Places) -> Seen:
    return await told_it_was_left_out(places, ALL - {VICTIM}, forged)


@scripted(
    name="a-charge-taken-back-with-her-own-sum",
    cheat=COORDINATOR,
    does="Shows her the signatures of the sum that holds her input, as if it did not.",
    must="She refuses, and stays charged.",
    outcome="refused",
    check=(naive("u3 was said to be without this participant", shows=TAKEN_BACK),),
)
async def taken_back_with_her_own(places: Places) -> Seen:
    return await told_it_was_left_out(places, ALL, lambda attempt, cohort, sets, signed: sorted(signed.items()))


@scripted(
    name="a-charge-taken-back-with-other-signatures",
    cheat=COORDINATOR,
    does="Shows her the signatures of the sum that holds her input under a list that leaves her out.",
    must="She refuses, and stays charged.",
    outcome="refused",
    check=(naive("doesn't cover these sets", shows=TAKEN_BACK),),
)
async def taken_back_with_others(places: Places) -> Seen:
    return await told_it_was_left_out(
        places, ALL - {VICTIM}, lambda attempt, cohort, sets, signed: [one for one in sorted(signed.items()) if one[0]]
    )


@scripted(
    name="a-charge-taken-back-by-one-signer",
    cheat=COORDINATOR,
    does="Shows her one colluder's signature six times, over a list that leaves her out.",
    must="She refuses, and stays charged.",
    outcome="refused",
    check=(naive("the signers are not an ascending list of members of u3", shows=TAKEN_BACK),),
)
async def taken_back_by_one(places: Places) -> Seen:
    return await told_it_was_left_out(
        places, ALL - {VICTIM}, lambda attempt, cohort, sets, signed: forged(attempt, cohort, sets, signed)[:1] * 6
    )


# ---------------------------------------------------------------- plans for a curious coordinator

# Nobody signs survivors there, and nothing is promised of a coordinator that lies about them; but charges stay.
UNSIGNED = mock.patch.object(RoundParameters, "signed", property(lambda _: False))


async def survivors(attempt: Attempt, cohort: Notes, sets: Sets, to: frozenset[int]) -> None:
    """What asks for shares where nobody signs."""
    message = codec.write_survivor_sets(*attempt.number, cohort.survivor_sets(sets))
    await attempt.coordinator.tell(dict.fromkeys(sorted(to), pb.CoordinatorMessage(survivor_sets=message)))
    for who in sorted(to):
        reply = attempt.heard(who, "unmasking")
        if reply is not None:
            cohort.note_reply(who, ALL, codec.read_unmasking_reply(reply))


@scripted(
    name="a-charge-taken-back-without-signatures",
    cheat=COORDINATOR,
    does="Under a plan in which nobody signs survivors, tells a participant whose input is in the sum that it was left "
    "out.",
    must="She refuses, and stays charged.",
    outcome="refused",
    check=(naive("unsigned survivor sets prove nothing", shows=TAKEN_BACK),),
)
async def taken_back_unsigned(places: Places) -> Seen:
    with UNSIGNED:
        async with cheating(places) as coordinator:
            attempt = await coordinator.begin()
            cohort = await attempt.show()
            await attempt.tell_u2(cohort)
            await survivors(attempt, cohort, (ALL, ALL), HONEST - {VICTIM})
            assert attempt.opened(cohort, ALL)
            sets = cohort.survivor_sets((ALL, ALL - {VICTIM}))
            proof = codec.write_survivor_proof(*attempt.number, sets, UnmaskingRequest(()))
            await coordinator.tell({VICTIM: pb.CoordinatorMessage(survivor_proof=proof)})
            return attempt.verdict([VICTIM])


@scripted(
    name="other-survivors-without-signatures",
    cheat=COORDINATOR,
    does="Under a plan in which nobody signs survivors, asks a second time, with other survivors.",
    must="Everybody refuses: only the identical request is answered again.",
    outcome="refused",
    check=(naive("a second, different unmasking request", shows="goes on"),),
)
async def second_unsigned(places: Places) -> Seen:
    with UNSIGNED:
        async with cheating(places) as coordinator:
            attempt = await coordinator.begin()
            cohort = await attempt.show()
            await attempt.tell_u2(cohort)
            await survivors(attempt, cohort, (ALL, ALL), HONEST)
            await survivors(attempt, cohort, (ALL, ALL - {3}), HONEST - {3})
            return attempt.verdict(HONEST - {3})
