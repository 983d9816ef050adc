"""Messages that are not what a phase asks for: malformed, unsigned, replayed, repeated, in somebody else's name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from secagg.commitments import MerkleTree, pair_node
from secagg.context import set_of, survivor_statement
from secagg.keys import advertisement_statement, dealing_statement, upload_statement
from tests.adversary.cheating_participant import ADVERTISE, CHECK, INPUT, KINDS, SHARE, UNMASK, Cheat, Cheater, Twist
from tests.adversary.participant_verdict import SUM_OF_ALL, SUM_OF_OTHERS, Blame, judge, register
from tests.adversary.script import PARTICIPANT, Naive, Places, Script, Seen
from tests.adversary.study_with_cheats import Off, play
from tests.support.attempts_in_memory import LOW_ORDER
from wire import codec
from wire import coordinator_pb2 as pb

NAMED = "the round ends in the exact sum of the others, and the cheat is named and excluded"
LEFT_OUT = "the round ends in the exact sum of the others, and the cheat is left out of this attempt only"
CORE, OPENING, CODEC = "secagg.server_phases", "secagg.server_unmasking", "wire.codec"
SETS = "secagg.server_cohort"  # signatures over the survivor sets


def altered(content: Any, **changes: Any) -> Any:
    """A message with some fields replaced."""
    message = type(content)()
    message.CopyFrom(content)
    for name, value in changes.items():
        if isinstance(value, list):
            message.ClearField(name)
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def sends(kind: str, change: Callable[[Cheater, Any], Any]) -> dict[str, Twist]:
    """One message of a kind, made from the honest one."""
    return {kind: lambda cheater, honest: [cheater.wrap(**{kind: change(cheater, honest)})]}


def flipped(data: bytes, bit: int = 0) -> bytes:
    """One bit changed."""
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def one_cheat(
    name: str,
    does: str,
    kind: str,
    twists: Mapping[str, Twist],
    reason: str,
    *check: Naive,
    must: str = NAMED,
    excluded: bool = True,
    in_sum: bool | None = None,
    **options: Any,
) -> None:
    """Register a script in which participant 0 cheats once and is named in that phase for that reason."""
    counted = KINDS.index(kind) > KINDS.index(INPUT) if in_sum is None else in_sum

    async def run(places: Places) -> Seen:
        stage = await play(places, {0: Cheat(twists)}, **({"participants": 5} | options))
        return judge(stage, Blame(0, kind, reason, excluded=excluded))

    outcome = SUM_OF_ALL if counted else SUM_OF_OTHERS
    register(Script(name, PARTICIPANT, does, must, outcome, check, run))


# ---------------------------------------------------------------- AdvertiseKeys


def resigned(cheater: Cheater, honest: pb.Advertisement, mask_key: bytes, channel_key: bytes) -> pb.Advertisement:
    """Other keys, signed as they should be."""
    keys = cheater.phase._keys
    statement = advertisement_statement(keys.round_context, cheater.identity.public, mask_key, channel_key)
    message = pb.Advertisement(mask_key=mask_key, channel_key=channel_key, signature=cheater.identity.sign(statement))
    cheater.phase._advertisement = codec.read_advertisement(message)  # else it would object itself
    return message


one_cheat(
    "keys-without-signature",
    "advertises keys that its identity has not signed",
    ADVERTISE,
    sends(ADVERTISE, lambda _, honest: altered(honest, signature=bytes(64))),
    "not signed",
    Off(CORE, without=("the keys are not signed by",), shows="an honest participant refused"),
)
one_cheat(
    "mask-key-of-low-order",
    "advertises a mask key with which every agreement is zero",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, LOW_ORDER[2], honest.channel_key)),
    "low order",
    Off(CORE, without=("a public key is of low order",), shows="an honest participant refused"),
)
one_cheat(
    "channel-key-of-low-order",
    "advertises a channel key with which every agreement is zero",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, honest.mask_key, LOW_ORDER[5])),
    "low order",
    Off(CORE, without=("a public key is of low order",), shows="an honest participant refused"),
)
one_cheat(
    "one-key-for-two-purposes",
    "advertises one key as mask key and as channel key",
    ADVERTISE,
    sends(ADVERTISE, lambda me, honest: resigned(me, honest, honest.mask_key, honest.mask_key)),
    "advertised before",
    Off(CORE, without=("a public key was advertised before",), shows="an honest participant refused"),
)
one_cheat(
    "short-key",
    "advertises a key of one byte",
    ADVERTISE,
    sends(ADVERTISE, lambda _, honest: altered(honest, mask_key=b"k")),
    "32 bytes",
    Off(
        CODEC,
        without=("bytes, not",),
        also=(Off(CORE, without=("a public key is not 32 bytes long",)),),
        shows="low order",
    ),
)


async def key_of_another(places: Places) -> Seen:
    """Two in league advertise one key between them."""

    async def second(cheater: Cheater, honest: pb.Advertisement) -> Any:
        assert cheater.stage is not None
        first = cheater.stage.cheaters[0]
        while not cheater.stage.arrived[0]:
            await asyncio.sleep(0.002)
        key = first.before[ADVERTISE].mask_key
        return [cheater.wrap(advertise_keys=resigned(cheater, honest, key, honest.channel_key))]

    stage = await play(places, {0: Cheat(), 1: Cheat({ADVERTISE: second})})
    return judge(stage, Blame(1, ADVERTISE, "advertised before", excluded=True))


register(
    Script(
        "key-of-another",
        PARTICIPANT,
        "advertises the mask key of another one",
        NAMED,
        SUM_OF_OTHERS,
        (Off(CORE, without=("a public key was advertised before",), shows="an honest participant refused"),),
        key_of_another,
    )
)


def twice(cheater: Cheater, honest: Any) -> list[pb.ParticipantMessage]:
    """The same message again."""
    kind = next(field.name for field in pb.PhaseMessage.DESCRIPTOR.fields if field.message_type is honest.DESCRIPTOR)
    return [cheater.wrap(**{kind: honest})] * 2


one_cheat(
    "advertises-twice",
    "advertises its keys a second time",
    ADVERTISE,
    {ADVERTISE: twice},
    "not expected",
    Off(
        CORE,
        changed=(("known and sender not in self._advertisements", "known"),),
        shows="participant 0 is excluded",
    ),
    must=LEFT_OUT,
    excluded=False,
)


# ---------------------------------------------------------------- ShareKeys


def dealing(cheater: Cheater, honest: pb.SealedShares, **changes: Any) -> pb.SealedShares:
    """Another dealing, signed as it should be."""
    message = altered(honest, **changes)
    pairs = zip(message.leaves[::2], message.leaves[1::2], strict=True)
    try:
        root = MerkleTree([pair_node(*pair) for pair in pairs]).root
    except ValueError:
        return message
    cohort = cheater.phase.cohort
    statement = dealing_statement(cohort.context, cheater.identity.public, root, message.seed_commitment)
    message.signature = cheater.identity.sign(statement)
    return message


one_cheat(
    "shares-without-signature",
    "deals shares whose commitments its identity has not signed",
    SHARE,
    sends(SHARE, lambda _, honest: altered(honest, leaves=[*honest.leaves[:-1], flipped(honest.leaves[-1])])),
    "not signed",
    Off(CORE, without=("the commitments are not signed by",), shows="an honest participant refused"),
)
one_cheat(
    "shares-for-too-few",
    "seals shares for all of its neighbours but one",
    SHARE,
    sends(SHARE, lambda _, honest: altered(honest, ciphertexts=list(honest.ciphertexts)[1:])),
    "exactly the neighbours",
    Off(CORE, without=("shares must go to exactly the neighbours",), shows="crash"),
)
one_cheat(
    "shares-for-strangers",
    "seals a share for one more than there are neighbours",
    SHARE,
    sends(SHARE, lambda _, honest: altered(honest, ciphertexts=[*honest.ciphertexts, bytes(112)])),
    "exactly the neighbours",
    Off(CORE, without=("shares must go to exactly the neighbours",), shows="crash"),
)
one_cheat(
    "commitments-for-too-few",
    "commits to shares of all holders but one, and signs that",
    SHARE,
    sends(SHARE, lambda me, honest: dealing(me, honest, leaves=list(honest.leaves)[:-2])),
    "two commitments",
    Off(CORE, without=("there must be two commitments",), shows="crash"),
)
one_cheat(
    "short-sealed-share",
    "seals a share that is a byte short",
    SHARE,
    sends(SHARE, lambda _, honest: altered(honest, ciphertexts=[honest.ciphertexts[0][:-1], *honest.ciphertexts[1:]])),
    "112 bytes",
    Off(
        CODEC,
        without=("bytes, not",),
        also=(Off(CORE, without=("a sealed share is not",)),),
        shows="is not named",
    ),
)
one_cheat(
    "short-commitment",
    "commits to a share with a hash that is a byte short",
    SHARE,
    sends(SHARE, lambda _, honest: altered(honest, leaves=[honest.leaves[0][:-1], *honest.leaves[1:]])),
    "32 bytes",
    Off(CODEC, without=("bytes, not",), also=(Off(CORE, without=("there must be two commitments",)),), shows="crash"),
)
one_cheat(
    "short-seed-commitment",
    "signs a commitment to its seed that is a byte short",
    SHARE,
    sends(SHARE, lambda me, honest: dealing(me, honest, seed_commitment=honest.seed_commitment[:-1])),
    "32 bytes",
    Off(
        CODEC,
        without=("bytes, not",),
        also=(Off(CORE, without=("the seed commitment is not",)),),
        shows="crash",
    ),
)
one_cheat(
    "deals-twice",
    "deals a second time",
    SHARE,
    {SHARE: twice},
    "not expected",
    Off(CORE, changed=(("known and sender not in self._dealings", "known"),), shows="is not named"),
    must=LEFT_OUT,
    excluded=False,
)


# ---------------------------------------------------------------- MaskedInputCollection: the offer


def offer(cheater: Cheater, sha256: bytes) -> pb.MaskedInputOffer:
    """Of any digest, signed as it should be."""
    cohort, u2 = cheater.phase._cohort, cheater.phase._u2
    statement = upload_statement(
        cohort.context, cheater.identity.public, sha256, set_of(cohort.config, cohort.context, "u2", u2)
    )
    return pb.MaskedInputOffer(sha256=sha256, signature=cheater.identity.sign(statement))


one_cheat(
    "offer-without-signature",
    "offers a vector that its identity has not signed",
    INPUT,
    sends(INPUT, lambda _, honest: altered(honest, signature=bytes(64))),
    "not signed",
    Off(CORE, without=("the upload is not signed by",), shows="is not named"),
)
one_cheat(
    "offer-masked-in-another-u2",
    "signs its upload as masked in a set that it was not told",
    INPUT,
    {INPUT: lambda me, _: [me.wrap(masked_input=_offer_in_another_u2(me))]},
    "not signed",
    Off(CORE, without=("the upload is not signed by",), shows="is not named"),
)
one_cheat(
    "offer-of-a-short-digest",
    "offers a vector by a digest of one byte",
    INPUT,
    sends(INPUT, lambda me, _: offer(me, b"d")),
    "32 bytes",
    Off("server.attempt.steps", without=("the offer's sha256 must have",), shows="is not named"),
)
one_cheat(
    "offers-twice",
    "offers its vector a second time",
    INPUT,
    {INPUT: twice},
    "offered before",
    Off("server.attempt.uploads", without=("offered before",), shows="is not named"),
    must=LEFT_OUT,
    excluded=False,
)


def _offer_in_another_u2(cheater: Cheater) -> pb.MaskedInputOffer:
    kept, cheater.phase._u2 = cheater.phase._u2, frozenset(sorted(cheater.phase._u2)[1:])
    try:
        return offer(cheater, hashlib.sha256(cheater.packed).digest())
    finally:
        cheater.phase._u2 = kept


# ---------------------------------------------------------------- ConsistencyCheck


def signs_other_sets(cheater: Cheater, honest: pb.ConsistencySignature) -> pb.ConsistencySignature:
    """Its own signature, over a u3 of its choice."""
    cohort, u2 = cheater.phase._cohort, cheater.phase._u2
    statement = survivor_statement(cohort.config, cohort.context, u2, frozenset(sorted(u2)[:-1]))
    return pb.ConsistencySignature(signature=cheater.identity.sign(statement))


COVERS = Off(SETS, without=("doesn't cover these sets",), shows="an honest participant refused")
TWICE = (("known and sender not in signed.signatures", "known"),)  # when others are asked for shares already, too
SIGNED = "the round ends in the exact sum, the cheat's input in it, and the cheat is named and excluded"
one_cheat(
    "signs-other-sets",
    "signs survivors other than those it was told",
    CHECK,
    sends(CHECK, signs_other_sets),
    "doesn't cover",
    COVERS,
    must=SIGNED,
)
one_cheat(
    "sets-without-signature",
    "sends zeros for its signature over the survivors",
    CHECK,
    sends(CHECK, lambda _, honest: altered(honest, signature=bytes(64))),
    "doesn't cover",
    COVERS,
    must=SIGNED,
)
one_cheat(
    "signs-twice",
    "signs the survivors a second time",
    CHECK,
    {CHECK: twice},
    "not expected",
    Off(CORE, changed=TWICE, shows="is not named", also=(Off(OPENING, changed=TWICE),)),
    must="the round ends in the exact sum, and the cheat is left out of this attempt only",
    excluded=False,
)


# ---------------------------------------------------------------- Unmasking


def entry(at: int, change: Callable[[pb.PeerShare], None]) -> dict[str, Twist]:
    """The honest reply with one entry changed."""

    def changed(_: Cheater, honest: pb.UnmaskingReply) -> pb.UnmaskingReply:
        message = altered(honest)
        change(message.shares[at])
        return message

    return sends(UNMASK, changed)


def false_share(one: pb.PeerShare) -> None:
    one.self_mask_seed.share = flipped(one.self_mask_seed.share, 3)


def outside_the_field(one: pb.PeerShare) -> None:
    one.self_mask_seed.share = b"\xff" * 32


def as_the_other_kind(one: pb.PeerShare) -> None:
    seed = pb.RevealedShare()
    seed.CopyFrom(one.self_mask_seed)
    one.mask_key.CopyFrom(seed)


def short_share(one: pb.PeerShare) -> None:
    one.self_mask_seed.share = one.self_mask_seed.share[:-2]


def short_salt(one: pb.PeerShare) -> None:
    one.self_mask_seed.salt = one.self_mask_seed.salt[:-1]


def other_share(cheater: Cheater, honest: pb.UnmaskingReply) -> pb.UnmaskingReply:
    """The mask key's share of a dealer who is in the sum: both secrets of one participant, were it taken."""
    message = altered(honest)
    held = cheater.before["held"][3]
    message.shares[3].mask_key.share = held.mask_key.share
    message.shares[3].mask_key.salt = held.mask_key.salt
    return message


