"""``make methods``: every method over the real protocol, one study after the other, as a table."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.methods.served import Unserved, serve
from tests.methods.studies import LARGE, STUDIES


def main() -> int:
    """Returns 1 where a study didn't end as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.methods", description=__doc__)
    parser.add_argument("--only", default="", help="studies whose name holds this")
    parser.add_argument("--large", action="store_true", help="the papers' models too (some minutes)")
    chosen = parser.parse_args()
    studies = {**STUDIES, **(LARGE if chosen.large else {})}
    failed = 0
    print(f"{'study':<40} {'rounds':>6} {'accuracy or statistic':>24} {'epsilon':>8} {'s':>6} {'MB':>5} {'MB':>5}")
    with tempfile.TemporaryDirectory() as work:
        for number, (name, options) in enumerate(studies.items()):
            if chosen.only not in name:
                continue
            try:
                done = serve(Path(work) / f"study-{number}", options, longest_s=900 if name in LARGE else 90)
            except Unserved as error:
                failed += 1
                print(f"{name:<40} FAILED: {error}", flush=True)
                continue
            found = done.report["accuracy"]
            told = f"{found:.3f}" if found is not None else json.dumps(_values(done.report["released"]))
            print(
                f"{name:<40} {len(done.view.rounds):>6} {told[:24]:>24} {done.report['epsilon_coordinator']:>8.3f} "
                f"{done.seconds:>6.1f} {done.coordinator_mb:>5.0f} {done.client_mb:>5.0f}",
                flush=True,
            )
    print("MB: largest resident memory of the coordinator, and of one client process.")
    return 1 if failed else 0


def _values(released: object) -> object:
    values = released.get("values", []) if isinstance(released, dict) else []
    return [round(float(one["value"]), 2) for one in values if isinstance(one.get("value"), int | float)]


if __name__ == "__main__":
    sys.exit(main())
