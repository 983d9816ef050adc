"""Whole attempts in memory, for tests.

Participants and coordinator are the real phases of `secagg`. `Attempt` is an honest coordinator on a bad network;
`Cohort` is one cohort in the hands of a coordinator that says what it likes to whom it likes. Both write down
everything an adversary sees, and `Cohort.open_sum` is a second, slow implementation of the unmasking that tries what
can be opened with it. All randomness is keyed: the same test sees the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg import shamir
from secagg.commitments import MerkleForest, MerkleTree, pair_node
from secagg.context import RoundConfig, cohort_context, survivor_statement
from secagg.errors import CoordinatorMisbehaved, ProtocolError, UnexpectedMessage
from secagg.graph import graph_of
from secagg.keys import (
    AgreementKey,
    IdentityKey,
    mask_private_key,
    pairwise_mask_key,
    self_mask_key,
    self_mask_seed,
)
from secagg.masking import mask_words, word_dtype
from secagg.messages import (
    MASK_KEY,
    PHASES,
    SELF_MASK_SEED,
    Advertisement,
    CohortKeys,
    ConsistencySignature,
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
from secagg.packing import unpack
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from secagg.server_unmasking import Completed
from secagg.sharing import MALICIOUS
from tests.support.comparable import freeze
from tests.support.naive_variants import CLIENT, SERVER, Side
from tests.support.small_rings import Rings, SmallRings

RandomBytes = Callable[[int], bytes]
Vector = NDArray[Any]
Sets = tuple[frozenset[int], frozenset[int]]  # u2, u3

# The u coordinates of Curve25519's points of order 1, 2, 4 and 8, and encodings of them above the prime.
P = 2**255 - 19
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
LOW_ORDER = [u.to_bytes(32, "little") for u in (0, 1, P - 1, P, P + 1, *ORDER_8)]


def keyed_source(name: str) -> RandomBytes:
    """The same bytes for the same name in every run."""
    key = hashlib.sha256(b"tests/secagg " + name.encode()).digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: stream.update(bytes(count))


@cache
def identities(count: int) -> tuple[IdentityKey, ...]:
    """Identities in the order of a roster."""
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
    study_digest: bytes = b"s" * 32,
    model_digest: bytes = b"m" * 32,
    adversary: str = MALICIOUS,
    rings: Rings = (),
) -> RoundConfig:
    """By default min_survivors is the threshold and quorum is min_survivors; rings as in `SmallRings`."""
    fewest = (cohort + max(2, colluders)) // 2 + 1 if min_survivors is None else min_survivors
    return RoundConfig(
        roster=roster_of(roster or cohort),
        round=round_,
        attempt=attempt,
        study_digest=study_digest,
        model_digest=model_digest,
        parameters=(partial(SmallRings, rings=rings) if rings else RoundParameters)(
            cohort=cohort,
            colluders=colluders,
            min_survivors=fewest,
            quorum=fewest if quorum is None else quorum,
            bits=bits,
            dim=dim,
            adversary=adversary,
        ),
    )


def vector_of(participant: int, parameters: RoundParameters) -> Vector:
    """A participant's input: uniform below 2^B."""
    drawn = np.frombuffer(keyed_source(f"input {participant}")(8 * parameters.dim), dtype="<u8")
    return (drawn & np.uint64((1 << parameters.bits) - 1)).astype(word_dtype(parameters.bits))


def sum_of(participants: Iterable[int], parameters: RoundParameters) -> Vector:
    """The plain sum modulo 2^B, in Python's integers."""
    columns = zip(*(vector_of(one, parameters).tolist() for one in participants), strict=True)
    return np.array([sum(column) % (1 << parameters.bits) for column in columns], dtype=word_dtype(parameters.bits))


PHASE_MODULES = frozenset(module.__name__ for module in (*CLIENT.modules, *SERVER.modules))


def twin(value: Any) -> Any:
    """A phase that can be used up without the original noticing: containers are copied, what can't change is not."""
    if isinstance(value, set | Counter | np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: twin(one) for key, one in value.items()}
    if isinstance(value, list):
        return [twin(one) for one in value]
    if type(value) is MerkleForest or type(value).__module__ in PHASE_MODULES:
        again = copy.copy(value)
        if not hasattr(value, "__dataclass_fields__"):
            vars(again).update({name: twin(one) for name, one in vars(value).items()})
        return again
    return value


