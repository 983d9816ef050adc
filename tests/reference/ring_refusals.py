"""Test vectors of what is refused on a ring, and without signatures. They start from two rounds of ring_rounds.json.

A case states the whole message; the vector states the refusal by the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy

from tests.reference import setting
from tests.reference.graph import Graph
from tests.reference.lies import each_refused, listen, refused, replaced, signed_upload, too_few
from tests.reference.participant import bitmap
from tests.reference.primitive_vectors import Case, flip
from tests.reference.ring_vectors import RING, UNSIGNED, ring_round, unsigned_round
from tests.reference.round_vectors import Played, deal_again
from tests.reference.setting import Message

# Of the neighbours of 9 (1, 2, 3, 4, 5, 11) 3 sends no input, 2 doesn't sign, and 11 is a signer that isn't shown.
VICTIM = 9
LIAR = 1
STRANGER = 6  # in all sets, and no neighbour of the victim


def ring_refusals() -> Case:
    signed, unsigned = (RING, ring_round()), (UNSIGNED, unsigned_round())
    participants: list[Case] = []
    lies: tuple[tuple[tuple[str, Played], int, str, Callable[[], Iterable[tuple[str, Message]]]], ...] = (
        (signed, VICTIM, "ShareKeys", false_cohorts),
        (signed, VICTIM, "MaskedInputCollection", false_dealings),
        (signed, VICTIM, "ConsistencyCheck", false_sets),
        (signed, VICTIM, "Unmasking", false_requests),
        (unsigned, 0, "Unmasking", false_unsigned_requests),
    )
    for (round_, base), who, phase, messages in lies:
        for name, message in messages():
            case: Case = {"round": round_, "name": name, "participant": who, "instead": {phase: message}}
            participants.append(refused(base, case, phase))
    name, other_sets = "a second, different request", unsigned_sets(range(5), range(4))
    for (round_, base), who, again in ((signed, VICTIM, others_shown()), (unsigned, 0, other_sets)):
        case = {"round": round_, "name": name, "participant": who, "instead": {}, "then": again}
        participants.append(refused(base, case, "Unmasking"))

    goes_on: list[Case] = []
    for name, instead, costs in taken():
        case = {"round": RING, "name": name, "participant": VICTIM, "instead": instead}
        upload, reply = listen(ring_round(), case)
        said = ring_round().record.to_coordinator
        assert upload == said["MaskedInputCollection"][VICTIM], name
        place = ring_round().coordinator.graph.dealers(VICTIM).index(LIAR)
        expected = said["Unmasking"][VICTIM]["shares"]
        assert reply["shares"] == (replaced(expected, place, {"none": {}}) if costs else expected), name
        exchanged: Case = {"instead": instead}
        if costs:
            shares = instead["MaskedInputCollection"]["shares"]
            exchanged = {"dealt": next(one for one in shares if one["dealer"] == LIAR), "no_share_of": LIAR}
        goes_on.append({"round": RING, "name": name, "participant": VICTIM, **exchanged})

    coordinator: list[Case] = []
    for phase, sender_messages in (
        ("ShareKeys", false_dealings_to_all()),
        ("MaskedInputCollection", false_uploads()),
        ("Unmasking", false_replies()),
    ):
        coordinator += each_refused(ring_round(), phase, sender_messages, round=RING)
    closings = [
        too_few(ring_round(), {"round": RING, "phase": phase, "received": received})
        for phase, received in (
            ("ShareKeys", [1, 2, 3, 4, 5, 6, 7]),
            # As many as the quorum, but of the neighbours of some only three.
            ("ShareKeys", [1, 2, 3, 5, 6, 9, 10, 11]),
            ("MaskedInputCollection", [1, 2, 4, 5, 6, 7, 9]),
            ("ConsistencyCheck", [1, 4, 5, 6, 7, 9]),
            # Seven replies, as many as signatures; but of the neighbours of some only three are among them.
            ("Unmasking", [4, 5, 6, 7, 9, 10, 11]),
            ("Unmasking", [1, 4, 5]),
        )
    ]
    return {"participants": participants, "goes_on": goes_on, "coordinator": coordinator, "too_few": closings}


def told(phase: str, who: int = VICTIM) -> Message:
    return ring_round().record.to_participants[phase][who]


def without(*who: int) -> list[int]:
    return [one for one in ring_round().coordinator.u1 if one not in who]


def bits(members: Iterable[int]) -> bytes:
    return bitmap(set(members), ring_round().coordinator.u1)


def signed_as_in(who: int, u2: Iterable[int], context: bytes | None = None) -> Message:
    """What a participant would have signed with its upload, had it been shown this u2."""
    packed = ring_round().record.to_coordinator["MaskedInputCollection"][who]["packed"]
    upload = signed_upload(ring_round(), who, packed, u2, context)
    return {name: upload[name] for name in ("sha256", "signature")}


# ---------------------------------------------------------------- to a participant


def false_cohorts() -> Iterator[tuple[str, Message]]:
    members = told("ShareKeys")["members"]
    keys = ring_round().record.to_coordinator["AdvertiseKeys"]

    def of(who: int, entry: Message) -> Message:
        at = [one["participant"] for one in members].index(who)
        return {"members": replaced(members, at, {"participant": who, **entry})}

    def digest(who: int) -> Message:
        return {"advertisement_sha256": setting.advertisement_digest(**keys[who])}

    altered = {**keys[LIAR], "signature": flip(keys[LIAR]["signature"], 40)}
    yield "a neighbour's keys come as a digest only", of(LIAR, digest(LIAR))
    yield "a neighbour's signature is altered", of(LIAR, {"advertisement": altered})
    yield "one's own keys come as a digest only", of(VICTIM, digest(VICTIM))


def false_dealings() -> Iterator[tuple[str, Message]]:
    base = ring_round()
    dealt = told("MaskedInputCollection")
    shares, u2 = dealt["shares"], without(8)
    at = [one["dealer"] for one in shares].index(LIAR)
    stranger = {**shares[at], "dealer": STRANGER}
    assert bits(u2) == dealt["u2"]
    assert VICTIM not in base.coordinator.graph.neighbours(STRANGER)
    few, ring = [one for one in shares if one["dealer"] not in (3, 4, 5)], base.coordinator.graph.ring
    for name, members, entries in (
        ("the dealing of a neighbour in u2 is missing", u2, [one for one in shares if one["dealer"] != 3]),
        ("the dealing of a neighbour that is not in u2", without(3, 8), shares),
        ("a dealing of one that is no neighbour", u2, sorted([*shares, stranger], key=lambda one: one["dealer"])),
        ("dealers in the order of the ring", u2, sorted(shares, key=lambda one: ring.index(one["dealer"]))),
        ("oneself is not in u2", without(VICTIM), shares),
        ("u2 is below the quorum, with all neighbours in it", without(6, 7, 8, 10), shares),
        ("three of six neighbours in u2, four needed", without(3, 4, 5), few),
    ):
        yield name, {"shares": entries, "u2": bits(members)}
    yield "an unused bit of u2 is set", {**dealt, "u2": dealt["u2"][:1] + bytes([dealt["u2"][1] | 0x08])}


def false_sets() -> Iterator[tuple[str, Message]]:
    for name, u2, u3 in (
        ("u2 has one more that is no neighbour", without(), without(3, 8)),
        ("u2 has one less that is no neighbour", without(6, 8), without(3, 6, 8)),
        ("u2 has one less that is a neighbour", without(3, 8), without(3, 8)),
        ("u3 holds one that is not in u2", without(8), without(3)),
        ("oneself is not in u3", without(8), without(3, 8, VICTIM)),
        ("u3 is below min_survivors", without(8), without(3, 6, 7, 8)),
    ):
        yield name, {"u2": bits(u2), "u3": bits(u3)}


def others_shown() -> Message:
    """The lowest seven signatures, without that of 11, whose upload is shown instead: another request that would do."""
    said = ring_round().record.to_coordinator["ConsistencyCheck"]
    signatures = [{"participant": who, **one} for who, one in said.items() if who != 11]
    return {"signatures": signatures, "uploads": [signed_as_in(who, without(8)) for who in (2, 11)]}


def false_requests() -> Iterator[tuple[str, Message]]:
    base = ring_round()
    request, asked, u2 = others_shown(), told("Unmasking"), without(8)
    signatures, (of_2, of_11) = request["signatures"], request["uploads"]
    assert asked["uploads"] == [of_2]
    assert [entry["participant"] for entry in asked["signatures"]][-1] == 11
    assert [entry["participant"] for entry in signatures] == [1, 4, 5, 6, 7, 9, 10]
    other_context = flip(base.coordinator.context)
    of_shown = signed_as_in(LIAR, u2)
    by_3 = {"participant": 3, "signature": base.participants[3].sign(base.coordinator.statement)}
    for name, uploads in (
        ("no uploads", []),
        ("the last upload is missing", [of_2]),
        ("the first upload is missing", [of_11]),
        ("uploads in the order of the ring", [of_11, of_2]),
        ("an upload twice", [of_2, of_2]),
        ("an upload too many", [of_2, of_11, of_11]),
        ("the upload of a signer as well", [of_shown, of_2, of_11]),
        ("the upload of a signer instead", [of_shown, of_11]),
        ("an upload of one that is no neighbour", [of_2, signed_as_in(10, u2)]),
        ("an upload masked in a u2 with one more", [signed_as_in(2, without()), of_11]),
        ("an upload masked in a u2 with one less", [of_2, signed_as_in(11, without(6, 8))]),
        ("an upload of another cohort", [of_2, signed_as_in(11, u2, other_context)]),
        ("the digest of an upload is altered", [{**of_2, "sha256": flip(of_2["sha256"])}, of_11]),
        ("the signature of an upload is altered", [of_2, {**of_11, "signature": flip(of_11["signature"], 40)}]),
    ):
        yield name, {"signatures": signatures, "uploads": uploads}
    shown_instead = {"signatures": signatures[1:], "uploads": [of_shown, of_2, of_11]}
    yield "fewer signatures than needed, and an upload in the place of one", shown_instead
    yield "fewer signatures than needed", {"signatures": signatures[:-1], "uploads": request["uploads"]}
    yield "a signer that is not in u3", {**request, "signatures": [signatures[0], by_3, *signatures[1:]]}
    yield "the upload of a signer that is a neighbour as well", {**asked, "uploads": request["uploads"]}
    yield "the survivor sets alone", told("ConsistencyCheck")


def unsigned_sets(u2: Iterable[int], u3: Iterable[int]) -> Message:
    """Of the round without signatures."""
    u1 = unsigned_round().coordinator.u1
    return {"u2": bitmap(set(u2), u1), "u3": bitmap(set(u3), u1)}


def false_unsigned_requests() -> Iterator[tuple[str, Message]]:
    true = unsigned_round().record.to_participants["Unmasking"][0]
    assert true == unsigned_sets(range(5), range(5))
    yield "u2 is not the set that was masked in", unsigned_sets(range(4), range(4))
    yield "u2 is without one of u3", unsigned_sets(range(4), range(5))
    yield "oneself is not in u3", unsigned_sets(range(5), range(1, 5))
    yield "u3 is below min_survivors", unsigned_sets(range(5), range(3))
    yield "a bitmap is too long", {**true, "u3": true["u3"] + b"\0"}
    yield "signatures that nobody asked for", {"signatures": [], "uploads": []}


def taken() -> Iterator[tuple[str, Message, bool]]:
    """With whether it costs the liar its share; all else is as in the round."""
    base = ring_round()
    members = told("ShareKeys")["members"]
    keys = base.record.to_coordinator["AdvertiseKeys"]
    in_full = [{"participant": one["participant"], "advertisement": keys[one["participant"]]} for one in members]
    yield "the keys of those who are no neighbours come in full", {"ShareKeys": {"members": in_full}}, False
    yield "the signature of a neighbour isn't shown, and its upload is", {"Unmasking": others_shown()}, False

    dealt = told("MaskedInputCollection")
    at = [one["dealer"] for one in dealt["shares"]].index(LIAR)

    def instead(entry: Message) -> Message:
        return {"MaskedInputCollection": {**dealt, "shares": replaced(dealt["shares"], at, entry)}}

    entry, graph = dealt["shares"][at], base.coordinator.graph
    for_5 = base.coordinator._dealt(LIAR, 5)
    yield "the path of another holder", instead({**entry, "path": for_5["path"]}), True
    yield "a bit of the ciphertext is changed", instead({**entry, "ciphertext": flip(entry["ciphertext"], 20)}), True
    for name, point in (
        ("a share committed to at the holder's place", lambda holder: graph.place(LIAR, holder) + 1),
        ("a share committed to at the holder's position on the ring", lambda holder: graph.ring.index(holder) + 1),
    ):
        crooked, coordinator = deepcopy(base.participants[LIAR]), deepcopy(base.coordinator)
        crooked.graph.x = point  # type: ignore[method-assign]
        assert point(VICTIM) != graph.x(VICTIM)
        coordinator.dealings[LIAR] = deal_again(crooked, [[7] * 32] * 6, entry["seed_commitment"])
        yield name, instead(coordinator._dealt(LIAR, VICTIM)), True


# ---------------------------------------------------------------- to the coordinator


def false_dealings_to_all() -> Iterator[tuple[str, int, Message]]:
    base = ring_round()
    good = base.record.to_coordinator["ShareKeys"][LIAR]
    everyone = deepcopy(base.participants[LIAR])
    everyone.graph = Graph(everyone.u1, len(everyone.u1) - 1, everyone.context)
    everyone.agreements = dict.fromkeys(everyone.u1, bytes(32))  # nobody opens these
    everyone.keys = base.record.to_coordinator["AdvertiseKeys"]
    dealing = deal_again(everyone, [[7] * 32] * len(everyone.u1), good["seed_commitment"])
    yield "shares for all of u1", LIAR, dealing
    with_own = deepcopy(base.participants[LIAR])
    holders = sorted([LIAR, *with_own.graph.neighbours(LIAR)])
    with_own.graph.holders = lambda _: holders  # type: ignore[method-assign]
    dealing = deal_again(with_own, [[7] * 32] * len(holders), good["seed_commitment"])
    yield "a commitment to a share of one's own", LIAR, dealing
    yield "a ciphertext is missing", LIAR, {**good, "ciphertexts": good["ciphertexts"][:-1]}


def false_uploads() -> Iterator[tuple[str, int, Message]]:
    uploads = ring_round().record.to_coordinator["MaskedInputCollection"]
    packed = uploads[LIAR]["packed"]
    assert {"packed": packed, **signed_as_in(LIAR, without(8))} == uploads[LIAR]
    for name, u2 in (
        ("masked in a u2 with one more", without()),
        ("masked in a u2 with one less that is a neighbour", without(3, 8)),
        ("masked in a u2 with one less that is no neighbour", without(4, 8)),
    ):
        yield name, LIAR, {"packed": packed, **signed_as_in(LIAR, u2)}


def false_replies() -> Iterator[tuple[str, int, Message]]:
    base = ring_round()
    graph = base.coordinator.graph
    none: Message = {"none": {}}

    def entries_of(who: int) -> dict[int, Message]:
        """By dealer; 8, a neighbour of 7, has dealt nothing."""
        shares = base.record.to_coordinator["Unmasking"][who]["shares"]
        return dict(zip([one for one in graph.neighbours(who) if one != 8], shares, strict=True))

    of_7, of_9 = entries_of(7), entries_of(9)
    for name, who, entries in (
        ("an entry for each of u2", 7, [of_7.get(one, none) for one in without(8)]),
        ("an entry for each neighbour in u1", 7, [of_7.get(one, none) for one in graph.neighbours(7)]),
        ("an entry for oneself", 7, [of_7.get(one, none) for one in sorted([7, *of_7])]),
        ("an entry is missing", 7, [*of_7.values()][:-1]),
        ("entries in the order of the ring", 9, [of_9[one] for one in graph.ring if one in of_9]),
    ):
        assert entries not in ([*of_7.values()], [*of_9.values()])
        yield name, who, {"shares": entries}
    dropped = base.record.to_coordinator["Unmasking"][LIAR]["shares"]
    place = [one for one in graph.neighbours(LIAR) if one != 8].index(3)
    pair = base.participants[LIAR].held[3]
    assert pair is not None
    (_, _), (salt, part) = pair
    assert "mask_key" in dropped[place]
    seed = {"self_mask_seed": {"share": part, "salt": salt}}
    yield "the self-mask seed of one that sent no input", LIAR, {"shares": replaced(dropped, place, seed)}
