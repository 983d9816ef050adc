"""Test vectors of the k-regular graph, and whole attempts on rings and without signatures."""

from __future__ import annotations

from functools import cache

from tests.reference.graph import Graph
from tests.reference.primitive_vectors import Case, numbers_json
from tests.reference.round_vectors import CommitsToAnotherSeed, Crook, Played, SharesAnotherMaskKey, spoil_ciphertext
from tests.reference.rounds import setting_of
from tests.reference.setting import Numbers
from tests.reference.sharing import P, listed_bytes


def graph_vectors() -> Case:
    rings = []
    for count, degree in ((4, 2), (5, 2), (7, 4), (9, 6), (12, 10), (65, 14), (300, 34), (300, 298)):
        # Positions in the roster have gaps, as where some haven't advertised.
        u1 = [3 * i // 2 + 1 for i in range(count)]
        context = listed_bytes(f"ring of {count}, degree {degree}", 32)
        graph = Graph(u1, degree, context)
        members = []
        for who in sorted({u1[0], u1[count // 2], u1[-1]})[: 3 if degree < 100 else 1]:
            places = [graph.place(dealer, who) for dealer in graph.dealers(who)]
            members.append({"member": who, "neighbours": graph.neighbours(who), "x": graph.x(who), "places": places})
        given = {"cohort_context": context, "u1": u1, "degree": degree}
        rings.append({**given, "ring": graph.ring, "members": members})
    return {
        "rings": rings,
        "sharing": [sharing_case(*values, one) for *values, adversaries in SHARING for one in adversaries],
    }


ANY = ("malicious", "semi-malicious", "curious")
MALICIOUS, SEMI, CURIOUS = ((one,) for one in ANY)
# cohort, colluders, min_survivors, |u1|, adversaries
SHARING = (
    (63, 3, 50, 63, MALICIOUS),  # too few for a ring
    *((64, 3, 50, u1, MALICIOUS) for u1 in (64, 63, 50)),
    *((64, colluders, 60, 64, MALICIOUS) for colluders in (0, 2)),  # A counts as 2
    (65, 40, 60, 65, MALICIOUS),
    (70, 0, 70, 70, CURIOUS),  # nobody leaves
    (100, 5, 56, 100, MALICIOUS),
    (100, 5, 70, 100, ANY),
    (100, 5, 70, 80, MALICIOUS),  # fewer leave, since fewer came
    (100, 20, 70, 100, CURIOUS),
    (100, 33, 70, 100, (*MALICIOUS, *CURIOUS)),  # the first: the complete graph
    (101, 0, 90, 101, CURIOUS),
    (128, 6, 100, 128, SEMI),
    (200, 60, 140, 200, (*MALICIOUS, *SEMI)),
    (300, 15, 270, 300, MALICIOUS),
    *((n, colluders, least, n, ANY) for n, colluders, least in ((300, 60, 210), (500, 25, 450), (1000, 50, 900))),
)


def sharing_case(cohort: int, colluders: int, min_survivors: int, u1: int, adversary: str) -> Case:
    """Degree and threshold by the rule; quorum, bits and dim don't matter."""
    numbers = Numbers(cohort, colluders, min_survivors, min_survivors, 20, 1, "harary", adversary)
    degree, threshold = numbers.sharing(u1)
    return {**numbers_json(numbers), "u1": u1, "degree": degree, "threshold": threshold}


class MissesOneShare(Crook):
    """Commits to a share of the seed that isn't on its polynomial: that of its first holder."""

    def crooked(self) -> list[list[int]]:
        shares = self.shared([*self.mask_secret, *self.seed_secret])
        shares[0][20] = (shares[0][20] + 1) % P
        return shares


@cache
def ring_round() -> Played:
    """The round that refusals on a ring start from: eleven on a ring, of whom one leaves in each of three phases."""
    # In this attempt the ring, which follows from all that is agreed, has the neighbours that ring_refusals needs.
    agreed = setting_of(12, bits=20, dim=5, sharing=(6, 4), attempt=4143)
    leaving = {"AdvertiseKeys": {0}, "ShareKeys": {8}, "MaskedInputCollection": {3}, "ConsistencyCheck": {2}}
    return Played(agreed, leaving)


@cache
def unsigned_round() -> Played:
    """The round that refusals without signatures start from, on the complete graph."""
    return Played(setting_of(5, bits=12, dim=4, adversary="semi-malicious"), {"Unmasking": {2}})


RING = "eleven on a ring"
UNSIGNED = "five, nobody signs"


def hybrid_rounds() -> Case:
    five = setting_of(5, bits=12, dim=4, key_agreement="x25519-mlkem768")
    six = setting_of(6, bits=12, dim=4, sharing=(4, 2), key_agreement="x25519-mlkem768")
    rounds = [
        Played(five, {"MaskedInputCollection": {1}}).vector(
            "five with hybrid keys",
            "1 sends no input: of its pairs it has sent the seed to some, and was sent it by others.",
            downs_too=True,
        ),
        Played(six, {"MaskedInputCollection": {3}}).vector(
            "six on a ring with hybrid keys", "3 sends no input. Four neighbours, two shares rebuild a secret."
        ),
        Played(five, {"MaskedInputCollection": {3}}, crooks={3: SharesAnotherMaskKey}).vector(
            "five with hybrid keys, a mask key that was not advertised",
            "3 deals shares of another secret than its keys are made from, and leaves: the attempt names it.",
            ends=True,
        ),
    ]
    return {"rounds": rounds}


def ring_rounds() -> Case:
    ten = setting_of(10, bits=16, dim=5, quorum=8, sharing=(4, 2), adversary="curious")
    leaving = {"AdvertiseKeys": {3}, "ShareKeys": {5}, "MaskedInputCollection": {8}, "Unmasking": {1}}
    six = setting_of(6, bits=12, dim=4, sharing=(4, 2))
    crooks = {3: MissesOneShare, 4: CommitsToAnotherSeed, 5: SharesAnotherMaskKey}
    rounds = [
        ring_round().vector(
            RING,
            "Each has six neighbours, four shares rebuild a secret. Of twelve 0 never advertises, 8 advertises and "
            "doesn't deal, 3 deals and sends no input, 2 sends its input and doesn't sign. Seven signatures are shown "
            "of eight, those of neighbours before others; whoever stands next to 2 is shown what 2 signed with its "
            "upload.",
            downs_too=True,
        ),
        unsigned_round().vector(
            UNSIGNED,
            "The complete graph for a coordinator that is honest while keys are exchanged: the survivor sets ask for "
            "the shares, and there is no ConsistencyCheck. 2 reveals nothing.",
            downs_too=True,
        ),
        Played(ten, leaving).vector(
            "nine on a ring, nobody signs",
            "The coordinator is curious at most. Four neighbours, two shares rebuild a secret. 3 never advertises, 5 "
            "doesn't deal, 8 sends no input, 1 reveals nothing.",
            ends=True,  # on the ring that follows from all that is agreed one member has a single share
        ),
        Played(six, crooks={3: MissesOneShare}).vector(
            "six on a ring, one share that doesn't fit",
            "Of four shares of the seed of 3 the first is not on the polynomial of the others, though 3 committed to "
            "it: the sum is opened with the other three, and the attempt names 3.",
        ),
        Played(six, {"MaskedInputCollection": {5}}, crooks=crooks).vector(
            "six on a ring, three dealers cheat",
            "4 committed to another seed, 5 didn't advertise the mask key that it shared, and of the shares of 3 one "
            "doesn't fit: the attempt ends, and names all three.",
            ends=True,
        ),
        Played(six, change={("ShareKeys", 2): spoil_ciphertext(0, 2, 3)}).vector(
            "six on a ring, rubbish for three of four",
            "2 seals rubbish for all neighbours but its second, which has the only share of its seed. Three have none, "
            "and two may collude: the attempt ends, and names 2.",
            ends=True,
        ),
        Played(six, {"Unmasking": {5}}, change={("ShareKeys", 2): spoil_ciphertext(1, 2)}).vector(
            "six on a ring, rubbish for two of four",
            "2 seals rubbish for two of its neighbours, and 5, a third one, reveals nothing: one share is too few, and "
            "two that have none may be lying.",
            ends=True,
        ),
    ]
    return {"rounds": rounds}
