"""The coordinator's last phase: rebuild exactly the secrets that open the sum of u3, check each, subtract.

For a dealer in u3 its self-mask seed is rebuilt, for one in u2 that is not in u3 its mask key; never both, since
`UnmaskingReply` has no room for both and the kind is fixed by u3. Each share is held against the dealer's
commitment before it counts, and each rebuilt secret against what the dealer published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import share_leaf
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
    UNMASKING,
    MaskKeyShare,
    SelfMaskSeedShare,
    UnmaskingReply,
)
from secagg.parallel import Parallel

if TYPE_CHECKING:
    from secagg.server_phases import ServerCohort


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
        self._dealers = tuple(sorted(self.u2))
        self._shares: dict[int, dict[int, NDArray[np.uint16]]] = {dealer: {} for dealer in self._dealers}
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
        return all(len(shares) >= self.needed for shares in self._shares.values())

    def receive(self, sender: int, message: UnmaskingReply) -> None:
        """Check every share of a reply against its dealer's commitment; all of it counts or nothing."""
        known = isinstance(message, UnmaskingReply) and sender in self.u4
        self._take(sender, known and sender not in self._u5)
        if len(message.shares) != len(self._dealers):
            raise InvalidMessage(UNMASKING, sender, "there must be one entry for each member of u2")
        holder, x = self.cohort.identity(sender), self.cohort.graph.x(sender)
        checked: dict[int, NDArray[np.uint16]] = {}
        for dealer, share in zip(self._dealers, message.shares, strict=True):
            if share is None:
                continue
            kind = SELF_MASK_SEED if dealer in self.u3 else MASK_KEY
            if not isinstance(share, SelfMaskSeedShare if kind == SELF_MASK_SEED else MaskKeyShare):
                raise InvalidMessage(UNMASKING, sender, f"the wrong kind of share for {dealer}")
            well_formed = share.share.shape == (shamir.SYMBOLS,) and share.share.dtype == np.uint16
            if not well_formed or len(share.salt) != SALT_BYTES:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} has another length")
            leaf = share_leaf(
                KIND_LABELS[kind],
                self.cohort.context,
                self.cohort.identity(dealer),
                holder,
                x,
                share.salt,
                share.share,
            )
            if leaf != self._dealings[dealer].leaves[sender][kind]:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} doesn't match the commitment")
            checked[dealer] = share.share
        # A dealer can commit to anything in the share it holds itself; a symbol outside the field would only be found
        # when the secret is rebuilt, with nobody left to drop.
        symbols_of_all = np.array(list(checked.values()), dtype=np.uint16)
        if (symbols_of_all >= shamir.PRIME).any():
            raise InvalidMessage(UNMASKING, sender, "one of its shares has a symbol outside the field")
        for dealer, symbols in checked.items():
            self._shares[dealer][sender] = symbols
        self._u5.add(sender)

    def close(self, parallel: Parallel | None = None) -> Completed:
        """Rebuild, check, subtract.

        Args:
            parallel: threads for the masks, most of the work.

        Raises:
            TooFewClients: a secret has fewer shares than the threshold.
            ReconstructionFailed: a dealer's committed shares rebuild something that is not its secret.
        """
        fewest = min((len(shares) for shares in self._shares.values()), default=0)
        self._close(fewest, self.needed)
        parameters = self.cohort.config.parameters
        masks: list[tuple[bytes, int]] = []
        for dealer, symbols in self._rebuilt_secrets().items():
            if dealer in self.u3:
                masks.append((self._self_mask(dealer, symbols), -1))
            else:
                masks += self._pairwise_masks(dealer, symbols)
        total = self._accumulator.copy()
        apply_masks(total, masks, parameters.bits, parallel)
        self._shares.clear()
        return Completed(self.cohort.context, self.u3, self.u4, frozenset(self._u5), total)

    def _rebuilt_secrets(self) -> dict[int, NDArray[np.uint16]]:
        """One matrix product for all dealers whose shares come from the same holders."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for dealer, shares in self._shares.items():
            groups.setdefault(tuple(sorted(shares)[: self.needed]), []).append(dealer)
        secrets: dict[int, NDArray[np.uint16]] = {}
        for holders, dealers in groups.items():
            xs = [self.cohort.graph.x(holder) for holder in holders]
            stacked = np.stack([np.stack([self._shares[d][h] for d in dealers]) for h in holders])
            flat = stacked.reshape(len(holders), -1)  # (threshold, dealers x 16)
            rebuilt = shamir.combine(xs, flat, self.needed).reshape(len(dealers), shamir.SYMBOLS)
            secrets.update(zip(dealers, rebuilt, strict=True))
        return secrets

    def _self_mask(self, dealer: int, symbols: NDArray[np.uint16]) -> bytes:
        cohort, parameters = self.cohort, self.cohort.config.parameters
        identity = cohort.identity(dealer)
        seed = self_mask_seed(symbols, cohort.context, identity)
        if seed_commitment(seed, cohort.context, identity) != self._dealings[dealer].seed_commitment:
            raise ReconstructionFailed(dealer, "its shares rebuild another self-mask seed than it committed to")
        return self_mask_key(seed, identity, parameters.bits, parameters.dim, cohort.context)

    def _pairwise_masks(self, dealer: int, symbols: NDArray[np.uint16]) -> list[tuple[bytes, int]]:
        """What the dealer's neighbours in u3 added or subtracted for it, to be taken back."""
        cohort, parameters = self.cohort, self.cohort.config.parameters
        key = AgreementKey(
            mask_private_key(symbols, cohort.round_context, cohort.identity(dealer))
        )
        if key.public != cohort.advertisements[dealer].mask_key:
            raise ReconstructionFailed(dealer, "its shares rebuild another mask key than it advertised")
        masks: list[tuple[bytes, int]] = []
        for survivor in cohort.graph.neighbours(dealer):
            if survivor not in self.u3:
                continue
            low, high = sorted((dealer, survivor))
            try:
                shared = key.agree(cohort.advertisements[survivor].mask_key)
            except InvalidKey as error:  # an honest survivor would have aborted on the dealer's key
                raise ReconstructionFailed(survivor, str(error)) from error
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
