"""Members and leavers of a round: public draws from the simulation's seed, always the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from learning.public_random import PublicRandom
from mechanisms.statement import epoch_rounds
from sordino.lab.simulation.settings import EXACT, SimulationSettings

Participants = NDArray[np.int64]


def cohort_of(settings: SimulationSettings, round_: int) -> Participants:
    """Return the participants invited to a round (from 1), in all of its attempts, ascending.

    Without sampling all. With a lottery, or a fixed size, the cohort's number without replacement: those with the
    smallest of independent values, as in `secagg.lottery`; with epochs those with the next ones in turn. With Poisson
    sampling each with probability cohort / participants, independently; if that draws more than the cohort's number,
    which a sum can't hold, the excess is left out at random: a little below the law that the published figure assumes.
    """
    everybody, size = settings.participants, settings.cohort
    if settings.study.privacy.sampling == "none" or size >= everybody:
        return np.arange(everybody, dtype=np.int64)
    rounds = epoch_rounds(settings.study.privacy.sampling, size, everybody)
    draw, place = PublicRandom(b"simulated cohort", settings.seed, 1 + (round_ - 1) // rounds), (round_ - 1) % rounds
    if settings.study.privacy.sampling == "poisson":
        drawn = np.flatnonzero(draw.uniform(everybody) < size / everybody).astype(np.int64)
        return np.sort(drawn[draw.permutation(len(drawn))[:size]])
    return np.sort(draw.permutation(everybody)[place * size : (place + 1) * size])


def survivors_of(settings: SimulationSettings, cohort: Participants, round_: int, attempt: int) -> Participants:
    """Return the members that send their vector, ascending; each attempt (from 1) of a round loses others."""
    if not settings.drop or not len(cohort):
        return cohort
    draw = PublicRandom(b"simulated dropouts", settings.seed, round_, attempt)
    if settings.drop_law == EXACT:
        leaving = round(settings.drop * len(cohort))
        return np.sort(cohort[draw.permutation(len(cohort))[leaving:]])
    return cohort[draw.uniform(len(cohort)) >= settings.drop]
