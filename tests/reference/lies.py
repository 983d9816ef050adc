"""What the vectors of refusals have in common: the round they start from, and what a liar can make of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

from tests.reference import setting
from tests.reference.coordinator import Coordinator
from tests.reference.curves import ed25519_sign
from tests.reference.participant import Participant
from tests.reference.primitive_vectors import Case
from tests.reference.round_vectors import Played, base_round
from tests.reference.rounds import identity_seeds, stream_of
from tests.reference.setting import PHASES, Message, Refused
from tests.reference.sharing import Stream

ROUND = "five"
VICTIM = 1  # the participant that is lied to; its third neighbour, 3, sends no input
LIAR = 2


def replaced(items: list[Any], at: int, value: Any) -> list[Any]:
    return [*items[:at], value, *items[at + 1 :]]


def fresh_stream(who: int) -> Stream:
    return stream_of(base_round().agreed, who)


def signed_advertisement(who: int, mask_key: bytes, channel_key: bytes, round_context: bytes | None = None) -> Message:
    """Keys of somebody's choice, signed by it."""
    base = base_round()
    context = round_context or base.agreed.round_context()
    statement = setting.advertisement_statement(context, base.agreed.identity(who), mask_key, channel_key)
    signature = ed25519_sign(identity_seeds(5)[who], statement)
    return {"mask_key": mask_key, "channel_key": channel_key, "signature": signature}


def signed_upload(base: Played, who: int, data: bytes, u2: Iterable[int], context: bytes | None = None) -> Message:
    """A vector of somebody's choice, signed by it as masked in this u2."""
    digest, everyone = sha256(data).digest(), [base.agreed.identity(one) for one in u2]
    identity, seed = base.agreed.identity(who), base.participants[who].identity_seed
    statement = setting.upload_statement(context or base.coordinator.context, identity, digest, everyone)
    return {"packed": data, "sha256": digest, "signature": ed25519_sign(seed, statement)}


def other_cohort() -> tuple[bytes, Participant]:
    """The liar in a cohort without 0: the context, and the liar after it dealt there."""
    base = base_round()
    members = base.record.to_participants["ShareKeys"][LIAR]["members"][1:]
    liar = Participant(base.agreed, identity_seeds(5)[LIAR], fresh_stream(LIAR))
    liar.advertise()
    liar.share_keys({"members": members})
    return liar.context, liar


# ---------------------------------------------------------------- who refuses


def listen(base: Played, case: Case) -> tuple[Message, Message]:
    """A round as one participant hears it, with what a case puts in the place of messages: its upload, its reply."""
    who = case["participant"]
    fresh = Participant(base.agreed, base.participants[who].identity_seed, stream_of(base.agreed, who))
    told = {phase: messages[who] for phase, messages in base.record.to_participants.items() if messages}
    told |= {"AdvertiseKeys": {}, **case["instead"]}
    said = {phase: fresh.hear(phase, told[phase], base.inputs[who]) for phase in base.agreed.numbers.phases}
    reply = fresh.unmask(case["then"]) if "then" in case else said["Unmasking"]
    return said["MaskedInputCollection"], reply


def refused(base: Played, case: Case, phase: str) -> Case:
    """The case with what the reference says to it; in that phase."""
    found = _refused(case, lambda: listen(base, case))
    assert found["refused"]["phase"] == phase, case["name"]
    return found


def at_phase(base: Played, phase: str, before: Iterable[int] = ()) -> Coordinator:
    """A round's coordinator in a phase in which some have spoken."""
    coordinator, said = Coordinator(base.agreed), base.record.to_coordinator
    for one in PHASES[: PHASES.index(phase)]:
        for who, message in said[one].items():
            coordinator.receive(who, message)
        coordinator.close()
    for who in before:
        coordinator.receive(who, said[phase][who])
    return coordinator


def refused_by_coordinator(base: Played, case: Case) -> Case:
    """The case, a message of ``sender`` after those ``before`` it, with what the reference's coordinator says to it."""
    coordinator = at_phase(base, case["phase"], case["before"])
    return _refused(case, lambda: coordinator.receive(case["sender"], case["message"]))


def each_refused(base: Played, phase: str, lies: Iterable[tuple[str, int, Message]], **stated: Any) -> list[Case]:
    """These lies (name, sender, message), after all before the sender in the roster have spoken in the phase.

    A sender that repeats, which the name says, has spoken too.
    """
    cases, spoken = [], base.record.to_coordinator[phase]
    for name, sender, message in lies:
        before = [who for who in spoken if who < sender or (who == sender and "second" in name)]
        case = {**stated, "name": name, "phase": phase, "before": before, "sender": sender, "message": message}
        cases.append(refused_by_coordinator(base, case))
    return cases


def too_few(base: Played, case: Case) -> Case:
    """The case, ``received`` in a phase that is then closed, with what the reference's coordinator says to it."""
    return _refused(case, at_phase(base, case["phase"], case["received"]).close)


def _refused(case: Case, call: Callable[[], object]) -> Case:
    try:
        call()
    except Refused as refusal:
        return {**case, "refused": refusal.stated()}
    raise AssertionError(f"the reference took: {case}")
