"""The client certificate on disk: which pair is used, what is refused, and what a crash during a renewal leaves."""

from __future__ import annotations

import datetime
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client.credentials import RENEW_AT, RENEWED_FILE, CertificateError, load_certificate, load_identity, store_renewed
from runtime.key_files import KeyFileError, write_key_file
from runtime.text import minute
from tests.support.ends_and_full_disks import killed
from wire.certificates import CertificateAuthority, host_uri, new_key, private_pem

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
TLS = CertificateAuthority.make("clinic", NOW)


def pair(days: float = 90) -> tuple[bytes, bytes]:
    key = new_key()
    return TLS.issue_client(key.public_key(), host_uri("h"), NOW, days), private_pem(key)


def put(folder: Path, chain: bytes, key: bytes) -> tuple[Path, Path]:
    files = folder / "client.pem", folder / "client.key"
    for path, content in zip(files, (chain, key), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    return files


def test_a_pair_and_its_times(tmp_path: Path) -> None:
    chain, key = pair()
    one = load_certificate(*put(tmp_path, chain, key))
    assert (one.chain, one.key, one.names) == (chain, key, ("urn:sordino:host:h",))
    assert key.decode() not in repr(one)
    begins, ends = (NOW - datetime.timedelta(hours=1)).timestamp(), (NOW + datetime.timedelta(days=90)).timestamp()
    assert (one.not_before, one.not_after) == (begins, ends)
    assert one.renew_at() == ends - (ends - begins) / 3
    one.check_time(begins)
    with pytest.raises(CertificateError, match=r"expired on 2026-07-30 00:00 UTC .this machine's clock says 2026"):
        one.check_time(ends)
    with pytest.raises(CertificateError, match=r"valid from 2026-04-30 23:00 UTC on.*clock says 1970-01-01 00:00 UTC"):
        one.check_time(0.0)


def test_what_can_t_be_used(tmp_path: Path) -> None:
    chain, key = pair()
    cases = [
        (chain, pair()[1], "don't belong together"),
        (b"garbage", key, "no certificate in PEM"),
        (b"", key, "no certificate in PEM"),
        (chain, b"garbage", "no unencrypted private key"),
        (chain * 200, key, "larger than"),
    ]
    for first, second, expected in cases:
        with pytest.raises(CertificateError, match=expected) as error:
            load_certificate(*put(tmp_path, first, second))
        assert "garbage" not in str(error.value)
    files = put(tmp_path, chain, key)
    files[1].chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_certificate(*files)
    files[1].chmod(0o600)
    files[0].unlink()
    with pytest.raises(CertificateError, match="No such file"):
        load_certificate(*files)


def test_the_one_that_is_valid_for_longer_is_used(tmp_path: Path) -> None:
    files = put(tmp_path, *pair(30))
    chain, key = pair(60)
    store_renewed(files[0], chain, key)
    assert (tmp_path / RENEWED_FILE).stat().st_mode & 0o777 == 0o600
    assert load_certificate(*files).chain == chain
    newest = pair(90)  # put there by hand
    put(tmp_path, *newest)
    assert load_certificate(*files).chain == newest[0]


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_crash_while_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Two files written one after the other would leave a key that isn't the certificate's."""
    old = pair(30)
    files = put(tmp_path, *old)
    for chain, key in (pair(60), pair(90)):  # the first renewal, and one over an older renewed file
        before = load_certificate(*files)
        with monkeypatch.context() as patch:
            patch.setattr(os, step, killed)
            with pytest.raises(KeyboardInterrupt):
                store_renewed(files[0], chain, key)
        assert load_certificate(*files) == before
        store_renewed(files[0], chain, key)
        assert load_certificate(*files).chain == chain


def test_a_renewed_file_that_is_damaged_or_isn_t_a_pair(tmp_path: Path) -> None:
    old = pair(30)
    files = put(tmp_path, *old)
    with pytest.raises(CertificateError, match="don't belong together"):
        store_renewed(files[0], pair()[0], pair()[1])
    (tmp_path / RENEWED_FILE).write_bytes(b"half")
    (tmp_path / RENEWED_FILE).chmod(0o600)
    assert load_certificate(*files).chain == old[0]


def test_times_that_no_calendar_has() -> None:
    assert minute(1e30) == f"second {1e30:.0f} since 1970"
    assert RENEW_AT == 1 / 3


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
    # Also in a report with all locals of all frames, as error collectors make it.
    report = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    content = path.read_bytes()
    for at in range(0, max(0, len(content) - 12), 8):
        piece = content[at : at + 12]
        if b"PRIVATE" not in piece and b"-" not in piece:
            assert repr(piece)[2:-1] not in report
