"""No data whatever make a contribution longer than the bound that a statistic states, and the bound is met."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from learning.datasets import Dataset
from learning.make_task import clip_of, make_task
from learning.options import OptionError
from learning.tasks.statistic import shares_of
from tests.support.rounds_in_memory import contribution, rows

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("sum", {}),
    ("sum", {"column": "0-2", "low": -5, "high": "1,2,3", "reduce": "mean"}),
    ("sum", {"reduce": "count", "high": 3}),
    ("mean", {}),
    ("mean", {"column": "0,2", "low": -1e-3, "high": 1e30}),
    ("mean", {"count": False, "low": -7}),
    ("mean", {"column": "label", "high": 9, "reduce": "median"}),
    ("histogram", {"bins": 4}),
    ("histogram", {"bins": 4, "reduce": "mode"}),
    ("histogram", {"bins": 7, "column": 1}),
    ("histogram", {"bins": 7, "column": 1, "reduce": "max"}),
    ("quantile", {"bins": 16}),
    ("quantile", {"bins": 33, "reduce": "spread", "quantiles": "0.1,0.9"}),
]

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def anybody(draw: st.DrawFn) -> Dataset:
    """Anything that a participant's data can be: nothing, NaN, infinity, huge numbers, classes out of range."""
    count = draw(st.integers(0, 6))
    features = draw(arrays.arrays(np.float32, (count, 3), elements=FLOATS))
    labels = draw(arrays.arrays(np.int64, count, elements=st.integers(-(2**63), 2**63 - 1)))
    return Dataset(features, labels)


@pytest.mark.parametrize(("name", "options"), SETTINGS)
@settings(max_examples=60, deadline=None)
@given(data=anybody())
def test_never_longer_than_the_bound(name: str, options: dict[str, Any], data: Dataset) -> None:
    task = make_task(name, options)
    sent = contribution(task, data).astype(np.float64)
    assert sent.shape == (task.dim,)
    assert np.isfinite(sent).all()
    assert math.sqrt(math.fsum(sent**2)) <= task.l2_sensitivity


@given(share=st.integers(0, 2**26), scale=st.sampled_from([1.0, 1e-6, 1e-9]))
def test_a_pair_is_no_longer_than_1_by_rounding(share: int, scale: float) -> None:
    sent = contribution(make_task("mean"), rows([share / 2**26 * scale])).astype(np.float64)
    assert sent[0] + sent[1] == 1.0
    assert math.hypot(*sent) <= 1.0


@given(counts=st.lists(st.integers(0, 2**36), min_size=1, max_size=5))
def test_weights_sum_to_1_at_most(counts: list[int]) -> None:
    weights = shares_of(np.array(counts)).astype(np.float32).astype(np.float64)
    assert math.fsum(weights) <= 1.0
    assert math.fsum(weights) > 1 - 1e-6 or not any(counts)


@pytest.mark.parametrize(
    ("name", "options", "data"),
    [
        ("sum", {"column": "0,1"}, rows([[1.0, 5.0]])),
        ("mean", {"column": "0,1"}, rows([[-3.0, 1.0]])),
        ("mean", {"column": "0,1", "count": False}, rows([[0.0, 1.0]])),
        ("histogram", {"bins": 5}, rows([0.0], [4])),
        ("quantile", {"bins": 64}, rows([0.0])),
    ],
)
def test_the_bound_is_met(name: str, options: dict[str, Any], data: Dataset) -> None:
    """A bound that is never reached would be paid for in noise."""
    task = make_task(name, options)
    assert np.linalg.norm(contribution(task, data).astype(np.float64)) == pytest.approx(task.l2_sensitivity, rel=1e-12)


def test_who_has_nothing_to_say_sends_zeros() -> None:
    missing = Dataset(np.full((2, 3), np.nan, dtype=np.float32), np.full(2, -1))
    for name, options in SETTINGS:
        if options.get("reduce") != "count":
            assert not contribution(make_task(name, options), rows([])).any(), name
            if options.get("column") != "label":
                assert not contribution(make_task(name, options), missing).any(), name


def test_a_missing_column_is_told() -> None:
    with pytest.raises(ValueError, match="there is no column 3: the examples have 1"):
        contribution(make_task("mean", {"column": 3}), rows([1.0]))


