"""Each hot path of the protocol beside its limit on this machine, measured in turns within one run.

A limit is the same work by the bare library calls that it can't do without, on data already in place: what a path
takes beyond it is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.bindings import crypto_sign_open

from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.encoder import Encoder, noise_laws, word_dtype
from mechanisms.lattice_noise import LatticeNoise
from mechanisms.plan import Plan
from mechanisms.rounding import ALWAYS_DRAWN
from mechanisms.skellam import skellam
from secagg import shamir
from secagg.masking import CHUNK_BYTES, apply_masks, choose_keystream
from secagg.packing import add_packed, pack
from sordino.lab.bench.secagg import Setting, run_attempt
from sordino.lab.bench.timing import beside, seconds_each
from wire.study import plan_study

BITS: Final = 20


@dataclass(frozen=True)
class Path:
    """One row: what is timed, what it is held against."""

    key: str  # in the bounds file
    name: str
    limit_name: str
    unit: str
    ours: Callable[[], float]
    limit: Callable[[], float]


def run(runs: int = 5, only: str | None = None) -> list[dict[str, Any]]:
    """Measure all paths, or the one named.

    Returns rows with ``path``, ``name``, ``limit_name``, ``unit``, and minimum, median and maximum of ``ours``,
    ``limit`` and ``ratio`` (ours over limit; 1 is the best there is). Raises ValueError: no path has that name.
    """
    rows = []
    for path in _paths():
        if only not in (None, path.key):
            continue
        ours, limit, ratio = beside(path.ours, path.limit, runs)
        about = {"path": path.key, "name": path.name, "limit_name": path.limit_name, "unit": path.unit}
        rows.append(about | {"ours": ours.to_json(), "limit": limit.to_json(), "ratio": ratio.to_json()})
    if not rows:
        raise ValueError(f"no path is named {only!r}; there are {', '.join(path.key for path in _paths())}")
    return rows


def _paths() -> Iterator[Path]:
    yield _masks("masks_long", 1_000_000, 16)
    yield _masks("masks", 100_000, 50)
    yield from _packing()
    yield _sharing()
    yield _rebuilding()
    for name, law, sampler in (("noise", "discrete Gaussian", discrete_gaussian), ("skellam", "Skellam", skellam)):
        for stddev in (10, 1000):
            yield _noise(f"{name}_{stddev}", law, stddev, sampler(Fraction(stddev) ** 2))
    yield _encoding()
    yield from _attempt()
    yield _take_back()


def _timed(work: Callable[[], Any], scale: float) -> Callable[[], float]:
    return lambda: scale * seconds_each(work)


def _masks(key: str, dim: int, count: int) -> Path:
    accumulator = np.zeros(dim, dtype="<u4")
    masks = [(os.urandom(16), 1 if index % 2 else -1) for index in range(count)]
    mode = modes.GCM(bytes(12)) if choose_keystream() == "gcm" else modes.CTR(bytes(15) + b"\x02")
    stream = Cipher(algorithms.AES(bytes(16)), mode).encryptor()
    zeros, scratch = bytes(CHUNK_BYTES), bytearray(CHUNK_BYTES + 16)
    one, other = np.zeros(CHUNK_BYTES // 4, "<u4"), np.ones(CHUNK_BYTES // 4, "<u4")
    keystream = _timed(lambda: stream.update_into(zeros, scratch), 4e9 / CHUNK_BYTES)
    add = _timed(lambda: np.add(one, other, out=one), 4e9 / CHUNK_BYTES)
    return Path(
        key,
        f"expand and add {count} masks, d = {dim:,}, u32",
        "keystream alone and add alone, 256 KiB in cache",
        "ns/value",
        _timed(lambda: apply_masks(accumulator, masks, BITS), 1e9 / dim / count),
        lambda: keystream() + add(),
    )


_PLANE: Final = 1 << 15


def _passes(*operations: str) -> float:
    """Nanoseconds a value of some numpy passes over planes in cache."""
    left, right = np.ones(_PLANE, "<u4"), np.ones(_PLANE, "<u4")
    out = np.empty(_PLANE, "<u4")
    shift = np.uint32(12)
    calls: dict[str, Callable[[], Any]] = {
        "shift": lambda: np.left_shift(left, shift, out=out),
        "or": lambda: np.bitwise_or(left, right, out=out),
        "add": lambda: np.add(left, right, out=out),
        "and": lambda: np.bitwise_and(left, shift, out=out),
    }
    return sum(seconds_each(calls[operation]) for operation in operations) / _PLANE * 1e9


def _packing() -> Iterator[Path]:
    dim = 1_000_000
    values = np.frombuffer(os.urandom(4 * dim), dtype="<u4") & np.uint32((1 << BITS) - 1)
    packed, accumulator = pack(values, BITS), np.zeros(dim, dtype="<u4")
    yield Path(
        "pack",
        f"pack d = {dim:,}, B = {BITS}",
        "one shift and one or a value, in cache",
        "ns/value",
        _timed(lambda: pack(values, BITS), 1e9 / dim),
        lambda: _passes("shift", "or"),
    )
    yield Path(
        "sum",
        f"unpack and add an upload, d = {dim:,}, B = {BITS}",
        "one shift, one add and one reduction a value, in cache",
        "ns/value",
        _timed(lambda: add_packed(accumulator, packed, BITS), 1e9 / dim),
        lambda: _passes("shift", "add", "and"),
    )


def _sharing() -> Path:
    holders, threshold = 100, 53
    secrets = shamir.random_symbols(32, os.urandom).reshape(2, 16)
    xs = range(1, holders + 1)
    powers, coefficients = np.ones((holders, threshold)), np.ones((threshold, 32))

    def ours() -> None:
        shamir.forget_tables()  # as in a process that deals once a round
        shamir.split(secrets, threshold, xs, os.urandom)

    def limit() -> None:
        os.urandom(2 * threshold * 32)
        np.mod(powers @ coefficients, shamir.PRIME)

    return Path(
        "share",
        f"share two secrets among {holders}, threshold {threshold}",
        "randomness, one matrix product and one reduction",
        "us",
        _timed(ours, 1e6),
        _timed(limit, 1e6),
    )


def _rebuilding() -> Path:
    dealers, threshold = 100, 53
    xs = list(range(1, threshold + 1))
    shares = shamir.random_symbols(threshold * dealers * 16, os.urandom).reshape(threshold, dealers * 16)
    weights, as_floats = np.ones(threshold), shares.astype(np.float64)
    return Path(
        "rebuild",
        f"rebuild {dealers} secrets from {threshold} shares each",
        "widening, one matrix product and one reduction",
        "us",
        _timed(lambda: shamir.combine(xs, shares, threshold), 1e6),
        _timed(lambda: np.mod(weights @ np.multiply(as_floats, 1.0, out=as_floats), shamir.PRIME), 1e6),
    )


_NOISE_BLOCK: Final = 1 << 16


def _bare_noise(levels: int) -> Callable[[], float]:
    """Nanoseconds a value of 2 bytes of keystream and one lookup a level, and one add into int64, in cache."""
    index = np.frombuffer(os.urandom(2 * _NOISE_BLOCK), np.uint16).astype(np.intp)
    table, drawn = np.zeros(1 << 16, np.int16), np.empty(_NOISE_BLOCK, np.int16)
    some = np.zeros(_NOISE_BLOCK, np.int64)
    stream = Cipher(algorithms.AES(bytes(16)), modes.GCM(bytes(12))).encryptor()
    zeros, scratch = bytes(2 * _NOISE_BLOCK), bytearray(2 * _NOISE_BLOCK + 16)

    def work() -> None:
        for _ in range(levels):
            stream.update_into(zeros, scratch)
            table.take(index, mode="wrap", out=drawn)
        np.add(some, drawn, out=some)

    return _timed(work, 1e9 / _NOISE_BLOCK)


def _noise(key: str, law: str, stddev: int, sampler: LatticeNoise) -> Path:
    dim = 1_000_000
    vector = np.zeros(dim, np.int64)
    levels = len(sampler.tables)
    return Path(
        key,
        f"{law}, standard deviation {stddev}, d = {dim:,}",
        f"{levels} x (2 bytes of keystream, one lookup) and one add, in cache",
        "ns/value",
        _timed(lambda: sampler.add(vector, os.urandom), 1e9 / dim),
        _bare_noise(levels),
    )


def _plan(clients: int, dim: int) -> Plan:
    return plan_study(
        mechanism="skellam",
        clients=clients,
        dim=dim,
        bits=BITS,
        clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        rounds=10,
        max_dropout=0.3,
        adversarial=0.05,
    )


def _encoding() -> Path:
    """The whole encoder, from an update to the words that are masked.

    Its limit is what no implementation on numpy can leave out, each part on blocks in cache, so that no time goes
    to memory: the norm that clips (a dot product); the rotation as the additions of the fast Hadamard transform,
    log2(d) a value, and its signs (a product); for each of the two roundings 4 bytes of keystream, a scaled value
    (a product) as an integer, their sum, cut to its upper half, and the norm (a conversion and a dot product); the
    choice between the two (two products and a sum); the noise as in its own rows, of the base and of each part; and
    for the wrap an and and the narrowing to the word.
    """
    dim = 1_000_000
    plan = _plan(100, dim)
    encoder = Encoder(plan, bytes(32))
    # Longer than the clip, so that it is clipped.
    update = (np.frombuffer(os.urandom(4 * dim), np.int32) / 2.0**31).astype(np.float32)
    always, parts = noise_laws(plan)
    noise = _bare_noise(sum(len(law.tables) for law in (always, *parts) if law))
    one, other, out = np.full(_PLANE, 0.3), np.ones(_PLANE), np.empty(_PLANE)
    whole, word = np.ones(_PLANE, np.int64), np.empty(_PLANE, "<u4")
    mask = np.int64((1 << BITS) - 1)
    stream = Cipher(algorithms.AES(bytes(16)), modes.GCM(bytes(12))).encryptor()
    zeros, scratch = bytes(4 * _PLANE), bytearray(4 * _PLANE + 16)
    additions = (plan.padded_dim - 1).bit_length()

    def work() -> None:
        np.dot(one, one)
        np.multiply(one, other, out=out)
        for _ in range(additions):
            np.add(one, other, out=out)
        for _ in range(ALWAYS_DRAWN):
            stream.update_into(zeros, scratch)
            np.multiply(one, other, out=out)
            whole[:] = out
            np.add(whole, word, out=whole)
            np.right_shift(whole, 32, out=whole)
            out[:] = whole
            np.dot(out, out)
            np.multiply(whole, 1, out=whole)
        np.add(whole, whole, out=whole)
        np.bitwise_and(whole, mask, out=whole)
        word[:] = whole

    return Path(
        "encode",
        f"encode d = {dim:,}: clip, rotate, round, Skellam noise, wrap",
        f"its norms, {additions} additions, two roundings with 4 bytes of keystream each, noise and wrap, in cache",
        "ns/value",
        _timed(lambda: encoder.encode(update, os.urandom), 1e9 / dim),
        lambda: seconds_each(work) / _PLANE * 1e9 + noise(),
    )


def _take_back() -> Path:
    """What the coordinator subtracts of one survivor among a thousand that all survive."""
    dim, survivors = 100_000, 1000
    plan = _plan(survivors, dim)
    encoder, parts = Encoder(plan, bytes(32)), plan.released_parts(survivors).bit_count()
    total = np.zeros(plan.padded_dim, word_dtype(BITS))
    revealed = [[os.urandom(32) for _ in range(parts)] for _ in range(8)]
    levels = max(len(law.tables) for law in noise_laws(plan)[1])
    drawn = len(revealed) * parts * plan.padded_dim
    return Path(
        "take_back",
        f"noise taken back, n = {survivors:,}, d = {dim:,}, {parts} parts of each",
        f"{levels} x (2 bytes of keystream, one lookup) and one add, in cache",
        "ns/value and part",
        _timed(lambda: encoder.without_surplus(total, survivors, revealed), 1e9 / drawn),
        _bare_noise(levels),
    )


@dataclass(frozen=True)
class _Bare:
    """CPU seconds of the calls that no implementation can leave out."""

    verify: float
    agree: float
    seal: float
    mask_value: float  # keystream and add of one value of one mask

    @classmethod
    def measure(cls) -> _Bare:
        key = Ed25519PrivateKey.generate()
        public, signed = key.public_key().public_bytes_raw(), key.sign(bytes(170)) + bytes(170)
        mine, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
        return cls(
            seconds_each(lambda: crypto_sign_open(signed, public)),
            seconds_each(lambda: mine.exchange(peer)),
            seconds_each(lambda: AESGCM(bytes(32)).encrypt(bytes(12), bytes(96), bytes(100))),
            _masks("", CHUNK_BYTES // 4, 1).limit() / 1e9,
        )


def _attempt() -> Iterator[Path]:
    setting = Setting(clients=100, dim=100_000, bits=BITS, drop=0.1)
    others, gone = setting.clients - 1, setting.dropped
    stayed = setting.clients - gone

    def client_limit() -> float:
        bare, signatures = _Bare.measure(), others + setting.parameters.signatures_needed(setting.clients)
        seconds = signatures * bare.verify + 2 * others * (bare.agree + bare.seal)
        return 1e3 * (seconds + setting.clients * setting.dim * bare.mask_value)

    def unmasking_limit() -> float:
        bare = _Bare.measure()
        return 1e3 * (gone * stayed * bare.agree + (stayed + gone * stayed) * setting.dim * bare.mask_value)

    yield Path(
        "client",
        "one client's whole attempt, n = 100, d = 100,000",
        "its signature checks, agreements, sealed shares and masks alone",
        "ms",
        lambda: 1e3 * float(run_attempt(setting)["client_cpu_s"]),
        client_limit,
    )
    yield Path(
        "unmasking",
        "the coordinator's unmasking, n = 100, d = 100,000, 10 dropouts",
        "its agreements and masks alone",
        "ms",
        lambda: 1e3 * float(run_attempt(setting)["phases"]["unmasking"]["server"]),
        unmasking_limit,
    )
