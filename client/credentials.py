"""Credentials on disk: identity keys, and the TLS client certificate with which this process opens sessions.

The certificate and its key are in the host's folder. A renewed pair is written beside them as one file, by one rename,
so after a crash at any moment there is a matching pair, old or new. The pair that is valid for longer is used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from runtime.durable import replace_durably
from runtime.failure import InputFailure
from runtime.key_files import KeyFileError, read_key_file
from runtime.text import minute
from secagg.keys import IdentityKey
from wire.certificates import UNREADABLE, CertificateError, read_ed25519_key

RENEWED_FILE: Final = "renewed.pem"
LARGEST_CHAIN: Final = 64 * 1024
RENEW_AT: Final = 1 / 3  # of the validity that is left
SOON_S: Final = 14 * 86_400.0  # before its end, `sordino doctor` warns of one that isn't renewed


@dataclass(frozen=True)
class ClientCertificate:
    """A chain with the key of its first certificate, both PEM; times in seconds since 1970; URIs of its SAN."""

    chain: bytes
    key: bytes = field(repr=False)
    not_before: float
    not_after: float
    names: tuple[str, ...]
    path: Path

    def check_time(self, now: float) -> None:
        """Raises CertificateError where it isn't valid yet, or no longer, by this machine's clock; with both times."""
        remedy = (
            "ask the study's authority for a new join code and join again into a new folder, with --ledger and the old "
            "folder's ledger.sqlite: the new identity continues with the same budget"
        )
        check_validity(str(self.path), self.not_before, self.not_after, now, remedy)

    def renew_at(self) -> float:
        """When a third of its validity is left."""
        return self.not_after - (self.not_after - self.not_before) * RENEW_AT


def check_validity(which: str, begins: float, ends: float, now: float, remedy: str) -> None:
    """As `ClientCertificate.check_time`, of any certificate; ``remedy``: what to do about one that has expired."""
    says = f"this machine's clock says {minute(now)}"
    if now < begins:
        raise CertificateError(
            f"the certificate {which} is valid from {minute(begins)} on, and {says}: the clock may be wrong, set it"
        )
    if now >= ends:
        raise CertificateError(
            f"the certificate {which} expired on {minute(ends)} ({says}): unless the clock is wrong, {remedy}"
        )


def load_certificate(certificate: Path, key: Path) -> ClientCertificate:
    """The pair in a host's folder, or the renewed one beside it if that is valid for longer.

    Raises CertificateError or `runtime.key_files.KeyFileError` if neither can be used.
    """
    found: list[ClientCertificate] = []
    errors: list[Exception] = []
    renewed = certificate.with_name(RENEWED_FILE)
    for chain_file, key_file in [(certificate, key)] + ([(renewed, renewed)] if renewed.exists() else []):
        try:
            found.append(_read_pair(chain_file, key_file))
        except (CertificateError, KeyFileError) as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return max(found, key=lambda one: one.not_after)


def store_renewed(certificate: Path, chain: bytes, key: bytes) -> None:
    """Keep a renewed pair beside ``certificate``, the file that host.toml names; durable when this returns.

    Raises OSError if the folder can't be written (the previous pair stays in use), CertificateError if it isn't a pair.
    """
    _pair(chain, key, certificate)
    replace_durably(certificate.with_name(RENEWED_FILE), key + chain)


def _read_pair(chain_file: Path, key_file: Path) -> ClientCertificate:
    key = read_key_file(key_file)
    try:
        with chain_file.open("rb") as file:
            chain = file.read(LARGEST_CHAIN + 1)
    except OSError as error:
        raise CertificateError(f"{chain_file}: {error.strerror}") from error
    if len(chain) > LARGEST_CHAIN:
        raise CertificateError(f"{chain_file} is larger than a certificate with its chain can be")
    return _pair(chain, key, chain_file)


def _pair(chain: bytes, key: bytes, path: Path) -> ClientCertificate:
    try:
        certificates = x509.load_pem_x509_certificates(chain)
    except UNREADABLE as error:
        raise CertificateError(f"{path} holds no certificate in PEM: copy it again") from error
    try:
        private: PrivateKeyTypes = load_pem_private_key(key, password=None)
    except UNREADABLE:
        # Not chained: a parser's message about an unreadable file may quote the file.
        raise CertificateError(f"the key of {path} is no unencrypted private key in PEM") from None
    leaf = certificates[0]
    try:
        pair = _public(private.public_key()) == _public(leaf.public_key())
    except UNREADABLE:
        raise CertificateError(f"{path} or its key is of an unknown kind: copy both again") from None
    if not pair:
        raise CertificateError(f"{path} and its key don't belong together: copy both from the same place")
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = tuple(alternatives.get_values_for_type(x509.UniformResourceIdentifier))
    except (x509.ExtensionNotFound, *UNREADABLE):
        names = ()
    return ClientCertificate(
        chain=b"".join(one.public_bytes(Encoding.PEM) for one in certificates),
        key=key,
        not_before=leaf.not_valid_before_utc.timestamp(),
        not_after=leaf.not_valid_after_utc.timestamp(),
        names=names,
        path=path,
    )


def _public(key: object) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))  # type: ignore[attr-defined]


def valid_until(pair: ClientCertificate, ca: Path, remedy: str, *, soon: bool = True) -> str:
    """Until when a certificate holds.

    Raises CertificateError: not now; InputFailure: not for long, or another authority signed it.
    """
    leaf, *_ = x509.load_pem_x509_certificates(pair.chain)
    if not any(_issued(leaf, one) for one in x509.load_pem_x509_certificates(ca.read_bytes())):
        raise InputFailure(f"{pair.path} wasn't signed by the TLS authority in {ca}: copy both from one place.")
    now = time.time()
    check_validity(str(pair.path), pair.not_before, pair.not_after, now, remedy)
    if soon and now + SOON_S >= pair.not_after:
        raise InputFailure(f"{pair.path} expires on {minute(pair.not_after)}: {remedy}.")
    return f"valid until {minute(pair.not_after)}"


def _issued(leaf: object, authority: object) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)  # type: ignore[attr-defined]
    except Exception:  # a wrong name, key or signature: three types
        return False
    return True


def load_identity(path: Path) -> IdentityKey:
    """Read an identity key; raises KeyFileError unless it is a private, unencrypted Ed25519 key in PEM."""
    return IdentityKey(read_ed25519_key(path))
