"""Participants that are silent, late, too loud, gone and back, or send what no decoder can read, in each phase."""

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
from tests.adversary.participant_scripts_messages import LEFT_OUT, NAMED, Change, altered, revealed, sends
from tests.adversary.participant_verdict import SUM_OF_ALL, SUM_OF_OTHERS, Blame, study_script
from tests.adversary.script import Naive
from tests.adversary.study_with_cheats import Off, Stage
from tests.support.attempts_in_memory import flipped
from tests.support.study_in_process import identities
from wire import coordinator_pb2 as pb

ATTEMPT, INBOX = "server.attempt.attempt", "server.attempt.inbox"
PhaseChange = Callable[[Cheater, Any, str], Any]
"""(cheater, honest content, kind) -> messages to send instead, or None; may be a coroutine function."""


def in_each_phase(
    script: str,
    change: PhaseChange,
    reason: str,
    *check: Naive,
    must: str = LEFT_OUT,
    but: frozenset[str] = frozenset(),
    silent: bool = False,
) -> None:
    """Register a script of five rounds; in round r participant 0 cheats in the r-th phase only.

    ``but``: phases in which the cheat goes unnoticed, since enough others have answered.
    """

    def twist(kind: str, round_: int) -> Twist:
        def cheats(cheater: Cheater, honest: Any) -> Any:
            if cheater.number[0] != round_:
                return [cheater.wrap(**{kind: honest})]
            return change(cheater, honest, kind)

        return cheats

    phases = list(enumerate(KINDS, 1))
    cheat = Cheat({kind: twist(kind, round_) for round_, kind in phases}, rounds=frozenset(range(1, 6)))
    study_script(
        script,
        must,
        SUM_OF_OTHERS,
        {0: cheat},
        *check,
        blames=[Blame(0, kind, reason, round=round_) for round_, kind in phases if kind not in but],
        rounds=5,
        silent=frozenset({0} if silent else ()),
    )


def by_other_culprits(
    script: str, changes: dict[str, tuple[Change, str]], *check: Naive, first: int = 1, partners: int = 0
) -> None:
    """Register a script in which each of five participants cheats in another phase and another round.

    Args:
        changes: by phase, the message sent instead and the reason for which the cheat must be named.
        first: round in which the first of them cheats.
        partners: participants after the five that collude with them and follow the protocol.
    """
    cheats, blames = {len(KINDS) + who: Cheat() for who in range(partners)}, []
    for who, kind in enumerate(KINDS):
        change, reason = changes[kind]
        cheats[who] = Cheat(sends(kind, change), rounds=frozenset({who + first}))
        blames.append(Blame(who, kind, reason, round=who + first, excluded=True))
    study_script(
        script,
        NAMED,
        SUM_OF_OTHERS,
        dict(sorted(cheats.items())),
        *check,
        blames=blames,
        participants=13,
        rounds=len(KINDS) + first - 1,
    )


# ---------------------------------------------------------------- silent, late, gone


def silence(*_: Any) -> None:
    return None


async def late(cheater: Cheater, honest: Any, kind: str) -> Any:
    """Answer after the coordinator has gone on without it."""
    stage, round_ = cheater.known, cheater.number[0]
    if kind != UNMASK:
        cheater.cheated.add((round_, kind))
        gone_on = ("phase_started", {"phase": "Unmasking"}) if kind == CHECK else ("participant_dropped", {})
        await cheater.until(lambda: bool(stage.of(gone_on[0], round=round_, **gone_on[1])))
    return [cheater.wrap(**{kind: honest})]


async def disconnects(cheater: Cheater, _: Any, __: str) -> None:
    await cheater.leave(returns=True)


async def disconnects_after_it(cheater: Cheater, honest: Any, kind: str) -> None:
    await cheater.tell(cheater.wrap(**{kind: honest}))
    await cheater.until(lambda: cheater.known.arrived[0] >= cheater.owed)
    await cheater.leave(returns=True)


