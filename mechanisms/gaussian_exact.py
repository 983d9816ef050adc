"""The Gaussian mechanism's exact privacy.

Adjacency: any change that moves the mean by at most the sensitivity (content against zero, if the sensitivity is the
clip); both directions, which are equal. Trust: the party that adds the noise.

Rounds without sampling compose exactly: T rounds, each at noise multiplier z, are together one Gaussian mechanism at z
/ sqrt(T), and rounds at z_1, ..., z_T one at (sum of z_t^-2)^(-1/2); callers pass that figure. Sampled rounds do not
compose so; but sampling is post-processing of the unsampled pair, so the figure stays an upper bound. Only the standard
library's mathematics is used, in a form that keeps its accuracy in the far tail.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

# Levels of the continued fraction at t from 2 on: 12 + 500 / t^2 leave less than 2^-54.
_LEVELS: Final = 500
_FRACTION_FROM: Final = 2.0
_SHORT_STEP: Final = 0.5
# Gauss-Legendre over a step of at most 0.5: the integrand is entire, and 8 nodes leave less than 1e-15.
_NODES: Final = tuple(
    (float(x + 1) / 2, float(w) / 2) for x, w in zip(*np.polynomial.legendre.leggauss(8), strict=True)
)
_LOG_SQRT_2PI: Final = math.log(2 * math.pi) / 2


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest delta at which the Gaussian mechanism is (epsilon, delta)-private, rounded up.

    Phi(1/(2z) - epsilon z) - e^epsilon Phi(-1/(2z) - epsilon z). Source: [BW18] Theorem 8. For T unsampled rounds give
    z / sqrt(T).

    Args:
        noise_multiplier: z, standard deviation over sensitivity, > 0.
        epsilon: >= 0.

    Returns delta in (0, 1]: never below the exact value, and above it by less than 1e-10 of it for z from 1e-3 to 1e6
    and delta from 1e-30.

    Raises ValueError: an argument outside its range.
    """
    check_noise_multiplier(noise_multiplier)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and >= 0, not {epsilon!r}")
    return max(math.exp(_log_delta(noise_multiplier, epsilon)[0]), math.nextafter(0.0, 1.0))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The smallest epsilon at which the Gaussian mechanism is (epsilon, delta)-private, rounded up; infinite if no
    double.

    Source: [BW18] Theorem 8, solved for epsilon by Newton's steps from above. For T unsampled rounds give z / sqrt(T).

    Args:
        noise_multiplier: z, standard deviation over sensitivity, > 0.
        delta: in (0, 1).

    Raises ValueError: an argument outside its range.
    """
    check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    target = math.log(delta) * (1 + 2**-50)
    if _log_delta(noise_multiplier, 0.0)[0] <= target:
        return 0.0
    inverse = 1 / noise_multiplier
    low, high = 0.0, (inverse * inverse / 2 + inverse * math.sqrt(-2 * target)) * (1 + 1e-9)
    if high == math.inf:
        return math.inf
    # Here delta <= Phi(-A) <= e^(-A^2 / 2) with A = sqrt(2 ln(1 / delta)): the bracket holds the answer.
    log_delta, slope = _log_delta(noise_multiplier, high)
    while high - low > 2**-48 * high:
        # ln delta is nearly a parabola and concave: a step from above stays above. If rounding takes it below, half.
        middle = high - (log_delta - target) / slope if slope < 0 else low
        middle = min(middle, high * (1 - 2**-49))
        if not low < middle:
            middle = (low + high) / 2
        found = _log_delta(noise_multiplier, middle)
        if found[0] <= target:
            settled = slope < 0 and high - middle <= 2**-40 * high
            high, (log_delta, slope) = middle, found
            if settled:
                break
        else:
            low, slope = middle, 0.0
    return high


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least noise multiplier at which the Gaussian mechanism is (epsilon, delta)-private, rounded up.

    Source: [BW18] Theorem 8, by bisection. For T unsampled rounds multiply by sqrt(T).

    Raises ValueError: epsilon isn't finite and >= 0.
    """
    low, high = 1e-6, 1e6
    while high > low * (1 + 2**-40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_delta(middle, epsilon) <= delta else (middle, high)
    return high


def check_noise_multiplier(noise_multiplier: float) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"the noise multiplier must be finite and > 0, not {noise_multiplier!r}")


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")


def _log_delta(z: float, epsilon: float) -> tuple[float, float]:
    """ln delta, rounded up, and its derivative by epsilon, which isn't.

    With phi the normal density, A = epsilon z - 1 / (2z), B = A + 1 / z and Mills' ratio R(t) = Phi(-t) / phi(t):
    B^2 - A^2 = 2 epsilon gives e^epsilon phi(B) = phi(A), hence delta = phi(A) (R(A) - R(B)). Nothing underflows
    in it, and where A and B are close the difference is the integral of -R'(t) = 1 - t R(t) between them. The
    derivative of delta is -e^epsilon Phi(-B) = -phi(A) R(B).
    """
    scaled, half = epsilon * z, 1 / (2 * z)
    a, b = scaled - half, scaled + half
    if a > 1e6:
        return -1e11, -scaled * z  # delta <= e^(-A^2 / 2)
    beyond = _mills(b)[0]
    if 2 * half < _SHORT_STEP:
        log_difference = math.log(2 * half) + math.log(
            math.fsum(weight * _mills(a + 2 * half * node)[1] for node, weight in _NODES)
        )
        log_delta = log_difference - a * a / 2 - _LOG_SQRT_2PI
    elif a >= 0:
        log_delta = math.log(_mills(a)[0] - beyond) - a * a / 2 - _LOG_SQRT_2PI
    else:
        density = math.exp(-a * a / 2 - _LOG_SQRT_2PI)
        log_delta = math.log(math.erfc(a / math.sqrt(2)) / 2 - density * beyond)
    # A is off by the rounding of its two parts, its square by that times A, the difference by some 1e-14 of it.
    slack = 2**-42 + 2**-50 * abs(a) * (scaled + half + abs(a))
    return min(0.0, log_delta + slack), -math.exp(-a * a / 2 - _LOG_SQRT_2PI - log_delta) * beyond


def _mills(t: float) -> tuple[float, float]:
    """R(t) = Phi(-t) / phi(t), and -R'(t) = 1 - t R(t), for t >= -1 or so.

    Large t: R(t) = 1 / (t + K), K = 1 / (t + 2 / (t + 3 / (t + ...))), where 1 - t R(t) = K / (t + K) loses no
    digits. The fraction's value lies between any two successive cuts.
    """
    if t < _FRACTION_FROM:
        ratio = math.sqrt(math.pi / 2) * math.exp(t * t / 2) * math.erfc(t / math.sqrt(2))
        return ratio, 1 - t * ratio
    rest = t
    for level in range(12 + int(_LEVELS / (t * t)), 1, -1):
        rest = t + level / rest
    k = 1 / rest
    return 1 / (t + k), k / (t + k)
