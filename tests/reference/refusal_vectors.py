"""Test vectors of what each side refuses. They start from the round "five" of rounds.json.

A case states the whole message; the reference itself is made to refuse it, and what it says is what the vector says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tests.reference import setting
from tests.reference.aes import gcm_seal
from tests.reference.coordinator import Coordinator
from tests.reference.curves import ed25519_sign
from tests.reference.participant import Participant, bitmap
from tests.reference.primitive_vectors import LOW_ORDER, flip
from tests.reference.round_vectors import base_round, deal_again
from tests.reference.rounds import identity_seeds, stream_of
from tests.reference.setting import PHASES, Refused
from tests.reference.sharing import Stream, listed_bytes, symbol_bytes

Case = dict[str, Any]
Message = dict[str, Any]
ROUND = "five"
VICTIM = 1  # the participant that is lied to; its third neighbour, 3, sends no input
LIAR = 2


def replaced(items: list[Any], at: int, value: Any) -> list[Any]:
    """One entry exchanged."""
    return [*items[:at], value, *items[at + 1 :]]


# ---------------------------------------------------------------- what a participant refuses


def participant_refusals() -> Case:
    cases = []
    lies: tuple[tuple[str, Callable[[], Iterator[tuple[str, Message]]]], ...] = (
        ("ShareKeys", false_cohorts),
        ("MaskedInputCollection", false_dealings),
        ("ConsistencyCheck", false_sets),
        ("Unmasking", false_requests),
    )
    for phase, messages in lies:
        for name, message in messages():
            case: Case = {"name": name, "participant": VICTIM, "instead": {phase: message}}
            cases.append({**case, "refused": must_refuse(case, phase)})
    cases.append(low_order_mask_key())
    request = base_round().record.to_participants["Unmasking"][VICTIM]
    again = {"signatures": request["signatures"][::-1]}
    case = {"name": "a second, different request", "participant": VICTIM, "instead": {}, "then": again}
    cases.append({**case, "refused": must_refuse(case, "Unmasking")})

    goes_on: list[Case] = []
    shares = base_round().record.to_participants["MaskedInputCollection"][VICTIM]["shares"]
    position = [one["dealer"] for one in shares].index(LIAR)
    for name, entry in bad_shares():
        told = {"MaskedInputCollection": {"shares": replaced(shares, position, entry)}}
        upload, reply = listen({"name": name, "participant": VICTIM, "instead": told})
        assert upload == base_round().record.to_coordinator["MaskedInputCollection"][VICTIM]
        without = [dealer for dealer, one in enumerate(reply["shares"]) if "none" in one]
        assert without == [LIAR], name
        goes_on.append({"name": name, "participant": VICTIM, "dealt": entry, "no_share_of": LIAR})
    _, reply = listen({"name": "", "participant": VICTIM, "instead": {}, "then": request})
    assert reply == base_round().record.to_coordinator["Unmasking"][VICTIM]
    return {"round": ROUND, "refused": cases, "goes_on": goes_on}


def listen(case: Case) -> tuple[Message, Message]:
    """The base round as one participant hears it, with what a case puts in the place of messages."""
    base, who = base_round(), case["participant"]
    fresh = Participant(base.agreed, identity_seeds(5)[who], fresh_stream(who))
    told = {phase: messages[who] for phase, messages in base.record.to_participants.items() if messages}
    told |= case["instead"]
    fresh.advertise()
    fresh.share_keys(told["ShareKeys"])
    upload = fresh.masked_input(told["MaskedInputCollection"], base.inputs[who])
    fresh.sign_sets(told["ConsistencyCheck"])
    reply = fresh.unmask(told["Unmasking"])
    if "then" in case:
        reply = fresh.unmask(case["then"])
    return upload, reply


def fresh_stream(who: int) -> Stream:
    """A participant's randomness from the beginning."""
    return stream_of(base_round().agreed, who)


def must_refuse(case: Case, phase: str) -> Case:
    """What the reference says to a case; in that phase."""
    try:
        listen(case)
    except Refused as refusal:
        if refusal.phase == phase:
            return refusal.stated()
    raise AssertionError(f"the reference took: {case['name']}")


def signed_advertisement(who: int, mask_key: bytes, channel_key: bytes, round_context: bytes | None = None) -> Message:
    """Keys of somebody's choice, signed by it."""
    base = base_round()
    context = round_context or base.agreed.round_context()
    statement = setting.advertisement_statement(context, base.agreed.identity(who), mask_key, channel_key)
    signature = ed25519_sign(identity_seeds(5)[who], statement)
    return {"mask_key": mask_key, "channel_key": channel_key, "signature": signature}


