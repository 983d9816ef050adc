"""One participant's side of an attempt ([BIK+17] Figure 4, with the round against active adversaries).

Messages are dictionaries with the field names of proto/coordinator.proto; bytes are bytes, participants are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, TypeVar, cast

from tests.reference import commitments, hybrid, setting
from tests.reference.aes import gcm_open, gcm_seal
from tests.reference.curves import agreement, ed25519_public, ed25519_sign, ed25519_valid, x25519_public
from tests.reference.graph import Graph
from tests.reference.setting import Message, Refused, Setting
from tests.reference.sharing import SYMBOLS, P, Stream, bytes_symbols, random_symbols, share, symbol_bytes
from tests.reference.vectors_mod_2b import add_masks, pack

T = TypeVar("T")
CIPHERTEXT_BYTES = 112  # (salt 16, share 32) for either kind, and the tag


def bitmap(members: set[int], u1: Sequence[int]) -> bytes:
    """Bit i, the least significant of a byte first, belongs to the i-th member of u1."""
    number = sum(1 << i for i, who in enumerate(u1) if who in members)
    return number.to_bytes((len(u1) + 7) // 8, "little")


def read_bitmap(data: bytes, u1: Sequence[int]) -> set[int]:
    number = int.from_bytes(data, "little")
    if len(data) != (len(u1) + 7) // 8 or number >> len(u1):
        raise ValueError("not a bitmap over u1")
    return {who for i, who in enumerate(u1) if number >> i & 1}


def ascending(members: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(members))


class Participant:
    """Holds everything until the end and asks for the phases in their order; no more careful than that."""

    def __init__(self, agreed: Setting, identity_seed: bytes, stream: Stream) -> None:
        self.agreed, self.numbers = agreed, agreed.numbers
        self.identity_seed, self.stream = identity_seed, stream
        self.identity = ed25519_public(identity_seed)
        self.phase = self._now = "AdvertiseKeys"
        self.answered, self.reply = dict[str, Any](), dict[str, Any]()  # once it has
        identities = [identity for identity, _ in agreed.roster]
        # Without a lottery a cohort that is not the whole roster would be the coordinator's choice.
        self._require(self.identity in identities and self.numbers.cohort >= len(identities))
        self.me = identities.index(self.identity)

    def sign(self, statement: bytes) -> bytes:
        return ed25519_sign(self.identity_seed, statement)

    def _enter(self, phase: str, following: str) -> None:
        if self.phase != phase:
            raise Refused("CoordinatorMisbehaved", phase)
        self.phase, self._now, self._following = "left after a refusal", phase, following

    def _given(self, found: T | None) -> T:
        self._require(found is not None)
        return cast(T, found)

    def _require(self, holds: bool) -> None:
        if not holds:
            raise Refused("CoordinatorMisbehaved", self._now)

    def hear(self, phase: str, message: Message, vector: Sequence[int]) -> Message:
        """One message of the coordinator, and the answer."""
        if phase == "AdvertiseKeys":
            return self.advertise()
        if phase == "MaskedInputCollection":
            return self.masked_input(message, vector)
        return {"ShareKeys": self.share_keys, "ConsistencyCheck": self.sign_sets, "Unmasking": self.unmask}[phase](
            message
        )

    def advertise(self) -> Message:
        """Draws the secret of the mask key, then the channel key."""
        self._enter("AdvertiseKeys", "ShareKeys")
        self.round_context = self.agreed.round_context()
        self.mask_secret = random_symbols(SYMBOLS, self.stream)
        secret = symbol_bytes(self.mask_secret)
        self.mask_private = setting.mask_private_key(secret, self.round_context, self.identity)
        self.channel_private = self.stream.take(32)
        keys = (x25519_public(self.mask_private), x25519_public(self.channel_private))
        if self.numbers.hybrid:
            self.mask_key = hybrid.mask_key(secret, self.mask_private, self.round_context, self.identity)
            self.channel_key = hybrid.HybridKey(self.channel_private, self.stream.take(64))
            keys = (self.mask_key.public, self.channel_key.public)
        statement = setting.advertisement_statement(self.round_context, self.identity, *keys)
        self.advertisement = {"mask_key": keys[0], "channel_key": keys[1], "signature": self.sign(statement)}
        self.phase = self._following
        return self.advertisement

    def share_keys(self, cohort_keys: Message) -> Message:
        """Draws the secret of the self-mask seed, the polynomials' coefficients, then the salts."""
        self._enter("ShareKeys", "MaskedInputCollection")
        self._check_cohort(cohort_keys)
        self.agreements: dict[int, bytes] = {}
        self.encapsulated: dict[int, tuple[bytes, bytes]] = {}
        self.seeds: dict[int, bytes] = {}
        self.wrapped: dict[int, bytes] = {}
        for other in self.graph.neighbours(self.me):
            public = self.keys[other]["channel_key"]
            self.agreements[other] = self._given(agreement(self.channel_private, public[:32]))
            if self.numbers.hybrid:
                self.encapsulated[other] = self._encapsulate(public)

        self.seed_secret = random_symbols(SYMBOLS, self.stream)
        self.seed = setting.self_mask_seed(symbol_bytes(self.seed_secret), self.context, self.identity)
        shares = share([*self.mask_secret, *self.seed_secret], self.threshold, self.points, self.stream)
        for other in self.graph.neighbours(self.me) if self.numbers.hybrid else ():
            if hybrid.sends_seed(self.me, other):
                self._wrap(other)
        return self.deal(shares, setting.seed_commitment(self.seed, self.context, self.identity))

    def _encapsulate(self, public: bytes) -> tuple[bytes, bytes]:
        return self._given(hybrid.encapsulate(public, self.stream.take(32)))

    def _wrap(self, other: int) -> None:
        """The seed of the pair with a neighbour, for the neighbour."""
        ends, public = (self.identity, self.agreed.identity(other)), self.keys[other]["mask_key"]
        shared = self._given(agreement(self.mask_private, public[:32]))
        secret, ciphertext = self._encapsulate(public)
        self.seeds[other] = hybrid.pair_seed(symbol_bytes(self.mask_secret), self.context, *ends)
        padded = hybrid.padded(self.seeds[other], shared, secret, ciphertext, ends, self.context)
        self.wrapped[other] = ciphertext + padded

    def deal(self, shares: Sequence[Sequence[int]], seed_commitment: bytes) -> Message:
        """Commit to the shares of all holders (16 symbols of each kind), seal them, sign. Draws the salts."""
        holders = self.graph.holders(self.me)
        salts = self.stream.take(2 * 16 * len(holders))
        leaves: list[bytes] = []
        ciphertexts: list[bytes] = []
        self.held: dict[int, list[tuple[bytes, bytes]] | None] = {}
        for position, holder in enumerate(holders):
            pair = []
            for kind in (0, 1):
                at = 32 * position + 16 * kind
                pair.append((salts[at : at + 16], symbol_bytes(shares[position][16 * kind : 16 * kind + 16])))
            leaves += self.leaves(self.me, holder, pair)
            if holder == self.me:
                self.held[self.me] = pair
            else:
                plaintext = b"".join(salt + part for salt, part in pair)
                secret, ciphertext = self.encapsulated.get(holder, (b"", b""))
                key, associated = self.channel(self.me, holder, secret, ciphertext, self.wrapped.get(holder, b""))
                ciphertexts.append(ciphertext + gcm_seal(key, plaintext, associated))
        pairs = [commitments.pair_node(leaves[at], leaves[at + 1]) for at in range(0, len(leaves), 2)]
        seeds = [self.wrapped.get(holder, b"") for holder in holders]
        entries = list(map(commitments.wrapped_node, pairs, seeds))
        statement = setting.dealing_statement(self.context, self.identity, commitments.root(entries), seed_commitment)
        self.phase = self._following
        return {
            "ciphertexts": ciphertexts,
            "leaves": leaves,
            "seed_commitment": seed_commitment,
            "signature": self.sign(statement),
            **({"wrapped": [self.wrapped[one] for one in sorted(self.wrapped)]} if self.wrapped else {}),
        }

    def _check_cohort(self, message: Message) -> None:
        members = message["members"]
        u1 = [member["participant"] for member in members]
        self._require(ascending(u1) and all(0 <= who < len(self.agreed.roster) for who in u1))
        self._require(self.numbers.quorum <= len(u1) <= self.numbers.cohort)
        own = [one.get("advertisement") for one in members if one["participant"] == self.me]
        self._require(own == [self.advertisement])
        listed = []
        for one in members:
            full = "advertisement" in one
            digest = setting.advertisement_digest(**one["advertisement"]) if full else one["advertisement_sha256"]
            listed.append((self.agreed.identity(one["participant"]), digest))
        self.u1, self.context = u1, setting.cohort_context(self.round_context, listed)
        degree, self.threshold = self.agreed.sharing_of(len(u1))
        self.graph = Graph(u1, degree, self.context)
        self.points = [self.graph.x(holder) for holder in self.graph.holders(self.me)]
        # Of others than the neighbours keys may be there in full; they are of no use.
        near = {self.me, *self.graph.neighbours(self.me)}
        keys = {
            one["participant"]: one["advertisement"]
            for one in members
            if one["participant"] in near and "advertisement" in one
        }
        self._require(set(keys) == near)
        public = [key for entry in keys.values() for key in (entry["mask_key"], entry["channel_key"])]
        length = 1216 if self.numbers.hybrid else 32
        halves = [half for key in public for half in (key[:32], key[32:]) if half]
        self._require(all(len(key) == length for key in public) and len({*halves}) == len(halves))
        for who, entry in keys.items():
            statement = setting.advertisement_statement(
                self.round_context, self.agreed.identity(who), entry["mask_key"], entry["channel_key"]
            )
            self._require(ed25519_valid(self.agreed.identity(who), entry["signature"], statement))
        self.keys = keys

    def leaves(self, dealer: int, holder: int, pair: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Commitments to (salt, share) of the mask key's secret and of the seed's."""
        ends = (self.agreed.identity(dealer), self.agreed.identity(holder))
        return [
            commitments.share_leaf(kind, self.context, *ends, self.graph.x(holder), salt, part)
            for kind, (salt, part) in zip(commitments.KINDS, pair, strict=True)
        ]

    def channel(
        self, sender: int, receiver: int, secret: bytes = b"", ciphertext: bytes = b"", wrapped: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Key and associated data of one direction."""
        ends = [(self.agreed.identity(who), self.keys[who]["channel_key"]) for who in (sender, receiver)]
        shared = self.agreements[receiver if sender == self.me else sender]
        key = setting.channel_key(shared + secret, ends[0], ends[1], self.context, ciphertext)
        return key, setting.sealed_share_associated_data(self.context, ends[0][0], ends[1][0], wrapped)

    def masked_input(self, neighbour_shares: Message, vector: Sequence[int]) -> Message:
        """Open what the neighbours in u2 dealt; mask with exactly those. Draws the seeds of noise."""
        self._enter("MaskedInputCollection", "ConsistencyCheck" if self.numbers.signed else "Unmasking")
        self.u2 = self._set(neighbour_shares["u2"])
        self._require(self.me in self.u2 and len(self.u2) >= self.numbers.quorum)
        dealt = neighbour_shares["shares"]
        dealers = [entry["dealer"] for entry in dealt]
        self._require(dealers == [one for one in self.graph.neighbours(self.me) if one in self.u2])
        # On the complete graph one's own share counts.
        self._require(len([one for one in self.graph.holders(self.me) if one in self.u2]) >= self.threshold)
        for entry in dealt:
            self.held[entry["dealer"]] = self._open(entry)

        numbers = self.numbers
        masks = [(setting.self_mask_key(self.seed, self.identity, numbers.bits, numbers.dim, self.context), 1)]
        for other, entry in zip(dealers, dealt, strict=True):
            shared = self._given(self._shared(other, entry))
            low, high = ((self.agreed.identity(who), self.keys[who]["mask_key"]) for who in sorted((self.me, other)))
            key = setting.pairwise_mask_key(shared, low, high, numbers.bits, numbers.dim, self.context)
            masks.append((key, 1 if self.me < other else -1))
        self.noise_seeds = [self.stream.take(32) for _ in range(numbers.noise_seeds)]
        packed = pack(add_masks(vector, masks, numbers.bits), numbers.bits)
        for number, seed in enumerate(self.noise_seeds):
            packed += setting.noise_commitment(seed, number, self.context, self.identity)
        digest = sha256(packed).digest()
        signature = self.sign(setting.upload_statement(self.context, self.identity, digest, self.named(self.u2)))
        self.phase = self._following
        return {"packed": packed, "sha256": digest, "signature": signature}

    def _shared(self, other: int, entry: Message) -> bytes | None:
        """What the key of the pair's mask is derived from."""
        if other in self.seeds:
            return self.seeds[other]
        shared = agreement(self.mask_private, self.keys[other]["mask_key"][:32])
        if not self.numbers.hybrid or shared is None:
            return shared
        ciphertext, seed = entry["wrapped"][: hybrid.CIPHERTEXT], entry["wrapped"][hybrid.CIPHERTEXT :]
        secret, ends = self.mask_key.decapsulate(ciphertext), (self.agreed.identity(other), self.identity)
        return hybrid.padded(seed, shared, secret, ciphertext, ends, self.context)

    def _open(self, entry: Message) -> list[tuple[bytes, bytes]] | None:
        """The two (salt, share) of a dealer; None for what it may have got wrong, and has signed all the same."""
        sent = self.numbers.hybrid and hybrid.sends_seed(entry["dealer"], self.me)
        self._require(len(entry.get("wrapped", b"")) == (hybrid.WRAPPED if sent else 0))
        pair = self._opened(entry)
        if pair is None:
            if sent:
                self._require(self._covered(entry, entry["pair"]))
            identity = self.agreed.identity(entry["dealer"])
            statement = setting.dealing_statement(self.context, identity, entry["root"], entry["seed_commitment"])
            self._require(ed25519_valid(identity, entry["signature"], statement))
        return pair

    def _opened(self, entry: Message) -> list[tuple[bytes, bytes]] | None:
        dealer = entry["dealer"]
        at = hybrid.CIPHERTEXT if self.numbers.hybrid else 0
        ciphertext, sealed = entry["ciphertext"][:at], entry["ciphertext"][at:]
        if len(sealed) != CIPHERTEXT_BYTES:
            return None
        secret = self.channel_key.decapsulate(ciphertext) if at else b""
        key, associated = self.channel(dealer, self.me, secret, ciphertext, entry.get("wrapped", b""))
        plaintext = gcm_open(key, sealed, associated)
        if plaintext is None:
            return None
        pair = [(plaintext[at : at + 16], plaintext[at + 16 : at + 48]) for at in (0, 48)]
        if any(symbol >= P for _, part in pair for symbol in bytes_symbols(part)):
            return None
        return pair if self._covered(entry, commitments.pair_node(*self.leaves(dealer, self.me, pair))) else None

    def _covered(self, entry: Message, pair: bytes) -> bool:
        """Whether the root covers the commitments, and the seed if there is one, at this holder's place."""
        dealer = entry["dealer"]
        node = commitments.wrapped_node(pair, entry.get("wrapped", b""))
        place, count = self.graph.place(dealer, self.me), len(self.graph.holders(dealer))
        return len(pair) == 32 and commitments.path_valid(entry["root"], node, place, count, entry["path"])

    def _set(self, data: bytes) -> set[int]:
        try:
            return read_bitmap(data, self.u1)
        except ValueError:
            raise Refused("CoordinatorMisbehaved", self._now) from None

    def named(self, members: set[int]) -> list[bytes]:
        """A set by its identities, ascending."""
        return [self.agreed.identity(who) for who in sorted(members)]

    def sign_sets(self, survivor_sets: Message) -> Message:
        """Hold the sets against what this participant did, and sign them."""
        self._enter("ConsistencyCheck", "Unmasking")
        self._check_sets(survivor_sets)
        self.statement = setting.survivor_statement(self.context, self.named(self.u2), self.named(self.u3))
        self.phase = self._following
        return {"signature": self.sign(self.statement)}

    def _check_sets(self, survivor_sets: Message) -> None:
        u2, self.u3 = (self._set(survivor_sets[which]) for which in ("u2", "u3"))
        self._require(u2 == self.u2 and self.u3 <= u2 and self.me in self.u3)
        self._require(len(self.u3) >= self.numbers.min_survivors)

    def unmask(self, request: Message) -> Message:
        """A share of each dealer in u2 that it holds from, the kind fixed by u3, and seeds of its noise, fixed by |u3|;
        once more for the same request.
        """
        if self.phase == "Answered" and request == self.answered:
            return self.reply
        self._enter("Unmasking", "Answered")
        if self.numbers.signed:
            self._check_request(request)
        else:
            self._require(set(request) == {"u2", "u3"})
            self._check_sets(request)
        shares: list[Message] = []
        for dealer in self.graph.dealers(self.me):
            if dealer not in self.u2:
                continue
            pair = self.held[dealer]
            if pair is None:
                shares.append({"none": {}})
            else:
                kind, name = (1, "self_mask_seed") if dealer in self.u3 else (0, "mask_key")
                salt, part = pair[kind]
                shares.append({name: {"share": part, "salt": salt}})
        seeds = [self.noise_seeds[number] for number in self.numbers.surplus(len(self.u3))]
        self.answered, self.reply = request, {"shares": shares, **({"noise_seeds": seeds} if seeds else {})}
        self.phase = self._following
        return self.reply

    def _check_request(self, request: Message) -> None:
        """Enough signatures over the sets, and of all other neighbours in u3 that they masked in this u2."""
        self._require("signatures" in request)
        signers = [entry["participant"] for entry in request["signatures"]]
        self._require(ascending(signers) and set(signers) <= self.u3)
        self._require(len(signers) >= self.numbers.majority(len(self.u1)))
        for entry in request["signatures"]:
            identity = self.agreed.identity(entry["participant"])
            self._require(ed25519_valid(identity, entry["signature"], self.statement))
        silent = [one for one in self.graph.neighbours(self.me) if one in self.u3 and one not in signers]
        if self.graph.complete:
            silent = []  # everybody has seen dealings of a whole quorum
        self._require(len(request["uploads"]) == len(silent))
        for one, upload in zip(silent, request["uploads"], strict=True):
            identity = self.agreed.identity(one)
            statement = setting.upload_statement(self.context, identity, upload["sha256"], self.named(self.u2))
            self._require(ed25519_valid(identity, upload["signature"], statement))
