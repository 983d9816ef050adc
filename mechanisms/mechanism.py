"""The mechanisms by name: what each one proves, against whom, and which party must be trusted for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# In signed terms and in ledgers: with another word, old rows no longer count towards a total.
ZERO_OUT: Final = (
    "zero-out: one participant's contribution (update and clip bits) against zero, her noise share present"
)
ZERO_OUT_CENTRAL: Final = (
    "zero-out: one participant's contribution (update and clip bits) against zero, the coordinator's noise unchanged"
)
REPLACE: Final = "replace-one: one participant's update against any other"


@dataclass(frozen=True)
class Description:
    """What a statistician asks first."""

    name: str
    title: str
    theorem: str  # source of the privacy curve
    adjacency: str
    trusts: str  # who must behave for the stated epsilon to hold


DESCRIPTIONS: Final = {
    one.name: one
    for one in (
        Description(
            "ddgauss",
            "distributed discrete Gaussian",
            "exact Gaussian cost (docs/privacy.md); [KLS21] Theorem 1 with Proposition 14 if sampled or coarse",
            ZERO_OUT,
            "nobody alone: each of h_min honest participants adds its share before the secure sum",
        ),
        Description(
            "skellam",
            "distributed Skellam",
            "exact Gaussian cost (docs/privacy.md); [AKL21] main theorem, integer orders, if sampled or coarse",
            ZERO_OUT,
            "nobody alone: each of h_min honest participants adds its share before the secure sum",
        ),
        Description(
            "gaussian",
            "central Gaussian (DP-FedAvg)",
            "exact Gaussian cost (docs/privacy.md, [BW18] Theorem 8); [CKS20] Theorem 4 if sampled",
            ZERO_OUT_CENTRAL,
            "the coordinator: it sees the exact sum and adds the noise",
        ),
        Description(
            "local-gaussian",
            "local discrete Gaussian",
            "exact Gaussian cost (docs/privacy.md), [CKS20] Theorem 4 on coarse grids; with twice the sensitivity",
            REPLACE,
            "nobody: each report is private by itself, whatever happens to it",
        ),
        Description(
            "binomial",
            "distributed binomial (cpSGD)",
            "[ASY+18] Theorem 1 at p = 1/2, up to epsilon 1 a round",
            "zero-out: one participant's update against zero, its noise share present",
            "the secure sum, and that at most A of the survivors' noise shares are known or missing",
        ),
        Description(
            "randomised-response",
            "k-ary randomised response, shuffled",
            "[KBR16] k-ary randomised response (eps0 of one report); [FMT21] Theorem 3.1 (their secure sum)",
            "replace-one: one participant's category replaced by another, everybody reports in both cases",
            "local epsilon: nobody but the participant's own machine; central epsilon: the secure sum, and that at "
            "most A colluders' reports are known",
        ),
    )
}
"""The last two are not served: `mechanisms.baselines`."""
