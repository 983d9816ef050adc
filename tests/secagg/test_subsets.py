"""Subsets of u1 as bitmaps are the sets they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from secagg.messages import Subset, to_bitmap


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[tuple[int, ...], frozenset[int], frozenset[int]]:
    u1 = tuple(sorted(draw(st.sets(st.integers(0, 70_000), min_size=1, max_size=40))))
    some = st.frozensets(st.sampled_from(u1))
    return u1, draw(some), draw(some)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn=cohorts(), stranger=st.integers(-5, 70_005))
def test_a_bitmap_is_its_set(drawn: tuple[tuple[int, ...], frozenset[int], frozenset[int]], stranger: int) -> None:
    u1, one, other = drawn
    data = to_bitmap(one, u1)
    assert sum((data[at // 8] >> at % 8 & 1) << at for at in range(len(u1))) == sum(
        1 << at for at, member in enumerate(u1) if member in one
    )
    subset, second = Subset(data, u1), Subset(to_bitmap(other, u1), u1)
    assert frozenset(subset) == one
    assert list(subset) == sorted(one)
    assert len(subset) == len(one)
    assert all((member in subset) == (member in one) for member in u1)
    assert (stranger in subset) == (stranger in one)
    assert (subset <= second) == (one <= other)
    assert (subset == second) == (one == other)


@pytest.mark.parametrize("members", [1, 7, 8, 9, 16, 17])
def test_every_bitmap_but_one_for_each_set_is_refused(members: int) -> None:
    u1, size = tuple(range(members)), (members + 7) // 8
    for wrong in (bytes(size - 1), bytes(size + 1)):
        with pytest.raises(ValueError, match="one bit for each"):
            Subset(wrong, u1)
    for unused in range(members, 8 * size):
        with pytest.raises(ValueError, match="unused bits"):
            Subset((1 << unused).to_bytes(size, "little"), u1)
    assert len(Subset(((1 << members) - 1).to_bytes(size, "little"), u1)) == members


def test_what_is_no_number_is_in_no_subset() -> None:
    subset = Subset(b"\x03", (0, 1))
    for nothing in (None, "0", 0.5, b"\x00", (0,)):
        assert nothing not in subset
