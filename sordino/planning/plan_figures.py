"""The numbers of a plan, as everything that prints or compares plans reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from learning.task_names import STATISTICS, VOTES

_IF_STATED: Final = frozenset({"accountant", "epsilon_pld", "alternatives", "task", "expected", "default_bounds"})


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """A plan in data units, not grid units; the fields are the stable JSON names.

    Attributes:
        epsilon_coordinator, epsilon_released, epsilon_conditional: of all rounds. None above the largest
            that the sampler's distance from its law lets one state; the last one without sampling, too.
        participations: rounds that may hold one participant.
        granularity: step of the integer grid.
        local_stddev, central_stddev, full_stddev: noise of one share, of the smallest sum, and if all survive.
        noise_norm: of the noise in the mean if all survive, L2, over the clip.
        noise_multiplier: central_stddev over the clip.
        noise_parts: of a share, which survivors take back as far as their number makes them surplus.
        layer_noise_stddev: of the smallest sum, by layer, in units of the update.
        quantile_stderr: of the share of norms below an adaptive clip, in the smallest sum; None with fixed clips.
        accuracy_stderr: of the accuracy that participants report, there and at most; None where they don't evaluate.
        abort_probability: of an attempt, if each participant leaves independently.
        budget_coordinator, budget_released: None of a plan that is for comparison only.
        warnings: sentences without a full stop.
        accountant, epsilon_pld: of `sordino.planning.alternatives.tighter_bounds`; None where not computed.
        learns_with: nearest settings under which a model learns, as options; empty where it does.
        alternatives, task, expected, default_bounds: of `sordino plan`, where it is asked for them.
    """

    mechanism: str
    clients: int
    population: int
    sampling: str
    dim: int
    coded_dim: int
    padded_dim: int
    rotation: str
    block_dim: int
    bits: int
    clip: float
    clipping: Mapping[str, Any]
    rounds: int
    participations: int
    delta: float
    granularity: float
    local_stddev: float
    central_stddev: float
    full_stddev: float
    noise_norm: float
    noise_multiplier: float
    inflated_clip: float
    effective_noise_multiplier: float
    epsilon_coordinator: float | None
    epsilon_released: float | None
    target: str
    adjacency: str
    A: int
    h_min: int
    min_survivors: int
    quorum: int
    graph: str
    adversary: str
    key_agreement: str
    offer_offset_s: float
    threshold: int
    degree: int
    abort_probability: float
    upload_bytes: int
    max_dropout: float
    adversarial: float
    epsilon: float
    budget_coordinator: float | None
    budget_released: float | None
    layer_noise_stddev: list[float]
    trusts: str
    theorem: str
    sketch: list[int] | None = None
    epsilon_conditional: float | None = None
    quantile_stderr: float | None = None
    accuracy_stderr: float | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    noise_parts: int = 0
    warnings: list[str] = field(default_factory=list)
    learns_with: list[str] = field(default_factory=list)
    accountant: str | None = None
    epsilon_pld: float | None = None
    alternatives: Mapping[str, Any] | None = None
    task: str | None = None
    expected: Mapping[str, Any] | None = None
    default_bounds: str | None = None

    @property
    def trains(self) -> bool:
        """Whether it is a model that is learnt from updates, as far as the task is known."""
        return self.task not in (*STATISTICS, VOTES)

    @property
    def planned_epsilon(self) -> float | None:
        """Of the target's reader."""
        epsilons = {"coordinator": self.epsilon_coordinator, "released": self.epsilon_released}
        return epsilons.get(self.target, self.epsilon_conditional)

    def to_json(self) -> dict[str, Any]:
        """Every figure; what was not asked for is left out."""
        left_out = _IF_STATED - ({"epsilon_pld"} if self.accountant else set()) - ({"expected"} if self.task else set())
        return {name: value for name, value in vars(self).items() if value is not None or name not in left_out}
