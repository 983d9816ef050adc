"""Make the shipped subset of Fashion-MNIST from the full set.

Run it as ``python -m learning.make_fashion_mnist_subset``. The subset is the first 600 training and the first
200 test images of each class, in file order. The full set's files are those of the Debian package
dataset-fashion-mnist. Prints the SHA-256 that ``learning.datasets.SUBSET_SHA256`` pins; the archive carries
no times, so the same zlib makes the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learning.datasets import CLASSES, SUBSET_FILE, load_part

TRAIN_A_CLASS = 600
TEST_A_CLASS = 200


def first_of_each_class(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the indices of the first ``count`` examples of each class, ascending."""
    chosen = [np.flatnonzero(labels == label)[:count] for label in range(CLASSES)]
    return np.sort(np.concatenate(chosen))


def subset_archive() -> bytes:
    """Return the bytes of the .npz archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as members:
        for part, count in (("train", TRAIN_A_CLASS), ("test", TEST_A_CLASS)):
            full = load_part("fashion-mnist-full", "train" if part == "train" else "test")
            subset = full.take(first_of_each_class(full.labels, count))
            for kind, array in (("images", subset.features), ("labels", subset.labels.astype(np.uint8))):
                member = io.BytesIO()
                np.lib.format.write_array(member, array, allow_pickle=False)
                info = zipfile.ZipInfo(f"{part}_{kind}.npy")  # its time is the fixed start of 1980
                members.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return archive.getvalue()


def main() -> None:
    """Write the archive and print its size and digest."""
    parser = argparse.ArgumentParser(description="Make the shipped subset of Fashion-MNIST from the full set.")
    parser.add_argument("--output", type=Path, default=SUBSET_FILE, help="default: %(default)s")
    output: Path = parser.parse_args().output
    content = subset_archive()
    output.write_bytes(content)
    print(f"{output}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
