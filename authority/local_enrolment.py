"""The local enrolment socket of a running authority (``--desk``): each process that can open it gets a join code.

For participants on the authority's machine, such as containers that share a volume with it. No code is in a file, and a
coordinator that doesn't see the socket can't get one. Each code is for one identity and a short time. A code that a
person hands over admits one participant; a process that can open the socket can take all the places that it gives.

    client:  {"want": "code"}                                authority:  {"code": ..., "study": ..., "coordinator": ...}
             {"kept": true}                                  the client's folder is written; else the code is withdrawn
    client:  {"want": "state", "identity": H, "nonce": H}    authority:  {"state": "member", "signature": H}

One line of JSON each, H in hexadecimal; {"refused": REASON} instead of any answer. A state is signed: otherwise a
process that replaces the socket by its own could make participants begin anew, with new ledgers.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from authority.folder import AuthorityError, AuthorityFolder
from authority.invitations import invite, open_places, places_of_desk
from authority.store import locked
from runtime.durable import StorageError
from wire.authority_statements import standing_statement
from wire.join_code import JoinCode
from wire.open_calls import PeerRates

VALID_S: Final = 600.0
"""Validity of a code from the socket. The authority sees the request a second after it was sent."""
BETWEEN_CODES_S: Final = 0.2
"""Pause after each request for a code, granted or not: each takes the lock under which requests are judged."""
STANDINGS_A_SECOND, MOST_STANDINGS_AT_ONCE = 20.0, 40
"""Rate and burst of answers about standings, for all clients together: each takes that lock too."""
BETWEEN_VISITORS_S: Final = 0.005
BUSY_S: Final = 20.0  # for this time after a code was given, a request with it is likely
ASKS_S, KEEPS_S = 5.0, VALID_S  # how long the authority waits for a client's question, and for its folder
MOST_VISITORS: Final = 256
_LONGEST_LINE: Final = 1024
_LONGEST_PATH: Final = 107  # of a Unix socket's name, in bytes


class LocalEnrolmentSocket:
    """Answers until it is closed; each client in its own thread, so that a slow one doesn't delay the others."""

    def __init__(
        self,
        folder: AuthorityFolder,
        path: Path,
        tell: Callable[[dict[str, Any]], None],
        *,
        places: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Listen at once.

        Args:
            path: of the socket; a socket on which no process listens any more is replaced.
            tell: called, from any thread, with events: ``handed_out`` and ``taken_back`` with a code's id,
                ``refused`` with a reason. Never with a code.
            places: limit for members with codes from the socket and its open codes together; None: no further limit.

        Raises AuthorityError: the number of places isn't limited, or the socket can't be made.
        """
        if not folder.settings.places:
            raise AuthorityError(
                f"--desk gives a place to every process that can open its socket, so places must be limited: set "
                f"places in {folder.path / 'authority.toml'}"
            )
        self._folder, self._path, self._tell = folder, path, tell
        self._places, self._clock = places, clock
        self._asking = threading.Lock()
        self._answers = PeerRates(STANDINGS_A_SECOND, MOST_STANDINGS_AT_ONCE)
        self._handing_out, self._last = threading.Lock(), -BUSY_S
        self._visitors = threading.BoundedSemaphore(MOST_VISITORS)
        self._closed, self._refused = threading.Event(), ""
        self._listener = _listen(path)
        self._made = path.stat().st_ino
        self._thread = threading.Thread(target=self._receive, name="local enrolment", daemon=True)
        self._thread.start()

    def busy(self) -> bool:
        """Whether a code was given lately."""
        return time.monotonic() - self._last < BUSY_S

    def close(self) -> None:
        """Stop accepting and remove the socket. Codes that were given stay valid."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._made:
                self._path.unlink()

    def _receive(self) -> None:
        while not self._closed.is_set():
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                if not self._closed.wait(0.1):  # such as too many open files, which passes
                    continue
                return
            if not self._visitors.acquire(timeout=ASKS_S):
                visitor.close()
                continue
            try:
                threading.Thread(target=self._attend, args=(visitor,), name="local client", daemon=True).start()
            except RuntimeError:  # no more threads, which passes; the accepting thread must survive it
                visitor.close()
                self._visitors.release()
                self._closed.wait(0.1)
            self._closed.wait(BETWEEN_VISITORS_S)

    def _attend(self, visitor: socket.socket) -> None:
        try:
            with visitor:
                visitor.settimeout(ASKS_S)
                asked = _read_line(visitor)
                if asked.get("want") == "state":
                    _write_line(visitor, self._standing(asked))
                elif asked == {"want": "code"}:
                    self._give_code(visitor)
                else:
                    _write_line(visitor, {"refused": "this question is unknown here"})
        except (OSError, ValueError):
            pass  # the client has gone, or speaks something else
        finally:
            self._visitors.release()

    def _standing(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Whether an identity is a member, was revoked, or is unknown here, signed.

        Raises ValueError: the identity or the nonce is invalid.
        """
        identity, nonce = bytes.fromhex(str(asked.get("identity"))), bytes.fromhex(str(asked.get("nonce")))
        keys, study = self._folder.keys, self._folder.settings.study
        standing_statement(study, identity, "unknown", nonce)
        if not self._may_ask():
            return {"refused": "busy"}
        try:
            with locked(self._folder) as store:
                member = store.member(identity)
        except (AuthorityError, StorageError) as error:
            return {"refused": str(error)}
        standing = "unknown" if member is None else "member" if member.revoked is None else "revoked"
        signature = keys.signing.sign(standing_statement(study, identity, standing, nonce))
        return {"state": standing, "signature": signature.hex()}

    def _may_ask(self) -> bool:
        with self._asking:
            return self._answers.allow("")

    def _give_code(self, visitor: socket.socket) -> None:
        with self._handing_out:
            try:
                code = self._make_code()
            except (AuthorityError, StorageError) as error:
                if str(error) != self._refused:
                    self._tell({"refused": str(error)})
                self._refused = str(error)
                _write_line(visitor, {"refused": str(error)})
                self._closed.wait(BETWEEN_CODES_S)
                return
            self._refused, self._last = "", time.monotonic()
            self._tell({"handed_out": code.code_id.hex()})
            self._closed.wait(BETWEEN_CODES_S)
        kept = False
        try:
            settings = self._folder.settings
            answer = {"code": code.to_text(), "study": settings.study, "coordinator": settings.coordinator}
            _write_line(visitor, answer)
            visitor.settimeout(KEEPS_S)
            kept = _read_line(visitor) == {"kept": True}
        finally:
            if not kept and not self._closed.is_set():
                self._take_back(code)

    def _make_code(self) -> JoinCode:
        folder, now = self._folder, self._clock()
        with locked(folder) as store:
            if open_places(store, now) < 1:
                raise AuthorityError(f"all {folder.settings.places} places are taken")
            if self._places is not None and places_of_desk(store, now) >= self._places:
                raise AuthorityError(f"all {self._places} places of the socket are taken")
            return invite(store, name="", valid_s=VALID_S, now=now, random_bytes=os.urandom, from_desk=True)

    def _take_back(self, code: JoinCode) -> None:
        """Withdraw a code that can't have been used: its place is free, and the next code's making deletes it."""
        withdrawn = (
            "UPDATE invitations SET withdrawn = ? WHERE code_id = ? AND identity IS NULL",
            (self._clock(), code.code_id),
        )
        try:
            with locked(self._folder) as store:
                store.write(withdrawn)
        except (AuthorityError, StorageError):
            return  # the code expires
        self._tell({"taken_back": code.code_id.hex()})


def _listen(path: Path) -> socket.socket:
    """A socket for its owner and group; it gets its mode before its name."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    if len(os.fsencode(made)) > _LONGEST_PATH:
        raise AuthorityError(f"--desk {path}: the name is too long for a socket; name a shorter one")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _check_free(path)
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        listener.bind(str(made))
        made.chmod(0o660)
        listener.listen(MOST_VISITORS)
        os.replace(made, path)
    except BaseException as error:
        listener.close()
        with contextlib.suppress(OSError):
            made.unlink()
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise AuthorityError(f"--desk {path}: no socket can be made there ({reason})") from error
        raise
    return listener


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AuthorityError(f"--desk {path} is there already and is no socket: name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        raise AuthorityError(f"--desk {path}: another process listens there; stop that one, or name another path")


def _read_line(visitor: socket.socket) -> dict[str, Any]:
    """Raises OSError or ValueError: no such line came in time."""
    ends, data = time.monotonic() + (visitor.gettimeout() or 0), b""
    while not data.endswith(b"\n"):
        visitor.settimeout(max(ends - time.monotonic(), 0.01))
        part = visitor.recv(_LONGEST_LINE)
        if not part or len(data) + len(part) > _LONGEST_LINE:
            raise ValueError("no line")
        data += part
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("no line") from error
    if type(found) is not dict:
        raise ValueError("no object")
    return found


def _write_line(visitor: socket.socket, fields: dict[str, Any]) -> None:
    visitor.sendall(json.dumps(fields).encode() + b"\n")
