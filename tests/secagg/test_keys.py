"""Keys: agreements that can't be forced, secrets that are hashed for their purpose, and signatures that say theirs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import keys
from secagg.errors import InvalidKey
from secagg.keys import AgreementKey, IdentityKey, is_low_order
from secagg.shamir import random_symbols
from tests.support.attempts_in_memory import LOW_ORDER, identities, keyed_source


@pytest.mark.parametrize("key", LOW_ORDER, ids=[key.hex()[:8] for key in LOW_ORDER])
def test_low_order_points_are_refused_whatever_the_private_key(key: bytes) -> None:
    assert is_low_order(key)
    assert is_low_order(key[:31] + bytes([key[31] | 0x80]))  # the top bit is ignored
    for private in (b"a" * 32, b"b" * 32):
        with pytest.raises(InvalidKey, match="low order"):
            AgreementKey(private).agree(key)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(InvalidKey):
        AgreementKey(b"a" * 32).agree(bytes(length))
    assert is_low_order(b"k" * length)


def test_an_honest_key_is_not_of_low_order() -> None:
    source = keyed_source("agreement")
    for _ in range(20):
        one, other = AgreementKey(source(32)), AgreementKey(source(32))
        assert not is_low_order(one.public)
        assert one.agree(other.public) == other.agree(one.public)


def test_both_secrets_are_hashed_for_their_purpose_owner_and_context() -> None:
    symbols, changed = random_symbols(16, keyed_source("symbols")), random_symbols(16, keyed_source("others"))
    a, b, c, d = b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32
    made = {
        function(which, context, identity)
        for function in (keys.mask_private_key, keys.self_mask_seed)
        for which in (symbols, changed)
        for context in (a, b)
        for identity in (c, d)
    }
    assert len(made) == 16
    assert {len(one) for one in made} == {32}
    commitments = {
        keys.seed_commitment(seed, context, identity) for seed in (a, b) for context in (a, b) for identity in (c, d)
    }
    assert len(commitments) == 8
    assert not commitments & made


def test_symbols_as_bytes() -> None:
    symbols = np.arange(250, 266, dtype=np.uint16)
    assert keys.secret_bytes(symbols) == b"".join(int(one).to_bytes(2, "little") for one in symbols)


def test_identities_sign_and_hide() -> None:
    private = keyed_source("identity")(32)
    identity = IdentityKey.generate(lambda count: private[:count])
    assert identity.public == Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    Ed25519PrivateKey.from_private_bytes(private).public_key().verify(identity.sign(b"text"), b"text")
    assert repr(identity) == f"IdentityKey({identity.public.hex()[:12]}…)"
    assert identities(3) == identities(3)


A, B = (b"a" * 32, b"1" * 32), (b"b" * 32, b"2" * 32)
PAIRWISE = {"shared": b"s" * 32, "low": A, "high": B, "bits": 16, "dim": 10, "cohort_context": b"c" * 32, "vector": "x"}
SELF = {"seed": b"s" * 32, "identity": A[0], "bits": 16, "dim": 10, "cohort_context": b"c" * 32, "vector": "x"}
CHANGED = {
    "shared": b"S" * 32,
    "seed": b"S" * 32,
    "low": B,
    "high": A,
    "identity": B[0],
    "bits": 17,
    "dim": 11,
    "cohort_context": b"C" * 32,
    "vector": "y",
}


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_pairwise_mask_is_bound_to_everything(name: str) -> None:
    """Two participants whose contexts differ in anything have masks that don't cancel."""
    assert set(inspect.signature(keys.pairwise_mask_key).parameters) == PAIRWISE.keys()
    one = keys.pairwise_mask_key(**PAIRWISE)
    assert len(one) == 16
    assert keys.pairwise_mask_key(**{**PAIRWISE, name: CHANGED[name]}) != one


@pytest.mark.parametrize("name", SELF)
def test_a_self_mask_is_bound_to_everything(name: str) -> None:
    assert set(inspect.signature(keys.self_mask_key).parameters) == SELF.keys()
    assert keys.self_mask_key(**{**SELF, name: CHANGED[name]}) != keys.self_mask_key(**SELF)


def test_a_pairwise_mask_key_is_bound_to_the_public_keys_and_not_only_to_the_identities() -> None:
    other = keys.pairwise_mask_key(**{**PAIRWISE, "low": (A[0], b"9" * 32)})
    assert other != keys.pairwise_mask_key(**PAIRWISE)
    assert keys.self_mask_key(**SELF) != keys.pairwise_mask_key(**PAIRWISE)


def test_a_channel_opens_only_what_was_sealed_for_its_ends_direction_and_cohort() -> None:
    sealed = keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).seal(b"text")
    assert keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).open(sealed) == b"text"
    for shared, sender, receiver, context in (
        (b"S" * 32, A, B, b"c" * 32),
        (b"s" * 32, B, A, b"c" * 32),
        (b"s" * 32, A, (B[0], A[1]), b"c" * 32),
        (b"s" * 32, (A[0], B[1]), B, b"c" * 32),
        (b"s" * 32, A, B, b"C" * 32),
    ):
        assert keys.ShareChannel(shared, sender, receiver, context).open(sealed) is None
    for wrong in (b"", sealed[:-1], sealed + b"x", bytes(len(sealed))):
        assert keys.ShareChannel(b"s" * 32, A, B, b"c" * 32).open(wrong) is None


def test_a_signature_for_one_purpose_is_worth_nothing_for_another() -> None:
    x, y, z, w = (bytes([at]) * 32 for at in range(4))
    statements = [
        keys.session_statement("study", x, y, z),
        keys.advertisement_statement(x, y, z, w),
        keys.advertisement_statement(x, y, w, z),
        keys.dealing_statement(x, y, z, w),
        keys.dealing_statement(x, y, w, z),
        keys.upload_statement(x, y, z, w),
        keys.upload_statement(x, y, w, z),
        keys.consistency_statement(x, y, z),
        keys.consistency_statement(x, z, y),
    ]
    assert len(set(statements)) == len(statements)
    labels = {statement[8 : 8 + int.from_bytes(statement[:8], "little")] for statement in statements}
    assert len(labels) == 5


def test_sets_are_bound_to_their_name_and_cohort() -> None:
    one = keys.set_digest("u2", b"c" * 32, [A[0], B[0]])
    others = [
        keys.set_digest("u3", b"c" * 32, [A[0], B[0]]),
        keys.set_digest("u2", b"C" * 32, [A[0], B[0]]),
        keys.set_digest("u2", b"c" * 32, [A[0]]),
        keys.set_digest("u2", b"c" * 32, []),
    ]
    assert len({one, *others}) == 5


def test_hkdf_is_that_of_the_rfc() -> None:
    """RFC 5869, test case 1, first 32 bytes; and test case 3 without salt and info."""
    ikm, salt = b"\x0b" * 22, bytes(range(13))
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert keys.hkdf(ikm, salt, bytes(range(0xF0, 0xFA)), 32).hex() == okm
    assert keys.hkdf(ikm, b"", b"", 32).hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    for length in (0, 33):
        with pytest.raises(ValueError):
            keys.hkdf(ikm, salt, b"", length)
