"""Under which condition an epsilon holds, and whom it trusts, for every text that states an epsilon.

Both follow from the plan's mechanism and from what its coordinator may do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mechanisms.mechanism import DESCRIPTIONS
from secagg.sharing import CURIOUS, SEMI_MALICIOUS

if TYPE_CHECKING:
    from mechanisms.evaluation import Evaluation

# The two under which it makes no difference to epsilon how many participants collude.
TRUSTED_COORDINATOR: Final = "gaussian"
EACH_FOR_ITSELF: Final = "local-gaussian"


@dataclass(frozen=True)
class Trust:
    """Whom a plan trusts."""

    words: str  # who must behave for the stated epsilon to hold; the part before the first colon is the short form
    proviso: str  # continues "if at most A collude"; empty where the coordinator may lie, or where epsilon holds anyway


# What the coordinator is trusted to do, what that means, and the proviso. A malicious one isn't trusted at all.
_COORDINATORS: Final[Mapping[str, tuple[str, str, str]]] = {
    CURIOUS: ("to follow the protocol", "it sends everybody the same", " and the coordinator doesn't lie"),
    SEMI_MALICIOUS: (
        "to follow the protocol until keys are exchanged",
        "then it may lie",
        " and the coordinator doesn't lie until keys are exchanged",
    ),
}


def trust_of(mechanism: str, adversary: str) -> Trust:
    """Whom a participant trusts under a plan with this mechanism and a coordinator of the kind ``adversary``.

    Raises KeyError: this version doesn't know the mechanism.
    """
    alone = DESCRIPTIONS[mechanism].trusts
    trusted = _COORDINATORS.get(adversary)
    if trusted is None:
        return Trust(alone, "")
    what, meaning, proviso = trusted
    if mechanism == TRUSTED_COORDINATOR:
        return Trust(f"{alone}; it is also trusted {what}: {meaning}", "")
    if mechanism == EACH_FOR_ITSELF:
        return Trust(f"{alone}; that the coordinator sees only sums relies on it {what}: {meaning}", "")
    _, _, reason = alone.rpartition(": ")
    return Trust(f"the coordinator, {what}: {meaning}; {reason}", proviso)


CURIOUS_TRUST: Final = "it follows the protocol and reads all it receives"
"""What a curious coordinator is, in every text that names it."""
KEYS: Final[Mapping[str, str]] = {
    "x25519": "X25519: whoever records traffic can open it once X25519 is broken",
    "x25519-mlkem768": "X25519 with ML-KEM-768: recorded traffic stays closed while one of the two holds",
}
"""What a plan's key agreement means, in every text that names it."""
UNRECORDED: Final = "what the coordinator may do is in the study's terms, not in this ledger"
"""Follows the condition of a study of which only the charges are known."""


OUTWEIGHS: Final = 1.0
"""Of the norm of all rounds' noise, over that of as many updates at the clip: above it a model loses much of what it
could learn, or all (measured with tasks that ship: docs/choosing_epsilon.md)."""


def noise_adds_up(norm: float, rounds: int) -> str:
    """The noise of the mean beside the updates, in every text that says so; ``norm``: `Plan.noise_norm`."""
    all_rounds = f". Over {rounds:,} rounds: noise {norm * math.sqrt(rounds):.3g}, updates {rounds:,}"
    return "norm of the noise; an update has at most 1" + (all_rounds if rounds > 1 else "")


def outweighs(norm: float, rounds: int) -> bool:
    """Whether this noise outweighs the updates."""
    return norm > OUTWEIGHS * math.sqrt(rounds)


ENCODING_SHARE: Final = 0.2
"""Of an offset: between the end of training and the offer, for encoding and masking."""


def offers_leave(offset_s: float) -> str:
    """When participants send what they have, in every text that says so."""
    if not offset_s:
        return "leave when they are ready: how long training takes is visible"
    trained = f"{(1 - ENCODING_SHARE) * offset_s:g} s"
    return f"leave {offset_s:g} s after a round's start, with zeros where training takes longer than {trained}"


