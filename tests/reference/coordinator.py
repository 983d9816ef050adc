"""The coordinator's side of an attempt ([BIK+17] Figure 4). Messages as in tests/reference/participant.py."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from tests.reference import commitments, setting
from tests.reference.curves import agreement, ed25519_valid, x25519_public
from tests.reference.participant import CIPHERTEXT_BYTES, Message, bitmap
from tests.reference.setting import PHASES, Refused, Setting
from tests.reference.sharing import P, bytes_symbols, rebuild, symbol_bytes
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
        if keys[0] == keys[1] or set(keys) & set(known) or any(agreement(ANY_SCALAR, key) is None for key in keys):
            return False
        statement = setting.advertisement_statement(self.round_context, self.agreed.identity(sender), *keys)
        return self._signed(sender, message["signature"], statement)

    def _dealing(self, sender: int, message: Message) -> bool:
        ciphertexts, leaves, commitment = message["ciphertexts"], message["leaves"], message["seed_commitment"]
        if len(ciphertexts) != len(self.u1) - 1 or any(len(one) != CIPHERTEXT_BYTES for one in ciphertexts):
            return False
        if len(leaves) != 2 * len(self.u1) or any(len(one) != 32 for one in [*leaves, commitment]):
            return False
        root = commitments.root(self._entries(message))
        statement = setting.dealing_statement(self.context, self.agreed.identity(sender), root, commitment)
        return self._signed(sender, message["signature"], statement)

    @staticmethod
    def _entries(message: Message) -> list[bytes]:
        leaves = message["leaves"]
        return [commitments.pair_node(leaves[at], leaves[at + 1]) for at in range(0, len(leaves), 2)]

    def _upload(self, sender: int, message: Message) -> bool:
        statement = setting.upload_statement(self.context, self.agreed.identity(sender), message["sha256"])
        if not self._signed(sender, message["signature"], statement):
            return False
        try:
            unpack(message["packed"], self.numbers.dim, self.numbers.bits)
        except ValueError:
            return False
        return bool(sha256(message["packed"]).digest() == message["sha256"])

    def _signature(self, sender: int, message: Message) -> bool:
        return self._signed(sender, message["signature"], self.statement)

    def _reply(self, sender: int, message: Message) -> bool:
        if len(message["shares"]) != len(self.u2):
            return False
        for dealer, entry in zip(self.u2, message["shares"], strict=True):
            if "none" in entry:
                continue
            kind, name = (1, "self_mask_seed") if dealer in self.u3 else (0, "mask_key")
            if name not in entry or any(symbol >= P for symbol in bytes_symbols(entry[name]["share"])):
                return False
            position = self.u1.index(sender)
            leaf = commitments.share_leaf(
                commitments.KINDS[kind],
                self.context,
                self.agreed.identity(dealer),
                self.agreed.identity(sender),
                position + 1,
                entry[name]["salt"],
                entry[name]["share"],
            )
            if leaf != self.dealings[dealer]["leaves"][2 * position + kind]:
                return False
        return True

    # ------------------------------------------------------------ the ends of the phases

    def close(self) -> Any:
        """Fix the set. Returns what goes to whom; after Unmasking the sum of u3."""
        step = (self._fix_u1, self._fix_u2, self._fix_u3, self._fix_u4, self._open_sum)[PHASES.index(self.phase)]
        result = step(sorted(self.received))
        self.phase = (*PHASES[1:], "Completed")[PHASES.index(self.phase)]
        self.received = {}
        return result

    def _enough(self, have: int, needed: int) -> None:
        if have < needed:
            raise Refused("TooFewClients", self.phase, received=have, needed=needed)

    def _fix_u1(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.quorum)
        self.u1, self.keys, self.invited = senders, self.received, set(senders)
        self.threshold = self.numbers.threshold(len(senders))
        listed = [(self.agreed.identity(who), setting.advertisement_digest(**self.keys[who])) for who in senders]
        self.context = setting.cohort_context(self.round_context, listed)
        members = [{"participant": who, "advertisement": self.keys[who]} for who in senders]
        return {who: {"members": members} for who in senders}

    def _fix_u2(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.quorum)
        self.u2, self.dealings, self.invited = senders, self.received, set(senders)
        return {who: {"shares": [self._dealt(dealer, who) for dealer in senders if dealer != who]} for who in senders}

    def _dealt(self, dealer: int, receiver: int) -> Message:
        message = self.dealings[dealer]
        entries = self._entries(message)
        neighbours = [who for who in self.u1 if who != dealer]
        return {
            "dealer": dealer,
            "ciphertext": message["ciphertexts"][neighbours.index(receiver)],
            "root": commitments.root(entries),
            "path": commitments.path(entries, self.u1.index(receiver)),
            "seed_commitment": message["seed_commitment"],
            "signature": message["signature"],
        }

    def _fix_u3(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.numbers.min_survivors)
        numbers = self.numbers
        self.u3, self.invited = senders, set(senders)
        vectors = [unpack(upload["packed"], numbers.dim, numbers.bits) for upload in self.received.values()]
        self.masked_sum = add_vectors(vectors, numbers.dim, numbers.bits)
        named = [[self.agreed.identity(who) for who in members] for members in (self.u2, self.u3)]
        self.statement = setting.survivor_statement(self.context, *named)
        sets = {"u2": bitmap(set(self.u2), self.u1), "u3": bitmap(set(self.u3), self.u1)}
        return dict.fromkeys(senders, sets)

    def _fix_u4(self, senders: list[int]) -> dict[int, Message]:
        self._enough(len(senders), self.threshold)
        self.u4, self.invited = senders, set(senders)
        shown = senders[: self.threshold]
        request = {"signatures": [{"participant": who, **self.received[who]} for who in shown]}
        return dict.fromkeys(senders, request)

    def _open_sum(self, senders: list[int]) -> list[int]:
        held: dict[int, dict[int, list[int]]] = {dealer: {} for dealer in self.u2}
        for sender in senders:
            for dealer, entry in zip(self.u2, self.received[sender]["shares"], strict=True):
                for revealed in entry.values():
                    if revealed:
                        held[dealer][self.u1.index(sender) + 1] = bytes_symbols(revealed["share"])
        self._enough(min(len(shares) for shares in held.values()), self.threshold)
        masks: list[tuple[bytes, int]] = []
        for dealer, shares in held.items():
            points = sorted(shares)
            secret = symbol_bytes(rebuild(points, [shares[x] for x in points], self.threshold))
            masks += self._self_mask(dealer, secret) if dealer in self.u3 else self._pairwise_masks(dealer, secret)
        self.u5 = senders
        return add_masks(self.masked_sum, masks, self.numbers.bits)

    def _self_mask(self, dealer: int, secret: bytes) -> list[tuple[bytes, int]]:
        identity, numbers = self.agreed.identity(dealer), self.numbers
        seed = setting.self_mask_seed(secret, self.context, identity)
        if setting.seed_commitment(seed, self.context, identity) != self.dealings[dealer]["seed_commitment"]:
            raise Refused("ReconstructionFailed", self.phase, dealer=dealer)
        return [(setting.self_mask_key(seed, identity, numbers.bits, numbers.dim, self.context), -1)]

    def _pairwise_masks(self, dealer: int, secret: bytes) -> list[tuple[bytes, int]]:
        """What each survivor added for a dealer above it, or subtracted for one below, is taken back."""
        numbers = self.numbers
        private = setting.mask_private_key(secret, self.round_context, self.agreed.identity(dealer))
        if x25519_public(private) != self.keys[dealer]["mask_key"]:
            raise Refused("ReconstructionFailed", self.phase, dealer=dealer)
        masks = []
        for survivor in self.u3:
            low, high = (
                (self.agreed.identity(who), self.keys[who]["mask_key"]) for who in sorted((dealer, survivor))
            )
            shared = agreement(private, self.keys[survivor]["mask_key"]) or b""
            key = setting.pairwise_mask_key(shared, low, high, numbers.bits, numbers.dim, self.context)
            masks.append((key, -1 if survivor < dealer else 1))
        return masks
