"""Test vectors of what a participant refuses, and of what costs a dealer a share. They start from the round "five".

A case states the whole message; the vector states the refusal by the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

from tests.reference import setting
from tests.reference.aes import gcm_seal
from tests.reference.curves import ed25519_sign
from tests.reference.lies import (
    LIAR,
    ROUND,
    VICTIM,
    fresh_stream,
    listen,
    other_cohort,
    refused,
    replaced,
    signed_advertisement,
)
from tests.reference.participant import Participant, bitmap
from tests.reference.primitive_vectors import LOW_ORDER, Case, flip, setting_json
from tests.reference.round_vectors import base_round, deal_again
from tests.reference.rounds import identity_seeds, setting_of
from tests.reference.setting import Message, Refused
from tests.reference.sharing import Stream, listed_bytes, symbol_bytes


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
            cases.append(refused(base_round(), case, phase))
    cases.append(low_order_mask_key())
    request = base_round().record.to_participants["Unmasking"][VICTIM]
    again = {**request, "signatures": request["signatures"][::-1]}
    case = {"name": "a second, different request", "participant": VICTIM, "instead": {}, "then": again}
    cases.append(refused(base_round(), case, "Unmasking"))

    goes_on: list[Case] = []
    dealt = base_round().record.to_participants["MaskedInputCollection"][VICTIM]
    shares = dealt["shares"]
    position = [one["dealer"] for one in shares].index(LIAR)
    for name, entry in bad_shares():
        told = {"MaskedInputCollection": {**dealt, "shares": replaced(shares, position, entry)}}
        upload, reply = listen(base_round(), {"name": name, "participant": VICTIM, "instead": told})
        assert upload == base_round().record.to_coordinator["MaskedInputCollection"][VICTIM]
        without = [dealer for dealer, one in enumerate(reply["shares"]) if "none" in one]
        assert without == [LIAR], name
        goes_on.append({"name": name, "participant": VICTIM, "dealt": entry, "no_share_of": LIAR})
    _, reply = listen(base_round(), {"name": "", "participant": VICTIM, "instead": {}, "then": request})
    assert reply == base_round().record.to_coordinator["Unmasking"][VICTIM]
    return {"round": ROUND, "settings": false_settings(), "refused": cases, "goes_on": goes_on}


def false_settings() -> list[Case]:
    """Attempts that a participant doesn't begin."""
    base = base_round()
    larger = setting_of(6, bits=12, dim=9)
    cases = []
    for name, agreed, seed in (
        ("not on the roster", base.agreed, listed_bytes("a stranger", 32)),
        ("the cohort is not the whole roster", replace(larger, numbers=base.agreed.numbers), identity_seeds(6)[0]),
    ):
        try:
            Participant(agreed, seed, Stream(b""))
        except Refused as refusal:
            stated = {"identity_private": seed, "setting": setting_json(agreed), "refused": refusal.stated()}
            cases.append({"name": name, **stated})
    assert len(cases) == 2
    return cases


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

    sealed = flip(entry["ciphertext"])

    def altered(name: str, **others: bytes) -> list[Message]:
        return replaced(shares, at, {**entry, name: flip(entry[name]), **others})

    u2 = base.record.to_participants["MaskedInputCollection"][VICTIM]["u2"]
    for name, false in (
        ("dealers are not ascending", [shares[1], shares[0], *shares[2:]]),
        ("a dealer is repeated", [shares[0], *shares]),
        ("oneself is among the dealers", [shares[0], {**own, "dealer": VICTIM}, *shares[1:]]),
        ("a dealer is no member of u1", [*shares, {**shares[3], "dealer": 5}]),
        ("the dealing of a member of u2 is missing", shares[:-1]),
        ("all dealings are missing", []),
        ("the root of a dealing is altered", altered("root")),
        ("what doesn't open has an altered signature", altered("signature", ciphertext=sealed)),
        ("what doesn't open has an altered seed commitment", altered("seed_commitment", ciphertext=sealed)),
        (
            "what doesn't open is signed for another cohort",
            replaced(shares, at, {**entry, "signature": signature, "ciphertext": sealed}),
        ),
        ("two dealers are swapped", swapped),
    ):
        yield name, {"shares": false, "u2": u2}
    for name, members, false in (
        ("u2 is below the quorum", {0, 1, 2}, shares[:2]),
        ("nobody is in u2", set[int](), []),
        ("oneself is not in u2", {0, 2, 3, 4}, shares),
        ("a dealer is not in u2", {0, 1, 2, 4}, shares),
    ):
        yield name, {"shares": false, "u2": bitmap(members, [*base.everybody])}
    yield "u2 is one byte too long", {"shares": shares, "u2": u2 + b"\0"}
    yield "u2 is empty", {"shares": shares, "u2": b""}
    yield "an unused bit of u2 is set", {"shares": shares, "u2": b"\x3f"}


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
    elsewhere = setting.sealed_share_associated_data(context, *identities)
    swapped = setting.sealed_share_associated_data(liar.context, *identities[::-1])
    yield "sealed in the context of another cohort", sealed(plaintext, said=elsewhere)
    yield "sealed with sender and receiver swapped", sealed(plaintext, said=swapped)
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
    coordinator = deepcopy(base.coordinator)
    coordinator.dealings[LIAR] = dealing
    assert symbol_bytes([65521]) == b"\xf1\xff"
    yield "a symbol of 65521 that matches its commitment", coordinator._dealt(LIAR, VICTIM)


def low_order_mask_key() -> Case:
    """The liar's mask key is of low order: that shows when masks are made, in the cohort that lists it."""
    base = base_round()
    members = base.record.to_participants["ShareKeys"][VICTIM]["members"]
    keys = signed_advertisement(LIAR, LOW_ORDER[4], base.participants[LIAR].advertisement["channel_key"])
    cohort = {"members": replaced(members, LIAR, {"participant": LIAR, "advertisement": keys})}
    coordinator = deepcopy(base.coordinator)
    for who in base.everybody:
        dealer = Participant(base.agreed, identity_seeds(5)[who], fresh_stream(who))
        dealer.advertise()
        if who == LIAR:
            dealer.advertisement = keys
        coordinator.dealings[who] = dealer.share_keys(cohort)
    instead = {"ShareKeys": cohort, "MaskedInputCollection": coordinator.dealt_to(VICTIM)}
    case: Case = {"name": "a neighbour's mask key is of low order", "participant": VICTIM, "instead": instead}
    return refused(base, case, "MaskedInputCollection")


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
    request = base.record.to_participants["Unmasking"][VICTIM]
    entries = request["signatures"]  # of 0, 1, 2, 4
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
        yield name, {**request, "signatures": false}
    upload = base.record.to_coordinator["MaskedInputCollection"][0]
    shown = {name: upload[name] for name in ("sha256", "signature")}
    yield "uploads, which the complete graph has no use for", {**request, "uploads": [shown]}
