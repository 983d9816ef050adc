"""Whole attempts in memory, for tests.

Participants and coordinator are the real phases of `secagg`. `Attempt` is `secagg.in_memory` on a bad network; `Cohort`
is one cohort of a coordinator that can send anything. Both record what an adversary sees; `Cohort.open_sum` is a
second, slow implementation of the unmasking. All randomness is keyed: every run has the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import MerkleTree, pair_node, wrapped_node
from secagg.context import RoundConfig, cohort_context, survivor_statement
from secagg.errors import CoordinatorMisbehaved, ProtocolError, UnexpectedMessage
from secagg.graph import graph_of
from secagg.in_memory import InMemoryAttempt
from secagg.keys import (
    AgreementKey,
    IdentityKey,
    mask_key_of,
    noise_commitment,
    pairwise_mask_key,
    self_mask_key,
    self_mask_seed,
    sends_seed,
)
from secagg.masking import apply_masks, check_stream_length, word_dtype
from secagg.messages import (
    MASK_KEY,
    PHASES,
    SELF_MASK_SEED,
    Advertisement,
    CohortKeys,
    DealtShare,
    MaskedInput,
    MaskKeyShare,
    NeighbourShares,
    RevealedShare,
    SealedShares,
    SurvivorSets,
    UnmaskingReply,
    UnmaskingRequest,
    to_bitmap,
)
from secagg.packing import packed_size, unpack
from secagg.parameters import X25519, RoundParameters
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from secagg.sharing import MALICIOUS
from tests.support.comparable import freeze
from tests.support.naive_variants import CLIENT, SERVER, Side
from tests.support.small_rings import Rings, SmallRings

RandomBytes = Callable[[int], bytes]
Vector = NDArray[Any]
Sets = tuple[frozenset[int], frozenset[int]]  # u2, u3


def keyed_source(name: str) -> RandomBytes:
    """Make a source that gives the same bytes for the same name in every run."""
    key = hashlib.sha256(b"tests/secagg " + name.encode()).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: stream.update(bytes(count))


@cache
def identities(count: int) -> tuple[IdentityKey, ...]:
    """Return identities in the order of a roster."""
    source = keyed_source("identities")
    return tuple(sorted((IdentityKey.generate(source) for _ in range(count)), key=lambda key: key.public))


@cache
def authority() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(keyed_source("authority")(32))


@cache
def roster_of(count: int, study: str = "test", version: int = 1) -> Roster:
    entries = tuple(RosterEntry(key.public, f"host-{i % 3}") for i, key in enumerate(identities(count)))
    data = sign_roster(Roster(study, version, entries), authority())
    return verify_roster(data, authority().public_key().public_bytes_raw())


def make_config(
    cohort: int,
    *,
    roster: int | None = None,
    colluders: int = 2,
    min_survivors: int | None = None,
    quorum: int | None = None,
    bits: int = 16,
    dim: int = 4,
    round_: int = 1,
    attempt: int = 1,
    adversary: str = MALICIOUS,
    key_agreement: str = X25519,
    rings: Rings = (),
    released: tuple[int, ...] = (),
) -> RoundConfig:
    """Make a config; by default min_survivors is the threshold, and quorum is min_survivors. Rings: `SmallRings`."""
    fewest = (cohort + max(2, colluders)) // 2 + 1 if min_survivors is None else min_survivors
    return RoundConfig(
        roster=roster_of(roster or cohort),
        round=round_,
        attempt=attempt,
        study_digest=b"s" * 32,
        model_digest=b"m" * 32,
        parameters=(partial(SmallRings, rings=rings) if rings else RoundParameters)(
            cohort=cohort,
            colluders=colluders,
            min_survivors=fewest,
            quorum=fewest if quorum is None else quorum,
            bits=bits,
            dim=dim,
            adversary=adversary,
            key_agreement=key_agreement,
            released=released,
        ),
    )


def source_of(config: RoundConfig, who: int, name: str = "") -> RandomBytes:
    """Return a participant's randomness in an attempt."""
    return keyed_source(f"{name} {config.round_context().hex()} {who}")


