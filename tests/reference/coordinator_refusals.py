"""Test vectors of what the coordinator refuses, and of messages that no side decodes. They start from the round "five".

A case states the whole message; the vector states the refusal by the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from tests.reference import setting
from tests.reference.curves import ed25519_sign
from tests.reference.lies import (
    LIAR,
    ROUND,
    VICTIM,
    each_refused,
    other_cohort,
    replaced,
    signed_advertisement,
    signed_upload,
    too_few,
)
from tests.reference.primitive_vectors import LOW_ORDER, Case, flip
from tests.reference.round_vectors import base_round, deal_again
from tests.reference.rounds import identity_seeds
from tests.reference.setting import PHASES, Message
from tests.reference.sharing import listed_bytes


def coordinator_refusals() -> Case:
    cases: list[Case] = []
    lies: tuple[Callable[[], Iterator[tuple[str, int, Message]]], ...] = (
        false_advertisements,
        false_dealings_to_all,
        false_uploads,
        false_signatures,
        false_replies,
    )
    base = base_round()
    for phase, messages in zip(PHASES, lies, strict=True):
        cases += each_refused(base, phase, messages())
    closings = [
        too_few(base, {"phase": phase, "received": [*base.record.to_coordinator[phase]][:3]}) for phase in PHASES
    ]
    return {"round": ROUND, "refused": cases, "too_few": closings}


def false_advertisements() -> Iterator[tuple[str, int, Message]]:
    base = base_round()
    keys = base.record.to_coordinator["AdvertiseKeys"]
    good = keys[LIAR]
    mask, channel = good["mask_key"], good["channel_key"]
    later = replace(base.agreed, round=base.agreed.round + 1).round_context()
    model = replace(base.agreed, model_digest=flip(base.agreed.model_digest)).round_context()
    yield "not on the roster", 5, good
    yield "a second advertisement", LIAR, good
    yield "the signature is altered", LIAR, {**good, "signature": flip(good["signature"])}
    yield "the keys are in each other's role", LIAR, {**good, "mask_key": channel, "channel_key": mask}
    yield "somebody else's advertisement", LIAR, keys[4]
    yield "signed for another round", LIAR, signed_advertisement(LIAR, mask, channel, later)
    yield "signed for another model", LIAR, signed_advertisement(LIAR, mask, channel, model)
    yield "both keys are the same", LIAR, signed_advertisement(LIAR, mask, mask)
    yield "another's mask key repeated", LIAR, signed_advertisement(LIAR, keys[0]["mask_key"], channel)
    crossed = signed_advertisement(LIAR, keys[1]["channel_key"], channel)
    yield "another's channel key repeated as mask key", LIAR, crossed
    for i, low in enumerate(LOW_ORDER):
        role, keys_of = ("mask", (low, channel)) if i % 2 else ("channel", (mask, low))
        name = f"a key of low order ({role}, {low.hex()[:8]}…{low.hex()[-4:]})"
        yield name, LIAR, signed_advertisement(LIAR, *keys_of)


def false_dealings_to_all() -> Iterator[tuple[str, int, Message]]:
    base = base_round()
    dealt = base.record.to_coordinator["ShareKeys"]
    good = dealt[LIAR]
    texts, leaves = good["ciphertexts"], good["leaves"]
    _, elsewhere = other_cohort()
    crooked = deepcopy(base.participants[LIAR])
    crooked.context = elsewhere.context
    signed_elsewhere = deal_again(crooked, [[0] * 32 for _ in crooked.u1], good["seed_commitment"])
    yield "not on the roster", 5, good
    yield "a second dealing", LIAR, good
    yield "somebody else's dealing", LIAR, dealt[4]
    yield "signed for another cohort", LIAR, signed_elsewhere
    yield "a ciphertext is missing", LIAR, {**good, "ciphertexts": texts[:-1]}
    yield "a ciphertext too many", LIAR, {**good, "ciphertexts": [*texts, texts[0]]}
    yield "commitments are missing", LIAR, {**good, "leaves": leaves[:-2]}
    yield "commitments too many", LIAR, {**good, "leaves": [*leaves, *leaves[:2]]}
    yield "an odd number of commitments", LIAR, {**good, "leaves": leaves[:-1]}
    yield "a commitment is altered", LIAR, {**good, "leaves": replaced(leaves, 3, flip(leaves[3]))}
    yield "two commitments of a holder are swapped", LIAR, {**good, "leaves": [leaves[1], leaves[0], *leaves[2:]]}
    yield "the seed commitment is altered", LIAR, {**good, "seed_commitment": flip(good["seed_commitment"])}
    yield "the signature is altered", LIAR, {**good, "signature": flip(good["signature"], 63)}


def false_uploads() -> Iterator[tuple[str, int, Message]]:
    base = base_round()
    uploads = base.record.to_coordinator["MaskedInputCollection"]
    good = uploads[LIAR]
    packed = good["packed"]

    def signed(data: bytes, context: bytes | None = None, members: Sequence[int] = range(5)) -> Message:
        return signed_upload(base, LIAR, data, members, context)

    assert signed(packed) == good
    assert len(packed) == 14
    yield "not on the roster", 5, good
    yield "a second upload", LIAR, good
    yield "somebody else's upload", LIAR, uploads[4]
    yield "the signature is altered", LIAR, {**good, "signature": flip(good["signature"])}
    yield "signed for another cohort", LIAR, signed(packed, other_cohort()[0])
    yield "signed for another u2", LIAR, signed(packed, members=(0, 1, 2, 4))
    yield "the vector is not what was signed", LIAR, {**good, "packed": flip(packed, 5)}
    yield "another digest than was signed", LIAR, {**good, "sha256": flip(good["sha256"])}
    yield "one byte too short", LIAR, signed(packed[:-1])
    yield "one byte too long", LIAR, signed(packed + b"\0")
    yield "empty", LIAR, signed(b"")
    yield "the lowest unused bit is set", LIAR, signed(packed[:-1] + bytes([packed[-1] | 0x10]))
    yield "the highest unused bit is set", LIAR, signed(packed[:-1] + bytes([packed[-1] | 0x80]))


def false_signatures() -> Iterator[tuple[str, int, Message]]:
    base = base_round()
    signatures = base.record.to_coordinator["ConsistencyCheck"]
    everyone = [base.agreed.identity(who) for who in range(5)]
    true3 = [base.agreed.identity(who) for who in (0, 1, 2, 4)]
    context = base.coordinator.context
    for name, who, statement in (
        ("over another u3", LIAR, setting.survivor_statement(context, everyone, everyone)),
        ("over both sets exchanged", LIAR, setting.survivor_statement(context, true3, everyone)),
        ("in another cohort", LIAR, setting.survivor_statement(other_cohort()[0], everyone, true3)),
        ("by one that is not in u3", 3, base.coordinator.statement),
    ):
        yield name, who, {"signature": ed25519_sign(identity_seeds(5)[who], statement)}
    yield "a second signature", LIAR, signatures[LIAR]
    yield "somebody else's signature", LIAR, signatures[4]
    yield "altered", LIAR, {"signature": flip(signatures[LIAR]["signature"], 20)}


def false_replies() -> Iterator[tuple[str, int, Message]]:
    base = base_round()
    replies = base.record.to_coordinator["Unmasking"]
    shares = replies[LIAR]["shares"]  # of the seeds of 0, 1, 2 and 4, and of the mask key of 3
    held = base.participants[LIAR].held

    def revealed(dealer: int, kind: int) -> Message:
        pair = held[dealer]
        assert pair is not None
        return {"share": pair[kind][1], "salt": pair[kind][0]}

    def entry(at: int, value: Message) -> Message:
        return {"shares": replaced(shares, at, value)}

    seed, mask_key = shares[0]["self_mask_seed"], shares[3]["mask_key"]
    assert (seed, mask_key) == (revealed(0, 1), revealed(3, 0))
    swapped = [shares[1], shares[0], *shares[2:]]
    yield "a second reply", LIAR, replies[LIAR]
    yield "by one that is not in u4", 3, replies[LIAR]
    yield "not on the roster", 5, replies[LIAR]
    yield "somebody else's reply", LIAR, replies[4]
    yield "an entry is missing", LIAR, {"shares": shares[:-1]}
    yield "an entry too many", LIAR, {"shares": [*shares, {"none": {}}]}
    yield "a noise seed, though there are none", LIAR, {"shares": shares, "noise_seeds": [bytes(32)]}
    yield "a share is changed", LIAR, entry(0, {"self_mask_seed": {**seed, "share": flip(seed["share"], 3)}})
    changed = {**mask_key, "share": flip(mask_key["share"])}
    yield "a share of the mask key is changed", LIAR, entry(3, {"mask_key": changed})
    yield "a salt is changed", LIAR, entry(0, {"self_mask_seed": {**seed, "salt": flip(seed["salt"])}})
    changed = {**seed, "share": b"\xf1\xff" + seed["share"][2:]}
    yield "a symbol of 65521, which misses the commitment", LIAR, entry(0, {"self_mask_seed": changed})
    name = "a symbol of 65535 in a share of the mask key, which misses the commitment"
    yield name, LIAR, entry(3, {"mask_key": {**mask_key, "share": mask_key["share"][:-2] + b"\xff\xff"}})
    yield "a survivor's mask key", LIAR, entry(0, {"mask_key": revealed(0, 0)})
    yield "a dropout's self-mask seed", LIAR, entry(3, {"self_mask_seed": revealed(3, 1)})
    yield "a share of the other kind under the right name", LIAR, entry(0, {"self_mask_seed": revealed(0, 0)})
    yield "the right share under the other kind's name", LIAR, entry(0, {"mask_key": seed})
    yield "the shares of two dealers swapped", LIAR, {"shares": swapped}


def malformed_messages() -> Case:
    """Fields of a wrong length, refused before any rule of the protocol is asked."""
    base = base_round()
    said, heard = base.record.to_coordinator, base.record.to_participants
    advert, dealing, reply = said["AdvertiseKeys"][LIAR], said["ShareKeys"][LIAR], said["Unmasking"][LIAR]
    members, request = heard["ShareKeys"][VICTIM]["members"], heard["Unmasking"][VICTIM]["signatures"]
    upload = {name: said["MaskedInputCollection"][LIAR][name] for name in ("sha256", "signature")}
    longer = {name: value + b"\0" for name, value in advert.items()}
    cases: list[tuple[str, str, Message]] = []
    for name, value in advert.items():
        for how, wrong in (("one byte too short", value[:-1]), ("one byte too long", longer[name]), ("empty", b"")):
            cases.append(("advertisement", f"{name} {how}", {**advert, name: wrong}))
    short = {"participant": 0, "advertisement": {**advert, "mask_key": advert["mask_key"][:-1]}}
    nothing = {"participant": 0}
    digest = {"participant": 0, "advertisement_sha256": listed_bytes("a digest", 31)}
    for name, member in (("a key one byte too short", short), ("no keys", nothing), ("a digest of 31 bytes", digest)):
        cases.append(("cohort_keys", name, {"members": [member, *members[1:]]}))
    for name in ("ciphertexts", "leaves"):
        first, *others = dealing[name]
        cases.append(("sealed_shares", f"{name}: one byte too short", {**dealing, name: [first[:-1], *others]}))
        cases.append(("sealed_shares", f"{name}: one byte too long", {**dealing, name: [first + b"\0", *others]}))
    for name in ("seed_commitment", "signature"):
        cases.append(("sealed_shares", f"{name} one byte too short", {**dealing, name: dealing[name][:-1]}))
    cases.append(("consistency", "signature one byte too short", {"signature": advert["signature"][:-1]}))
    cases.append(("consistency", "signature one byte too long", {"signature": longer["signature"]}))
    cut = {**request[0], "signature": request[0]["signature"][:-1]}
    cases.append(("unmasking_request", "a signature one byte too short", {"signatures": [cut, *request[1:]]}))
    for name, value in upload.items():
        for about, wrong in (("short", value[:-1]), ("long", value + b"\0")):
            shown = {"signatures": request, "uploads": [{**upload, name: wrong}]}
            cases.append(("unmasking_request", f"the {name} of an upload one byte too {about}", shown))
    for size in (31, 33):
        noise = {**reply, "noise_seeds": [listed_bytes("a noise seed", size)]}
        cases.append(("unmasking_reply", f"a noise seed of {size} bytes", noise))
    first, *others = reply["shares"]
    seed = first["self_mask_seed"]
    for name, entry in (
        ("a share of 30 bytes", {"self_mask_seed": {**seed, "share": seed["share"][:-2]}}),
        ("a share of 31 bytes", {"mask_key": {**seed, "share": seed["share"][:-1]}}),
        ("a share of 34 bytes", {"self_mask_seed": {**seed, "share": seed["share"] + b"\0\0"}}),
        ("a salt of 15 bytes", {"self_mask_seed": {**seed, "salt": seed["salt"][:-1]}}),
        ("a salt of 17 bytes", {"mask_key": {**seed, "salt": seed["salt"] + b"\0"}}),
        ("an entry of no kind", {}),
    ):
        cases.append(("unmasking_reply", name, {"shares": [entry, *others]}))
    refused = {"error": "Malformed"}
    return {
        "cases": [{"kind": kind, "name": name, "message": message, "refused": refused} for kind, name, message in cases]
    }
