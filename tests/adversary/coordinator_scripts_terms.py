"""Lies about the terms of a study: the study document, the roster, the lottery's draws, the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from authority.new_study import new_study
from secagg.context import winners
from secagg.lottery import Draws
from secagg.roster import NONE, RosterEntry, sign_roster
from server.sessions import Session
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.cheating_coordinator import (
    CheatingCoordinator,
    coordinator_script,
    in_attempt,
    serving,
    with_coordinator,
)
from tests.adversary.coordinator_scripts import HONEST, naive
from tests.adversary.coordinator_scripts_keys import completes
from tests.adversary.script import Naive, Places, Seen
from tests.adversary.served_study import STUDIES, public_of
from tests.adversary.watched_clients import joined
from tests.support.card_of_a_study import authority_of
from wire import coordinator_pb2 as pb
from wire.study import StudyDocument, read_draws

PARTICIPANT = "client.participant"


# ---------------------------------------------------------------- the study document


def with_document(
    script: str, must: str, check: Naive, document: Callable[[CheatingCoordinator], bytes], **policy: Any
) -> None:
    """Register a script that serves this document of the study "nine" from the first session on.

    If the clients accept it, a round follows.
    """

    @coordinator_script(must, check, outcome="leaves", script=script)
    async def run(places: Places) -> Seen:
        async with serving(places) as coordinator:
            coordinator.sign_terms(document(coordinator))
            async with joined(coordinator, policy=policy):
                if (seen := coordinator.gone()) is not None:
                    return seen
                read = StudyDocument.from_bytes(coordinator.public.study_bytes)
                coordinator.public = dataclasses.replace(coordinator.public, document=read)
                return await completes(coordinator, 1)


def with_plan(coordinator: CheatingCoordinator, **changed: Any) -> bytes:
    document = json.loads(coordinator.public.study_bytes)
    for name, value in changed.items():
        assert document["plan"][name] != value
        document["plan"][name] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def less_noise(coordinator: CheatingCoordinator) -> bytes:
    variance = round(coordinator.public.document.plan.local_variance / 4)
    return with_plan(coordinator, local_variance=f"{variance}/1")


NO_THRESHOLD = Naive.lacking("secagg.parameters", "is below the threshold", shows="sum")


def below_the_threshold(coordinator: CheatingCoordinator) -> bytes:
    with NO_THRESHOLD.switched_off():
        five = {"name": "nine", "min_survivors": 5, "quorum": 5, "hosts": 9}
        plan = new_study(**{**STUDIES["nine"], **five}).study.plan()
        return dataclasses.replace(coordinator.public.document, plan=plan).to_bytes()


with_document(
    "fewer-survivors-than-policy-allows: Runs a study whose sums may hold six, for participants whose policy requires "
    "eight.",
    "They leave before any round.",
    Naive.instead("client.policy", "plan.min_survivors, survive", "10**6, survive", shows="sum"),
    lambda one: one.public.study_bytes,
    min_survivors=8,
)
with_document(
    "survivors-below-the-threshold: Runs a study whose plan, with enough noise, allows sums of five, where seven "
    "honest participants and two colluders need six to share with.",
    "They leave: the protocol's parameters are checked against each other.",
    NO_THRESHOLD,
    below_the_threshold,
)
with_document(
    "less-noise-than-promised: Runs a study whose plan states the same epsilon with a quarter of the noise's variance.",
    "They leave: epsilon is computed again from the noise.",
    Naive.lacking("mechanisms.plan", "exceeds the target", "exceeds its budget", shows="sum"),
    less_noise,
)
with_document(
    "fewer-colluders-assumed: States in the plan that there are no colluders, so that less noise would be enough.",
    "They leave: A is computed again from the share of adversarial participants.",
    Naive.lacking("wire.study", "the plan assumes fewer colluders", shows="sum"),
    lambda one: with_plan(one, colluders=0, k_stddevs=3.0),  # more noise would stay in, and some sums could wrap
)


@coordinator_script(
    "They leave: a study keeps the document that was accepted first.",
    Naive.lacking("client.journal", "differ from the ones this host accepted first", shows="goes on"),
    outcome="leaves",
)
async def another_document_later(places: Places) -> Seen:
    """Replaces the study document, after the first was accepted, by one with smaller sums."""
    async with serving(places, "strict") as coordinator:
        async with joined(coordinator):
            pass
        await coordinator.until_left()
        # It differs from that of "strict" only in that it allows sums of six, not of eight.
        weaker = public_of(places.study("weaker", **STUDIES["weaker"])).study_bytes
        coordinator.sign_terms(weaker, version=2, previous=coordinator.roster.digest())
        async with joined(coordinator):
            if (seen := coordinator.gone()) is not None:
                return seen
            attempt = await coordinator.begin()
            return dataclasses.replace(attempt.verdict(), detail="the second document is accepted")


@coordinator_script(
    "They leave: the roster's signature covers the terms.",
    Naive.lacking(
        "client.study_terms",
        "unsigned-terms: the authority signed version",
        also=(Naive.lacking("secagg.context", "the terms of another study document"),),
        shows="sum",
    ),
    outcome="leaves",
)
async def terms_that_the_authority_has_not_signed(places: Places) -> Seen:
    """Serves terms that the participant's policy accepts, and that the authority has not signed with the roster."""
    async with serving(places) as coordinator:
        document = json.loads(coordinator.public.study_bytes)
        document["plan"]["rounds"] -= 1
        data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        coordinator.public = dataclasses.replace(
            coordinator.public, study_bytes=data, document=StudyDocument.from_bytes(data)
        )
        coordinator.study_sha256 = coordinator.add(data)
        async with joined(coordinator):
            return coordinator.gone() or await completes(coordinator, 1)


