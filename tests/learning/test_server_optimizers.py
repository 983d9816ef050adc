"""FedAvg with server momentum: the algebra, and its state through a restart."""

import numpy as np
import pytest

from learning.learner import ModelLearner
from learning.parameters import flatten
from learning.server_optimizers import ServerOptimizer
from learning.task_names import ADAPTIVE, SERVER_OPTIMIZERS

RNG = np.random.default_rng(8)
MEANS = RNG.normal(size=(6, 11))
START = RNG.normal(size=11).astype(np.float32)


def test_plain_averaging_adds_the_mean() -> None:
    np.testing.assert_allclose(ServerOptimizer().apply(START, MEANS[0]), START + MEANS[0], rtol=1e-6)


def test_momentum_is_the_geometric_sum_of_means() -> None:
    """x_T = x_0 + rate * sum over s of mean_s * (1 + m + ... + m^(T-1-s))."""
    optimizer, vector = ServerOptimizer(rate=0.7, momentum=0.9), START
    for mean in MEANS:
        vector = optimizer.apply(vector, mean)
    weights = [sum(0.9**power for power in range(6 - index)) for index in range(6)]
    np.testing.assert_allclose(vector, START + 0.7 * (np.array(weights) @ MEANS), atol=1e-5)
    assert vector.dtype == np.float32


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1] * 6),
        ("linear", [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("cosine", [1, 0.93301, 0.75, 0.5, 0.25]),
    ],
)
def test_the_rate_follows_its_schedule(schedule: str, factors: list[float]) -> None:
    optimizer = ServerOptimizer(rate=0.7, schedule=schedule, rounds=6)
    vector, wanted = START, START.astype(np.float64)
    for mean, factor in zip(MEANS, factors, strict=False):
        vector, wanted = optimizer.apply(vector, mean), wanted + 0.7 * factor * mean
        np.testing.assert_allclose(vector, wanted, atol=2e-5)


def test_a_rate_never_turns_round() -> None:
    """Of more rounds than were said."""
    optimizer = ServerOptimizer(schedule="linear", rounds=2)
    first, second = optimizer.apply(START, MEANS[0]), optimizer.apply(START, MEANS[0])
    assert (first != START).all()
    assert (second != START).all()
    for mean in MEANS[:3]:
        np.testing.assert_array_equal(optimizer.apply(START, mean), START)


def test_arguments_are_not_written_to() -> None:
    optimizer, start, mean = ServerOptimizer(momentum=0.5), START.copy(), MEANS[0].copy()
    optimizer.apply(start, mean)
    optimizer.apply(start, MEANS[1])
    np.testing.assert_array_equal(start, START)
    np.testing.assert_array_equal(mean, MEANS[0])


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_state_continues_exactly(name: str, schedule: str) -> None:
    first, second, fresh = (ServerOptimizer(name, 0.05, 0.8, schedule=schedule, rounds=6) for _ in range(3))
    assert first.state() == {}
    vector = START
    for mean in MEANS[:3]:
        vector = first.apply(vector, mean)
    second.load_state(first.state())
    for array in first.state().values():
        array[:] = 0  # a copy: the optimizer does not feel it
    for mean in MEANS[3:]:
        vector, other = first.apply(vector, mean), second.apply(vector, mean)
        np.testing.assert_array_equal(vector, other)
    with pytest.raises(ValueError, match="state"):
        second.apply(START[:5], MEANS[1][:5])
    second.load_state({})
    np.testing.assert_array_equal(second.apply(START, MEANS[0]), fresh.apply(START, MEANS[0]))


def test_a_refused_update_leaves_the_state() -> None:
    optimizer = ServerOptimizer(momentum=0.9)
    optimizer.apply(START, MEANS[0])
    before = optimizer.state()["velocity"]
    for bad in (np.full(11, np.nan), np.full(11, np.inf), MEANS[0][:10], MEANS):
        with pytest.raises(ValueError, match="mean update"):
            optimizer.apply(START, bad)
    with pytest.raises(ValueError, match="state"):
        optimizer.apply(START[:5], MEANS[1][:5])
    np.testing.assert_array_equal(optimizer.state()["velocity"], before)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *(("fedavg", "rate", value) for value in (0.0, float("nan"))),
        *(("fedavg", "momentum", value) for value in (1.0, -0.1, float("nan"))),
        *(("fedyogi", "rate", 0.0), ("fedyogi", "momentum", 1.0)),
        *(("fedyogi", "second_momentum", 1.0), ("fedyogi", "adaptivity", 0.0)),
    ],
)
def test_bad_settings_are_refused(name: str, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"the server.* {option.split('_')[0]}.* is {value}; it must be"):
        ServerOptimizer(name, **{option: value})


