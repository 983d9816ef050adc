"""More of attacks_on_participants.py: to make a participant take a charge back."""

from __future__ import annotations

from collections.abc import Mapping

from secagg.messages import UnmaskingRequest
from tests.secagg.attacks_on_participants import ALL, COLLUDERS, HONEST, attack, brought_to
from tests.support.attempts_in_memory import Cohort, Sets
from tests.support.naive_variants import Side


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
