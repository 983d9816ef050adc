"""Test vectors of attempts whose survivors reveal seeds of surplus noise, and of what the coordinator refuses there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from tests.reference.lies import LIAR, each_refused, signed_upload
from tests.reference.primitive_vectors import Case, flip
from tests.reference.round_vectors import Played
from tests.reference.rounds import setting_of
from tests.reference.setting import Message

NOISE = "seven with noise to take back"


@cache
def noise_round() -> Played:
    """The round that refusals start from: six of seven survive, and five of them reveal two of three seeds."""
    agreed = setting_of(7, bits=12, dim=3, released=(0, 5, 7))
    return Played(agreed, {"MaskedInputCollection": {4}, "ConsistencyCheck": {1}})


def noise_rounds() -> Case:
    ring = setting_of(6, bits=12, dim=4, sharing=(4, 2), adversary="semi-malicious", released=(2, 13))
    rounds = [
        noise_round().vector(
            NOISE,
            "Each draws three seeds and commits to them. 4 deals and sends no input: as six survive, those that reveal "
            "shares also reveal their seeds 0 and 2. 1 stays in the sum, and reveals nothing.",
        ),
        Played(ring, {"Unmasking": {2}}).vector(
            "six on a ring with noise to take back, nobody signs",
            "All six survive, and all but 2 reveal seeds 0, 2 and 3 of four.",
        ),
    ]
    cases: list[Case] = []
    for phase, lies in (("MaskedInputCollection", false_uploads()), ("Unmasking", false_replies())):
        messages = [(name, LIAR, message) for name, message in lies]
        cases += each_refused(noise_round(), phase, messages, round=NOISE)
    return {"rounds": rounds, "refused": cases}


def false_uploads() -> Iterator[tuple[str, Message]]:
    """All signed by their sender."""
    base = noise_round()
    good = base.record.to_coordinator["MaskedInputCollection"][LIAR]
    signed = partial(signed_upload, base, LIAR, u2=base.everybody)
    assert signed(good["packed"]) == good
    packed, commitments = good["packed"][:5], good["packed"][5:]
    yield "no commitments to noise seeds", signed(packed)
    yield "one commitment is missing", signed(packed + commitments[:-32])
    yield "one commitment too many", signed(packed + commitments + commitments[:32])
    yield "a commitment is one byte short", signed(packed + commitments[:-1])
    yield "commitments and no vector", signed(commitments)
    yield "a commitment is not what was signed", {**good, "packed": flip(good["packed"], 40)}


def false_replies() -> Iterator[tuple[str, Message]]:
    base = noise_round()
    replies = base.record.to_coordinator["Unmasking"]
    good, own = replies[LIAR], base.participants[LIAR].noise_seeds
    first, second = good["noise_seeds"]
    assert [first, second] == [own[0], own[2]]
    for name, seeds in (
        ("no noise seeds", []),
        ("a noise seed is missing", [first]),
        ("a noise seed too many", own),
        ("a noise seed twice", [first, first]),
        ("another noise seed", [first, flip(second)]),
        ("the noise seed of another part", [own[1], second]),
        ("the noise seeds in another order", [second, first]),
        ("somebody else's noise seeds", replies[3]["noise_seeds"]),
        ("a noise seed of 31 bytes", [first[:-1], second]),
        ("a noise seed of 33 bytes", [first, second + b"\0"]),
    ):
        yield name, {"shares": good["shares"], "noise_seeds": seeds}
