"""The coordinator's side of an attempt, as a chain of phases.

    AdvertiseKeys -> ShareKeys -> MaskedInputCollection -> ConsistencyCheck -> Unmasking -> Completed

A phase takes messages with `receive`. A message that fails a check, or doesn't belong to this phase, raises and leaves
the phase unchanged. `close` fixes the phase's set, once, and returns the next phase with the messages to send; the
caller owns the clock and chooses the moment. Later messages are refused, with one exception: `Unmasking.admit` accepts
a signature over the survivor sets after others were asked for their shares. A phase that would end with too few
participants raises `TooFewClients`, and nothing was revealed.

The sets are u1 (keys advertised), u2 (shares dealt), u3 (inputs received), u4 (sets signed), u5 (shares revealed).

Sources: [BIK+17] Figure 4 with the active-adversary round. ``Deviation:`` comments say where and why we leave it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secagg.commitments import MerkleForest, MerkleTree, pair_nodes, split_paths, wrapped_node
from secagg.context import RoundConfig, cohort_context, set_of
from secagg.errors import InvalidMessage, ProtocolError, TooFewClients
from secagg.graph import graph_of
from secagg.keys import (
    HYBRID_KEY_BYTES,
    KEM_CIPHERTEXT_BYTES,
    KEY_BYTES,
    WRAPPED_BYTES,
    advertisement_statement,
    dealing_statement,
    is_kem_key,
    is_low_order,
    key_parts,
    sends_seed,
    upload_statement,
)
from secagg.masking import reduce_words, word_dtype
from secagg.messages import (
    ADVERTISE_KEYS,
    CIPHERTEXT_BYTES,
    CONSISTENCY_CHECK,
    MASKED_INPUT,
    SHARE_KEYS,
    Advertisement,
    CohortKeys,
    ConsistencySignature,
    DealtShare,
    MaskedInput,
    Messages,
    NeighbourShares,
    SealedShares,
    SurvivorSets,
    UnmaskingRequest,
    to_bitmap,
)
from secagg.packing import add_packed, packed_size
from secagg.parameters import RoundParameters
from secagg.server_cohort import Checked, Dealing, ServerCohort, ServerPhase, SignedSets, Upload, Uploaded
from secagg.server_unmasking import Unmasking


@dataclass(frozen=True)
class _AdvertisementCheck:
    """Of a participant's keys; makes the message itself of it."""

    config: RoundConfig
    round_context: bytes

    def __call__(self, sender: int, message: Advertisement) -> Advertisement:
        keys = (message.mask_key, message.channel_key)
        hybrid = self.config.parameters.hybrid
        length = HYBRID_KEY_BYTES if hybrid else KEY_BYTES
        if any(len(key) != length for key in keys):
            raise InvalidMessage(ADVERTISE_KEYS, sender, f"a public key is not {length} bytes long")
        if any(is_low_order(key[:KEY_BYTES]) for key in keys):
            raise InvalidMessage(ADVERTISE_KEYS, sender, "a public key is of low order")
        if hybrid and not all(is_kem_key(key[KEY_BYTES:]) for key in keys):
            raise InvalidMessage(ADVERTISE_KEYS, sender, "the ML-KEM part of a public key is invalid")
        statement = advertisement_statement(self.round_context, self.config.roster.identity(sender), *keys)
        if not self.config.roster.verify(sender, message.signature, statement):
            raise InvalidMessage(ADVERTISE_KEYS, sender, "the keys are not signed by the participant's identity")
        return message


