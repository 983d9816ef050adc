"""From many signatures over the survivor sets a participant checks a random sample: its size, and what it finds."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import comb
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from secagg import client_unmasking, spot_checks
from secagg.client_cohort import Cohort
from secagg.context import set_of, survivor_statement
from secagg.errors import CoordinatorMisbehaved
from secagg.graph import graph_of
from secagg.keys import upload_statement
from secagg.messages import ConsistencySignature, Subset, SurvivorSets, UnmaskingReply, UnmaskingRequest, to_bitmap
from secagg.roster import Roster
from secagg.server_cohort import SignedSets, Upload
from secagg.spot_checks import CHECK_ALL, sample_size, signatures_to_check
from tests.support.attempts_in_memory import identities, make_config
from tests.support.naive_variants import CLIENT, Side, changed
from tests.support.small_rings import Rings

MEMBERS, ME = 300, 7
RING: Rings = ((MEMBERS, 20, 12),)
ON_BOTH_GRAPHS = pytest.mark.parametrize("rings", [(), RING], ids=["complete", "ring"])
CONTEXT = bytes(range(32))
ROUNDS = 40  # of each attack: a naive participant falls for it nearly always


# ---------------------------------------------------------------- how many


@given(shown=st.integers(1, 3000), share=st.floats(0, 1))
def test_the_sample_is_the_smallest_that_is_sure_enough(shown: int, share: float) -> None:
    """Held against exact binomial coefficients."""
    needed = max(1, round(share * shown))
    size = sample_size(shown, needed)

    def passes_too_often(sample: int) -> bool:
        """Of those shown one too few are valid, and all of the sample are, with a chance above 2^-64."""
        return comb(needed - 1, sample) << 64 > comb(shown, sample)

    assert not passes_too_often(size)
    assert size == 0 or passes_too_often(size - 1)
    assert size <= needed


def test_what_is_checked_hardly_grows_with_the_cohort() -> None:
    """93 of 100 sign; 526 of 1,000 are needed."""
    sizes = {n: sample_size(n * 93 // 100, n * 105 // 200 + 1) for n in (1000, 10_000, 60_000)}
    assert sizes == {1000: 74, 10_000: 78, 60_000: 78}
    assert sample_size(526, 526) == 526  # none may be wrong
    assert sample_size(500, 0) == sample_size(500, -3) == 0


def test_few_are_all_checked_and_the_certain_ones_always() -> None:
    few, certain = list(range(100)), list(range(1000, 1028))
    assert len(few) + len(certain) == CHECK_ALL
    assert sorted(signatures_to_check(few, certain, 60, os.urandom)) == few + certain
    many = list(range(930))
    seen: set[int] = set()
    for _ in range(50):
        drawn = signatures_to_check(many, certain, 526, os.urandom)
        assert set(certain) <= set(drawn)
        assert len(drawn) == len(set(drawn)) == len(certain) + sample_size(930, 526 - len(certain))
        seen |= set(drawn)
    assert len(seen) > 900  # others each time, so that they can't be predicted


def test_every_entry_is_drawn_as_often_as_any_other() -> None:
    """4,000 samples of 40 of 200: each entry 800 times, give or take 25."""
    drawn = Counter(one for _ in range(4000) for one in signatures_to_check(range(200), (), 80, os.urandom))
    assert sample_size(200, 80) == 40
    assert set(drawn) == set(range(200))
    assert all(abs(times - 800) < 8 * 25.3 for times in drawn.values())


# ---------------------------------------------------------------- what it finds


@cache
def cohort_of(rings: Rings) -> Cohort:
    config = make_config(MEMBERS, rings=rings)
    u1 = tuple(range(MEMBERS))
    return Cohort(config, CONTEXT, graph_of(u1, config.parameters, CONTEXT), ME, {}, os.urandom)


@cache
def signatures_over_everybody() -> dict[int, bytes]:
    cohort = cohort_of(())
    statement = survivor_statement(cohort.config, CONTEXT, cohort.u1, cohort.u1)
    return {who: key.sign(statement) for who, key in enumerate(identities(MEMBERS))}


def upload_of(who: int, cohort: Cohort) -> tuple[bytes, bytes]:
    """A digest, signed as that of a vector that was masked in all of u1."""
    key, u2 = identities(MEMBERS)[who], set_of(cohort.config, CONTEXT, "u2", cohort.u1)
    return bytes(32), key.sign(upload_statement(CONTEXT, key.public, bytes(32), u2))


def asked(signatures: Mapping[int, bytes], rings: Rings = (), client: Side = CLIENT) -> UnmaskingReply:
    """A participant that holds no shares is asked with these; u2 and u3 are everybody."""
    cohort = cohort_of(rings)
    everybody = Subset(to_bitmap(frozenset(cohort.u1), cohort.u1), cohort.u1)
    phase: Any = client.Unmasking(
        cohort, survivor_statement(cohort.config, CONTEXT, cohort.u1, cohort.u1), everybody, everybody, {}
    )
    silent = [one for one in cohort.graph.neighbours(ME) if one not in signatures] if rings else []
    uploads = tuple(upload_of(one, cohort) for one in silent)
    _, reply = phase.receive(UnmaskingRequest(tuple(sorted(signatures.items())), uploads))
    return reply


def needed() -> int:
    return cohort_of(()).config.parameters.signatures_needed(MEMBERS)


@ON_BOTH_GRAPHS
@pytest.mark.parametrize("number", [MEMBERS, MEMBERS - 60, MEMBERS // 2 + 2])
def test_enough_signatures_of_any_signers_open(rings: Rings, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = []
    honest = Roster.verify

    def counted(roster: Roster, *of: Any) -> bool:
        verified.append(of)
        return honest(roster, *of)

    monkeypatch.setattr(Roster, "verify", counted)
    shown = dict(list(signatures_over_everybody().items())[:number])
    assert asked(shown, rings).shares == (None,) * (len(cohort_of(rings).graph.holders(ME)) if rings else MEMBERS)
    assert needed() == 152
    near = len(cohort_of(rings).graph.neighbours(ME)) if rings else 0
    if number == MEMBERS:  # near half of the others could be wrong
        assert len(verified) <= near + 70
    assert len(verified) <= needed() + near


@ON_BOTH_GRAPHS
def test_the_coordinator_shows_all_that_it_has(rings: Rings) -> None:
    """And of neighbours that have yet to sign their uploads, which are checked."""
    cohort = cohort_of(rings)
    everybody, uploads = frozenset(cohort.u1), {who: upload_of(who, cohort) for who in cohort.u1}
    kept = {who: Upload(*upload) for who, upload in uploads.items()}
    signed = SignedSets(cast(Any, cohort), everybody, everybody, kept)  # of a cohort it needs what both sides have
    slow = set(range(0, MEMBERS, 9))
    for who, signature in signatures_over_everybody().items():
        if who not in slow:
            signed.signatures[who] = signed.check(who, ConsistencySignature(signature))
    request = signed.requests(frozenset({ME}))[ME]
    assert {who for who, _ in request.signatures} == everybody - slow
    near = frozenset(cohort.graph.neighbours(ME)) & slow if rings else frozenset()
    assert request.uploads == tuple(uploads[who] for who in sorted(near))
    assert len(near) > 0 or not rings
    bitmap = Subset(to_bitmap(everybody, cohort.u1), cohort.u1)
    phase: Any = CLIENT.Unmasking(cohort, signed.statement, bitmap, bitmap, {})
    phase.receive(request)
    assert len(signed.proof) == needed()


@pytest.mark.parametrize("valid", [152, 151])
def test_of_a_proof_that_it_is_in_no_sum_all_signatures_are_checked(valid: int) -> None:
    """It takes a charge back, and may be shown again and again."""
    whole, left_out = cohort_of(()), frozenset({ME})
    u3 = frozenset(whole.u1) - left_out
    statement = survivor_statement(whole.config, CONTEXT, whole.u1, u3)
    pairs = [(who, identities(MEMBERS)[who].sign(statement)) for who in sorted(u3)][:valid]
    sets = SurvivorSets(to_bitmap(frozenset(whole.u1), whole.u1), to_bitmap(u3, whole.u1))
    excluded = CLIENT.excluding_survivors
    if valid == needed():
        assert excluded(whole, sets, UnmaskingRequest(tuple(pairs))) == u3
    made_up = [(who, bytes(64)) for who in sorted(u3)][valid:]
    for _ in range(3):
        with pytest.raises(CoordinatorMisbehaved, match=f"of {made_up[0][0]} doesn't cover these sets"):
            excluded(whole, sets, UnmaskingRequest((*pairs, *made_up)))


def one_too_few(valid_first: bool) -> dict[int, bytes]:
    """One fewer than needed have signed; the others' signatures are made up."""
    real, members = signatures_over_everybody(), list(range(MEMBERS))
    order = members if valid_first else members[::-1]
    genuine = set(order[: needed() - 1])
    return {who: real[who] if who in genuine else bytes(64) for who in members}


