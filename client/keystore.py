"""Identity keys on disk: Ed25519 private keys, PKCS8 PEM, readable by their owner alone."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from runtime.key_files import KeyFileError, read_key_file
from secagg.keys import IdentityKey


def load_identity(path: Path) -> IdentityKey:
    """Read an identity key.

    Raises:
        KeyFileError: missing, open to others in one of the ways of `runtime.key_files`, or not an unencrypted Ed25519
            private key in PEM.
    """
    try:
        private = load_pem_private_key(read_key_file(path), password=None)
    except KeyFileError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not chained, and the content in no local: what a parser says, or a report with all locals, may quote it.
        raise KeyFileError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key")
    return IdentityKey(private)