class AdvertiseKeys(ServerPhase):
    """Collect each participant's signed keys ([BIK+17] Fig. 4, Round 0)."""

    name = ADVERTISE_KEYS

    def __init__(self, config: RoundConfig, cohort: frozenset[int]) -> None:
        """``cohort``: the invited participants that are connected; ValueError for others: honest peers would abort."""
        if not cohort <= config.invited:
            raise ValueError("the cohort contains a participant that isn't on the roster or did not win the lottery")
        self.config, self.cohort = config, cohort
        self._round_context = config.round_context()
        self.check = _AdvertisementCheck(config, self._round_context)
        self._advertisements: dict[int, Advertisement] = {}
        self._keys: set[bytes] = set()

    @property
    def received(self) -> frozenset[int]:
        return frozenset(self._advertisements)

    def receive(self, sender: int, message: Advertisement | Checked) -> None:
        known = isinstance(message, Advertisement | Checked) and sender in self.cohort
        self._take(sender, known and sender not in self._advertisements)
        advertised: Advertisement = self._made_of(sender, message)
        # Honest receivers abort on a repeated key, so the sender of one is refused here.
        parts = [part for key in (advertised.mask_key, advertised.channel_key) for part in key_parts(key)]
        if len({*parts}) < len(parts) or self._keys.intersection(parts):
            raise InvalidMessage(ADVERTISE_KEYS, sender, "a public key was advertised before")
        self._advertisements[sender] = advertised
        self._keys.update(parts)

    def drop(self, participant: int) -> None:
        """Leave out one that is gone: it would only cost the others work."""
        if self._closed:
            return
        advertisement = self._advertisements.pop(participant, None)
        if advertisement is not None:
            self._keys.difference_update(key_parts(advertisement.mask_key), key_parts(advertisement.channel_key))

    def close(self) -> tuple[ShareKeys, Messages[CohortKeys]]:
        """Fix u1."""
        parameters = self.config.parameters
        self._close(len(self._advertisements), parameters.quorum)
        members = dict(sorted(self._advertisements.items()))
        u1 = tuple(members)
        digests = tuple((who, advertised.digest()) for who, advertised in members.items())
        context = cohort_context(
            self._round_context, ((self.config.roster.identity(who), digest) for who, digest in digests)
        )
        graph = graph_of(u1, parameters, context)
        graph.tabulate()
        cohort = ServerCohort(self.config, self._round_context, context, graph, members, digests)
        return ShareKeys(cohort), Messages(u1, cohort.keys_for)


@dataclass(frozen=True)
class _DealingCheck:
    """Of sealed shares; makes the dealing, all ciphertexts in a row, and the commitments' tree of it."""

    cohort: ServerCohort
    ciphertext_bytes: int

    def __call__(self, sender: int, message: SealedShares) -> tuple[Dealing, bytes, MerkleTree]:
        cohort = self.cohort
        neighbours, holders = cohort.graph.neighbours(sender), cohort.graph.holders(sender)
        if len(message.ciphertexts) != len(neighbours):
            raise InvalidMessage(SHARE_KEYS, sender, "shares must go to exactly the neighbours")
        if {*map(len, message.ciphertexts)} - {self.ciphertext_bytes}:
            raise InvalidMessage(SHARE_KEYS, sender, f"a sealed share is not {self.ciphertext_bytes} bytes long")
        hybrid = cohort.config.parameters.hybrid
        receivers = [who for who in neighbours if hybrid and sends_seed(sender, who)]
        if len(message.wrapped) != len(receivers) or {*map(len, message.wrapped)} - {WRAPPED_BYTES}:
            raise InvalidMessage(SHARE_KEYS, sender, f"there must be {len(receivers)} seeds of {WRAPPED_BYTES} bytes")
        wrapped = dict(zip(receivers, message.wrapped, strict=True))
        if len(message.leaves) != 2 * len(holders) or {*map(len, message.leaves)} - {32}:
            raise InvalidMessage(SHARE_KEYS, sender, "there must be two commitments of 32 bytes for each holder")
        if len(message.seed_commitment) != 32:
            raise InvalidMessage(SHARE_KEYS, sender, "the seed commitment is not 32 bytes long")
        leaves = b"".join(message.leaves)
        nodes = pair_nodes(leaves)
        if hybrid:
            nodes = [wrapped_node(node, wrapped.get(who, b"")) for node, who in zip(nodes, holders, strict=True)]
        tree = MerkleTree(nodes)
        statement = dealing_statement(cohort.context, cohort.identity(sender), tree.root, message.seed_commitment)
        if not cohort.config.roster.verify(sender, message.signature, statement):
            raise InvalidMessage(SHARE_KEYS, sender, "the commitments are not signed by the participant's identity")
        dealing = Dealing(leaves, tree.root, message.seed_commitment, message.signature, wrapped)
        return dealing, b"".join(message.ciphertexts), tree