FIRST = "shown[: sample_size(len(shown), needed - len(certain))]"
FIRST_ONES = changed(spot_checks, "_sample(shown, sample_size(len(shown), needed - len(certain)), random_bytes)", FIRST)
HALF_AS_SURE = changed(spot_checks, "_CHANCE: Final = 2.0**-64", "_CHANCE: Final = 2.0**-4")


def client_with(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Side:
    monkeypatch.setattr(client_unmasking, "signatures_to_check", checks.signatures_to_check)
    return CLIENT


@pytest.mark.parametrize("valid_first", [True, False])
@ON_BOTH_GRAPHS
def test_too_few_signatures_among_many_are_refused(rings: Rings, valid_first: bool) -> None:
    shown = one_too_few(valid_first)
    for _ in range(ROUNDS):
        with pytest.raises(CoordinatorMisbehaved, match="doesn't cover these sets"):
            asked(shown, rings)


def test_whoever_checks_the_first_ones_falls_for_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(one_too_few(valid_first=True), client=client_with(FIRST_ONES, monkeypatch))


def falls(times: int, signatures: Mapping[int, bytes], rings: Rings, client: Side) -> int:
    fell = 0
    for _ in range(times):
        with contextlib.suppress(CoordinatorMisbehaved):
            asked(signatures, rings, client)
            fell += 1
    return fell


def test_whoever_checks_too_few_of_them_falls_for_it_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    # About 31 of 500; none at all in 1 of 10^14 runs.
    assert falls(500, one_too_few(valid_first=True), (), client_with(HALF_AS_SURE, monkeypatch)) > 0


NOBODY_IS_CERTAIN = CLIENT.changed(
    "near = frozenset() if cohort.graph.complete else frozenset(cohort.graph.neighbours(cohort.me))",
    "near = frozenset()",
)


def neighbour_who_has_not_signed() -> dict[int, bytes]:
    """Only its signature is made up: it was shown another u2, and its upload would prove that."""
    neighbour = cohort_of(RING).graph.neighbours(ME)[3]
    return signatures_over_everybody() | {neighbour: bytes(64)}


def test_a_neighbour_that_has_not_signed_is_always_found() -> None:
    """A participant that believes it has signed reveals a share of its seed (docs/graph.md)."""
    for _ in range(ROUNDS):
        with pytest.raises(CoordinatorMisbehaved, match="doesn't cover these sets"):
            asked(neighbour_who_has_not_signed(), RING)


def test_whoever_samples_neighbours_too_falls_for_one_who_has_not_signed() -> None:
    assert falls(ROUNDS, neighbour_who_has_not_signed(), RING, NOBODY_IS_CERTAIN) > 0  # about three of four times