def false_cohorts() -> Iterator[tuple[str, Message]]:
    base = base_round()
    members = base.record.to_participants["ShareKeys"][VICTIM]["members"]
    keys = {who: base.record.to_coordinator["AdvertiseKeys"][who] for who in base.everybody}
    mask, channel = keys[LIAR]["mask_key"], keys[LIAR]["channel_key"]

    def of(who: int, entry: Message) -> list[Message]:
        return replaced(members, who, {"participant": who, "advertisement": entry})

    def signed(mask_key: bytes, channel_key: bytes, round_context: bytes | None = None) -> list[Message]:
        return of(LIAR, signed_advertisement(LIAR, mask_key, channel_key, round_context))

    good, own = keys[LIAR], keys[VICTIM]
    earlier = replace(base.agreed, attempt=base.agreed.attempt - 1).round_context()
    unknown = {"participant": 5, "advertisement": signed_advertisement(4, b"\x09" * 32, b"\x0a" * 32)}
    listed = {"participant": 0, "advertisement_sha256": setting.advertisement_digest(**keys[0])}
    swapped = replaced(of(2, keys[3]), 3, {"participant": 3, "advertisement": keys[2]})
    wrong: tuple[tuple[str, list[Message]], ...] = (
        ("u1 is not ascending", [members[1], members[0], *members[2:]]),
        ("a member of u1 is repeated", [members[0], *members]),
        ("a member of u1 is not on the roster", [*members, unknown]),
        ("u1 is below the quorum", members[:3]),
        ("u1 is empty", []),
        ("oneself is missing from u1", [members[0], *members[2:]]),
        ("one's own keys are exchanged", of(VICTIM, signed_advertisement(VICTIM, own["channel_key"], own["mask_key"]))),
        ("one's own signature is altered", of(VICTIM, {**own, "signature": flip(own["signature"])})),
        ("a neighbour's keys come as a digest only", replaced(members, 0, listed)),
        ("a neighbour's signature is altered", of(LIAR, {**good, "signature": flip(good["signature"], 40)})),
        ("a neighbour's mask key is altered", of(LIAR, {**good, "mask_key": flip(mask, 7)})),
        ("a neighbour's keys are in each other's role", of(LIAR, {**good, "mask_key": channel, "channel_key": mask})),
        ("two neighbours' advertisements are swapped", swapped),
        ("a neighbour's keys are signed for another attempt", signed(mask, channel, earlier)),
        ("a neighbour repeats another's mask key", signed(keys[0]["mask_key"], channel)),
        ("a neighbour repeats one's own channel key", signed(mask, own["channel_key"])),
        ("a neighbour has the same key twice", signed(mask, mask)),
        ("a neighbour's channel key is of low order", signed(mask, LOW_ORDER[2])),
        ("a neighbour's channel key is zero", signed(mask, LOW_ORDER[0])),
    )
    for name, false in wrong:
        yield name, {"members": false}


def other_cohort() -> tuple[bytes, Participant]:
    """The liar in a cohort without 0: the context, and the liar after it dealt there."""
    base = base_round()
    members = base.record.to_participants["ShareKeys"][LIAR]["members"][1:]
    liar = Participant(base.agreed, identity_seeds(5)[LIAR], fresh_stream(LIAR))
    liar.advertise()
    liar.share_keys({"members": members})
    return liar.context, liar


def false_dealings() -> Iterator[tuple[str, Message]]:
    base = base_round()
    shares = base.record.to_participants["MaskedInputCollection"][VICTIM]["shares"]  # of 0, 2, 3, 4
    at = 1
    entry = shares[at]
    own = base.record.to_participants["MaskedInputCollection"][LIAR]["shares"][1]
    context, _ = other_cohort()
    elsewhere = setting.dealing_statement(context, base.agreed.identity(LIAR), entry["root"], entry["seed_commitment"])
    signature = ed25519_sign(identity_seeds(5)[LIAR], elsewhere)
    swapped = [shares[0], {**shares[2], "dealer": 2}, {**shares[1], "dealer": 3}, shares[3]]

    def altered(name: str) -> list[Message]:
        return replaced(shares, at, {**entry, name: flip(entry[name])})

    for name, false in (
        ("dealers are not ascending", [shares[1], shares[0], *shares[2:]]),
        ("a dealer is repeated", [shares[0], *shares]),
        ("oneself is among the dealers", [shares[0], {**own, "dealer": VICTIM}, *shares[1:]]),
        ("a dealer is no member of u1", [*shares, {**shares[3], "dealer": 5}]),
        ("u2 is below the quorum", shares[:2]),
        ("nobody dealt", []),
        ("the signature of a dealing is altered", altered("signature")),
        ("the root of a dealing is altered", altered("root")),
        ("the seed commitment of a dealing is altered", altered("seed_commitment")),
        ("a dealing is signed for another cohort", replaced(shares, at, {**entry, "signature": signature})),
        ("two dealers are swapped", swapped),
    ):
        yield name, {"shares": false}


