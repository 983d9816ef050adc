"""A small study to simulate, with noise and without, and what tests do with such settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino import SimulationSettings
from sordino.lab.simulation.settings import resized, simulated_study

STUDY = simulated_study(name="small", participants=40, rounds=4, epsilon=8.0, bits=18, clip=1.0)
QUIET = SimulationSettings(study=resized(STUDY, 0, mechanism="none"), drop=0.2)
NOISY = SimulationSettings(study=STUDY, drop=0.2)


def changed(settings: SimulationSettings, **study: Any) -> SimulationSettings:
    return settings.changed(study=resized(settings.study, 0, **study))


def same(first: Any, second: Any) -> bool:
    return list(first) == list(second) and all(np.array_equal(first[name], second[name]) for name in first)
