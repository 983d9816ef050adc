"""Stands in for the sensors: writes a file of readings for each participant of a study.

    python readings.py STUDY...     the same files into each study

The law is public, so that anyone can check the study: the level of a room is normal with mean 21 and standard deviation
2.5 degrees; over a day it rises and falls by 1.5, and each reading has an error of 0.5. A real sensor writes its file
itself.
"""

import csv
import sys
from pathlib import Path

import numpy as np

HOURS = np.arange(24)


def readings(rng: np.random.Generator) -> np.ndarray:
    """One day of one room, degrees Celsius, (24,)."""
    level = rng.normal(21.0, 2.5)
    return level - 1.5 * np.cos(2 * np.pi * (HOURS - 3) / 24) + rng.normal(0.0, 0.5, len(HOURS))


def main(studies: list[str]) -> None:
    means = []
    for number, home in enumerate(sorted(Path(studies[0]).glob("hosts/*/keys/*.key")), 1):
        day = readings(np.random.default_rng(number))
        means.append(day.mean())
        for study in studies:
            file = study / home.relative_to(studies[0]).parent.parent / "data" / f"{home.stem}.csv"
            file.parent.mkdir(exist_ok=True)
            with file.open("w", newline="") as lines:
                writer = csv.writer(lines)
                writer.writerow(["hour", "temperature"])
                writer.writerows((hour, f"{value:.2f}") for hour, value in zip(HOURS, day, strict=True))
    counts, _ = np.histogram(means, bins=8, range=(14, 30))
    print(
        f"what only this example knows: {len(means)} rooms, mean {np.mean(means):.2f}, of each 2 degrees "
        f"from 14 to 30: {' '.join(map(str, counts))}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