def bad_shares() -> Iterator[tuple[str, Message]]:
    """What the liar sends to the victim and is at fault for itself: none of it ends the attempt."""
    base = base_round()
    shares = base.record.to_participants["MaskedInputCollection"]
    entry = next(one for one in shares[VICTIM]["shares"] if one["dealer"] == LIAR)
    text, path = entry["ciphertext"], entry["path"]
    liar, victim = base.participants[LIAR], base.participants[VICTIM]
    for_another = next(one for one in shares[0]["shares"] if one["dealer"] == LIAR)
    key, associated = liar.channel(LIAR, VICTIM)
    back_key, _ = victim.channel(VICTIM, LIAR)
    pair = victim.held[LIAR]
    assert pair is not None
    plaintext = b"".join(salt + part for salt, part in pair)
    context, _ = other_cohort()
    identities = [base.agreed.identity(who) for who in (LIAR, VICTIM)]

    def sealed(data: bytes, under: bytes = key, said: bytes = associated) -> Message:
        return {**entry, "ciphertext": gcm_seal(under, data, said)}

    assert sealed(plaintext) == entry
    yield "a bit of the ciphertext is changed", {**entry, "ciphertext": flip(text, 20)}
    yield "a bit of the tag is changed", {**entry, "ciphertext": flip(text, 111)}
    yield "the ciphertext is one byte too short", {**entry, "ciphertext": text[:-1]}
    yield "the ciphertext is one byte too long", {**entry, "ciphertext": text + b"\0"}
    yield "the ciphertext is empty", {**entry, "ciphertext": b""}
    yield "the ciphertext is for another receiver", {**entry, "ciphertext": for_another["ciphertext"]}
    yield "sealed with the key of the other direction", sealed(plaintext, under=back_key)
    yield (
        "sealed in the context of another cohort",
        sealed(plaintext, said=setting.sealed_share_associated_data(context, *identities)),
    )
    yield (
        "sealed with sender and receiver swapped",
        sealed(plaintext, said=setting.sealed_share_associated_data(liar.context, *identities[::-1])),
    )
    yield "sealed and shorter", sealed(plaintext[:-2])
    yield "a share that doesn't match its commitment", sealed(flip(plaintext, 20))
    yield "a salt that doesn't match its commitment", sealed(flip(plaintext, 50))
    yield "both kinds of share in each other's place", sealed(plaintext[48:] + plaintext[:48])
    yield "the path is another's", {**entry, "path": for_another["path"]}
    yield "the path is shorter", {**entry, "path": path[:-1]}
    yield "the path is longer", {**entry, "path": [*path, path[0]]}
    yield "the path has a node of 31 bytes", {**entry, "path": [path[0][:-1], *path[1:]]}

    outside = deepcopy(liar)
    crooked = [[0] * 32 for _ in outside.u1]
    crooked[VICTIM][31] = 65521
    dealing = deal_again(outside, crooked, entry["seed_commitment"])
    coordinator = Coordinator(base.agreed)
    coordinator.u1, coordinator.dealings = [*base.everybody], {LIAR: dealing}
    assert symbol_bytes([65521]) == b"\xf1\xff"
    yield "a symbol of 65521 that matches its commitment", coordinator._dealt(LIAR, VICTIM)


def low_order_mask_key() -> Case:
    """The liar's mask key is of low order: that shows when masks are made, in the cohort that lists it."""
    base = base_round()
    members = base.record.to_participants["ShareKeys"][VICTIM]["members"]
    keys = signed_advertisement(LIAR, LOW_ORDER[4], base.participants[LIAR].advertisement["channel_key"])
    cohort = {"members": replaced(members, LIAR, {"participant": LIAR, "advertisement": keys})}
    coordinator = Coordinator(base.agreed)
    coordinator.u1, coordinator.dealings = [*base.everybody], {}
    for who in base.everybody:
        dealer = Participant(base.agreed, identity_seeds(5)[who], fresh_stream(who))
        dealer.advertise()
        if who == LIAR:
            dealer.advertisement = keys
        coordinator.dealings[who] = dealer.share_keys(cohort)
    told = {"shares": [coordinator._dealt(who, VICTIM) for who in base.everybody if who != VICTIM]}
    instead = {"ShareKeys": cohort, "MaskedInputCollection": told}
    case: Case = {"name": "a neighbour's mask key is of low order", "participant": VICTIM, "instead": instead}
    return {**case, "refused": must_refuse(case, "MaskedInputCollection")}


