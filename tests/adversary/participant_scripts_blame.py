"""Dealers of inconsistent shares, and holders with false reports: who is named, and when the sum opens anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secagg.messages import MASK_KEY, SELF_MASK_SEED
from secagg.shamir import PRIME
from tests.adversary.cheating_participant import INPUT, SHARE, UNMASK, Cheat, Cheater, Twist
from tests.adversary.participant_scripts_messages import UNMASKING, altered, dealing, sends
from tests.adversary.participant_verdict import ABORT_THEN_SUM, SUM_OF_ALL, SUM_OF_OTHERS, Blame, study_script
from tests.adversary.study_with_cheats import BUDGET_REACHED, Off
from tests.support.crooked_dealings import crooked_shares
from wire import codec, coordinator_pb2 as pb

Shares = NDArray[np.uint16]
ROUNDS = "server.attempt.attempt"
SECOND_TIME = (
    "the attempt ends without a sum, the cheat is named and excluded, and the next one is the exact sum of the others"
)
ENOUGH = "the good shares are enough: the round ends in the exact sum"
blame_script = partial(study_script, participants=7)


# ---------------------------------------------------------------- dealers


def deals(change: Callable[[Shares], None], **more: Twist) -> Mapping[int, Cheat]:
    """Let participant 0 change its shares, of shape (holders, 2, 16), before it commits to them and seals them."""

    def crooked(cheater: Cheater, _: Any) -> pb.SealedShares:
        return codec.write_sealed_shares(crooked_shares(cheater.crooked(), cheater.me, change))  # type: ignore[arg-type]

    return {0: Cheat({**sends(SHARE, crooked), **more})}


def another(kind: int, rows: slice = slice(None)) -> Callable[[Shares], None]:
    """Move the shares of some holders by one, so that all together are shares of another secret."""

    def change(shares: Shares) -> None:
        shares[rows, kind] = (shares[rows, kind].astype(int) + 1) % PRIME

    return change


def strewn(kind: int, rows: slice) -> Callable[[Shares], None]:
    """Move the shares of some holders by different numbers; equal ones could cancel in a sum of five."""

    def change(shares: Shares) -> None:
        for times, row in enumerate(shares[rows]):
            row[kind] = (row[kind].astype(int) + 10**times) % PRIME

    return change


def outside_for_itself(shares: Shares) -> None:
    shares[0, SELF_MASK_SEED] = PRIME


def seals_rubbish(*receivers: int) -> dict[str, Twist]:
    """Seal for these neighbours, by their place among them, what can't be opened."""

    def rubbish(_: Cheater, honest: pb.SealedShares) -> pb.SealedShares:
        sealed = [bytes(112) if at in receivers else one for at, one in enumerate(honest.ciphertexts)]
        return altered(honest, ciphertexts=sealed)

    return sends(SHARE, rubbish)


FALSE_COMMITMENT = sends(SHARE, lambda me, honest: dealing(me, honest, seed_commitment=bytes(32)))


async def leaves(cheater: Cheater, _: Any) -> None:
    await cheater.leave(returns=True)


def says_nothing(*_: Any) -> None:
    return None


# The others wait for its honest answer, so that the share it was dealt is among the first.
AS_IT_SHOULD = Cheat(sends(UNMASK, lambda _, honest: honest))


