"""The coordinator's last phase: rebuild exactly the secrets that open the sum of u3, check each, subtract.

For a dealer in u3 its self-mask seed is rebuilt, for one in u2 that is not in u3 its mask key; never both, since
`UnmaskingReply` has no room for both and the kind is fixed by u3. Each share is held against the dealer's
commitment before it counts, and each rebuilt secret against what the dealer published. Whoever can be shown to have
cheated is named: the holder of a share that misses its commitment, the dealer of committed shares that don't fit
together or rebuild something else, and a dealer of whom more holders have no share than can be lying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import LeavesOfHolder
from secagg.errors import (
    InvalidKey,
    InvalidMessage,
    ProtocolError,
    ReconstructionFailed,
    TooFewClients,
    UnexpectedMessage,
)
from secagg.keys import (
    AgreementKey,
    mask_private_key,
    pairwise_mask_key,
    seed_commitment,
    self_mask_key,
    self_mask_seed,
)
from secagg.masking import apply_masks
from secagg.messages import (
    KIND_LABELS,
    MASK_KEY,
    SALT_BYTES,
    SELF_MASK_SEED,
    SHARE_BYTES,
    UNMASKING,
    MaskKeyShare,
    SelfMaskSeedShare,
    UnmaskingReply,
)
from secagg.parallel import Parallel
from secagg.rotten_shares import rotten

if TYPE_CHECKING:
    from secagg.server_phases import ServerCohort

_DEALERS_AT_ONCE: Final = 64
_SHAPE: Final = (shamir.SYMBOLS,)
_DTYPE: Final = np.dtype(np.uint16)
_TYPES: Final = {MASK_KEY: MaskKeyShare, SELF_MASK_SEED: SelfMaskSeedShare}


class _WrongSecret(Exception):
    def __init__(self, culprit: int, reason: str) -> None:
        super().__init__(reason)
        self.culprit = culprit


@dataclass(frozen=True)
class Dealing:
    """What a dealer stands for: commitments to both shares of each holder, ascending, and to its self-mask seed."""

    leaves: Mapping[int, tuple[bytes, bytes]] = field(repr=False)
    root: bytes
    seed_commitment: bytes
    signature: bytes


@dataclass(frozen=True)
class Completed:
    """The end of an attempt: the sum of the inputs of u3 modulo 2^B."""

    cohort_context: bytes
    u3: frozenset[int]
    u4: frozenset[int]
    u5: frozenset[int]
    total: NDArray[Any] = field(repr=False)  # shape (dim,), smallest unsigned word, entries below 2^B
    cheats: Mapping[int, str] = field(default_factory=dict)  # who dealt rotten shares, though it cost nothing, and how


def _symbols(shares: list[bytes]) -> NDArray[np.uint16]:
    """Shares as they are kept, to shape (len(shares), 16)."""
    return np.frombuffer(b"".join(shares), dtype="<u2").astype(np.uint16, copy=False).reshape(-1, shamir.SYMBOLS)


class ServerPhase:
    """A phase takes messages until it is closed, once: what was fixed then can't change behind its back."""

    _name: str
    _closed = False

    def _take(self, sender: int, expected: bool) -> None:
        if self._closed or not expected:
            raise UnexpectedMessage(self._name, sender)

    def _close(self, received: int, needed: int) -> None:
        if self._closed:
            raise ProtocolError(f"{self._name}: this phase was closed before")
        if received < needed:
            raise TooFewClients(self._name, received, needed)
        self._closed = True


