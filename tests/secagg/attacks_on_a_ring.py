"""More of attacks_on_participants.py: what a coordinator can try only on a ring.

On the complete graph no sum of a few opens as long as all count the survivors: a mask ties every honest input to every
other. On a ring it is enough to empty two windows of half a degree: the members between them form a separate sum.
`CUT` of small_rings.py has the places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from secagg.context import RoundConfig
from secagg.messages import UnmaskingRequest
from tests.secagg.attacks_on_participants import ANOTHER_CHECK, attack, sign_and_unmask
from tests.support.attempts_in_memory import Cohort, Sets, make_config, start_cohort
from tests.support.naive_variants import Side
from tests.support.small_rings import CUT, CUT_COLLUDERS, CUT_DROPS, CUT_FAR, CUT_NEAR, CUT_VICTIM


def cut_config(min_survivors: int = 13) -> RoundConfig:
    """14 participants, of whom 4 collude: one may drop out, and the ring is safe; with two it can be cut."""
    return make_config(14, colluders=4, min_survivors=min_survivors, rings=CUT)


@dataclass(frozen=True)
class Places:
    """Who stands where, once the ring is known; the colluders stand where it hurts most."""

    cohort: Cohort
    drops: int
    near: frozenset[int]
    victim: int
    far: frozenset[int]

    @property
    def everybody(self) -> frozenset[int]:
        return frozenset(self.cohort.u1)

    @property
    def few(self) -> frozenset[int]:
        """5 honest inputs, where the plan promises 9."""
        return self.near | {self.victim}


def places(client: Side, min_survivors: int = 13) -> Places:
    config = cut_config(min_survivors)
    ring = start_cohort(config).graph.ring
    cohort = start_cohort(config, client=client, colluders=[ring[at] for at in CUT_COLLUDERS])
    assert cohort.graph.ring == ring
    near, far = (frozenset(ring[at] for at in part) for part in (CUT_NEAR, CUT_FAR))
    return Places(cohort, ring[CUT_DROPS], near, ring[CUT_VICTIM], far)


def uploads(ring: Places, who: Iterable[int], hidden: Iterable[int] = ()) -> None:
    """All of them mask in all of u1, but for the victim, to whom some are said to have missed u2."""
    for one in who:
        ring.cohort.mask(one, ring.everybody - frozenset(hidden) if one == ring.victim else ring.everybody)


def told_that_neighbours_missed_u2(client: Side) -> tuple[Places, Sets]:
    """The victim masks with the near side and colluders, and with nobody of the far side.

    u2 and the victim's neighbours in it are as many as it requires. It is not called a dropout: its neighbours are
    asked for its seed.
    """
    ring = places(client)
    ring.cohort.deal(ring.everybody)
    hidden = ring.far.intersection(ring.cohort.graph.neighbours(ring.victim))
    uploads(ring, ring.everybody - {ring.drops}, hidden)
    return ring, (ring.everybody, ring.everybody - {ring.drops})


@attack("{one} did not upload what was masked in this u2")
def a_victim_is_told_that_its_neighbours_missed_u2(client: Side) -> bool:
    """It will not sign, but the others are enough, and they reveal its seed. The sum of near side and victim opens."""
    ring, sets = told_that_neighbours_missed_u2(client)
    assert not ring.cohort.opens(ring.few)
    sign_and_unmask(ring.cohort, ring.near | ring.far, sets)
    assert not ring.cohort.opens(sets[1])
    return ring.cohort.opens(ring.few)


@attack("there must be one upload for each neighbour that isn't a signer")
def nobody_is_shown_what_the_victim_uploaded(client: Side) -> bool:
    ring, sets = told_that_neighbours_missed_u2(client)
    signers = ring.near | ring.far
    signatures = {one: ring.cohort.sign(one, sets) for one in signers}
    signatures |= {one: ring.cohort.forge(one, sets) for one in ring.cohort.colluders}
    for one in signers:
        request = UnmaskingRequest(tuple(sorted(signatures.items())))
        ring.cohort.phases[one], reply = ring.cohort.phases[one].receive(request)
        ring.cohort.note_reply(one, sets[0], reply)
    return ring.cohort.opens(ring.few)


@attack("u2 is not the set this participant masked in", ANOTHER_CHECK)
def the_victim_signs_what_all_sign(client: Side) -> bool:
    """Then nobody asks for its upload: it has signed. See `some_are_told_that_others_missed_u2`."""
    ring, sets = told_that_neighbours_missed_u2(client)
    sign_and_unmask(ring.cohort, ring.few | ring.far, sets)
    return ring.cohort.opens(ring.few)


def cut_by_two_drops(client: Side, min_survivors: int = 13) -> Places:
    """Both windows hold only colluders and alleged dropouts; the near side opens by itself."""
    ring = places(client, min_survivors)
    ring.cohort.deal(ring.everybody)
    uploads(ring, ring.everybody)
    sets = ring.everybody, ring.everybody - {ring.drops, ring.victim}
    sign_and_unmask(ring.cohort, ring.near | ring.far, sets)
    return ring
