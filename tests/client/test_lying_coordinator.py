"""Participants and a coordinator that lies within an attempt: each refuses with a code that reveals nothing about its
data, logs the reason, and never sends the message that the lie aims at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.host_in_process import Play, Story, answered_one_request, on
from tests.support.study_in_process import PARTICIPANTS, Coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE

MISBEHAVED, LOCAL_FAILURE = pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED, pb.REFUSAL_CODE_LOCAL_FAILURE
ALL = ["advertise_keys", "share_keys", "masked_input", "upload", "consistency", "unmasking"]


@dataclass(frozen=True)
class Lie:
    """A change of one kind of message, as `on` takes it, and the message that the coordinator must never get."""

    name: str
    kind: str
    never: str
    reason: str
    change: Callable[[int, Any], Iterable[pb.CoordinatorMessage] | None]


def other_than(me: int) -> int:
    return 0 if me else 1


# ---------------------------------------------------------------- u1


def without_me(me: int, keys: pb.CohortKeys) -> None:
    del keys.members[me]


def my_key_altered(me: int, keys: pb.CohortKeys) -> None:
    keys.members[me].advertisement.mask_key = bytes(range(32))


def neighbour_replaced(me: int, keys: pb.CohortKeys) -> None:
    """The attack itself: the coordinator's own keys under a neighbour's name."""
    keys.members[other_than(me)].advertisement.channel_key = bytes(range(1, 33))


def neighbour_by_digest(me: int, keys: pb.CohortKeys) -> None:
    keys.members[other_than(me)].advertisement_sha256 = bytes(32)


def neighbour_without_keys(me: int, keys: pb.CohortKeys) -> None:
    keys.members[other_than(me)].ClearField("advertisement")


def too_small(me: int, keys: pb.CohortKeys) -> None:
    kept = [member for member in keys.members if member.participant in (me, other_than(me))]
    del keys.members[:]
    keys.members.extend(kept)


def not_ascending(_: int, keys: pb.CohortKeys) -> None:
    keys.members.reverse()


def a_stranger(_: int, keys: pb.CohortKeys) -> None:
    keys.members[-1].participant = 99


def one_key_twice(me: int, keys: pb.CohortKeys) -> None:
    others = [who for who in range(PARTICIPANTS) if who != me]
    keys.members[others[1]].advertisement.CopyFrom(keys.members[others[0]].advertisement)


# ---------------------------------------------------------------- u2 and the shares


def bits(*members: int) -> bytes:
    return bytes([sum(1 << member for member in members)])


def all_but(one: int) -> bytes:
    return bits(*(who for who in range(PARTICIPANTS) if who != one))


def a_few(me: int) -> bytes:
    return bits(*sorted({me, 0, 1, 2}))


def without_a_neighbour(me: int) -> bytes:
    """As u2, this denies a neighbour that the participant masked with: its mask key would be requested from others."""
    return all_but(other_than(me))


EVERYBODY = bits(*range(PARTICIPANTS))


def sets(**fields: bytes | Callable[[int], bytes]) -> Callable[[int, Any], None]:
    """A change that sets fields: to a value, or to a function of the participant."""

    def change(me: int, content: Any) -> None:
        for name, value in fields.items():
            setattr(content, name, value(me) if callable(value) else value)

    return change


def too_few_dealers(me: int, message: pb.NeighbourShares) -> None:
    del message.shares[3:]
    message.u2 = bits(me, *(one.dealer for one in message.shares))


def dealing_withheld(_: int, message: pb.NeighbourShares) -> None:
    del message.shares[0]


def dealer_twice(_: int, message: pb.NeighbourShares) -> None:
    message.shares.append(message.shares[-1])


def dealing_of_others(_: int, message: pb.NeighbourShares) -> None:
    message.shares[0].root = bytes(32)


def not_a_neighbour(me: int, message: pb.NeighbourShares) -> None:
    message.shares[-1].dealer = 99


def credit_too_early(_: int, message: pb.NeighbourShares) -> list[pb.CoordinatorMessage]:
    number = {"round": message.round, "attempt": message.attempt}
    return [pb.CoordinatorMessage(upload_credit=pb.UploadCredit(**number))]


# ---------------------------------------------------------------- the request


def few_signatures(_: int, request: pb.UnmaskingRequest) -> None:
    del request.signatures[-1]


def no_signatures(_: int, request: pb.UnmaskingRequest) -> None:
    del request.signatures[:]


def forged_signature(_: int, request: pb.UnmaskingRequest) -> None:
    request.signatures[0].signature = bytes(64)


def one_signature_for_all(_: int, request: pb.UnmaskingRequest) -> None:
    for entry in request.signatures:
        entry.signature = request.signatures[0].signature


def one_signer_often(_: int, request: pb.UnmaskingRequest) -> None:
    for entry in request.signatures:
        entry.CopyFrom(request.signatures[0])


def strange_signer(_: int, request: pb.UnmaskingRequest) -> None:
    request.signatures[-1].participant = 99


def short_signature(_: int, request: pb.UnmaskingRequest) -> None:
    request.signatures[0].signature = b"signature"


# ---------------------------------------------------------------- order and numbers


def request_before_sets(_: int, sets: pb.SurvivorSets) -> list[pb.CoordinatorMessage]:
    return [pb.CoordinatorMessage(unmasking_request=pb.UnmaskingRequest(round=sets.round, attempt=sets.attempt))]


def sets_before_masks(_: int, message: pb.NeighbourShares) -> list[pb.CoordinatorMessage]:
    sets = pb.SurvivorSets(round=message.round, attempt=message.attempt, u2=EVERYBODY, u3=EVERYBODY)
    return [pb.CoordinatorMessage(survivor_sets=sets)]


OTHER_U2 = "u2 is not the set this participant masked in"
LIES = [
    Lie("u1 without me", "cohort_keys", "share_keys", "own keys unaltered", without_me),
    Lie("my key altered", "cohort_keys", "share_keys", "own keys unaltered", my_key_altered),
    Lie("a neighbour's keys replaced", "cohort_keys", "share_keys", "not signed by it", neighbour_replaced),
    Lie("a neighbour by digest", "cohort_keys", "share_keys", "neighbour is missing", neighbour_by_digest),
    Lie("a neighbour without keys", "cohort_keys", "share_keys", "without keys", neighbour_without_keys),
    Lie("u1 of two", "cohort_keys", "share_keys", "u1 has 2 members", too_small),
    Lie("u1 not ascending", "cohort_keys", "share_keys", "not strictly ascending", not_ascending),
    Lie("a stranger in u1", "cohort_keys", "share_keys", "not on the roster", a_stranger),
    Lie("one key twice", "cohort_keys", "share_keys", "advertised twice", one_key_twice),
    Lie("u2 of four", "neighbour_shares", "masked_input", "u2 has 4 members", too_few_dealers),
    Lie("a dealer twice", "neighbour_shares", "masked_input", "not those of the neighbours in u2", dealer_twice),
    Lie("a stranger in u2", "neighbour_shares", "masked_input", "not those of the neighbours in u2", not_a_neighbour),
    Lie("a dealing withheld", "neighbour_shares", "masked_input", "not those of the neighbours", dealing_withheld),
    Lie("fewer told than dealt", "neighbour_shares", "masked_input", "u2 has ", sets(u2=a_few)),
    Lie("u2 without me", "neighbour_shares", "masked_input", "left out of u2", sets(u2=all_but)),
    Lie("no u2", "neighbour_shares", "masked_input", "one bit for each", sets(u2=b"")),
    Lie("u2 beyond u1", "neighbour_shares", "masked_input", "unused bits", sets(u2=b"\xff")),
    Lie("an unsigned dealing", "neighbour_shares", "masked_input", "not signed by it", dealing_of_others),
    Lie("credit too early", "neighbour_shares", "upload", "wasn't asked for", credit_too_early),
    Lie("sets before masks", "neighbour_shares", "consistency", "out of order", sets_before_masks),
    Lie("u3 without me", "survivor_sets", "consistency", "left out of u3", sets(u3=all_but)),
    Lie("u3 too small", "survivor_sets", "consistency", "5 needed", sets(u3=a_few)),
    Lie("only me", "survivor_sets", "consistency", OTHER_U2, sets(u2=bits, u3=bits)),
    Lie("another u2", "survivor_sets", "consistency", OTHER_U2, sets(u2=without_a_neighbour, u3=without_a_neighbour)),
    Lie("u3 beyond u2", "survivor_sets", "consistency", OTHER_U2, sets(u2=without_a_neighbour, u3=EVERYBODY)),
    Lie("a long bitmap", "survivor_sets", "consistency", "one bit for each", sets(u3=EVERYBODY + b"\0")),
    Lie("no bitmap", "survivor_sets", "consistency", "one bit for each", sets(u2=b"")),
    Lie("stray bits", "survivor_sets", "consistency", "unused bits", sets(u3=b"\xff")),
    Lie("request before sets", "survivor_sets", "unmasking", "out of order", request_before_sets),
    Lie("one signature short", "unmasking_request", "unmasking", "4 signatures over the survivors", few_signatures),
    Lie("no signatures", "unmasking_request", "unmasking", "0 signatures", no_signatures),
    Lie("a forged signature", "unmasking_request", "unmasking", "doesn't cover these sets", forged_signature),
    Lie("one signature for all", "unmasking_request", "unmasking", "doesn't cover", one_signature_for_all),
    Lie("one signer often", "unmasking_request", "unmasking", "ascending list of members", one_signer_often),
    Lie("a strange signer", "unmasking_request", "unmasking", "members of u3", strange_signer),
    Lie("a short signature", "unmasking_request", "unmasking", "64 bytes", short_signature),
    Lie(
        "another study document",
        "round_start",
        "advertise_keys",
        "another study document",
        sets(study_sha256=bytes(32)),
    ),
    Lie(
        "another roster",
        "round_start",
        "advertise_keys",
        "names a roster that isn't there",
        sets(roster_sha256=bytes(32)),
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_refused(played: Play, lie: Lie) -> None:
    story = played(on(lie.kind, lie.change))
    assert not story.kinds() & set(ALL[ALL.index(lie.never) :])
    assert story.codes() == {MISBEHAVED}
    # Without three of seven the attempt ends, perhaps before the others refuse.
    assert len({who for who, _ in story.refusals}) >= 3
    warnings = [entry for entry in story.logs if entry["event"] == "refused"]
    assert warnings
    assert all(lie.reason in entry["reason"] for entry in warnings)
    # The client stays until the study ends, which here happens after one attempt.
    assert story.ended == 0
    assert story.of("round_completed") == []
    if lie.never in ALL[:3]:
        assert charged(story) == []


def charged(story: Story) -> list[Any]:
    return [row for row in story.rows() if row.kind == CHARGE]


def test_a_second_different_request_gets_no_answer(played: Play) -> None:
    """The same request gets the same bytes again; another one, however well signed, ends the attempt."""

    def requests(_: int, other: pb.UnmaskingRequest) -> list[pb.CoordinatorMessage] | None:
        if other.round != 1:
            return None
        honest = pb.CoordinatorMessage(unmasking_request=other)
        # Other signatures over the same sets: those of the second to the sixth participant.
        del other.signatures[:]
        for who, signature in sorted(signatures.items())[1:6]:
            other.signatures.add(participant=who, signature=signature)
        lying = pb.CoordinatorMessage(unmasking_request=other)
        assert lying != honest
        return [honest, honest, lying, honest]

    signatures: dict[int, bytes] = {}

    def prepare(where: Coordinator) -> None:
        deliver = where.study.phase_message

        def note(session: Any, message: pb.PhaseMessage, size: int) -> None:
            if message.WhichOneof("message") == "consistency" and message.round == 1:
                signatures[session.participant] = message.consistency.signature
            deliver(session, message, size)

        where.study.phase_message = note  # type: ignore[method-assign]

    answered_one_request(played(on("unmasking_request", requests), prepare=prepare))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ((2, 1), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((1, 1), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((1, 99), pb.REFUSAL_CODE_ALREADY_JOINED),
        ((0, 5), LOCAL_FAILURE),
        ((2, 0), LOCAL_FAILURE),
    ],
)
def test_numbers_only_grow(played: Play, number: tuple[int, int], code: int) -> None:
    """An attempt that was joined, or an earlier one, is skipped: its keys are gone; masks never cover two vectors."""
    start = pb.RoundStart()

    def lie(_: int, message: pb.CoordinatorMessage) -> list[pb.CoordinatorMessage]:
        if message.WhichOneof("message") == "round_start":
            start.CopyFrom(message.round_start)
        if message.WhichOneof("message") != "cohort_keys" or message.cohort_keys.round != 2:
            return [message]
        again = pb.CoordinatorMessage(round_start=start)
        again.round_start.round, again.round_start.attempt = number
        return [again]

    story = played(lie, prepare=over_when_all_have_refused)
    assert story.codes() == {code}
    second = [message for _, message in story.messages if message.round != 1]
    assert {message.WhichOneof("message") for message in second} == {"advertise_keys"}
    assert len(second) == PARTICIPANTS
    assert len(story.refusals) == PARTICIPANTS


def over_when_all_have_refused(where: Coordinator) -> None:
    """Refusals are held until all participants have sent one; then they end the attempt under way.

    So no clock decides how many there are: if one were missing, the attempt would end at its deadline without any.
    """
    kept: dict[int, tuple[Any, pb.Refusal, int]] = {}
    hand_on = where.study.refusal

    def refusal(session: Any, message: pb.Refusal, size: int) -> None:
        assert session.participant not in kept, "a second refusal"
        kept[session.participant] = session, message, size
        if len(kept) == PARTICIPANTS:
            for one, told, length in kept.values():
                told.round, told.attempt = 2, 1
                hand_on(one, told, length)

    where.study.refusal = refusal  # type: ignore[method-assign]


def _broadcasting(where: Coordinator, values: NDArray[np.float32]) -> None:
    learner = where.study._model._learner
    if values.shape != learner._vector.shape:
        learner._shapes = {"model": values.shape}
    learner._vector = values


@pytest.mark.parametrize(
    ("model", "reason", "code"),
    [
        ("other bytes", "doesn't have the digest", MISBEHAVED),
        ("too long", "longer than", MISBEHAVED),
        ("too short", "the model has 12 bytes", MISBEHAVED),
        ("absent", "no document", LOCAL_FAILURE),
    ],
)
def test_another_model(played: Play, model: str, reason: str, code: int) -> None:
    """The document under the model's digest is not the model: nothing is trained, uploaded or charged."""

    def prepare(where: Coordinator) -> None:
        document, dim = where.study.document, where.study._plan.dim
        if model == "too short":  # under its own digest
            _broadcasting(where, np.zeros(3, np.float32))
            return
        bad = {"other bytes": b"\1" * (4 * dim), "too long": bytes(4 * dim + 1), "absent": None}[model]

        def lying(sha256: bytes) -> bytes | None:
            return bad if sha256 == where.study._model_sha256 else document(sha256)

        where.study.document = lying  # type: ignore[method-assign]

    story = played(prepare=prepare)
    assert story.kinds() <= {"advertise_keys", "share_keys"}
    assert story.codes() == {code}
    assert charged(story) == []
    assert reason in story.told()


def test_a_model_that_breaks_the_training_gets_an_answer_like_any_other(played: Play) -> None:
    """A failure of training may depend on an example: a refusal would reveal it without noise. Zeros are sent."""

    def prepare(where: Coordinator) -> None:
        _broadcasting(where, np.full(where.study._plan.dim, 3e38, np.float32))

    story = played(prepare=prepare)
    assert story.refusals == []
    first = {(who, message.WhichOneof("message")) for who, message in story.messages if message.round == 1}
    assert {who for who, kind in first if kind == "masked_input"} == set(range(PARTICIPANTS))
    assert story.of("round_completed")[0]["u3"] == PARTICIPANTS
    assert "zeros are sent" in story.told()
    assert len(charged(story)) >= PARTICIPANTS
