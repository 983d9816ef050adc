"""Whose certificate a connection was made with, held against the identity that a session is opened for.

TLS has checked by then that the certificate is one of the study's TLS authority and valid. It names one identity
(participants that were enrolled by code) or one host (those made with the study): no other may use the connection,
whatever it can prove about itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from server.sessions import SessionRefused

IDENTITY_URI: Final = "urn:sordino:identity:"
HOST_URI: Final = "urn:sordino:host:"
_NAMES: Final = "x509_subject_alternative_name"  # as gRPC hands them over


def check_certificate(auth_context: Mapping[str, Iterable[bytes]], identity: bytes, host: str) -> None:
    """Whether a connection may open a session for an identity.

    Args:
        auth_context: of `grpc.ServicerContext.auth_context`.
        identity: that the session is opened for, 32 bytes.
        host: under which the roster lists it.

    Raises:
        SessionRefused: the certificate is that of another identity and another host.
    """
    allowed = {f"{IDENTITY_URI}{identity.hex()}".encode(), f"{HOST_URI}{host}".encode()}
    if allowed.isdisjoint(auth_context.get(_NAMES, ())):
        raise SessionRefused("the certificate is that of another identity")
