"""Identity keys on disk: Ed25519 private keys, PKCS8 PEM, readable by their owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from secagg.keys import IdentityKey


class KeyFileError(ValueError):
    """A key file can't be used; names the file and what to change, never its content."""


def load_identity(path: Path) -> IdentityKey:
    """Read an identity key.

    Raises:
        KeyFileError: missing, readable by others, or not an unencrypted Ed25519 private key in PEM.
    """
    try:
        mode = path.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyFileError(f"{path} can be read by others: run chmod 600 on it")
        content = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    try:
        private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise KeyFileError(f"{path} is not an unencrypted private key in PEM") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key")
    return IdentityKey(private)