# ---------------------------------------------------------------- the roster


def roster(
    coordinator: CheatingCoordinator,
    version: int,
    *,
    without: int | None = None,
    sybil: bool = False,
    signer: Ed25519PrivateKey | None = None,
) -> bytes:
    """Make another version, without one participant or with an invented one, by default signed by the authority."""
    entries = [entry for at, entry in enumerate(coordinator.roster.entries) if at != without]
    if sybil:
        entries.append(RosterEntry(hashlib.sha256(b"sybil").digest(), "elsewhere"))
    ordered = tuple(sorted(entries, key=lambda entry: entry.identity))
    previous = coordinator.roster.digest() if version > 1 else NONE
    changed = dataclasses.replace(coordinator.roster, version=version, entries=ordered, previous=previous)
    return sign_roster(changed, signer or authority_of(coordinator.public.folder))


Start = Callable[[CheatingCoordinator], dict[str, Any]]
"""The arguments of `CheatingCoordinator.begin`."""


def announced(script: str, must: str, check: Naive, *starts: Start, study: str = "nine") -> None:
    """Register a script that announces rounds which begin so, one after another; the verdict is on the last."""

    @with_coordinator(must, check, script=script, study=study)
    async def run(coordinator: CheatingCoordinator) -> Seen:
        for round_, start in enumerate(starts, 1):
            attempt = await coordinator.begin(round_, **start(coordinator))
        return attempt.verdict(never="advertise_keys")


def with_roster(version: int, **changes: Any) -> Start:
    return lambda one: {"roster": roster(one, version, **changes)}


def with_statement(**changes: Any) -> Start:
    return lambda one: {"newest": one.statement(**changes)}


NO_FIT = Naive.instead(
    "wire.study",
    "def check_roster_fits(plan: Plan, roster: Roster) -> None:\n",
    "def check_roster_fits(plan: Plan, roster: Roster) -> None:\n    return\n",
)
WHOLE_ROSTER = "the cohort is not the whole roster"
announced(
    "roster-of-its-own: Shows a roster with an invented participant, signed by a key made by the coordinator.",
    "All refuse.",
    Naive.lacking(
        "secagg.roster", "not signed by this study's authority", also=(NO_FIT, naive(WHOLE_ROSTER)), shows="goes on"
    ),
    with_roster(2, sybil=True, signer=Ed25519PrivateKey.from_private_bytes(b"s" * 32)),
)
announced(
    "roster-larger-than-the-cohort: Begins a round with a roster of ten, signed by the authority, under a plan for "
    "nine: the coordinator would choose which one is left out.",
    "All refuse: the cohort is the whole roster, or drawn.",
    naive(WHOLE_ROSTER, also=(NO_FIT,), shows="goes on"),
    with_roster(2, sybil=True),
)
announced(
    "roster-that-goes-back: Shows version 3 of the roster, then version 2, which again lists a revoked participant.",
    "All refuse version 2.",
    Naive.lacking("wire.roster_history", "is older than version", "doesn't lead back", shows="goes on"),
    with_roster(3, without=8),
    with_roster(2),
)
announced(
    "two-rosters-of-one-version: Shows another version 1 of the roster than before, also signed by the authority.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "of the roster than was seen before", shows="goes on"),
    with_roster(1, without=8),
)


announced(
    "fork-of-the-roster: Shows version 2 of the roster, then a version 3 that doesn't follow it: the authority's "
    "folder was restored from an older copy, or its key is in two hands.",
    "All refuse: the history of a later version must hold the one that was seen.",
    Naive.lacking("wire.roster_history", "doesn't lead back to version", shows="goes on"),
    with_roster(2, without=8),
    with_roster(3),
)


