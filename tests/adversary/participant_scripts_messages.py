"""Messages that a phase did not ask for: malformed, unsigned, replayed, repeated, in another name."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from secagg.commitments import MerkleTree, pair_node
from secagg.context import set_of, survivor_statement
from secagg.keys import KEY_BYTES, advertisement_statement, dealing_statement, upload_statement
from secagg.messages import NOISE_SEED_BYTES
from secagg.parameters import HYBRID
from tests.adversary.cheating_participant import ADVERTISE, CHECK, INPUT, KINDS, SHARE, UNMASK, Cheat, Cheater, Twist
from tests.adversary.participant_verdict import SUM_OF_ALL, SUM_OF_OTHERS, Blame, study_script
from tests.adversary.script import Naive
from tests.adversary.study_with_cheats import Off
from tests.reference.primitive_vectors import LOW_ORDER
from tests.support.attempts_in_memory import flipped
from wire import codec, coordinator_pb2 as pb

NAMED = "the round ends in the exact sum of the others, and the cheat is named and excluded"
LEFT_OUT = "the round ends in the exact sum of the others, and the cheat is left out of this attempt only"
SIGNED = "the round ends in the exact sum with the cheat's input, and the cheat is named and excluded"
OPENED = "the round ends in the exact sum with the cheat's input; the cheat is named, and its reply is ignored"
MUST = {CHECK: SIGNED, UNMASK: OPENED}  # else NAMED
CORE, UNMASKING, CODEC = "secagg.server_phases", "secagg.server_unmasking", "wire.codec"
SETS = "secagg.server_cohort"  # signatures over the survivor sets
Change = Callable[[Cheater, Any], Any]
"""(cheater, honest content) -> content in its place, or a list of messages, or None; may be a coroutine function."""


def altered(content: Any, **changes: Any) -> Any:
    """Return a message with some fields replaced."""
    message = type(content)()
    message.CopyFrom(content)
    for name, value in changes.items():
        if isinstance(value, list):
            message.ClearField(name)
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def sends(kind: str, change: Change) -> dict[str, Twist]:
    """Make the twist that sends something else in the place of one message of a kind."""

    async def twist(cheater: Cheater, honest: Any) -> Any:
        content = change(cheater, honest)
        if inspect.isawaitable(content):
            content = await content
        return content if content is None or isinstance(content, list) else [cheater.wrap(**{kind: content})]

    return {kind: twist}


def one_cheat(
    kind: str,
    script: str,
    change: Change,
    *check: Naive,
    reason: str = "",
    must: str = "",
    excluded: bool = True,
    more: Mapping[str, Twist] | None = None,
    **options: Any,
) -> None:
    """Register a script in which participant 0 cheats once and is named in that phase.

    Args:
        reason: a piece of the reason that is given; by default what the first naive side lacks.
        options: further arguments of `study_script`.
    """
    outcome = SUM_OF_ALL if KINDS.index(kind) > KINDS.index(INPUT) else SUM_OF_OTHERS
    cheat = Cheat({**sends(kind, change), **(more or {})})
    blames = [Blame(0, kind, reason or check[0].without[0], excluded=excluded)]
    study_script(script, must or MUST.get(kind, NAMED), outcome, {0: cheat}, *check, blames=blames, **options)


advertises, deals, offers, signs, answers = (partial(one_cheat, kind) for kind in KINDS)


# ---------------------------------------------------------------- AdvertiseKeys


def resigned(cheater: Cheater, honest: pb.Advertisement, mask_key: bytes, channel_key: bytes) -> pb.Advertisement:
    """Return other keys, correctly signed."""
    keys = cheater.phase._keys
    statement = advertisement_statement(keys.round_context, cheater.identity.public, mask_key, channel_key)
    message = pb.Advertisement(mask_key=mask_key, channel_key=channel_key, signature=cheater.identity.sign(statement))
    cheater.phase._advertisement = codec.read_advertisement(message)  # else it would refuse them itself
    return message


advertises(
    "keys-without-signature: advertises keys that its identity has not signed",
    lambda _, honest: altered(honest, signature=bytes(64)),
    Off.lacking(CORE, "the keys are not signed by", shows="an honest participant refused"),
)
advertises(
    "mask-key-of-low-order: advertises a mask key with which every agreement is zero",
    lambda me, honest: resigned(me, honest, LOW_ORDER[2], honest.channel_key),
    Off.lacking(CORE, "a public key is of low order", shows="an honest participant refused"),
)
advertises(
    "channel-key-of-low-order: advertises a channel key with which every agreement is zero",
    lambda me, honest: resigned(me, honest, honest.mask_key, LOW_ORDER[5]),
    Off.lacking(CORE, "a public key is of low order", shows="an honest participant refused"),
)
advertises(
    "one-key-for-two-purposes: advertises one key as mask key and as channel key",
    lambda me, honest: resigned(me, honest, honest.mask_key, honest.mask_key),
    Off.lacking(CORE, "a public key was advertised before", shows="an honest participant refused"),
)
advertises(
    "short-key: advertises a key of one byte",
    lambda _, honest: altered(honest, mask_key=b"k"),
    Off.lacking(
        CODEC, "bytes, not", also=(Off.lacking(CORE, "a public key is not {length} bytes long"),), shows="low order"
    ),
    reason="32 bytes",
)


def no_ml_kem_key(name: str) -> Change:
    """Replace the second part of a public key."""

    def change(me: Cheater, honest: pb.Advertisement) -> pb.Advertisement:
        keys = {"mask_key": honest.mask_key, "channel_key": honest.channel_key}
        return resigned(me, honest, **keys | {name: keys[name][:KEY_BYTES] + b"\xff" * 1184})

    return change


for role in ("mask", "channel"):
    advertises(
        f"invalid-ml-kem-{role}-key: advertises a {role} key whose second part is no ML-KEM key",
        no_ml_kem_key(f"{role}_key"),
        Off.lacking(CORE, "the ML-KEM part of a public key is invalid", shows="an honest participant refused"),
        study={"key_agreement": HYBRID},
    )


async def key_of_a_partner(cheater: Cheater, honest: pb.Advertisement) -> pb.Advertisement:
    """Return an advertisement with the mask key of participant 0, its partner."""
    stage = cheater.stage
    assert stage is not None
    await cheater.until(lambda: stage.arrived[0] > 0)
    return resigned(cheater, honest, stage.cheaters[0].before[ADVERTISE].mask_key, honest.channel_key)


study_script(
    "key-of-another: advertises the mask key of another participant",
    NAMED,
    SUM_OF_OTHERS,
    {0: Cheat(), 1: Cheat(sends(ADVERTISE, key_of_a_partner))},
    Off.lacking(CORE, "a public key was advertised before", shows="an honest participant refused"),
    blames=[Blame(1, ADVERTISE, "advertised before", excluded=True)],
    participants=7,
)


def second_time(script: str, kind: str, check: Naive, must: str = LEFT_OUT, reason: str = "not expected") -> None:
    """Register a script in which participant 0 sends its message of a kind twice."""

    def twice(cheater: Cheater, honest: Any) -> list[pb.ParticipantMessage]:
        return [cheater.wrap(**{kind: honest})] * 2

    one_cheat(kind, script, twice, check, reason=reason, must=must, excluded=False)


second_time(
    "advertises-twice: advertises its keys a second time",
    ADVERTISE,
    Off.instead(CORE, "known and sender not in self._advertisements", "known", shows="participant 0 is excluded"),
)


# ---------------------------------------------------------------- ShareKeys


def dealing(cheater: Cheater, honest: pb.SealedShares, **changes: Any) -> pb.SealedShares:
    """Return another dealing, correctly signed."""
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


deals(
    "shares-without-signature: deals shares whose commitments its identity has not signed",
    lambda _, honest: altered(honest, leaves=[*honest.leaves[:-1], flipped(honest.leaves[-1])]),
    Off.lacking(CORE, "the commitments are not signed by", shows="an honest participant refused"),
)
deals(
    "shares-for-too-few: seals shares for all of its neighbours but one",
    lambda _, honest: altered(honest, ciphertexts=list(honest.ciphertexts)[1:]),
    Off.lacking(CORE, "shares must go to exactly the neighbours", shows="crash"),
)
deals(
    "shares-for-strangers: seals a share for one more holder than there are neighbours",
    lambda _, honest: altered(honest, ciphertexts=[*honest.ciphertexts, bytes(112)]),
    Off.lacking(CORE, "shares must go to exactly the neighbours", shows="crash"),
)
deals(
    "commitments-for-too-few: commits to shares of all holders but one, and signs that",
    lambda me, honest: dealing(me, honest, leaves=list(honest.leaves)[:-2]),
    Off.lacking(CORE, "there must be two commitments", shows="crash"),
)
deals(
    "short-sealed-share: seals a share that is a byte short",
    lambda _, honest: altered(honest, ciphertexts=[honest.ciphertexts[0][:-1], *honest.ciphertexts[1:]]),
    Off.lacking(CODEC, "bytes, not", also=(Off.lacking(CORE, "a sealed share is not"),), shows="is not named"),
    reason="112 bytes",
)
deals(
    "short-commitment: commits to a share with a hash that is a byte short",
    lambda _, honest: altered(honest, leaves=[honest.leaves[0][:-1], *honest.leaves[1:]]),
    Off.lacking(CODEC, "bytes, not", also=(Off.lacking(CORE, "there must be two commitments"),), shows="crash"),
    reason="32 bytes",
)
deals(
    "short-seed-commitment: signs a commitment to its seed that is a byte short",
    lambda me, honest: dealing(me, honest, seed_commitment=honest.seed_commitment[:-1]),
    Off.lacking(CODEC, "bytes, not", also=(Off.lacking(CORE, "the seed commitment is not"),), shows="is not named"),
    reason="32 bytes",
)
deals(
    "seeds-for-too-few: wraps seeds for all of its receivers but one",
    lambda _, honest: altered(honest, wrapped=list(honest.wrapped)[1:]),
    Off.lacking(CORE, "seeds of {WRAPPED_BYTES} bytes", shows="crash"),
    reason="there must be 2 seeds of 1120 bytes",
    study={"key_agreement": HYBRID},
)
second_time(
    "deals-twice: deals a second time",
    SHARE,
    Off.instead(CORE, "known and sender not in self._dealings", "known", shows="is not named"),
)


# ---------------------------------------------------------------- MaskedInputCollection: the offer


def offer(cheater: Cheater, sha256: bytes) -> pb.MaskedInputOffer:
    """Return an offer of any digest, correctly signed."""
    cohort, u2 = cheater.phase._cohort, cheater.phase._u2
    statement = upload_statement(
        cohort.context, cheater.identity.public, sha256, set_of(cohort.config, cohort.context, "u2", u2)
    )
    return pb.MaskedInputOffer(sha256=sha256, signature=cheater.identity.sign(statement))


offers(
    "offer-without-signature: offers a vector that its identity has not signed",
    lambda _, honest: altered(honest, signature=bytes(64)),
    Off.lacking(CORE, "the upload is not signed by", shows="is not named"),
)
offers(
    "offer-masked-in-another-u2: signs its upload as masked in a set that it was not sent",
    lambda me, _: _offer_in_another_u2(me),
    Off.lacking(CORE, "the upload is not signed by", shows="is not named"),
)
offers(
    "offer-of-a-short-digest: offers a vector by a digest of one byte",
    lambda me, _: offer(me, b"d"),
    Off.lacking("server.attempt.steps", "the offer's sha256 must have", shows="is not named"),
    reason="32 bytes",
)
second_time(
    "offers-twice: offers its vector a second time",
    INPUT,
    Off.lacking("server.attempt.uploads", "offered before", shows="is not named"),
    reason="offered before",
)


def _offer_in_another_u2(cheater: Cheater) -> pb.MaskedInputOffer:
    kept, cheater.phase._u2 = cheater.phase._u2, frozenset(sorted(cheater.phase._u2)[1:])
    try:
        return offer(cheater, hashlib.sha256(cheater.packed).digest())
    finally:
        cheater.phase._u2 = kept


# ---------------------------------------------------------------- ConsistencyCheck


def signs_other_sets(cheater: Cheater, honest: pb.ConsistencySignature) -> pb.ConsistencySignature:
    """Return its own signature over a u3 of its choice."""
    cohort, u2 = cheater.phase._cohort, cheater.phase._u2
    statement = survivor_statement(cohort.config, cohort.context, u2, frozenset(sorted(u2)[:-1]))
    return pb.ConsistencySignature(signature=cheater.identity.sign(statement))


COVERS = Off.lacking(SETS, "doesn't cover these sets", shows="an honest participant refused")
TWICE = {"known and sender not in signed.signatures": "known"}  # also when others are already asked for shares
signs("signs-other-sets: signs survivors other than those it was sent", signs_other_sets, COVERS)
signs(
    "sets-without-signature: sends zeros for its signature over the survivors",
    lambda _, honest: altered(honest, signature=bytes(64)),
    COVERS,
)
second_time(
    "signs-twice: signs the survivors a second time",
    CHECK,
    Off(CORE, changed=TWICE, shows="is not named", also=(Off(UNMASKING, changed=TWICE),)),
    must="the round ends in the exact sum, and the cheat is left out of this attempt only",
)


# ---------------------------------------------------------------- Unmasking


def entry(change: Callable[[pb.PeerShare], None], at: int = 3) -> Change:
    """Make the honest reply with one entry changed."""

    def changed(_: Cheater, honest: pb.UnmaskingReply) -> pb.UnmaskingReply:
        message = altered(honest)
        change(message.shares[at])
        return message

    return changed


def revealed(name: str, change: Callable[[bytes], bytes], at: int = 3) -> Change:
    """Make the honest reply with one field of a revealed share of a seed changed."""
    return entry(lambda one: setattr(one.self_mask_seed, name, change(getattr(one.self_mask_seed, name))), at)


def as_the_other_kind(one: pb.PeerShare) -> None:
    seed = pb.RevealedShare()
    seed.CopyFrom(one.self_mask_seed)
    one.mask_key.CopyFrom(seed)


def other_share(cheater: Cheater, honest: pb.UnmaskingReply) -> pb.UnmaskingReply:
    """Reveal the mask key's share of a dealer that is in the sum; accepted, it would help to open both its secrets."""
    message = altered(honest)
    held = cheater.before["held"][3]
    message.shares[3].mask_key.share = held.mask_key.share
    message.shares[3].mask_key.salt = held.mask_key.salt
    return message


