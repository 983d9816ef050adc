"""One participant's side of an attempt, as a chain of phases.

    AdvertiseKeys -> ShareKeys -> MaskedInputCollection -> ConsistencyCheck -> Unmasking -> Answered

Against a coordinator that is at most semi-malicious, `UnsignedUnmasking` replaces ConsistencyCheck and Unmasking.

A phase holds only what is known at that point. Its method takes the coordinator's next message, checks it, and returns
the next phase with the message to send. A phase is left once: no phase remains to answer a second, different question.
Each method states what must be durable before its message is sent; the shell writes it. A failed check raises
`CoordinatorMisbehaved`: the shell then drops the attempt, with its keys, shares and masks.

Sources: [BIK+17] Figure 4 with the active-adversary round. ``Deviation:`` comments say where and why we leave it.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from secagg import shamir
from secagg.client_cohort import ClientPhase, Cohort, HeldShare
from secagg.client_unmasking import ConsistencyCheck, UnsignedUnmasking
from secagg.commitments import (
    HASH_BYTES,
    LeavesOfHolder,
    MerkleTree,
    pair_node,
    pair_nodes,
    siblings,
    verify_path,
    wrapped_node,
)
from secagg.context import RoundConfig, cohort_context, set_of
from secagg.encoding import RandomBytes
from secagg.errors import CoordinatorMisbehaved, InvalidKey
from secagg.graph import graph_of
from secagg.keys import (
    HYBRID_KEY_BYTES,
    KEM_CIPHERTEXT_BYTES,
    KEM_SEED_BYTES,
    KEY_BYTES,
    WRAPPED_BYTES,
    AgreementKey,
    IdentityKey,
    advertisement_statement,
    dealing_statement,
    encapsulate,
    key_parts,
    mask_key_of,
    noise_commitment,
    pair_seed,
    pairwise_mask_key,
    secret_bytes,
    seed_commitment,
    self_mask_key,
    self_mask_seed,
    sends_seed,
    unwrap_seed,
    upload_statement,
    wrap_seed,
)
from secagg.lottery import InvalidTicket
from secagg.masking import apply_masks, word_dtype
from secagg.messages import (
    ADVERTISE_KEYS,
    CIPHERTEXT_BYTES,
    KIND_LABELS,
    MASK_KEY,
    MASKED_INPUT,
    NOISE_SEED_BYTES,
    SALT_BYTES,
    SELF_MASK_SEED,
    SHARE_BYTES,
    SHARE_KEYS,
    Advertisement,
    CohortKeys,
    DealtShare,
    MaskedInput,
    NeighbourShares,
    SealedShares,
    Subset,
)
from secagg.packing import pack


class AdvertiseKeys(ClientPhase):
    """Draw the attempt's keys and advertise them."""

    name = ADVERTISE_KEYS

    def __init__(self, config: RoundConfig, identity: IdentityKey, random_bytes: RandomBytes) -> None:
        """CoordinatorMisbehaved: this identity isn't on the roster, or didn't win the round's lottery."""
        me = config.roster.positions.get(identity.public)
        if me is None:
            raise CoordinatorMisbehaved(ADVERTISE_KEYS, "this participant is not on the roster")
        # A coordinator that could choose a cohort could choose one around its victim, and show different ones to
        # different participants: the cohort is the whole roster, or drawn by the lottery.
        if config.ticket is None and len(config.roster) > config.parameters.cohort:
            raise CoordinatorMisbehaved(ADVERTISE_KEYS, "the cohort is not the whole roster, and no lottery draws it")
        try:
            invited = config.invited
        except InvalidTicket as error:
            raise CoordinatorMisbehaved(ADVERTISE_KEYS, str(error)) from error
        if me not in invited:
            raise CoordinatorMisbehaved(ADVERTISE_KEYS, "this participant did not win the round's lottery")
        self._config, self._identity, self._random_bytes, self._me = config, identity, random_bytes, me

    def advertise(self) -> tuple[ShareKeys, Advertisement]:
        """Durable before the message is sent: that this identity joined this round and attempt."""
        self._leave()
        round_context = self._config.round_context()
        symbols = shamir.random_symbols(shamir.SYMBOLS, self._random_bytes)
        hybrid = self._config.parameters.hybrid
        mask_key = mask_key_of(symbols, round_context, self._identity.public, hybrid=hybrid)
        channel_key = AgreementKey(self._random_bytes(KEY_BYTES), self._random_bytes(KEM_SEED_BYTES) if hybrid else b"")
        statement = advertisement_statement(round_context, self._identity.public, mask_key.public, channel_key.public)
        advertisement = Advertisement(mask_key.public, channel_key.public, self._identity.sign(statement))
        secrets = _AttemptKeys(self._identity, self._random_bytes, round_context, symbols, mask_key, channel_key)
        return ShareKeys(self._config, self._me, secrets, advertisement), advertisement


