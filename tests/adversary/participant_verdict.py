"""What a study with cheating participants is worth: which promises held, who was named, and how it came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.adversary.cheating_participant import PHASE_OF
from tests.adversary.script import Seen
from tests.adversary.study_with_cheats import BUDGET_REACHED, Opened, Stage, Vector

SUM_OF_ALL, SUM_OF_OTHERS = "sum", "sum of the others"
ABORT_THEN_SUM, SHIFTED = "aborts, then sum of the others", "shifted sum"
MOST_QUEUED = 12  # messages of one participant that an attempt takes, and the word that it is gone
MOST_ANSWERS = 24


@dataclass(frozen=True)
class Blame:
    """Who must be named for what.

    Attributes:
        kind: the phase, by its message.
        reason: a piece of what the coordinator says.
        excluded: from the study; else from this attempt only.
    """

    who: int
    kind: str
    reason: str
    round: int = 1
    excluded: bool = False


def judge(
    stage: Stage,
    *blames: Blame,
    rounds: int = 2,
    shift: Mapping[int, Vector] | None = None,
    most_read: int = 1 << 20,
    collateral: frozenset[int] = frozenset(),
    also: tuple[str, ...] = (),
    may_lose: bool = False,
) -> Seen:
    """What was seen, and every promise that did not hold.

    Args:
        blames: who must be named, and nobody else.
        shift: of a round's sum, by what its cheat is documented to move it.
        most_read: bytes that may be read of one upload.
        collateral: cheats who may be named besides for a consequence.
        also: promises that the script itself found broken.
        may_lose: attempts that end without a sum; they are charged, and the study ends when its budget is used up.
    """
    broken: list[str] = list(also)
    if stage.ended not in (("rounds done", BUDGET_REACHED) if may_lose else ("rounds done",)):
        broken.append(stage.ended or "did not end")
    completed = {round_: opened for (round_, _), opened in sorted(stage.opened.items())}
    if stage.ended == "rounds done" and len(completed) != rounds:
        broken.append(f"{len(completed)} sums, not {rounds}")
    for blame in blames:
        if blame.excluded and any(blame.who in one.u3 for round_, one in completed.items() if round_ > blame.round):
            broken.append(f"participant {blame.who} was excluded and came back")
        last = max(stage.on_record, default=0)
        recorded = stage.on_record.get(last, {}).get(stage.identity(blame.who), "")
        if blame.excluded and last > blame.round and blame.reason not in recorded:
            broken.append(f"no transcript says that participant {blame.who} is excluded for {blame.reason!r}")
    dropped = stage.of("participant_dropped")
    drops = Counter((event["round"], event["attempt"], event["participant"]) for event in dropped)
    broken += [f"participant {who} left an attempt twice" for (_, _, who), count in drops.items() if count > 1]
    moved: list[int] = []
    for (round_, attempt), opened in sorted(stage.opened.items()):
        wanted = _sum(stage, round_, attempt, opened.u3)
        if np.array_equal(opened.total, wanted):
            continue
        by = (shift or {}).get(round_)
        if by is not None and np.array_equal(opened.total, _wrapped(wanted + by.astype(wanted.dtype), stage.bits)):
            moved.append(round_)
        else:
            broken.append(f"round {round_} opened a wrong sum")
    if shift and moved != sorted(shift):
        broken.append("the sum is not shifted by what was added")
    broken += _blamed(stage, blames, collateral)
    if stage.inbox > MOST_QUEUED * (len(stage.honest) + len(stage.cheaters)):
        broken.append(f"{stage.inbox} messages waited in memory")
    if stage.outbox > MOST_ANSWERS:
        broken.append(f"{stage.outbox} answers waited in memory")
    broken += [f"{read} bytes of one upload were read" for read in stage.uploaded.values() if read > most_read]
    broken += [f"error in the log: {fault}" for fault in dict.fromkeys(stage.faults)]
    broken += [f"an honest client ended: {why}" for why in stage.hosts_ended]
    told = [f"{event['phase']}: {event['reason']}" for event in stage.of("participant_dropped")]
    aborts = stage.of("attempt_aborted")
    left_out = any(blame.who not in completed.get(blame.round, Opened(frozenset(), np.zeros(0))).u3 for blame in blames)
    outcome = stage.ended
    if completed and (stage.ended == "rounds done" or may_lose):
        outcome = ABORT_THEN_SUM if aborts else SHIFTED if moved else SUM_OF_OTHERS if left_out else SUM_OF_ALL
    told = [f"{event['phase']}: {event['reason']}" for event in aborts] + told
    return Seen(outcome, "; ".join(dict.fromkeys(told))[:300], tuple(dict.fromkeys(broken)))


def _sum(stage: Stage, round_: int, attempt: int, u3: frozenset[int]) -> Vector:
    vectors = [stage.vectors[round_, attempt, who] for who in sorted(u3)]
    return _wrapped(np.sum(np.stack(vectors).astype(np.uint64), axis=0), stage.bits).astype(vectors[0].dtype)


def _wrapped(vector: Vector, bits: int) -> Vector:
    return (vector.astype(np.uint64) & np.uint64((1 << bits) - 1)).astype(vector.dtype)


def _blamed(stage: Stage, blames: tuple[Blame, ...], collateral: frozenset[int]) -> list[str]:
    broken: list[str] = []
    culprits = {blame.who for blame in blames} | collateral
    for event in stage.of("participant_dropped"):
        if event["participant"] not in culprits:
            broken.append(f"participant {event['participant']} is dropped, who did nothing: {event['reason']}")
    for event in stage.of("participant_excluded"):
        if not any(blame.excluded and blame.who == event["participant"] for blame in blames):
            broken.append(f"participant {event['participant']} is excluded: {event['reason']}")
    for log in stage.logs:
        if log.get("event") == "refused":
            broken.append(f"an honest participant refused: {log.get('reason')}")
        elif log.get("log_level") == "error":
            broken.append(f"error: {log.get('event')} {log.get('reason', '')}")
    for blame in blames:
        what = f"participant {blame.who} is not named for {blame.reason!r} in {PHASE_OF[blame.kind]}"
        dropped = [
            event["reason"]
            for event in stage.of("participant_dropped", participant=blame.who, round=blame.round)
            if event["phase"] == PHASE_OF[blame.kind]
        ]
        excluded = [event["reason"] for event in stage.of("participant_excluded", participant=blame.who)]
        if not any(blame.reason in reason for reason in (excluded if blame.excluded else dropped)):
            broken.append(f"{what}: {[*dropped, *excluded]}")
    return broken
