"""Automatic renewal of the TLS client certificate while participants take part.

When a third of its validity is left, this makes a new key and a request that an identity of this host signs. It keeps
both until the answer comes, so a restarted process sends the same request. The new certificate is written by one rename
and used from the next session on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Final

import structlog

from client.connection import open_channel
from client.credentials import ClientCertificate, load_certificate, store_renewed
from client.enrolment import EnrolmentRefused, EnrolmentUnavailable, ask, check_answer
from client.settings import HostSettings
from runtime.durable import replace_durably
from runtime.key_files import KeyFileError, read_key_file
from runtime.text import minute
from secagg.keys import IdentityKey
from wire import coordinator_pb2 as pb
from wire.certificates import CertificateError, host_uri, new_key, private_pem
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request

log = structlog.get_logger()

PENDING_FILE: Final = "renewal.json"
"""Beside the certificate: the new key with its request. Secret."""
LONGEST_SLEEP_S: Final = 3600.0  # so that a clock that was set, or a machine that slept, is noticed
LEAST_INTERVAL_S: Final = 60.0  # between two renewals, however short a certificate is valid
FIRST_POLL_S, LONGEST_POLL_S, POLL_GROWTH = 1.0, 300.0, 1.5
LONGEST_PENDING_S: Final = 30 * 86_400.0  # a kept request that is older is replaced


class Renewal:
    """Keeps the certificate of one host valid."""

    def __init__(
        self,
        settings: HostSettings,
        identity: IdentityKey,
        ca: bytes,
        certificate: ClientCertificate,
        renewed: Callable[[ClientCertificate], None],
    ) -> None:
        """
        Args:
            identity: of one of the host's participants.
            ca: the study's certificate authority, PEM.
            renewed: called with each new certificate, on the event loop.
        """
        self._settings, self._identity, self._ca = settings, identity, ca
        self.certificate, self._renewed = certificate, renewed
        self._pending = settings.coordinator.certificate.with_name(PENDING_FILE)

    async def run(self) -> None:
        """Renew as often as necessary, without end. A renewal that fails is logged; nothing is raised."""
        while True:
            left_s = self.certificate.renew_at() - time.time()
            if left_s > 0:
                await asyncio.sleep(min(left_s, LONGEST_SLEEP_S))
                continue
            try:
                await self.renew()
                await asyncio.sleep(LEAST_INTERVAL_S)
            except (EnrolmentRefused, CertificateError) as error:
                log.warning(
                    "the certificate isn't renewed", valid_until=minute(self.certificate.not_after), reason=str(error)
                )
                await asyncio.sleep(LONGEST_SLEEP_S)

    async def renew(self, give_up_s: float | None = None) -> None:
        """Request a new certificate, wait for the answer, and keep it.

        ``give_up_s``: how long the coordinator may be unreachable; None: without limit.

        Raises EnrolmentRefused: no enrolment port is known, the authority refuses, or its answer can't be used;
        EnrolmentUnavailable: the coordinator was unreachable for too long; CertificateError: a file can't be written.
        """
        address = self._settings.coordinator.enrolment
        if not address:
            raise EnrolmentRefused(
                f"the certificate {self.certificate.path} is valid until {minute(self.certificate.not_after)}, and "
                "coordinator.enrolment in host.toml names no port where it could be renewed: ask the study's authority "
                "for a new certificate"
            )
        key, request = await asyncio.to_thread(self._prepare)
        poll_s, away_since, reported = FIRST_POLL_S, time.monotonic(), ""
        async with open_channel(address, self._ca) as channel:
            while True:
                try:
                    answer = await ask(channel, address, request)
                    away_since, reason = time.monotonic(), "waiting for the study's authority"
                except EnrolmentUnavailable as error:
                    if give_up_s is not None and time.monotonic() - away_since >= give_up_s:
                        raise
                    answer, reason = pb.EnrolAnswer(status=pb.ENROL_STATUS_PENDING), str(error)
                if answer.status in (pb.ENROL_STATUS_ACCEPTED, pb.ENROL_STATUS_REFUSED):
                    break
                if reason != reported:
                    log.info("the certificate is being renewed", reason=reason)
                    reported = reason
                await asyncio.sleep(poll_s)
                poll_s = min(poll_s * POLL_GROWTH, LONGEST_POLL_S)
        await asyncio.to_thread(self._finish, answer, key, request)
        log.info("the certificate was renewed", valid_until=minute(self.certificate.not_after))
        self._renewed(self.certificate)

    def _prepare(self) -> tuple[bytes, bytes]:
        """The key (PEM) and its request: those that are kept, else new ones, kept first; raises CertificateError."""
        if (kept := self._kept()) is not None:
            return kept
        private = new_key()
        key = private_pem(private)
        settings = self._settings
        asked = EnrolmentRequest(
            "renew", settings.study.name, self._identity.public, settings.host.name, make_csr(private), time.time()
        )
        request = make_request(asked, self._identity, None)
        kept_text = json.dumps({"key": key.decode(), "request": request.decode()})
        try:
            replace_durably(self._pending, kept_text.encode())  # readable only by its owner from the first moment
        except OSError as error:
            raise CertificateError(f"{self._pending} can't be written: {error.strerror or error}") from error
        return key, request

    def _kept(self) -> tuple[bytes, bytes] | None:
        try:
            fields = json.loads(read_key_file(self._pending))
            key, request = fields["key"].encode(), fields["request"].encode()
            asked = read_request(request).request
        except (KeyFileError, InvalidRequest, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # there is none, or it is unusable
        late = time.time() - asked.at > LONGEST_PENDING_S
        if asked.identity != self._identity.public or asked.study != self._settings.study.name or late:
            return None
        return key, request

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._pending.unlink()

    def _finish(self, answer: pb.EnrolAnswer, key: bytes, request: bytes) -> None:
        table = self._settings.coordinator
        try:
            if answer.status == pb.ENROL_STATUS_REFUSED:
                raise EnrolmentRefused(f"{table.enrolment}: {answer.reason or 'refused'}")
            checked = check_answer(
                answer.answer,
                authority_public=self._settings.study.authority_public_key_bytes,
                request=request,
                ca=self._ca,
                key=key,
                # A certificate for another identity would disconnect participants.
                names=self.certificate.names or (host_uri(self._settings.host.name),),
            )
            if not checked.accepted:
                raise EnrolmentRefused(f"{table.enrolment}: {checked.reason}")
            store_renewed(table.certificate, checked.certificate, key)
        except OSError as error:
            raise CertificateError(f"the renewed certificate can't be written: {error.strerror or error}") from error
        except EnrolmentRefused:
            self._forget()  # the same request would get the same answer
            raise
        self._forget()
        self.certificate = load_certificate(table.certificate, table.key)
