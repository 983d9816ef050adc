"""Lies about what all of it is under: the study document, the roster, the lottery's draws, the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from authority.new_study import new_study
from secagg.context import winners
from secagg.lottery import Draws, Ticket
from secagg.roster import Roster, RosterEntry, sign_roster
from tests.adversary.cheating_coordinator import CheatingCoordinator, cheating, serving
from tests.adversary.coordinator_scripts import HONEST, naive
from tests.adversary.coordinator_scripts_keys import completes
from tests.adversary.script import COORDINATOR, Naive, Places, Seen, scripted
from tests.adversary.served_study import STUDIES, public_of
from tests.adversary.watched_clients import joined
from wire.study import StudyDocument, read_draws

PARTICIPANT = "client.participant"


# ---------------------------------------------------------------- the study document


async def with_document(
    places: Places, study: str, document: Callable[[CheatingCoordinator], bytes], **policy: Any
) -> Seen:
    """Show this document from the first session on; go through a round with it if that is taken."""
    async with serving(places, study) as coordinator:
        coordinator.public = dataclasses.replace(coordinator.public, study_bytes=document(coordinator))
        coordinator.study_sha256 = coordinator.add(coordinator.public.study_bytes)
        async with joined(coordinator, policy=policy):
            if (seen := coordinator.gone()) is not None:
                return seen
            read = StudyDocument.from_bytes(coordinator.public.study_bytes)
            coordinator.public = dataclasses.replace(coordinator.public, document=read)
            return await completes(coordinator, 1, 1)


def weaker(places: Places) -> bytes:
    """A document of the study "strict" that would be good, but for sums of six where eight were agreed to."""
    return public_of(places.study("weaker", **STUDIES["weaker"])).study_bytes


def with_plan(coordinator: CheatingCoordinator, **changed: Any) -> bytes:
    document = json.loads(coordinator.public.study_bytes)
    for name, value in changed.items():
        assert document["plan"][name] != value
        document["plan"][name] = value
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def noise(coordinator: CheatingCoordinator, factor: Fraction) -> str:
    """The plan's variance, larger or smaller, as the plan writes it."""
    wanted = Fraction(coordinator.public.document.plan.local_variance) * factor
    return f"{wanted.numerator}/{wanted.denominator}"


@scripted(
    name="fewer-survivors-than-her-policy",
    cheat=COORDINATOR,
    does="Runs a study whose sums may hold six, to people whose policy asks for eight.",
    must="They leave before any round.",
    outcome="leaves",
    check=(Naive("client.policy", changed=(("plan.min_survivors, f", "10**6, f"),), shows="sum"),),
)
async def policy_survivors(places: Places) -> Seen:
    return await with_document(places, "nine", lambda one: one.public.study_bytes, min_survivors=8)


@scripted(
    name="another-document-later",
    cheat=COORDINATOR,
    does="Replaces the study document, after the first was accepted, by one with smaller sums.",
    must="They leave: a study keeps the document that was accepted first.",
    outcome="leaves",
    check=(Naive("client.journal", without=("differs from the one this host accepted first",), shows="goes on"),),
)
async def another_document(places: Places) -> Seen:
    async with serving(places, "strict") as coordinator:
        async with joined(coordinator):
            pass
        await coordinator.until_left()
        coordinator.study_sha256 = coordinator.add(weaker(places))
        async with joined(coordinator):
            if (seen := coordinator.gone()) is not None:
                return seen
            attempt = await coordinator.begin()
            return dataclasses.replace(attempt.verdict(), detail="the second document is accepted")


NO_THRESHOLD = Naive("secagg.parameters", without=("is below the threshold",), shows="sum")


@scripted(
    name="survivors-below-the-threshold",
    cheat=COORDINATOR,
    does="Runs a study whose plan, with enough noise, lets sums hold five, where seven honest and two colluders need "
    "six to share with.",
    must="They leave: the protocol's numbers are held against each other.",
    outcome="leaves",
    check=(NO_THRESHOLD,),
)
async def below_the_threshold(places: Places) -> Seen:
    with NO_THRESHOLD.switched_off():
        five = {"name": "nine", "min_survivors": 5, "quorum": 5, "hosts": 9}
        plan = new_study(**{**STUDIES["nine"], **five}).study.plan()
    return await with_document(
        places, "nine", lambda one: dataclasses.replace(one.public.document, plan=plan).to_bytes()
    )


