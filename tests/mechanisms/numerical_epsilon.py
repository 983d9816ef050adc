"""An independent epsilon: the noise's law added up, its privacy losses composed by Fourier transforms.

It shares no code with the accounting: laws from scipy's Bessel functions and plain exponentials, convolved share by
share, losses rounded towards a smaller epsilon (`lower_epsilon`), so a charge below it is unsound. The contribution is
the worst that one coordinate can hold, or is spread over several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray
from scipy.special import ive  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped]

Floats = NDArray[np.float64]


def log_law(mechanism: str, variance: float, shares: int, reach: int) -> Floats:
    """ln P[X = k], k = -reach..reach, of a sum of ``shares`` with this variance each.

    Up to some 1e-10; a wide sum of discrete Gaussians, whose convolution would only add rounding errors, as one.
    """
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    central = variance * shares
    if mechanism == "skellam":
        with np.errstate(divide="ignore"):
            near = np.log(ive(k, central))
        # Uniform asymptotic expansion of I_k(v), where the library underflows.
        order = np.abs(k)
        root = np.hypot(order, central)
        far = root - order * np.arcsinh(order / central) - central - np.log(2 * math.pi * root) / 2
        t = order / root
        far += np.log1p((3 * t - 5 * t**3) / 24 / np.maximum(order, 1))
        return np.where(np.isfinite(near) & (near > -600), near, far)
    if central > 2000 or shares == 1:
        logs = -(k**2) / (2 * central)
    else:
        one = np.exp(-(k**2) / (2 * variance))
        size = 1 << (4 * reach).bit_length()
        spectrum = np.fft.rfft(np.fft.ifftshift(np.pad(one / one.sum(), (size // 2 - reach, size // 2 - reach - 1))))
        summed = np.fft.fftshift(np.fft.irfft(spectrum**shares, size))[size // 2 - reach : size // 2 + reach + 1]
        logs = np.log(np.maximum(summed, 1e-300))
        trusted = summed > 1e-9 * summed.max()
        logs = np.where(trusted, logs, -(k**2) / (2 * central) - np.log(np.exp(-(k**2) / (2 * central)).sum()))
    return np.asarray(logs - np.log(np.exp(logs - logs.max()).sum()) - logs.max(), dtype=np.float64)


def lower_epsilon(rounds: Sequence[tuple[Floats, int]], shift: int, delta: float, points: int = 4000) -> float:
    """epsilon at ``delta`` of sums that are shifted in one coordinate, by law and number: never above the truth.

    The library moves 1e-15 of the mass to infinity, which is taken off here.
    """
    losses, spread = [], 0.0
    for log_p, copies in rounds:
        loss = log_p[:-shift] - log_p[shift:]
        mass = np.exp(log_p[:-shift])  # where the unshifted law has its mass; the shifted one beside it
        losses.append((loss[mass > 0], mass[mass > 0], copies))
        spread = max(spread, math.sqrt(float(np.sum(mass * loss**2))))
    step = max(spread / points * 8, 1e-12)
    whole: DensePLDPmf | None = None
    for loss, mass, copies in losses:
        cells = np.floor(loss / step).astype(np.int64)
        low = int(cells.min())
        pmf = DensePLDPmf(step, low, np.bincount(cells - low, weights=mass), 0.0, False)
        pmf = pmf.self_compose(copies) if copies > 1 else pmf
        whole = pmf if whole is None else whole.compose(pmf)
    assert whole is not None
    return float(whole.get_epsilon_for_delta(delta + 1e-14))


def gaussian_reference(mu: float, delta: float) -> float:
    """epsilon of N(mu, 1) beside N(0, 1), by bisection with scipy's normal law."""
    low, high = 0.0, mu * mu / 2 + 12 * mu
    for _ in range(100):
        middle = (low + high) / 2
        above = norm.logsf(middle / mu - mu / 2)
        gap = math.exp(above) - math.exp(middle + norm.logsf(middle / mu + mu / 2))
        low, high = (low, middle) if gap <= delta else (middle, high)
    return high