announced(
    "old-statement-of-the-newest-roster: Withholds a later roster, without a revoked participant: it shows the "
    "authority's last statement of the one before, which has ended.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "now >= self.until", shows="goes on"),
    with_statement(signed=time.time() - 7200, valid_s=3600),
)
announced(
    "statement-that-is-valid-for-too-long: Shows a statement that is valid for longer than the terms allow, as an "
    "authority makes it by mistake.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "is valid for longer than the terms allow", shows="goes on"),
    with_statement(valid_s=366 * 86_400),
)
announced(
    "statement-from-the-future: Keeps a statement that the authority signed when its clock was a day ahead: it holds "
    "for a day longer.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "MOST_AHEAD_S", shows="goes on"),
    with_statement(signed=time.time() + 86_400),
)
announced(
    "statement-of-its-own: Shows a statement that it signed itself: the authority's last one has ended.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "the newest roster is not signed by", shows="goes on"),
    with_statement(signed_by=Ed25519PrivateKey.generate()),
)
announced(
    "no-statement-of-the-newest-roster: Begins a round without the authority's statement that the roster is the "
    "newest.",
    "All refuse.",
    Naive.instead(
        "client.study_terms",
        "if not valid_s:\n            return",
        "if not statement:\n            return",
        shows="goes on",
    ),
    lambda _: {"newest": b""},
)
announced(
    "statement-of-another-roster: Shows an older roster with the statement of the newest one.",
    "All refuse.",
    Naive.lacking("wire.roster_history", "is that version {self.version}", shows="goes on"),
    lambda one: {"newest": one.statement(roster(one, 2, without=8))},
)


@with_coordinator(
    "It refuses, and the others take part.",
    naive("this participant is not on the roster", "this participant did not win", shows="goes on"),
)
async def taken_off_the_roster(coordinator: CheatingCoordinator) -> Seen:
    """Announces a round to a participant that the authority has taken off the roster."""
    attempt = await coordinator.begin(roster=roster(coordinator, 2, without=0))
    assert all(attempt.heard(who, "advertise_keys") is not None for who in HONEST - {0})
    return attempt.verdict([0], "advertise_keys")


@with_coordinator("All refuse that round, and take part in the next.", outcome="sum")
async def roster_that_is_not_there(coordinator: CheatingCoordinator) -> Seen:
    """Names a roster in a round, and does not serve it."""
    data = roster(coordinator, 2)
    there = coordinator.requested

    async def requested(session: Session, request: pb.DocumentRequest) -> bytes | None:
        return None if request.sha256 == hashlib.sha256(data).digest() else await there(session, request)

    coordinator.requested = requested  # type: ignore[method-assign]
    attempt = await coordinator.begin(roster=data)
    seen = attempt.verdict(never="advertise_keys")
    return await completes(coordinator, 2) if seen.outcome == "refused" else seen


# ---------------------------------------------------------------- the lottery


def draws_of(coordinator: CheatingCoordinator) -> Draws:
    data = (coordinator.public.folder / "lottery.json").read_bytes()
    draws = read_draws(coordinator.roster, data, coordinator.public.document.plan)
    assert draws is not None
    return draws


drawn = partial(announced, study="drawn")


NOT_THE_DRAW = Naive.lacking("secagg.context", "is not the one that the authority drew")
drawn(
    "no-draw: Begins a round of a study with drawn cohorts, and shows no draw: the coordinator would choose the "
    "cohort.",
    "All refuse.",
    Naive(
        PARTICIPANT,
        without=("the plan draws cohorts, and the round has no ticket",),
        changed={"ticket = codec.read_ticket(message.ticket)": "pass"},
        also=(naive(WHOLE_ROSTER),),
        shows="goes on",
    ),
    lambda _: {},
)
drawn(
    "a-draw-of-its-own: Begins a round with a seed that the coordinator chose.",
    "All refuse: the roster's signature covers all seeds.",
    NOT_THE_DRAW,
    lambda one: {"ticket": dataclasses.replace(draws_of(one).ticket(1), seed=b"x" * 32)},
)
drawn(
    "the-draw-of-another-round: Begins round 1 with the draw of round 2.",
    "All refuse.",
    NOT_THE_DRAW,
    lambda one: {"ticket": draws_of(one).ticket(2)},
)


@with_coordinator(
    "All refuse: the roster is smaller than the plan's population.",
    Naive.lacking(PARTICIPANT, "must be on the roster before a round", shows="goes on"),
    study="drawn",
)
async def roster_of_fewer_than_the_population(coordinator: CheatingCoordinator) -> Seen:
    """Begins a round under a roster that the authority signed before all had joined: so few are drawn from that each is
    more likely in the cohort than the plan says, and epsilon is larger."""
    draws = Draws.draw(coordinator.roster.study, 2, 3, os.urandom)
    entries = coordinator.roster.entries[:-1]
    few = dataclasses.replace(
        coordinator.roster, version=2, entries=entries, lottery=draws.lottery, previous=coordinator.roster.digest()
    )
    data = sign_roster(few, authority_of(coordinator.public.folder))
    attempt = await coordinator.begin(roster=data, ticket=draws.ticket(1))
    invited = winners(few, 1, draws.ticket(1), coordinator.public.document.plan.clients)
    return attempt.verdict(invited & coordinator.honest, "advertise_keys")


