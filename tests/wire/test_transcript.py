"""A transcript holds when the round was played as the protocol says, and any change is found by a named check.

The changed ones are signed again with the coordinator's own key, as a coordinator that lies would sign them: a verifier
that looks at that signature alone takes them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.encoding import encode, number
from secagg.keys import IdentityKey, advertisement_statement
from secagg.lottery import Draws
from secagg.messages import Advertisement
from secagg.roster import sign_roster
from secagg.signatures import verify_signature
from tests.support.attempts_in_memory import authority, keyed_source
from tests.support.rounds_on_record import (
    AUTHORITY_KEY,
    STUDY,
    Finished,
    Ledger,
    card,
    coordinator_key,
    drawn,
    entry_of,
    key_of,
    plan,
    play,
    ring,
    signed,
    whole,
)
from wire.join_code import fingerprint
from wire.records.transcript import (
    Check,
    Excluded,
    InvalidTranscript,
    Transcript,
    read_transcript,
    stated_parameters,
    write_transcript,
)
from wire.records.transcript_checks import verify_transcript
from wire.study import StudyDocument

Change = Callable[[Transcript, Finished], Transcript]
ROOT = Path(__file__).parents[2]


# Seven, of whom one deals nothing and another uploads nothing; u3 has five.
ROUNDS: dict[str, Callable[[], Finished]] = {
    "whole": lambda: play(whole(), silent=[1], late=[3]),
    "six": lambda: play(whole(), late=[3]),  # one more than the plan needs
    "absent": lambda: play(whole(), absent=[6]),  # six in u1
    "drawn": lambda: play(drawn(), 2),
    "ring": lambda: play(ring(), silent=[5], late=[11]),
    "gaussian": lambda: play(whole(plan=plan(7, "gaussian"))),
}


@cache
def round_of(kind: str) -> Finished:
    return ROUNDS[kind]()


@cache
def written(kind: str) -> bytes:
    return round_of(kind).write()


def failed(data: bytes, known: bytes | None = AUTHORITY_KEY) -> str:
    with pytest.raises(InvalidTranscript) as caught:
        verify_transcript(data, known)
    assert caught.value.check in Check
    assert caught.value.sentence
    return caught.value.check


def compact(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def naive(data: bytes) -> bool:
    """Only whether the coordinator signed it."""
    found = read_transcript(data)
    return verify_signature(coordinator_key().public_key().public_bytes_raw(), found.signature, found.statement())


# ---------------------------------------------------------------- what holds


@pytest.mark.parametrize("kind", ["whole", "drawn", "gaussian", "ring"])
def test_the_transcript_of_a_round_holds(kind: str) -> None:
    finished = round_of(kind)
    verified = verify_transcript(written(kind), AUTHORITY_KEY)
    found = verified.contents
    assert set(found.u3) == finished.completed.u3
    assert set(found.u1) == set(finished.unmasking.cohort.u1)
    assert verified.entry.participants == tuple(sorted(finished.completed.u3))
    assert verified.document.plan == finished.setting.plan
    assert (found.sum_sha256 is None) == (kind == "gaussian")
    assert naive(written(kind))


def test_parameters_are_those_of_the_graph_that_was_used() -> None:
    graph = round_of("ring").unmasking.cohort.graph
    assert (graph.complete, graph.degree, graph.threshold) == (False, 8, 6)
    stated = read_transcript(written("ring")).parameters
    assert [stated[name] for name in ("graph", "degree", "threshold", "adversary", "signatures_needed")] == (
        ["harary", 8, 6, "malicious", 34]
    )
    stated = read_transcript(written("whole")).parameters
    assert [stated[name] for name in ("graph", "degree", "threshold")] == ["complete", 6, 5]


def test_the_authority_may_be_a_key_or_a_fingerprint_and_is_never_another() -> None:
    data = written("whole")
    verify_transcript(data, fingerprint(AUTHORITY_KEY))
    verify_transcript(data, None)
    assert failed(data, bytes(32)) == Check.AUTHORITY
    assert failed(data, bytes(16)) == Check.AUTHORITY


def test_signers_are_exactly_those_of_the_unmasking_request() -> None:
    found = read_transcript(written("whole"))
    assert found.signatures == round_of("whole").signatures
    assert len(found.signatures) == found.parameters["signatures_needed"] == 5


def test_it_holds_what_the_document_names_and_nothing_else() -> None:
    """No upload, share, seed, rebuilt key, ciphertext or clip statistic has a field to stand in."""
    fields = json.loads(written("drawn"))
    text = (ROOT / "docs" / "transcripts.md").read_text(encoding="utf-8")
    for name in [*fields, *fields["charge"], *fields["ticket"], *fields["parameters"]]:
        assert f"`{name}`" in text, name
    assert set(fields) == set(LEAVES)
    for check in Check:
        assert f"`{check}`" in text, check


def test_the_ledger_may_name_participants_by_numbers_of_its_own() -> None:
    finished = round_of("whole")
    numbers = {who: 10 - who for who in finished.unmasking.u3}
    row = Ledger().charge(entry_of(finished.setting, 1, 1, sorted(numbers.values())))
    assert verify_transcript(finished.write(row, numbers=numbers), AUTHORITY_KEY).contents.numbers[0] == 10
    assert failed(finished.write(row)) == Check.CHARGE


def test_it_is_the_same_file_however_often_it_is_written() -> None:
    assert round_of("whole").write() == written("whole")
    assert read_transcript(written("whole")).data == written("whole")


def test_caught_participants_are_named_in_the_sum_or_not() -> None:
    """Inconsistent shares that cost nothing leave their dealer in u3; who sent something else never got to u1."""
    finished = round_of("absent")
    first, last = (finished.config.roster.identity(who) for who in (0, 6))

    def written_with(caught: dict[bytes, str], excluded: dict[bytes, str]) -> Transcript:
        found, digests = (
            finished.transcript(excluded=excluded),
            {"sum_sha256": b"s" * 32, "next_model_sha256": b"n" * 32},
        )
        data = write_transcript(found, coordinator_key(), **digests, previous=None, caught=caught)
        return verify_transcript(data, AUTHORITY_KEY).contents

    found = written_with({last: "sent rubbish\x1b[2J", first: "dealt inconsistent shares"}, {})
    named = (Excluded(first, "dealt inconsistent shares"), Excluded(last, "sent rubbish?[2J"))
    assert found.caught == tuple(sorted(named, key=lambda one: one.identity))
    assert (0 in found.u3, 6 in found.u1) == (True, False)
    found = written_with({first: "cheated"}, {last: "cheated before"})
    assert ([one.identity for one in found.caught], [one.identity for one in found.excluded]) == ([first], [last])
    assert read_transcript(finished.write()).caught == ()


# ---------------------------------------------------------------- changed, without the coordinator's key


LEAVES = [
    *("card", "roster", "study", "round", "attempt", "model_sha256", "u1", "u2", "u3", "numbers", "signers"),
    *("advertisements", "signatures", "excluded", "caught", "charge", "parameters", "sum_sha256", "next_model_sha256"),
    *("previous", "signature", "ticket", "newest", "format"),
]


@pytest.mark.parametrize("name", LEAVES)
def test_no_field_can_be_changed_without_the_coordinators_key(name: str) -> None:
    fields = json.loads(written("drawn"))
    fields[name] = other_value(name, fields[name])
    assert failed(compact(fields) + b"\n") in (Check.FORM, Check.AUTHORITY, Check.COORDINATOR)


def other_value(name: str, value: Any) -> Any:
    match value:
        case int():
            return value + 1
        case None:
            return "00" * 32
        case [] if name in ("excluded", "caught"):
            return [{"identity": "00" * 32, "reason": "none"}]
        case list():
            return value[:-1]
        case {"seed": _}:
            return None
        case {"threshold": threshold}:
            return value | {"threshold": threshold - 1}
        case {"row": _}:
            return value | {"number": value["number"] + 1}
        case str() if len(value) in (64, 128):
            return value[:-1] + ("0" if value[-1] != "0" else "1")
    return value + " "


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-2],
        lambda data: data + b"\n",
        lambda data: b" " + data,
        lambda data: data.replace(b'"round":1', b'"round":1.0'),
        lambda data: data.replace(b'"round":1', b'"round":true'),
        lambda data: data.replace(b'"round":1', b'"round":1,"round":1'),
        lambda data: data.replace(b'"round":1', b'"round":1,"surprise":1'),
        lambda data: data.replace(b"sordino-transcript-1", b"sordino-transcript-2"),
        lambda data: data.replace(b'"u2":[0,', b'"u2":[2,0,'),
        lambda data: data.replace(b'"u2":[0,', b'"u2":[-1,0,'),
        lambda data: b"[" * 100_000,
        lambda data: b"\xff\xfe",
        lambda data: b"null",
    ],
)
def test_other_bytes_are_no_transcript(change: Callable[[bytes], bytes]) -> None:
    assert change(written("whole")) != written("whole")
    assert failed(change(written("whole"))) == Check.FORM


ODD = [
    *(None, True, -1, 2**70, 1.5, "", "\ud800", "zz", "00" * 32, "A" * 88, [], [1], [[]], ["x"], {}, {"seed": 1}),
    *({"identity": "00" * 32, "reason": "\x1b[2J"}, [{"identity": "00" * 32, "reason": "\x1b[2J"}], 10**400),
]


@pytest.mark.parametrize("name", sorted(set(LEAVES) - {"signature"}))
def test_whatever_the_coordinator_signs_is_held_or_refused(name: str) -> None:
    """Odd values anywhere, under its signature: no other exception, and nothing for a terminal to act upon."""
    fields = json.loads(written("drawn"))
    del fields["signature"]
    inner = fields[name] if isinstance(fields[name], dict) else {}
    changes = [{name: odd} for odd in ODD] + [{name: inner | {one: odd}} for one in inner for odd in ODD]
    for change in changes:
        text = compact(fields | change)
        signature = coordinator_key().sign(encode("sordino/v1/transcript", text)).hex()
        said = ""
        try:
            verify_transcript(compact({**fields, **change, "signature": signature}) + b"\n", AUTHORITY_KEY)
        except InvalidTranscript as error:
            said = str(error)
        assert said.isprintable()
        assert said or name in ("excluded", "caught", "previous", "sum_sha256", "next_model_sha256")


# ---------------------------------------------------------------- changed, and signed again by the coordinator


def charged(found: Transcript, finished: Finished, **changed: Any) -> Transcript:
    """With a charge that fits what it says now, but for what is changed."""
    document = StudyDocument.from_bytes(found.study)
    setting = replace(finished.setting, plan=document.plan)
    entry = entry_of(setting, found.round, found.attempt, changed.pop("participants", found.u3))
    row = Ledger().charge(replace(entry, **changed))
    return replace(
        found,
        numbers=found.u3,
        charge=replace(found.charge, previous=row.previous, hash=row.hash, row=row.entry.to_bytes()),
    )


def fewer_survivors(found: Transcript, finished: Finished) -> Transcript:
    """One whose signature isn't shown, so that all the others' are there."""
    assert found.u3[-1] not in dict(found.signatures)
    return charged(replace(found, u3=found.u3[:-1]), finished)


def too_few(found: Transcript, finished: Finished) -> Transcript:
    u3 = found.u3[:4]
    return replace(found, u3=u3, numbers=u3, signatures=tuple(pair for pair in found.signatures if pair[0] in u3))


def smaller_u1(found: Transcript, finished: Finished) -> Transcript:
    """The participant that did not deal is forgotten, with thresholds that fit."""
    members = members_of(found)
    del members[1]
    return with_u1(found, finished, members)


def members_of(found: Transcript) -> dict[int, Advertisement]:
    return dict(zip(found.u1, found.advertisements, strict=True))


def with_u1(found: Transcript, finished: Finished, members: dict[int, Advertisement]) -> Transcript:
    u1 = tuple(sorted(members))
    parameters = stated_parameters(finished.config.parameters, len(u1))
    return replace(found, u1=u1, advertisements=tuple(members[one] for one in u1), parameters=parameters)


def another_in_u1(position: int) -> Change:
    """A participant that wasn't asked, with keys that it signed for this very round."""

    def change(found: Transcript, finished: Finished) -> Transcript:
        losers = sorted(set(range(len(finished.config.roster))) - finished.config.invited)
        who = losers[0] if position < 0 else position
        keys = found.advertisements[0] if position >= 0 else keys_of(finished, who)
        return with_u1(found, finished, members_of(found) | {who: keys})

    return change


