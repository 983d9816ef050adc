"""What the vectors of refusals have in common: the round they start from, and what a liar can make of its keys."""

from __future__ import annotations

from typing import Any

from tests.reference import setting
from tests.reference.curves import ed25519_sign
from tests.reference.participant import Participant
from tests.reference.round_vectors import base_round
from tests.reference.rounds import identity_seeds, stream_of
from tests.reference.sharing import Stream

Case = dict[str, Any]
Message = dict[str, Any]
ROUND = "five"
VICTIM = 1  # the participant that is lied to; its third neighbour, 3, sends no input
LIAR = 2


def replaced(items: list[Any], at: int, value: Any) -> list[Any]:
    """One entry exchanged."""
    return [*items[:at], value, *items[at + 1 :]]


def fresh_stream(who: int) -> Stream:
    """A participant's randomness from the beginning."""
    return stream_of(base_round().agreed, who)


def signed_advertisement(who: int, mask_key: bytes, channel_key: bytes, round_context: bytes | None = None) -> Message:
    """Keys of somebody's choice, signed by it."""
    base = base_round()
    context = round_context or base.agreed.round_context()
    statement = setting.advertisement_statement(context, base.agreed.identity(who), mask_key, channel_key)
    signature = ed25519_sign(identity_seeds(5)[who], statement)
    return {"mask_key": mask_key, "channel_key": channel_key, "signature": signature}


def other_cohort() -> tuple[bytes, Participant]:
    """The liar in a cohort without 0: the context, and the liar after it dealt there."""
    base = base_round()
    members = base.record.to_participants["ShareKeys"][LIAR]["members"][1:]
    liar = Participant(base.agreed, identity_seeds(5)[LIAR], fresh_stream(LIAR))
    liar.advertise()
    liar.share_keys({"members": members})
    return liar.context, liar
