"""What the vectors say is refused: by the core, by its class and phase, and by the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from secagg.messages import Advertisement, SealedShares, UnmaskingReply
from tests.reference.participant import Participant
from tests.reference.setting import Refused
from tests.reference.sharing import Stream
from tests.secagg.fast_sides import FastCoordinator, FastParticipant
from tests.secagg.vectors_read import ERRORS, ROUNDS, Case, setting_from, source, vectors
from tests.support.message_codecs import CODECS


def cases_of(file: str, name: str) -> list[Any]:
    """Each case with the round it starts from, which one file states for all of them."""
    found, cases = vectors(file), []
    for case in found[name]:
        stated = {"round": found["round"], **case} if "round" in found else case
        cases.append(pytest.param(stated, id=case.get("name", case.get("phase"))))
    return cases


@cache
def round_named(name: str) -> Case:
    return next(case for file in ROUNDS for case in vectors(file)["rounds"] if case["name"] == name)


def told_in(base: Case, who: int) -> dict[str, Case]:
    """The messages to one participant in a round, by phase."""
    everything = base["to_participants"].items()
    return {"AdvertiseKeys": {}} | {phase: told.get(who, told) for phase, told in everything}


def phases_of(base: Case) -> tuple[str, ...]:
    return setting_from(base["setting"]).numbers.phases


@pytest.mark.parametrize("case", cases_of("participant_refusals.json", "settings"))
def test_what_a_participant_does_not_begin(case: Case) -> None:
    with pytest.raises(Refused) as caught:
        FastParticipant(setting_from(case["setting"]), case["identity_private"], source(b""))
    assert caught.value.stated() == case["refused"]


@pytest.mark.parametrize(
    "case", cases_of("participant_refusals.json", "refused") + cases_of("ring_refusals.json", "participants")
)
@pytest.mark.parametrize("side", [FastParticipant, Participant])
def test_what_a_participant_refuses(case: Case, side: Any) -> None:
    """The core and, so that the file is no hostage of its generator, the reference again."""
    who, base = case["participant"], round_named(case["round"])
    person, agreed = base["participants"][who], setting_from(base["setting"])
    stream = Stream(person["randomness"] + bytes(1000))
    fresh = side(agreed, person["identity_private"], stream.take if side is FastParticipant else stream)
    told = told_in(base, who) | case["instead"]
    refusing, phases = case["refused"]["phase"], agreed.numbers.phases
    before = phases if "then" in case else phases[: phases.index(refusing)]
    for phase in before:
        fresh.hear(phase, told[phase], person["input"])
    with pytest.raises(Refused) as caught:
        fresh.hear(refusing, case["then"] if "then" in case else told[refusing], person["input"])
    assert caught.value.stated() == case["refused"]
    if "then" not in case:
        with pytest.raises(Refused):  # the attempt is over for it, whatever comes next
            fresh.hear(refusing, told_in(base, who)[refusing], person["input"])


@pytest.mark.parametrize(
    "case", cases_of("participant_refusals.json", "goes_on") + cases_of("ring_refusals.json", "goes_on")
)
def test_what_does_not_end_the_attempt(case: Case) -> None:
    """Above all what costs its dealer a share."""
    who, base = case["participant"], round_named(case["round"])
    person, told = base["participants"][who], told_in(base, who)
    told |= case.get("instead", {})
    reply = base["to_coordinator"]["Unmasking"][who]
    if "dealt" in case:
        dealers = [entry["dealer"] for entry in told["MaskedInputCollection"]["shares"]]
        shares = list(told["MaskedInputCollection"]["shares"])
        shares[dealers.index(case["dealt"]["dealer"])] = case["dealt"]
        told["MaskedInputCollection"] = {**told["MaskedInputCollection"], "shares": shares}
        # On the complete graph the reply has an entry for a share of one's own as well.
        of = dealers if "ring" in base else sorted([*dealers, who])
        reply = {"shares": list(reply["shares"])}
        reply["shares"][of.index(case["no_share_of"])] = {"none": {}}
    assert told != told_in(base, who)
    side = FastParticipant(setting_from(base["setting"]), person["identity_private"], source(person["randomness"]))
    for phase in phases_of(base):
        answer = side.hear(phase, told[phase], person["input"])
        assert answer == (reply if phase == "Unmasking" else base["to_coordinator"][phase][who])
    assert side.hear("Unmasking", told["Unmasking"], []) == answer  # the same question, the same answer


def coordinator_at(base: Case, phase: str) -> FastCoordinator:
    coordinator = FastCoordinator(setting_from(base["setting"]))
    phases = phases_of(base)
    for earlier in phases[: phases.index(phase)]:
        for who, message in base["to_coordinator"][earlier].items():
            coordinator.receive(who, message)
        coordinator.close()
    return coordinator


@pytest.mark.parametrize(
    "case",
    cases_of("coordinator_refusals.json", "refused")
    + cases_of("ring_refusals.json", "coordinator")
    + cases_of("noise_rounds.json", "refused"),
)
def test_what_the_coordinator_refuses(case: Case) -> None:
    """Refused, and the phase goes on as if nothing had been said: the round ends in its sum."""
    base, phase = round_named(case["round"]), case["phase"]
    coordinator, said, phases = coordinator_at(base, phase), base["to_coordinator"], phases_of(base)
    for who in case["before"]:
        coordinator.receive(who, said[phase][who])
    with pytest.raises(Refused) as caught:
        coordinator.receive(case["sender"], case["message"])
    assert caught.value.stated() == case["refused"]
    for who in said[phase].keys() - set(case["before"]):
        coordinator.receive(who, said[phase][who])
    answer = coordinator.close()
    for later in phases[phases.index(phase) + 1 :]:
        for who, message in said[later].items():
            coordinator.receive(who, message)
        answer = coordinator.close()
    assert answer == base["sum"]


@pytest.mark.parametrize(
    "case", cases_of("coordinator_refusals.json", "too_few") + cases_of("ring_refusals.json", "too_few")
)
def test_too_few(case: Case) -> None:
    base = round_named(case["round"])
    coordinator = coordinator_at(base, case["phase"])
    for who in case["received"]:
        coordinator.receive(who, base["to_coordinator"][case["phase"]][who])
    with pytest.raises(Refused) as caught:
        coordinator.close()
    assert caught.value.stated() == case["refused"]


# Names in the vectors are those of proto/coordinator.proto.
KINDS = {one.field: one for one in CODECS.values()} | {
    "advertisement": CODECS[Advertisement],
    "sealed_shares": CODECS[SealedShares],
    "unmasking_reply": CODECS[UnmaskingReply],
}


@pytest.mark.parametrize("case", cases_of("malformed.json", "cases"))
def test_malformed_messages(case: Case) -> None:
    kind = KINDS[case["kind"]]
    with pytest.raises(ERRORS[case["refused"]["error"]]):
        kind.read(kind.type(**case["message"]))
