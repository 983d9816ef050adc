"""Dealers of inconsistent shares, and holders that report them falsely: who is named, and when the sum opens anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.messages import MASK_KEY, SELF_MASK_SEED
from secagg.shamir import PRIME
from tests.adversary.cheating_participant import INPUT, SHARE, UNMASK, Cheat, Cheater, Twist
from tests.adversary.participant_scripts_messages import OPENING, altered, dealing
from tests.adversary.participant_verdict import ABORT_THEN_SUM, SUM_OF_ALL, SUM_OF_OTHERS, Blame, judge, register
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, Seen
from tests.adversary.study_with_cheats import BUDGET_REACHED, Off, play
from tests.support.crooked_dealings import crooked_shares
from wire import codec
from wire import coordinator_pb2 as pb

Shares = NDArray[np.uint16]
ROUNDS = "server.attempt.attempt"
SECOND_TIME = (
    "the attempt ends without a sum, the cheat is named and excluded, and the next one is the exact sum of the others"
)
ENOUGH = "the good shares are enough: the round ends in the exact sum"


def blame_script(
    name: str,
    does: str,
    must: str,
    outcome: str,
    cheats: Callable[[], Mapping[int, Cheat]],
    *check: Naive,
    blames: Iterable[Blame] = (),
    possible: bool = False,
    participants: int = 7,
    silent: frozenset[int] = frozenset(),
    collateral: frozenset[int] = frozenset(),
    set_aside: frozenset[int] = frozenset(),
    rounds: int = 2,
) -> None:
    """Register a script about shares; the study ends with a round before its last where an attempt is lost."""

    async def run(places: Places) -> Seen:
        stage = await play(places, cheats(), participants=participants, rounds=rounds, silent=silent)
        may_lose = outcome in (ABORT_THEN_SUM, BUDGET_REACHED)
        return judge(stage, *blames, rounds=rounds, collateral=collateral, set_aside=set_aside, may_lose=may_lose)

    register(Script(name, PARTICIPANT, does, must, outcome, check, run, documented_as_possible=possible))


# ---------------------------------------------------------------- dealers


def deals(change: Callable[[Shares], None], **more: Twist) -> Mapping[int, Cheat]:
    """Participant 0 changes its shares, of shape (holders, 2, 16), before it commits to them and seals them."""

    def twist(cheater: Cheater, _: Any) -> Any:
        content = crooked_shares(cheater.crooked(), cheater.me, change)  # type: ignore[arg-type]
        return [cheater.wrap(share_keys=codec.write_sealed_shares(content))]

    return {0: Cheat({SHARE: twist, **more})}


def another(kind: int, rows: slice = slice(None)) -> Callable[[Shares], None]:
    """The shares of some holders moved by one, so that all of them together are those of another secret."""

    def change(shares: Shares) -> None:
        shares[rows, kind] = (shares[rows, kind].astype(int) + 1) % PRIME

    return change


def strewn(kind: int, rows: slice) -> Callable[[Shares], None]:
    """The shares of some holders moved by different numbers: moved by the same, they can cancel in a sum of five."""

    def change(shares: Shares) -> None:
        for times, row in enumerate(shares[rows]):
            row[kind] = (row[kind].astype(int) + 10**times) % PRIME

    return change


def outside_for_itself(shares: Shares) -> None:
    shares[0, SELF_MASK_SEED] = PRIME


def seals_rubbish(*receivers: int) -> Twist:
    """For some of its neighbours, by their place among them, what can't be opened."""

    def twist(cheater: Cheater, honest: pb.SealedShares) -> Any:
        sealed = [bytes(112) if at in receivers else one for at, one in enumerate(honest.ciphertexts)]
        return [cheater.wrap(share_keys=altered(honest, ciphertexts=sealed))]

    return twist


def false_commitment(cheater: Cheater, honest: pb.SealedShares) -> Any:
    return [cheater.wrap(share_keys=dealing(cheater, honest, seed_commitment=bytes(32)))]


async def leaves(cheater: Cheater, _: Any) -> None:
    await cheater.leave(returns=True)


def says_nothing(*_: Any) -> None:
    return None


def as_it_should(cheater: Cheater, honest: pb.UnmaskingReply) -> Any:
    """Everybody else waits for its answer, so that the share it was dealt is among the first."""
    return [cheater.wrap(unmasking=honest)]


