"""The folder of a participant who joins by code: written whole before her request leaves, completed by its answer.

    host.toml, ca.pem             as in any host's folder
    keys/participant.key          her identity, Ed25519
    tls/client.key, client.pem    the key of her TLS certificate; the certificate comes with the answer
    policy.toml                   her policy, where she gave one
    join/request.json             the request, byte for byte: handed in again it is the same request
    join/card.json                the study's card, as she accepted it
    join/place                    her place on the roster, where her part of the data goes by it
    join/refused                  why the authority refused the request, where it did

The folder appears at once or not at all. Whoever joins again with the same code finds it and goes on with the same
identity; another code, or another study, is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from client.joining.local_enrolment import state_at_desk
from runtime.durable import replace_durably, sync_folder
from runtime.failure import ExitCode, Failure

HOST_FILE: Final = "host.toml"
REQUEST_FILE: Final = Path("join") / "request.json"
CARD_FILE: Final = Path("join") / "card.json"
PLACE_FILE: Final = Path("join") / "place"
REFUSED_FILE: Final = Path("join") / "refused"
CERTIFICATE_FILE: Final = Path("tls") / "client.pem"
TLS_KEY_FILE: Final = Path("tls") / "client.key"
IDENTITY_FILE: Final = Path("keys") / "participant.key"
POLICY_FILE: Final = "policy.toml"
BY_PLACE: Final = "place"
"""Of a part of the data that her place on the roster decides; host.toml says it until that is known."""
_NAMES: Final = 1000  # that are tried
_USUAL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DataChoice:
    """[data] of host.toml, and which part of it is hers."""

    dataset: str
    partition: str
    alpha: float
    seed: int
    parts: int
    part: int | None  # from 0; None: by her place on the roster
    shards: int = 2
    file: Path | None = None  # of her own, absolute; then all but the data set's name says nothing


def default_home(study: str) -> Path:
    """Where a participant's folder is made unless she names one: the study's name, here.

    Where something else has that name, such as the study's own folder, ``clinic-participant``, then with a number. A
    folder that was made by a join keeps its name: whose it is, is for the caller to see.

    Raises:
        Failure: the name can't be that of a folder.
    """
    if not _USUAL_NAME.fullmatch(study):
        raise Failure(ExitCode.INPUT, f"the study's name, {study!r}, can't be that of a folder: name one with --home.")
    for name in (study, f"{study}-participant", *(f"{study}-participant-{number}" for number in range(2, _NAMES))):
        home = Path(name)
        if not home.exists() or (home / REQUEST_FILE).is_file():
            return home
        if home.is_dir() and not any(home.iterdir()):
            return home
    raise Failure(ExitCode.INPUT, f"{study}, and every name like it, is taken here: name a folder with --home.")


def host_text(
    *,
    host: str,
    study: str,
    task: str,
    task_options: Mapping[str, Any],
    study_sha256: bytes,
    authority_public: bytes,
    address: str,
    enrolment: str,
    data: DataChoice,
    policy: Mapping[str, Any] | None,
    ledger: Path | None,
) -> str:
    """host.toml, read back by ``client.host_file.load``.

    Args:
        study_sha256: of the study document that she is shown and agrees to; no other is taken part in.
        policy: keys of the table [policy]; None where the file policy.toml beside it holds them.
        ledger: where it isn't in the folder; absolute.
    """
    tables: dict[str, Mapping[str, Any]] = {
        "host": {"name": host, "journal": "journal.sqlite", "ledger": str(ledger or "ledger.sqlite")},
        "study": {
            "name": study,
            "task": task,
            "authority_public_key": authority_public.hex(),
            "sha256": study_sha256.hex(),
        },
        "coordinator": {
            "address": address,
            "ca": "ca.pem",
            "certificate": str(CERTIFICATE_FILE),
            "key": str(TLS_KEY_FILE),
            "enrolment": enrolment,
        },
        "policy": {"file": POLICY_FILE} if policy is None else policy,
        "task": task_options,
        "data": {"dataset": data.dataset}
        if data.file is not None
        else {
            "dataset": data.dataset,
            "partition": data.partition,
            "alpha": data.alpha,
            "shards": data.shards,
            "seed": data.seed,
            "parts": data.parts,
        },
    }
    comments = {
        "host": "  # ledger: what was spent; one for all studies over the same data, and to be kept",
        "study": "  # the key is the one that the join code named; sha256: of the plan and task as shown",
        "coordinator": "  # certificate and key are renewed over the port for enrolment",
        "policy": "  # a round that breaks it is refused; never sent",
    }
    lines = [
        "# One participant of a Sordino study, enrolled by code. `sordino join --home` reads this file.",
        "# The folder is complete and holds the only copy of her identity: keep it.",
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]{comments.get(name, '')}"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    part = _toml(BY_PLACE) if data.part is None else data.part
    held = f"part = {part}" if data.file is None else f"data = {_toml(str(data.file))}"
    lines += ["", "[[participants]]", f"key = {_toml(str(IDENTITY_FILE))}", held, ""]
    return "\n".join(lines)


def make_home(
    home: Path,
    *,
    host_toml: str,
    policy_file: bytes | None,
    ca: bytes,
    card: bytes,
    request: bytes,
    identity_key: bytes,
    tls_key: bytes,
) -> None:
    """Write the folder; durable when this returns, and on any error there is none.

    Args:
        home: new or empty.
        policy_file: content of policy.toml, where there is one.
        identity_key, tls_key: private keys, PEM.

    Raises:
        Failure: it can't be written, or somebody made it meanwhile.
    """
    from runtime.key_files import KeyFileError, write_key_file

    home = home.absolute()
    work: Path | None = None
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
        write_key_file(work / IDENTITY_FILE, identity_key)
        write_key_file(work / TLS_KEY_FILE, tls_key)
        _write(work / HOST_FILE, host_toml.encode())
        if policy_file is not None:
            _write(work / POLICY_FILE, policy_file)
        _write(work / "ca.pem", ca)
        _write(work / CARD_FILE, card)
        _write(work / REQUEST_FILE, request)
        _write(work / ".gitignore", b"*\n")  # keys must never be committed, wherever the folder lies
        for folder in (work / "keys", work / "tls", work / "join", work):
            sync_folder(folder)
        os.replace(work, home)
        sync_folder(home.parent)
    except (OSError, KeyFileError) as error:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        if home.is_dir() and any(home.iterdir()):
            raise Failure(
                ExitCode.INPUT, f"{home} isn't empty any more: another process joined there. Run the command again."
            ) from None
        reason = str(error) if isinstance(error, KeyFileError) else error.strerror or str(error)
        raise Failure(
            ExitCode.INPUT,
            f"{home} can't be written ({reason}): nothing was sent, and no folder was made. Make room or name another "
            "folder with --home.",
        ) from error
    except BaseException:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        raise


@dataclass(frozen=True)
class JoinedHome:
    """A folder that was made by `make_home`."""

    path: Path
    request: bytes
    code_id: bytes
    study: str
    identity: bytes

    @property
    def complete(self) -> bool:
        """Whether the answer has come."""
        return (self.path / CERTIFICATE_FILE).is_file()

    @property
    def tls_key(self) -> Path:
        """The private key that the certificate is for."""
        return self.path / TLS_KEY_FILE

    @property
    def refused(self) -> str:
        """The authority's reason if it refused her; else empty."""
        try:
            return (self.path / REFUSED_FILE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @property
    def by_place(self) -> bool:
        """Whether her part of the data goes by her place on the roster, which may be known by now."""
        return (self.path / PLACE_FILE).is_file() or self.settings()["participants"][0].get("part") == BY_PLACE

    def settings(self) -> dict[str, Any]:
        """host.toml, as TOML gives it.

        Raises:
            Failure: it can't be read, or lacks a table.
        """
        file = self.path / HOST_FILE
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            str(content["host"]["name"]), str(content["coordinator"]["enrolment"])
            bytes.fromhex(content["study"]["authority_public_key"])
            dict(content["participants"][0]), dict(content["data"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Failure(
                ExitCode.INPUT, f"{file} can't be used ({type(error).__name__}): restore it, or join into a new folder."
            ) from None
        return content

    def keep_policy(self, policy: bytes) -> bool:
        """Put a policy in the place of the one that the folder holds; returns whether it was another.

        Whenever this ends, host.toml and policy.toml say either the old policy or the new one, whole: policy.toml
        counts for nothing until host.toml names it.

        Args:
            policy: content of policy.toml, which has been checked.

        Raises:
            Failure: it can't be written.
        """
        file, wanted = self.path / HOST_FILE, {"file": POLICY_FILE}
        named = self.settings().get("policy") == wanted
        try:
            if named and (self.path / POLICY_FILE).read_bytes() == policy:
                return False
            text = None if named else _with_policy(file, file.read_text(encoding="utf-8"), wanted)
            replace_durably(self.path / POLICY_FILE, policy)
            if text is not None:
                replace_durably(file, text.encode())
        except OSError as error:
            raise Failure(
                ExitCode.INPUT, f"{self.path} can't be written ({error.strerror or error}): the policy isn't kept."
            ) from error
        return True

    def keep_refusal(self, reason: str) -> None:
        """That the authority has signed a refusal: no use is left for the folder, but to say so."""
        with contextlib.suppress(OSError):  # it can be asked for again
            replace_durably(self.path / REFUSED_FILE, reason.encode(errors="replace"))

    def finish(self, certificate: bytes, host: str, wished: str, place: int) -> None:
        """Keep what the authority gave her: from now on the folder is complete.

        Args:
            certificate: chain, PEM.
            host, wished: the name that the roster gives her process, and the one she asked for.
            place: from 1, in the order in which participants were admitted; 0 where the authority told none.

        Raises:
            Failure: it can't be written, and is asked for again when run again; or her part of the data goes by her
                place, and there is none.
        """
        by_place = self.by_place
        if by_place and not place:
            raise Failure(
                ExitCode.INPUT,
                f"{self.path}: --part place needs the participant's place, and the study's authority is of a release "
                "that tells none: put a number for part into host.toml, and run the same command again.",
            )
        try:
            if by_place:
                replace_durably(self.path / PLACE_FILE, f"{place}\n".encode())
            file = self.path / HOST_FILE
            text = changed = file.read_text(encoding="utf-8")
            if by_place:
                part = (place - 1) % self.settings()["data"]["parts"]
                changed = changed.replace(
                    f"\npart = {_toml(BY_PLACE)}\n", f"\npart = {part}  # her place on the roster is {place}\n", 1
                )
            if host != wished:
                changed = changed.replace(f"name = {_toml(wished)}\n", f"name = {_toml(host)}\n", 1)
            if changed != text:
                replace_durably(file, changed.encode())
            replace_durably(self.path / CERTIFICATE_FILE, certificate)
        except OSError as error:
            raise Failure(
                ExitCode.INPUT,
                f"{self.path} can't be written ({error.strerror or error}): the certificate isn't kept. Make room and "
                "run the same command again; it goes on there.",
            ) from error


def open_home(home: Path) -> JoinedHome | None:
    """A participant's folder that was made before, or None where there is none.

    Raises:
        Failure: there is something else in its place.
    """
    if not home.exists() or (home.is_dir() and not any(home.iterdir())):
        return None
    try:
        request = (home / REQUEST_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "a host's folder that was not made by a join code" if (home / HOST_FILE).exists() else "not empty"
        raise Failure(ExitCode.INPUT, f"{home} is {what}. Name a new folder with --home.") from None
    from wire.enrolment import InvalidRequest, read_request

    try:
        asked = read_request(request).request
    except InvalidRequest as error:
        raise Failure(
            ExitCode.INPUT, f"{home / REQUEST_FILE}: {error}. Restore the folder from a copy, or join into a new one."
        ) from error
    return JoinedHome(home, request, asked.code_id, asked.study, asked.identity)


def find_home(code_id: bytes) -> JoinedHome | None:
    """The folder in the working directory that was made with this code, if there is one."""
    return next((home for home in _homes_here() if home.code_id == code_id), None)


def home_at(enrolment: str) -> JoinedHome | None:
    """The first folder in the working directory of a study at this port for enrolment, if there is one."""
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
    """Hold the folder for this process while it waits for the answer.

    Raises:
        Failure: another process holds it.
    """
    descriptor = os.open(home.path / REQUEST_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                ExitCode.INPUT, f"{home.path} is in use by another process: stop that one, or name another folder."
            ) from None
        yield
    finally:
        os.close(descriptor)


def _with_policy(file: Path, text: str, policy: Mapping[str, str]) -> str:
    """host.toml with another table [policy], and all else as it was."""
    lines = [f"{key} = {_toml(value)}\n" for key, value in policy.items()]
    changed = re.sub(
        r"^(\[policy\][^\n]*\n).*?(?=^\[|\Z)", lambda found: "".join([found[1], *lines, "\n"]), text, flags=re.M | re.S
    )
    with contextlib.suppress(ValueError):
        if tomllib.loads(changed) == tomllib.loads(text) | {"policy": dict(policy)}:
            return changed
    raise Failure(
        ExitCode.INPUT,
        f"{file}: its table [policy] can't be replaced. Write file = \"{POLICY_FILE}\" into it, and your policy into "
        "that file.",
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # A JSON string is a TOML basic string, but for one character.
    return json.dumps(str(value), ensure_ascii=True).replace("\x7f", "\\u007f")


Say = Callable[[str], None]


def take_home(
    homes: Path, *, address: str | None, authority: Callable[[bytes], bool], desk: Path | None, begin: bool, say: Say
) -> tuple[Path, JoinedHome | None]:
    """A home for this process and what it becomes by exec; its lock is held until that ends.

    Args:
        homes: the folder; made where it isn't there.
        address: the coordinator's port for enrolment, where it is named; homes of others are left out.
        authority: whether an authority's public key (32 bytes) is the one that is meant.
        desk: where the authority says who was revoked.
        begin: whether a new home may be begun.

    Returns:
        Its path, and the home; None where it is to be made there.

    Raises:
        Failure: the folder can't be used, or nothing is free and none may begin.
    """
    try:
        homes.mkdir(parents=True, exist_ok=True)
        present = sorted(one.parent.parent.name for one in homes.glob(f"[!.]*/{REQUEST_FILE}"))
        for name in _names(present, begin):
            held = _hold(homes / f".{name}.lock")
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
                say(f"{homes / name} is left out: {why.rstrip('.')}.")
    except OSError as error:
        raise Failure(
            ExitCode.INPUT, f"--homes {homes} can't be used ({error.strerror or error}): name a folder to write to."
        ) from error
    raise Failure(
        ExitCode.INPUT, f"no home in {homes} is free: start this with --desk PATH or --code CODE to begin another."
    )


def _names(present: list[str], begin: bool) -> Iterator[str]:
    yield from present
    if begin:
        yield from (name for name in (f"home-{number:02}" for number in itertools.count(1)) if name not in present)


def _hold(path: Path) -> int | None:
    """A lock that ends with the process; None where another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _keep(descriptor: int) -> None:
    """Until the client ends, which takes this process's place by exec."""
    os.set_inheritable(descriptor, True)


def _of_no_use(
    home: JoinedHome, address: str | None, authority: Callable[[bytes], bool], desk: Path | None, say: Say
) -> str:
    """Why a home isn't taken; empty if it is."""
    settings = home.settings()
    if address is not None and settings["coordinator"]["enrolment"] != address:
        return f"it belongs to the coordinator at {settings['coordinator']['enrolment']}"
    key = bytes.fromhex(settings["study"]["authority_public_key"])
    if not authority(key):
        return "it belongs to another authority"
    if home.refused:
        return f"the authority refused it: {home.refused}"
    said = None
    if desk is not None:
        said = state_at_desk(desk, home.identity, study=home.study, authority=key, say=say)
    if said == "revoked":
        return "its identity was revoked; its ledger says what was spent"
    if said == "unknown" and home.complete:
        return "the authority doesn't know its identity: it may have been restored from an older copy"
    return ""