def keeps_its_shares(cheater: Cheater, honest: pb.ConsistencySignature) -> list[pb.ParticipantMessage]:
    cheater.before["held"] = dict(cheater.phase._held)
    return [cheater.wrap(consistency=honest)]


OPENED = "the round ends in the exact sum, the cheat's input in it; the cheat is named, its reply counts for nothing"
LENGTHS = (Off(OPENING, without=("has another length",)),)
one_cheat(
    "false-share",
    "reveals a share that is not the one it was dealt",
    UNMASK,
    entry(3, false_share),
    "doesn't match the commitment",
    Off(OPENING, without=("doesn't match the commitment",), shows="participant 3 is excluded"),
    must=OPENED,
)
one_cheat(
    "share-outside-the-field",
    "reveals a share that is no share at all",
    UNMASK,
    entry(3, outside_the_field),
    "doesn't match the commitment",
    must=OPENED,
)
one_cheat(
    "share-called-another-kind",
    "reveals a share of a seed and calls it one of a mask key",
    UNMASK,
    entry(3, as_the_other_kind),
    "wrong kind",
    Off(OPENING, without=("the wrong kind of share",), shows="is not named"),
    must=OPENED,
)
one_cheat(
    "share-of-the-other-secret",
    "reveals the mask key's share of somebody who is in the sum, whose both secrets it would help to open",
    UNMASK,
    {**sends(UNMASK, other_share), CHECK: keeps_its_shares},
    "wrong kind",
    Off(OPENING, without=("the wrong kind of share",), shows="is not named"),
    must=OPENED,
)
one_cheat(
    "short-share",
    "reveals a share that is two bytes short",
    UNMASK,
    entry(3, short_share),
    "32 bytes",
    Off(CODEC, without=("bytes, not",), also=LENGTHS, shows="crash"),
    must=OPENED,
)
one_cheat(
    "short-salt",
    "reveals a share with a salt that is a byte short",
    UNMASK,
    entry(3, short_salt),
    "16 bytes",
    Off(CODEC, without=("bytes, not",), also=LENGTHS, shows="crash"),
    must=OPENED,
)
one_cheat(
    "empty-entries",
    "answers with entries that say nothing",
    UNMASK,
    sends(UNMASK, lambda _, honest: pb.UnmaskingReply(shares=[pb.PeerShare()] * len(honest.shares))),
    "entry of the reply is empty",
    must=OPENED,
)
one_cheat(
    "too-few-shares",
    "leaves out an entry of its reply, so that every other one would stand for another dealer",
    UNMASK,
    sends(UNMASK, lambda _, honest: altered(honest, shares=list(honest.shares)[1:])),
    "one entry for each",
    Off(OPENING, without=("there must be one entry for each",), shows="is not named"),
    must=OPENED,
)
one_cheat(
    "shares-of-strangers",
    "reveals shares of one who dealt nothing",
    UNMASK,
    sends(UNMASK, lambda _, honest: altered(honest, shares=[*honest.shares, honest.shares[-1]])),
    "one entry for each",
    Off(OPENING, without=("there must be one entry for each",), shows="crash"),
    must=OPENED,
)
one_cheat(
    "answers-twice",
    "sends its shares a second time",
    UNMASK,
    {UNMASK: twice},
    "not expected",
    Off(OPENING, changed=(("known and sender not in self._u5", "known"),), shows="is not named"),
    must="the round ends in the exact sum, and nothing of the second answer counts",
    excluded=False,
)