def test_the_clip_follows_the_bound() -> None:
    task = make_task("mean", {"column": "0-3"})
    assert clip_of(task, None) == task.l2_sensitivity == 2.0
    assert clip_of(task, 3.0) == 3.0
    for arguments in ({"clip": 1.9}, {"clip": None, "adaptive": True}, {"clip": None, "sketch": True}):
        with pytest.raises(OptionError, match="task 'mean' bounds each contribution to norm 2 by itself"):
            clip_of(task, **arguments)
    assert clip_of(make_task("synthetic"), None) == 1.0


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("mean", {"column": "1a"}, "option 'column' is '1a'"),
        ("mean", {"column": "0,0"}, "none of them twice"),
        ("mean", {"column": " " * 90 + "17"}, "no blanks between"),
        ("mean", {"column": "0, 1"}, "no blanks between"),
        ("mean", {"column": "017"}, "option 'column' is '017'"),
        ("mean", {"column": "\u0661"}, "option 'column'"),
        ("histogram", {"column": "label "}, "no blanks between"),
        ("mean", {"high": "5 "}, "option 'high' is '5 '"),
        ("mean", {"high": "1_0"}, "option 'high' is '1_0'"),
        ("mean", {"high": "\u0665"}, "option 'high'"),
        ("quantile", {"quantiles": "0.1, 0.5"}, "option 'quantiles' is '0.1, 0.5'"),
        ("mean", {"column": "5-2"}, "option 'column' is '5-2'"),
        ("mean", {"low": 2}, "option 'high' is '1'; it must be above low, which is 2"),
        ("mean", {"column": "0,1", "high": "1,2,3"}, "or 2 with commas between"),
        ("sum", {"high": "nan"}, "option 'high' is 'nan'"),
        ("sum", {"high": 1e31}, "below 1e30"),
        ("sum", {"reduce": "mode"}, "option 'reduce' is 'mode'"),
        ("histogram", {"column": "0,1"}, "it must be one column"),
        ("histogram", {"low": 0.5}, "left out where classes are counted"),
        ("histogram", {"bins": 0}, "from 1 to 65536"),
        ("histogram", {"reduce": "mean"}, "one of spread, mode, first, last"),
        ("quantile", {"quantiles": "0,0.5"}, "numbers between 0 and 1"),
        ("quantile", {"bins": 1}, "from 2 to 4096"),
        ("mean", {"count": 1}, "true or false"),
        ("mean", {"method": "dp-fedavg"}, "unknown option 'method'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make_task(name, options)


@pytest.mark.parametrize(
    ("name", "options", "column", "low", "high"),
    [
        ("mean", {}, "0", "0", "1"),
        ("mean", {"column": "5,0-2,3,label", "low": -1e-3, "high": 1e30}, "5, 0-3, label", "-0.001", "1e+30"),
        ("sum", {"column": "7-9", "low": "0.10,-1e2,0", "high": "3,3.0,3"}, "7-9", "0.1, -100, 0", "3"),
        ("histogram", {}, "label", None, None),
        ("quantile", {"high": 123456789.5}, "0", "0", "123456789.5"),
    ],
)
def test_what_is_asked_is_said_as_it_is_computed(
    name: str, options: dict[str, Any], column: str, low: str | None, high: str | None
) -> None:
    """Defaults included: a text that reads otherwise, or a default left out, would hide what is asked."""
    known = make_task(name, options).options
    asked = known.asked()
    assert (asked["column"], asked.get("low"), asked.get("high")) == (column, low, high)
    assert set(asked) == set(known.to_mapping())


def test_shares_are_said_in_order() -> None:
    assert make_task("quantile", {"quantiles": "0.90,0.5,0.5"}).options.asked()["quantiles"] == "0.5, 0.9"


def test_options_can_be_written_and_read_again() -> None:
    for name, options in SETTINGS:
        written = make_task(name, options).options.to_mapping()
        assert make_task(name, written).options.to_mapping() == written


NAMES = ",".join(f"c{number}" for number in range(5_000))
STRANGE = {
    "ranges": ("mean", {"column": ",".join(["0-4095"] * 30_000)}),
    "other ranges": ("mean", {"column": ",".join(f"{k}000-{k}999" for k in range(1, 9_000))}),
    "names": ("sum", {"column": NAMES}),
    "a long name": ("sum", {"column": "a" * 500_000}),
    "no names": ("mean", {"column": "," * 500_000}),
    "bounds": ("mean", {"high": "1," * 250_000}),
    "digits": ("mean", {"high": "0." + "1" * 500_000}),
    "quantiles": ("quantile", {"quantiles": ",".join(["0.5"] * 100_000)}),
    "another option": ("mean", {"x" * 500_000: 1}),
    "a reduction": ("histogram", {"reduce": "x" * 500_000}),
    "a method": ("mlp", {"method": "x" * 500_000}),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_stranger_s_options_take_no_memory(kind: str) -> None:
    """A document of 70 kB took 2 GB, before the participant was asked; and no message repeats an endless text."""
    name, options = STRANGE[kind]
    make_task(name)  # what its module takes is no matter
    tracemalloc.start()
    try:
        with pytest.raises(OptionError) as refused:
            make_task(name, options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4e6
    assert len(str(refused.value)) < 1_000


def test_as_many_columns_as_there_may_be() -> None:
    most = "0-4094,label"
    assert make_task("mean", {"column": most, "high": ",".join(["2"] * 4096)}).dim == 8192
    longest = ",".join(f"{'n' * 60}{number:04}" for number in range(4096))
    assert make_task("sum", {"column": longest}).dim == 4096
    for column in (f"{most},4095", "0-4096", "0-4095,a", "a,0-4095,b", f"{longest},b"):
        with pytest.raises(OptionError, match=r"at most 4096 columns|option .column. is"):
            make_task("mean", {"column": column})
