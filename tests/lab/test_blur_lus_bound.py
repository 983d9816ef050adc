"""How much shorter BLUR makes an update: the bound against real local training."""

from __future__ import annotations

import numpy as np
import pytest

from learning.local_training import Arrays, Batch, local_change
from learning.options import TrainingOptions
from sordino.lab.experiments.blur_lus_bound import least_share

NEVER = 1e6


def trained(gradients: np.ndarray, weight: float, rate: float, l2_clip: float) -> np.ndarray:
    """The update of local training whose steps see these gradients, wherever the model is."""
    of = TrainingOptions(method="blur", blur_weight=weight, client_rate=rate)
    left = iter(gradients)

    def gradient(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, int]:
        return {"weights": next(left).copy()}, 1

    start = {"weights": np.ones(gradients.shape[1])}
    batches = [Batch(np.arange(1))] * len(gradients)
    change = local_change(start, {"weights": np.ones(gradients.shape[1])}, of, l2_clip, batches, list, gradient)
    return np.asarray(change["weights"])


@pytest.mark.parametrize(
    ("weight", "rate", "steps", "left"),
    [
        (0.4, 0.03, 30, 0.8440),
        (0.4, 0.1, 30, 0.58845),
        (0.8, 0.03, 30, 0.71875),
        (0.9, 1.0, 2, 0.55),
        (0.5, 1.0, 1, 1.0),
    ],
)
def test_with_one_gradient_the_bound_is_reached_and_never_passed(
    weight: float, rate: float, steps: int, left: float
) -> None:
    """The papers' defaults among them. Without a clip all steps but the first shrink what was learnt."""
    share = least_share(weight, rate, steps)
    assert share == pytest.approx(left, abs=5e-5)
    gradients = np.tile(np.random.default_rng(1).normal(size=7), (steps, 1))
    plain = trained(gradients, weight, rate, NEVER)
    np.testing.assert_allclose(trained(gradients, weight, rate, 0.0), share * plain, rtol=1e-12)
    for l2_clip in np.linalg.norm(plain) * np.array([0.1, 0.5, 0.9]):
        shorter = trained(gradients, weight, rate, l2_clip)
        assert share * np.linalg.norm(plain) <= np.linalg.norm(shorter) * (1 + 1e-12)
        np.testing.assert_allclose(shorter / np.linalg.norm(shorter), plain / np.linalg.norm(plain), rtol=1e-12)


def test_gradients_that_differ_lose_no_more_than_the_bound_of_their_whole_length() -> None:
    rng = np.random.default_rng(2)
    for weight, rate, steps in [(0.4, 0.03, 30), (0.8, 0.5, 10)]:
        for _ in range(50):
            gradients = rng.normal(size=(steps, 3))
            longest = np.linalg.norm(gradients, axis=1).max()
            for l2_clip in (0.0, 0.2):
                lost = trained(gradients, weight, rate, l2_clip) + rate * gradients.sum(axis=0)
                bound = (1 - least_share(weight, rate, steps)) * rate * steps * longest
                assert np.linalg.norm(lost) <= bound * (1 + 1e-12)


@pytest.mark.parametrize(("weight", "rate", "steps"), [(0.0, 0.1, 3), (2.0, 0.5, 3), (0.4, 0.1, 0)])
def test_what_the_bound_is_not_for(weight: float, rate: float, steps: int) -> None:
    with pytest.raises(ValueError, match="must be above 0 and below 1, and steps at least 1"):
        least_share(weight, rate, steps)
