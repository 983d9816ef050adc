"""Whom a plan's epsilon trusts: decided by its mechanism and by what its coordinator may do, and here alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mechanisms.mechanism import DESCRIPTIONS
from secagg.sharing import CURIOUS, SEMI_MALICIOUS

# The two under which it makes no difference to epsilon how many participants collude.
TRUSTED_COORDINATOR: Final = "gaussian"
EACH_FOR_ITSELF: Final = "local-gaussian"


@dataclass(frozen=True)
class Trust:
    """In words.

    Attributes:
        words: who must behave for the stated epsilon to hold; what stands before the first colon says it in short.
        proviso: continues "if at most A collude": empty where the coordinator may lie, or where epsilon holds anyway.
    """

    words: str
    proviso: str


# What the coordinator is trusted to do, what that means, and the proviso. One that is malicious isn't trusted at all.
_COORDINATORS: Final[Mapping[str, tuple[str, str, str]]] = {
    CURIOUS: ("to follow the protocol", "it tells everybody the same", " and the coordinator doesn't lie"),
    SEMI_MALICIOUS: (
        "to follow the protocol until keys are exchanged",
        "then it may lie",
        " and the coordinator doesn't lie until keys are exchanged",
    ),
}


def trust_of(mechanism: str, adversary: str) -> Trust:
    """Whom one trusts under a plan with this mechanism, if its coordinator may do what ``adversary`` names.

    Raises:
        KeyError: of a mechanism that this version doesn't know.
    """
    alone = _described(mechanism)
    trusted = _COORDINATORS.get(adversary)
    if trusted is None:
        return Trust(alone, "")
    what, meaning, proviso = trusted
    if mechanism == TRUSTED_COORDINATOR:
        return Trust(f"{alone}; it is also trusted {what}: {meaning}", "")
    if mechanism == EACH_FOR_ITSELF:
        return Trust(f"{alone}; that only a sum of them is seen trusts the coordinator {what}: {meaning}", "")
    _, _, reason = alone.rpartition(": ")
    return Trust(f"the coordinator, {what}: {meaning}; {reason}", proviso)


def _described(mechanism: str) -> str:
    """Against a coordinator that may lie."""
    if mechanism in DESCRIPTIONS:
        return DESCRIPTIONS[mechanism].trusts
    from mechanisms.registry import MECHANISMS  # those that are planned only, and take longer to import

    return MECHANISMS[mechanism].description.trusts


CURIOUS_TRUST: Final = "trusted to follow the protocol: it tells everybody the same, and reads what it can"
"""What a curious coordinator is, in every text that names it."""