class ShareKeys(ServerPhase):
    """Collect each participant's sealed shares and the commitments to them ([BIK+17] Fig. 4, Round 1)."""

    name = SHARE_KEYS

    def __init__(self, cohort: ServerCohort) -> None:
        self.cohort = cohort
        self._dealings: dict[int, Dealing] = {}
        # Tables: an object for each share took three times the memory. Of ciphertexts, a row for each neighbour,
        # ascending, of each member of u1.
        u1, graph, self._positions = cohort.u1, cohort.graph, cohort.positions
        hybrid = cohort.config.parameters.hybrid
        self._ciphertext_bytes = CIPHERTEXT_BYTES + (KEM_CIPHERTEXT_BYTES if hybrid else 0)
        self.check = _DealingCheck(cohort, self._ciphertext_bytes)
        shape = len(u1) * graph.degree, self._ciphertext_bytes
        self._ciphertexts: NDArray[np.uint8] = np.zeros(shape, dtype=np.uint8)
        self._trees = MerkleForest(len(u1), len(graph.holders(u1[0])))

    @property
    def received(self) -> frozenset[int]:
        return frozenset(self._dealings)

    def receive(self, sender: int, message: SealedShares | Checked) -> None:
        """Check that the shares go to exactly the neighbours and that the commitments are signed."""
        known = isinstance(message, SealedShares | Checked) and sender in self.cohort.advertisements
        self._take(sender, known and sender not in self._dealings)
        dealing, ciphertexts, tree = self._made_of(sender, message)
        row, degree = self._positions[sender], self.cohort.graph.degree
        self._ciphertexts[row * degree : (row + 1) * degree] = np.frombuffer(ciphertexts, np.uint8).reshape(degree, -1)
        self._trees.store(row, tree)
        self._dealings[sender] = dealing

    def drop(self, participant: int) -> None:
        """Leave out one that is gone: before u2 is fixed that costs nothing, afterwards a recovery."""
        if self._closed or self._dealings.pop(participant, None) is None:
            return
        row, degree = self._positions[participant], self.cohort.graph.degree
        self._ciphertexts[row * degree : (row + 1) * degree] = 0
        self._trees.clear(row)

    def close(self) -> tuple[MaskedInputCollection, Messages[NeighbourShares]]:
        """Fix u2. The ciphertexts are forwarded and not kept: they contain both kinds of share. Wrapped seeds are kept,
        for receivers that leave.

        Raises TooFewClients: u2 is below the quorum, or a member has fewer neighbours in it than the threshold.
        """
        quorum, graph = self.cohort.config.parameters.quorum, self.cohort.graph
        members = frozenset(self._dealings)
        if not self._closed and not graph.complete and len(members) >= quorum:
            # A member with fewer could not be unmasked, and would refuse to mask.
            fewest = min(len(graph.dealers(member, members)) for member in members)
            if fewest < graph.threshold:
                raise TooFewClients(SHARE_KEYS, fewest, graph.threshold)
        self._close(len(members), quorum)
        dealings = dict(sorted(self._dealings.items()))
        shares = _SharesFor(self.cohort, dealings, self._ciphertexts, self._trees, to_bitmap(members, self.cohort.u1))
        del self._ciphertexts, self._trees
        return MaskedInputCollection(self.cohort, dealings), Messages(tuple(dealings), shares, shares.only)


