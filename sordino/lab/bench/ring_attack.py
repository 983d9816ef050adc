"""The window attack on random rings: how often it succeeds, beside the bounds for degree and threshold.

A coordinator that wants the sum of an arc empties two windows of k/2 places: the members between them then have
neighbours on their side only, and the others' masks no longer hide their sum. `MALICIOUS`: it looks at the ring, takes
the two windows with the most colluders, and makes the honest members in them drop out, if it may drop as many. Each
ring is one attempt. `CURIOUS` and `SEMI_MALICIOUS`: drops are as random as colluders, and both windows must be empty by
chance. docs/graph.md has the bounds, and figures.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg.sharing import CURIOUS, MALICIOUS, cut_chance, cut_pairs, tail

Places = NDArray[np.bool_]  # rings x members: whether the member at each place is marked
Counts = NDArray[np.int32]

BATCH_PLACES: Final = 1 << 21
"""Places drawn at a time: about 100 MB."""
STANDARD_ERRORS: Final = 6


@dataclass(frozen=True)
class Setting:
    """One choice of parameters, as `secagg.sharing.k_regular` took it."""

    members: int
    colluders: int
    drops: int
    adversary: str
    degree: int
    threshold: int

    @property
    def bound(self) -> float:
        """At most this share of rings can be cut: all pairs of windows, each with its chance."""
        pair = cut_chance(self.members, self.colluders, self.drops, self.degree, self.adversary)
        return float(min(Fraction(1), cut_pairs(self.members, self.degree) * pair))

    @property
    def open_bound(self) -> float:
        """At most on this share of rings some member has enough corrupt neighbours to open both its secrets."""
        ways = tail(self.members, self.colluders, self.degree, self.corrupt_to_open)
        return float(min(Fraction(1), Fraction(self.members * ways, math.comb(self.members, self.degree))))

    @property
    def corrupt_to_open(self) -> int:
        """Corrupt neighbours with which t shares of either kind can be had: 2 t <= k + corrupt, or t <= corrupt."""
        return self.threshold if self.adversary == CURIOUS else 2 * self.threshold - self.degree


def play(setting: Setting, rings: int, generator: np.random.Generator | None = None) -> dict[str, Any]:
    """Run the attack on ``rings`` random rings.

    ``generator``: of the rings; by default seeded by the operating system. Returns ``cuts``, how many rings came apart,
    ``cut_rate`` and its upper ``cut_bound``; ``fewest_honest``, in any two windows of any ring, beside ``drops``;
    ``most_corrupt_neighbours`` of any member beside ``corrupt_to_open``, ``opened`` rings and ``open_bound``; ``ok``:
    neither rate lies six standard errors above its bound.
    """
    started = time.process_time()
    generator = np.random.default_rng() if generator is None else generator
    malicious = setting.adversary == MALICIOUS
    budget = setting.drops if malicious else 0
    cuts = opened = most = 0
    fewest = setting.degree
    done = 0
    while done < rings:
        batch = min(rings - done, max(1, BATCH_PLACES // setting.members))
        corrupt, gone = draw(setting, batch, generator)
        lost = corrupt if malicious else corrupt | gone
        honest = setting.degree - most_in_two_windows(lost, setting.degree // 2)
        fewest = min(fewest, int(honest.min()))
        cuts += sum(cuttable(lost[ring], setting.degree // 2, budget) for ring in np.flatnonzero(honest <= budget))
        around = neighbours_among(corrupt, setting.degree // 2).max(axis=1)
        most = max(most, int(around.max()))
        opened += int((around >= setting.corrupt_to_open).sum())
        done += batch
    found = {
        "rings": rings,
        "cuts": cuts,
        "cut_rate": cuts / rings,
        "cut_bound": setting.bound,
        "fewest_honest": fewest,
        "opened": opened,
        "open_bound": setting.open_bound,
        "most_corrupt_neighbours": most,
        "corrupt_to_open": setting.corrupt_to_open,
        "ok": within(cuts, rings, setting.bound) and within(opened, rings, setting.open_bound),
        "cpu_s": time.process_time() - started,
    }
    return asdict(setting) | found


def within(seen: int, rings: int, bound: float) -> bool:
    """Whether chance explains this many successes if each ring yields one with at most that probability."""
    return seen <= rings * bound + STANDARD_ERRORS * math.sqrt(rings * bound * (1 - bound))


def draw(setting: Setting, rings: int, generator: np.random.Generator) -> tuple[Places, Places]:
    """Random places for colluders, and others for random drops; boolean, rings x members."""
    lots = generator.random((rings, setting.members), dtype=np.float32)
    marked = setting.colluders + setting.drops
    chosen = np.argpartition(lots, min(marked, setting.members - 1), axis=1)[:, :marked]
    # Within the smallest lots the order is arbitrary, so which of them collude is drawn once more.
    chosen = generator.permuted(chosen, axis=1)
    corrupt = np.zeros((rings, setting.members), dtype=np.bool_)
    gone = corrupt.copy()
    np.put_along_axis(corrupt, chosen[:, : setting.colluders], True, axis=1)
    np.put_along_axis(gone, chosen[:, setting.colluders :], True, axis=1)
    return corrupt, gone


def window_counts(marked: Places, width: int) -> Counts:
    """How many are marked in the ``width`` places that begin at each place, around the ring."""
    rings, members = marked.shape
    sums = np.zeros((rings, members + width), dtype=np.int32)
    np.cumsum(np.concatenate([marked, marked[:, : width - 1]], axis=1), axis=1, out=sums[:, 1:])
    return sums[:, width:] - sums[:, :members]


def neighbours_among(marked: Places, half: int) -> Counts:
    """How many of the ``half`` places before and after each place are marked."""
    around = np.roll(window_counts(marked, 2 * half + 1), half, axis=1)
    return around - marked


def most_in_two_windows(marked: Places, half: int) -> Counts:
    """On each ring: the most that are marked in two windows of ``half`` places with a place between on both sides."""
    members = marked.shape[1]
    counts = window_counts(marked, half)
    span = members - 2 * half - 1  # places where the second window can begin, from half + 1 after the first
    best = np.concatenate([counts, counts[:, : span - 1]], axis=1)
    width = 1
    while width < span:  # best[i] is the largest of counts[i : i + width], by doubling
        step = min(width, span - width)
        best = np.maximum(best[:, :-step], best[:, step:])
        width += step
    most: Counts = (counts + np.roll(best, -(half + 1), axis=1)).max(axis=1)
    return most


def cuttable(lost: NDArray[np.bool_], half: int, budget: int) -> bool:
    """Return whether ``budget`` further dropouts split the ring into two parts that both hold honest members.

    Exact: a ring where each is tied to the ``half`` next on either side comes apart where, and only where, two runs of
    ``half`` places are empty. Members already ``lost`` are on neither side.
    """
    members = len(lost)
    counts = half - window_counts(lost[None, :], half)[0]  # to be dropped in each window
    before = np.concatenate([[0], np.cumsum(~np.concatenate([lost, lost]))])  # honest in front of each place
    for first in np.flatnonzero(counts <= budget):
        seconds = np.arange(first + half + 1, first + members - half)
        between = before[seconds] - before[first + half]
        beyond = before[first + members] - before[seconds + half]
        if np.any((counts[first] + counts[seconds % members] <= budget) & (between > 0) & (beyond > 0)):
            return True
    return False
