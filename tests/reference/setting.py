"""What both sides of an attempt agree on, and every statement and key that is derived from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tests.reference import degrees
from tests.reference.hashing import hkdf_sha256, labelled, labelled_hash, u64
from tests.reference.sharing import P
from tests.reference.vectors_mod_2b import LARGEST_BITS, word_bytes

Message = dict[str, Any]
PHASES = ("AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "ConsistencyCheck", "Unmasking")
VERSION = 1
GRAPHS = ("complete", "harary")
ADVERSARIES = ("curious", "semi-malicious", "malicious")
KEY_AGREEMENTS = ("x25519", "x25519-mlkem768")


class Refused(Exception):
    """A message or a set that breaks a rule: the kind of error, the phase, and what else a vector states."""

    def __init__(self, error: str, phase: str = "", **facts: Any) -> None:
        super().__init__(f"{error} {phase} {facts}")
        self.error, self.phase, self.facts = error, phase, facts

    def stated(self) -> dict[str, object]:
        return {"error": self.error, **({"phase": self.phase} if self.phase else {}), **self.facts}


@dataclass(frozen=True)
class Numbers:
    """The numbers of the public plan that the protocol rests on."""

    cohort: int
    colluders: int
    min_survivors: int
    quorum: int
    bits: int
    dim: int
    graph: str = "complete"
    adversary: str = "malicious"
    key_agreement: str = "x25519"
    released: tuple[int, ...] = ()  # for each size of u3 from min_survivors up: noise seeds that are revealed, as bits

    def __post_init__(self) -> None:
        if not (
            2 <= self.cohort < P
            and 0 <= self.colluders < self.cohort
            and 1 <= self.bits <= LARGEST_BITS
            and self.dim >= 1
            and self.dim * word_bytes(self.bits) <= (2**32 - 2) * 16
            and self.majority(self.cohort) <= self.min_survivors <= self.quorum <= self.cohort
            and self.colluders < self.min_survivors
            and self.graph in GRAPHS
            and self.adversary in ADVERSARIES
            and self.key_agreement in KEY_AGREEMENTS
            and len(self.released) in (0, self.cohort - self.min_survivors + 1)
            and all(0 <= bits < 2**16 for bits in self.released)
        ):
            raise Refused("InvalidParameters")

    def majority(self, u1: int) -> int:
        """Signatures needed, and shares on the complete graph: floor((|u1| + A) / 2) + 1, with A >= 2 below 64."""
        a = max(self.colluders, 2) if u1 < 64 else self.colluders
        return (u1 + a) // 2 + 1

    @property
    def liars(self) -> int:
        """Of more participants than this that report the same, one is honest."""
        return max(self.colluders, 2) if self.cohort < 64 else self.colluders

    def sharing(self, u1: int) -> tuple[int, int]:
        """Degree and threshold for this number of members: k-regular from 64 on, if a degree is safe."""
        if self.graph == "harary" and u1 >= 64:
            drops = max(0, u1 - self.min_survivors)
            found = degrees.k_regular(u1, max(self.colluders, 2), drops, self.adversary)
            if found:
                return found
        return u1 - 1, self.majority(u1)

    @property
    def signed(self) -> bool:
        """Whether the survivor sets are: not if the coordinator is trusted to send the same sets to all."""
        return self.adversary == "malicious"

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(phase for phase in PHASES if self.signed or phase != "ConsistencyCheck")

    def encoded(self) -> bytes:
        """Six numbers of 8 bytes, in the order of the fields, then graph, adversary and, if it isn't the first, the key
        agreement by their places in the lists. Where noise is released: the key agreement, 1 (an epoch has one round),
        and the bits.
        """
        numbers = (self.cohort, self.colluders, self.min_survivors, self.quorum, self.bits, self.dim)
        names = [GRAPHS.index(self.graph), ADVERSARIES.index(self.adversary)]
        if self.hybrid or self.released:
            names.append(KEY_AGREEMENTS.index(self.key_agreement))
        if self.released:
            names += [1, *self.released]
        return b"".join(map(u64, (*numbers, *names)))

    @property
    def noise_seeds(self) -> int:
        """How many each participant draws: enough for every bit."""
        return next(number for number in range(17) if all(bits < 2**number for bits in self.released))

    def surplus(self, survivors: int) -> list[int]:
        """The numbers of the seeds that are revealed where u3 has so many members."""
        if not self.released:
            return []
        bits = self.released[survivors - self.min_survivors]
        return [number for number in range(16) if bits & 2**number]

    @property
    def hybrid(self) -> bool:
        """Whether keys are X25519 and ML-KEM-768 together."""
        return self.key_agreement != "x25519"


def roster_digest(study: str, version: int, entries: Iterable[tuple[bytes, str]], terms: bytes, before: bytes) -> bytes:
    """SHA-256 of what the authority signs of a roster without a lottery; a digest is zeros where there is nothing."""
    fields = [field for identity, host in entries for field in (identity, host.encode())]
    listed = sha256(b"".join(u64(len(field)) + field for field in fields)).digest()
    return labelled_hash("sordino/v1/roster", study.encode(), u64(version), listed, b"", b"", terms, before)


@dataclass(frozen=True)
class Setting:
    """An attempt before anybody has said anything. Participants are named by their position in the roster."""

    study: str
    roster_version: int
    roster: tuple[tuple[bytes, str], ...]  # (identity, host), ascending by identity
    round: int
    attempt: int
    study_digest: bytes
    model_digest: bytes
    previous_roster: bytes
    newest: bytes  # the authority's statement that this roster is the newest
    numbers: Numbers
    sharing: tuple[int, int] | None = None  # degree and threshold of this attempt, in the place of the rule's

    def sharing_of(self, u1: int) -> tuple[int, int]:
        return self.sharing or self.numbers.sharing(u1)

    def identity(self, who: int) -> bytes:
        return self.roster[who][0]

    def roster_digest(self) -> bytes:
        """The roster is signed with the study document in force and the roster before."""
        return roster_digest(self.study, self.roster_version, self.roster, self.study_digest, self.previous_roster)

    def round_context(self) -> bytes:
        """What advertisements are signed over."""
        agreed = u64(VERSION), self.study.encode(), u64(self.round), u64(self.attempt), self.study_digest
        roster = u64(self.roster_version), self.roster_digest(), self.newest
        return labelled_hash("sordino/v1/round-context", *agreed, self.numbers.encoded(), self.model_digest, *roster)


def cohort_context(round_context: bytes, members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Members are (identity, digest of the advertisement), ascending."""
    return labelled_hash("sordino/v1/cohort-context", round_context, *(part for member in members for part in member))


