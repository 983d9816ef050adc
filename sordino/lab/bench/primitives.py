"""What this machine does at best, through the same libraries: the limits that hot paths are held against."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.bindings import crypto_sign_open

from secagg import shamir
from secagg.masking import CHUNK_BYTES, word_dtype
from secagg.packing import add_packed, pack, unpack
from sordino.lab.bench.cohort_checks import cohort_checks, make_transcript
from sordino.lab.bench.timing import Spread, spread
from wire.records.transcript_checks import verify_transcript

DIM: Final = 1_000_000
BITS: Final = 20
HOLDERS: Final = 100
THRESHOLD: Final = 53
ON_RECORD: Final = 1000
DRAWN: Final = (1000, 2000)


def run(runs: int = 7) -> list[dict[str, Any]]:
    """Measure all of them.

    Returns rows with ``group``, ``name``, ``unit``, and ``minimum``, ``median``, ``maximum`` of ``runs`` runs. CPU time
    of this process; for gRPC, of client and server process together.
    """
    from sordino.lab.bench.grpc_rates import measure

    rows = []
    for group, name, unit, function, amount in _cases():
        found = spread(function, runs)
        values = [_convert(unit, seconds, amount) for seconds in (found.minimum, found.median, found.maximum)]
        rows.append({"group": group, "name": name, "unit": unit, **Spread.of(values).to_json()})
    for name, unit, found in measure(runs):
        rows.append({"group": "gRPC, TLS", "name": name, "unit": unit, **found.to_json()})
    return rows


def _convert(unit: str, seconds: float, amount: float) -> float:
    """Args: amount is what one call handles: bytes for a rate, values for a time for each."""
    if unit == "GB/s":
        return amount / seconds / 1e9
    return seconds / amount * {"ns/value": 1e9, "us": 1e6, "ms": 1e3}[unit]


def _cases() -> list[tuple[str, str, str, Callable[[], Any], float]]:
    """(group, name, unit, what to call, how much one call handles)."""
    zeros, scratch = bytes(CHUNK_BYTES), bytearray(CHUNK_BYTES + 16)
    key = bytes(range(16))
    gcm = Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()
    ctr = Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\x02")).encryptor()
    words = np.frombuffer(os.urandom(4 * DIM), dtype="<u4") & np.uint32((1 << BITS) - 1)
    accumulator = np.zeros(DIM, dtype=word_dtype(BITS))
    in_cache, beside = np.zeros(CHUNK_BYTES // 4, "<u4"), np.ones(CHUNK_BYTES // 4, "<u4")
    packed = pack(words, BITS)
    agreement, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    identity, message = Ed25519PrivateKey.generate(), bytes(170)
    public, signature = identity.public_key(), identity.sign(message)
    public_bytes, signed = public.public_bytes_raw(), signature + message
    xs = range(1, HOLDERS + 1)
    secrets = shamir.random_symbols(32, os.urandom).reshape(2, 16)
    shares = shamir.split(np.tile(secrets, (HOLDERS, 1, 1)), THRESHOLD, xs, os.urandom)
    points = list(range(1, THRESHOLD + 1))

    def split_anew() -> None:
        shamir.forget_tables()
        shamir.split(secrets, THRESHOLD, xs, os.urandom)

    transcript, authority = make_transcript(ON_RECORD)

    read, check = cohort_checks(*DRAWN)

    masks, codes, keys = "masks", "vectors, d = 10^6", "keys"
    record = f"transcript, n = {ON_RECORD:,}"
    drawn = "a participant's checks, {:,} of {:,}".format(*DRAWN)
    sharing = f"Shamir, n = {HOLDERS}, t = {THRESHOLD}"
    return [
        (masks, "keystream, AES-128-GCM, no tag", "GB/s", lambda: gcm.update_into(zeros, scratch), CHUNK_BYTES),
        (masks, "keystream, AES-128-CTR", "GB/s", lambda: ctr.update_into(zeros, scratch), CHUNK_BYTES),
        (masks, "add, in cache", "GB/s", lambda: np.add(in_cache, beside, out=in_cache), CHUNK_BYTES),
        (codes, f"pack, B = {BITS}", "ns/value", lambda: pack(words, BITS), DIM),
        (codes, f"unpack, B = {BITS}", "ns/value", lambda: unpack(packed, DIM, BITS), DIM),
        (codes, f"unpack and add, B = {BITS}", "ns/value", lambda: add_packed(accumulator, packed, BITS), DIM),
        (codes, "SHA-256", "GB/s", lambda: hashlib.sha256(packed).digest(), len(packed)),
        (keys, "X25519, new key", "us", lambda: X25519PrivateKey.generate().public_key().public_bytes_raw(), 1),
        (keys, "X25519, agreement", "us", lambda: agreement.exchange(peer), 1),
        (keys, "Ed25519, sign", "us", lambda: identity.sign(message), 1),
        (keys, "Ed25519, verify (libsodium)", "us", lambda: crypto_sign_open(signed, public_bytes), 1),
        (keys, "Ed25519, verify (OpenSSL)", "us", lambda: public.verify(signature, message), 1),
        (keys, "AES-256-GCM, 96 bytes", "us", lambda: AESGCM(bytes(32)).encrypt(bytes(12), bytes(96), key), 1),
        (sharing, "share two secrets", "ms", split_anew, 1),
        (sharing, "Lagrange weights", "ms", lambda: shamir.lagrange_at_zero(points), 1),
        (sharing, f"rebuild {HOLDERS} pairs, same holders", "ms", lambda: shamir.combine(xs, shares, THRESHOLD), 1),
        (drawn, "a roster's version, signature included", "ms", read, 1),
        (drawn, "lottery and u1, besides signatures", "ms", check, 1),
        (record, "transcript_verify", "ms", lambda: verify_transcript(transcript, authority), 1),
    ]
