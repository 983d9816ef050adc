"""Compares a connection's certificate with the identity that a session is opened for.

TLS has checked by then that the certificate is valid and from the study's TLS authority. It names one identity
(participants enrolled by code) or one host (those made with the study): no other identity may use the connection,
even with a valid proof.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import grpc

from secagg.roster import Roster
from server.sessions import SessionRefused
from wire.certificates import HOST_URI, IDENTITY_URI, host_uri, identity_uri
from wire.open_calls import Caller, CallRefused

CALLS_BESIDE: Final = 8  # health checks, and calls of a connection that just broke off
_NAMES: Final = "x509_subject_alternative_name"  # as gRPC hands them over


def most_calls(participants: int) -> int:
    """Calls at the same time; more are turned away unread.

    As many as all certificates together may have open, so that those of one never keep out another.
    """
    # Each participant has its own certificate and may have its host's.
    return (3 + 2 * CALLS_BESIDE) * participants + 64


def check_certificate(auth_context: Mapping[str, Iterable[bytes]], identity: bytes, host: str) -> None:
    """Whether a connection, by its `grpc.ServicerContext.auth_context`, may open a session for an identity of 32 bytes.

    ``host``: under which the roster lists it. Raises SessionRefused: the certificate is another identity's and host's.
    """
    allowed = {identity_uri(identity).encode(), host_uri(host).encode()}
    if allowed.isdisjoint(auth_context.get(_NAMES, ())):
        raise SessionRefused("the certificate is that of another identity")


class CertificateHolders:
    """Who may call at all: certificates of those on the roster in use, each with as many calls as it can need."""

    def __init__(self, roster: Callable[[], Roster]) -> None:
        self._roster = roster
        self._counted: Roster | None = None
        self._hosts: Counter[str] = Counter()

    def __call__(self, context: Any, method: str) -> Caller:
        """Of `wire.open_calls.Admit`; raises `CallRefused` where the certificate names no one on the roster."""
        roster = self._roster()
        if roster is not self._counted:
            self._counted, self._hosts = roster, Counter(entry.host for entry in roster.entries)
        for raw in context.auth_context().get(_NAMES, ()):
            name = raw.decode("utf-8", "replace")
            participants = self._hosts[name.removeprefix(HOST_URI)] if name.startswith(HOST_URI) else 0
            if name.startswith(IDENTITY_URI):
                with contextlib.suppress(ValueError):  # not hexadecimal
                    participants = int(bytes.fromhex(name.removeprefix(IDENTITY_URI)) in roster.positions)
            if participants:  # each has a session, an upload and a download
                return Caller(name, 3 * participants + CALLS_BESIDE)
        raise CallRefused(
            grpc.StatusCode.PERMISSION_DENIED,
            f"the certificate names nobody on version {roster.version} of the study's roster: it was revoked or never "
            "enrolled; ask the study's authority",
        )