def keys_of(finished: Finished, who: int, mask_key: bytes | None = None) -> Advertisement:
    """Keys that a participant signs for this attempt, whatever they are."""
    key = key_of(finished.config, who)
    keys = (mask_key or b"\x05" * 32, b"\x06" * 32)
    statement = advertisement_statement(finished.config.round_context(), key.public, *keys)
    return Advertisement(*keys, key.sign(statement))


def advertised(one: Callable[[Transcript, Finished], Advertisement]) -> Change:
    """Other keys of participant 2."""

    def change(found: Transcript, finished: Finished) -> Transcript:
        before, after = found.advertisements[:2], found.advertisements[3:]
        return replace(found, advertisements=(*before, one(found, finished), *after))

    return change


def colludes(mask_key: Callable[[Transcript], bytes | None]) -> Change:
    return advertised(lambda found, finished: keys_of(finished, 2, mask_key(found)))


def own_keys(found: Transcript, finished: Finished) -> Advertisement:
    """The coordinator's keys in place of a participant's, signed with a key that it has."""
    key = IdentityKey.generate(keyed_source("the coordinator's own"))
    return replace(found.advertisements[2], mask_key=b"\x07" * 32, signature=key.sign(b"anything"))


def another_plan(found: Transcript, finished: Finished) -> Transcript:
    """One that holds, with a larger epsilon, and a charge that fits it."""
    weaker = replace(finished.setting, plan=plan(7, epsilon=200.0))
    return charged(replace(found, study=weaker.document), finished)


