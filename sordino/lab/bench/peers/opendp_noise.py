"""OpenDP's discrete Gaussian on a vector of integers: nanoseconds of CPU time a sample.

Run by the python of ``.venv-peers``; needs nothing of this repository. OpenDP exposes its sampler as a measurement,
``make_gaussian`` on ``vector_domain(atom_domain(T="i32"))``, which for integers adds exact discrete Gaussian noise
([CKS20]'s sampler on big rationals, a cryptographic generator). A numpy array of zeros goes in, the quickest input it
takes; the result is a list of Python integers. Making it is timed separately: the same call with scale 0 adds no noise.

The cost of a sample doesn't depend on the vector's length, so a long vector is measured on a part of it.

Prints one JSON object. Exit status: 0, or 2 for bad arguments, or 1 if the samples aren't spread as asked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import opendp.prelude as dp

LONGEST = 100_000  # values measured at once: about a second
WARM_UP = 1_000
# Of the empirical standard deviation, in its own standard errors: a false alarm once in 10^9 runs.
ALLOWED_ERRORS = 6.1


def mechanism(stddev: float) -> Any:
    """The measurement that adds the noise."""
    return dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T="i32")), dp.l2_distance(T="f64"), scale=stddev)


def seconds_of(call: Any, vector: np.ndarray) -> tuple[float, list[int]]:
    """CPU seconds of one call, and what it returned."""
    began = time.process_time()
    noisy = call(vector)
    return time.process_time() - began, noisy


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stddev", type=float, required=True, help="of the noise, in steps of the integer grid")
    parser.add_argument("--dim", type=int, required=True, help="length of the vector")
    parser.add_argument("--repeat", type=int, default=3, help="calls; the fastest counts")
    given = parser.parse_args(arguments)
    if not 1 <= given.stddev <= 1e8:
        parser.error("--stddev: 1 to 1e8 (32-bit integers must hold the noise)")
    if given.dim < 1 or given.repeat < 1:
        parser.error("--dim and --repeat: at least 1")

    dp.enable_features("contrib")
    samples = min(given.dim, LONGEST)
    zeros = np.zeros(samples, dtype=np.int32)
    mechanism(2.0)(zeros[:WARM_UP])  # warm-up, not counted
    began = time.process_time()
    add_noise = mechanism(given.stddev)
    setup_s = time.process_time() - began
    runs = [seconds_of(add_noise, zeros) for _ in range(given.repeat)]
    fastest_s = min(seconds for seconds, _ in runs)
    no_noise = mechanism(0.0)
    conversion_s = min(seconds_of(no_noise, zeros)[0] for _ in range(given.repeat))

    drawn = np.concatenate([np.asarray(noisy, dtype=np.float64) for _, noisy in runs])
    stddev_seen = float(np.sqrt(np.mean(drawn**2)))
    allowed = ALLOWED_ERRORS * given.stddev / np.sqrt(2 * drawn.size)
    spread_ok = bool(abs(stddev_seen - given.stddev) <= allowed) or drawn.size < 1000
    print(
        json.dumps(
            {
                "peer": "opendp",
                "law": "gaussian",
                "stddev": given.stddev,
                "dim": given.dim,
                "samples": samples,
                "ns_per_sample": fastest_s / samples * 1e9,
                "conversion_ns_per_sample": conversion_s / samples * 1e9,
                "setup_ms": setup_s * 1e3,
                "stddev_seen": stddev_seen,
                "spread_ok": spread_ok,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
                "settings": {"mechanism": "make_gaussian", "type": "i32", "input": "numpy", "repeat": given.repeat},
                "versions": {"opendp": version("opendp"), "numpy": np.__version__, "python": platform.python_version()},
            }
        )
    )
    return 0 if spread_ok else 1


if __name__ == "__main__":
    sys.exit(main())
