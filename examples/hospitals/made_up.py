"""Stands in for the real records where they aren't prepared: files of the same shape, with invented patients.

    python made_up.py FOLDER     hospital-1.npz to hospital-4.npz, and held-out.npz for the coordinator

As many patients and columns as the real set has. Whether a patient is ill follows a public logistic law, and hospitals
differ: in their patients and in the share that is ill.
"""

import sys
from pathlib import Path

import numpy as np

PATIENTS = {"Cleveland": 243, "Hungary": 234, "Switzerland": 98, "VA Long Beach": 160}
OFTEN_ILL = {"Cleveland": 0.0, "Hungary": -0.7, "Switzerland": 2.5, "VA Long Beach": 1.2}
COLUMNS = 28


def patients(hospital: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Records (count, 28), float32, and labels: 1 ill, 0 not."""
    law = np.random.default_rng(1).normal(0.0, 0.7, COLUMNS)
    rng = np.random.default_rng([seed, *hospital.encode()])
    records = rng.normal(0.0, 1.0, (count, COLUMNS)) + rng.normal(0.0, 0.2, COLUMNS)
    ill = rng.random(count) < 1 / (1 + np.exp(-(records @ law + OFTEN_ILL[hospital])))
    return {"features": records.astype(np.float32), "labels": ill.astype(np.int64)}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (hospital, count) in enumerate(PATIENTS.items(), 1):
        np.savez(folder / f"hospital-{number}.npz", **patients(hospital, count, seed=2))
    others = [patients(hospital, count // 4, seed=3) for hospital, count in PATIENTS.items()]
    np.savez(
        folder / "held-out.npz",
        features=np.concatenate([one["features"] for one in others]),
        labels=np.concatenate([one["labels"] for one in others]),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    main(Path(sys.argv[1]))
