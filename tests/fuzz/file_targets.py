"""Damaged or foreign files: settings, keys, certificates, rosters, databases; each in a folder of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import client.host_file
import secagg.roster
import server.study_file
import wire.records.roster_file
from client.credentials import CertificateError, KeyFileError, load_certificate, load_identity
from client.enrolment import EnrolmentRefused, check_certificate
from client.journal import check_ledger
from client.policy_file import load_policy
from learning.checkpoints import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from runtime.durable import StorageError
from runtime.settings_file import ConfigurationError
from secagg.roster import InvalidRoster
from tests.fuzz.document_targets import AUTHORITY, ENTRY, client_certificate, tls_key
from tests.fuzz.mutations import change_bytes, change_encoded, indented, json_mutation, pem_mutation
from tests.fuzz.target import Choices, Target, must, trusting
from tests.support.attempts_in_memory import authority, roster_of
from tests.support.issued_certificates import NO_VERSION, with_inner
from tests.support.rounds_on_record import whole
from tests.support.signed_rosters import published, put
from wire.authority_statements import write_package
from wire.records.ledger import PARTICIPANT, About, Ledger, head_file, read_ledger
from wire.records.ledger_rows import make_entry
from wire.records.roster_file import UNDER_WAY, RosterFile
from wire.roster_history import HISTORY_FILE


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sordino-fuzz-")


def _folder(name: str) -> Path:
    """An owner's folder of this process."""
    folder = Path(_kept().name) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


# ---------------------------------------------------------------- settings

_STUDY: Final = b"""\
[study]
name = "clinic"
rounds = 20
participants = 8
task = "softmax-regression"

[data]
source = "digits"
parts = 8

[privacy]
mechanism = "ddgauss"
epsilon = 8.0
delta = 1e-5
clip = 1.0
bits = 16
max_dropout = 0.2
adversarial = 0.1

[deadlines]
masked_input_s = 120

[coordinator]
listen = "localhost:8443"
"""
_POLICY: Final = b"""\
[policy]
max_epsilon = 4
min_honest_survivors = 5
mechanisms = ["ddgauss", "skellam"]
hours = ["22:00-06:00"]
max_delta_total = 1e-5
max_epsilon_total = 8.0
study_digests = ["%s"]
""" % (b"ab" * 32)
_HOST: Final = b"""\
[host]
name = "host-01"
[study]
name = "clinic"
authority_public_key = "%s"
task = "softmax-regression"
[policy]
max_epsilon = 4
min_honest_survivors = 5
[data]
parts = 10
[coordinator]
address = "[::1]:8443"
[task]
learning_rate = 0.5
[[participants]]
key = "keys/a.key"
part = 0
""" % (b"ab" * 32)


def _settings(name: str, load: Callable[[Path], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        try:
            load(_put(_folder("settings") / f"{name}.toml", data))
        except ConfigurationError as error:
            must(bool(str(error)) and name in str(error), "an error that doesn't name the file")

    return run


def change_toml(data: bytes, choose: Choices) -> bytes:
    """One line: its value is replaced, or the line is doubled, moved or left out."""
    lines = data.split(b"\n")
    at = choose.below(len(lines))
    key, equals, _ = lines[at].partition(b"=")
    match choose.below(8):
        case 0:
            del lines[at]
        case 1:
            lines.append(lines[at])
        case 2:
            other = choose.below(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 3 | 4 | 5 if equals:
            lines[at] = key + b"= " + _TOML_VALUES[choose.below(len(_TOML_VALUES))]
        case 6:
            name = _TOML_NAMES[choose.below(len(_TOML_NAMES))]
            lines.insert(at, name + b" = " + _TOML_VALUES[choose.below(len(_TOML_VALUES))])
        case _:
            return change_encoded(data, choose)
    return b"\n".join(lines)


_TOML_NAMES: Final = (b"_env_file", b"_cli_parse_args", b"file", b"self", b"a.b", b'""', b"[x]", b"[[x]]")
_TOML_VALUES: Final = (
    *(b"0", b"1", b"-1", b"9" * 25, b"9" * 5000, b"0.5", b"1e400", b"nan", b"-inf", b'""', b'"x"', b'"12"', b"true"),
    *(b"[]", b'[1, "a"]', b"{}", b"{a = 1}", b"1979-05-27T07:32:00Z", b"07:32:00", b'"\\u0000"', b"[" * 2000),
    *(b'"mlp"', b'"lottery"', b'"localhost:1"', b'"gaussian"', b'"22:00-22:00"', b"0x7fffffffffffffffff"),
)


# ---------------------------------------------------------------- keys and certificates


def read_identity(data: bytes) -> None:
    with contextlib.suppress(KeyFileError):
        must(len(load_identity(_put(_folder("keys") / "identity.key", data)).public) == 32, "an identity without a key")


def identity_seeds() -> Iterator[bytes]:
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    yield ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))).private_bytes(*form)
    yield tls_key().private_bytes(*form)


def read_pair(data: bytes) -> None:
    """A renewed certificate: key and chain in one file; and the chain as an authority might answer with it."""
    path = _put(_folder("tls") / "client.pem", data)
    with contextlib.suppress(CertificateError, KeyFileError):
        found = load_certificate(path, path)
        must(found.not_before <= found.renew_at() or found.not_after < found.not_before, "renewed before it begins")
        found.check_time(1.8e9)
    with contextlib.suppress(EnrolmentRefused):
        check_certificate(data, ca=client_certificate(), key=_private(), names=("urn:sordino:host:laptop",))