def broken_plan(found: Transcript, finished: Finished) -> Transcript:
    document = json.loads(found.study)
    document["plan"]["epsilon"] /= 2
    return replace(found, study=compact(document))


def a_plan_with(**changed: str) -> Change:
    """The same plan but for graph or adversary, with parameters that fit it."""

    def change(found: Transcript, finished: Finished) -> Transcript:
        setting = replace(finished.setting, plan=replace(finished.setting.plan, **changed))
        derived = stated_parameters(setting.config().parameters, len(found.u1))
        return charged(replace(found, study=setting.document, parameters=derived), finished)

    return change


def stated(**changed: Any) -> Change:
    return lambda found, _: replace(found, parameters={**found.parameters, **changed})


def another_roster(signer: Ed25519PrivateKey | None = None, **changed: Any) -> Change:
    def change(found: Transcript, finished: Finished) -> Transcript:
        setting = replace(finished.setting, **changed)
        return replace(found, roster=sign_roster(setting.roster, signer or authority()), newest=setting.newest)

    return change


def ticket_of(round_: int, seed: bytes | None = None) -> Change:
    def change(found: Transcript, finished: Finished) -> Transcript:
        draws = finished.setting.draws or Draws.draw(STUDY, 1, 5, keyed_source("draws of its own"))
        ticket = draws.ticket(round_)
        return replace(found, ticket=ticket if seed is None else replace(ticket, seed=seed))

    return change