DEADLINE = "did not answer before the deadline"
in_each_phase(
    "silent: says nothing when it is its turn",
    silence,
    DEADLINE,
    Off.instead(
        ATTEMPT, 'await self._leave(step, who, "did not answer before the deadline")', "pass", shows="is not named"
    ),
    but=frozenset({CHECK, UNMASK}),
    silent=True,
)
in_each_phase(
    "late: answers when its phase is over and the others have gone on",
    late,
    DEADLINE,
    Off(
        ATTEMPT,
        changed={
            "who in self._alive and self._inbox.takes(who) and self._slots.speaks(session)": "self._inbox.takes(who)",
            "        if who not in self._alive:\n            if isin": "        if False:\n            if isin",
            "            elif item.phase == step.name:  #": "            else:  #",
        },
    ),
    but=frozenset({CHECK, UNMASK}),
    silent=True,
)
in_each_phase(
    "disconnects-and-returns: cuts its session when it is its turn and opens another one at once",
    disconnects,
    "connection closed",
    must="it is left out of the attempt, the round ends in the exact sum of the others, and the next one includes it",
)
in_each_phase(
    "answers-and-disconnects: answers, cuts its session and opens another one at once",
    disconnects_after_it,
    "connection closed",
    must="its input counts in full or not at all: the round ends in an exact sum, and the next one includes it",
    but=frozenset({UNMASK}),
)


# ---------------------------------------------------------------- too loud


async def send_many(cheater: Cheater, kind: str, count: int, filler: bytes) -> None:
    """Send messages of another phase than this one, so that none is refused by itself, and wait for their arrival."""
    if kind in (CHECK, UNMASK):
        message = cheater.wrap(masked_input=pb.MaskedInputOffer(sha256=filler, signature=bytes(64)))
    else:
        message = cheater.wrap(consistency=pb.ConsistencySignature(signature=filler))
    for _ in range(count):
        await cheater.tell(message)
    await cheater.until(lambda: cheater.known.arrived[0] >= cheater.owed)


async def flood(cheater: Cheater, _: Any, kind: str) -> None:
    await send_many(cheater, kind, 300, bytes(32 if kind in (CHECK, UNMASK) else 64))


async def three_large_ones(cheater: Cheater, _: Any, kind: str) -> None:
    largest = cheater.known.where.study.bounds.control_bytes
    await send_many(cheater, kind, 3, bytes(largest - 200))


def overruns(limit: str) -> Off:
    """Make a coordinator without this limit of an attempt's inbox."""
    return Off(
        INBOX,
        changed={
            "return participant not in self._overran": "return True",
            f"        if {limit}:\n": "        if False:\n",
        },
    )


in_each_phase(
    "flood: sends three hundred messages where one is due",
    flood,
    "more messages than an attempt has",
    overruns("self.messages[participant] > MOST_MESSAGES"),
    silent=True,
)
in_each_phase(
    "flood-of-bytes: sends three messages, each as large as all of an attempt, where one is due",
    three_large_ones,
    "more bytes than an attempt has",
    overruns("self.bytes[participant] > self._most_bytes"),
    silent=True,
)


async def everything_at_once(cheater: Cheater, honest: Any) -> Any:
    return [
        cheater.wrap(consistency=pb.ConsistencySignature(signature=bytes(64))),
        cheater.wrap(masked_input=pb.MaskedInputOffer(sha256=bytes(32), signature=bytes(64))),
        cheater.wrap(share_keys=pb.SealedShares(seed_commitment=bytes(32), signature=bytes(64))),
        cheater.wrap(unmasking=pb.UnmaskingReply()),
        cheater.wrap(advertise_keys=honest),
    ]


study_script(
    "phases-out-of-order: sends messages of every later phase before its keys",
    "they are not kept for later: the round ends in the exact sum with it",
    SUM_OF_ALL,
    {0: Cheat({ADVERTISE: everything_at_once})},
    Off.instead(ATTEMPT, "            elif item.phase == step.name:  #", "            else:  #"),
)
study_script(
    "empty-phase-message: sends a phase message of no phase",
    NAMED,
    SUM_OF_OTHERS,
    {0: Cheat({ADVERTISE: lambda cheater, _: [cheater.wrap()]})},
    Off.lacking(ATTEMPT, "an empty phase message", shows="hang"),
    blames=[Blame(0, ADVERTISE, "an empty phase message", excluded=True)],
)