def false_sets() -> Iterator[tuple[str, Message]]:
    everybody = [*base_round().everybody]

    def sets(u2: set[int], u3: set[int]) -> Message:
        return {"u2": bitmap(u2, everybody), "u3": bitmap(u3, everybody)}

    true2, true3 = {0, 1, 2, 3, 4}, {0, 1, 2, 4}
    yield "u3 holds one that is not in u2", sets({0, 1, 2, 4}, {0, 1, 2, 3, 4})
    yield "oneself is not in u3", sets(true2, {0, 2, 3, 4})
    yield "u2 is not the set that was masked with", sets({0, 1, 2, 4}, true3)
    yield "u2 is below the quorum", sets({0, 1, 2}, {0, 1, 2})
    yield "u3 is below min_survivors", sets(true2, {0, 1, 2})
    yield "a bitmap is too short", {**sets(true2, true3), "u3": b""}
    yield "a bitmap is too long", {**sets(true2, true3), "u2": b"\x1f\0"}
    yield "an unused bit is set", {**sets(true2, true3), "u3": b"\x37"}
    yield "the highest unused bit is set", {**sets(true2, true3), "u2": b"\x9f"}


def false_requests() -> Iterator[tuple[str, Message]]:
    base = base_round()
    entries = base.record.to_participants["Unmasking"][VICTIM]["signatures"]  # of 0, 1, 2, 4
    seeds, context = identity_seeds(5), base.coordinator.context
    identity = base.agreed.identity

    def by(who: int, statement: bytes = base.coordinator.statement) -> Message:
        return {"participant": who, "signature": ed25519_sign(seeds[who], statement)}

    assert by(0) == entries[0]
    everyone, u3 = [identity(who) for who in range(5)], [identity(who) for who in (0, 1, 2, 4)]
    other_u3 = setting.survivor_statement(context, everyone, everyone)
    other_u2 = setting.survivor_statement(context, u3, u3)
    elsewhere = setting.survivor_statement(other_cohort()[0], everyone, u3)
    swapped = [{**entries[0], "signature": entries[2]["signature"]}, entries[1]]
    swapped += [{**entries[2], "signature": entries[0]["signature"]}, entries[3]]
    altered = {**entries[2], "signature": flip(entries[2]["signature"], 63)}
    for name, false in (
        ("fewer signatures than needed", entries[:3]),
        ("no signatures", []),
        ("a signature is altered", replaced(entries, 2, altered)),
        ("two signers are swapped", swapped),
        ("signers are not ascending", [entries[1], entries[0], *entries[2:]]),
        ("a signer is repeated", [*entries[:3], entries[2]]),
        ("a signer is not in u3", [*entries[:3], by(3), entries[3]]),
        ("a signer is not on the roster", [*entries, {**entries[3], "participant": 5}]),
        ("a signature over another u3", replaced(entries, 2, by(LIAR, other_u3))),
        ("a signature over another u2", replaced(entries, 2, by(LIAR, other_u2))),
        ("a signature from another cohort", replaced(entries, 2, by(LIAR, elsewhere))),
    ):
        yield name, {"signatures": false}


# ---------------------------------------------------------------- what the coordinator refuses


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
        for name, sender, message in messages():
            # Everybody who stands before the sender in the roster has spoken in this phase; who repeats, too.
            spoken = base.record.to_coordinator[phase]
            before = [who for who in spoken if who < sender or (who == sender and "second" in name)]
            coordinator = at_phase(phase)
            for who in before:
                coordinator.receive(who, spoken[who])
            case: Case = {"name": name, "phase": phase, "before": before, "sender": sender, "message": message}
            try:
                coordinator.receive(sender, message)
            except Refused as refusal:
                cases.append({**case, "refused": refusal.stated()})
                continue
            raise AssertionError(f"the reference took: {name}")
    closings: list[Case] = []
    for phase in PHASES:
        senders = [*base.record.to_coordinator[phase]][:3]
        coordinator = at_phase(phase)
        for who in senders:
            coordinator.receive(who, base.record.to_coordinator[phase][who])
        try:
            coordinator.close()
        except Refused as refusal:
            closings.append({"phase": phase, "received": senders, "refused": refusal.stated()})
    assert len(closings) == 5
    return {"round": ROUND, "refused": cases, "too_few": closings}