def cheaper(found: Transcript, finished: Finished) -> Transcript:
    entry = entry_of(finished.setting, found.round, found.attempt, found.u3)
    return charged(found, finished, cost=entry.cost * 0.999)


def cheaper_elsewhere(found: Transcript, finished: Finished) -> Transcript:
    """The price at an order that only a participant of several studies looks at."""
    curve = list(entry_of(finished.setting, found.round, found.attempt, found.u3).curve)
    curve[3] = (curve[3][0], curve[3][1] * 0.5)
    return charged(found, finished, curve=tuple(curve))


def at_other_orders(found: Transcript, finished: Finished) -> Transcript:
    """The right costs, each stated at a lower order, where they are too low."""
    curve = entry_of(finished.setting, found.round, found.attempt, found.u3).curve
    return charged(found, finished, curve=tuple((order - 0.01, cost) for order, cost in curve))


def fewer_than_the_population(found: Transcript, finished: Finished) -> Transcript:
    setting = replace(finished.setting, members=finished.setting.members[:-1])
    return replace(found, roster=setting.roster_file, newest=setting.newest)


def signatures(change: Callable[[tuple[tuple[int, bytes], ...]], Any]) -> Change:
    return lambda found, _: replace(found, signatures=tuple(change(found.signatures)))


def of_attempt_two(found: Transcript, finished: Finished) -> Transcript:
    again = play(finished.setting, 1, 2, silent=[1], late=[3])
    return replace(found, signatures=again.signatures)