GIVES_UP = Off(
    OPENING,
    changed=(("            if not wrong:\n                raise\n", "            raise\n"),),
    shows="budget reached",
)
HURRIES = Off(
    ROUNDS,
    changed=(("if not (unmasking.u3 & self._alive) - unmasking.received:", "if True:"),),
    shows="budget reached",
)
NOBODY_SET_ASIDE = Off("server.exclusions", changed=(("sorted(aside)", "()"),), shows=BUDGET_REACHED)
NOBODY_COUNTS = Off(
    "server.exclusions", changed=(("membership.in_too_many_conflicts(found) | ", ""),), shows="is not named"
)
WRONG_SEED = Off(OPENING, without=("another self-mask seed than it committed to",), shows="opens a wrong sum")
blame_script(
    "commitment-to-another-seed",
    "commits to another self-mask seed than the one it deals shares of",
    SECOND_TIME,
    ABORT_THEN_SUM,
    lambda: {0: Cheat({SHARE: false_commitment})},
    Off(OPENING, without=("another self-mask seed than it committed to",), shows="is not named"),
    blames=[Blame(0, UNMASK, "rebuild another self-mask seed", excluded=True)],
)
blame_script(
    "shares-of-another-seed",
    "deals shares of another self-mask seed than its own",
    SECOND_TIME,
    ABORT_THEN_SUM,
    lambda: deals(another(SELF_MASK_SEED)),
    WRONG_SEED,
    blames=[Blame(0, UNMASK, "rebuild another self-mask seed", excluded=True)],
)
blame_script(
    "shares-of-another-mask-key",
    "deals shares of another mask key than it advertised, and leaves before it has uploaded",
    SECOND_TIME,
    ABORT_THEN_SUM,
    lambda: deals(another(MASK_KEY), masked_input=leaves),
    Off(OPENING, without=("another mask key than it advertised",), shows="opens a wrong sum"),
    blames=[Blame(0, UNMASK, "rebuild another mask key", excluded=True)],
)
blame_script(
    "an-inconsistent-share",
    "commits to one share that doesn't fit the others, and seals it for a holder who answers first",
    ENOUGH + ", and the cheat is named and excluded",
    SUM_OF_ALL,
    lambda: {**deals(another(SELF_MASK_SEED, slice(1, 2))), 1: Cheat({UNMASK: as_it_should})},
    GIVES_UP,
    HURRIES,
    blames=[Blame(0, UNMASK, "don't fit the others", excluded=True)],
)
blame_script(
    "an-inconsistent-share-of-a-mask-key",
    "commits to one share of its mask key that doesn't fit the others, and leaves before it has uploaded",
    "the good shares are enough: the round ends in the exact sum of the others, and the cheat is named and excluded",
    SUM_OF_OTHERS,
    lambda: {**deals(another(MASK_KEY, slice(1, 2)), masked_input=leaves), 1: Cheat({UNMASK: as_it_should})},
    GIVES_UP,
    participants=9,
    blames=[Blame(0, UNMASK, "don't fit the others", excluded=True), Blame(0, INPUT, "connection closed")],
)
blame_script(
    "too-many-inconsistent-shares",
    "commits to so many shares that don't fit the others that nobody can tell which are wrong",
    SECOND_TIME,
    ABORT_THEN_SUM,
    lambda: deals(strewn(SELF_MASK_SEED, slice(1, 4))),
    WRONG_SEED,
    blames=[Blame(0, UNMASK, "rebuild another self-mask seed", excluded=True)],
)
blame_script(
    "own-share-outside-the-field",
    "commits to a share of its own that is no share, and reveals it",
    ENOUGH + ", its reply counts for nothing, and the cheat is named and excluded",
    SUM_OF_ALL,
    lambda: deals(outside_for_itself),
    Off(OPENING, without=("has a symbol outside the field",), shows="crash"),
    blames=[Blame(0, UNMASK, "outside the field", excluded=True)],
)
blame_script(
    "rubbish-for-most",
    "seals what can't be opened for four of its six neighbours",
    SECOND_TIME,
    ABORT_THEN_SUM,
    lambda: {0: Cheat({SHARE: seals_rubbish(0, 1, 2, 3)})},
    Off(
        OPENING,
        changed=(("_without.get(dealer, ())) > liars", "_without.get(dealer, ())) > 99"),),
        shows="is not named",
    ),
    blames=[Blame(0, UNMASK, "fails its check", excluded=True)],
)
blame_script(
    "rubbish-for-a-few",
    "seals what can't be opened for two of its six neighbours, as many as could be lying",
    ENOUGH + "; two reports prove nothing, and nobody is named",
    SUM_OF_ALL,
    lambda: {0: Cheat({SHARE: seals_rubbish(0, 3)})},
)
blame_script(
    "rubbish-for-a-few-and-silence",
    "seals what can't be opened for two of its six neighbours and keeps its own shares to itself, in each attempt",
    "the attempt ends without a sum; nobody is excluded, since two could be lying and one may be gone, but the cheat "
    "is set aside, and the next attempt is the exact sum of the others",
    ABORT_THEN_SUM,
    lambda: {0: Cheat({SHARE: seals_rubbish(0, 3), UNMASK: says_nothing})},
    NOBODY_SET_ASIDE,
    blames=[Blame(0, UNMASK, "did not answer")],
    silent=frozenset({0}),
    set_aside=frozenset({0}),
)