@dataclass(frozen=True, repr=False)
class _AttemptKeys:
    """Secrets of AdvertiseKeys; hidden in repr."""

    identity: IdentityKey
    random_bytes: RandomBytes
    round_context: bytes
    mask_key_symbols: NDArray[np.uint16]
    mask_key: AgreementKey
    channel_key: AgreementKey


class ShareKeys(ClientPhase):
    """Check u1 and deal shares of both secrets to the holders."""

    name = SHARE_KEYS

    def __init__(self, config: RoundConfig, me: int, keys: _AttemptKeys, advertisement: Advertisement) -> None:
        self._config, self._me, self._keys, self._advertisement = config, me, keys, advertisement

    def receive(self, message: CohortKeys) -> tuple[MaskedInputCollection, SealedShares]:
        """Check the cohort, derive its context, and deal.

        Raises CoordinatorMisbehaved: u1 or a neighbour's advertisement fails a check; no neighbour is ever skipped.
        """
        self._leave(message, CohortKeys)
        cohort = self._check(message)
        keys, graph, me = self._keys, cohort.graph, self._me
        agreements: dict[int, bytes] = {}
        encapsulated = dict.fromkeys(graph.neighbours(me), (b"", b""))
        for neighbour in graph.neighbours(me):
            public = cohort.advertisements[neighbour].channel_key
            try:
                agreements[neighbour] = keys.channel_key.agree(public)
                if cohort.hybrid:
                    encapsulated[neighbour] = encapsulate(public)
            except InvalidKey as error:
                raise CoordinatorMisbehaved(SHARE_KEYS, f"channel key of {neighbour}: {error}") from error

        seed_symbols = shamir.random_symbols(shamir.SYMBOLS, keys.random_bytes)
        seed = self_mask_seed(seed_symbols, cohort.context, keys.identity.public)
        commitment = seed_commitment(seed, cohort.context, keys.identity.public)
        holders = graph.holders(me)
        xs = graph.xs(me).tolist()
        secrets = np.stack([keys.mask_key_symbols, seed_symbols])
        shares = shamir.split(secrets, graph.threshold, xs, keys.random_bytes)  # (holders, 2, 16)
        seeds, wrapped = self._wrapped_seeds(cohort)
        pairs = zip(
            struct.iter_unpack(f"{SALT_BYTES}s" * 2, keys.random_bytes(2 * SALT_BYTES * len(holders))),
            struct.iter_unpack(f"{SHARE_BYTES}s" * 2, secret_bytes(shares)),
            strict=True,
        )

        leaves: list[bytes] = []
        ciphertexts: list[bytes] = []
        held: dict[int, HeldShare | None] = {}
        dealer = (keys.identity.public,) * 2
        for holder, x, (salts, both) in zip(holders, xs, pairs, strict=True):
            committed = LeavesOfHolder(KIND_LABELS, cohort.context, cohort.identity(holder), x)
            leaves += committed.leaves((MASK_KEY, SELF_MASK_SEED), dealer, salts, both)
            pair = HeldShare.of(salts, both)
            if holder == me:
                held[me] = pair
            else:
                secret, ciphertext = encapsulated[holder]
                channel = cohort.channel(agreements[holder] + secret, me, holder, ciphertext, wrapped.get(holder, b""))
                ciphertexts.append(ciphertext + channel.seal(pair.sealed))

        nodes = pair_nodes(b"".join(leaves))
        if cohort.hybrid:
            nodes = [wrapped_node(node, wrapped.get(who, b"")) for node, who in zip(nodes, holders, strict=True)]
        root = MerkleTree(nodes).root
        signature = keys.identity.sign(dealing_statement(cohort.context, keys.identity.public, root, commitment))
        following = MaskedInputCollection(cohort, keys, seed, agreements, held, seeds)
        return following, SealedShares(
            tuple(ciphertexts), tuple(leaves), commitment, signature, tuple(wrapped.values())
        )

    def _wrapped_seeds(self, cohort: Cohort) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Of the pairs whose seed this participant makes: the seeds, and the seeds wrapped for the receivers."""
        keys, me, identity = self._keys, self._me, self._keys.identity.public
        seeds: dict[int, bytes] = {}
        wrapped: dict[int, bytes] = {}
        for who in cohort.graph.neighbours(me) if cohort.hybrid else ():
            if sends_seed(me, who):
                public, receiver = cohort.advertisements[who].mask_key, cohort.identity(who)
                seeds[who] = pair_seed(keys.mask_key_symbols, cohort.context, identity, receiver)
                try:
                    shared = keys.mask_key.agree(public)
                    wrapped[who] = wrap_seed(seeds[who], shared, public, identity, receiver, cohort.context)
                except InvalidKey as error:
                    raise CoordinatorMisbehaved(SHARE_KEYS, f"mask key of {who}: {error}") from error
        return seeds, wrapped

    def _check(self, message: CohortKeys) -> Cohort:
        config, roster, parameters = self._config, self._config.roster, self._config.parameters
        u1 = tuple(participant for participant, _ in message.members)
        if any(a >= b for a, b in pairwise(u1)):
            raise CoordinatorMisbehaved(SHARE_KEYS, "u1 is not strictly ascending")
        # All members, not only this participant: a victim among colluders has won its own place as well.
        if not config.invited.issuperset(u1):
            raise CoordinatorMisbehaved(
                SHARE_KEYS, "u1 names a participant that is not on the roster or did not win the round's lottery"
            )
        if not parameters.quorum <= len(u1) <= parameters.cohort:
            raise CoordinatorMisbehaved(
                SHARE_KEYS, f"u1 has {len(u1)} members, outside {parameters.quorum}..{parameters.cohort}"
            )
        shown: dict[int, Advertisement] = {}
        listed: list[tuple[bytes, bytes]] = []
        for participant, entry in message.members:
            if isinstance(entry, Advertisement):
                shown[participant] = entry
                listed.append((roster.identity(participant), entry.digest()))
            else:
                listed.append((roster.identity(participant), entry))
        if shown.get(self._me) != self._advertisement:
            raise CoordinatorMisbehaved(SHARE_KEYS, "u1 doesn't hold this participant's own keys unaltered")
        context = cohort_context(self._keys.round_context, listed)
        # If u1 is the whole roster, all participants of a process share one list.
        graph = graph_of(roster.in_order if u1 == roster.in_order else u1, parameters, context)
        wanted = (*graph.neighbours(self._me), self._me)
        if not shown.keys() >= set(wanted):
            raise CoordinatorMisbehaved(SHARE_KEYS, "an advertisement of a neighbour is missing")
        advertisements = {participant: shown[participant] for participant in wanted}
        seen: set[bytes] = set()
        for participant, advertisement in advertisements.items():
            for key in (advertisement.mask_key, advertisement.channel_key):
                if len(key) != (HYBRID_KEY_BYTES if parameters.hybrid else KEY_BYTES):
                    raise CoordinatorMisbehaved(SHARE_KEYS, f"a key of {participant} has another length")
                parts = key_parts(key)
                if not seen.isdisjoint(parts):
                    raise CoordinatorMisbehaved(SHARE_KEYS, "the same public key is advertised twice")
                seen.update(parts)
            statement = advertisement_statement(
                self._keys.round_context,
                roster.identity(participant),
                advertisement.mask_key,
                advertisement.channel_key,
            )
            if participant != self._me and not roster.verify(participant, advertisement.signature, statement):
                raise CoordinatorMisbehaved(SHARE_KEYS, f"the keys of {participant} are not signed by it")
        return Cohort(config, context, graph, self._me, advertisements, self._keys.random_bytes)


class MaskedInputCollection(ClientPhase):
    """Open the shares dealt by u2, then mask one vector with exactly those neighbours."""

    name = MASKED_INPUT

    def __init__(
        self,
        cohort: Cohort,
        keys: _AttemptKeys,
        seed: bytes,
        agreements: dict[int, bytes],
        held: dict[int, HeldShare | None],
        seeds: dict[int, bytes],
    ) -> None:
        self._cohort, self._identity, self._seed = cohort, keys.identity, seed
        self._mask_key, self._channel_key = keys.mask_key, keys.channel_key
        self._agreements, self._held = agreements, held
        self._seeds = seeds  # of its pairs: with each neighbour to which it has sent it, if keys are hybrid
        self._agreed: dict[int, bytes] = {}

    @property
    def cohort(self) -> Cohort:
        """For the encoder, whose rotation is seeded by `Cohort.context`."""
        return self._cohort

    def agree(self) -> None:
        """Agree on mask keys with all neighbours in advance, while others deal; otherwise `receive` does.

        An invalid key is skipped here, and found by `receive` if its owner is in u2.
        """
        if self._left:
            return
        for neighbour in self._cohort.graph.neighbours(self._cohort.me):
            with contextlib.suppress(InvalidKey):
                self._agree(neighbour)

    def _agree(self, neighbour: int) -> None:
        if neighbour not in self._seeds and neighbour not in self._agreed:
            self._agreed[neighbour] = self._mask_key.agree(self._cohort.advertisements[neighbour].mask_key)

    def receive(self, message: NeighbourShares) -> Masking:
        """Check u2 and the dealings of the neighbours in it, and open their shares.

        A ciphertext or share that fails its check does not abort: the dealer stays in u2 and is masked, and this
        participant later reports "no share" for it. If, in addition, the dealer did not sign it for this very cohort,
        the participant aborts. An honest coordinator never forwards such a dealing. A dishonest one could show two
        cohorts of one attempt to disjoint participants, open the mask keys of some members in one cohort, and list the
        same members as survivors in the other; the sum there would contain fewer inputs than its u3 says. Raises
        CoordinatorMisbehaved: u2 is malformed, too small or without this participant, or the dealings aren't those of
        exactly its neighbours in u2, signed by them.
        """
        self._leave(message, NeighbourShares)
        cohort, graph = self._cohort, self._cohort.graph
        quorum = cohort.config.parameters.quorum
        try:
            u2 = Subset(message.u2, cohort.u1)
        except ValueError as error:
            raise CoordinatorMisbehaved(MASKED_INPUT, str(error)) from error
        if cohort.me not in u2:
            raise CoordinatorMisbehaved(MASKED_INPUT, "this participant's dealing was left out of u2")
        if len(u2) < quorum:
            raise CoordinatorMisbehaved(MASKED_INPUT, f"u2 has {len(u2)} members, {quorum} needed")
        neighbours = tuple(one for one in graph.neighbours(cohort.me) if one in u2)
        if tuple(dealt.dealer for dealt in message.shares) != neighbours:
            raise CoordinatorMisbehaved(MASKED_INPUT, "the dealings are not those of the neighbours in u2")
        if len(neighbours) + graph.complete < graph.threshold:
            raise CoordinatorMisbehaved(MASKED_INPUT, f"{len(neighbours)} neighbours in u2, {graph.threshold} needed")
        held = dict(self._held)
        places = graph.places(cohort.me)
        mine = LeavesOfHolder(KIND_LABELS, cohort.context, self._identity.public, graph.x(cohort.me))
        for dealt in message.shares:
            held[dealt.dealer] = self._open(dealt, places[dealt.dealer], mine)
        try:
            wrapped = {dealt.dealer: dealt.wrapped for dealt in message.shares}
            masks = [
                (self._pairwise_key(dealer, wrapped.get(dealer, b"")), 1 if cohort.me < dealer else -1)
                for dealer in neighbours
            ]
            self._agreed.clear()
            self._seeds.clear()
        except InvalidKey as error:
            raise CoordinatorMisbehaved(MASKED_INPUT, f"a mask key of u2: {error}") from error
        parameters = cohort.config.parameters
        own = self_mask_key(self._seed, self._identity.public, parameters.bits, parameters.dim, cohort.context)
        seeds = tuple(cohort.random_bytes(NOISE_SEED_BYTES) for _ in range(parameters.noise_seeds))
        return Masking(cohort, self._identity, u2, [(own, 1), *masks], held, seeds)

    def _pairwise_key(self, dealer: int, wrapped: bytes) -> bytes:
        cohort, parameters = self._cohort, self._cohort.config.parameters
        low, high = sorted((cohort.me, dealer))
        self._agree(dealer)
        shared = self._seeds.get(dealer) or self._agreed[dealer]
        if wrapped:
            ends = cohort.identity(dealer), self._identity.public
            shared = unwrap_seed(wrapped, shared, self._mask_key, *ends, cohort.context)
        return pairwise_mask_key(
            shared,
            (cohort.identity(low), cohort.advertisements[low].mask_key),
            (cohort.identity(high), cohort.advertisements[high].mask_key),
            parameters.bits,
            parameters.dim,
            cohort.context,
        )

    def _open(self, dealt: DealtShare, place: int, mine: LeavesOfHolder) -> HeldShare | None:
        """A share that opens was sealed by its dealer for this very cohort; else the dealer's signature is required."""
        cohort = self._cohort
        sent = cohort.hybrid and sends_seed(dealt.dealer, cohort.me)
        if len(dealt.wrapped) != (WRAPPED_BYTES if sent else 0):
            raise CoordinatorMisbehaved(MASKED_INPUT, f"the dealing of {dealt.dealer} lacks the seed of the pair")
        pair = self._opened(dealt, place, mine)
        if pair is None:
            statement = dealing_statement(
                cohort.context, cohort.identity(dealt.dealer), dealt.root, dealt.seed_commitment
            )
            if not cohort.config.roster.verify(dealt.dealer, dealt.signature, statement):
                raise CoordinatorMisbehaved(MASKED_INPUT, f"the dealing of {dealt.dealer} is not signed by it")
            # A coordinator that could replace the seed unnoticed would open the pair once X25519 is broken.
            if sent and not self._covers(dealt, dealt.pair, place):
                raise CoordinatorMisbehaved(MASKED_INPUT, f"the seed in the dealing of {dealt.dealer} is not its own")
        return pair

    def _covers(self, dealt: DealtShare, pair: bytes, place: int) -> bool:
        """Whether the dealer's root covers the commitments to the shares, and the seed, at this place."""
        graph = self._cohort.graph
        holders = len(graph.u1) if graph.complete else graph.degree
        if len(pair) != HASH_BYTES:
            return False
        return verify_path(dealt.root, wrapped_node(pair, dealt.wrapped), place, holders, siblings(dealt.path))

    def _opened(self, dealt: DealtShare, place: int, mine: LeavesOfHolder) -> HeldShare | None:
        cohort, me = self._cohort, self._cohort.me
        encapsulated, sealed = b"", dealt.ciphertext
        if cohort.hybrid:
            encapsulated, sealed = sealed[:KEM_CIPHERTEXT_BYTES], sealed[KEM_CIPHERTEXT_BYTES:]
        if len(sealed) != CIPHERTEXT_BYTES:
            return None
        shared = self._agreements[dealt.dealer]
        if cohort.hybrid:
            shared += self._channel_key.decapsulate(encapsulated)
        plaintext = cohort.channel(shared, dealt.dealer, me, encapsulated, dealt.wrapped).open(sealed)
        if plaintext is None:
            return None
        pair = HeldShare(plaintext)
        salts, shares = zip(*(pair.salt_and_share(kind) for kind in (MASK_KEY, SELF_MASK_SEED)), strict=True)
        if (np.frombuffer(b"".join(shares), dtype="<u2") >= shamir.PRIME).any():
            return None
        dealer = (cohort.identity(dealt.dealer),) * 2
        leaves = mine.leaves((MASK_KEY, SELF_MASK_SEED), dealer, salts, shares)
        if not self._covers(dealt, pair_node(*leaves), place):
            return None
        return pair


