"""More of attacks_on_participants.py: without signatures, and to make a participant take a charge back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from secagg.messages import MASK_KEY, UnmaskingRequest
from secagg.sharing import CURIOUS, SEMI_MALICIOUS
from tests.secagg.attacks_on_participants import ALL, COLLUDERS, HONEST, attack, brought_to
from tests.support.attempts_in_memory import Cohort, Sets, make_config, start_cohort
from tests.support.naive_variants import Side

# ---------------------------------------------------------------- UnsignedUnmasking: the same checks of u2 and u3


def unsigned(client: Side, adversary: str = SEMI_MALICIOUS) -> Cohort:
    """A plan with ten survivors and without signatures."""
    config = make_config(12, min_survivors=10, quorum=10, adversary=adversary)
    return brought_to("ConsistencyCheck", client, config)


def ask_unsigned(cohort: Cohort, honest: Iterable[int], sets: Sets) -> None:
    for one in honest:
        cohort.phases[one], reply = cohort.phases[one].receive(cohort.survivor_sets(sets))
        cohort.note_reply(one, sets[0], reply)


@attack("u3 has {len(u3)}")
def u3_below_min_survivors_and_nobody_signs(client: Side) -> bool:
    few = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
    cohort = unsigned(client)
    ask_unsigned(cohort, few - COLLUDERS, (ALL, few))
    return cohort.opens(few)


@attack("this participant's upload was left out of u3")
def a_participant_answers_for_a_sum_without_its_own_input(client: Side) -> bool:
    cohort = unsigned(client, CURIOUS)
    ask_unsigned(cohort, [0], (ALL, ALL - {0}))
    return (0, MASK_KEY) in cohort.shares


@attack("u2 is not the set this participant masked in")
def u2_shrinks_afterwards_and_nobody_signs(client: Side) -> bool:
    cohort = unsigned(client)
    return bool(cohort.phases[0].receive(cohort.survivor_sets((ALL - {5}, ALL - {5}))))


@attack("u3 is not a subset of u2")
def u3_beyond_u2_and_nobody_signs(client: Side) -> bool:
    cohort = start_cohort(make_config(12, adversary=SEMI_MALICIOUS), client=client, colluders=COLLUDERS)
    cohort.deal(ALL - {9})
    for one in ALL - {9}:
        cohort.mask(one, ALL - {9})
    ask_unsigned(cohort, [0], (ALL - {9}, ALL))
    return bool(cohort.shares)


# ---------------------------------------------------------------- what takes a charge back


def takes_back(client: Side, cohort: Cohort, who: int, sets: Sets, signatures: Mapping[int, bytes]) -> bool:
    """Whether this participant believes that no sum of the attempt holds its input."""
    request = UnmaskingRequest(tuple(sorted(signatures.items())))
    client.excluding_survivors(cohort.phases[who]._cohort, cohort.survivor_sets(sets), request)
    return True


@attack("u3 was said to be without this participant")
def told_that_its_own_sum_was_without_it(client: Side) -> bool:
    """The sum holds its input, and its budget would be as if it had never taken part."""
    cohort = brought_to("ConsistencyCheck", client)
    return takes_back(client, cohort, 0, (ALL, ALL), {one: cohort.sign(one, (ALL, ALL)) for one in HONEST - {0}})


@attack("signatures over the survivors")
def told_by_colluders_alone_that_it_was_left_out(client: Side) -> bool:
    cohort = brought_to("ConsistencyCheck", client)
    sets = ALL, ALL - {0}
    return takes_back(client, cohort, 0, sets, {one: cohort.forge(one, sets) for one in COLLUDERS})
