"""What opens a sum, as pure tasks: from shares of some dealers to the sum of the masks to remove.

A task holds all that it reads and nothing else, so it can run in a thread, in another process or on another machine,
and again if that one fails. Modulo 2^B the order of additions doesn't matter: however dealers are divided among tasks,
the sum has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.errors import InvalidKey
from secagg.inconsistent_shares import inconsistent_points
from secagg.keys import (
    mask_key_of,
    pair_seed,
    pairwise_mask_key,
    seed_commitment,
    self_mask_key,
    self_mask_seed,
    unwrap_seed,
)
from secagg.masking import apply_masks, word_dtype

_DEALERS_AT_ONCE: Final = 64
# Below this many bytes of keystream for each task, dividing the work costs more than a second core gains.
_WORTH_A_TASK: Final = 1 << 22
_Masks = list[tuple[bytes, int]]  # key, and +1 to add or -1 to subtract


class _WrongSecret(Exception):
    def __init__(self, culprit: int, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit


@dataclass(frozen=True)
class Survivor:
    """A neighbour in u3 of a dealer that isn't: their pairwise mask is in the sum."""

    participant: int
    identity: bytes
    mask_key: bytes
    sent: bytes = field(repr=False)  # the wrapped seed that it sent to the dealer; empty if there is none
    received: bool  # whether the dealer sent it one


@dataclass(frozen=True)
class Dealer:
    """A dealer of u2, whose secret the shares rebuild.

    Attributes:
        published: what the secret is checked against: the commitment to its self-mask seed, or its mask key.
        survivors: None for a member of u3: its self-mask is to be removed.
    """

    participant: int
    identity: bytes
    published: bytes
    survivors: tuple[Survivor, ...] | None = field(repr=False)

    @property
    def masks(self) -> int:
        """How many are to be removed."""
        return 1 if self.survivors is None else len(self.survivors)


@dataclass(frozen=True)
class Opened:
    """What a task found.

    Attributes:
        total: (dim,) words: to be added to the masked sum modulo 2^B. Without use if there are culprits.
        cheats: dealers some of whose shares are inconsistent, where the others suffice -> what shows it.
        culprits: participants by whose fault a secret can't be rebuilt or used -> what shows it.
    """

    total: NDArray[Any] = field(repr=False)
    cheats: dict[int, str]
    culprits: dict[int, str]