def test_bad_state_is_refused() -> None:
    for state in ({"speed": np.zeros(3)}, {"velocity": np.zeros((2, 2))}, {"velocity": np.array([np.nan])}):
        with pytest.raises(ValueError, match="optimizer's"):
            ServerOptimizer().load_state(state)
    for name in ADAPTIVE:
        with pytest.raises(ValueError, match="below 0"):
            ServerOptimizer(name).load_state({"first": np.zeros(2), "second": np.array([-1.0, 0.0])})
        with pytest.raises(ValueError, match="expected"):
            ServerOptimizer(name).load_state({"velocity": np.zeros(2)})
    with pytest.raises(ValueError, match=r"expected \['applied', 'velocity'\]"):
        ServerOptimizer(schedule="linear").load_state({"velocity": np.zeros(2)})
    falling = ServerOptimizer(schedule="linear", rounds=6)
    falling.apply(START, MEANS[0])
    before = falling.state()
    for applied in (np.array([]), np.array([np.nan]), np.array([-1.0]), np.array([1.5]), np.zeros((1, 1))):
        with pytest.raises(ValueError, match="number of rounds is none"):
            falling.load_state({"velocity": np.zeros(11), "applied": applied})
        assert falling.state()["applied"] == before["applied"]
        np.testing.assert_array_equal(falling.state()["velocity"], before["velocity"])
    with pytest.raises(ValueError, match="unknown schedule 'step'"):
        ServerOptimizer(schedule="step")


def by_hand(name: str, rate: float, b1: float, b2: float, tau: float) -> np.ndarray:
    """[RCZ+21] Algorithm 2, one coordinate at a time."""
    result = []
    for coordinate in range(11):
        x, m, v = float(START[coordinate]), 0.0, tau**2
        for mean in MEANS:
            d = float(mean[coordinate])
            m = b1 * m + (1 - b1) * d
            if name == "fedadagrad":
                v = v + d * d
            elif name == "fedyogi":
                v = v - (1 - b2) * d * d * (1 if v > d * d else -1)
            else:
                v = b2 * v + (1 - b2) * d * d
            x = x + rate * m / (v**0.5 + tau)
        result.append(x)
    return np.array(result)


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_ones_do_as_the_paper_says(name: str) -> None:
    optimizer, vector = ServerOptimizer(name, 0.05, 0.8, 0.95, 0.01), START
    for mean in MEANS:
        vector = optimizer.apply(vector, mean)
    np.testing.assert_allclose(vector, by_hand(name, 0.05, 0.8, 0.95, 0.01), atol=1e-5)


def test_names() -> None:
    for name in SERVER_OPTIMIZERS:
        moved = ServerOptimizer(name, 0.1, 0.5).apply(START, MEANS[0])
        assert moved.dtype == np.float32
        assert not np.array_equal(moved, START)
    with pytest.raises(ValueError, match="known ones: fedavg, fedadagrad, fedadam, fedyogi"):
        ServerOptimizer("adam")


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_a_step_leads_from_what_was_broadcast_to_what_is(name: str) -> None:
    learner = ModelLearner({"w": START}, ServerOptimizer(name, 0.05, 0.8), lambda _: {})
    assert learner.step() is None
    for mean in MEANS:
        before = flatten(learner.broadcast())
        learner.learn(mean, 5)
        step = learner.step()
        assert step is not None
        np.testing.assert_array_equal(step.applied(before), flatten(learner.broadcast()))
        assert learner.step() is None  # it is told once
    learner.learn(MEANS[0], 5)
    learner.load_state(*learner.state())
    assert learner.step() is None  # of another process it isn't known
