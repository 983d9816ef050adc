"""An identity is read from a key file or refused in a sentence; nothing of the file is ever quoted."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client.keystore import KeyFileError, load_identity
from runtime.key_files import write_key_file


def pem(private: Any, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))


def cut(private: Any) -> bytes:
    lines = pem(private).splitlines(keepends=True)
    return lines[0] + lines[1][:40] + b"\n" + lines[2]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "of another kind": (lambda: pem(ec.generate_private_key(ec.SECP256R1())), "is not an Ed25519 key"),
    "for agreements": (lambda: pem(X25519PrivateKey.generate()), "is not an Ed25519 key"),
    "encrypted": (lambda: pem(Ed25519PrivateKey.generate(), b"password"), "not an unencrypted private key"),
    "cut": (lambda: cut(Ed25519PrivateKey.generate()), "not an unencrypted private key"),
    "raw": (lambda: Ed25519PrivateKey.generate().private_bytes_raw(), "not an unencrypted private key"),
    "empty": (lambda: b"", "not an unencrypted private key"),
}


def test_a_key_is_read(tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    write_key_file(tmp_path / "a.key", pem(private))
    identity = load_identity(tmp_path / "a.key")
    assert identity.public == private.public_key().public_bytes_raw()
    assert private.private_bytes_raw().hex()[:16] not in repr(identity)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path: Path, case: str) -> None:
    make, told = REFUSED[case]
    path = tmp_path / "a.key"
    write_key_file(path, make())
    with pytest.raises(KeyFileError) as caught:
        load_identity(path)
    assert str(caught.value).startswith(f"{path} ")
    assert told in str(caught.value)
    # Also where somebody reports an error with all locals of all frames, as error collectors do.
    report = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    content = path.read_bytes()
    for at in range(0, max(0, len(content) - 12), 8):
        piece = content[at : at + 12]
        if b"PRIVATE" not in piece and b"-" not in piece:
            assert repr(piece)[2:-1] not in report


def test_others_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    write_key_file(path, pem(Ed25519PrivateKey.generate()))
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_identity(path)
