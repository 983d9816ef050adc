"""The coordinator's last phase: rebuild exactly the secrets that open the sum of u3, check each, subtract.

For a dealer in u3 the self-mask seed is rebuilt, for a dealer in u2 but not in u3 the mask key; never both, since
`UnmaskingReply` has no room for both and u3 fixes the kind. Each share is checked against the dealer's commitment
before it counts, and each rebuilt secret against the dealer's published value. Proved cheats are named: the holder of a
share that misses its commitment, the dealer of committed shares that are inconsistent or rebuild another secret, and a
dealer reported by more holders than can be lying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import HASH_BYTES, LeavesOfHolder
from secagg.errors import InvalidMessage, ProtocolError, ReconstructionFailed, TooFewClients, UnexpectedMessage
from secagg.keys import noise_commitment
from secagg.masking import reduce_words
from secagg.messages import (
    KIND_LABELS,
    MASK_KEY,
    NOISE_SEED_BYTES,
    SALT_BYTES,
    SELF_MASK_SEED,
    SHARE_BYTES,
    UNMASKING,
    ConsistencySignature,
    MaskKeyShare,
    Messages,
    SelfMaskSeedShare,
    UnmaskingReply,
    UnmaskingRequest,
)
from secagg.opening import Dealer, OpeningTask, Survivor, open_task
from secagg.parallel import Parallel
from secagg.server_cohort import Checked, Dealing, ServerCohort, ServerPhase, SignedSets, Uploaded

_TYPES: Final = {MASK_KEY: MaskKeyShare, SELF_MASK_SEED: SelfMaskSeedShare}


@dataclass(frozen=True)
class Completed:
    """The result of an attempt: the sum of the inputs of u3 modulo 2^B."""

    cohort_context: bytes
    u3: frozenset[int]
    u4: frozenset[int]
    u5: frozenset[int]
    total: NDArray[Any] = field(repr=False)  # shape (dim,), smallest unsigned word, entries below 2^B
    cheats: Mapping[int, str] = field(default_factory=dict)  # dealer of inconsistent shares -> what shows it
    # Member of u5 -> seeds of its surplus noise, of the parts of `RoundParameters.released_seeds`: still in the sum.
    noise_seeds: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class _ReplyCheck:
    """Of shares and seeds; makes of them: dealers whose shares are held, dealers without, the shares' bytes, seeds."""

    cohort: ServerCohort
    leaves: Mapping[int, bytes] = field(repr=False)  # of each dealer of u2
    u3: frozenset[int]
    released: tuple[int, ...]
    uploads: Uploaded = field(repr=False)

    def __call__(self, sender: int, message: UnmaskingReply) -> tuple[list[int], list[int], bytes, tuple[bytes, ...]]:
        dealers = self.cohort.graph.dealers(sender, self.leaves)
        if len(message.shares) != len(dealers):
            raise InvalidMessage(UNMASKING, sender, "there must be one entry for each dealer of u2 it holds from")
        self._check_noise(sender, message.noise_seeds)
        held: list[int] = []
        kinds: list[int] = []
        shares: list[SelfMaskSeedShare | MaskKeyShare] = []
        without: list[int] = []
        u3 = self.u3
        for dealer, share in zip(dealers, message.shares, strict=True):
            if share is None:
                without.append(dealer)
                continue
            kind = SELF_MASK_SEED if dealer in u3 else MASK_KEY
            if not isinstance(share, _TYPES[kind]):
                raise InvalidMessage(UNMASKING, sender, f"the wrong kind of share for {dealer}")
            if len(share.share) != SHARE_BYTES or len(share.salt) != SALT_BYTES:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} has another length")
            held.append(dealer)
            kinds.append(kind)
            shares.append(share)
        places, written = self.cohort.graph.places(sender), [share.share for share in shares]
        leaves = self._leaves_of(sender).leaves(
            kinds, map(self.cohort.config.roster.identity, held), [share.salt for share in shares], written
        )
        for dealer, kind, leaf in zip(held, kinds, leaves, strict=True):
            at = HASH_BYTES * (2 * places[dealer] + kind)
            if self.leaves[dealer][at : at + HASH_BYTES] != leaf:
                raise InvalidMessage(UNMASKING, sender, f"its share of {dealer} doesn't match the commitment")
        joined = b"".join(written)
        # A dealer can commit to anything in its own share. A symbol outside the field would otherwise be found only
        # when the secret is rebuilt, too late to drop its sender.
        if (np.frombuffer(joined, dtype="<u2") >= shamir.PRIME).any():
            raise InvalidMessage(UNMASKING, sender, "one of its shares has a symbol outside the field")
        return held, without, joined, message.noise_seeds

    def _check_noise(self, sender: int, seeds: tuple[bytes, ...]) -> None:
        """Check that the seeds are those it committed to, of exactly the parts that |u3| makes surplus."""
        if len(seeds) != len(self.released) or {*map(len, seeds)} - {NOISE_SEED_BYTES}:
            raise InvalidMessage(
                UNMASKING, sender, f"there must be {len(self.released)} noise seeds of {NOISE_SEED_BYTES} bytes"
            )
        context, identity = self.cohort.context, self.cohort.identity(sender)
        for part, seed in zip(self.released, seeds, strict=True):
            if noise_commitment(seed, part, context, identity) != self.uploads[sender].noise_commitments[part]:
                raise InvalidMessage(UNMASKING, sender, "a noise seed doesn't match its commitment")

    def _leaves_of(self, holder: int) -> LeavesOfHolder:
        cohort = self.cohort
        return LeavesOfHolder(KIND_LABELS, cohort.context, cohort.identity(holder), cohort.graph.x(holder))


