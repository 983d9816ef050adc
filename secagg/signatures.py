"""Ed25519 verification, as strict as libsodium's: the only rule by which each side accepts or refuses a signature.

Beyond [RFC 8032]'s s below the group's order, the key must be canonical, and neither the key nor R of small order: with
a key of small order one signature can be valid for every message. The equation is checked without the cofactor.
"""

from typing import Final

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


def verify_signature(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a signature (64 bytes) is valid for a key (32 bytes) and any message; False for malformed arguments."""
    # The library doesn't check the lengths: it would read past a short key, and treat the message's first bytes as the
    # end of a short signature.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True
