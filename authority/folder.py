"""An authority's folder: its keys, its settings, and the coordinator's files that it makes.

    authority.key, authority.pub   Ed25519: signs rosters, cards and answers
    tls-ca.key, tls-ca.pem         P-256: signs TLS certificates
    authority.toml                 the study, the coordinator's port for enrolment, numbers
    state.sqlite                   invitations, requests, members, signed versions (`authority.store`)

Both private keys are nowhere else. The coordinator's files are public, except its own two keys.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import field_validator

from learning.task_names import check_task_name
from runtime.address import split_address, split_addresses
from runtime.failure import InputFailure
from runtime.key_files import read_key_file, write_key_file
from runtime.settings_file import Settings, Table, read_settings
from runtime.settings_keys import key, tables_toml
from secagg.lottery import MAX_DRAWS
from secagg.roster import LARGEST_ROSTER
from wire import certificates
from wire.authority_statements import Card, sign_card
from wire.certificates import CertificateAuthority
from wire.join_code import fingerprint

AUTHORITY_FILE: Final = "authority.toml"
KEY_FILE, PUBLIC_FILE = "authority.key", "authority.pub"
TLS_KEY_FILE, TLS_FILE = "tls-ca.key", "tls-ca.pem"
STATE_FILE: Final = "state.sqlite"
LONGEST_CLIENT_DAYS: Final = 825
_option = partial(key, panel="Options")
_HINT = "Name an authority's folder; `sordino authority init DIR --study NAME` makes one."
_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AuthorityError(InputFailure, ValueError):
    """The authority can't do this; one sentence that names what to change, and never a secret."""


class AuthorityTable(Table):
    """[authority]: its study and its rules."""

    study: str = key(help="the study's name, which never changes", pattern=rf"^{_STUDY.pattern}$")
    coordinator: str = _option(
        "",
        "the coordinator's port for enrolment (enrolment_listen in study.toml); empty: people carry the files",
        shown="none: by hand",
        metavar="HOST:PORT",
    )
    draws: int = _option(
        0,
        "seeds that each roster version draws cohorts with: one for each round or epoch; 0: cohorts aren't drawn",
        within=(0, MAX_DRAWS),
    )
    places: int = _option(
        0, "most participants at the same time, as the plan covers them; 0: any number", within=(0, LARGEST_ROSTER)
    )
    client_days: float = _option(
        certificates.CLIENT_DAYS,
        "validity of a participant's TLS certificate, which is renewed in time",
        gt=0,
        le=LONGEST_CLIENT_DAYS,
    )
    own_data: bool = _option(False, "participants bring their own data: invitations contain --data FILE")
    task: str = _option(
        "", "the study's task, if it isn't one of Sordino's: invitations name it", metavar="MODULE:CLASS"
    )

    @field_validator("task")
    @classmethod
    def _task(cls, value: str) -> str:
        return check_task_name(value) if value else ""

    @field_validator("coordinator")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and split_address(value)[1] == 0:
            raise ValueError("must name the port that the coordinator takes requests on, such as localhost:8444")
        return value


class AuthoritySettings(Settings):
    """authority.toml; ``SORDINO_AUTHORITY__COORDINATOR`` and the like override single keys."""

    authority: AuthorityTable = key(help="", option=None)


