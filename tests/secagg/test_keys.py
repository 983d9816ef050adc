"""Keys: what the test vectors, which hold every derived key and statement byte for byte, don't say of them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg import keys
from secagg.keys import AgreementKey, IdentityKey, is_low_order
from tests.support.attempts_in_memory import identities, keyed_source


def test_an_honest_key_is_not_of_low_order() -> None:
    source = keyed_source("agreement")
    for _ in range(20):
        one, other = AgreementKey(source(32)), AgreementKey(source(32))
        assert not is_low_order(one.public)
        assert one.agree(other.public) == other.agree(one.public)


def test_identities_sign_and_hide() -> None:
    private = keyed_source("identity")(32)
    identity = IdentityKey.generate(lambda count: private[:count])
    assert identity.public == Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    Ed25519PrivateKey.from_private_bytes(private).public_key().verify(identity.sign(b"text"), b"text")
    assert repr(identity) == f"IdentityKey({identity.public.hex()[:12]}…)"
    assert identities(3) == identities(3)


def test_hkdf_is_that_of_the_rfc() -> None:
    """RFC 5869, test case 1, first 32 bytes; and test case 3 without salt and info."""
    ikm, salt = b"\x0b" * 22, bytes(range(13))
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert keys.hkdf(ikm, salt, bytes(range(0xF0, 0xFA)), 32).hex() == okm
    assert keys.hkdf(ikm, b"", b"", 32).hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    for length in (0, 33):
        with pytest.raises(ValueError):
            keys.hkdf(ikm, salt, b"", length)
