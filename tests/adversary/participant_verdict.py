"""Scripts of cheating participants, and the verdict on their studies: promises kept, participants named, outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from server.attempt.steps import PHASE_FIELDS
from tests.adversary.cheating_participant import Cheat
from tests.adversary.script import PARTICIPANT, Naive, Places, Seen, scripted
from tests.adversary.study_with_cheats import BUDGET_REACHED, Opened, Stage, Vector, play

SUM_OF_ALL, SUM_OF_OTHERS = "sum", "sum of the others"
ABORT_THEN_SUM, SHIFTED = "aborts, then sum of the others", "shifted sum"
MOST_QUEUED = 12  # messages of one participant that an attempt takes, and the notice of its departure
MOST_ANSWERS = 24
_COMPLETED = "round_completed"


@dataclass(frozen=True)
class Blame:
    """A participant that must be named for a cheat."""

    who: int
    kind: str  # the phase, by its message
    reason: str  # a piece of the coordinator's reason
    round: int = 1
    excluded: bool = False  # from the study; else only from this attempt


def study_script(
    script: str,
    must: str,
    outcome: str,
    cheats: Mapping[int, Cheat],
    *check: Naive,
    blames: Iterable[Blame] = (),
    broken: Callable[[Stage], str] = lambda _: "",
    possible: bool = False,
    participants: int = 5,
    rounds: int = 2,
    shift: Mapping[int, Vector] | None = None,
    most_read: int = 1 << 20,
    set_aside: frozenset[int] = frozenset(),
    **options: Any,
) -> None:
    """Register a script of a study with these cheats, by position in the roster.

    The study ends with a round before its last where an attempt is lost.

    Args:
        blames: the participants that must be named; no others may be.
        broken: a promise that the script itself found broken, or "".
        possible: the cheat is documented as possible.
        shift: by how much its cheat may move the sum of a round.
        most_read: bytes that may be read of one upload.
        set_aside: the participants that must be set aside without a verdict, each once; no others may be.
        options: further arguments of `play`.
    """

    blamed = tuple(blames)
    # Attempts may end without a sum; they are charged, and the study ends when its budget is used up.
    may_lose = outcome in (ABORT_THEN_SUM, BUDGET_REACHED)

    @scripted(PARTICIPANT, script, must, outcome, *check, possible=possible)
    async def run(places: Places) -> Seen:
        stage = await play(places, cheats, participants=participants, rounds=rounds, **options)
        completed = {round_: opened for (round_, _), opened in sorted(stage.opened.items())}
        found, moved = _sums(stage, shift or {})
        if shift and moved != sorted(shift):
            found.append("the sum is not shifted by what was added")
        found += _blamed_wrongly(stage, blamed)
        if may_lose and stage.ended == BUDGET_REACHED and not completed:
            found.append("every attempt fails until the budget is used up")
        found += _set_aside_wrongly(stage, set_aside)
        if stage.ended not in (("rounds done", BUDGET_REACHED) if may_lose else ("rounds done",)):
            found.append(f"the study ends with: {stage.ended}")
        if stage.ended == "rounds done" and len(completed) != rounds:
            found.append(f"{len(completed)} sums, not {rounds}")
        found += _queues(stage, most_read)
        found += [f"error in the log: {fault}" for fault in dict.fromkeys(stage.faults)]
        found += [f"an honest client ended: {why}" for why in stage.hosts_ended]
        found += [also] if (also := broken(stage)) else []
        found += _not_blamed(stage, blamed, completed)
        aborts = stage.of("attempt_aborted")
        nobody = Opened(frozenset(), np.zeros(0))
        left_out = any(blame.who not in completed.get(blame.round, nobody).u3 for blame in blamed)
        ended = stage.ended
        if completed and (stage.ended == "rounds done" or may_lose):
            ended = ABORT_THEN_SUM if aborts else SHIFTED if moved else SUM_OF_OTHERS if left_out else SUM_OF_ALL
        reasons = [f"{event['phase']}: {event['reason']}" for event in (*aborts, *stage.of("participant_dropped"))]
        return Seen(ended, "; ".join(dict.fromkeys(reasons))[:300], tuple(dict.fromkeys(found)))


def _sums(stage: Stage, shift: Mapping[int, Vector]) -> tuple[list[str], list[int]]:
    """Return sentences about wrong sums, and the rounds whose sums are shifted as they may be."""
    wrong: list[str] = []
    moved: list[int] = []
    for (round_, attempt), opened in sorted(stage.opened.items()):
        wanted = _sum(stage, round_, attempt, opened.u3)
        if np.array_equal(opened.total, wanted):
            continue
        by = shift.get(round_)
        if by is not None and np.array_equal(opened.total, _wrapped(wanted + by.astype(wanted.dtype), stage.bits)):
            moved.append(round_)
        else:
            wrong.append(f"round {round_} opens a wrong sum")
    return wrong, moved


def _sum(stage: Stage, round_: int, attempt: int, u3: frozenset[int]) -> Vector:
    vectors = [stage.contribution(round_, attempt, who) for who in sorted(u3)]
    return _wrapped(np.sum(np.stack(vectors).astype(np.uint64), axis=0), stage.bits).astype(vectors[0].dtype)


def _wrapped(vector: Vector, bits: int) -> Vector:
    return (vector.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(vector.dtype)


def _queues(stage: Stage, most_read: int) -> Iterator[str]:
    if stage.inbox > MOST_QUEUED * (len(stage.honest) + len(stage.cheaters)):
        yield "messages of one participant pile up in memory"
    if stage.outbox > MOST_ANSWERS:
        yield "answers wait in memory for a participant that doesn't read them"
    if any(read > most_read for read in stage.uploaded.values()):
        yield "more of an upload is read than a vector has"


def _blamed_wrongly(stage: Stage, blames: tuple[Blame, ...]) -> Iterator[str]:
    """Find innocent participants that are dropped, excluded or made to refuse; and what is counted twice."""
    dropped = stage.of("participant_dropped")
    for log in stage.logs:
        if log.get("event") == "refused":
            yield f"an honest participant refused: {log.get('reason')}"
        elif log.get("log_level") == "error":
            yield f"error: {log.get('event')} {log.get('reason', '')}"
    for event in stage.of("participant_excluded"):
        if not any(blame.excluded and blame.who == event["participant"] for blame in blames):
            yield f"participant {event['participant']} is excluded: {event['reason']}"
    for event in dropped:
        if event["participant"] not in {blame.who for blame in blames}:
            yield f"participant {event['participant']} is dropped: {event['reason']}"
    drops = Counter((event["round"], event["attempt"], event["participant"]) for event in dropped)
    yield from (f"participant {who} leaves an attempt twice" for (_, _, who), count in drops.items() if count > 1)


def _set_aside_wrongly(stage: Stage, wanted: frozenset[int]) -> Iterator[str]:
    """Find participants wrongly set aside or not set aside, and those set aside that take part in a later sum."""
    aside = stage.of("participant_set_aside")
    times = Counter(event["participant"] for event in aside)
    yield from (f"participant {who} is set aside" for who in sorted(times.keys() - wanted))
    yield from (f"participant {who} is not set aside" for who in sorted(wanted - times.keys()))
    yield from (f"participant {who} is set aside {count} times" for who, count in sorted(times.items()) if count > 1)
    for event in aside:
        later = [one["survivors"] for one in stage.events[stage.events.index(event) :] if one["kind"] == _COMPLETED]
        if any(event["participant"] in survivors for survivors in later):
            yield f"participant {event['participant']} is set aside and comes back"


def _not_blamed(stage: Stage, blames: tuple[Blame, ...], completed: Mapping[int, Opened]) -> Iterator[str]:
    """Find cheats that are not named, and excluded ones that come back or are not on record."""
    last = max(stage.on_record, default=0)
    for blame in blames:
        dropped = [
            event["reason"]
            for event in stage.of("participant_dropped", participant=blame.who, round=blame.round)
            if event["phase"] == PHASE_FIELDS[blame.kind]
        ]
        excluded = [event["reason"] for event in stage.of("participant_excluded", participant=blame.who)]
        if not any(blame.reason in reason for reason in (excluded if blame.excluded else dropped)):
            yield f"participant {blame.who} is not named for {blame.reason!r} in {PHASE_FIELDS[blame.kind]}"
            continue
        later = [one.u3 for round_, one in completed.items() if round_ > blame.round]
        if blame.excluded and any(blame.who in u3 for u3 in later):
            yield f"participant {blame.who} is excluded and comes back"
        recorded = stage.on_record.get(last, {}).get(stage.identity(blame.who), "")
        if blame.excluded and last > blame.round and blame.reason not in recorded:
            yield f"no transcript says that participant {blame.who} is excluded"