class Unmasking(ServerPhase):
    """Collect shares and open the sum ([BIK+17] Fig. 4, Round 4)."""

    _name = UNMASKING

    def __init__(
        self,
        cohort: ServerCohort,
        dealings: dict[int, Dealing],
        u3: frozenset[int],
        u4: frozenset[int],
        accumulator: NDArray[Any],
    ) -> None:
        self.cohort, self._dealings, self.u3, self.u4, self._accumulator = cohort, dealings, u3, u4, accumulator
        self.u2 = frozenset(dealings)
        # Dealer -> holder -> the share as bytes, two a symbol, little-endian.
        self._shares: dict[int, dict[int, bytes]] = {dealer: {} for dealer in self.u2}
        self._without: dict[int, set[int]] = {}  # dealer -> holders that say they have no share of it
        self._short = len(self.u2)  # dealers with fewer shares than the threshold
        self._u5: set[int] = set()

    @property
    def received(self) -> frozenset[int]:
        """Who has revealed shares."""
        return frozenset(self._u5)

    @property
    def needed(self) -> int:
        """Shares that rebuild a secret."""
        return self.cohort.graph.threshold

    @property
    def enough(self) -> bool:
        """Whether every secret can be rebuilt, so that waiting longer gains nothing."""
        return self._short == 0

    @property
    def conflicts(self) -> Mapping[int, frozenset[int]]:
        """Dealer -> holders that say they have no share of it. One of each two has cheated, and nothing says which."""
        return {dealer: frozenset(holders) for dealer, holders in self._without.items()}

    @property
    def starved(self) -> frozenset[int]:
        """Dealers whose secret can't be rebuilt, and could be if those who say that they have no share had one."""
        return frozenset(
            dealer
            for dealer, shares in self._shares.items()  # nobody, once the sum is open
            if len(shares) < self.needed <= len(shares) + len(self._without.get(dealer, ()))
        )

    def receive(self, sender: int, message: UnmaskingReply) -> None:
        """Check every share of a reply against its dealer's commitment; all of it counts or nothing."""
        known = isinstance(message, UnmaskingReply) and sender in self.u4
        self._take(sender, known and sender not in self._u5)
        dealers = self.cohort.graph.dealers(sender, self.u2)
        if len(message.shares) != len(dealers):
            raise InvalidMessage(UNMASKING, sender, "there must be one entry for each dealer of u2 it holds from")
        held: list[tuple[int, int, SelfMaskSeedShare | MaskKeyShare]] = []
        without: list[int] = []
        u3 = self.u3
        for dealer, share in zip(dealers, message.shares, strict=True):
            if share is None:
                without.append(dealer)
                continue
            kind = SELF_MASK_SEED if dealer in u3 else MASK_KEY
            if not isinstance(share, _TYPES[kind]):
                raise InvalidMessage(UNMASKING, sender, f"the wrong kind of share for {dealer}")
            if share.share.shape != _SHAPE or share.share.dtype != _DTYPE or len(share.salt) != SALT_BYTES:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} has another length")
            held.append((dealer, kind, share))
        symbols_of_all = np.array([share.share for _, _, share in held], dtype=np.uint16).reshape(-1, shamir.SYMBOLS)
        written = symbols_of_all.astype("<u2", copy=False).tobytes()
        rows = [written[at : at + SHARE_BYTES] for at in range(0, len(written), SHARE_BYTES)]
        identity, dealings = self.cohort.config.roster.identity, self._dealings
        leaf_of = LeavesOfHolder(
            KIND_LABELS, self.cohort.context, self.cohort.identity(sender), self.cohort.graph.x(sender)
        ).leaf
        for (dealer, kind, share), row in zip(held, rows, strict=True):
            if leaf_of(kind, identity(dealer), share.salt, row) != dealings[dealer].leaves[sender][kind]:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} doesn't match the commitment")
        # A dealer can commit to anything in the share it holds itself; a symbol outside the field would only be found
        # when the secret is rebuilt, with nobody left to drop.
        if (symbols_of_all >= shamir.PRIME).any():
            raise InvalidMessage(UNMASKING, sender, "one of its shares has a symbol outside the field")
        needed, all_shares = self.needed, self._shares
        for (dealer, _, _), row in zip(held, rows, strict=True):
            shares = all_shares[dealer]
            shares[sender] = row
            if len(shares) == needed:
                self._short -= 1
        for dealer in without:
            self._without.setdefault(dealer, set()).add(sender)
        self._u5.add(sender)

    def close(self, parallel: Parallel | None = None) -> Completed:
        """Rebuild, check, subtract. What fails leaves the phase open: with more replies it may succeed.

        Args:
            parallel: threads for the masks, most of the work.

        Raises:
            TooFewClients: a secret has fewer shares than the threshold.
            ReconstructionFailed: the same, and more holders have no share of the dealer than can be lying; or a
                dealer's committed shares rebuild something that is not its secret, and no subset of them is right.
        """
        if self._closed:
            raise ProtocolError(f"{UNMASKING}: this phase was closed before")
        self._check_numbers()
        parameters = self.cohort.config.parameters
        masks: list[tuple[bytes, int]] = []
        self._cheats: dict[int, str] = {}  # whose other shares will do
        culprits: dict[int, str] = {}  # whose won't
        rebuilt = self._rebuilt_secrets()
        for dealer in sorted(self.u2):
            try:
                masks += self._masks_of(dealer, rebuilt[dealer])
            except _WrongSecret as error:
                culprits[error.culprit] = str(error)
        if culprits:
            raise ReconstructionFailed(culprits | self._cheats)
        total = self._accumulator.copy()
        apply_masks(total, masks, parameters.bits, parallel)
        self._shares.clear()
        self._closed = True
        return Completed(self.cohort.context, self.u3, self.u4, frozenset(self._u5), total, self._cheats)

    def _check_numbers(self) -> None:
        short = [dealer for dealer, shares in self._shares.items() if len(shares) < self.needed]
        if not short:
            return
        # A holder may say falsely that it has no share; more than there are colluders can't all be lying.
        liars = self.cohort.config.parameters.sharing_colluders
        named = {
            dealer: f"what it sealed for {len(self._without[dealer])} of its neighbours fails its check"
            for dealer in short
            if len(self._without.get(dealer, ())) > liars
        }
        if named:
            raise ReconstructionFailed(named)
        raise TooFewClients(UNMASKING, min(len(self._shares[dealer]) for dealer in short), self.needed)

    def _rebuilt_secrets(self) -> dict[int, NDArray[np.uint16]]:
        """Each from the first holders that are enough: of all dealers with the same holders in one matrix product."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for dealer, shares in self._shares.items():
            groups.setdefault(tuple(sorted(shares)[: self.needed]), []).append(dealer)
        secrets: dict[int, NDArray[np.uint16]] = {}
        positions = {member: at for at, member in enumerate(self.cohort.u1, 1)}
        alone: list[tuple[int, tuple[int, ...]]] = []  # as nearly all are on a ring
        for holders, dealers in groups.items():
            if len(dealers) == 1:
                alone.append((dealers[0], holders))
                continue
            stacked = _symbols([self._shares[dealer][holder] for holder in holders for dealer in dealers])
            flat = stacked.reshape(len(holders), -1)  # (threshold, dealers x 16)
            rebuilt = shamir.combine([positions[holder] for holder in holders], flat, self.needed)
            secrets.update(zip(dealers, rebuilt.reshape(len(dealers), shamir.SYMBOLS), strict=True))
        for start in range(0, len(alone), _DEALERS_AT_ONCE):
            part = alone[start : start + _DEALERS_AT_ONCE]
            some = [dealer for dealer, _ in part]
            xs = [[positions[holder] for holder in holders] for _, holders in part]
            rows = _symbols([self._shares[dealer][holder] for dealer, holders in part for holder in holders])
            rows = rows.reshape(len(some), self.needed, shamir.SYMBOLS)
            secrets.update(zip(some, shamir.combine_each(xs, rows), strict=True))
        return secrets

    def _masks_of(self, dealer: int, symbols: NDArray[np.uint16]) -> list[tuple[bytes, int]]:
        """To be subtracted for this dealer: of other shares than the first, if those rebuild nothing."""
        open_ = self._self_mask if dealer in self.u3 else self._pairwise_masks
        try:
            return open_(dealer, symbols)
        except _WrongSecret as error:
            if error.culprit != dealer:
                raise
            shares = self._shares[dealer]
            holders = sorted(shares)
            xs = [self.cohort.graph.x(holder) for holder in holders]
            wrong = rotten(xs, _symbols([shares[holder] for holder in holders]), self.needed)
            if not wrong:
                raise
            good = [(x, shares[holder]) for x, holder in zip(xs, holders, strict=True) if x not in wrong]
            again = shamir.combine([x for x, _ in good], _symbols([one for _, one in good]), self.needed)
            masks = open_(dealer, again)
            self._cheats[dealer] = f"{len(wrong)} of the shares it committed to don't fit the others"
            return masks

    def _self_mask(self, dealer: int, symbols: NDArray[np.uint16]) -> list[tuple[bytes, int]]:
        cohort, parameters = self.cohort, self.cohort.config.parameters
        identity = cohort.identity(dealer)
        seed = self_mask_seed(symbols, cohort.context, identity)
        if seed_commitment(seed, cohort.context, identity) != self._dealings[dealer].seed_commitment:
            raise _WrongSecret(dealer, "its shares rebuild another self-mask seed than it committed to")
        return [(self_mask_key(seed, identity, parameters.bits, parameters.dim, cohort.context), -1)]

    def _pairwise_masks(self, dealer: int, symbols: NDArray[np.uint16]) -> list[tuple[bytes, int]]:
        """What the dealer's neighbours in u3 added or subtracted for it, to be taken back."""
        cohort, parameters = self.cohort, self.cohort.config.parameters
        key = AgreementKey(
            mask_private_key(symbols, cohort.round_context, cohort.identity(dealer))
        )
        if key.public != cohort.advertisements[dealer].mask_key:
            raise _WrongSecret(dealer, "its shares rebuild another mask key than it advertised")
        masks: list[tuple[bytes, int]] = []
        for survivor in cohort.graph.neighbours(dealer):
            if survivor not in self.u3:
                continue
            low, high = sorted((dealer, survivor))
            try:
                shared = key.agree(cohort.advertisements[survivor].mask_key)
            except InvalidKey as error:  # an honest survivor would have aborted on the dealer's key
                raise _WrongSecret(survivor, str(error)) from error
            mask = pairwise_mask_key(
                shared,
                (cohort.identity(low), cohort.advertisements[low].mask_key),
                (cohort.identity(high), cohort.advertisements[high].mask_key),
                parameters.bits,
                parameters.dim,
                cohort.context,
            )
            masks.append((mask, -1 if survivor < dealer else 1))
        return masks