@scripted(
    name="less-noise-than-promised",
    cheat=COORDINATOR,
    does="Runs a study whose plan states the same epsilon with a quarter of the noise's variance.",
    must="They leave: epsilon is computed again from the noise.",
    outcome="leaves",
    check=(Naive("mechanisms.plan", without=("exceeds the target", "exceeds its budget"), shows="sum"),),
)
async def less_noise(places: Places) -> Seen:
    return await with_document(places, "nine", lambda one: with_plan(one, local_variance=noise(one, Fraction(1, 4))))


@scripted(
    name="fewer-colluders-assumed",
    cheat=COORDINATOR,
    does="Writes into the plan that nobody colludes, so that less noise would be enough.",
    must="They leave: A is computed again from the share of adversarial participants.",
    outcome="leaves",
    check=(Naive("wire.study", without=("the plan assumes fewer colluders",), shows="sum"),),
)
async def no_colluders(places: Places) -> Seen:
    return await with_document(places, "nine", lambda one: with_plan(one, colluders=0))


# ---------------------------------------------------------------- the roster


def authority_of(coordinator: CheatingCoordinator) -> Ed25519PrivateKey:
    data = (coordinator.public.folder / "authority" / "authority.key").read_bytes()
    key = load_pem_private_key(data, None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def roster(
    coordinator: CheatingCoordinator, version: int, *, without: int | None = None, sybil: bool = False
) -> Roster:
    """A later version: without somebody, or with somebody invented."""
    entries = [entry for at, entry in enumerate(coordinator.roster.entries) if at != without]
    if sybil:
        entries.append(RosterEntry(hashlib.sha256(b"sybil").digest(), "elsewhere"))
    ordered = tuple(sorted(entries, key=lambda entry: entry.identity))
    return dataclasses.replace(coordinator.roster, version=version, entries=ordered)


async def rounds_with(places: Places, *rosters: Callable[[CheatingCoordinator], bytes]) -> Seen:
    """Announce a round with each roster; the verdict is on the last."""
    async with cheating(places) as coordinator:
        for round_, make in enumerate(rosters, 1):
            attempt = await coordinator.begin(round_, roster=make(coordinator))
        return attempt.verdict(never="advertise_keys")


NO_FIT = Naive(
    "wire.study",
    changed=(
        (
            "def check_roster_fits(plan: Plan, roster: Roster) -> None:\n",
            "def check_roster_fits(plan: Plan, roster: Roster) -> None:\n    return\n",
        ),
    ),
)


@scripted(
    name="roster-of-its-own",
    cheat=COORDINATOR,
    does="Shows a roster with an invented participant, signed by a key of the coordinator's own.",
    must="Everybody refuses.",
    outcome="refused",
    check=(
        Naive(
            "secagg.roster",
            without=("not signed by this study's authority",),
            also=(NO_FIT, naive("the cohort is not the whole roster")),
            shows="goes on",
        ),
    ),
)
async def own_roster(places: Places) -> Seen:
    stranger = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    return await rounds_with(places, lambda one: sign_roster(roster(one, 2, sybil=True), stranger))


@scripted(
    name="roster-larger-than-the-cohort",
    cheat=COORDINATOR,
    does="Begins a round with a roster of ten, signed by the authority, under a plan for nine: the coordinator would "
    "choose who is left out.",
    must="Everybody refuses: the cohort is the whole roster, or drawn.",
    outcome="refused",
    check=(naive("the cohort is not the whole roster", also=(NO_FIT,), shows="goes on"),),
)
async def larger_roster(places: Places) -> Seen:
    return await rounds_with(places, lambda one: sign_roster(roster(one, 2, sybil=True), authority_of(one)))


@scripted(
    name="roster-that-goes-back",
    cheat=COORDINATOR,
    does="Shows version 3 of the roster, then version 2, on which somebody who was revoked is back.",
    must="Everybody refuses version 2.",
    outcome="refused",
    check=(Naive("client.journal", without=("but version {rows[0][1]} was seen before",), shows="goes on"),),
)
async def roster_goes_back(places: Places) -> Seen:
    return await rounds_with(
        places,
        lambda one: sign_roster(roster(one, 3, without=8), authority_of(one)),
        lambda one: sign_roster(roster(one, 2), authority_of(one)),
    )


@scripted(
    name="two-rosters-of-one-version",
    cheat=COORDINATOR,
    does="Shows another version 1 of the roster than before, also signed by the authority.",
    must="Everybody refuses.",
    outcome="refused",
    check=(Naive("client.journal", without=("of the roster than was seen before",), shows="goes on"),),
)
async def two_rosters(places: Places) -> Seen:
    return await rounds_with(places, lambda one: sign_roster(roster(one, 1, without=8), authority_of(one)))


@scripted(
    name="taken-off-the-roster",
    cheat=COORDINATOR,
    does="Announces a round to somebody whom the authority has taken off the roster.",
    must="She refuses, and the others take part.",
    outcome="refused",
    check=(naive("this participant is not on the roster", "this participant did not win", shows="goes on"),),
)
async def taken_off(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        data = sign_roster(roster(coordinator, 2, without=0), authority_of(coordinator))
        attempt = await coordinator.begin(roster=data)
        assert all(attempt.heard(who, "advertise_keys") is not None for who in HONEST - {0})
        return attempt.verdict([0], "advertise_keys")


@scripted(
    name="roster-that-is-not-there",
    cheat=COORDINATOR,
    does="Names a roster in a round, and doesn't hand it out.",
    must="Everybody refuses that round, and takes part in the next.",
    outcome="sum",
    check=(),
)
async def no_roster(places: Places) -> Seen:
    async with cheating(places) as coordinator:
        data = sign_roster(roster(coordinator, 2), authority_of(coordinator))
        coordinator.document = lambda sha256: (  # type: ignore[method-assign]
            None if sha256 == hashlib.sha256(data).digest() else coordinator.documents.get(sha256)
        )
        attempt = await coordinator.begin(roster=data)
        seen = attempt.verdict(never="advertise_keys")
        return await completes(coordinator, 2, 1) if seen.outcome == "refused" else seen


# ---------------------------------------------------------------- the lottery


def draws_of(coordinator: CheatingCoordinator) -> Draws:
    data = (coordinator.public.folder / "lottery.json").read_bytes()
    draws = read_draws(coordinator.roster, data, coordinator.public.document.plan)
    assert draws is not None
    return draws


async def drawn(places: Places, make: Callable[[CheatingCoordinator], tuple[int, Ticket | None]]) -> Seen:
    """A round with this ticket, to everybody."""
    async with cheating(places, "drawn") as coordinator:
        round_, ticket = make(coordinator)
        attempt = await coordinator.begin(round_, ticket=ticket)
        return attempt.verdict(never="advertise_keys")


@scripted(
    name="no-draw",
    cheat=COORDINATOR,
    does="Begins a round of a study with drawn cohorts, and shows no draw: the coordinator would choose the cohort.",
    must="Everybody refuses.",
    outcome="refused",
    check=(
        Naive(
            PARTICIPANT,
            without=("the plan draws cohorts, and the round has no ticket",),
            changed=(("ticket = codec.read_ticket(message.ticket)", "pass"),),
            also=(naive("the cohort is not the whole roster"),),
            shows="goes on",
        ),
    ),
)
async def no_draw(places: Places) -> Seen:
    return await drawn(places, lambda one: (1, None))


@scripted(
    name="a-draw-of-its-own",
    cheat=COORDINATOR,
    does="Begins a round with a seed that the coordinator chose.",
    must="Everybody refuses: the roster's signature covers all seeds.",
    outcome="refused",
    check=(Naive("secagg.context", without=("is not the one that the authority drew",)),),
)
async def own_draw(places: Places) -> Seen:
    return await drawn(places, lambda one: (1, dataclasses.replace(draws_of(one).ticket(1), seed=b"x" * 32)))


@scripted(
    name="the-draw-of-another-round",
    cheat=COORDINATOR,
    does="Begins round 1 with the draw of round 2.",
    must="Everybody refuses.",
    outcome="refused",
    check=(Naive("secagg.context", without=("is not the one that the authority drew",)),),
)
async def other_draw(places: Places) -> Seen:
    return await drawn(places, lambda one: (1, draws_of(one).ticket(2)))


def losers_of(coordinator: CheatingCoordinator, attempt: Any) -> frozenset[int]:
    return coordinator.honest - attempt.config.invited


@scripted(
    name="invited-without-having-won",
    cheat=COORDINATOR,
    does="Announces a round to participants who did not win its lottery.",
    must="They refuse; the winners' sum comes out.",
    outcome="sum of the others",
    check=(naive("this participant did not win the round's lottery", shows="goes on"),),
)
async def not_won(places: Places) -> Seen:
    async with cheating(places, "drawn") as coordinator:
        attempt = await coordinator.begin(ticket=draws_of(coordinator).ticket(1))
        losers = losers_of(coordinator, attempt)
        seen = attempt.verdict(losers, "advertise_keys")
        cohort = await attempt.run(attempt.cohort(attempt.config.invited))
        if seen.outcome == "refused" and attempt.opened(cohort, attempt.config.invited):
            return coordinator.came_out("sum of the others")
        return seen


@scripted(
    name="colluders-who-have-not-won",
    cheat=COORDINATOR,
    does="Puts colluders who did not win the lottery into the cohort of somebody who did, in the place of absent "
    "winners.",
    must="She refuses: every member of u1 must have won.",
    outcome="refused",
    check=(naive("u1 names a participant that is not on the roster", shows="goes on"),),
)
async def among_losers(places: Places) -> Seen:
    async with cheating(places, "drawn", colluders=5) as coordinator:
        draws, plan = draws_of(coordinator), coordinator.public.document.plan
        # A round that some colluder has lost: in one of them all may have won.
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


async def with_model(places: Places, data: bytes | None, named: bytes) -> Seen:
    """A round whose model has the digest of `named` and is served as `data`."""
    async with cheating(places) as coordinator:
        digest = coordinator.add(named)
        if data is None:
            del coordinator.documents[digest]
        else:
            coordinator.documents[digest] = data
        coordinator.add = lambda _: digest  # type: ignore[method-assign]
        attempt = await coordinator.begin(model=named)
        await attempt.run()
        return attempt.verdict(never="masked_input")


@scripted(
    name="model-with-other-bytes",
    cheat=COORDINATOR,
    does="Hands out another model than the one whose digest the round names.",
    must="Everybody refuses before anything is charged.",
    outcome="refused",
    check=(
        Naive("client.connection", without=("a document doesn't have the digest that was announced",), shows="goes on"),
    ),
)
async def other_bytes(places: Places) -> Seen:
    return await with_model(places, bytes(44) + b"\x00\x00\x80\x3f", bytes(48))


@scripted(
    name="model-that-never-ends",
    cheat=COORDINATOR,
    does="Hands out a document a hundred times as long as the model can be.",
    must="Everybody stops reading, and refuses.",
    outcome="refused",
    check=(
        Naive(
            "client.connection",
            changed=(('raise DocumentMismatch(f"a document is longer than {largest} bytes")', "pass"),),
            also=(Naive("wire.round_model", changed=(("if len(data) != model_bytes(dim, rule):", "if False:"),)),),
            shows="goes on",
        ),
    ),
)
async def endless_model(places: Places) -> Seen:
    data = bytes(4800)
    return await with_model(places, data, data)


@scripted(
    name="model-that-policy-does-not-list",
    cheat=COORDINATOR,
    does="Begins a round from a model that a participant's policy doesn't list.",
    must="She refuses by her policy.",
    outcome="refused by policy",
    check=(Naive("client.policy", without=("which {key} doesn't hold",), shows="goes on"),),
)
async def unlisted_model(places: Places) -> Seen:
    async with cheating(places, policy={"model_digests": ("ab" * 32,)}) as coordinator:
        attempt = await coordinator.begin()
        return attempt.verdict(never="advertise_keys")