def evaluated(evaluation: Evaluation, task: str) -> str:
    """What participants say of a model, in every text that says so."""
    most = evaluation.most_examples
    count = "all weigh the same" if most == 1 else f"each weighs as many as it has, at most {most:,}"
    which = f"each keeps {100 * evaluation.held_out:g} % of its examples from training"
    if task.startswith("flower:"):
        which = "the app decides which examples it evaluates on"
    return (
        f"{which}, and sends accuracy and loss of the model on them within the noisy sum, with weight "
        f"{evaluation.weight:g}; a loss above {evaluation.largest_loss:g} counts as that; {count}"
    )


def adjacency_word(adjacency: str) -> str:
    """``zero-out`` or ``replace-one``."""
    return adjacency.partition(":")[0]


def condition(mechanism: str, colluders: int, among: str = "", *, adversary: str | None) -> str:
    """The condition under which an epsilon holds; ``colluders`` is A, ``among``: of how many participants, such as "of
    12", or empty.

    ``adversary`` is the plan's: a curious coordinator is trusted to send everybody the same. None: unknown, as in a
    ledger.
    """
    if mechanism == TRUSTED_COORDINATOR:
        return "if the coordinator is trusted"
    if mechanism == EACH_FOR_ITSELF:
        return "even if all others collude"
    of = f" {among}" if among else ""
    holds = f"if at most {colluders}{of} collude"
    if not colluders:  # a participant knows its own share of the noise: with A = 0 it is one too many
        holds = f"if no participant{of} colludes or analyses the models it receives"
    return f"{holds}; {UNRECORDED}" if adversary is None else holds + trust_of(mechanism, adversary).proviso


def counts_colluders(mechanism: str) -> bool:
    """Whether the noise of A participants is subtracted, so that epsilon depends on A and h."""
    return mechanism not in (TRUSTED_COORDINATOR, EACH_FOR_ITSELF)


def unspent(spent: float, budget: float, plan: Mapping[str, Any]) -> str:
    """Why a study with all its rounds done has spent less than its budget, by epsilon_coordinator; empty where it has
    spent all.

    ``plan`` is as `mechanisms.plan.Plan.to_json` gives it, or its mechanism, min_survivors and sampling.
    """
    if not 0 < spent <= 0.99 * budget:
        return ""
    if "granularity" in plan:
        from mechanisms.plan import Plan

        most = Plan.from_json(plan).epsilon_coordinator
        if most < 0.99 * budget:
            return f"the plan itself spends at most {most:.2f}: it could not have less noise"
    drawn = plan.get("sampling", "none") not in ("none", "epochs")
    why = "less was spent than planned: no participant was drawn for every round" if drawn else ""
    if not counts_colluders(str(plan.get("mechanism", ""))) or "min_survivors" not in plan:
        return why
    if drawn:
        return f"{why}, or more survived than the plan demands"
    return f"less was spent than planned: noise was sized for {plan['min_survivors']} survivors, and more survived"


def guarantee(plan: Mapping[str, Any]) -> str:
    """Adjacency and condition of a plan's epsilon: ``zero-out, if at most 2 of 12 collude``.

    ``plan`` is as `mechanisms.plan.Plan.to_json` gives it, or a part of it; empty if A is missing or this version
    doesn't know the mechanism.
    """
    described = DESCRIPTIONS.get(str(plan.get("mechanism", "")))
    if described is None or "colluders" not in plan:
        return ""
    sampled = plan.get("sampling", "none") != "none"
    among = f"of {'the ' if sampled else ''}{plan.get('clients', '?')}{' in a round' if sampled else ''}"
    holds = condition(described.name, int(plan["colluders"]), among, adversary=str(plan.get("adversary", "")))
    return f"{adjacency_word(described.adjacency)}, {holds}"