class Masking(ClientPhase):
    """u2 is fixed. One vector may be masked, once."""

    name = MASKED_INPUT

    def __init__(
        self,
        cohort: Cohort,
        identity: IdentityKey,
        u2: Subset,
        masks: list[tuple[bytes, int]],
        held: dict[int, HeldShare | None],
        noise_seeds: tuple[bytes, ...],
    ) -> None:
        self._cohort, self._identity, self._u2 = cohort, identity, u2
        self._masks, self._held = masks, held
        self.noise_seeds = noise_seeds
        """For the encoder: seeds of the noise parts that may be taken back."""

    @property
    def cohort(self) -> Cohort:
        """For the encoder, whose rotation is seeded by `Cohort.context`."""
        return self._cohort

    def mask(self, vector: NDArray[np.unsignedinteger]) -> tuple[ConsistencyCheck | UnsignedUnmasking, MaskedInput]:
        """Mask and pack one vector, and commit to the seeds of its noise; the mask keys are deleted afterwards.

        Durable before the first byte is sent: the participant's charge for the attempt.

        Args:
            vector: shape (dim,), dtype the smallest unsigned word for B bits, entries below 2^B; not modified.

        Raises:
            ValueError: the vector has another shape, dtype or range.
        """
        parameters = self._cohort.config.parameters
        dtype = word_dtype(parameters.bits)
        if vector.shape != (parameters.dim,) or vector.dtype != dtype:
            raise ValueError(f"the vector must have shape ({parameters.dim},) and dtype {dtype}")
        if int(vector.max()) >> parameters.bits:
            raise ValueError(f"an entry of the vector is not below 2^{parameters.bits}")
        self._leave()  # the same masks must never cover a second vector
        masked = vector.copy()
        apply_masks(masked, self._masks, parameters.bits)
        self._masks.clear()
        own, context = self._identity.public, self._cohort.context
        commitments = [noise_commitment(seed, number, context, own) for number, seed in enumerate(self.noise_seeds)]
        packed = b"".join((pack(masked, parameters.bits), *commitments))
        sha256 = hashlib.sha256(packed).digest()
        u2 = set_of(self._cohort.config, self._cohort.context, "u2", self._u2)
        signature = self._identity.sign(upload_statement(self._cohort.context, self._identity.public, sha256, u2))
        following = ConsistencyCheck if parameters.signed else UnsignedUnmasking
        after = following(self._cohort, self._identity, self._u2, self._held, self.noise_seeds)
        return after, MaskedInput(packed, sha256, signature)
