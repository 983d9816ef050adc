"""Masks of dropout layers whose randomness is handed in."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from learning.tasks.dropout import Dropout  # noqa: E402 - only where torch is


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_a_mask_keeps_what_it_says_and_keeps_the_mean(share: float) -> None:
    """Five standard errors of a fixed draw."""
    layer = Dropout(share)
    layer.shape = (50, 40)
    mask = layer.draw(10, torch.Generator().manual_seed(0))
    assert mask.shape == (10, 50, 40)
    kept = mask[mask != 0].numpy()
    np.testing.assert_allclose(kept, 1 / (1 - share) if share < 1 else 0, rtol=1e-4)
    assert float((mask == 0).float().mean()) == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / 20_000))


def test_a_mask_by_channel_has_one_value_a_channel() -> None:
    layer = Dropout(0.5, by_channel=True)
    layer(torch.zeros(2, 8, 3, 3))
    assert layer.draw(4, torch.Generator().manual_seed(0)).shape == (4, 8, 1, 1)