@dataclass
class Cohort:
    """One cohort of an attempt in the hands of the coordinator, with all that was ever revealed in it.

    `phases` is shared by all cohorts of an attempt: an honest participant is in one phase at a time, whatever it is
    told. Colluders run the same code, but everything they hold is the adversary's.
    """

    config: RoundConfig
    u1: tuple[int, ...]
    advertisements: dict[int, Advertisement]
    phases: dict[int, Any]
    colluders: frozenset[int] = frozenset()
    mask_keys: dict[int, AgreementKey] = field(default_factory=dict)  # private ones that the adversary has anyway
    sealed: dict[int, SealedShares] = field(default_factory=dict)
    uploads: dict[int, Vector] = field(default_factory=dict)
    masked_with: dict[int, frozenset[int]] = field(default_factory=dict)  # neighbours in the u2 it was told
    told_u2: dict[int, frozenset[int]] = field(default_factory=dict)
    signed_uploads: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    shares: dict[tuple[int, int], dict[int, NDArray[np.uint16]]] = field(default_factory=dict)  # (dealer, kind) -> x ->
    held: dict[int, dict[int, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        roster = self.config.roster
        self.context = cohort_context(
            self.config.round_context(),
            [(roster.identity(who), self.advertisements[who].digest()) for who in self.u1],
        )
        self.graph = graph_of(self.u1, self.config.parameters, self.context)

    # -------------------------------------------------------- what the coordinator says

    def keys(self) -> CohortKeys:
        return CohortKeys(tuple((who, self.advertisements[who]) for who in self.u1))

    def deal(self, who: Iterable[int], message: CohortKeys | None = None) -> None:
        for one in who:
            self.phases[one], self.sealed[one] = self.phases[one].receive(message or self.keys())

    def dealt(self, dealer: int, receiver: int) -> DealtShare:
        """What the dealer sealed for the receiver; rubbish if it never dealt in this cohort."""
        sealed = self.sealed.get(dealer)
        if sealed is None:
            return DealtShare(dealer, bytes(112), bytes(32), b"", bytes(32), bytes(64))
        tree = MerkleTree([pair_node(*sealed.leaves[at : at + 2]) for at in range(0, len(sealed.leaves), 2)])
        return DealtShare(
            dealer,
            sealed.ciphertexts[self.graph.neighbours(dealer).index(receiver)],
            tree.root,
            b"".join(tree.path(self.graph.places(receiver)[dealer])),
            sealed.seed_commitment,
            sealed.signature,
        )

    def neighbour_shares(self, receiver: int, u2: Iterable[int]) -> NeighbourShares:
        u2 = frozenset(u2) | {receiver}
        dealers = self.graph.dealers(receiver, u2 - {receiver})
        return NeighbourShares(tuple(self.dealt(dealer, receiver) for dealer in dealers), to_bitmap(u2, self.u1))

    def mask(self, receiver: int, u2: Iterable[int], message: NeighbourShares | None = None) -> MaskedInput:
        """Tell one participant u2 and take its upload."""
        u2 = frozenset(u2)
        phase = self.phases[receiver]
        masking = phase.receive(message or self.neighbour_shares(receiver, u2))
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
        """A colluder signs whatever it is asked to."""
        assert colluder in self.colluders
        return identities(len(self.config.roster))[colluder].sign(self.statement(sets))

    def unmask(self, who: int, sets: Sets, signatures: Mapping[int, bytes] | Sequence[tuple[int, bytes]]) -> None:
        pairs = sorted(signatures.items()) if isinstance(signatures, Mapping) else signatures
        request = UnmaskingRequest(tuple(pairs), self.evidence(who, sets, {signer for signer, _ in pairs}))
        self.phases[who], reply = self.phases[who].receive(request)
        self.note_reply(who, self.told_u2.get(who, sets[0]), reply)

    def evidence(self, who: int, sets: Sets, signers: set[int]) -> tuple[tuple[bytes, bytes], ...]:
        """What neighbours that are no signers have signed of their uploads, as a request on the ring shows it."""
        if self.graph.complete:
            return ()
        others = (one for one in self.graph.neighbours(who) if one in sets[1] and one not in signers)
        return tuple(self.signed_uploads.get(one, (bytes(32), bytes(64))) for one in others)

    # -------------------------------------------------------- what the adversary writes down

    def note_held(self, receiver: int, masking: Any) -> None:
        self.held[receiver] = dict(masking._held)

    def note_upload(self, sender: int, upload: MaskedInput, masked_with: frozenset[int]) -> None:
        parameters = self.config.parameters
        self.uploads[sender] = unpack(upload.packed, parameters.dim, parameters.bits)
        self.masked_with[sender] = masked_with
        self.signed_uploads[sender] = (upload.sha256, upload.signature)

    def note_reply(self, sender: int, u2: frozenset[int], reply: UnmaskingReply) -> None:
        for dealer, share in zip(self.graph.dealers(sender, u2), reply.shares, strict=True):
            if share is not None:
                kind = MASK_KEY if isinstance(share, MaskKeyShare) else SELF_MASK_SEED
                self.shares.setdefault((dealer, kind), {})[self.graph.x(sender)] = symbols_of(share)

    # -------------------------------------------------------- what can be opened with it

    def secret(self, dealer: int, kind: int) -> NDArray[np.uint16] | None:
        """A secret of the dealer from revealed shares and from those the colluders hold; None if it stays closed."""
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
        symbols = self.secret(dealer, MASK_KEY)
        if symbols is None:
            return None
        identity = self.config.roster.identity(dealer)
        return AgreementKey(mask_private_key(symbols, self.config.round_context(), identity))

    def open_sum(self, members: Iterable[int]) -> Vector | None:
        """The plain sum of these members' inputs from their uploads, or None if some mask can't be computed."""
        members, parameters = frozenset(members), self.config.parameters
        total = [0] * parameters.dim

        def add(words: Vector, sign: int) -> None:
            for at, word in enumerate(words.tolist()):
                total[at] += sign * word

        for member in members:
            if member not in self.uploads:
                return None
            add(self.uploads[member], 1)
            symbols = self.secret(member, SELF_MASK_SEED)
            if symbols is None:
                return None
            identity = self.config.roster.identity(member)
            seed = self_mask_seed(symbols, self.context, identity)
            key = self_mask_key(seed, identity, parameters.bits, parameters.dim, self.context)
            add(mask_words(key, parameters.dim, parameters.bits), -1)
            for other in self.masked_with[member]:
                if other in members and member in self.masked_with[other]:
                    continue  # both are in the sum: the two cancel
                pairwise = self._pairwise(member, other)
                if pairwise is None:
                    return None
                add(pairwise, -1 if member < other else 1)
        return np.array([one % (1 << parameters.bits) for one in total], dtype=word_dtype(parameters.bits))

    def _pairwise(self, one: int, other: int) -> Vector | None:
        low, high = sorted((one, other))
        for mine, theirs in ((low, high), (high, low)):
            private = self.private_mask_key(mine)
            if private is not None:
                parameters, roster = self.config.parameters, self.config.roster
                key = pairwise_mask_key(
                    private.agree(self.advertisements[theirs].mask_key),
                    (roster.identity(low), self.advertisements[low].mask_key),
                    (roster.identity(high), self.advertisements[high].mask_key),
                    parameters.bits,
                    parameters.dim,
                    self.context,
                )
                return mask_words(key, parameters.dim, parameters.bits)
        return None

    def opens(self, members: Iterable[int]) -> bool:
        """Whether the adversary learns exactly the sum of these inputs."""
        members = tuple(members)
        opened = self.open_sum(members)
        return opened is not None and bool((opened == sum_of(members, self.config.parameters)).all())


def advertise(
    config: RoundConfig, who: Iterable[int], client: Side = CLIENT, name: str = ""
) -> tuple[dict[int, Any], dict[int, Advertisement]]:
    """Participants at the start of an attempt: their phases and what they advertise."""
    phases, advertisements = {}, {}
    for one in who:
        identity = identities(len(config.roster))[one]
        source = keyed_source(f"{name} {config.round_context().hex()} {one}")
        phases[one], advertisements[one] = client.AdvertiseKeys(config, identity, source).advertise()
    return phases, advertisements


def start_cohort(
    config: RoundConfig,
    *,
    client: Side = CLIENT,
    colluders: Iterable[int] = (),
    u1: Iterable[int] | None = None,
) -> Cohort:
    """A cohort whose members have advertised."""
    members = tuple(range(len(config.roster))) if u1 is None else tuple(u1)
    phases, advertisements = advertise(config, members, client)
    colluders = frozenset(colluders)
    known = {one: phases[one]._keys.mask_key for one in colluders}
    return Cohort(config, members, advertisements, phases, colluders, known)


# ---------------------------------------------------------------- an honest coordinator on a bad network

DELIVER, LOSE, TWICE, LATE, GARBLE, LEAVE = "deliver", "lose", "twice", "late", "garble", "leave"


@dataclass
class Script:
    """What happens to the messages of an attempt. What isn't named is delivered, in order of participants."""

    up: dict[tuple[str, int], str] = field(default_factory=dict)  # (phase, sender) -> fate
    down: dict[tuple[str, int], str] = field(default_factory=dict)  # (phase, receiver) -> fate
    order: dict[str, Sequence[int]] = field(default_factory=dict)  # phase -> order of arrival
    deadline: dict[str, int] = field(default_factory=dict)  # phase -> arrivals after which everything is late


class Attempt:
    """One attempt under a script. `tamper` changes a message between a participant and the coordinator."""

    def __init__(
        self,
        config: RoundConfig,
        script: Script | None = None,
        *,
        client: Side = CLIENT,
        server: Side = SERVER,
        tamper: Mapping[tuple[str, int], Callable[[Any], Any]] | None = None,
        tamper_down: Mapping[tuple[str, int], Callable[[Any], Any]] | None = None,
    ) -> None:
        self.config, self.script, self.client, self.server = config, script or Script(), client, server
        self.tamper, self.tamper_down = tamper or {}, tamper_down or {}
        self.cohort: Cohort | None = None
        self.phases: dict[int, Any] = {}
        self.u3: frozenset[int] = frozenset()
        self.refused: list[ProtocolError] = []  # by the coordinator
        self.misbehaved: dict[int, CoordinatorMisbehaved] = {}  # found by a participant
        self.sent: dict[tuple[str, int], Any] = {}  # by participants
        self.asked: dict[tuple[str, int], Any] = {}  # by the coordinator
        self.server_phase: Any = None
        self.mask_keys: dict[int, AgreementKey] = {}
        self.mask_key_symbols: dict[int, NDArray[np.uint16]] = {}

    def run(self) -> Completed:
        """All five phases; raises what ends the attempt."""
        config, everybody = self.config, range(len(self.config.roster))
        self.server_phase = phase = self.server.AdvertiseKeys(config, frozenset(everybody))
        self.phases, adverts = advertise(config, everybody, self.client)
        self.mask_keys = {who: one._keys.mask_key for who, one in self.phases.items()}
        self.mask_key_symbols = {who: one._keys.mask_key_symbols for who, one in self.phases.items()}
        phase, messages = self._collect(PHASES[0], phase, adverts)

        u1 = phase.cohort.u1
        self.cohort = Cohort(config, u1, dict(phase.cohort.advertisements), self.phases)
        assert phase.cohort.context == self.cohort.context
        phase, messages = self._collect(PHASES[1], phase, self._ask(PHASES[1], messages))
        self.cohort.sealed = {who: self.sent[PHASES[1], who] for who in phase.u2}
        phase, messages = self._collect(PHASES[2], phase, self._ask(PHASES[2], messages, self._mask))
        self.u3 = phase.u3
        if config.parameters.signed:
            phase, messages = self._collect(PHASES[3], phase, self._ask(PHASES[3], messages))
        else:
            phase = phase.without_signatures()
        u2 = phase.u2
        replies = self._ask(PHASES[4], messages)
        for who, reply in replies.items():
            self.cohort.note_reply(who, u2, reply)
        return self._collect(PHASES[4], phase, replies)

    def _mask(self, who: int, phase: Any, message: NeighbourShares) -> tuple[Any, MaskedInput]:
        masking = phase.receive(message)
        self.cohort.note_held(who, masking)
        following, upload = masking.mask(vector_of(who, self.config.parameters))
        self.cohort.note_upload(who, upload, frozenset(one.dealer for one in message.shares))
        return following, upload

    def _ask(
        self, name: str, messages: Mapping[int, Any], step: Callable[[int, Any, Any], Any] | None = None
    ) -> dict[int, Any]:
        """The coordinator's messages reach the participants, who answer."""
        answers: dict[int, Any] = {}
        for who, message in messages.items():
            fate = self.script.down.get((name, who), DELIVER)
            if who not in self.phases or fate == LOSE:
                self.phases.pop(who, None)
                continue
            if (name, who) in self.tamper_down:
                message = self.tamper_down[name, who](message)
            self.asked[name, who] = message
            before = self.phases[who]
            try:
                after, answers[who] = step(who, before, message) if step else before.receive(message)
                self.phases[who] = after
            except CoordinatorMisbehaved as error:
                self.misbehaved[who] = error
                del self.phases[who]
                continue
            if fate == TWICE:
                refuses(lambda phase=before, again=message: phase.receive(again), CoordinatorMisbehaved)
        return answers

    def _collect(self, name: str, phase: Any, messages: Mapping[int, Any]) -> Any:
        """Answers arrive, in the script's order and with the script's fates, until the deadline."""
        script, late = self.script, []
        self.server_phase = phase
        arrived = 0
        order = [who for who in script.order.get(name, sorted(messages)) if who in messages]
        for who in order:
            message = messages[who]
            if (name, who) in self.tamper:
                message = self.tamper[name, who](message)
            self.sent[name, who] = message
            fate = script.up.get((name, who), DELIVER)
            if fate == LATE or arrived >= script.deadline.get(name, len(order)):
                late.append((who, message))
                self.phases.pop(who, None)
                continue
            arrived += 1
            if fate == LOSE:
                self.phases.pop(who, None)
                continue
            if fate == GARBLE:
                message = garble(message)
            before = freeze(phase)
            try:
                phase.receive(who, message)
            except ProtocolError as error:
                assert freeze(phase) == before, f"{name} changed by a refused message"
                self.refused.append(error)
                self.phases.pop(who, None)
                continue
            assert fate != GARBLE, f"{name} took a garbled message"
            if fate == TWICE:
                before = freeze(phase)
                refuses(lambda sender=who, again=message: phase.receive(sender, again), UnexpectedMessage)
                assert freeze(phase) == before
            if fate == LEAVE and hasattr(phase, "drop"):
                phase.drop(who)
                self.phases.pop(who, None)
        following = phase.close()
        before = freeze(following)
        for who, message in late:
            refuses(lambda sender=who, again=message: phase.receive(sender, again), UnexpectedMessage)
        refuses(phase.close, ProtocolError)
        assert freeze(following) == before, f"{name} changed the next phase after it was closed"
        return following


def refuses(call: Callable[[], Any], error: type[Exception]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"not refused with {error.__name__}")


def symbols_of(share: RevealedShare) -> NDArray[np.uint16]:
    """The 16 symbols of a share."""
    return np.frombuffer(share.share, dtype="<u2").astype(np.uint16)


def flip(data: bytes, at: int = 0) -> bytes:
    """One bit changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def garble(message: Any) -> Any:
    """The same message with one bit of it changed, where no honest sender could have changed it."""
    match message:
        case Advertisement():
            return replace(message, mask_key=flip(message.mask_key))
        case SealedShares():
            return replace(message, leaves=(flip(message.leaves[0]), *message.leaves[1:]))
        case MaskedInput():
            return replace(message, packed=flip(message.packed))
        case ConsistencySignature():
            return replace(message, signature=flip(message.signature, 40))
        case UnmaskingReply():
            at = next(i for i, share in enumerate(message.shares) if share is not None)
            wrong = replace(message.shares[at], salt=flip(message.shares[at].salt))
            return UnmaskingReply((*message.shares[:at], wrong, *message.shares[at + 1 :]))
    raise AssertionError(type(message))