OPENING = "secagg.opening"
GIVES_UP = Off.instead(
    OPENING, "            if not wrong:\n                raise\n", "            raise\n", shows="budget reached"
)
HURRIES = Off(  # nor does it wait for those that take noise back, after which all have answered
    ROUNDS,
    changed={
        "if not (unmasking.u3 & self._alive) - unmasking.received:": "if True:",
        "linger = 1.0 if": "linger = 0.0 if",
        "self._alive, AT_ONCE)": "self._alive, 1)",
    },
    shows="budget reached",
)
NOBODY_SET_ASIDE = Off.instead("server.exclusions", "sorted(aside)", "()", shows=BUDGET_REACHED)
NOBODY_COUNTS = Off.instead("server.exclusions", "membership.in_too_many_conflicts(found) | ", "", shows="is not named")
OTHER_SEED = Blame(0, UNMASK, "rebuild another self-mask seed", excluded=True)
WRONG_SEED = Off.lacking(OPENING, "another self-mask seed than it committed to", shows="opens a wrong sum")
blame_script(
    "commitment-to-another-seed: commits to another self-mask seed than the one it deals shares of",
    SECOND_TIME,
    ABORT_THEN_SUM,
    {0: Cheat(FALSE_COMMITMENT)},
    replace(WRONG_SEED, shows="is not named"),
    blames=[OTHER_SEED],
)
blame_script(
    "shares-of-another-seed: deals shares of another self-mask seed than its own",
    SECOND_TIME,
    ABORT_THEN_SUM,
    deals(another(SELF_MASK_SEED)),
    WRONG_SEED,
    blames=[OTHER_SEED],
)
blame_script(
    "shares-of-another-mask-key: deals shares of another mask key than it advertised, and leaves before it has "
    "uploaded",
    SECOND_TIME,
    ABORT_THEN_SUM,
    deals(another(MASK_KEY), masked_input=leaves),
    Off.lacking(OPENING, "another mask key than it advertised", shows="opens a wrong sum"),
    blames=[Blame(0, UNMASK, "rebuild another mask key", excluded=True)],
)
blame_script(
    "an-inconsistent-share: commits to one share that doesn't fit the others, and seals it for a holder that answers "
    "first",
    ENOUGH + ", and the cheat is named and excluded",
    SUM_OF_ALL,
    {**deals(another(SELF_MASK_SEED, slice(1, 2))), 1: AS_IT_SHOULD},
    GIVES_UP,
    HURRIES,
    blames=[Blame(0, UNMASK, "don't fit the others", excluded=True)],
)
blame_script(
    "an-inconsistent-share-of-a-mask-key: commits to one share of its mask key that doesn't fit the others, and leaves "
    "before it has uploaded",
    "the good shares are enough: the round ends in the exact sum of the others, and the cheat is named and excluded",
    SUM_OF_OTHERS,
    {**deals(another(MASK_KEY, slice(1, 2)), masked_input=leaves), 1: AS_IT_SHOULD},
    GIVES_UP,
    participants=9,
    blames=[Blame(0, UNMASK, "don't fit the others", excluded=True), Blame(0, INPUT, "connection closed")],
)
blame_script(
    "too-many-inconsistent-shares: commits to too many shares that don't fit the others to tell which are wrong",
    SECOND_TIME,
    ABORT_THEN_SUM,
    deals(strewn(SELF_MASK_SEED, slice(1, 4))),
    WRONG_SEED,
    blames=[OTHER_SEED],
)
blame_script(
    "own-share-outside-the-field: commits, for itself, to a share outside the field, and reveals it",
    ENOUGH + ", its reply is ignored, and the cheat is named and excluded",
    SUM_OF_ALL,
    deals(outside_for_itself),
    Off.lacking(UNMASKING, "has a symbol outside the field", shows="crash"),
    blames=[Blame(0, UNMASK, "outside the field", excluded=True)],
)
blame_script(
    "rubbish-for-most: seals what can't be opened for four of its six neighbours",
    SECOND_TIME,
    ABORT_THEN_SUM,
    {0: Cheat(seals_rubbish(0, 1, 2, 3))},
    Off.instead(UNMASKING, "_without.get(dealer, ())) > liars", "_without.get(dealer, ())) > 99", shows="is not named"),
    blames=[Blame(0, UNMASK, "fails its check", excluded=True)],
)
blame_script(
    "rubbish-for-a-few: seals what can't be opened for two of its six neighbours, as many as could be lying",
    ENOUGH + "; two reports prove nothing, and no participant is named",
    SUM_OF_ALL,
    {0: Cheat(seals_rubbish(0, 3))},
)
blame_script(
    "rubbish-for-a-few-and-silence: seals what can't be opened for two of its six neighbours and keeps its own shares "
    "to itself, in each attempt",
    "the attempt ends without a sum; none is excluded, since two could be lying and one may be gone, but the cheat is "
    "set aside, and the next attempt is the exact sum of the others",
    ABORT_THEN_SUM,
    {0: Cheat({**seals_rubbish(0, 3), UNMASK: says_nothing})},
    NOBODY_SET_ASIDE,
    blames=[Blame(0, UNMASK, "did not answer")],
    silent=frozenset({0}),
    set_aside=frozenset({0}),
)


