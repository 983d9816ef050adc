"""Repeated requests: both kinds of share, rounds and attempts, requests, uploads, charges; and cut connections."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from unittest import mock

from secagg.messages import UnmaskingRequest
from secagg.parameters import RoundParameters
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import (
    CheatingCoordinator,
    cheating,
    coordinator_script,
    in_attempt,
    serving,
    with_coordinator,
)
from tests.adversary.coordinator_scripts import (
    ALL,
    ASCENDING_SIGNERS,
    COLLUDERS,
    COVERS,
    FEWER_SIGNED,
    HONEST,
    VICTIM,
    naive,
)
from tests.adversary.script import Naive, Places, Seen
from tests.adversary.watched_clients import joined
from tests.support.attempts_in_memory import Sets
from tests.support.coordinator_notes import Notes
from wire import codec, coordinator_pb2 as pb

PARTICIPANT = "client.participant"
OVER = "this phase is over for this participant"  # without it, a phase answers any number of times
SECOND_REQUEST = "a second, different unmasking request"
BOTH = ALL, ALL  # u2 and u3 of an attempt without dropouts


# ---------------------------------------------------------------- shares

# A participant that keeps the phase in which it signs, with its shares and seeds, and signs and answers again.
SETS, ANSWERS = '            case "survivor_sets":\n', "            await self._journal.answer("
KEPT_AND_ASKED_AGAIN = Naive(
    PARTICIPANT,
    changed={
        SETS: f"{SETS}                self._kept = attempt.phase = getattr(self, '_kept', attempt.phase)\n",
        ANSWERS: "            self._first, again = exact, hasattr(self, '_first')\n"
        f"            None if again else {ANSWERS.strip()}",
    },
    also=(naive(OVER, changed={"    held.clear()\n": ""}),),
)


@in_attempt(
    "All refuse the second sets: each has signed once and answered once.",
    replace(KEPT_AND_ASKED_AGAIN, shows="both secrets of participant 3 are known"),
)
async def both_kinds_of_share(attempt: Attempt) -> Seen:
    """Has a sum opened, then shows other survivor sets, without one member of the sum, and asks for shares again."""
    cohort = await attempt.run()
    assert attempt.opened(cohort, ALL)
    await attempt.finish(cohort, (ALL, ALL - {3}), HONEST - {3})
    return attempt.verdict(HONEST - {3})


@in_attempt("All refuse: only the identical request is answered again.", naive(SECOND_REQUEST, shows="goes on"))
async def a_second_request(attempt: Attempt) -> Seen:
    """Asks for the shares a second time, with other signatures over the same sets."""
    cohort = await attempt.masked()
    signed = await attempt.ask_to_sign(cohort, BOTH)
    await attempt.ask_to_unmask(cohort, BOTH, signed)
    await attempt.ask_to_unmask(cohort, BOTH, attempt.colluders_sign(cohort, BOTH) | signed)
    return attempt.verdict()


@in_attempt(
    "All give the same bytes again, and nothing new is known.",
    naive(
        changed={"        return self._reply": "        return UnmaskingReply(self._reply.shares[:-1] + (None,))"},
        shows="gave two different answers",
    ),
    outcome="the same answer",
)
async def the_same_request_again(attempt: Attempt) -> Seen:
    """Asks for the shares again with the identical request, as after a restart."""
    cohort = await attempt.run()
    signed = {who: attempt.heard(who, "consistency").signature for who in HONEST}
    signed |= attempt.colluders_sign(cohort, BOTH)
    for _ in range(2):
        await attempt.ask_to_unmask(cohort, BOTH, signed)
    counts = {attempt.coordinator.clients[who].kinds().count("unmasking") for who in HONEST}
    if counts != {3}:
        return attempt.verdict()
    return attempt.coordinator.came_out("the same answer", "three times the same bytes")


# ---------------------------------------------------------------- uploads

EXPECTS_SHARES = '_expect(attempt.phase, MaskedInputCollection, "neighbour_shares")'
CHARGES = "        await self._journal.charge(charge)\n"


@in_attempt(
    "It refuses: it masks one vector, once.",
    Naive(
        PARTICIPANT,
        changed={
            EXPECTS_SHARES: "self._kept = getattr(self, '_kept', attempt.phase)",
            CHARGES: f"        if self._charged is None:\n    {CHARGES}",
        },
        also=(naive(OVER),),
        shows="gave two different answers: masked_input",
    ),
)
async def masked_twice(attempt: Attempt) -> Seen:
    """Sends a participant another u2 after its upload, to get a second vector under the same masks."""
    cohort = await attempt.masked()
    await attempt.tell_u2(cohort, ALL - {3, 4}, [VICTIM])
    return attempt.verdict([VICTIM])


@in_attempt(
    "All refuse, since they have sent it once.",
    Naive.instead(
        PARTICIPANT, "if await self.behaviour.upload(", "if not await self.behaviour.upload(", shows="goes on"
    ),
)
async def upload_credit_twice(attempt: Attempt) -> Seen:
    """Grants a second credit, so that the upload comes twice."""
    await attempt.take_uploads(await attempt.masked(), ALL, HONEST)
    return attempt.verdict()


@in_attempt("All refuse.", Naive.lacking(PARTICIPANT, "an upload credit that wasn't asked for", shows="crashes"))
async def upload_credit_too_early(attempt: Attempt) -> Seen:
    """Grants a credit before anything was masked."""
    await attempt.show()
    round_, number = attempt.number
    credit = pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=round_, attempt=number))
    await attempt.coordinator.tell(dict.fromkeys(HONEST, credit))
    return attempt.verdict(never="masked_input")


@in_attempt(
    "All refuse, and repeat nothing.",
    Naive.instead(
        PARTICIPANT,
        'raise CoordinatorMisbehaved("Resumed", "the count is impossible, or no session asked to resume")',
        "return",
        shows="goes on",
    ),
)
async def resumed_without_a_break(attempt: Attempt) -> Seen:
    """Claims that it has received one message less than it has, although no connection broke."""
    round_, number = attempt.number
    resumed = pb.CoordinatorMessage(resumed=pb.Resumed(round=round_, attempt=number, received=0))
    await attempt.coordinator.tell(dict.fromkeys(HONEST, resumed))
    return attempt.verdict()


# ---------------------------------------------------------------- rounds and attempts

# Round and attempt are looked up in the journal's file, and compared with what this process knows of it.
OVERWRITES = {
    "INSERT INTO attempts (terms, identity, round,": "INSERT OR REPLACE INTO attempts (terms, identity, round,"
}
FORGETS = Naive(
    "client.journal",
    changed={"if (round_, attempt) <= self._last.get(key, (0, 0)):": "if False:", **OVERWRITES},
    shows="gave two different answers: advertise_keys",
)


@with_coordinator("All sit it out: the keys of an attempt exist once.", FORGETS, outcome="sits it out")
async def an_attempt_again(coordinator: CheatingCoordinator) -> Seen:
    """Announces an attempt again after all have uploaded in it, to get fresh keys under the same number."""
    await (await coordinator.begin(1, 2)).masked()
    return (await coordinator.begin(1, 2)).verdict()


@with_coordinator("All sit both out: numbers only grow.", replace(FORGETS, shows="goes on"), outcome="sits it out")
async def an_earlier_attempt(coordinator: CheatingCoordinator) -> Seen:
    """Goes back to an earlier attempt, then to an earlier round."""
    await coordinator.begin(2, 2)
    for round_, number in ((2, 1), (1, 7)):
        seen = (await coordinator.begin(round_, number)).verdict(never="advertise_keys")
        if seen.outcome != "sits it out":
            return seen
    return seen


@coordinator_script(
    "All sit it out: the attempt is recorded on disk before keys are advertised.",
    Naive(
        "client.journal",
        changed={"self._last[key] = max(self._last.get(key, (0, 0)), (round_, attempt))": "pass", **OVERWRITES},
        shows="gave two different answers: advertise_keys",
    ),
    outcome="sits it out",
)
async def an_attempt_again_after_a_restart(places: Places) -> Seen:
    """Announces an attempt again to clients that were stopped in the middle of it and restarted."""
    async with serving(places) as coordinator:
        async with joined(coordinator):
            await (await coordinator.begin()).masked()
        await coordinator.until_left()
        async with joined(coordinator):
            return (await coordinator.begin()).verdict()


# ---------------------------------------------------------------- charges


@with_coordinator(
    "Each upload is charged, and the victim's own budget ends it.",
    Naive.lacking("client.policy", "epsilon-in-plan", shows="uploads beyond the plan's budget"),
    Naive.instead(PARTICIPANT, CHARGES, "", shows="sent its input and was not charged"),
    outcome="refused by policy",
    study="three",
)
async def cut_off_after_every_upload(coordinator: CheatingCoordinator) -> Seen:
    """Disconnects a victim after its upload and announces the next attempt, again and again, to get one masked input
    after the other."""
    for number in range(1, 7):
        attempt = await coordinator.begin(1, number)
        seen = attempt.verdict([VICTIM], "advertise_keys")
        if seen.outcome != "goes on":
            return seen
        await attempt.masked()
        coordinator.disconnect(VICTIM)
        await coordinator.ready()
    return coordinator.came_out("goes on", f"{number} uploads beyond the plan's budget for 3")


@with_coordinator("It was charged before the first byte, and sits that attempt out.", FORGETS, outcome="sits it out")
async def cut_off_while_uploading(coordinator: CheatingCoordinator) -> Seen:
    """Breaks the victim's stream during its upload, and announces the same attempt when it is back."""

    async def cut(who: int) -> None:
        if who == VICTIM:
            coordinator.disconnect(who)

    coordinator.while_uploading = cut
    await (await coordinator.begin()).masked()
    await coordinator.ready()
    return (await coordinator.begin(to=[VICTIM])).verdict([VICTIM])


