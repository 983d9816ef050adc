"""Which of the signatures shown to it a participant verifies.

It verifies all of a short list. From a long list it verifies a random sample, drawn after it has seen the list. The
sample is so large that a list with fewer than ``needed`` valid signatures passes with probability at most 2^-64; its
size hardly grows with the cohort. A participant sees one list in an attempt, and leaves the attempt at the first
invalid signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeVar

from secagg.encoding import RandomBytes

CHECK_ALL: Final = 128
"""Up to this many shown signatures are all checked."""
_CHANCE: Final = 2.0**-64

Entry = TypeVar("Entry")


def signatures_to_check(
    shown: Sequence[Entry], certain: Sequence[Entry], needed: int, random_bytes: RandomBytes
) -> list[Entry]:
    """The entries to verify: all the certain ones, and a random sample of the others.

    Args:
        shown: without the certain ones.
        certain: entries whose own signatures matter.
        needed: valid signatures required among both.
        random_bytes: the operating system's; a coordinator that predicts the sample passes with too few.
    """
    if len(shown) + len(certain) <= CHECK_ALL:
        return [*certain, *shown]
    return [*certain, *_sample(shown, sample_size(len(shown), needed - len(certain)), random_bytes)]


def _sample(shown: Sequence[Entry], size: int, random_bytes: RandomBytes) -> list[Entry]:
    """Draw without replacement, all choices equally likely up to 2^-100 (a partial shuffle)."""
    left = list(shown)
    for place in range(size):
        chosen = place + int.from_bytes(random_bytes(16), "little") % (len(left) - place)
        left[place], left[chosen] = left[chosen], left[place]
    return left[:size]


@lru_cache(maxsize=4096)
def sample_size(shown: int, needed: int) -> int:
    """The smallest sample that is all valid with probability at most 2^-64 if fewer than ``needed`` of those shown are.

    The probability is largest with needed - 1 valid ones: C(needed - 1, s) / C(shown, s), drawn without replacement. It
    is 0 for s = needed, which is at most ``shown``; if it is not positive, the sample is empty.
    """
    chance, size = 1.0, 0
    while size < needed and chance > _CHANCE:
        chance *= (needed - 1 - size) / (shown - size)
        size += 1
    return size