async def heartbeats(cheater: Cheater, honest: Any) -> Any:
    beat = pb.ParticipantMessage(heartbeat=pb.Heartbeat())
    for _ in range(600):
        await cheater.tell(beat)
    return [cheater.wrap(advertise_keys=honest)]


# What the cheat doesn't read soon waits at the coordinator: its channel takes no more than a kilobyte ahead.
NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
study_script(
    "heartbeats-without-end: sends heartbeat after heartbeat and reads no answer",
    "no more than one answer waits for it: the round ends in the exact sum with it",
    SUM_OF_ALL,
    {0: Cheat({ADVERTISE: heartbeats}, options=NARROW)},
    Off.instead("server.service", "if session.outbox.empty():", "if True:", shows="answers wait"),
)


# ---------------------------------------------------------------- what no decoder reads


def cut_off_by(raw: Callable[[Cheater, Any, str], Any]) -> PhaseChange:
    """Send what is made of the honest content, and wait until the coordinator has ended the session."""

    async def change(cheater: Cheater, honest: Any, kind: str) -> None:
        await cheater.tell(raw(cheater, honest, kind))
        await cheater.is_cut_off()

    return change


def serialized(cheater: Cheater, honest: Any, kind: str) -> bytes:
    return bytes(cheater.wrap(**{kind: honest}).SerializeToString())


async def strays(cheater: Cheater, honest: Any, kind: str) -> None:
    raw = pb.ParticipantMessage(phase=pb.PhaseMessage(round=99, attempt=1)).SerializeToString()
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the session ends meanwhile
        for _ in range(2 * MOST_STRAYS):
            await cheater.tell(raw)
    await cheater.is_cut_off()


UNREAD = (
    "it is cut off and left out of the attempt; the round ends in the exact sum of the others, the next includes it"
)
in_each_phase(
    "random-bytes: sends random bytes",
    cut_off_by(lambda _, __, kind: b"\xff" + random.Random(kind).randbytes(200)),  # the same in every run
    "not a message of this protocol",
    must=UNREAD,
)
in_each_phase(
    "truncated-messages: sends what is due less its last bytes",
    cut_off_by(lambda *due: serialized(*due)[:-7]),
    "not a message of this protocol",
    must=UNREAD,
)
in_each_phase(
    "oversize-messages: sends what is due followed by 100 kB",
    cut_off_by(lambda *due: serialized(*due) + bytes(100_000)),
    "larger than all of an attempt",
    Off.lacking("server.service", "a message is larger than all of an attempt"),
    must=UNREAD,
)
in_each_phase(
    "flood-of-another-attempt: sends two thousand messages of an attempt that doesn't run",
    strays,
    "more messages than the attempts under way have",
    Off.lacking("server.sessions", "more messages than the attempts under way have"),
    must=UNREAD,
)
in_each_phase(
    "opens-an-open-session: begins its session anew within the session",
    cut_off_by(lambda *_: pb.ParticipantMessage(open=pb.Open(protocol_version=1))),
    "doesn't take",
    must=UNREAD,
)


by_other_culprits(
    "bit-flips: sends what is due with one bit changed",
    {
        ADVERTISE: (lambda _, m: altered(m, channel_key=flipped(m.channel_key, 77)), "not signed"),
        SHARE: (lambda _, m: altered(m, seed_commitment=flipped(m.seed_commitment, 200)), "not signed"),
        INPUT: (lambda _, m: altered(m, sha256=flipped(m.sha256, 255)), "not signed"),
        CHECK: (lambda _, m: altered(m, signature=flipped(m.signature, 300)), "doesn't cover"),
        UNMASK: (revealed("share", lambda share: flipped(share, 3), at=6), "doesn't match the commitment"),
    },
)


# ---------------------------------------------------------------- replayed, or another participant's


def replayed(kind: str, reason: str) -> tuple[Change, str]:
    return lambda cheater, _: cheater.first[kind], reason


def of_a_partner(kind: str, reason: str) -> tuple[Change, str]:
    """Take the message that a partner sends in the same attempt."""

    async def partners(cheater: Cheater, _: Any) -> Any:
        partner, number = cheater.known.cheaters[len(KINDS)], cheater.number
        await cheater.until(lambda: partner.said.get(kind, ((0, 0), None))[0] == number)
        return partner.said[kind][1]

    return partners, reason