@with_coordinator(
    "They refuse the third by their policy.",
    Naive.instead("client.policy", "if charged >= most:", "if False:", shows="goes on"),
    outcome="refused by policy",
    policy={"max_rounds_per_day": 2},
)
async def more_attempts_than_a_day_allows(coordinator: CheatingCoordinator) -> Seen:
    """Announces attempt after attempt to participants that allow two a day."""
    for number in range(1, 5):
        attempt = await coordinator.begin(1, number)
        seen = attempt.verdict(never="advertise_keys")
        if seen.outcome != "goes on":
            break
        await attempt.run()
    charged = {number for one in coordinator.clients.values() for number, kind, _ in one.said if kind == "upload"}
    return seen if len(charged) == 2 else coordinator.came_out("goes on", f"{len(charged)} attempts")


# ---------------------------------------------------------------- charges taken back

TAKEN_BACK = "takes back the charge for a sum that holds its input"
Signers = Callable[[Notes, Sets, dict[int, bytes]], list[tuple[int, bytes]]]


async def tell_left_out(attempt: Attempt, cohort: Notes, sets: Sets, signatures: list[tuple[int, bytes]]) -> Seen:
    """Send the victim, whose input is in the opened sum, a proof that would make it take back its charge."""
    assert attempt.opened(cohort, ALL)
    request = UnmaskingRequest(tuple(signatures))
    proof = codec.write_survivor_proof(*attempt.number, cohort.survivor_sets(sets), request)
    await attempt.coordinator.tell({VICTIM: pb.CoordinatorMessage(survivor_proof=proof)})
    return attempt.verdict([VICTIM])