class Unmasking(ServerPhase):
    """Collect shares and open the sum ([BIK+17] Fig. 4, Round 4)."""

    name = UNMASKING

    def __init__(
        self,
        cohort: ServerCohort,
        dealings: dict[int, Dealing],
        uploads: Uploaded,
        accumulator: NDArray[Any],
        signed: SignedSets | None = None,
    ) -> None:
        """Args: signed: None if the plan has no signatures: all of u3 are asked."""
        self.cohort, self._dealings, self._uploads, self._accumulator = cohort, dealings, uploads, accumulator
        self._signed, self.u3 = signed, frozenset(uploads)
        released = cohort.config.parameters.released_seeds(len(uploads))
        leaves = {dealer: dealing.leaves for dealer, dealing in dealings.items()}
        self.check = _ReplyCheck(cohort, leaves, self.u3, released, uploads)
        self._noise_seeds: dict[int, tuple[bytes, ...]] = {}
        self.u2 = frozenset(dealings)
        # A row for each dealer, ascending, and a column for each of its holders, ascending.
        self._rows = {dealer: row for row, dealer in enumerate(sorted(self.u2))}
        table = (len(self.u2), len(cohort.graph.xs(min(self.u2))))  # equal for all dealers
        self._symbols = np.zeros((*table, shamir.SYMBOLS), dtype=np.uint16)
        self._revealed = np.zeros(table, dtype=bool)
        self._numbers = np.zeros(len(self._rows), dtype=np.int64)  # of shares
        self._without: dict[int, set[int]] = {}  # dealer -> holders that say they have no share of it
        self._u5: set[int] = set()

    @property
    def u4(self) -> frozenset[int]:
        """Participants that were asked for shares: with signatures, those that have signed so far."""
        return self.u3 if self._signed is None else self._signed.signers

    @property
    def received(self) -> frozenset[int]:
        return frozenset(self._u5)

    @property
    def needed(self) -> int:
        """Shares that rebuild a secret."""
        return self.cohort.graph.threshold

    @property
    def enough(self) -> bool:
        """Whether every secret can be rebuilt, so that waiting longer gains nothing."""
        return bool((self._numbers >= self.needed).all())

    @property
    def conflicts(self) -> Mapping[int, frozenset[int]]:
        """Dealer -> holders that report no share of it. One of each such pair has cheated; which one is unknown."""
        return {dealer: frozenset(holders) for dealer, holders in self._without.items()}

    @property
    def starved(self) -> frozenset[int]:
        """Dealers whose secret can't be rebuilt, but could be with shares of the holders that report none."""
        return frozenset(
            dealer
            for dealer, number in self._short().items()  # empty after the sum is open
            if self.needed <= number + len(self._without.get(dealer, ()))
        )

    def _short(self) -> dict[int, int]:
        """Dealers with fewer shares than the threshold -> their number."""
        numbers = zip(self._rows, self._numbers.tolist(), strict=True)
        return {dealer: number for dealer, number in numbers if number < self.needed}

    def admit(self, sender: int, message: ConsistencySignature) -> Messages[UnmaskingRequest]:
        """Accept a signature over the survivor sets after enough others were received; returns the signer's request.

        Raises:
            UnexpectedMessage: it isn't in u3, has signed before, or the sum is open; or the plan has no signatures.
            InvalidMessage: the signature doesn't cover these sets.
        """
        signed = self._signed
        if signed is None:
            raise UnexpectedMessage(self.name, sender)
        known = isinstance(message, ConsistencySignature) and sender in self.u3
        self._take(sender, known and sender not in signed.signatures)
        signed.signatures[sender] = signed.check(sender, message)
        return signed.requests(frozenset({sender}))

    def receive(self, sender: int, message: UnmaskingReply | Checked) -> None:
        """Check every share and seed of a reply against its commitment; the reply counts as a whole or not at all."""
        asked = self.u3 if self._signed is None else self._signed.signatures
        known = isinstance(message, UnmaskingReply | Checked) and sender in asked
        self._take(sender, known and sender not in self._u5)
        held, without, written, noise_seeds = self._made_of(sender, message)
        places = self.cohort.graph.places(sender)
        rows, columns = [self._rows[dealer] for dealer in held], [places[dealer] for dealer in held]
        self._symbols[rows, columns] = np.frombuffer(written, dtype="<u2").reshape(-1, shamir.SYMBOLS)
        self._revealed[rows, columns] = True
        self._numbers[rows] += 1
        for dealer in without:
            self._without.setdefault(dealer, set()).add(sender)
        self._u5.add(sender)
        self._noise_seeds[sender] = noise_seeds

    def close(self, parallel: Parallel | None = None) -> Completed:
        """Rebuild, check, subtract. A failure leaves the phase open: with more replies it may succeed.

        Args:
            parallel: runs the parts of the work, as many as its width.

        Raises:
            TooFewClients: a secret has fewer shares than the threshold.
            ReconstructionFailed: the same, and more holders report no share of the dealer than can be lying; or a
                dealer's committed shares rebuild another secret, and no subset of them rebuilds the right one.
        """
        if self._closed:
            raise ProtocolError(f"{UNMASKING}: this phase was closed before")
        self._check_numbers()
        parts = self._task().divided(1 if parallel is None else parallel.width)
        opened = map(open_task, parts) if parallel is None or len(parts) == 1 else parallel.map(open_task, parts)
        total = self._accumulator.copy()
        cheats: dict[int, str] = {}  # dealers whose other shares suffice
        culprits: dict[int, str] = {}
        for one in opened:
            cheats |= one.cheats
            culprits |= one.culprits
            if not culprits:
                np.add(total, one.total, out=total)
        if culprits:
            raise ReconstructionFailed(dict(sorted(culprits.items())) | cheats)
        reduce_words(total, self.cohort.config.parameters.bits)
        self._symbols = np.empty((0, 0, shamir.SYMBOLS), dtype=np.uint16)
        self._accumulator = np.empty(0, dtype=total.dtype)  # the masked sum is no longer needed
        self._closed = True
        return Completed(self.cohort.context, self.u3, self.u4, frozenset(self._u5), total, cheats, self._noise_seeds)

    def _check_numbers(self) -> None:
        short = self._short()
        if not short:
            return
        # A holder may report falsely that it has no share; more holders than colluders can't all be lying.
        liars = self.cohort.config.parameters.sharing_colluders
        named = {
            dealer: f"what it sealed for {len(self._without[dealer])} of its neighbours fails its check"
            for dealer in short
            if len(self._without.get(dealer, ())) > liars
        }
        if named:
            raise ReconstructionFailed(named)
        raise TooFewClients(UNMASKING, min(short.values()), self.needed)

    def _task(self) -> OpeningTask:
        """All that opening the sum needs."""
        cohort, parameters = self.cohort, self.cohort.config.parameters
        xs = np.stack([cohort.graph.xs(dealer) for dealer in self._rows])
        return OpeningTask(
            parameters.bits,
            parameters.dim,
            self.needed,
            parameters.hybrid,
            cohort.round_context,
            cohort.context,
            tuple(map(self._dealer, self._rows)),
            xs,
            self._symbols,
            self._revealed,
        )

    def _dealer(self, dealer: int) -> Dealer:
        identity, dealt = self.cohort.identity(dealer), self._dealings[dealer]
        if dealer in self.u3:
            return Dealer(dealer, identity, dealt.seed_commitment, None)
        near = [one for one in self.cohort.graph.neighbours(dealer) if one in self.u3]
        keys = self.cohort.advertisements
        survivors = (
            Survivor(
                one,
                self.cohort.identity(one),
                keys[one].mask_key,
                self._dealings[one].wrapped.get(dealer, b""),
                one in dealt.wrapped,
            )
            for one in near
        )
        return Dealer(dealer, identity, keys[dealer].mask_key, tuple(survivors))
