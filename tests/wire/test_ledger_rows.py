"""What a ledger's rows may say, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.wire.made_ledgers import OTHER, STUDY, entry, own_row
from wire.records.ledger import About
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED, InvalidRow, LedgerEntry, epsilon
from wire.records.ledger_totals import Spent, Totals

NAN, INFINITY = float("nan"), float("inf")
IMPOSSIBLE: dict[str, list[Any]] = {
    "cost": [NAN, INFINITY, -0.1, 1],
    "round": [-1, True],
    "rate": [0.0],
    "delta": [1.0],
    "order": [0.5],
    "kind": ["refund", EXACT],
    "participants": [None, (3, 1, 0, 4, 6), (0, 0, 1, 3, 4), ()],
    "identity": ["11" * 32],
    "honest": [4],
    "curve": [((4.0, 0.1), (2.0, 0.1)), *(((order, 0.1),) for order in (1.0, INFINITY, NAN, 2))],
    "study_sha256": ["AA" * 32],
    "plan": ["cc"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_rows_that_say_nothing_sensible(name: str, value: Any) -> None:
    with pytest.raises(InvalidRow):
        entry(1, **{name: value})


def test_a_beginning_of_lists_within_lists() -> None:
    with pytest.raises(ValueError, match="not the beginning"):
        About.from_bytes(b"[" * 100_000)


def test_one_row_has_one_encoding() -> None:
    for row in (entry(1), own_row(1), own_row(1, kind=EXCLUDED, cost=0.0), entry(3, cost=5e-324, at=1e300)):
        data = row.to_bytes()
        assert LedgerEntry.from_bytes(data) == row
        blank, digit = data.replace(b'"at":', b'"at": ', 1), data.replace(b"8.0", b"8.00", 1)
        for other in (data + b" ", blank, digit, b"[]", b"{}"):
            with pytest.raises(InvalidRow):
                LedgerEntry.from_bytes(other)


def test_a_participants_charges_are_replaced_by_further_rows() -> None:
    totals = Totals()
    me, other = "11" * 32, "22" * 32

    def spent(who: str = me) -> Spent:
        return totals.studies[STUDY].spent[who]

    totals.add(own_row(1, cost=1.0))
    totals.add(own_row(1, kind=EXACT, cost=0.5, curve=((2.0, 0.02), (4.0, 0.03)), draws=4096))
    totals.add(own_row(1, other, cost=1.0))
    assert (spent().renyi, spent().all_draws, spent().charges) == (0.5, 4096, 1)
    totals.add(own_row(2, cost=1.0))
    totals.add(own_row(2, kind=EXCLUDED, cost=0.0, curve=((2.0, 0.0), (4.0, 0.0)), draws=0))
    assert (spent().renyi, spent().all_draws) == (0.5, 4096)
    totals.add(own_row(3, cost=1.0))  # nothing more is heard of it: it stays at its worst
    totals.add(own_row(4, cost=1.0))
    assert (spent().renyi, spent().charges) == (2.5, 4)
    assert spent().at_every_order() == {2.0: 0.02 + 0.0 + 0.03 + 0.03, 4.0: 0.03 + 0.0 + 0.1 / 3 + 0.1 / 3}
    assert spent(other).renyi == 1.0
    for bad in (
        own_row(4, kind=EXACT, cost=1.5),  # dearer than the worst
        own_row(4, kind=EXACT, cost=0.5, curve=((3.0, 0.01),)),  # at an order the charge says nothing of
        own_row(3, kind=EXACT, cost=0.5),  # not the latest
        own_row(1, other, kind=EXACT, cost=0.5, attempt=2),
        own_row(1, "33" * 32, kind=EXACT, cost=0.5),  # never charged
        own_row(4, cost=1.0),
    ):
        with pytest.raises(InvalidRow):
            totals.check(bad)
    totals.add(own_row(4, kind=EXACT, cost=0.5))
    with pytest.raises(InvalidRow, match="can be replaced"):
        totals.check(own_row(4, kind=EXCLUDED, cost=0.0))


def test_studies_of_one_participant_compose_at_the_orders_that_all_have() -> None:
    totals = Totals()
    totals.add(own_row(1, curve=((2.0, 0.25), (4.0, 0.5))))
    totals.add(own_row(1, "22" * 32, curve=((2.0, 0.5), (4.0, 0.25))))
    totals.add(own_row(1, study="eight", study_sha256=OTHER, order=3.0, curve=((2.0, 1.0), (3.0, 2.0))))
    # Of the first study the larger of the two; order 4 isn't in every row.
    [together] = totals.across_studies()
    assert together.curve == {2.0: 1.5}
    # Fixed by the first row; since the other study has no bound there or above, no figure is stated.
    assert (together.order, together.renyi) == (7.25, float("inf"))


def test_identities_over_the_same_data_add_up() -> None:
    """The largest of them alone would let one data set be charged its limit once for each identity."""
    me, again, other, data = "11" * 32, "22" * 32, "33" * 32, "dd" * 32
    totals = Totals()
    totals.add(own_row(1, me, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))
    totals.add(own_row(1, again, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))  # in the same sum
    totals.add(own_row(1, other, data="ee" * 32, cost=1.5, curve=((2.0, 0.375), (4.0, 0.75)), draws=100))
    totals.add(own_row(1, again, data=data, kind=EXACT, cost=0.5, curve=((2.0, 0.125),), draws=50))
    study = totals.studies[STUDY]
    both = totals.spent(bytes.fromhex(STUDY), data)
    assert (both.charges, both.renyi, both.all_draws, both.at_every_order()) == (2, 1.5, 150, {2.0: 0.375})
    assert (study.spent[me].renyi, study.spent[again].renyi) == (1.0, 0.5)
    assert totals.spent(bytes.fromhex(STUDY), "ff" * 32).charges == 0
    totals.add(own_row(2, me, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))
    both = totals.spent(bytes.fromhex(STUDY), data)
    assert (both.charges, both.renyi, both.all_draws) == (3, 2.5, 250)
    # Those over other data don't: no example is in both.
    assert study.renyi_at(2.0) == 0.625
    assert study.epsilon_of_data(data) == epsilon(7.25, 2.5, 1e-5, 250) == study.epsilon_coordinator()
    [together] = totals.across_studies()
    assert together.curve == {2.0: 0.625}
    totals.add(own_row(2, again, data=data, kind=CHARGE, cost=1.0))
    totals.add(own_row(2, again, data=data, kind=EXCLUDED, cost=0.0, curve=((2.0, 0.0),), draws=0))
    assert totals.spent(bytes.fromhex(STUDY), data).renyi == 2.5  # an identity takes back only its own charge
    with pytest.raises(InvalidRow, match="its data is not that of the identity's other rows"):
        totals.add(own_row(3, me, data="ee" * 32))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (lambda: own_row(1, data=""), "data must be 64 hexadecimal digits"),
        (lambda: own_row(1, data="DD" * 32), "data must be 64 hexadecimal digits"),
        (lambda: entry(1, data="dd" * 32), "a coordinator's row names no data"),
    ],
)
def test_whose_row_names_data(row: Callable[[], LedgerEntry], told: str) -> None:
    with pytest.raises(InvalidRow, match=told):
        row()


def test_guarantees_of_different_kinds_are_never_added() -> None:
    """Against another adjacency, or a coordinator that must be trusted, the sum of all would be no bound."""
    totals = Totals()
    totals.add(own_row(1))
    totals.add(own_row(1, study="eight", study_sha256=OTHER, adjacency="replace-one: another"))
    totals.add(own_row(1, study="nine", study_sha256="33" * 32, mechanism="gaussian"))
    kinds = totals.across_studies()
    assert [(kind.coordinator_trusted, len(kind.studies)) for kind in kinds] == [(False, 1), (False, 1), (True, 1)]
    assert len({kind.adjacency for kind in kinds}) == 2
