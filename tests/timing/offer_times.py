"""When offers arrive at a coordinator, by what training came to, and how well the time tells one outcome from another.

    python -m tests.timing.offer_times --trials 2000 [--offset 1.0] [--naive] [--dim 500000]

Three real client processes take part in a study over gRPC with TLS (`timed_host`); the coordinator notes when each
offer arrives, from the attempt's start. For each two outcomes a classifier is fitted to one half of the trials and
judged by the other: the better of the best threshold and the ten nearest neighbours. Exit code 1: the largest of these
figures is above the bound by more than two standard errors.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.credentials import load_identity
from client.host_file import load as load_host
from runtime.child_process import child_environment
from tests.support.study_in_process import coordinator, identities, make_folder
from tests.timing.timed_host import OUTCOMES, UNFINISHED

HOSTS = 3
APART_S = 0.09  # from one process's work to the next one's: on two cores none waits for another
NEIGHBOURS = 10
Times = dict[str, NDArray[np.float64]]


async def measure(folder: Path, rounds: int, dim: int, offset_s: float = 0.0, *, naive: bool = False) -> Times:
    """Play a study; the seconds from an attempt's start to each offer, by outcome, in the order of rounds."""
    make_folder(
        folder,
        participants=HOSTS,
        hosts=HOSTS,
        rounds=2 * rounds,  # attempts that fail are charged as well
        min_survivors=HOSTS,
        quorum=HOSTS,
        max_dropout=0.0,
        adversarial=0.0,
        bits=30,
        task="synthetic",
        task_options={"dim": dim},
        offer_offset_s=offset_s,
    )
    arrived: list[tuple[int, int, float]] = []  # round, participant, time
    async with coordinator(folder, folder / "state.sqlite", deadlines={"masked_input_s": offset_s + 30.0}) as where:
        honest = where.study.phase_message

        def phase_message(session: Any, message: Any, size: int) -> None:
            if message.HasField("masked_input"):
                arrived.append((message.round, session.participant, time.time()))
            honest(session, message, size)

        where.study.phase_message = phase_message  # type: ignore[method-assign]
        homes = sorted((folder / "hosts").iterdir())
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.timing.timed_host", str(home), str(home / "outcomes")),
                *(str(place * APART_S), str(offset_s), "naive" if naive else "real"),
                env=child_environment() | {"SORDINO_COORDINATOR__ADDRESS": where.address, "OPENBLAS_NUM_THREADS": "1"},
                stdout=asyncio.subprocess.DEVNULL,
            )
            for place, home in enumerate(homes)
        ]
        try:
            where.start()
            assert where.running is not None
            while not where.running.done() and not where.of("round_completed", round=rounds):
                where.changed.clear()
                await where.changed.wait()
            assert not where.running.done(), where.running.result()
        finally:
            for process in processes:
                if process.returncode is None:
                    process.terminate()
            await asyncio.gather(*(process.wait() for process in processes))
        began = {event["round"]: event["at"] for event in where.of("attempt_started")}
    keys = [key.public for key in identities(folder)]
    of_home = [keys.index(load_identity(load_host(home).participants[0].key).public) for home in homes]
    outcomes = {who: (home / "outcomes").read_text().split("\n") for who, home in zip(of_home, homes, strict=True)}
    found: dict[str, list[float]] = defaultdict(list)
    for round_, who, at in arrived:
        if round_ > 3:  # the first trainings are slower
            apart = 0.0 if offset_s else of_home.index(who) * APART_S
            found[outcomes[who][round_ - 1]].append(at - began[round_] - apart)
    return {name: np.array(values) for name, values in found.items()}


def accuracy(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Of the better classifier; each half of the trials judges what the other was fitted to, both outcomes alike."""
    size = min(len(one), len(other)) // 2
    halves = [np.concatenate([one[at : 2 * size : 2], other[at : 2 * size : 2]]) for at in (0, 1)]
    labels = np.repeat([0, 1], size)
    right = np.mean([_right(fitted, judged, labels) for fitted, judged in (halves, halves[::-1])], axis=0)
    return float(right.max())


def _right(fitted: NDArray[np.float64], judged: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    """How often the best threshold and the nearest neighbours are right."""
    order = np.argsort(fitted, kind="stable")
    below = np.cumsum(np.where(labels[order] == 0, 1, -1))
    at = int(np.argmax(np.abs(below)))
    above = judged > fitted[order[at]]
    nearest = np.argpartition(np.abs(judged[:, None] - fitted[None, :]), NEIGHBOURS, axis=1)[:, : NEIGHBOURS + 1]
    voted = labels[nearest].mean(axis=1) > 0.5
    return float(np.mean(above == (labels == (below[at] > 0)))), float(np.mean(voted == labels))


def table(times: Mapping[str, NDArray[np.float64]]) -> dict[tuple[str, str], float]:
    """The accuracy for each two outcomes."""
    return {pair: accuracy(times[pair[0]], times[pair[1]]) for pair in itertools.combinations(times, 2)}


def by_chance(times: Mapping[str, NDArray[np.float64]], draws: int = 10) -> list[float]:
    """The largest accuracy of all pairs where the times are dealt to the outcomes at random, of each draw."""
    random, ends = np.random.default_rng(), np.cumsum([len(one) for one in times.values()])
    together = np.concatenate(list(times.values()))
    return [
        max(table(dict(zip(times, np.split(random.permutation(together), ends[:-1]), strict=True))).values())
        for _ in range(draws)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.timing.offer_times",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trials", type=int, default=2000, help="for each two outcomes (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=500_000, help="values of a vector (default: %(default)s)")
    parser.add_argument("--offset", type=float, default=0.0, help="offer_offset_s of the study (default: none)")
    parser.add_argument("--naive", action="store_true", help="clients that skip what a zero contribution doesn't need")
    chosen = parser.parse_args()
    outcomes = (*OUTCOMES, UNFINISHED) if chosen.offset else OUTCOMES
    rounds = 3 + -(-chosen.trials * len(outcomes) * 11 // (2 * HOSTS * 10))
    with tempfile.TemporaryDirectory(prefix="sordino-timing-") as place:
        times = asyncio.run(measure(Path(place) / "study", rounds, chosen.dim, chosen.offset, naive=chosen.naive))
    times = {name: times[name] for name in outcomes}
    for name in outcomes:
        low, median, high = 1e3 * np.quantile(times[name], [0.05, 0.5, 0.95])
        print(f"{name:12} {len(times[name]):5} offers, {low:7.1f} {median:7.1f} {high:7.1f} ms (5, 50, 95 %)")
    found = table(times)
    for pair, right in found.items():
        print(f"{' / '.join(pair):26} {100 * right:5.1f} % right")
    most, worst = 0.51 if chosen.offset else 0.53, max(found.values())
    error = 0.5 / np.sqrt(2 * min(map(len, times.values())))
    print(
        f"at most {100 * worst:.1f} %, each with a standard error of {100 * error:.1f}; the bound is {100 * most:.0f} %"
    )
    chance = by_chance(times)
    print(f"with the times dealt at random: at most {100 * np.mean(chance):.1f} % on average of {len(chance)} draws")
    return int(worst - 2 * error > most)


if __name__ == "__main__":
    sys.exit(main())
