"""Notes of ``plan`` and ``init`` on a plan that is allowed but may surprise."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from runtime.text import counted
from sordino.planning.plan_figures import PlanFigures
from wire.guarantee import CURIOUS_TRUST, outweighs

OFTEN: Final = 0.05
FEW_TURNS: Final = 3
UNSURE: Final = 0.2  # standard error of the share below a clip above which clips that adapt mostly follow noise


def notes(figures: PlanFigures, *, hosts_made: bool = False) -> list[str]:
    """Sentences for a plan that is allowed but may surprise; ``hosts_made``: with it, hosts' files were made that
    accept it.
    """
    found = []
    if figures.sampling not in ("none", "lottery", "epochs"):
        found.append(f"Note: {figures.sampling} sampling is planned, not served: it can't be checked who was drawn.")
    if figures.sampling == "epochs" and figures.participations <= FEW_TURNS:
        found.append(
            f"Note: each participant has a turn in {counted(figures.participations, 'round')}. An attempt that fails "
            "after its members were charged may leave its cohort no budget for another, and end the study. More rounds "
            "than one or two epochs, or smaller cohorts, leave room."
        )
    if figures.mechanism == "binomial":
        found.append("Note: binomial noise is planned, not served.")
    if figures.adversary == "semi-malicious":
        found.append("Note: against a semi-malicious coordinator a plan can be made, but no study is served.")
    if figures.adversary == "curious":
        here = " (the hosts' files made here already do: curious_coordinator = true)" if hosts_made else ""
        found.append(
            f"Note: the coordinator is trusted: {CURIOUS_TRUST}. Participants join only if their policy accepts "
            f"that{here}; a participant that missed a sum doesn't take its charge back, and no transcripts are kept."
        )
    if figures.mechanism == "gaussian":
        found.append("Note: the coordinator is trusted: it sees every sum without noise.")
    found += [*unreached(figures), *noise_outweighs(figures)]
    if figures.abort_probability > OFTEN:
        found.append(
            f"Note: if each participant left independently with probability {figures.max_dropout:g}, "
            f"{percent(figures.abort_probability)} of the attempts would end without a sum."
        )
    if figures.quantile_stderr is not None and figures.quantile_stderr > UNSURE:
        found.append(
            f"Note: the share of norms below a clip is known to ± {figures.quantile_stderr:.2g} only: the clips "
            "will mostly follow noise. Raise --clip-bit-weight, participants, or epsilon."
        )
    if figures.accuracy_stderr is not None and figures.accuracy_stderr > UNSURE:
        found.append(
            f"Note: an accuracy that participants report is known to ± {figures.accuracy_stderr:.2g} only, a loss to "
            "so much of --evaluation-loss. Raise --evaluation-weight, participants, or epsilon."
        )
    if figures.delta > 1 / figures.clients:
        found.append(
            f"Note: delta {figures.delta:g} is above 1/participants = {1 / figures.clients:.2g}: the guarantee "
            "may fail for one participant. Choose it far below."
        )
    return found


def noise_outweighs(figures: PlanFigures) -> list[str]:
    """That the noise outweighs the updates, and under which settings a model learns; nothing where it doesn't."""
    norm, rounds = figures.noise_norm, figures.rounds
    if not figures.trains or not outweighs(norm, rounds):
        return []
    instead = f" It learns with {', '.join(figures.learns_with)}." if figures.learns_with else ""
    return [
        f"Warning: the noise outweighs the updates. Over {rounds:,} rounds that of the mean adds up to norm "
        f"{norm * math.sqrt(rounds):.3g}, and updates to {rounds:,} at most (in clips): a model loses much of what it "
        f"could learn, or all.{instead} More rounds or a sketch don't help."
    ]


def no_ring(clients: int, colluders: int, min_survivors: int, adversary: str, instead: str) -> str:
    """Why the graph is complete although a ring was asked for, without a full stop; for `--graph harary`.

    ``instead``: what to change where a ring would hold if fewer may drop out, such as "raise --min-survivors".
    """
    from secagg.parameters import SMALL_COHORT

    note = "--graph harary was asked for, and the graph is complete: "
    if clients < SMALL_COHORT:
        return note + f"below {SMALL_COHORT} participants there is no ring"
    note += f"no ring holds if {clients - min_survivors:,} of {clients:,} may drop out"
    fewest = fewest_on_a_ring(clients, colluders, adversary)
    if fewest is None or fewest <= min_survivors:
        return note
    return f"{note}: {instead}, as one holds from min_survivors {fewest:,}; or leave --graph out"


@lru_cache(maxsize=64)
def fewest_on_a_ring(clients: int, colluders: int, adversary: str) -> int | None:
    """Fewest survivors with which a ring holds; None where no ring holds even without dropouts."""
    from secagg.parameters import sparse_sharing

    def holds(survivors: int) -> bool:
        return sparse_sharing(clients, colluders, survivors, adversary) is not None

    return smallest(0, clients, holds) if holds(clients) else None


def smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number above ``low`` that holds, by bisection; ``high`` and all above the smallest must hold."""
    return low + 1 + bisect_left(range(low + 1, high), True, key=holds)


def reached(figures: PlanFigures) -> bool:
    """Whether the plan comes close to the epsilon that it may spend; it doesn't where no less noise is allowed."""
    planned = figures.planned_epsilon
    return planned is None or planned > 0.999 * figures.epsilon


def unreached(figures: PlanFigures) -> list[str]:
    """Why a plan spends less than it may, in a sentence; nothing where it doesn't."""
    planned = figures.planned_epsilon
    if planned is None or reached(figures):
        return []
    note = f"Note: of the epsilon {figures.epsilon:g} that may be spent, {planned:.3f} is planned. That"
    if planned > 0.99 * _largest_statable(figures):
        return [
            f"{note} is the largest epsilon that can be stated at this delta and length: the samplers' distance from "
            "their law, at most 2^-140 a value, counts e^epsilon times against delta. A larger one would promise "
            "nothing."
        ]
    return [f"{note} is what the least noise gives that this mechanism allows on this grid."]


def _largest_statable(figures: PlanFigures) -> float:
    """Where the sampler's distance from its law uses up half of delta (`privacy_curves.epsilon_with_sampler_error`)."""
    from mechanisms.lattice_noise import SAMPLER_DISTANCE

    draws = figures.rounds * figures.clients * figures.padded_dim
    return math.log(figures.delta / 2) - math.log(draws) - math.log(SAMPLER_DISTANCE)


def percent(share: float) -> str:
    """``45 %``, ``0.11 %``, and tiny shares as they are."""
    if 0 < share < 1e-4:
        return f"{share:.1e}"
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 10 else f"{shown:.2g} %"
