"""How many of the signatures that it is shown a participant checks.

Of a few all. Of many so many, drawn by itself once it has been shown them, that a list with fewer than ``needed`` valid
signatures passes with a chance of at most 2^-64: that number hardly grows with the cohort. A participant is shown one
list in an attempt, and refuses for good when it finds one signature that isn't valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeVar

from secagg.encoding import RandomBytes

CHECK_ALL: Final = 128
"""As many shown signatures are all checked."""
_CHANCE: Final = 2.0**-64

Entry = TypeVar("Entry")


def signatures_to_check(
    shown: Sequence[Entry], certain: Sequence[Entry], needed: int, random_bytes: RandomBytes
) -> list[Entry]:
    """Those that are to be checked: all the certain ones, and of the others a random few.

    Args:
        shown: without the certain ones.
        certain: of whom it matters that they themselves have signed.
        needed: valid signatures that there must be among both.
        random_bytes: of the operating system; who can foresee the sample can pass with too few.
    """
    if len(shown) + len(certain) <= CHECK_ALL:
        return [*certain, *shown]
    return [*certain, *_sample(shown, sample_size(len(shown), needed - len(certain)), random_bytes)]


def _sample(shown: Sequence[Entry], size: int, random_bytes: RandomBytes) -> list[Entry]:
    """So many of them without replacement, each choice as likely as any other up to 2^-100 (a shuffle cut short)."""
    left = list(shown)
    for place in range(size):
        chosen = place + int.from_bytes(random_bytes(16), "little") % (len(left) - place)
        left[place], left[chosen] = left[chosen], left[place]
    return left[:size]


@lru_cache(maxsize=4096)
def sample_size(shown: int, needed: int) -> int:
    """The smallest sample that is all valid with a chance of at most 2^-64 if fewer than ``needed`` of those shown are.

    With one too few, needed - 1, the chance is the largest: C(needed - 1, s) / C(shown, s), drawn without replacement.
    It is 0 for s = needed.

    Args:
        needed: at most ``shown``; nothing is checked where it is not positive.
    """
    chance, size = 1.0, 0
    while size < needed and chance > _CHANCE:
        chance *= (needed - 1 - size) / (shown - size)
        size += 1
    return size