def advertisement_digest(mask_key: bytes, channel_key: bytes, signature: bytes) -> bytes:
    """It stands for an advertisement in messages to the whole cohort."""
    return labelled_hash("sordino/v1/advertisement", mask_key, channel_key, signature)


def set_digest(name: str, context: bytes, identities: Iterable[bytes]) -> bytes:
    """Of u2 or u3, identities ascending."""
    return labelled_hash("sordino/v1/set", name.encode(), context, *identities)


def request_digest(signatures: Iterable[tuple[int, bytes]], uploads: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Of an unmasking request: what a participant writes down before it answers. Uploads are (SHA-256, signature)."""
    shown = [part for who, signature in signatures for part in (u64(who), signature)]
    evidence = [part for upload in uploads for part in upload]
    return labelled_hash("sordino/v1/unmasking-request", u64(len(shown) // 2), *shown, *evidence)


def unsigned_request_digest(u2: bytes, u3: bytes) -> bytes:
    """Of survivor sets (bitmaps) that ask for shares themselves."""
    return labelled_hash("sordino/v1/unsigned-unmasking-request", u2, u3)


# ---------------------------------------------------------------- what is signed


def session_statement(study: str, identity: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return labelled("sordino/v1/session", study.encode(), identity, client_nonce, server_nonce)


def advertisement_statement(round_context: bytes, identity: bytes, mask_key: bytes, channel_key: bytes) -> bytes:
    """Both keys in their roles."""
    mask, channel = (sha256(key).digest() if len(key) > 32 else key for key in (mask_key, channel_key))
    roles = (b"mask", mask, b"channel", channel)
    return labelled("sordino/v1/advertise-keys", round_context, identity, *roles)


def dealing_statement(context: bytes, identity: bytes, root: bytes, seed_commitment: bytes) -> bytes:
    return labelled("sordino/v1/share-keys", context, identity, root, seed_commitment)


def upload_statement(context: bytes, identity: bytes, digest: bytes, u2: Iterable[bytes]) -> bytes:
    """SHA-256 of the upload, and the set it was masked in, as identities, ascending."""
    return labelled("sordino/v1/masked-input", context, identity, digest, set_digest("u2", context, u2))


def survivor_statement(context: bytes, u2: Iterable[bytes], u3: Iterable[bytes]) -> bytes:
    """The same bytes for every signer; the sets as identities, ascending."""
    return labelled(
        "sordino/v1/consistency-check", context, set_digest("u2", context, u2), set_digest("u3", context, u3)
    )


# ---------------------------------------------------------------- what is derived


def mask_private_key(secret: bytes, round_context: bytes, identity: bytes) -> bytes:
    """X25519 private key from the 16 symbols that are shared."""
    return labelled_hash("sordino/v1/mask-private-key", round_context, identity, secret)


def self_mask_seed(secret: bytes, context: bytes, identity: bytes) -> bytes:
    """Seed from the 16 symbols that are shared."""
    return labelled_hash("sordino/v1/self-mask-seed", context, identity, secret)


def seed_commitment(seed: bytes, context: bytes, identity: bytes) -> bytes:
    """Published by the dealer."""
    return labelled_hash("sordino/v1/self-mask-seed-commitment", context, identity, seed)


def noise_commitment(seed: bytes, number: int, context: bytes, identity: bytes) -> bytes:
    """Behind the packed vector of an upload, one for each seed."""
    return labelled_hash("sordino/v1/noise-commitment", context, identity, u64(number), seed)


def self_mask_key(seed: bytes, identity: bytes, bits: int, dim: int, context: bytes, vector: str = "input") -> bytes:
    info = labelled("sordino/v1/self-mask", vector.encode(), identity, u64(bits), u64(dim), context)
    return hkdf_sha256(seed, context, info, 16)


Named = tuple[bytes, bytes]  # identity, public key


def pairwise_mask_key(
    shared: bytes, low: Named, high: Named, bits: int, dim: int, context: bytes, vector: str = "input"
) -> bytes:
    """AES-128 key of the mask of two participants, the one with the smaller identity first."""
    ends = (low[0], low[1][:32], high[0], high[1][:32])
    info = labelled("sordino/v1/pairwise-mask", vector.encode(), *ends, u64(bits), u64(dim), context)
    return hkdf_sha256(shared, context, info, 16)


def channel_key(shared: bytes, sender: Named, receiver: Named, context: bytes, ciphertext: bytes = b"") -> bytes:
    """AES-256 key of one direction between two neighbours; of hybrid keys with the ciphertext of its encapsulation."""
    ends = (sender[0], sender[1][:32], receiver[0], receiver[1][:32])
    more = [ciphertext] if ciphertext else []
    return hkdf_sha256(shared, context, labelled("sordino/v1/share-channel", *ends, context, *more), 32)


def sealed_share_associated_data(context: bytes, sender: bytes, receiver: bytes, wrapped: bytes = b"") -> bytes:
    """Authenticated with a sealed pair of shares; sender and receiver by identity. ``wrapped``: the seed beside it."""
    return labelled("sordino/v1/sealed-share", context, sender, receiver, *([wrapped] if wrapped else []))
