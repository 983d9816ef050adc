"""A round's change of the model on its grid: near what the optimiser said, and the same on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from mechanisms.clip_rule import ClipRule
from mechanisms.model_step import MOST_STEPS, ModelStep
from wire.round_model import apply_step, model_bytes, read_model, write_model, write_step

RANDOM = np.random.default_rng(7)


def vector(size: int, scale: float) -> np.ndarray:
    return (scale * RANDOM.standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize("change", [1e-20, 1e-6, 1e-2, 1.0, 1e20])
def test_no_value_is_further_off_than_half_a_step_and_the_last_digit(change: float) -> None:
    before = vector(10_000, 0.05)
    after = before + vector(10_000, change)
    step = ModelStep.between(before, after)
    if np.array_equal(before, after):  # the change is below the last digit of every value
        assert step is None
        return
    assert step is not None
    assert int(np.abs(step.steps).max()) == MOST_STEPS
    off = np.abs(step.applied(before).astype(np.float64) - after)
    assert (off <= 0.501 * step.scale + 2 * np.spacing(np.maximum(np.abs(before), np.abs(after)))).all()


def test_a_change_that_no_grid_holds_has_no_step() -> None:
    model = vector(5, 1.0)
    for after in (model, model + np.float32(np.inf), model + np.float32(np.nan)):
        assert ModelStep.between(model, after) is None
    assert ModelStep.between(np.full(2, -3e38, np.float32), np.full(2, 3e38, np.float32)) is None
    assert ModelStep.between(np.zeros(2, np.float32), np.full(2, 1e-40, np.float32)) is None
    step = ModelStep.between(model, model + np.float32(1.0))
    assert step is not None
    with pytest.raises(ValueError, match="a step of 5 values for a model of 6"):
        step.applied(vector(6, 1.0))


@pytest.mark.parametrize("size", [3, 10, 1001])
def test_a_step_makes_the_bytes_of_the_model(size: int) -> None:
    fixed = ClipRule.flat(size, 2.0)
    moving = ClipRule(
        layers=(size - 1, 1), clips=(1.0, 2.0), update="geometric", quantile=0.5, rate=0.2, bit_weight=0.2
    )
    before, after = vector(size, 0.05), vector(size, 0.05)
    step = ModelStep.between(before, after)
    assert step is not None
    for rule, old, new in ((fixed, (2.0,), (2.0,)), (moving, (0.1, 0.3), (0.2, 0.4))):
        written, was = write_step(step, new, rule), write_model(before, old, rule)
        made = apply_step(was, written, size, rule)
        assert made == write_model(step.applied(before), new, rule)
        assert read_model(made, size, rule).clips == new
        assert size < 4 or len(written) < model_bytes(size, rule)
        for bad in (b"", written[:-1], written + b"\0", written[4:]):
            with pytest.raises(ValueError, match="bytes"):
                apply_step(was, bad, size, rule)
        with pytest.raises(ValueError, match="bytes"):
            apply_step(was[:-1], written, size, rule)
