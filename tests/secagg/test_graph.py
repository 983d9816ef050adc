"""The graphs against a slow implementation; places on the ring are uniform, and nothing chooses them."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from secagg.graph import CompleteGraph, HararyGraph, graph_of
from secagg.parameters import COMPLETE, HARARY, SMALL_COHORT, RoundParameters
from secagg.sharing import ADVERSARIES, CURIOUS, MALICIOUS, SEMI_MALICIOUS, Sharing, k_regular
from tests.reference import graph as reference
from tests.support.small_rings import CUT, CUT_COLLUDERS


def context(number: int) -> bytes:
    return hashlib.sha256(b"tests/secagg/test_graph %d" % number).digest()


def ring_of(u1: tuple[int, ...], degree: int, number: int = 0) -> HararyGraph:
    return HararyGraph(u1, Sharing(degree, degree // 2 + 1), context(number))


# ---------------------------------------------------------------- against a slow implementation


@st.composite
def rings(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    u1 = tuple(sorted(draw(st.sets(st.integers(0, 10_000), min_size=3, max_size=40))))
    return u1, 2 * draw(st.integers(1, (len(u1) - 1) // 2)), draw(st.integers(0, 10**6))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn=rings())
def test_the_ring_is_that_of_a_slow_implementation(drawn: tuple[tuple[int, ...], int, int]) -> None:
    u1, degree, number = drawn
    graph, slow = ring_of(u1, degree, number), reference.Graph(u1, degree, context(number))
    slow.complete, slow.ring = False, reference.ring_order(u1, context(number))  # a ring even if all are neighbours
    assert list(graph.ring) == slow.ring
    for member in u1:
        neighbours = slow.neighbours(member)
        assert list(graph.neighbours(member)) == list(graph.holders(member)) == neighbours
        assert graph.places(member) == {dealer: slow.place(dealer, member) for dealer in neighbours}
        assert list(graph.places(member)) == neighbours
        assert graph.x(member) == u1.index(member) + 1


@pytest.mark.parametrize("size", [2, 3, 10])
def test_the_complete_graph_is_that_of_a_slow_implementation(size: int) -> None:
    u1 = tuple(range(0, 5 * size, 5))
    graph, slow = CompleteGraph(u1, Sharing(size - 1, 2)), reference.Graph(u1, size - 1, bytes(32))
    for member in u1:
        assert list(graph.neighbours(member)) == slow.neighbours(member)
        assert list(graph.holders(member)) == slow.holders(member) == list(u1)
        assert graph.places(member) == {dealer: slow.place(dealer, member) for dealer in slow.dealers(member)}
        assert graph.x(member) == slow.x(member)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(drawn=rings(), data=st.data())
def test_dealers_are_the_neighbours_in_a_set(drawn: tuple[tuple[int, ...], int, int], data: st.DataObject) -> None:
    u1, degree, number = drawn
    among = data.draw(st.frozensets(st.sampled_from(u1)))
    ring = ring_of(u1, degree, number)
    complete = CompleteGraph(u1, Sharing(len(u1) - 1, 2))
    for member in u1:
        assert ring.dealers(member, among) == tuple(one for one in ring.neighbours(member) if one in among)
        assert complete.dealers(member, among) == tuple(sorted(among))


@pytest.mark.parametrize("degree", [-2, 0, 1, 3, 9, 10, 12])
def test_degrees_that_no_ring_has(degree: int) -> None:
    with pytest.raises(ValueError, match=f"no ring of 10 has the degree {degree}"):
        HararyGraph(tuple(range(10)), Sharing(degree, 2), bytes(32))


@pytest.mark.parametrize("stranger", [-1, 1, 11, 10**9])
def test_a_stranger_has_no_place(stranger: int) -> None:
    for graph in (ring_of(tuple(range(0, 12, 2)), 2), CompleteGraph(tuple(range(0, 12, 2)), Sharing(5, 2))):
        for question in (graph.position, graph.x, graph.neighbours, graph.places):
            with pytest.raises(KeyError):
                question(stranger)


# ---------------------------------------------------------------- the ring can't be chosen


def test_the_ring_that_can_be_cut_is_safe_for_one_drop() -> None:
    """`CUT`: no member has more colluders around it than the threshold allows, and the degree bears one drop."""
    [(members, degree, threshold)] = CUT
    around = [step for step in range(-degree // 2, degree // 2 + 1) if step]
    corrupt = max(sum((place + step) % members in CUT_COLLUDERS for step in around) for place in range(members))
    assert corrupt == 2
    assert 2 * threshold > degree + corrupt
    assert degree - 1 - len(CUT_COLLUDERS) == 1


SIZE, DRAWS = 12, 4000


def uniform(counts: np.ndarray) -> float:
    """Probability that uniform places deviate from their mean as much as these: rows and columns sum to the same."""
    expected = counts.sum() / counts.size
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), freedom))


def places_on(rings: list[list[int]]) -> np.ndarray:
    """How often each member stands in each place."""
    counts = np.zeros((SIZE, SIZE))
    for ring in rings:
        counts[ring, np.arange(SIZE)] += 1
    return counts


def steps_between(rings: list[list[int]], start: int) -> np.ndarray:
    """How often each other member stands each number of places behind one member: this decides the neighbours."""
    counts = np.zeros((SIZE - 1, SIZE - 1))
    for ring in rings:
        at = ring.index(start)
        for step in range(1, SIZE):
            other = ring[(at + step) % SIZE]
            counts[other - (other > start), step - 1] += 1
    return counts


def drawn_rings() -> list[list[int]]:
    return [list(ring_of(tuple(range(SIZE)), 2, number).ring) for number in range(DRAWS)]


def test_places_on_the_ring_are_uniform() -> None:
    """Fixed contexts; an honest draw would fail one of these three with probability 3e-6."""
    rings = drawn_rings()
    assert uniform(places_on(rings)) > 1e-6
    for start in (0, SIZE - 1):
        assert uniform(steps_between(rings, start)) > 1e-6


def test_a_ring_that_is_slightly_skewed_fails() -> None:
    """One time in ten, two members that drew different places stand side by side: a hash that is not uniform."""
    rings = drawn_rings()
    for at, ring in enumerate(rings):
        if at % 10 == 0:
            ring.remove(1)
            ring.insert(ring.index(0) + 1, 1)
    assert uniform(steps_between(rings, 0)) < 1e-6


def test_the_ring_is_no_matter_of_the_order_of_the_roster() -> None:
    """Members ascend by identity, which each chooses itself; the order on the ring is independent of it."""
    following = Counter()
    for ring in drawn_rings():
        following.update((one, ring[(at + 1) % SIZE]) for at, one in enumerate(ring))
    mean = DRAWS / (SIZE - 1)
    worst = max(abs(following[pair] - mean) for pair in ((one, (one + 1) % SIZE) for one in range(SIZE)))
    assert worst < 6 * np.sqrt(mean)


def test_keys_that_differ_only_in_their_last_bytes_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is that of all 16 bytes, most significant first."""
    keys = [bytes(8) + bytes([at]) + bytes(7) for at in (3, 1, 2)] + [bytes(15) + b"\x01", b"\xff" * 16]

    class Drawn:
        def __init__(self, data: bytes) -> None:
            pass

        def digest(self, length: int) -> bytes:
            return b"".join(keys)

    monkeypatch.setattr("secagg.graph.hashlib.shake_256", Drawn)
    assert ring_of((10, 20, 30, 40, 50), 2).ring == (40, 20, 30, 10, 50)