def caught_are(*people: int | bytes, out: tuple[int, ...] = ()) -> Change:
    """These cheated in this attempt, while others were excluded before; by position, or by identity."""

    def change(found: Transcript, finished: Finished) -> Transcript:
        roster = finished.config.roster
        named = [one if isinstance(one, bytes) else roster.identity(one) for one in people]
        return replace(
            found,
            caught=tuple(Excluded(one, "cheated") for one in named),
            excluded=tuple(Excluded(roster.identity(one), "cheated") for one in out),
        )

    return change


LIES: dict[str, dict[str, tuple[str, Change]]] = {
    "six": {"a survivor is left out": (Check.QUORUM, fewer_survivors)},
    "whole": {
        "a participant that left is a survivor": (Check.QUORUM, lambda t, f: charged(replace(t, u3=t.u2), f)),
        "u2 and u3 are swapped": (Check.SETS, lambda t, f: charged(replace(t, u2=t.u3, u3=t.u2), f)),
        "u3 is too small": (Check.SETS, too_few),
        "u2 holds a participant that isn't in u1": (Check.SETS, lambda t, _: replace(t, u2=(*t.u2, 7))),
        "u1 forgets a participant that left": (Check.QUORUM, smaller_u1),
        "u1 holds a number that isn't on the roster": (Check.LOTTERY, another_in_u1(7)),
        "keys are the coordinator's": (Check.ADVERTISEMENTS, advertised(own_keys)),
        "keys are another member's": (Check.ADVERTISEMENTS, advertised(lambda t, _: t.advertisements[4])),
        "a colluder repeats a key": (Check.ADVERTISEMENTS, colludes(lambda t: t.advertisements[0].mask_key)),
        "a colluder's key is of low order": (Check.ADVERTISEMENTS, colludes(lambda _: bytes(32))),
        "a colluder's keys come later": (Check.QUORUM, colludes(lambda _: None)),
        "two members' keys are exchanged": (
            Check.ADVERTISEMENTS,
            lambda t, _: replace(t, advertisements=(*t.advertisements[1::-1], *t.advertisements[2:])),
        ),
        "another plan that holds": (Check.STUDY, another_plan),
        "a plan that doesn't hold": (Check.STUDY, broken_plan),
        "another study": (Check.STUDY, lambda t, f: replace(t, study=replace(f.setting, study="another").document)),
        "a round behind the plan's last": (Check.STUDY, lambda t, f: charged(replace(t, round=6), f)),
        "another round": (Check.ADVERTISEMENTS, lambda t, f: charged(replace(t, round=2), f)),
        "another attempt": (Check.ADVERTISEMENTS, lambda t, f: charged(replace(t, attempt=2), f)),
        "another model": (Check.ADVERTISEMENTS, lambda t, _: replace(t, model_sha256=bytes(32))),
        "another version of the roster": (Check.ADVERTISEMENTS, another_roster(version=2)),
        "a roster without a participant that left": (Check.LOTTERY, another_roster(members=(0, 2, 3, 4, 5, 6))),
        "a roster that the coordinator signed": (Check.ROSTER, another_roster(coordinator_key())),
        "a roster of another study": (Check.ROSTER, another_roster(study="another")),
        "a roster larger than the plan": (Check.FIT, another_roster(members=tuple(range(8)))),
        "the statement of another roster": (
            Check.ROSTER,
            lambda t, f: replace(t, newest=replace(f.setting, version=2).newest),
        ),
        "a statement that the coordinator signed": (Check.ROSTER, lambda t, _: replace(t, newest=b"{}")),
        "no statement of the newest roster": (Check.STUDY, lambda t, _: replace(t, newest=b"")),
        "a lottery where there is none": (Check.LOTTERY, ticket_of(1)),
        "a lower threshold": (Check.PARAMETERS, stated(threshold=4)),
        "fewer signatures needed": (Check.PARAMETERS, stated(signatures_needed=3)),
        "the complete graph as a ring": (Check.PARAMETERS, stated(graph="harary")),
        "a plan for another adversary": (Check.STUDY, a_plan_with(adversary="curious")),
        "fewer colluders": (Check.PARAMETERS, stated(colluders=0)),
        "a signature that is none": (Check.QUORUM, signatures(lambda s: ((s[0][0], bytes(64)), *s[1:]))),
        "a signature of another": (Check.QUORUM, signatures(lambda s: ((s[0][0], s[1][1]), *s[1:]))),
        "fewer signatures than the quorum": (Check.QUORUM, signatures(lambda s: s[1:])),
        "a signer twice": (Check.QUORUM, signatures(lambda s: (s[0], s[0], *s[2:]))),
        "a signer that isn't in u3": (Check.QUORUM, signatures(lambda s: sorted((*s[:-1], (3, s[-1][1]))))),
        "signatures of another attempt": (Check.QUORUM, of_attempt_two),
        "a cheaper charge": (Check.CHARGE, cheaper),
        "a cheaper curve": (Check.CHARGE, cheaper_elsewhere),
        "a curve at other orders": (Check.CHARGE, at_other_orders),
        "a charge for fewer": (Check.CHARGE, lambda t, f: charged(t, f, participants=(*t.u3[:-1], 7))),
        "a charge of another round": (Check.CHARGE, lambda t, f: charged(t, f, round=2)),
        "a charge with more honest ones": (Check.CHARGE, lambda t, f: charged(t, f, colluders=0, honest=5)),
        "a charge under another adjacency": (Check.CHARGE, lambda t, f: charged(t, f, adjacency="other")),
        "a charge of another study": (Check.CHARGE, lambda t, f: charged(t, f, study_sha256="0" * 64)),
        "a row under another number": (Check.CHARGE, lambda t, _: replace(t, charge=replace(t.charge, number=2))),
        "a row that has no hash": (Check.CHARGE, lambda t, _: replace(t, charge=replace(t.charge, hash=bytes(32)))),
        "two survivors are one": (Check.CHARGE, lambda t, _: replace(t, numbers=(t.numbers[0], *t.numbers[:-1]))),
        "no digest of the sum": (Check.DIGESTS, lambda t, _: replace(t, sum_sha256=None)),
        "an excluded participant takes part": (Check.SETS, caught_are(out=(0,))),
        "an identity that isn't on the roster is caught": (Check.SETS, caught_are(bytes(32))),
        "a participant is caught twice": (Check.SETS, caught_are(0, 0)),
    },
    "drawn": {
        "u1 holds a participant that wasn't drawn": (Check.LOTTERY, another_in_u1(-1)),
        "a roster without its lottery": (Check.FIT, another_roster(draws=None)),
        "the ticket of another round": (Check.LOTTERY, ticket_of(3)),
        "a seed of its own": (Check.LOTTERY, ticket_of(2, bytes(32))),
        "no ticket": (Check.LOTTERY, lambda t, _: replace(t, ticket=None)),
        "a roster of fewer than the plan's population": (Check.FIT, fewer_than_the_population),
    },
    "ring": {
        "a lower threshold on the ring": (Check.PARAMETERS, stated(threshold=5)),
        "a smaller degree": (Check.PARAMETERS, stated(degree=6)),
        "another graph": (Check.PARAMETERS, stated(graph="complete")),
        "another adversary": (Check.PARAMETERS, stated(adversary="curious")),
        "a plan for another graph": (Check.STUDY, a_plan_with(graph="complete")),
    },
    "gaussian": {"a digest of a sum without noise": (Check.DIGESTS, lambda t, _: replace(t, sum_sha256=number(0) * 4))},
    "absent": {"an excluded participant is caught again": (Check.SETS, caught_are(6, out=(6,)))},
}