def keeps_its_shares(cheater: Cheater, honest: pb.ConsistencySignature) -> pb.ConsistencySignature:
    cheater.before["held"] = dict(cheater.phase._held)
    return honest


WRONG_KIND = Off.lacking(UNMASKING, "the wrong kind of share", shows="is not named")
SHORT = Off.lacking(CODEC, "bytes, not", also=(Off.lacking(UNMASKING, "has another length"),), shows="crash")
answers(
    "false-share: reveals a share that is not the one it was dealt",
    revealed("share", lambda share: flipped(share, 3)),
    Off.lacking(UNMASKING, "doesn't match the commitment", shows="participant 3 is excluded"),
)
answers(
    "share-outside-the-field: reveals a share that is no share at all",
    revealed("share", lambda _: b"\xff" * 32),
    reason="doesn't match the commitment",
)
answers(
    "share-called-another-kind: reveals a share of a seed and calls it one of a mask key",
    entry(as_the_other_kind),
    WRONG_KIND,
)
answers(
    "share-of-the-other-secret: reveals the mask key's share of a participant in the sum, which would help to open "
    "both its secrets",
    other_share,
    WRONG_KIND,
    more=sends(CHECK, keeps_its_shares),
)
answers(
    "short-share: reveals a share that is two bytes short",
    revealed("share", lambda share: share[:-2]),
    SHORT,
    reason="32 bytes",
)
answers(
    "short-salt: reveals a share with a salt that is a byte short",
    revealed("salt", lambda salt: salt[:-1]),
    SHORT,
    reason="16 bytes",
)
answers(
    "empty-entries: answers with entries that say nothing",
    lambda _, honest: pb.UnmaskingReply(shares=[pb.PeerShare()] * len(honest.shares)),
    reason="entry of the reply is empty",
)
answers(
    "too-few-shares: leaves out an entry of its reply, so that every later one would count for another dealer",
    lambda _, honest: altered(honest, shares=list(honest.shares)[1:]),
    Off.lacking(UNMASKING, "there must be one entry for each", shows="is not named"),
)
answers(
    "shares-of-strangers: reveals shares of a participant that dealt nothing",
    lambda _, honest: altered(honest, shares=[*honest.shares, honest.shares[-1]]),
    Off.lacking(UNMASKING, "there must be one entry for each", shows="crash"),
)
second_time(
    "answers-twice: sends its shares a second time",
    UNMASK,
    Off.instead(UNMASKING, "known and sender not in self._u5", "known", shows="is not named"),
    must="the round ends in the exact sum, and the second answer is ignored",
)