@dataclass(frozen=True, eq=False)
class _SharesFor:
    """The tables of all dealings, and what each participant gets of them."""

    cohort: ServerCohort
    dealings: Mapping[int, Dealing] = field(repr=False)  # of u2, ascending
    ciphertexts: NDArray[np.uint8] = field(repr=False)
    trees: MerkleForest = field(repr=False)
    u2: bytes

    def __call__(self, receiver: int) -> NeighbourShares:
        return self.only((receiver,))(receiver)

    def only(self, receivers: Collection[int]) -> _SharesOf:
        """What these get."""
        parts = {receiver: self._part(receiver) for receiver in receivers}
        dealers = np.unique(np.concatenate([part.dealers for part in parts.values()])).tolist()
        dealings = [self.dealings[dealer] for dealer in dealers]
        public = [(one.root, one.seed_commitment, one.signature) for one in dealings]
        return _SharesOf(parts, dict(zip(dealers, public, strict=True)), self.ciphertexts.shape[1], self.u2)

    def _part(self, receiver: int) -> _SharesOfOne:
        graph, dealings = self.cohort.graph, self.dealings
        places = graph.places(receiver)
        dealers = [dealer for dealer in places if dealer in dealings and dealer != receiver]
        hybrid = self.cohort.config.parameters.hybrid
        wrapped = [dealings[who].seed_for(receiver, places[who]) for who in dealers] if hybrid else []
        rows = np.searchsorted(self._u1, dealers)
        among_holders = np.array([places[dealer] for dealer in dealers], dtype=np.intp)
        # On the complete graph a dealer is one of its holders, but not one of its neighbours.
        columns = among_holders - (rows < graph.position(receiver)) if graph.complete else among_holders
        sealed = np.take(self.ciphertexts, rows * graph.degree + columns, axis=0).tobytes()
        return _SharesOfOne(self._u1[rows], sealed, *self.trees.paths(rows, among_holders), wrapped)

    @cached_property
    def _u1(self) -> NDArray[np.int64]:
        return np.array(self.cohort.u1, dtype=np.int64)


class _SharesOfOne(NamedTuple):
    """What one participant gets from its dealers: ciphertexts and paths in a row each, wrapped seeds if hybrid."""

    dealers: NDArray[np.int64]
    sealed: bytes
    paths: bytes
    path_lengths: NDArray[np.intp]
    wrapped: list[tuple[bytes, bytes]]


@dataclass(frozen=True, eq=False)
class _SharesOf:
    """What some participants get, with roots, commitments and signatures of their dealers."""

    parts: Mapping[int, _SharesOfOne] = field(repr=False)
    public: Mapping[int, tuple[bytes, bytes, bytes]] = field(repr=False)
    ciphertext_bytes: int
    u2: bytes

    def __call__(self, receiver: int) -> NeighbourShares:
        part = self.parts[receiver]
        dealers = part.dealers.tolist()
        public = [self.public[dealer] for dealer in dealers]
        shares = map(
            DealtShare,
            dealers,
            struct.unpack(f"{self.ciphertext_bytes}s" * len(dealers), part.sealed),
            [root for root, _, _ in public],
            split_paths(part.paths, part.path_lengths),
            [commitment for _, commitment, _ in public],
            [signature for _, _, signature in public],
            *zip(*part.wrapped, strict=True),
        )
        return NeighbourShares(tuple(shares), self.u2)


def add_input(accumulator: NDArray[Any], sender: int, message: MaskedInput, parameters: RoundParameters) -> Upload:
    """Check one complete input, whose offer was checked, and add it.

    Args:
        accumulator: (dim,) words of `secagg.masking.word_dtype`, changed in place.

    Raises InvalidMessage: it isn't the input that was signed, or no input at all; nothing is added.
    """
    size, wanted = packed_size(parameters.dim, parameters.bits), parameters.upload_size
    if len(message.packed) != wanted:
        raise InvalidMessage(MASKED_INPUT, sender, f"the upload has {len(message.packed)} bytes, not {wanted}")
    if hashlib.sha256(message.packed).digest() != message.sha256:
        raise InvalidMessage(MASKED_INPUT, sender, "the upload doesn't have the digest that was signed")
    try:
        add_packed(accumulator, message.packed[:size], parameters.bits)
    except ValueError as error:
        raise InvalidMessage(MASKED_INPUT, sender, str(error)) from error
    commitments = struct.iter_unpack("32s", message.packed[size:])
    return Upload(message.sha256, message.signature, tuple(one for (one,) in commitments))


