"""Plans whose noise or clip isn't as claimed, for an audit to find. No study can run one.

A `Plan` refuses such numbers, and every participant checks it again. This module bypasses the check on purpose, in a
copy that only the audit's encoder sees; the claim stays the unchanged plan's epsilon.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from fractions import Fraction
from typing import TYPE_CHECKING

from mechanisms.calibration import VARIANCE_DENOMINATOR
from mechanisms.clip_rule import ClipRule

if TYPE_CHECKING:
    from mechanisms.plan import Plan


def mistaken(plan: Plan, *, noise_divided_by: float = 1.0, clip_times: float = 1.0) -> Plan:
    """Return the plan by which a mistaken implementation would encode.

    Args:
        plan: with one fixed clip; left unchanged.
        noise_divided_by: how many times smaller than planned the deviation of all noise is, at least 1.
        clip_times: updates are cut to that many clips; the grid and the noise stay the plan's.

    Returns:
        ``plan`` itself without a mistake. Otherwise an object for an `Encoder` only.

    Raises:
        ValueError: a factor below 1, or noise that no sampler draws.
    """
    if not noise_divided_by >= 1 or not clip_times >= 1:
        raise ValueError("a mistake divides the noise, or multiplies the clip, by at least 1")
    if noise_divided_by == clip_times == 1:
        return plan
    variance = plan.local_variance / Fraction(noise_divided_by) ** 2
    variance = Fraction(round(variance * VARIANCE_DENOMINATOR), VARIANCE_DENOMINATOR)
    if variance <= 0:
        raise ValueError(f"noise divided by {noise_divided_by:g} is less than the sampler draws: use more bits")
    clipping = ClipRule.flat(plan.coded_dim, plan.clip * clip_times) if clip_times > 1 else plan.clipping
    changed = {"local_variance": variance, "clipping": clipping}
    wrong = copy.copy(plan)
    for name in [key for key in vars(wrong) if key not in {field.name for field in fields(plan)}]:
        object.__delattr__(wrong, name)  # figures that were computed from the right numbers
    for name, value in changed.items():
        object.__setattr__(wrong, name, value)
    return wrong
