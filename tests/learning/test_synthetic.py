"""The task without a model."""

from __future__ import annotations

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import OptionError
from learning.public_random import PublicRandom

NOTHING = Dataset(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64))


def test_any_dimension_and_a_zero_update() -> None:
    task = make_task("synthetic", {"dim": 12_345})
    assert task.dim == 12_345
    assert task.options.to_mapping() == {"dim": 12_345}
    start = task.initial_parameters()
    update = task.local_update(start, NOTHING, PublicRandom(b"order"))
    assert {name: array.shape for name, array in update.items()} == {"vector": (12_345,)}
    assert not update["vector"].any()
    assert task.evaluate(start, NOTHING) == {"accuracy": 0.0, "loss": 0.0}


@pytest.mark.parametrize("dim", [0, -1, 2**28 + 1, 1.5, True])
def test_a_bad_dimension_is_refused(dim: object) -> None:
    with pytest.raises(OptionError, match="dim"):
        make_task("synthetic", {"dim": dim})


def test_parameters_of_another_shape_are_refused() -> None:
    task = make_task("synthetic", {"dim": 3})
    with pytest.raises(ValueError):
        task.local_update({"vector": np.zeros(4, dtype=np.float32)}, NOTHING, PublicRandom(b"order"))