@dataclass(frozen=True)
class _OfferCheck:
    """Of an input whose vector is yet to come; makes the same of it."""

    config: RoundConfig
    context: bytes
    u2_digest: bytes

    def __call__(self, sender: int, offer: MaskedInput) -> MaskedInput:
        identity = self.config.roster.identity(sender)
        statement = upload_statement(self.context, identity, offer.sha256, self.u2_digest)
        if not self.config.roster.verify(sender, offer.signature, statement):
            raise InvalidMessage(MASKED_INPUT, sender, "the upload is not signed by the participant's identity")
        return offer


class MaskedInputCollection(ServerPhase):
    """Add up masked inputs as they arrive, in O(dim) memory ([BIK+17] Fig. 4, Round 2)."""

    name = MASKED_INPUT

    def __init__(self, cohort: ServerCohort, dealings: dict[int, Dealing]) -> None:
        self.cohort, self._dealings = cohort, dealings
        self.u2 = frozenset(dealings)
        self._u2_digest = set_of(cohort.config, cohort.context, "u2", self.u2)
        self._uploads: dict[int, Upload] = {}
        self._offered: dict[int, tuple[bytes, bytes]] = {}  # digests and signatures that were verified
        self.check = _OfferCheck(cohort.config, cohort.context, self._u2_digest)
        parameters = cohort.config.parameters
        self._accumulator: NDArray[Any] = np.zeros(parameters.dim, dtype=word_dtype(parameters.bits))
        self._u3: set[int] = set()

    @property
    def received(self) -> frozenset[int]:
        """Participants whose inputs are in the sum."""
        return frozenset(self._u3)

    def check_offer(self, sender: int, offer: MaskedInput | Checked) -> None:
        """Check that an upload with this digest would be accepted, before any of it is staged."""
        self._offered[sender] = self._check(sender, offer)

    def _check(self, sender: int, offer: Any) -> tuple[bytes, bytes]:
        """Digest and signature of an input that is expected and signed."""
        self._take(sender, sender in self.u2 and sender not in self._u3)
        made = offer.content if isinstance(offer, Checked) else offer
        signed = made.sha256, made.signature
        if not isinstance(offer, Checked) and self._offered.get(sender) != signed:
            self.check(sender, offer)
        return signed

    def receive(self, sender: int, message: MaskedInput) -> None:
        """Add one complete input, after all checks; otherwise nothing is added."""
        self._take(sender, isinstance(message, MaskedInput))
        self._check(sender, message)
        upload = add_input(self._accumulator, sender, message, self.cohort.config.parameters)
        self._u3.add(sender)
        self._uploads[sender] = upload

    def merge(self, uploads: Uploaded, partial: NDArray[Any]) -> None:
        """Add the sum of several inputs that `add_input` added up elsewhere, for the same coordinator; all or none.

        Args:
            partial: (dim,) words of `secagg.masking.word_dtype`.

        Raises UnexpectedMessage, InvalidMessage: of one of the senders, whose input isn't expected.
        """
        for sender, upload in uploads.items():
            self._check(sender, upload)
        np.add(self._accumulator, partial, out=self._accumulator)
        reduce_words(self._accumulator, self.cohort.config.parameters.bits)
        self._u3.update(uploads)
        self._uploads.update(uploads)

    def restore(self, uploads: Uploaded, masked_sum: bytes) -> None:
        """Take the inputs that a process before this one had added up and frozen, in place of all others.

        Args:
            masked_sum: of `ConsistencyCheck.frozen`, the words of the sum as bytes.

        Raises ProtocolError: they aren't of this attempt, or there are others already.
        """
        if self._closed or self._u3 or not self.u2 >= uploads.keys() or len(masked_sum) != self._accumulator.nbytes:
            raise ProtocolError(f"{self.name}: this is not the sum of this attempt")
        self._accumulator[:] = np.frombuffer(masked_sum, self._accumulator.dtype)
        self._uploads, self._u3 = dict(uploads), set(uploads)

    def close(self) -> tuple[ConsistencyCheck, dict[int, SurvivorSets]]:
        """Fix u3. Durable before the sets are sent: u2, u3 and the sum (`ConsistencyCheck.frozen`), and the uploads."""
        needed = self.cohort.config.parameters.min_survivors
        self._close(len(self._u3), needed)
        u3 = frozenset(self._u3)
        sets = SurvivorSets(to_bitmap(self.u2, self.cohort.u1), to_bitmap(u3, self.cohort.u1))
        following = ConsistencyCheck(self.cohort, self._dealings, u3, self._accumulator, dict(self._uploads))
        return following, dict.fromkeys(sorted(u3), sets)