@dataclass(frozen=True)
class OpeningTask:
    """Dealers with the shares that were revealed of them.

    Attributes:
        xs: (dealers, holders) uint16: the points of each dealer's holders.
        symbols: (dealers, holders, 16) uint16: their shares; zeros where none was revealed.
        revealed: (dealers, holders) bool: at least ``threshold`` of each dealer.
    """

    bits: int
    dim: int
    threshold: int
    hybrid: bool
    round_context: bytes
    context: bytes  # cohort_context
    dealers: tuple[Dealer, ...]
    xs: NDArray[np.uint16] = field(repr=False)
    symbols: NDArray[np.uint16] = field(repr=False)
    revealed: NDArray[np.bool_] = field(repr=False)

    def divided(self, parts: int) -> list[OpeningTask]:
        """Divide the dealers among at most ``parts`` tasks with about equal numbers of masks, each worth its start."""
        masks = np.cumsum([one.masks for one in self.dealers])
        parts = max(1, min(parts, int(masks[-1]) * self.dim * word_dtype(self.bits).itemsize // _WORTH_A_TASK))
        edges = np.searchsorted(masks, masks[-1] * np.arange(1, parts) / parts) + 1
        places = [0, *sorted({*edges.tolist()} - {0, len(self.dealers)}), len(self.dealers)]
        return [self._part(slice(*ends)) for ends in pairwise(places)]

    def _part(self, rows: slice) -> OpeningTask:
        arrays = {name: getattr(self, name)[rows] for name in ("dealers", "xs", "symbols", "revealed")}
        return replace(self, **arrays)

    def open(self) -> Opened:
        """Rebuild each secret from the first shares, check it, and add up the masks."""
        masks: _Masks = []
        cheats: dict[int, str] = {}
        culprits: dict[int, str] = {}
        for row, secret in self._rebuilt_secrets():
            dealer = self.dealers[row]
            try:
                masks += self._masks_of(row, dealer, secret, cheats)
            except _WrongSecret as error:
                culprits[error.culprit] = str(error)
        total = np.zeros(0 if culprits else self.dim, dtype=word_dtype(self.bits))
        if not culprits:
            apply_masks(total, masks, self.bits)
        return Opened(total, cheats, culprits)

    def _rebuilt_secrets(self) -> Iterator[tuple[int, NDArray[np.uint16]]]:
        """Row and secret of each dealer; one matrix product for all dealers with the same holders."""
        first = np.argsort(~self.revealed, axis=1, kind="stable")[:, : self.threshold]
        xs = np.take_along_axis(self.xs, first, axis=1)
        groups: dict[bytes, list[int]] = {}
        for row, points in enumerate(xs):
            groups.setdefault(points.tobytes(), []).append(row)
        alone = [rows[0] for rows in groups.values() if len(rows) == 1]  # nearly all on a ring
        for rows in groups.values():
            if len(rows) > 1:
                stacked = self.symbols[rows, first[rows].T]  # (threshold, dealers, 16)
                yield from zip(rows, shamir.combine(xs[rows[0]].tolist(), stacked, self.threshold), strict=True)
        for start in range(0, len(alone), _DEALERS_AT_ONCE):
            rows = alone[start : start + _DEALERS_AT_ONCE]
            shares = np.take_along_axis(self.symbols[rows], first[rows][:, :, None], axis=1)
            yield from zip(rows, shamir.combine_each([xs[row] for row in rows], shares), strict=True)

    def _masks_of(self, row: int, dealer: Dealer, secret: NDArray[np.uint16], cheats: dict[int, str]) -> _Masks:
        """Masks to remove for this dealer; from other shares than the first if those don't rebuild its secret."""
        open_ = self._self_mask if dealer.survivors is None else self._pairwise_masks
        try:
            return open_(dealer, secret)
        except _WrongSecret as error:
            if error.culprit != dealer.participant:
                raise
            shares, xs = self.symbols[row][self.revealed[row]], self.xs[row][self.revealed[row]].tolist()
            wrong = inconsistent_points(xs, shares, self.threshold)
            if not wrong:
                raise
            good = [at for at, x in enumerate(xs) if x not in wrong]
            again = shamir.combine([xs[at] for at in good], shares[good], self.threshold)
            masks = open_(dealer, again)
            cheats[dealer.participant] = f"{len(wrong)} of the shares it committed to don't fit the others"
            return masks

    def _self_mask(self, dealer: Dealer, symbols: NDArray[np.uint16]) -> _Masks:
        seed = self_mask_seed(symbols, self.context, dealer.identity)
        if seed_commitment(seed, self.context, dealer.identity) != dealer.published:
            raise _WrongSecret(dealer.participant, "its shares rebuild another self-mask seed than it committed to")
        return [(self_mask_key(seed, dealer.identity, self.bits, self.dim, self.context), -1)]

    def _pairwise_masks(self, dealer: Dealer, symbols: NDArray[np.uint16]) -> _Masks:
        """Masks that the dealer's neighbours in u3 added or subtracted for it."""
        context, identity, survivors = self.context, dealer.identity, dealer.survivors or ()
        key = mask_key_of(symbols, self.round_context, identity, hybrid=self.hybrid)
        if key.public != dealer.published:
            raise _WrongSecret(dealer.participant, "its shares rebuild another mask key than it advertised")
        masks: _Masks = []
        for one in survivors:
            try:
                if one.received:
                    shared = pair_seed(symbols, context, identity, one.identity)
                else:
                    shared = key.agree(one.mask_key)
            except InvalidKey as error:  # an honest survivor would have aborted on the dealer's key
                raise _WrongSecret(one.participant, str(error)) from error
            if one.sent:
                shared = unwrap_seed(one.sent, shared, key, one.identity, identity, context)
            pair = (identity, dealer.published), (one.identity, one.mask_key)
            below = one.participant < dealer.participant
            low, high = reversed(pair) if below else pair
            mask = pairwise_mask_key(shared, low, high, self.bits, self.dim, context)
            masks.append((mask, -1 if below else 1))
        return masks


def open_task(task: OpeningTask) -> Opened:
    """`OpeningTask.open`, as a function that pools of processes and clusters take."""
    return task.open()