@with_coordinator(
    "They refuse; the winners' sum opens.",
    naive("this participant did not win the round's lottery", shows="goes on"),
    outcome="sum of the others",
    study="drawn",
)
async def invited_without_having_won(coordinator: CheatingCoordinator) -> Seen:
    """Announces a round to participants that did not win its lottery."""
    attempt = await coordinator.begin(ticket=draws_of(coordinator).ticket(1))
    seen = attempt.verdict(coordinator.honest - attempt.config.invited, "advertise_keys")
    cohort = await attempt.run(attempt.cohort(attempt.config.invited))
    if seen.outcome == "refused" and attempt.opened(cohort, attempt.config.invited):
        return coordinator.came_out("sum of the others")
    return seen


@with_coordinator(
    "They refuse.", naive("this participant did not win the round's lottery", shows="goes on"), study="dealt"
)
async def invited_twice_in_an_epoch(coordinator: CheatingCoordinator) -> Seen:
    """Announces the second round of an epoch to those that were in its first."""
    plan, draws = coordinator.public.document.plan, draws_of(coordinator)
    first = winners(coordinator.roster, 1, draws.ticket(1, plan.epoch_rounds), plan.clients, plan.epoch_rounds)
    attempt = await coordinator.begin(2, ticket=draws.ticket(2, plan.epoch_rounds))
    return attempt.verdict(first & coordinator.honest, "advertise_keys")


@with_coordinator(
    "The winner refuses: every member of u1 must have won.",
    naive("u1 names a participant that is not on the roster", shows="goes on"),
    study="drawn",
    colluders=5,
)
async def colluders_who_have_not_won(coordinator: CheatingCoordinator) -> Seen:
    """Puts colluders that did not win the lottery into the cohort of a winner, in the place of absent winners."""
    draws, plan = draws_of(coordinator), coordinator.public.document.plan
    # The first round that some colluder has lost.
    round_ = next(
        number
        for number in range(1, plan.rounds + 1)
        if coordinator.colluders - winners(coordinator.roster, number, draws.ticket(number), plan.clients)
    )
    attempt = await coordinator.begin(round_, ticket=draws.ticket(round_))
    invited = attempt.config.invited
    absent = sorted(coordinator.colluders - invited)
    for who in absent:
        attempt.force(who)
    victim = min(coordinator.honest & invited)
    others = sorted(invited - {victim})[len(absent) :]
    await attempt.show(attempt.cohort({victim, *others, *absent}), [victim])
    return attempt.verdict([victim], "share_keys")


# ---------------------------------------------------------------- the model


def with_model(script: str, must: str, check: Naive, data: bytes, named: bytes) -> None:
    """Register a script of a round whose model has the digest of `named` and is served as `data`."""

    @with_coordinator(must, check, script=script)
    async def run(coordinator: CheatingCoordinator) -> Seen:
        digest = coordinator.add(named)
        coordinator.documents[digest] = data
        coordinator.add = lambda _: digest  # type: ignore[method-assign]
        attempt = await coordinator.begin(model=named)
        await attempt.run()
        return attempt.verdict(never="masked_input")


with_model(
    "model-with-other-bytes: Serves another model than the one whose digest the round names.",
    "All refuse before anything is charged.",
    Naive.lacking("client.connection", "a document doesn't have the digest that was announced", shows="goes on"),
    data=bytes(44) + b"\x00\x00\x80\x3f",
    named=bytes(48),
)
with_model(
    "model-that-never-ends: Serves a document a hundred times as long as the model can be.",
    "All stop reading, and refuse.",
    Naive(
        "client.connection",
        changed={'raise DocumentMismatch(f"a document is longer than {largest} bytes")': "pass"},
        also=(Naive.instead("wire.round_model", "if len(data) != model_bytes(dim, rule):", "if False:"),),
        shows="goes on",
    ),
    data=bytes(4800),
    named=bytes(4800),
)


@in_attempt(
    "They refuse by their policy.",
    Naive.lacking("client.policy", "which {key} doesn't hold", shows="goes on"),
    outcome="refused by policy",
    policy={"model_digests": ("ab" * 32,)},
)
async def model_that_policy_does_not_list(attempt: Attempt) -> Seen:
    """Begins a round from a model that the participants' policy does not list."""
    return attempt.verdict(never="advertise_keys")
