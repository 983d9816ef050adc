"""The folder of a participant that joins by code: written before its request is sent, completed by the answer.

    host.toml, ca.pem             as in any host's folder
    keys/participant.key          its identity, Ed25519
    tls/client.key, client.pem    the key of its TLS certificate; the certificate comes with the answer
    policy.toml                   its policy, if one was given
    join/request.json             the request; sending the same bytes again repeats the same request
    join/card.json                the study's card, as it was accepted
    join/terms.json               the study document that was accepted
    join/place                    the place on the roster, if the part of the data depends on it
    join/refused                  the authority's reason, if it refused the request

The folder appears whole or not at all. The same command with the same code finds it and continues with the same
identity; another code or study is refused.

Processes with the same command, such as containers, share a folder of such homes. Each takes the first free one by name
and holds it by a lock on a file beside it, which the kernel releases when the process ends. So a recreated container
continues with an existing identity, and a new home begins only if all are held. A home is skipped if its identity was
revoked or it belongs to another authority. For that only the authority's own statement counts, from its local socket or
signed: the coordinator could make every participant begin anew, with a new ledger over the same data.

`sordino join --home` loads this module at each start, so it imports cryptography only where necessary.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.durable import hold, replace_durably, sync_folder, whole_folder
from runtime.failure import Failure, InputFailure
from runtime.key_files import KeyFileError, write_key_file
from wire.join_code import show_fingerprint

HOST_FILE: Final = "host.toml"
REQUEST_FILE: Final = Path("join") / "request.json"
CARD_FILE: Final = Path("join") / "card.json"
TERMS_FILE: Final = Path("join") / "terms.json"
PLACE_FILE: Final = Path("join") / "place"
REFUSED_FILE: Final = Path("join") / "refused"
CERTIFICATE_FILE: Final = Path("tls") / "client.pem"
TLS_KEY_FILE: Final = Path("tls") / "client.key"
IDENTITY_FILE: Final = Path("keys") / "participant.key"
POLICY_FILE: Final = "policy.toml"
BY_PLACE: Final = "place"
"""A part of the data that the place on the roster decides; host.toml holds this word until the place is known."""
_NAMES: Final = 1000  # names to try
_USUAL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DataChoice:
    """[data] of host.toml, and the participant's part."""

    dataset: str
    partition: str
    alpha: float
    seed: int
    parts: int
    part: int | None  # from 0; None: by the place on the roster
    shards: int = 2
    file: Path | None = None  # the participant's file, absolute; then of the rest only the data set's name counts
    identity: str | None = None  # of data that an app loads; then of the rest part and parts count

    def tables(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The tables of host.toml: [data], and the keys of [[participants]] that name the data."""
        if self.file is not None:
            return {"dataset": self.dataset}, {"data": str(self.file)}
        cut = () if self.identity is not None else ("partition", "alpha", "shards", "seed")
        part = BY_PLACE if self.part is None else self.part
        table = {name: getattr(self, name) for name in ("dataset", *cut, "parts")}
        return table, {"part": part, "data_identity": self.identity}


def default_home(study: str) -> Path:
    """The participant's folder if no option names one: the study's name, in the working directory.

    If that is taken, for example by the study's folder: ``clinic-participant``, then with a number. A folder that a
    join made counts as free: the caller checks which join it was. Raises InputFailure if no such name is possible.
    """
    if not _USUAL_NAME.fullmatch(study):
        raise InputFailure(f"the study's name, {study!r}, can't be that of a folder: name one with --home.")
    for name in (study, f"{study}-participant", *(f"{study}-participant-{number}" for number in range(2, _NAMES))):
        home = Path(name)
        if not home.exists() or (home / REQUEST_FILE).is_file() or (home.is_dir() and not any(home.iterdir())):
            return home
    raise InputFailure(f"{study}, and every name like it, is taken here: name a folder with --home.")


def make_home(
    home: Path,
    *,
    host_toml: str,
    policy_file: bytes | None,
    ca: bytes,
    card: bytes,
    terms: bytes,
    request: bytes,
    identity_key: bytes,
    tls_key: bytes,
) -> JoinedHome:
    """Write the folder, new or empty; durable when this returns, and after any error there is none.

    Keys are PEM. Raises InputFailure if it can't be written, or if another process made it meanwhile.
    """
    public: dict[str | Path, bytes] = {
        HOST_FILE: host_toml.encode(),
        "ca.pem": ca,
        CARD_FILE: card,
        TERMS_FILE: terms,
        REQUEST_FILE: request,
        ".gitignore": b"*\n",  # keys must never be committed, wherever the folder lies
    }
    if policy_file is not None:
        public[POLICY_FILE] = policy_file
    path = home.absolute()
    try:
        with whole_folder(path) as work:
            write_key_file(work / IDENTITY_FILE, identity_key)
            write_key_file(work / TLS_KEY_FILE, tls_key)
            (work / "join").mkdir()
            for name, content in public.items():
                replace_durably(work / name, content, at_once=False, mode=0o644)
            for folder in (work / "keys", work / "tls", work / "join", work):
                sync_folder(folder)
        sync_folder(path.parent)
    except (OSError, KeyFileError) as error:
        if path.is_dir() and any(path.iterdir()):
            raise InputFailure(
                f"{path} isn't empty any more: another process joined there. Run the command again."
            ) from None
        reason = str(error) if isinstance(error, KeyFileError) else error.strerror or str(error)
        raise InputFailure(
            f"{path} can't be written ({reason}): nothing was sent, and no folder was made. Make room or name "
            "another folder with --home."
        ) from error
    return _read_home(home, request)


@dataclass(frozen=True)
class JoinedHome:
    """A folder that `make_home` made."""

    path: Path
    request: bytes
    code_id: bytes
    study: str
    identity: bytes

    @property
    def shown_identity(self) -> str:
        """Its beginning, as the authority's page shows it."""
        return show_fingerprint(self.identity[:8])

    @property
    def complete(self) -> bool:
        """Whether it holds the answer."""
        return (self.path / CERTIFICATE_FILE).is_file()

    @property
    def refused(self) -> str:
        """The authority's reason if it refused the request, else empty."""
        try:
            return (self.path / REFUSED_FILE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def by_place(self) -> bool:
        """Whether the place on the roster, known or not, decides the part of the data."""
        return (self.path / PLACE_FILE).is_file() or self.settings()["participants"][0].get("part") == BY_PLACE

    def settings(self) -> dict[str, Any]:
        """host.toml, as TOML gives it; raises InputFailure if it can't be read or lacks a table."""
        file = self.path / HOST_FILE
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            str(content["host"]["name"]), str(content["coordinator"]["enrolment"])
            bytes.fromhex(content["study"]["authority_public_key"])
            dict(content["participants"][0]), dict(content["data"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputFailure(
                f"{file} can't be used ({type(error).__name__}): restore it, or join into a new folder."
            ) from None
        return content

    def keep_policy(self, policy: bytes) -> bool:
        """Replace the policy by this checked content of policy.toml; returns whether it was another one.

        After an interruption the folder holds the old policy or the new one, whole: policy.toml has no effect until
        host.toml names it. Raises InputFailure if a file can't be written.
        """
        file, wanted = self.path / HOST_FILE, {"file": POLICY_FILE}
        named = self.settings().get("policy") == wanted
        with self._writing("the policy isn't kept."):
            if named and (self.path / POLICY_FILE).read_bytes() == policy:
                return False
            text = None if named else self._with_tables({"policy": wanted})
            replace_durably(self.path / POLICY_FILE, policy)
            if text is not None:
                replace_durably(file, text.encode())
        return True

    def terms(self) -> bytes | None:
        """The study document that was accepted; None in a folder of an earlier release."""
        try:
            return (self.path / TERMS_FILE).read_bytes()
        except OSError:
            return None

    def accept(self, terms: bytes, tables: Mapping[str, Any]) -> None:
        """Replace the accepted terms, and the tables of host.toml that follow from them; host.toml is what counts.

        Raises InputFailure if a file can't be written.
        """
        with self._writing("run the same command again."):
            replace_durably(self.path / HOST_FILE, self._with_tables(tables).encode())
            replace_durably(self.path / TERMS_FILE, terms)

    @contextlib.contextmanager
    def _writing(self, otherwise: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputFailure(f"{self.path} can't be written ({error.strerror or error}): {otherwise}") from error

    def _with_tables(self, tables: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
        """host.toml with these tables replaced; raises InputFailure if its layout prevents that, and OSError."""
        from client.host_file import HostConfiguration
        from runtime.settings_keys import with_table

        file = self.path / HOST_FILE
        text = file.read_text(encoding="utf-8")
        for name, table in tables.items():
            try:
                text = with_table(HostConfiguration, text, name, table, comments or {})
            except ValueError:
                raise InputFailure(
                    f"{file}: its table [{name}] can't be replaced. Write {json.dumps(table)} into it as TOML, and run "
                    "the same command again."
                ) from None
        return text

    def keep_refusal(self, reason: str) -> None:
        """Note that the authority signed a refusal: the folder has no further use."""
        with contextlib.suppress(OSError):  # the answer can be requested again
            replace_durably(self.path / REFUSED_FILE, reason.encode(errors="replace"))

    def finish(self, certificate: bytes, host: str, wished: str, place: int) -> None:
        """Keep the authority's answer, which completes the folder.

        Args:
            certificate: chain, PEM.
            host, wished: the name of this process on the roster, and the requested one.
            place: from 1, in the order of admission; 0 if the authority stated none.

        Raises InputFailure if it can't be written, or if the part of the data depends on the place and there is none.
        """
        by_place = self.by_place
        if by_place and not place:
            raise InputFailure(
                f"{self.path}: --part place needs the participant's place, which the release of the study's authority "
                "doesn't state: write a number for part into host.toml, and run the same command again."
            )
        otherwise = "the certificate isn't kept. Make room and run the same command again; it continues there."
        with self._writing(otherwise):
            if by_place:
                replace_durably(self.path / PLACE_FILE, f"{place}\n".encode())
            content = self.settings()
            tables: dict[str, Any] = {}
            if by_place:
                part = (place - 1) % content["data"]["parts"]
                tables["participants"] = [{**content["participants"][0], "part": part}]
            if host != wished:
                tables["host"] = {**content["host"], "name": host}
            if tables:
                text = self._with_tables(tables, {"part": f"the place on the roster is {place}"})
                replace_durably(self.path / HOST_FILE, text.encode())
            replace_durably(self.path / CERTIFICATE_FILE, certificate)


def open_home(home: Path, remedy: str = "Name a new folder with --home") -> JoinedHome | None:
    """A participant's folder from an earlier join, or None; raises InputFailure if something else is there."""
    if not home.exists() or (home.is_dir() and not any(home.iterdir())):
        return None
    try:
        request = (home / REQUEST_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "a host's folder that was not made by a join code" if (home / HOST_FILE).exists() else "not empty"
        raise InputFailure(f"{home} is {what}. {remedy}.") from None
    return _read_home(home, request)


def _read_home(home: Path, request: bytes) -> JoinedHome:
    from wire.enrolment import InvalidRequest, read_request

    try:
        asked = read_request(request).request
    except InvalidRequest as error:
        raise InputFailure(
            f"{home / REQUEST_FILE}: {error}. Restore the folder from a copy, or join into a new one."
        ) from error
    return JoinedHome(home, request, asked.code_id, asked.study, asked.identity)


def unfinished(home: Path) -> JoinedHome | None:
    """A participant's folder without its answer; None for any other folder. Raises as `open_home`."""
    found = open_home(home) if (home / CARD_FILE).is_file() else None
    return None if found is None or found.complete else found


def find_home(code_id: bytes) -> JoinedHome | None:
    """The folder in the working directory that was made with this code, or None."""
    return next((home for home in _homes_here() if home.code_id == code_id), None)


def home_at(enrolment: str) -> JoinedHome | None:
    """The first folder in the working directory of a study at this enrolment port, or None."""
    for home in _homes_here():
        with contextlib.suppress(Failure):
            if home.settings()["coordinator"]["enrolment"] == enrolment and not home.refused:
                return home
    return None


def _homes_here() -> Iterator[JoinedHome]:
    for request in sorted(Path().glob(f"*/{REQUEST_FILE}")):
        with contextlib.suppress(Failure):
            found = open_home(request.parent.parent)
            if found is not None:
                yield found


@contextlib.contextmanager
def only_process(home: JoinedHome) -> Iterator[None]:
    """Lock the folder for this process while it waits for the answer; raises InputFailure if another one has."""
    descriptor = hold(home.path / REQUEST_FILE, os.O_RDONLY)
    if descriptor is None:
        raise InputFailure(f"{home.path} is in use by another process: stop that one, or name another folder.")
    try:
        yield
    finally:
        os.close(descriptor)


def take_home(
    homes: Path,
    *,
    address: str | None,
    authority: Callable[[bytes], bool],
    desk: Path | None,
    begin: bool,
    say: Callable[[str], None],
) -> tuple[Path, JoinedHome | None]:
    """A home for this process and for the client that it becomes by exec, which holds the lock until it ends.

    Args:
        homes: the folder, made if it doesn't exist.
        address: the coordinator's enrolment port; homes of others are skipped. None: any.
        authority: whether an authority's public key (32 bytes) is the right one.
        desk: the authority's local socket, which states which identities were revoked.
        begin: whether a new home may be begun; it is returned as None, to be made at the path.

    Raises InputFailure: the folder can't be used, or none is free and no home may be begun.
    """
    try:
        homes.mkdir(parents=True, exist_ok=True)
        present = sorted(one.parent.parent.name for one in homes.glob(f"[!.]*/{REQUEST_FILE}"))
        for name in _names(present, begin):
            held = hold(homes / f".{name}.lock")
            if held is None:
                continue
            why = ""
            try:
                home = open_home(homes / name)
                if home is not None:
                    why = _of_no_use(home, address, authority, desk, say)
            except Failure as failure:
                home, why = None, failure.message
            if not why and (home is not None or begin):
                _keep(held)
                return homes / name, home
            os.close(held)
            if why:
                say(f"{homes / name} is skipped: {why.rstrip('.')}.")
    except OSError as error:
        raise InputFailure(
            f"--homes {homes} can't be used ({error.strerror or error}): name a folder to write to."
        ) from error
    raise InputFailure(f"no home in {homes} is free: start this with --desk PATH or --code CODE to begin another.")


def _names(present: list[str], begin: bool) -> Iterator[str]:
    yield from present
    if begin:
        yield from (name for name in (f"home-{number:02}" for number in itertools.count(1)) if name not in present)


def _keep(descriptor: int) -> None:
    """Hold the lock until the client ends, which replaces this process by exec."""
    os.set_inheritable(descriptor, True)


def _of_no_use(
    home: JoinedHome,
    address: str | None,
    authority: Callable[[bytes], bool],
    desk: Path | None,
    say: Callable[[str], None],
) -> str:
    """Why a home is skipped; empty if it isn't."""
    from client.joining.local_enrolment import state_at

    settings = home.settings()
    if address is not None and settings["coordinator"]["enrolment"] != address:
        return f"it belongs to the coordinator at {settings['coordinator']['enrolment']}"
    key = bytes.fromhex(settings["study"]["authority_public_key"])
    if not authority(key):
        return "it belongs to another authority"
    if home.refused:
        return f"the authority refused it: {home.refused}"
    state = None if desk is None else state_at(desk, home.identity, study=home.study, authority=key, say=say)
    if state == "revoked":
        return "its identity was revoked; keep it, because its ledger states what was spent"
    if state == "unknown" and home.complete:
        return "the authority doesn't know its identity: it may have been restored from an older copy"
    return ""