@pytest.mark.parametrize(("kind", "lie"), [(kind, lie) for kind, lies in LIES.items() for lie in lies])
def test_a_coordinator_that_lies_is_found_where_it_lies(kind: str, lie: str) -> None:
    check, change = LIES[kind][lie]
    honest = read_transcript(written(kind))
    changed = change(honest, round_of(kind))
    assert changed != honest
    data = signed(changed)
    assert naive(data)
    assert failed(data) == check


def test_nothing_is_proved_about_a_round_without_signatures() -> None:
    """Participants of such a round signed only their keys: anything that the coordinator writes about u3 would pass."""
    setting = whole(plan=replace(plan(7), adversary="curious"))
    finished = play(setting, late=[3])
    assert finished.signatures == ()
    assert failed(finished.write()) == Check.QUORUM
    invented = charged(replace(finished.transcript(), u2=(0, 1, 2, 4, 5), u3=(0, 1, 2, 4, 5)), finished)
    assert failed(signed(replace(invented, sum_sha256=b"s" * 32, next_model_sha256=b"n" * 32))) == Check.QUORUM


def test_a_card_binds_the_coordinators_key() -> None:
    found = read_transcript(written("whole"))
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert failed(signed(found, other)) == Check.COORDINATOR
    assert failed(signed(replace(found, card=card(key=other)), coordinator_key())) == Check.COORDINATOR
    assert failed(signed(replace(found, card=card(signer=other)))) == Check.AUTHORITY
    assert failed(signed(replace(found, card=card().replace(STUDY.encode(), b"another")))) == Check.AUTHORITY
    assert failed(signed(replace(found, card=b"null"))) == Check.AUTHORITY
    # With an authority of its own a file holds up to what the known one signed.
    assert failed(signed(replace(found, card=card(signer=other))), None) == Check.ROSTER


def test_the_first_check_that_fails_is_named() -> None:
    found, finished = read_transcript(written("whole")), round_of("whole")
    changed = replace(cheaper(found, finished), signatures=found.signatures[1:])
    assert failed(signed(changed)) == Check.QUORUM
    changed = replace(changed, parameters={**found.parameters, "degree": 5})
    assert failed(signed(changed)) == Check.PARAMETERS
    assert failed(signed(replace(changed, model_sha256=bytes(32)))) == Check.ADVERTISEMENTS