class ConsistencyCheck(ServerPhase):
    """Collect signatures over u2 and u3 ([BIK+17] Fig. 4, Round 3)."""

    name = CONSISTENCY_CHECK

    def __init__(
        self,
        cohort: ServerCohort,
        dealings: dict[int, Dealing],
        u3: frozenset[int],
        accumulator: NDArray[Any],
        uploads: Uploaded,
    ) -> None:
        self.cohort, self._dealings, self.u3, self._accumulator = cohort, dealings, u3, accumulator
        self.u2, self.uploads = frozenset(dealings), uploads
        self._signed = SignedSets(cohort, self.u2, u3, uploads)
        self.check = self._signed.check

    @property
    def frozen(self) -> tuple[frozenset[int], frozenset[int], NDArray[Any]]:
        """u2, u3 and the masked sum (shape (dim,)): what must be durable before u3 is sent."""
        return self.u2, self.u3, self._accumulator

    @property
    def statement(self) -> bytes:
        """The bytes that participants sign."""
        return self._signed.statement

    @property
    def received(self) -> frozenset[int]:
        return self._signed.signers

    @property
    def needed(self) -> int:
        """Signatures that each participant requires."""
        return self._signed.needed

    @property
    def proven(self) -> bool:
        """Whether enough have signed: shares can be requested, and later signers admitted."""
        return self._signed.proven

    @property
    def proof(self) -> tuple[tuple[int, bytes], ...]:
        """Signatures that prove the sets to any verifier; after enough have signed."""
        return self._signed.proof

    def receive(self, sender: int, message: ConsistencySignature | Checked) -> None:
        signed = self._signed
        known = isinstance(message, ConsistencySignature | Checked) and sender in self.u3
        self._take(sender, known and sender not in signed.signatures)
        signed.signatures[sender] = self._made_of(sender, message)

    def close(self) -> tuple[Unmasking, Messages[UnmaskingRequest]]:
        """Go on with the signers. Durable before a request is sent: the charge for u3, and `proof`.

        Deviation: [BIK+17] fixes u4 here; in this protocol others may sign until the sum is opened (`Unmasking.admit`).
        The signatures in a request prove u3 to its receiver, whether or not others sign; and signers don't wait for
        slow ones.
        """
        self._close(len(self._signed.signers), self.needed)
        following = Unmasking(self.cohort, self._dealings, self.uploads, self._accumulator, self._signed)
        return following, self._signed.requests(self._signed.signers)

    def without_signatures(self) -> Unmasking:
        """Skip this phase: the survivor sets are then the unmasking request. Durable before they are sent: the charge.

        Raises ProtocolError: the plan is for a malicious coordinator; participants would reveal nothing.
        """
        if self.cohort.config.parameters.signed:
            raise ProtocolError("participants of this plan reveal nothing without signatures")
        self._close(len(self.u3), 0)
        return Unmasking(self.cohort, self._dealings, self.uploads, self._accumulator)