def at_phase(phase: str) -> Coordinator:
    """The base round's coordinator at the beginning of a phase."""
    coordinator = Coordinator(base_round().agreed)
    for earlier in PHASES[: PHASES.index(phase)]:
        for who, message in base_round().record.to_coordinator[earlier].items():
            coordinator.receive(who, message)
        coordinator.close()
    return coordinator


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
        roles = (low, channel) if i % 2 else (mask, low)
        yield f"a key of low order ({'mask' if i % 2 else 'channel'}, {low.hex()[:8]}…{low.hex()[-4:]})", LIAR, (
            signed_advertisement(LIAR, *roles)
        )


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

    def signed(data: bytes, context: bytes = base.coordinator.context) -> Message:
        digest = sha256(data).digest()
        statement = setting.upload_statement(context, base.agreed.identity(LIAR), digest)
        return {"packed": data, "sha256": digest, "signature": ed25519_sign(identity_seeds(5)[LIAR], statement)}

    assert signed(packed) == good
    assert len(packed) == 14
    yield "not on the roster", 5, good
    yield "a second upload", LIAR, good
    yield "somebody else's upload", LIAR, uploads[4]
    yield "the signature is altered", LIAR, {**good, "signature": flip(good["signature"])}
    yield "signed for another cohort", LIAR, signed(packed, other_cohort()[0])
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
    seed = identity_seeds(5)[LIAR]
    true3 = [base.agreed.identity(who) for who in (0, 1, 2, 4)]
    for name, statement in (
        ("over another u3", setting.survivor_statement(base.coordinator.context, everyone, everyone)),
        ("over both sets exchanged", setting.survivor_statement(base.coordinator.context, true3, everyone)),
        ("in another cohort", setting.survivor_statement(other_cohort()[0], everyone, true3)),
    ):
        yield name, LIAR, {"signature": ed25519_sign(seed, statement)}
    statement = base.coordinator.statement
    yield "by one that is not in u3", 3, {"signature": ed25519_sign(identity_seeds(5)[3], statement)}
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
    yield "a share is changed", LIAR, entry(0, {"self_mask_seed": {**seed, "share": flip(seed["share"], 3)}})
    changed = {**mask_key, "share": flip(mask_key["share"])}
    yield "a share of the mask key is changed", LIAR, entry(3, {"mask_key": changed})
    yield "a salt is changed", LIAR, entry(0, {"self_mask_seed": {**seed, "salt": flip(seed["salt"])}})
    yield "a symbol of 65521", LIAR, entry(0, {"self_mask_seed": {**seed, "share": b"\xf1\xff" + seed["share"][2:]}})
    yield "a symbol of 65535 in a share of the mask key", LIAR, (
        entry(3, {"mask_key": {**mask_key, "share": mask_key["share"][:-2] + b"\xff\xff"}})
    )
    yield "a survivor's mask key", LIAR, entry(0, {"mask_key": revealed(0, 0)})
    yield "a dropout's self-mask seed", LIAR, entry(3, {"self_mask_seed": revealed(3, 1)})
    yield "a share of the other kind under the right name", LIAR, entry(0, {"self_mask_seed": revealed(0, 0)})
    yield "the right share under the other kind's name", LIAR, entry(0, {"mask_key": seed})
    yield "the shares of two dealers swapped", LIAR, {"shares": swapped}


# ---------------------------------------------------------------- malformed.json


def malformed_messages() -> Case:
    """Fields of a wrong length, refused before any rule of the protocol is asked."""
    base = base_round()
    said, heard = base.record.to_coordinator, base.record.to_participants
    advert, dealing, reply = said["AdvertiseKeys"][LIAR], said["ShareKeys"][LIAR], said["Unmasking"][LIAR]
    members, request = heard["ShareKeys"][VICTIM]["members"], heard["Unmasking"][VICTIM]["signatures"]
    longer = {name: value + b"\0" for name, value in advert.items()}
    cases: list[tuple[str, str, Message]] = []
    for name, value in advert.items():
        cases.append(("advertisement", f"{name} one byte too short", {**advert, name: value[:-1]}))
        cases.append(("advertisement", f"{name} one byte too long", {**advert, name: longer[name]}))
        cases.append(("advertisement", f"{name} empty", {**advert, name: b""}))
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