# ---------------------------------------------------------------- which graph


def parameters(cohort: int, colluders: int, min_survivors: int, **others: str) -> RoundParameters:
    return RoundParameters(
        cohort=cohort,
        colluders=colluders,
        min_survivors=min_survivors,
        quorum=min_survivors,
        bits=16,
        dim=1,
        **{"graph": HARARY, **others},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("size", [5, 40, SMALL_COHORT - 1])
def test_small_cohorts_share_on_the_complete_graph(size: int, adversary: str) -> None:
    plan = parameters(size, 0, size - 1, adversary=adversary)
    assert isinstance(graph_of(tuple(range(size)), plan, bytes(32)), CompleteGraph)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_large_cohorts_share_on_a_ring_if_the_plan_says_so(adversary: str) -> None:
    u1 = tuple(range(1000))
    plan = parameters(1000, 10, 950, adversary=adversary)
    graph = graph_of(u1, plan, bytes(32))
    sharing = k_regular(1000, 10, 50, adversary)
    assert isinstance(graph, HararyGraph)
    assert (graph.degree, graph.threshold) == (sharing.degree, sharing.threshold)
    everybody = graph_of(u1, parameters(1000, 10, 950, adversary=adversary, graph=COMPLETE), bytes(32))
    assert isinstance(everybody, CompleteGraph)
    assert everybody.threshold == (1000 + 10) // 2 + 1


def test_a_cohort_for_which_no_degree_holds_shares_on_the_complete_graph() -> None:
    """Of 100, 30 may collude and 34 leave."""
    plan = parameters(100, 30, 66)
    assert k_regular(100, 30, 34, MALICIOUS) is None
    graph = graph_of(tuple(range(100)), plan, bytes(32))
    assert isinstance(graph, CompleteGraph)
    assert (graph.degree, graph.threshold) == (99, 66)


def test_the_degree_follows_from_the_members_and_possible_dropouts() -> None:
    """|u1| - min_survivors of u1 may leave, and the weaker the coordinator, the fewer neighbours are enough."""
    plan = parameters(1000, 10, 900)
    degrees = [plan.sharing(size).degree for size in (1000, 950, 900)]
    assert degrees == sorted(degrees, reverse=True)
    assert len(set(degrees)) == 3
    by_adversary = [parameters(1000, 10, 900, adversary=one).sharing(1000).degree for one in (CURIOUS, SEMI_MALICIOUS)]
    assert by_adversary[0] <= by_adversary[1] < degrees[0]


def test_a_large_ring_is_the_slow_one_at_any_place() -> None:
    """Positions beyond 32767, which a signed 16-bit number would not hold."""
    u1 = tuple(range(65_520))
    graph, ring = ring_of(u1, 100, 5), reference.ring_order(u1, context(5))
    for member in random.Random(5).sample(u1, 20):
        at = ring.index(member)
        around = sorted(ring[(at + step) % len(ring)] for step in range(-50, 51) if step)
        assert list(graph.neighbours(member)) == around
        for holder in around[::25]:
            assert graph.neighbours(member)[graph.places(holder)[member]] == holder


def test_another_context_is_another_ring() -> None:
    u1 = tuple(range(40))
    assert len({ring_of(u1, 4, number).ring for number in range(200)}) == 200