# ---------------------------------------------------------------- holders


def accuses(*dealers: int, attempts: int = 99) -> Cheat:
    """Says that it has no share of these."""
    return accuses_by_round({1: dealers}, attempts)


def accuses_by_round(dealers: Mapping[int, Iterable[int]], attempts: int = 99) -> Cheat:
    """Says that it has no share of these, others in each round."""

    def twist(cheater: Cheater, honest: pb.UnmaskingReply) -> Any:
        message = altered(honest)
        round_, attempt = cheater.number
        if attempt <= attempts:
            for dealer in dealers[round_]:
                message.shares[dealer].none.CopyFrom(pb.NoShare())
        return [cheater.wrap(unmasking=message)]

    return Cheat({UNMASK: twist}, rounds=frozenset(dealers))


CONFLICTS = "others say that it sealed rubbish, or are accused of that by it"
ONE_EACH = {1: (3,), 2: (4,), 3: (5,)}
blame_script(
    "no-share-of-anybody",
    "says of every dealer that it has no share",
    ENOUGH + "; it is in conflict with more than could be lying, and is named and excluded at once",
    SUM_OF_ALL,
    lambda: {0: accuses(*range(7))},
    NOBODY_COUNTS,
    blames=[Blame(0, UNMASK, CONFLICTS, excluded=True)],
)
blame_script(
    "two-accuse-one-after-another",
    "says, two of them together, that an honest dealer gave them no share, and in each round of another one",
    "each round ends in the exact sum; with the third each of the two is in conflict with more than could be lying "
    "and is excluded; no honest one is",
    SUM_OF_ALL,
    lambda: {0: accuses_by_round(ONE_EACH), 1: accuses_by_round(ONE_EACH)},
    NOBODY_COUNTS,
    Off(
        "server.membership",
        changed=(("> most", ">= most"),),
        shows="participant 3 is excluded",
    ),
    blames=[Blame(who, UNMASK, CONFLICTS, round=3, excluded=True) for who in (0, 1)],
    rounds=4,
)
blame_script(
    "two-accuse-an-honest-dealer",
    "says, two of them together, that an honest dealer gave them no share",
    ENOUGH + ", and the honest one is not blamed",
    SUM_OF_ALL,
    lambda: {0: accuses(3), 1: accuses(3)},
)
blame_script(
    "two-accuse-and-shares-run-short",
    "says, two of them together, that an honest dealer gave them no share, where every other share is needed",
    "the attempt ends without a sum; as many as collude can't have an honest one excluded, only set aside, and the "
    "next one is the exact sum of the others",
    ABORT_THEN_SUM,
    lambda: {0: accuses(3, attempts=1), 1: accuses(3, attempts=1)},
    Off(
        OPENING,
        changed=(("_without.get(dealer, ())) > liars", "_without.get(dealer, ())) > 0"),),
        shows="participant 3 is excluded",
    ),
    participants=5,
    set_aside=frozenset({3}),
)
blame_script(
    "more-accuse-than-may-collude",
    "says, three of them together where two are assumed to collude, that an honest dealer gave them no share",
    "the honest one is excluded: against more colluders than the study assumes nothing is promised",
    ABORT_THEN_SUM,
    lambda: {who: accuses(3, attempts=1) for who in range(3)},
    blames=[Blame(3, UNMASK, "fails its check", excluded=True)],
    possible=True,
)