def vector_of(participant: int, parameters: RoundParameters) -> Vector:
    """Return a participant's input, uniform below 2^B."""
    drawn = np.frombuffer(keyed_source(f"input {participant}")(8 * parameters.dim), dtype="<u8")
    return (drawn & np.uint64((1 << parameters.bits) - 1)).astype(word_dtype(parameters.bits))


def mask_words(key: bytes, dim: int, bits: int) -> Vector:
    """The mask of one key, shape (dim,)."""
    check_stream_length(dim, bits)
    words = np.zeros(dim, dtype=word_dtype(bits))
    apply_masks(words, [(key, 1)], bits)
    return words


def sum_of(participants: Iterable[int], parameters: RoundParameters) -> Vector:
    """Return the plain sum modulo 2^B, computed in Python's integers."""
    columns = zip(*(vector_of(one, parameters).tolist() for one in participants), strict=True)
    return np.array([sum(column) % (1 << parameters.bits) for column in columns], dtype=word_dtype(parameters.bits))


def surplus_parts(parameters: RoundParameters, survivors: int) -> list[int]:
    """Return the numbers of the noise seeds that so many survivors reveal."""
    bits = parameters.released[survivors - parameters.min_survivors] if parameters.released else 0
    return [number for number, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


@dataclass
class Cohort:
    """One cohort of a dishonest coordinator's attempt, with everything that was revealed in it.

    All cohorts of an attempt share `phases`: an honest participant is in one phase at a time. Colluders run the same
    code, but the adversary knows everything they hold.
    """

    config: RoundConfig
    u1: tuple[int, ...]
    advertisements: dict[int, Advertisement]
    phases: dict[int, Any]
    colluders: frozenset[int] = frozenset()
    mask_keys: dict[int, AgreementKey] = field(default_factory=dict)  # private ones that the adversary has anyway
    sealed: dict[int, SealedShares] = field(default_factory=dict)
    uploads: dict[int, Vector] = field(default_factory=dict)
    masked_with: dict[int, frozenset[int]] = field(default_factory=dict)  # neighbours in the u2 that it was sent
    told_u2: dict[int, frozenset[int]] = field(default_factory=dict)
    signed_uploads: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    shares: dict[tuple[int, int], dict[int, NDArray[np.uint16]]] = field(default_factory=dict)  # (dealer, kind) -> x
    held: dict[int, dict[int, Any]] = field(default_factory=dict)
    noise_commitments: dict[int, list[bytes]] = field(default_factory=dict)
    noise_parts: dict[int, list[int]] = field(default_factory=dict)  # numbers of revealed seeds; -1: not committed to

    def __post_init__(self) -> None:
        roster = self.config.roster
        self.context = cohort_context(
            self.config.round_context(), [(roster.identity(who), self.advertisements[who].digest()) for who in self.u1]
        )
        self.graph = graph_of(self.u1, self.config.parameters, self.context)

    # -------------------------------------------------------- the coordinator's messages

    def keys(self) -> CohortKeys:
        return CohortKeys(tuple((who, self.advertisements[who]) for who in self.u1))

    def deal(self, who: Iterable[int], message: CohortKeys | None = None) -> None:
        for one in who:
            self.phases[one], self.sealed[one] = self.phases[one].receive(message or self.keys())

    def dealt(self, dealer: int, receiver: int) -> DealtShare:
        """Return the dealer's sealed shares for the receiver; zeros if it has not dealt in this cohort."""
        sealed = self.sealed.get(dealer)
        if sealed is None:
            return DealtShare(dealer, bytes(112), bytes(32), b"", bytes(32), bytes(64))
        nodes = [pair_node(*sealed.leaves[at : at + 2]) for at in range(0, len(sealed.leaves), 2)]
        place, wrapped, pair = self.graph.places(receiver)[dealer], self.wrapped(dealer), b""
        if self.config.parameters.hybrid:
            pair = nodes[place] if receiver in wrapped else b""
            holders = self.graph.holders(dealer)
            nodes = [wrapped_node(node, wrapped.get(who, b"")) for node, who in zip(nodes, holders, strict=True)]
        tree = MerkleTree(nodes)
        return DealtShare(
            dealer,
            sealed.ciphertexts[self.graph.neighbours(dealer).index(receiver)],
            tree.root,
            b"".join(tree.path(place)),
            sealed.seed_commitment,
            sealed.signature,
            wrapped.get(receiver, b""),
            pair,
        )

    def wrapped(self, dealer: int) -> dict[int, bytes]:
        """Return the wrapped seeds that the dealer has sent, by receiver; none unless keys are hybrid."""
        receivers = (who for who in self.graph.neighbours(dealer) if sends_seed(dealer, who))
        return dict(zip(receivers, self.sealed[dealer].wrapped, strict=False))

    def neighbour_shares(self, receiver: int, u2: Iterable[int]) -> NeighbourShares:
        u2 = frozenset(u2) | {receiver}
        dealers = self.graph.dealers(receiver, u2 - {receiver})
        return NeighbourShares(tuple(self.dealt(dealer, receiver) for dealer in dealers), to_bitmap(u2, self.u1))

    def mask(self, receiver: int, u2: Iterable[int], message: NeighbourShares | None = None) -> MaskedInput:
        """Send u2 to one participant; return its upload."""
        u2 = frozenset(u2)
        masking = self.phases[receiver].receive(message or self.neighbour_shares(receiver, u2))
        self.note_held(receiver, masking)
        self.phases[receiver], upload = masking.mask(vector_of(receiver, self.config.parameters))
        self.note_upload(receiver, upload, u2 & frozenset(self.graph.neighbours(receiver)))
        self.told_u2[receiver] = u2 | {receiver}
        return upload

    def sign(self, who: int, sets: Sets) -> bytes:
        self.phases[who], message = self.phases[who].receive(self.survivor_sets(sets))
        return message.signature

    def survivor_sets(self, sets: Sets) -> SurvivorSets:
        return SurvivorSets(to_bitmap(sets[0], self.u1), to_bitmap(sets[1], self.u1))

    def statement(self, sets: Sets) -> bytes:
        return survivor_statement(self.config, self.context, *sets)

    def forge(self, colluder: int, sets: Sets) -> bytes:
        """Let a colluder sign any statement."""
        assert colluder in self.colluders
        return identities(len(self.config.roster))[colluder].sign(self.statement(sets))

    def unmask(self, who: int, sets: Sets, signatures: Mapping[int, bytes] | Sequence[tuple[int, bytes]]) -> None:
        pairs = sorted(signatures.items()) if isinstance(signatures, Mapping) else signatures
        request = UnmaskingRequest(tuple(pairs), self.evidence(who, sets, {signer for signer, _ in pairs}))
        self.phases[who], reply = self.phases[who].receive(request)
        self.note_reply(who, self.told_u2.get(who, sets[0]), reply)

    def evidence(self, who: int, sets: Sets, signers: set[int]) -> tuple[tuple[bytes, bytes], ...]:
        """Return digests and signatures of the uploads of neighbours that are not signers, as a ring's request does."""
        if self.graph.complete:
            return ()
        others = (one for one in self.graph.neighbours(who) if one in sets[1] and one not in signers)
        return tuple(self.signed_uploads.get(one, (bytes(32), bytes(64))) for one in others)

    # -------------------------------------------------------- what the adversary records

    def note_held(self, receiver: int, masking: Any) -> None:
        self.held[receiver] = dict(masking._held)

    def note_upload(self, sender: int, upload: MaskedInput, masked_with: frozenset[int]) -> None:
        parameters = self.config.parameters
        size = packed_size(parameters.dim, parameters.bits)
        self.uploads[sender] = unpack(upload.packed[:size], parameters.dim, parameters.bits)
        self.noise_commitments[sender] = [upload.packed[at : at + 32] for at in range(size, len(upload.packed), 32)]
        self.masked_with[sender] = masked_with
        self.signed_uploads[sender] = (upload.sha256, upload.signature)

    def note_reply(self, sender: int, u2: frozenset[int], reply: UnmaskingReply) -> None:
        for dealer, share in zip(self.graph.dealers(sender, u2), reply.shares, strict=True):
            if share is not None:
                kind = MASK_KEY if isinstance(share, MaskKeyShare) else SELF_MASK_SEED
                self.shares.setdefault((dealer, kind), {})[self.graph.x(sender)] = symbols_of(share)
        committed, identity = self.noise_commitments.get(sender, []), self.config.roster.identity(sender)
        for seed in reply.noise_seeds:
            opened = [noise_commitment(seed, at, self.context, identity) == one for at, one in enumerate(committed)]
            self.noise_parts.setdefault(sender, []).append(opened.index(True) if any(opened) else -1)

    # -------------------------------------------------------- what can be opened with it

    def secret(self, dealer: int, kind: int) -> NDArray[np.uint16] | None:
        """Return a secret of the dealer from revealed and the colluders' shares; None if they are too few."""
        known = dict(self.shares.get((dealer, kind), {}))
        for colluder in self.colluders:
            pair = self.held.get(colluder, {}).get(dealer)
            if pair is not None:
                known[self.graph.x(colluder)] = symbols_of((pair.mask_key, pair.self_mask_seed)[kind])
        if len(known) < self.graph.threshold:
            return None
        xs = sorted(known)
        return shamir.combine(xs, np.stack([known[x] for x in xs]), self.graph.threshold)

    def both_secrets(self, dealer: int) -> bool:
        return all(self.secret(dealer, kind) is not None for kind in (MASK_KEY, SELF_MASK_SEED))

    def private_mask_key(self, dealer: int) -> AgreementKey | None:
        if dealer in self.mask_keys:
            return self.mask_keys[dealer]
        symbols, identity = self.secret(dealer, MASK_KEY), self.config.roster.identity(dealer)
        if symbols is None:
            return None
        return mask_key_of(symbols, self.config.round_context(), identity, hybrid=self.config.parameters.hybrid)

    def open_sum(self, members: Iterable[int]) -> Vector | None:
        """Return the plain sum of these members' inputs from their uploads; None if a mask can't be computed."""
        members, parameters = frozenset(members), self.config.parameters
        total = np.zeros(parameters.dim, dtype=object)
        for member in members:
            symbols = self.secret(member, SELF_MASK_SEED)
            if member not in self.uploads or symbols is None:
                return None
            identity = self.config.roster.identity(member)
            seed = self_mask_seed(symbols, self.context, identity)
            key = self_mask_key(seed, identity, parameters.bits, parameters.dim, self.context)
            own = mask_words(key, parameters.dim, parameters.bits).astype(object)
            total += self.uploads[member].astype(object) - own
            for other in self.masked_with[member]:
                if other in members and member in self.masked_with[other]:
                    continue  # both are in the sum: the two cancel
                pairwise = self._pairwise(member, other)
                if pairwise is None:
                    return None
                total += pairwise.astype(object) * (-1 if member < other else 1)
        return (total % (1 << parameters.bits)).astype(word_dtype(parameters.bits))

    def _pairwise(self, one: int, other: int) -> Vector | None:
        bits, dim = self.config.parameters.bits, self.config.parameters.dim
        low, high = sorted((one, other))
        ends = [(self.config.roster.identity(end), self.advertisements[end].mask_key) for end in (low, high)]
        for mine, theirs in ((low, high), (high, low)):
            private = self.private_mask_key(mine)
            if private is not None:
                shared = private.agree(self.advertisements[theirs].mask_key)
                return mask_words(pairwise_mask_key(shared, *ends, bits, dim, self.context), dim, bits)
        return None

    def opens(self, members: Iterable[int]) -> bool:
        """Tell whether the adversary learns exactly the sum of these inputs."""
        members = tuple(members)
        opened = self.open_sum(members)
        return opened is not None and bool((opened == sum_of(members, self.config.parameters)).all())


def advertise(
    config: RoundConfig, who: Iterable[int], client: Side = CLIENT, name: str = ""
) -> tuple[dict[int, Any], dict[int, Advertisement]]:
    """Start an attempt; return the participants' phases and advertisements."""
    keys = identities(len(config.roster))
    begun = {one: client.AdvertiseKeys(config, keys[one], source_of(config, one, name)).advertise() for one in who}
    return {one: phase for one, (phase, _) in begun.items()}, {one: said for one, (_, said) in begun.items()}


def start_cohort(
    config: RoundConfig, *, client: Side = CLIENT, colluders: Iterable[int] = (), u1: Iterable[int] | None = None
) -> Cohort:
    """Make a cohort whose members have advertised."""
    members = tuple(range(len(config.roster))) if u1 is None else tuple(u1)
    phases, advertisements = advertise(config, members, client)
    colluders = frozenset(colluders)
    known = {one: phases[one]._keys.mask_key for one in colluders}
    return Cohort(config, members, advertisements, phases, colluders, known)


# ---------------------------------------------------------------- an honest coordinator on a bad network

DELIVER, LOSE, LATE, LEAVE = "deliver", "lose", "late", "leave"
ADVERTISE, SHARE, MASK, _, UNMASK = PHASES
Tamper = Mapping[tuple[str, int], Callable[[Any], Any]]  # (phase, participant) -> what becomes of the message


@dataclass
class Script:
    """The fates of an attempt's messages. All others are delivered, in the order of participants."""

    up: dict[tuple[str, int], str] = field(default_factory=dict)  # (phase, sender) -> fate
    down: dict[tuple[str, int], str] = field(default_factory=dict)  # (phase, receiver) -> fate
    order: dict[str, Sequence[int]] = field(default_factory=dict)  # phase -> order of arrival
    deadline: dict[str, int] = field(default_factory=dict)  # phase -> arrivals after which everything is late


class Attempt(InMemoryAttempt):
    """One attempt under a script. `tamper` changes a message between a participant and the coordinator."""

    def __init__(
        self,
        config: RoundConfig,
        script: Script | None = None,
        *,
        client: Side = CLIENT,
        server: Side = SERVER,
        tamper: Tamper | None = None,
        tamper_down: Tamper | None = None,
    ) -> None:
        self.first_of_participant, self.first_of_coordinator = client.AdvertiseKeys, server.AdvertiseKeys
        super().__init__(
            config,
            dict(enumerate(identities(len(config.roster)))),
            lambda who: source_of(config, who),
            lambda who: vector_of(who, config.parameters),
        )
        self.script, self.tamper, self.tamper_down = script or Script(), tamper or {}, tamper_down or {}
        self.cohort: Cohort | None = None
        self.u3: frozenset[int] = frozenset()
        self.refused: list[ProtocolError] = []  # by the coordinator
        self.misbehaved: dict[int, CoordinatorMisbehaved] = {}  # found by a participant
        self.sent: dict[tuple[str, int], Any] = {}  # by participants
        self.asked: dict[tuple[str, int], Any] = {}  # by the coordinator
        self.mask_keys: dict[int, AgreementKey] = {}
        self.mask_key_symbols: dict[int, NDArray[np.uint16]] = {}
        self._arrived, self._late = 0, list[tuple[int, Any]]()

    def up_to(self, name: str) -> dict[int, Any]:
        """Continue until the coordinator would collect the messages of this phase; return these messages."""
        while self.coordinator.name != name:
            self.step()
        answers = {who: self.told(who) for who in self.turns() if who in self.phases}
        return {who: answered for who, answered in answers.items() if answered is not None}

    def turns(self) -> list[int]:
        order = self.script.order.get(self.coordinator.name, sorted(self.messages))
        return [who for who in order if who in self.messages]

    def exchange(self, who: int) -> None:
        answered = self.told(who)
        if answered is not None:
            self.arrives(who, answered)

    def told(self, who: int) -> Any:
        """Return a participant's answer to the coordinator; None if it isn't reached, or refuses."""
        name, message = self.coordinator.name, self.messages[who]
        if self.script.down.get((name, who)) == LOSE:
            del self.phases[who]
            return None
        if (name, who) in self.tamper_down:
            message = self.tamper_down[name, who](message)
        self.asked[name, who] = message
        try:
            answered = self.answer(who, message)
        except CoordinatorMisbehaved as error:
            self.misbehaved[who] = error
            del self.phases[who]
            return None
        if name == ADVERTISE:
            keys = self.phases[who]._keys
            self.mask_keys[who], self.mask_key_symbols[who] = keys.mask_key, keys.mask_key_symbols
        elif name == UNMASK:
            self.cohort.note_reply(who, self.coordinator.u2, answered)
        return answered

    def mask(self, who: int, masking: Any) -> tuple[Any, MaskedInput]:
        self.cohort.note_held(who, masking)
        following, upload = super().mask(who, masking)
        self.cohort.note_upload(who, upload, frozenset(one.dealer for one in self.asked[MASK, who].shares))
        return following, upload

    def arrives(self, who: int, message: Any) -> None:
        """Send an answer, with the script's fate; a participant whose answer is not accepted leaves."""
        if not self._accepted(who, message):
            del self.phases[who]

    def _accepted(self, who: int, message: Any) -> bool:
        phase, name, script = self.coordinator, self.coordinator.name, self.script
        if (name, who) in self.tamper:
            message = self.tamper[name, who](message)
        self.sent[name, who] = message
        fate = script.up.get((name, who), DELIVER)
        if fate == LATE or self._arrived >= script.deadline.get(name, len(self.identities)):
            self._late.append((who, message))
            return False
        self._arrived += 1
        if fate == LOSE:
            return False
        before = freeze(phase)
        try:
            phase.receive(who, message)
        except ProtocolError as error:
            assert freeze(phase) == before, f"{name} changed by a refused message"
            self.refused.append(error)
            return False
        if fate == LEAVE and hasattr(phase, "drop"):
            phase.drop(who)
            return False
        return True

    def close(self) -> None:
        """Close the phase; later messages and a second close change nothing."""
        phase, name = self.coordinator, self.coordinator.name
        super().close()
        following = self.completed or self.coordinator
        before = freeze(following)
        for who, message in self._late:
            refuses(lambda sender=who, again=message: phase.receive(sender, again), UnexpectedMessage)
        refuses(phase.close, ProtocolError)
        assert freeze(following) == before, f"{name} changed the next phase after it was closed"
        self._arrived, self._late = 0, []
        if name == ADVERTISE:
            self.cohort = Cohort(self.config, following.cohort.u1, dict(following.cohort.advertisements), self.phases)
            assert following.cohort.context == self.cohort.context
        elif name == SHARE:
            self.cohort.sealed = {who: self.sent[SHARE, who] for who in following.u2}
        elif name == MASK:
            self.u3 = following.u3


def refuses(call: Callable[[], Any], error: type[Exception]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"not refused with {error.__name__}")


def symbols_of(share: RevealedShare) -> NDArray[np.uint16]:
    """Return the 16 symbols of a share."""
    return np.frombuffer(share.share, dtype="<u2").astype(np.uint16)


def flipped(data: bytes, bit: int = 0) -> bytes:
    """Return the bytes with one bit changed: any number chooses it."""
    at = bit % (8 * len(data))
    return data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :]