# ---------------------------------------------------------------- seeds of its own noise

# Where they aren't those it committed to, nobody else's noise, nor guarantee, changes.

STAYS_IN = "the round ends in the sum of all; the cheat is named, and only its own noise is not taken back"
FITS = Off.lacking(UNMASKING, "a noise seed doesn't match", shows="opens a wrong sum")
COUNT = Off.lacking(UNMASKING, "noise seeds of {NOISE_SEED_BYTES}", shows="crash")
SEVEN: dict[str, Any] = {"must": STAYS_IN, "participants": 7}  # if all survive, each reveals three seeds


answers(
    "false-noise-seed: reveals a seed of its noise that is not the one it committed to",
    lambda _, honest: altered(honest, noise_seeds=[flipped(honest.noise_seeds[0]), *honest.noise_seeds[1:]]),
    FITS,
    **SEVEN,
)
answers(
    "noise-seed-of-another-part: reveals two seeds of its noise in each other's place",
    lambda _, honest: altered(honest, noise_seeds=[honest.noise_seeds[at] for at in (1, 0, 2)]),
    FITS,
    **SEVEN,
)
answers(
    "no-noise-seed: reveals no seed of its noise",
    lambda _, honest: altered(honest, noise_seeds=[]),
    COUNT,
    reason="noise seeds of 32 bytes",
    **SEVEN,
)
answers(
    "a-noise-seed-too-many: reveals a seed more than is surplus",
    lambda _, honest: altered(honest, noise_seeds=[*honest.noise_seeds, bytes(NOISE_SEED_BYTES)]),
    COUNT,
    reason="noise seeds of 32 bytes",
    **SEVEN,
)
answers(
    "false-noise-seed-without-signatures: reveals a false seed under a plan without signed survivors",
    lambda _, honest: altered(honest, noise_seeds=[flipped(honest.noise_seeds[0])]),
    FITS,
    must=STAYS_IN,
    study={"adversary": "curious"},
)


def earlier(cheater: Cheater, honest: Any) -> Any:
    return altered(honest, noise_seeds=list(cheater.first[UNMASK].noise_seeds))


study_script(
    "noise-seeds-of-an-earlier-round: reveals the seeds of its noise in the round before",
    STAYS_IN,
    SUM_OF_ALL,
    {0: Cheat(sends(UNMASK, earlier), rounds=frozenset({2}))},
    FITS,
    blames=[Blame(0, UNMASK, "a noise seed doesn't match", round=2, excluded=True)],
)
