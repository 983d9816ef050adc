"""The signed bytes of each statement, pinned: a signature from before a change must hold after it."""

from __future__ import annotations

import hashlib
from typing import Protocol

import pytest

from secagg.lottery import Lottery
from secagg.roster import RosterHead
from wire.authority_statements import Answer, Card
from wire.enrolment import EnrolmentRequest
from wire.roster_history import NewestRoster


class Signed(Protocol):
    def statement(self) -> bytes: ...


# Fixed texts, since new ones have other signatures in them.
CA = b"""-----BEGIN CERTIFICATE-----
MIIBIjCByaADAgECAgEHMAoGCCqGSM49BAMCMA8xDTALBgNVBAMMBGZ1enowHhcN
MjYwOTIxMTQxMzIwWhcNMjYwOTMwMTQxMzIwWjAPMQ0wCwYDVQQDDARmdXp6MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE4lNKNTLQj7ugLd5lnuYr0AMf4tt4VZbv
UJMCRGsDCFLg8VdaTGM8xxnf7l/ahi12TvyWw/MO4AVcQsI/GE7YxqMWMBQwEgYD
VR0TAQH/BAgwBgEB/wIBADAKBggqhkjOPQQDAgNIADBFAiEAncap0YSTceJbyd19
Ac1f6Qx5a2NyRuuRiXwUWyYGkfYCIFSDV5aTKZ8qNfi8dO5BadDlqKJHZ6wZxTIH
q3ypbNn0
-----END CERTIFICATE-----
"""
CSR = b"""-----BEGIN CERTIFICATE REQUEST-----
MIG7MGICAQAwADBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABOJTSjUy0I+7oC3e
ZZ7mK9ADH+LbeFWW71CTAkRrAwhS4PFXWkxjPMcZ3+5f2oYtdk78lsPzDuAFXELC
PxhO2MagADAKBggqhkjOPQQDAgNJADBGAiEAkdA4As//dGmlHX/kkvs9UdLrrqRV
uGq4b1xuoETxg2oCIQDCyM1mofBunrawN4n1D3NGacIDAKXvE07flIfHhMB7Lg==
-----END CERTIFICATE REQUEST-----
"""
ONE, TWO = bytes([1]) * 32, bytes([2]) * 32
HEAD = RosterHead("clinics", 3, ONE, Lottery(40, TWO), bytes([3]) * 32, bytes([4]) * 32)


@pytest.mark.parametrize(
    ("content", "sha256"),
    [
        (
            Card("clinics", ONE, CA, TWO, "coordinator.example:8443,other.example:8443"),
            "8e8a0ac33b03e5e389f5acffc19695426a204e31bc15d1edd33804f33a09e286",
        ),
        (
            Answer(ONE, True, "", "laptop", b"-----BEGIN", 3, 11),
            "0e2972715d0279c04aef8df745e623616e7b369030c27f425da8ea7ad4fd9ace",
        ),
        (
            Answer(ONE, False, "no place is left \u00e9\ud800", "", b"", 3),
            "0b03b4c7a4ea40388f99443c59b8c1a1f27068317d63521a9cdcc1e693cd561e",
        ),
        (
            EnrolmentRequest("join", "clinics", ONE, "laptop", CSR, 1_790_000_000.5, bytes([5]) * 16),
            "f3572de5cf0527d493aaa1fee7136aaf549e84bb7e20ed2b2bfffc25fe84aa95",
        ),
        (
            EnrolmentRequest("renew", "clinics", ONE, "laptop", CSR, 1_790_000_000.0),
            "50dee2bee8599b14add0a72dfae93ad6ef2fbede9451b422498a6532bd01236f",
        ),
        (
            NewestRoster("clinics", 3, ONE, TWO, 1_790_000_000, 1_790_086_400),
            "e4f0440d127ce1d7f328318fe1cc2da0cee00f7b20388cd193995deac09342f4",
        ),
        (HEAD, "f52254b6c19b72a3ce8d2d384dc8d488933577dfb455ce0156a27d93a12d98d9"),
        (RosterHead("clinics", 1, ONE), "901d89d27659d42ab45c73656b65454ae42211495c5f35a5febf043174f11470"),
    ],
    ids=["card", "accepted", "refused", "join", "renew", "newest", "head with a lottery", "first head"],
)
def test_the_signed_bytes_stay_the_same(content: Signed, sha256: str) -> None:
    assert hashlib.sha256(content.statement()).hexdigest() == sha256
