"""Whether a host's certificate holds, and whether the coordinator answers it: what `sordino doctor` asks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509

from client.connection import open_channel
from client.credentials import ClientCertificate
from client.unreachable import trouble_of, trouble_of_silence, web_proxy_of
from runtime.failure import InputFailure, NetworkFailure
from runtime.text import minute

REACH_S: Final = 8.0
SOON_S: Final = 14 * 86_400.0


def valid_until(pair: ClientCertificate, ca: Path, remedy: str, *, soon: bool = True) -> str:
    """Until when a certificate holds. Raises InputFailure: not now, or not for long, or another authority signed it."""
    leaf, *_ = x509.load_pem_x509_certificates(pair.chain)
    if not any(_issued(leaf, one) for one in x509.load_pem_x509_certificates(ca.read_bytes())):
        raise InputFailure(f"{pair.path} wasn't signed by the TLS authority in {ca}: copy both from one place.")
    now = time.time()
    says = f"this machine's clock says {minute(now)}"
    if now < pair.not_before:
        raise InputFailure(f"{pair.path} is valid from {minute(pair.not_before)} on, and {says}: set the clock.")
    if now >= pair.not_after or (soon and now + SOON_S >= pair.not_after):
        ends = "expired" if now >= pair.not_after else "expires"
        raise InputFailure(f"{pair.path} {ends} on {minute(pair.not_after)} ({says}): {remedy}.")
    return f"valid until {minute(pair.not_after)}"


def _issued(leaf: object, authority: object) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)  # type: ignore[attr-defined]
    except Exception:  # a wrong name, key or signature: three types
        return False
    return True


def reached(address: str, ca: Path, certificate: ClientCertificate | None = None) -> str:
    """Raises NetworkFailure: no TLS connection to the coordinator can be made, with the reason."""
    return asyncio.run(_reach(address, ca, certificate))


async def _reach(address: str, ca: Path, certificate: ClientCertificate | None) -> str:
    proxy = web_proxy_of(address, os.environ)
    async with open_channel(address, ca.read_bytes(), certificate) as channel:
        try:
            call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")  # any answer to it shows that it is there
            await call(b"", timeout=REACH_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise NetworkFailure(f"{address}: {trouble_of_silence(proxy).words}.") from None
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                own = "none" if certificate is None else str(certificate.path)
                words = trouble_of(error.details() or "", ca=str(ca), certificate=own, proxy=proxy).words
                raise NetworkFailure(f"{address}: {words}.") from None
    return f"{address} answers, with a certificate of {ca.name}"
