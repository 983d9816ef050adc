"""Participants that are silent, late, too loud, gone and back, or say what no decoder can read, in each phase."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import grpc

from client.connection import open_session
from server.sessions import MOST_STRAYS
from tests.adversary.cheating_participant import ADVERTISE, CHECK, INPUT, KINDS, SHARE, UNMASK, Cheat, Cheater, Twist
from tests.adversary.participant_scripts_messages import LEFT_OUT, NAMED, altered, false_share, flipped
from tests.adversary.participant_verdict import SUM_OF_ALL, SUM_OF_OTHERS, Blame, judge, register, scripted
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, Seen
from tests.adversary.study_with_cheats import Off, play
from wire import coordinator_pb2 as pb

ROUNDS, INBOX = "server.attempt.attempt", "server.attempt.inbox"
EACH = frozenset(range(1, 6))  # a phase in each round
PHASE_IN = dict(enumerate(KINDS, 1))
Change = Callable[[Cheater, Any, str], Any]


def each_phase_in_its_round(change: Change, first: int = 1) -> dict[str, Twist]:
    """In round r the r-th phase is cheated in, and no other."""

    def twist(kind: str) -> Twist:
        def cheats(cheater: Cheater, honest: Any) -> Any:
            if cheater.number[0] != KINDS.index(kind) + first:
                return [cheater.wrap(**{kind: honest})]
            return change(cheater, honest, kind)

        return cheats

    return {kind: twist(kind) for kind in KINDS}


def in_each_phase(
    name: str,
    does: str,
    change: Change,
    reason: str,
    *check: Naive,
    must: str = LEFT_OUT,
    but: frozenset[str] = frozenset(),
    silent: bool = False,
    also: Callable[[Cheater], tuple[str, ...]] = lambda _: (),
    **options: Any,
) -> None:
    """Register a script of five rounds, in each of which participant 0 cheats in another phase.

    Args:
        but: phases in which the cheat goes unnoticed, as it does where enough others have answered.
    """

    async def run(places: Places) -> Seen:
        cheat = Cheat(each_phase_in_its_round(change), rounds=EACH)
        options_ = {"participants": 5, "rounds": 5, "silent": frozenset({0} if silent else ())} | options
        stage = await play(places, {0: cheat}, **options_)
        blames = [Blame(0, kind, reason, round=round_) for round_, kind in PHASE_IN.items() if kind not in but]
        return judge(stage, *blames, rounds=5, also=also(stage.cheaters[0]))

    register(Script(name, PARTICIPANT, does, must, SUM_OF_OTHERS, check, run))


def by_other_culprits(
    name: str,
    does: str,
    changes: dict[str, Callable[[Cheater, Any], Any]],
    reasons: dict[str, str],
    *check: Naive,
    first: int = 1,
    partners: int = 0,
    must: str = NAMED,
) -> None:
    """Register a script of five rounds, in each of which another participant cheats in another phase.

    Args:
        first: round in which the first of them does.
        partners: participants after the five who are in league with them and play by the book.
    """

    async def run(places: Places) -> Seen:
        cheats = {
            who: Cheat({kind: _message_of(kind, changes[kind])}, rounds=frozenset({who + first}))
            for who, kind in enumerate(KINDS)
        }
        cheats |= {len(KINDS) + who: Cheat() for who in range(partners)}
        rounds = len(KINDS) + first - 1
        stage = await play(places, cheats, participants=13, rounds=rounds)
        blames = [Blame(who, kind, reasons[kind], round=who + first, excluded=True) for who, kind in enumerate(KINDS)]
        return judge(stage, *blames, rounds=rounds)

    register(Script(name, PARTICIPANT, does, must, SUM_OF_OTHERS, check, run))


def _message_of(kind: str, change: Callable[[Cheater, Any], Any]) -> Twist:
    async def twist(cheater: Cheater, honest: Any) -> Any:
        content = change(cheater, honest)
        if hasattr(content, "__await__"):
            content = await content
        return [cheater.wrap(**{kind: content})]

    return twist


# ---------------------------------------------------------------- silent, late, gone


def silence(*_: Any) -> None:
    return None


async def late(cheater: Cheater, honest: Any, kind: str) -> Any:
    """After the coordinator has gone on without it."""
    stage, round_ = cheater.stage, cheater.number[0]
    assert stage is not None
    if kind != UNMASK:
        cheater.cheated.add((round_, kind))
        gone_on = ("phase_started", {"phase": "Unmasking"}) if kind == CHECK else ("participant_dropped", {})
        await cheater.until(lambda: bool(stage.of(gone_on[0], round=round_, **gone_on[1])))
    return [cheater.wrap(**{kind: honest})]


async def disconnects(cheater: Cheater, _: Any, __: str) -> None:
    await cheater.leave(returns=True)


async def disconnects_after_it(cheater: Cheater, honest: Any, kind: str) -> None:
    await cheater.tell(cheater.wrap(**{kind: honest}))
    assert cheater.stage is not None
    await cheater.until(lambda: cheater.stage.arrived[0] >= cheater.owed)  # type: ignore[union-attr]
    await cheater.leave(returns=True)


DEADLINE = "did not answer before the deadline"
in_each_phase(
    "silent",
    "says nothing when it is its turn, in each phase once",
    silence,
    DEADLINE,
    Off(
        ROUNDS,
        changed=(('await self._leave(step, who, "did not answer before the deadline")', "pass"),),
        shows="is not named",
    ),
    but=frozenset({CHECK, UNMASK}),
    silent=True,
)
in_each_phase(
    "late",
    "answers when its phase is over and the others have gone on, in each phase once",
    late,
    DEADLINE,
    Off(
        ROUNDS,
        changed=(
            ("who in self._alive and self._inbox.takes(who) and self._slots.speaks(session)", "self._inbox.takes(who)"),
            ("        if who not in self._alive:\n            if isin", "        if False:\n            if isin"),
            ("            if name != step.name:\n", "            if False:\n"),
        ),
    ),
    but=frozenset({CHECK, UNMASK}),
    silent=True,
)
in_each_phase(
    "disconnects-and-returns",
    "cuts its session when it is its turn and opens another one at once, in each phase once",
    disconnects,
    "connection closed",
    must="it is left out of the attempt, the round ends in the exact sum of the others, and the next one is with it",
)
in_each_phase(
    "answers-and-disconnects",
    "answers, cuts its session and opens another one at once, in each phase once",
    disconnects_after_it,
    "connection closed",
    must="its input counts in full or not at all: the round ends in an exact sum, and the next one is with it",
    but=frozenset({UNMASK}),
)


# ---------------------------------------------------------------- too loud


def flood(cheater: Cheater, honest: Any, kind: str) -> Any:
    """Of another phase, so that none is refused by itself."""
    if kind in (CHECK, UNMASK):
        other = {"masked_input": pb.MaskedInputOffer(sha256=bytes(32), signature=bytes(64))}
    else:
        other = {"consistency": pb.ConsistencySignature(signature=bytes(64))}
    return [cheater.wrap(**other)] * 300


async def flood_and_wait(cheater: Cheater, honest: Any, kind: str) -> None:
    for message in flood(cheater, honest, kind):
        await cheater.tell(message)
    stage, owed = cheater.stage, cheater.owed
    assert stage is not None
    await cheater.until(lambda: stage.arrived[0] >= owed)


in_each_phase(
    "flood",
    "sends three hundred messages where one is due, in each phase once",
    flood_and_wait,
    "more messages than an attempt has",
    Off(
        INBOX,
        changed=(
            ("return participant not in self._overran", "return True"),
            ("        if self.messages[participant] > MOST_MESSAGES:\n", "        if False:\n"),
        ),
    ),
    silent=True,
)


async def three_large_ones(cheater: Cheater, honest: Any, kind: str) -> None:
    """Each as large as a message may be, and of another phase."""
    stage, owed = cheater.stage, cheater.owed
    assert stage is not None
    large = bytes((stage.where.study.sessions.most_message_bytes or 0) - 100)
    if kind in (CHECK, UNMASK):
        message = cheater.wrap(masked_input=pb.MaskedInputOffer(sha256=large))
    else:
        message = cheater.wrap(consistency=pb.ConsistencySignature(signature=large))
    for _ in range(3):
        await cheater.tell(message)
    await cheater.until(lambda: stage.arrived[0] >= owed)


in_each_phase(
    "flood-of-bytes",
    "sends three messages, each as large as all of an attempt, where one is due, in each phase once",
    three_large_ones,
    "more bytes than an attempt has",
    Off(
        INBOX,
        changed=(
            ("return participant not in self._overran", "return True"),
            ("        if self.bytes[participant] > self._most_bytes:\n", "        if False:\n"),
        ),
    ),
    silent=True,
)


async def everything_at_once(cheater: Cheater, honest: Any) -> Any:
    """Of every later phase, before the first."""
    return [
        cheater.wrap(consistency=pb.ConsistencySignature(signature=bytes(64))),
        cheater.wrap(masked_input=pb.MaskedInputOffer(sha256=bytes(32), signature=bytes(64))),
        cheater.wrap(share_keys=pb.SealedShares(seed_commitment=bytes(32), signature=bytes(64))),
        cheater.wrap(unmasking=pb.UnmaskingReply()),
        cheater.wrap(advertise_keys=honest),
    ]


@scripted(
    name="phases-out-of-order",
    cheat=PARTICIPANT,
    does="sends messages of every later phase before its keys",
    must="they are not kept for later: the round ends in the exact sum with it",
    outcome=SUM_OF_ALL,
    check=(
        Off(
            ROUNDS,
            changed=(("            if name != step.name:\n", "            if name is None:\n"),),
        ),
    ),
)
async def out_of_order(places: Places) -> Seen:
    stage = await play(places, {0: Cheat({ADVERTISE: everything_at_once})}, participants=5)
    return judge(stage)


@scripted(
    name="empty-phase-message",
    cheat=PARTICIPANT,
    does="sends a phase message of no phase",
    must=NAMED,
    outcome=SUM_OF_OTHERS,
    check=(Off(ROUNDS, without=("an empty phase message",), shows="hang"),),
)
async def empty_phase_message(places: Places) -> Seen:
    stage = await play(places, {0: Cheat({ADVERTISE: lambda cheater, _: [cheater.wrap()]})}, participants=5)
    return judge(stage, Blame(0, ADVERTISE, "an empty phase message", excluded=True))


async def heartbeats(cheater: Cheater, honest: Any) -> Any:
    """It reads none of the answers while it is here."""
    beat = pb.ParticipantMessage(heartbeat=pb.Heartbeat())
    for _ in range(600):
        await cheater.tell(beat)
    return [cheater.wrap(advertise_keys=honest)]


@scripted(
    name="heartbeats-without-end",
    cheat=PARTICIPANT,
    does="sends heartbeat after heartbeat and reads no answer",
    must="no more than one answer waits for it: the round ends in the exact sum with it",
    outcome=SUM_OF_ALL,
    check=(Off("server.service", changed=(("if session.outbox.empty():", "if True:"),), shows="answers wait"),),
)
async def heartbeats_without_end(places: Places) -> Seen:
    # What the cheat doesn't read soon waits at the coordinator: its channel takes no more than a kilobyte ahead.
    narrow = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    stage = await play(places, {0: Cheat({ADVERTISE: heartbeats}, options=narrow)}, participants=5)
    return judge(stage)


# ---------------------------------------------------------------- what no decoder reads


async def _cut_off_by(cheater: Cheater, raw: Any) -> None:
    await cheater.tell(raw)
    await cheater.is_cut_off()


async def garbage(cheater: Cheater, _: Any, kind: str) -> None:
    """The same in every run."""
    await _cut_off_by(cheater, b"\xff" + random.Random(kind).randbytes(200))


async def truncated(cheater: Cheater, honest: Any, kind: str) -> None:
    whole = cheater.wrap(**{kind: honest}).SerializeToString()
    await _cut_off_by(cheater, whole[: len(whole) - 7])


async def oversize(cheater: Cheater, honest: Any, kind: str) -> None:
    await _cut_off_by(cheater, cheater.wrap(**{kind: honest}).SerializeToString() + bytes(100_000))


async def strays(cheater: Cheater, honest: Any, kind: str) -> None:
    raw = pb.ParticipantMessage(phase=pb.PhaseMessage(round=99, attempt=1)).SerializeToString()
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the session ends on the way
        for _ in range(2 * MOST_STRAYS):
            await cheater.tell(raw)
    await cheater.is_cut_off()


async def another_opening(cheater: Cheater, _: Any, __: str) -> None:
    await _cut_off_by(cheater, pb.ParticipantMessage(open=pb.Open(protocol_version=1)))


UNREAD = "it is cut off and left out of the attempt; the round ends in the exact sum of the others, the next is with it"
in_each_phase(
    "random-bytes",
    "sends random bytes, in each phase once",
    garbage,
    "not a message of this protocol",
    must=UNREAD,
)
in_each_phase(
    "truncated-messages",
    "sends what is due less its last bytes, in each phase once",
    truncated,
    "not a message of this protocol",
    must=UNREAD,
)
in_each_phase(
    "oversize-messages",
    "sends what is due with 100 kB behind it, in each phase once",
    oversize,
    "larger than all of an attempt",
    Off(
        "server.service",
        without=("a message is larger than all of an attempt",),
    ),
    must=UNREAD,
)
in_each_phase(
    "flood-of-another-attempt",
    "sends two thousand messages of an attempt that doesn't run, in each phase once",
    strays,
    "more messages than the attempts under way have",
    Off("server.sessions", without=("more messages than the attempts under way have",)),
    must=UNREAD,
)
in_each_phase(
    "opens-an-open-session",
    "begins its session anew within the session, in each phase once",
    another_opening,
    "doesn't take",
    must=UNREAD,
)
by_other_culprits(
    "bit-flips",
    "sends what is due with one bit changed, another one in each phase",
    {
        ADVERTISE: lambda _, m: altered(m, channel_key=flipped(m.channel_key, 77)),
        SHARE: lambda _, m: altered(m, seed_commitment=flipped(m.seed_commitment, 200)),
        INPUT: lambda _, m: altered(m, sha256=flipped(m.sha256, 255)),
        CHECK: lambda _, m: altered(m, signature=flipped(m.signature, 300)),
        UNMASK: lambda _, m: _one_share(m),
    },
    {
        ADVERTISE: "not signed",
        SHARE: "not signed",
        INPUT: "not signed",
        CHECK: "doesn't cover",
        UNMASK: "doesn't match the commitment",
    },
)


def _one_share(message: pb.UnmaskingReply) -> pb.UnmaskingReply:
    changed = altered(message)
    false_share(changed.shares[len(changed.shares) // 2])
    return changed


# ---------------------------------------------------------------- replayed, or somebody else's


def replayed(kind: str) -> Callable[[Cheater, Any], Any]:
    return lambda cheater, _: cheater.first[kind]


async def _partners(cheater: Cheater, kind: str) -> Any:
    """The message of another one in league with it, of the same attempt."""
    assert cheater.stage is not None
    partner = cheater.stage.cheaters[len(KINDS)]
    number = cheater.number
    await cheater.until(lambda: partner.said.get(kind, ((0, 0), None))[0] == number)
    return partner.said[kind][1]


by_other_culprits(
    "replays-of-an-earlier-round",
    "sends its message of an earlier round again as one of this round, another one in each phase",
    {kind: replayed(kind) for kind in KINDS},
    {
        ADVERTISE: "not signed",
        SHARE: "",  # by then one less takes part: their number gives it away before the signature does
        INPUT: "not signed",
        CHECK: "doesn't cover",
        UNMASK: "",
    },
    first=2,
)
by_other_culprits(
    "messages-of-somebody-else",
    "sends the message of another one in its own name, another one in each phase",
    {kind: lambda cheater, _, kind=kind: _partners(cheater, kind) for kind in KINDS},
    {
        ADVERTISE: "",
        SHARE: "not signed",
        INPUT: "not signed",
        CHECK: "doesn't cover",
        UNMASK: "doesn't match the commitment",
    },
    partners=1,
)


async def old_numbers(cheater: Cheater, honest: Any) -> Any:
    """What it said in round 1, as it said it, before what is due."""
    old = [
        pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, attempt=1, **{kind: content}))
        for kind, content in cheater.first.items()
    ]
    return [*old, cheater.wrap(advertise_keys=honest)]


@scripted(
    name="messages-of-an-earlier-attempt",
    cheat=PARTICIPANT,
    does="sends all its messages of an earlier attempt again, as they were",
    must="none is read: the round ends in the exact sum with it",
    outcome=SUM_OF_ALL,
    check=(
        Off(
            "server.study",
            changed=(
                (
                    "if attempt is not None and (message.round, message.attempt) == _number(attempt):\n"
                    "            attempt.deliver",
                    "if attempt is not None:\n            attempt.deliver",
                ),
            ),
            shows="participant 0 is excluded",
        ),
    ),
)
async def messages_of_an_earlier_attempt(places: Places) -> Seen:
    cheat = Cheat({ADVERTISE: old_numbers}, rounds=frozenset({2}))
    return judge(await play(places, {0: cheat}, participants=5))


# ---------------------------------------------------------------- sessions


async def second_session(cheater: Cheater, honest: Any) -> Any:
    """The first one goes on speaking."""
    assert cheater.channel is not None
    second = await open_session(cheater.channel, cheater.identity, cheater.document.study)
    await second.send(pb.ParticipantMessage(ready=pb.Ready()))
    cheater.returning = cheater.left_unsent = True
    cheater.others.append(second)
    return [cheater.wrap(share_keys=honest)]


@scripted(
    name="two-sessions-of-one-identity",
    cheat=PARTICIPANT,
    does="opens a second session and goes on in the first",
    must="the first one is over and it is left out of the attempt; the round ends in the exact sum of the others",
    outcome=SUM_OF_OTHERS,
    check=(Off("server.sessions", changed=(("if old is not None:", "if False:"),)),),
)
async def two_sessions(places: Places) -> Seen:
    stage = await play(places, {0: Cheat({SHARE: second_session})}, participants=5)
    return judge(stage, Blame(0, SHARE, "replaced by a newer connection"))


async def claims(cheater: Cheater, *, key: bool) -> str:
    """Tries to open a session of participant 3, and says what it is told."""
    import grpc

    from tests.support.study_in_process import identities

    assert cheater.channel is not None
    assert cheater.stage is not None
    victim = identities(cheater.where.folder)[3]

    class Stolen:
        """Its name, with its key or without."""

        public = victim.public
        sign = staticmethod(victim.sign if key else cheater.identity.sign)

    try:
        session = await open_session(cheater.channel, Stolen(), cheater.document.study)  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    session.close()
    return "let in"


async def in_the_name_of_another(places: Places, *, key: bool, told: str, **options: Any) -> Seen:
    answers: list[str] = []

    async def tries(cheater: Cheater, honest: Any) -> Any:
        answers.append(await claims(cheater, key=key))
        return [cheater.wrap(share_keys=honest)]

    stage = await play(places, {0: Cheat({SHARE: tries})}, participants=5, **options)
    return judge(stage, also=() if told in "".join(answers) else ("a session in the name of another is opened",))


@scripted(
    name="session-in-the-name-of-another",
    cheat=PARTICIPANT,
    does="opens a session in the name of an honest participant, whose key it doesn't have",
    must="it is refused; the other one's session goes on, and the round ends in the exact sum of all",
    outcome=SUM_OF_ALL,
    check=(
        Off("server.sessions", without=("the proof of identity doesn't verify",), shows="participant 3 is dropped"),
    ),
)
async def name_of_another(places: Places) -> Seen:
    return await in_the_name_of_another(places, key=False, told="proof of identity")


@scripted(
    name="stolen-identity-key",
    cheat=PARTICIPANT,
    does="opens a session with the stolen identity key of somebody on another host, and its own certificate",
    must="it is refused; the other one's session goes on, and the round ends in the exact sum of all",
    outcome=SUM_OF_ALL,
    check=(
        Off(
            "server.peer_certificate",
            without=("the certificate is that of another identity",),
            shows="participant 3 is dropped",
        ),
    ),
)
async def stolen_identity_key(places: Places) -> Seen:
    return await in_the_name_of_another(places, key=True, told="certificate", study={"hosts": 5})