@dataclass(frozen=True)
class AuthorityKeys:
    """Both private keys, hidden in repr."""

    signing: Ed25519PrivateKey = field(repr=False)
    tls: CertificateAuthority

    @classmethod
    def make(cls, study: str, now: datetime.datetime) -> AuthorityKeys:
        """New keys; ``now`` has a time zone."""
        return cls(Ed25519PrivateKey.generate(), CertificateAuthority.make(study, now))

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes, which all participants pin."""
        return self.signing.public_key().public_bytes_raw()

    @property
    def fingerprint(self) -> bytes:
        """16 bytes of it, for people."""
        return fingerprint(self.public)


@dataclass(frozen=True)
class AuthorityFolder:
    """The folder with its keys and settings, as read."""

    path: Path
    settings: AuthorityTable
    keys: AuthorityKeys

    @property
    def state(self) -> Path:
        return self.path / STATE_FILE


def open_folder(path: Path) -> AuthorityFolder:
    """Read an authority's folder; writes nothing.

    Raises ConfigurationError: no such folder, or its settings can't be used; KeyFileError: a key is missing, or open to
    others; AuthorityError: files that don't belong together.
    """
    if path.is_dir() and not (path / AUTHORITY_FILE).exists() and (path / "authority" / AUTHORITY_FILE).exists():
        raise AuthorityError(f"{path} is a study's folder: name its authority's folder, {path / 'authority'}")
    settings = read_settings(AuthoritySettings, path / AUTHORITY_FILE, hint=_HINT).authority
    signing = certificates.read_ed25519_key(path / KEY_FILE)
    try:
        tls = CertificateAuthority.load((path / TLS_FILE).read_bytes(), read_key_file(path / TLS_KEY_FILE))
    except certificates.CertificateError as error:
        raise AuthorityError(f"{path / TLS_FILE} with {TLS_KEY_FILE}: {error}") from None
    keys = AuthorityKeys(signing, tls)
    try:
        stated = (path / PUBLIC_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        stated = ""
    if stated != keys.public.hex():
        raise AuthorityError(f"{path / PUBLIC_FILE} isn't the public half of {KEY_FILE}: restore both from one copy")
    return AuthorityFolder(path, settings, keys)


def write_folder(path: Path, settings: AuthorityTable, keys: AuthorityKeys) -> AuthorityFolder:
    """Write keys and settings into a folder without an authority. The first decision makes the store.

    Raises AuthorityError: the folder already has an authority's key; OSError: it can't be written.
    """
    if any((path / name).exists() for name in (KEY_FILE, AUTHORITY_FILE, TLS_KEY_FILE, STATE_FILE)):
        raise AuthorityError(f"{path} holds an authority already: name a new folder; an authority is never overwritten")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_key_file(path / KEY_FILE, certificates.private_pem(keys.signing))
    write_key_file(path / TLS_KEY_FILE, keys.tls.key_pem)
    (path / PUBLIC_FILE).write_text(keys.public.hex() + "\n", encoding="ascii")
    (path / TLS_FILE).write_bytes(keys.tls.pem)
    table = settings.model_dump(exclude={name for name in ("own_data", "task") if not getattr(settings, name)})
    header = ("The authority of a Sordino study. Keep this folder away from the coordinator's machine.",)
    text = tables_toml(AuthoritySettings, {"authority": table}, header)
    (path / AUTHORITY_FILE).write_text(text, encoding="utf-8")
    return AuthorityFolder(path, settings, keys)


@dataclass(frozen=True)
class CoordinatorFiles:
    """What the coordinator gets from the authority, by file; its two keys are kept nowhere else."""

    public: Mapping[str, bytes]
    keys: Mapping[str, bytes] = field(repr=False)

    def write(self, folder: Path) -> None:
        """Write them into a folder that is carried to the coordinator's machine."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "tls").mkdir(exist_ok=True)
        for name, content in self.public.items():
            (folder / name).write_bytes(content)
        for name, content in self.keys.items():
            write_key_file(folder / name, content)


def make_coordinator_files(
    study: str, keys: AuthorityKeys, address: str, names: Sequence[str], now: datetime.datetime
) -> CoordinatorFiles:
    """Certificates, keys and the card of a coordinator; ``address``: HOST:PORT of the sessions; ``names``: further host
    names and addresses of its TLS certificate; ``now`` has a time zone.

    Raises ValueError: a name that no certificate can contain; InvalidCard: a study or address that no card can contain.
    """
    server, transcript = certificates.new_key(), Ed25519PrivateKey.generate()
    certificate = keys.tls.issue_server(
        server.public_key(), (*dict.fromkeys(split_address(one)[0] for one in split_addresses(address)), *names), now
    )
    card = Card(study, keys.public, keys.tls.pem, transcript.public_key().public_bytes_raw(), address)
    pinned, signed = f"{keys.public.hex()}\n".encode(), sign_card(card, keys.signing)
    return CoordinatorFiles(
        {PUBLIC_FILE: pinned, "card.json": signed, "tls/ca.pem": keys.tls.pem, "tls/server.pem": certificate},
        {"tls/server.key": certificates.private_pem(server), "transcript.key": certificates.private_pem(transcript)},
    )