by_other_culprits(
    "replays-of-an-earlier-round: sends its message of an earlier round again as one of this round",
    {
        ADVERTISE: replayed(ADVERTISE, "not signed"),
        SHARE: replayed(SHARE, ""),  # one participant less by then: their number reveals it before the signature does
        INPUT: replayed(INPUT, "not signed"),
        CHECK: replayed(CHECK, "doesn't cover"),
        UNMASK: replayed(UNMASK, ""),
    },
    first=2,
)
by_other_culprits(
    "messages-of-another-participant: sends the message of another participant in its own name",
    {
        ADVERTISE: of_a_partner(ADVERTISE, ""),
        SHARE: of_a_partner(SHARE, "not signed"),
        INPUT: of_a_partner(INPUT, "not signed"),
        CHECK: of_a_partner(CHECK, "doesn't cover"),
        UNMASK: of_a_partner(UNMASK, "doesn't match its commitment"),
    },
    partners=1,
)


async def old_numbers(cheater: Cheater, honest: Any) -> Any:
    old = [
        pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, attempt=1, **{kind: content}))
        for kind, content in cheater.first.items()
    ]
    return [*old, cheater.wrap(advertise_keys=honest)]


study_script(
    "messages-of-an-earlier-attempt: sends all its messages of an earlier attempt again, unchanged",
    "none is read: the round ends in the exact sum with it",
    SUM_OF_ALL,
    {0: Cheat({ADVERTISE: old_numbers}, rounds=frozenset({2}))},
    Off.instead(
        "server.study",
        "if attempt is not None and number == attempt.config.number:\n            attempt.deliver",
        "if attempt is not None:\n            attempt.deliver",
        shows="participant 0 is excluded",
    ),
)


# ---------------------------------------------------------------- sessions


async def second_session(cheater: Cheater, honest: Any) -> Any:
    assert cheater.channel is not None
    second = await open_session(cheater.channel, cheater.identity, cheater.document.study)
    await second.send(pb.ParticipantMessage(ready=pb.Ready()))
    cheater.returning = cheater.left_unsent = True
    cheater.others.append(second)
    return honest


study_script(
    "two-sessions-of-one-identity: opens a second session and goes on in the first",
    "the first one is over and it is left out of the attempt; the round ends in the exact sum of the others",
    SUM_OF_OTHERS,
    {0: Cheat(sends(SHARE, second_session))},
    Off.instead("server.sessions", "if old is not None:", "if False:"),
    blames=[Blame(0, SHARE, "replaced by a newer connection")],
)


def in_the_name_of_another(script: str, reason: str, check: Naive, *, key: bool, **options: Any) -> None:
    """Register a script that tries to open a session of participant 3, with its key or without."""

    async def tries(cheater: Cheater, honest: Any) -> Any:
        assert cheater.channel is not None
        victim = identities(cheater.where.folder)[3]

        class Stolen:
            public = victim.public
            sign = staticmethod(victim.sign if key else cheater.identity.sign)

        try:
            session = await open_session(cheater.channel, Stolen(), cheater.document.study)  # type: ignore[arg-type]
            session.close()
        except grpc.aio.AioRpcError as error:
            cheater.answers.append(error.details() or error.code().name)
        return honest

    def let_in(stage: Stage) -> str:
        refused = reason in "".join(stage.cheaters[0].answers)
        return "" if refused else "a session in the name of another is opened"

    study_script(
        script,
        "it is refused; the other one's session goes on, and the round ends in the exact sum of all",
        SUM_OF_ALL,
        {0: Cheat(sends(SHARE, tries))},
        check,
        broken=let_in,
        **options,
    )


in_the_name_of_another(
    "session-in-the-name-of-another: opens a session in the name of an honest participant, whose key it doesn't have",
    "proof of identity",
    Off.lacking("server.sessions", "the proof of identity doesn't verify", shows="participant 3 is dropped"),
    key=False,
)
in_the_name_of_another(
    "stolen-identity-key: opens a session with the stolen identity key of a participant on another host, and its own "
    "certificate",
    "certificate",
    Off.lacking(
        "server.peer_certificate", "the certificate is that of another identity", shows="participant 3 is dropped"
    ),
    key=True,
    study={"hosts": 5},
)