# ---------------------------------------------------------------- holders


def accuses(*dealers: int, attempts: int = 99) -> Cheat:
    """Deny having a share of these dealers in round 1."""
    return accuses_by_round({1: dealers}, attempts)


def accuses_by_round(dealers: Mapping[int, Iterable[int]], attempts: int = 99) -> Cheat:
    """Deny, in each of these rounds, having a share of its dealers."""

    def no_share(cheater: Cheater, honest: pb.UnmaskingReply) -> pb.UnmaskingReply:
        message = altered(honest)
        round_, attempt = cheater.number
        for dealer in dealers[round_] if attempt <= attempts else ():
            message.shares[dealer].none.CopyFrom(pb.NoShare())
        return message

    return Cheat(sends(UNMASK, no_share), rounds=frozenset(dealers))


CONFLICTS = "others say that it sealed rubbish, or are accused of that by it"
ONE_EACH = {1: (3,), 2: (4,), 3: (5,)}
blame_script(
    "no-share-of-anybody: denies having a share of any dealer",
    ENOUGH + "; it is in conflict with more than could be lying, and is named and excluded at once",
    SUM_OF_ALL,
    {0: accuses(*range(7))},
    NOBODY_COUNTS,
    blames=[Blame(0, UNMASK, CONFLICTS, excluded=True)],
)
blame_script(
    "two-accuse-one-after-another: two of them deny having a share of an honest dealer, another one in each round",
    "each round ends in the exact sum; with the third, each of the two is in conflict with more than could be lying "
    "and is excluded; no honest one is",
    SUM_OF_ALL,
    {0: accuses_by_round(ONE_EACH), 1: accuses_by_round(ONE_EACH)},
    NOBODY_COUNTS,
    Off.instead("server.membership", "> most", ">= most", shows="participant 3 is excluded"),
    blames=[Blame(who, UNMASK, CONFLICTS, round=3, excluded=True) for who in (0, 1)],
    rounds=4,
)
blame_script(
    "two-accuse-an-honest-dealer: two of them deny having a share of an honest dealer",
    ENOUGH + ", and the honest one is not blamed",
    SUM_OF_ALL,
    {0: accuses(3), 1: accuses(3)},
)
blame_script(
    "two-accuse-and-shares-run-short: two of them deny having a share of an honest dealer, where every other share is "
    "needed",
    "the attempt ends without a sum; as many as collude can have an honest one only set aside, not excluded, and the "
    "next one is the exact sum of the others",
    ABORT_THEN_SUM,
    {0: accuses(3, attempts=1), 1: accuses(3, attempts=1)},
    Off.instead(
        UNMASKING,
        "_without.get(dealer, ())) > liars",
        "_without.get(dealer, ())) > 0",
        shows="participant 3 is excluded",
    ),
    participants=5,
    set_aside=frozenset({3}),
)
blame_script(
    "more-accuse-than-may-collude: three of them, where two are assumed to collude, deny having a share of an honest "
    "dealer",
    "the honest one is excluded: nothing is promised against more colluders than the study assumes",
    ABORT_THEN_SUM,
    {who: accuses(3, attempts=1) for who in range(3)},
    blames=[Blame(3, UNMASK, "fails its check", excluded=True)],
    possible=True,
)