def _private() -> bytes:
    return tls_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pair_seeds() -> Iterator[bytes]:
    yield _private() + client_certificate()
    yield _private() + with_inner(client_certificate(), *NO_VERSION)
    form = Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    yield ec.derive_private_key(5, ec.SECP384R1()).private_bytes(*form) + client_certificate()


# ---------------------------------------------------------------- the coordinator's folder


def read_roster_folder(data: bytes) -> None:
    """What a crash may have left of a published roster, and a roster file that somebody copied."""
    folder = _folder("roster")
    put(folder, roster_of(3), authority())
    (folder / "enrolment").mkdir(exist_ok=True)
    places = folder / "roster.json", folder / "lottery.json", folder / "enrolment"
    files = RosterFile(*places, study="test", authority_public=AUTHORITY)
    quiet = SimpleNamespace(warning=lambda *_, **__: None, info=lambda *_, **__: None)
    kept, wire.records.roster_file.log = wire.records.roster_file.log, quiet
    try:
        _put(folder / "enrolment" / UNDER_WAY, data)
        with trusting(secagg.roster):
            with contextlib.suppress(InvalidRoster):
                files.read()
            _put(folder / "roster.json", data)
            with contextlib.suppress(InvalidRoster):
                files.read()
            if files._newest is not None:
                files.changed()
    finally:
        wire.records.roster_file.log = kept
        for left in (folder / "enrolment" / UNDER_WAY, folder / "lottery.json", folder / HISTORY_FILE):
            left.unlink(missing_ok=True)


def roster_folder_seeds() -> Iterator[bytes]:
    package = published(roster_of(4, version=2), authority())
    yield write_package(package)
    yield write_package(dataclasses.replace(package, lottery_file=b"{}"))
    yield package.roster_file


# ---------------------------------------------------------------- databases


def read_ledger_file(data: bytes) -> None:
    """A ledger's database: a change is reported by `StorageError`, and by no other error."""
    folder = _folder("ledger")
    path = _put(folder / "ledger.sqlite", data)
    head_file(path).unlink(missing_ok=True)
    with contextlib.suppress(StorageError):
        read_ledger(path)
    _put(head_file(path), _ledger()[1])
    with contextlib.suppress(StorageError):
        _, head, _ = read_ledger(path)
        must(head.rows >= 0, "a ledger with fewer rows than none")
    with contextlib.suppress(StorageError):
        check_ledger(path, path)  # not a journal


def read_head(data: bytes) -> None:
    """The file beside a ledger."""
    folder = _folder("head")
    path = _put(folder / "ledger.sqlite", _ledger()[0])
    _put(head_file(path), data)
    with contextlib.suppress(StorageError):
        read_ledger(path)


@cache
def _ledger() -> tuple[bytes, bytes]:
    """A participant's ledger with one row, and the file beside it."""
    path = _folder("made") / "ledger.sqlite"
    if not path.exists():
        ledger = Ledger(path, About(PARTICIPANT, mark="0" * 32), create=True)
        ledger.append(make_entry(whole(7).plan, identity=bytes(32), data="0" * 64, **ENTRY)).result()
        ledger.close()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA page_size = 512")
            connection.execute("VACUUM")
    return path.read_bytes(), head_file(path).read_bytes()


def read_checkpoint(data: bytes) -> None:
    """A model on disk."""
    with contextlib.suppress(CheckpointError):
        found = load_checkpoint(_put(_folder("model") / "model.safetensors", data))
        must(all(one.dtype == np.float32 for one in found.parameters.values()), "parameters of another type")


def checkpoint_seeds() -> Iterator[bytes]:
    path = _folder("model") / "made.safetensors"
    save_checkpoint(path, Checkpoint({"w": np.ones(3, np.float32)}, {"m": np.ones(2)}, {"round": 1}))
    yield path.read_bytes()


def _some_bytes(data: bytes, choose: Choices) -> bytes:
    """One place in a file of pages, seldom its length."""
    if not data or not choose.below(16):
        return change_bytes(data, choose)
    at = choose.below(min(len(data), 256)) if choose.below(2) else choose.below(len(data))
    return data[:at] + choose.take(1) + data[at + 1 :]


_TOML: Final = (b"[policy]", b"[[participants]]", b" = ", b'"""', b"nan", b"inf", b"{", b"}", b"1979-05-27", b"_x")
TARGETS: Final = (
    Target("study_toml", _settings("study", server.study_file.load), lambda: [_STUDY], change_toml, tokens=_TOML),
    Target("host_toml", _settings("host", client.host_file.load), lambda: [_HOST], change_toml, tokens=_TOML),
    Target("policy_toml", _settings("policy", load_policy), lambda: [_POLICY], change_toml, tokens=_TOML),
    Target("identity_key", read_identity, identity_seeds, pem_mutation, 4096),
    Target("client_certificate", read_pair, pair_seeds, pem_mutation, 8192),
    Target("roster_folder", read_roster_folder, roster_folder_seeds, change_bytes, 4096),
    Target("ledger_file", read_ledger_file, lambda: [_ledger()[0]], _some_bytes, 64 << 10),
    Target("ledger_head", read_head, lambda: [_ledger()[1]], json_mutation(indented), 1024),
    Target("checkpoint", read_checkpoint, checkpoint_seeds, _some_bytes, 8192),
)