def charge_taken_back(script: str, missing: str, u3: frozenset[int], signers: Signers) -> None:
    """Register a script that proves, with these signatures over this u3, that the victim was left out of a sum."""

    @in_attempt("It refuses, and stays charged.", naive(missing, shows=TAKEN_BACK), script=script)
    async def taken_back(attempt: Attempt) -> Seen:
        cohort = await attempt.masked()
        signed = await attempt.all_sign(cohort, BOTH)
        await attempt.ask_to_unmask(cohort, BOTH, signed, HONEST - {VICTIM})
        return await tell_left_out(attempt, cohort, (ALL, u3), signers(cohort, (ALL, u3), signed))


def forged(cohort: Notes, sets: Sets, _: dict[int, bytes]) -> list[tuple[int, bytes]]:
    return sorted((who, cohort.forge(who, sets)) for who in COLLUDERS)


charge_taken_back(
    "a-charge-taken-back-by-colluders: Opens a sum with a participant's input and claims to it, signed by the "
    "colluders alone, that it was left out.",
    FEWER_SIGNED,
    ALL - {VICTIM},
    forged,
)
charge_taken_back(
    "a-charge-taken-back-with-its-own-sum: Shows a participant the signatures of the sum that holds its input, as if "
    "it did not.",
    "u3 was said to be without this participant",
    ALL,
    lambda cohort, sets, signed: sorted(signed.items()),
)
charge_taken_back(
    "a-charge-taken-back-with-other-signatures: Shows a participant the signatures of the sum that holds its input "
    "under a list without it.",
    COVERS,
    ALL - {VICTIM},
    lambda cohort, sets, signed: sorted(pair for pair in signed.items() if pair[0] != VICTIM),
)
charge_taken_back(
    "a-charge-taken-back-by-one-signer: Shows a participant one colluder's signature six times, over a list without "
    "the participant.",
    ASCENDING_SIGNERS,
    ALL - {VICTIM},
    lambda cohort, sets, signed: forged(cohort, sets, signed)[:1] * 6,
)


