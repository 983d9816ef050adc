"""The coordinator's side of an attempt ([BIK+17] Figure 4). Messages as in tests/reference/participant.py."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from tests.reference import commitments, hybrid, setting
from tests.reference.curves import agreement, ed25519_valid, x25519_public
from tests.reference.graph import Graph
from tests.reference.participant import CIPHERTEXT_BYTES, Message, bitmap
from tests.reference.setting import PHASES, Refused, Setting
from tests.reference.sharing import P, bytes_symbols, misfits, rebuild, symbol_bytes
from tests.reference.vectors_mod_2b import add_masks, add_vectors, unpack

ANY_SCALAR = bytes(range(32))  # a key of low order gives zero with every private key


class Coordinator:
    """Takes each phase's messages, then fixes the phase's set with `close`."""

    def __init__(self, agreed: Setting) -> None:
        self.agreed, self.numbers = agreed, agreed.numbers
        self.phase = "AdvertiseKeys"
        self.invited = set(range(len(agreed.roster)))
        self.received: dict[int, Message] = {}  # of this phase
        self.round_context = agreed.round_context()

    def receive(self, sender: int, message: Message) -> None:
        """Check one message; a refused one changes nothing."""
        if sender not in self.invited or sender in self.received:
            raise Refused("UnexpectedMessage", self.phase, sender=sender)
        check = (self._advertisement, self._dealing, self._upload, self._signature, self._reply)
        if not check[PHASES.index(self.phase)](sender, message):
            raise Refused("InvalidMessage", self.phase, sender=sender)
        self.received[sender] = message

    def _signed(self, who: int, signature: bytes, statement: bytes) -> bool:
        return ed25519_valid(self.agreed.identity(who), signature, statement)

    def _advertisement(self, sender: int, message: Message) -> bool:
        keys = [message["mask_key"], message["channel_key"]]
        known = [entry[name] for entry in self.received.values() for name in ("mask_key", "channel_key")]
        halves, taken = ([half for key in some for half in (key[:32], key[32:]) if half] for some in (keys, known))
        if len({*halves}) < len(halves) or {*halves} & {*taken}:
            return False
        if any(len(key) != (1216 if self.numbers.hybrid else 32) for key in keys):
            return False
        if any(agreement(ANY_SCALAR, key[:32]) is None for key in keys):
            return False
        if self.numbers.hybrid and any(hybrid.encapsulate(key, bytes(32)) is None for key in keys):
            return False
        statement = setting.advertisement_statement(self.round_context, self.agreed.identity(sender), *keys)
        return self._signed(sender, message["signature"], statement)

    def _dealing(self, sender: int, message: Message) -> bool:
        ciphertexts, leaves, commitment = message["ciphertexts"], message["leaves"], message["seed_commitment"]
        neighbours, holders = self.graph.neighbours(sender), self.graph.holders(sender)
        length = CIPHERTEXT_BYTES + (hybrid.CIPHERTEXT if self.numbers.hybrid else 0)
        if len(ciphertexts) != len(neighbours) or any(len(one) != length for one in ciphertexts):
            return False
        wrapped = message.get("wrapped", [])
        if len(wrapped) != len(self._receivers(sender)) or any(len(one) != hybrid.WRAPPED for one in wrapped):
            return False
        if len(leaves) != 2 * len(holders) or any(len(one) != 32 for one in [*leaves, commitment]):
            return False
        root = commitments.root(self._entries(sender, message))
        statement = setting.dealing_statement(self.context, self.agreed.identity(sender), root, commitment)
        return self._signed(sender, message["signature"], statement)

    def _receivers(self, dealer: int) -> list[int]:
        """Neighbours to which it sends the seed of the pair."""
        every = self.graph.neighbours(dealer) if self.numbers.hybrid else []
        return [one for one in every if hybrid.sends_seed(dealer, one)]

    @staticmethod
    def _pairs(message: Message) -> list[bytes]:
        leaves = message["leaves"]
        return [commitments.pair_node(leaves[at], leaves[at + 1]) for at in range(0, len(leaves), 2)]

    def _wrapped(self, dealer: int, message: Message) -> dict[int, bytes]:
        return dict(zip(self._receivers(dealer), message.get("wrapped", []), strict=True))

    def _entries(self, dealer: int, message: Message) -> list[bytes]:
        wrapped = self._wrapped(dealer, message)
        seeds = [wrapped.get(holder, b"") for holder in self.graph.holders(dealer)]
        return list(map(commitments.wrapped_node, self._pairs(message), seeds))

    def _upload(self, sender: int, message: Message) -> bool:
        identity = self.agreed.identity(sender)
        statement = setting.upload_statement(self.context, identity, message["sha256"], self._named(self.u2))
        if not self._signed(sender, message["signature"], statement):
            return False
        try:
            unpack(self._vector(message), self.numbers.dim, self.numbers.bits)
        except ValueError:
            return False
        return bool(sha256(message["packed"]).digest() == message["sha256"])

    def _vector(self, upload: Message) -> bytes:
        """What stands before the commitments to the noise seeds."""
        packed: bytes = upload["packed"]
        return packed[: len(packed) - 32 * self.numbers.noise_seeds]

    def _noise_commitments(self, sender: int) -> list[bytes]:
        upload = self.uploads[sender]
        behind = upload["packed"][len(self._vector(upload)) :]
        return [behind[at : at + 32] for at in range(0, len(behind), 32)]

    def _signature(self, sender: int, message: Message) -> bool:
        return self._signed(sender, message["signature"], self.statement)

    def _reply(self, sender: int, message: Message) -> bool:
        dealers = self._dealers(sender)
        if len(message["shares"]) != len(dealers):
            return False
        for dealer, entry in zip(dealers, message["shares"], strict=True):
            if "none" in entry:
                continue
            kind, name = (1, "self_mask_seed") if dealer in self.u3 else (0, "mask_key")
            if name not in entry or any(symbol >= P for symbol in bytes_symbols(entry[name]["share"])):
                return False
            leaf = commitments.share_leaf(
                commitments.KINDS[kind],
                self.context,
                self.agreed.identity(dealer),
                self.agreed.identity(sender),
                self.graph.x(sender),
                entry[name]["salt"],
                entry[name]["share"],
            )
            if leaf != self.dealings[dealer]["leaves"][2 * self.graph.place(dealer, sender) + kind]:
                return False
        seeds, surplus = message.get("noise_seeds", []), self.numbers.surplus(len(self.u3))
        if len(seeds) != len(surplus) or any(len(seed) != 32 for seed in seeds):
            return False
        identity, committed = self.agreed.identity(sender), self._noise_commitments(sender)
        return all(
            setting.noise_commitment(seed, number, self.context, identity) == committed[number]
            for number, seed in zip(surplus, seeds, strict=True)
        )

    def _dealers(self, holder: int) -> list[int]:
        return [dealer for dealer in self.graph.dealers(holder) if dealer in self.u2]

    def _named(self, members: list[int]) -> list[bytes]:
        return [self.agreed.identity(who) for who in members]

    # ------------------------------------------------------------ the ends of the phases

    def close(self) -> Any:
        """Fix the set. Returns what goes to whom; after Unmasking the sum of u3."""
        step = (self._fix_u1, self._fix_u2, self._fix_u3, self._fix_u4, self._open_sum)[PHASES.index(self.phase)]
        result = step(sorted(self.received))
        phases = self.numbers.phases
        self.phase = (*phases[1:], "Completed")[phases.index(self.phase)]
        self.received = {}
        return result

    def _enough(self, have: int, needed: int) -> None:
        if have < needed:
            raise Refused("TooFewClients", self.phase, received=have, needed=needed)

    def _fix_u1(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.quorum)
        self.u1, self.keys, self.invited = senders, self.received, set(senders)
        listed = [(self.agreed.identity(who), setting.advertisement_digest(**self.keys[who])) for who in senders]
        self.context = setting.cohort_context(self.round_context, listed)
        degree, self.threshold = self.agreed.sharing_of(len(senders))
        self.graph = Graph(senders, degree, self.context)
        return {who: {"members": [self._listed(one, who) for one in senders]} for who in senders}

    def _listed(self, who: int, receiver: int) -> Message:
        if who == receiver or who in self.graph.neighbours(receiver):
            return {"participant": who, "advertisement": self.keys[who]}
        return {"participant": who, "advertisement_sha256": setting.advertisement_digest(**self.keys[who])}

    def _fix_u2(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.quorum)
        if not self.graph.complete:
            # With fewer neighbours a member would refuse to mask.
            near = [sum(other in senders for other in self.graph.neighbours(who)) for who in senders]
            self._enough(min(near), self.threshold)
        self.u2, self.dealings, self.invited = senders, self.received, set(senders)
        return {who: self.dealt_to(who) for who in senders}

    def dealt_to(self, receiver: int) -> Message:
        """What its neighbours in u2 dealt to one member, and u2."""
        shares = [self._dealt(dealer, receiver) for dealer in self.graph.neighbours(receiver) if dealer in self.u2]
        return {"shares": shares, "u2": bitmap(set(self.u2), self.u1)}

    def _dealt(self, dealer: int, receiver: int) -> Message:
        message = self.dealings[dealer]
        entries, place = self._entries(dealer, message), self.graph.place(dealer, receiver)
        wrapped = self._wrapped(dealer, message).get(receiver)
        return {
            "dealer": dealer,
            "ciphertext": message["ciphertexts"][self.graph.neighbours(dealer).index(receiver)],
            "root": commitments.root(entries),
            "path": commitments.path(entries, place),
            "seed_commitment": message["seed_commitment"],
            "signature": message["signature"],
            **({} if wrapped is None else {"wrapped": wrapped, "pair": self._pairs(message)[place]}),
        }

    def _fix_u3(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.min_survivors)
        numbers = self.numbers
        self.u3, self.uploads, self.invited = senders, self.received, set(senders)
        if not numbers.signed:
            self.u4 = senders
        vectors = [unpack(self._vector(upload), numbers.dim, numbers.bits) for upload in self.received.values()]
        self.masked_sum = add_vectors(vectors, numbers.dim, numbers.bits)
        self.statement = setting.survivor_statement(self.context, self._named(self.u2), self._named(self.u3))
        sets = {"u2": bitmap(set(self.u2), self.u1), "u3": bitmap(set(self.u3), self.u1)}
        return dict.fromkeys(senders, sets)

    def _fix_u4(self, senders: list[int]) -> dict[int, Message]:
        needed = self.numbers.majority(len(self.u1))
        self._enough(len(senders), needed)
        self.u4, self.invited = senders, set(senders)
        asked: dict[int, Message] = {}
        for receiver in senders:
            around = [] if self.graph.complete else self.graph.neighbours(receiver)
            neighbours = [one for one in around if one in self.u3]
            # Signatures of its neighbours come before those of others, the lowest first.
            preferred = sorted(senders, key=lambda one: (one not in neighbours, one))
            shown = sorted(preferred[:needed])
            asked[receiver] = {
                "signatures": [{"participant": who, **self.received[who]} for who in shown],
                "uploads": [
                    {name: self.uploads[one][name] for name in ("sha256", "signature")}
                    for one in neighbours
                    if one not in shown
                ],
            }
        return asked

    def _open_sum(self, senders: list[int]) -> list[int]:
        held: dict[int, dict[int, list[int]]] = {dealer: {} for dealer in self.u2}
        without = dict.fromkeys(self.u2, 0)
        for sender in senders:
            for dealer, entry in zip(self._dealers(sender), self.received[sender]["shares"], strict=True):
                for revealed in entry.values():
                    if revealed:
                        held[dealer][self.graph.x(sender)] = bytes_symbols(revealed["share"])
                    else:
                        without[dealer] += 1
        short = {dealer: len(shares) for dealer, shares in held.items() if len(shares) < self.threshold}
        named = [dealer for dealer in short if without[dealer] > self.numbers.liars]
        if named:
            raise Refused("ReconstructionFailed", self.phase, culprits=named)
        self._enough(min(len(shares) for shares in held.values()), self.threshold)
        masks: list[tuple[bytes, int]] = []
        culprits: list[int] = []
        self.cheats: list[int] = []  # dealt some shares that don't fit the others, which was no harm
        for dealer, shares in held.items():
            points = sorted(shares)
            found = self._masks(dealer, points, [shares[x] for x in points])
            wrong = set[int]() if found else misfits(points, [shares[x] for x in points], self.threshold)
            if wrong:
                points = [x for x in points if x not in wrong]
                found = self._masks(dealer, points, [shares[x] for x in points])
            if found is None:
                culprits.append(dealer)
            else:
                masks += found
                self.cheats += [dealer] if wrong else []
        if culprits:
            raise Refused("ReconstructionFailed", self.phase, culprits=sorted(culprits + self.cheats))
        self.u5 = senders
        self.noise_seeds = {who: self.received[who].get("noise_seeds", []) for who in senders}
        return add_masks(self.masked_sum, masks, self.numbers.bits)

    def _masks(self, dealer: int, points: list[int], shares: list[list[int]]) -> list[tuple[bytes, int]] | None:
        """What to take back for a dealer; None if the secret isn't what it should be."""
        secret = symbol_bytes(rebuild(points, shares, self.threshold))
        return self._self_mask(dealer, secret) if dealer in self.u3 else self._pairwise_masks(dealer, secret)

    def _self_mask(self, dealer: int, secret: bytes) -> list[tuple[bytes, int]] | None:
        identity, numbers = self.agreed.identity(dealer), self.numbers
        seed = setting.self_mask_seed(secret, self.context, identity)
        if setting.seed_commitment(seed, self.context, identity) != self.dealings[dealer]["seed_commitment"]:
            return None
        return [(setting.self_mask_key(seed, identity, numbers.bits, numbers.dim, self.context), -1)]

    def _pairwise_masks(self, dealer: int, secret: bytes) -> list[tuple[bytes, int]] | None:
        """What each survivor added for a dealer above it, or subtracted for one below, is taken back."""
        numbers = self.numbers
        identity = self.agreed.identity(dealer)
        private = setting.mask_private_key(secret, self.round_context, identity)
        public = x25519_public(private)
        if numbers.hybrid:
            key_pair = hybrid.mask_key(secret, private, self.round_context, identity)
            public = key_pair.public
        if public != self.keys[dealer]["mask_key"]:
            return None
        masks = []
        for survivor in self.graph.neighbours(dealer):
            if survivor not in self.u3:
                continue
            low, high = ((self.agreed.identity(who), self.keys[who]["mask_key"]) for who in sorted((dealer, survivor)))
            shared = agreement(private, self.keys[survivor]["mask_key"][:32]) or b""
            other = self.agreed.identity(survivor)
            if numbers.hybrid and hybrid.sends_seed(dealer, survivor):
                shared = hybrid.pair_seed(secret, self.context, identity, other)
            elif numbers.hybrid:
                wrapped = self._wrapped(survivor, self.dealings[survivor])[dealer]
                ciphertext, seed = wrapped[: hybrid.CIPHERTEXT], wrapped[hybrid.CIPHERTEXT :]
                opened = key_pair.decapsulate(ciphertext)
                shared = hybrid.padded(seed, shared, opened, ciphertext, (other, identity), self.context)
            key = setting.pairwise_mask_key(shared, low, high, numbers.bits, numbers.dim, self.context)
            masks.append((key, -1 if survivor < dealer else 1))
        return masks