# ---------------------------------------------------------------- plans for a curious coordinator


@contextlib.asynccontextmanager
async def unsigned(places: Places) -> AsyncIterator[tuple[Attempt, Notes]]:
    """Survivors are not signed there, and nothing is promised if the coordinator lies about them; but charges stay."""
    with mock.patch.object(RoundParameters, "signed", property(lambda _: False)):
        async with cheating(places) as coordinator:
            attempt = await coordinator.begin()
            yield attempt, await attempt.masked()


async def survivors(attempt: Attempt, cohort: Notes, sets: Sets, to: frozenset[int]) -> None:
    """Send the survivor sets, which ask for shares where survivors are not signed."""
    await attempt.send("survivor_sets", dict.fromkeys(sorted(to), cohort.survivor_sets(sets)))
    for who in sorted(to):
        reply = attempt.heard(who, "unmasking")
        if reply is not None:
            cohort.note_reply(who, ALL, codec.read_unmasking_reply(reply))


@coordinator_script("It refuses, and stays charged.", naive("unsigned survivor sets prove nothing", shows=TAKEN_BACK))
async def a_charge_taken_back_without_signatures(places: Places) -> Seen:
    """Under a plan without signed survivors, claims to a participant whose input is in the sum that it was left out."""
    async with unsigned(places) as (attempt, cohort):
        await survivors(attempt, cohort, BOTH, HONEST - {VICTIM})
        return await tell_left_out(attempt, cohort, (ALL, ALL - {VICTIM}), [])


@coordinator_script("All refuse: only the identical request is answered again.", naive(SECOND_REQUEST, shows="goes on"))
async def other_survivors_without_signatures(places: Places) -> Seen:
    """Under a plan without signed survivors, asks a second time, with other survivors."""
    async with unsigned(places) as (attempt, cohort):
        await survivors(attempt, cohort, BOTH, HONEST)
        await survivors(attempt, cohort, (ALL, ALL - {3}), HONEST - {3})
        return attempt.verdict(HONEST - {3})
