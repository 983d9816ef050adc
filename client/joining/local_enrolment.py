"""Questions to the authority's local enrolment socket: a join code, and whether an identity still has its place.

The socket is that of ``sordino authority run --desk``; `authority.local_enrolment` describes its messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime.failure import Failure, InputFailure, NetworkFailure
from runtime.text import peer_text
from secagg.signatures import verify_signature
from wire.authority_statements import STANDING_NONCE_BYTES, standing_statement

OPENS_S, OPENS_POLL_S = 60.0, 0.25
"""How long to wait for a socket that isn't open yet: containers start in any order."""
ANSWERS_S: Final = 60.0  # for a code: processes that ask together get their codes one after the other
TELLS_S: Final = 20.0  # for a state, which may wait until a roster version is signed
BUSY_S: Final = 20.0
"""How long to repeat a question to a busy socket: even in a flood some questions are answered."""
BUSY_POLL_S: Final = (0.05, 0.35)
"""Range of the random pause between two such questions, so that refused processes don't return together."""
_LONGEST_LINE: Final = 4096

Say = Callable[[str], None]


class _Busy(NetworkFailure):
    """The socket is open, and may answer later."""


@dataclass(frozen=True)
class GivenCode:
    """A join code, which the authority takes back unless `keep` is called."""

    code: str = field(repr=False)
    keep: Callable[[], None]


@contextlib.contextmanager
def join_code_at(path: Path, say: Say) -> Iterator[GivenCode]:
    """A fresh join code, until the block ends or the code is kept; raises Failure without a socket or a code."""
    with _connected(path, say, OPENS_S) as connection:
        answer = _ask(connection, path, {"want": "code"})
        if type(answer.get("code")) is not str:
            raise InputFailure(f"--desk {path}: that is not an authority's local enrolment socket.")

        def keep() -> None:
            with contextlib.suppress(OSError):  # an authority that has ended takes no code back
                connection.sendall(b'{"kept": true}\n')

        yield GivenCode(answer["code"], keep)


def state_at(path: Path, identity: bytes, *, study: str, authority: bytes, say: Say) -> str | None:
    """The signed statement of an authority (32-byte key) about an identity: ``member``, ``revoked`` or ``unknown``.

    A busy socket is asked again: otherwise a flood of questions would get a revoked home used. None without a valid
    answer: the authority may be switched off, and any user who can write to the socket's folder may have put another
    socket there.
    """
    ends, reported = time.monotonic() + BUSY_S, False
    while True:
        try:
            return _state(path, identity, study, authority, say)
        except _Busy:
            if time.monotonic() >= ends:
                say(f"The authority's socket {path} is still busy: this process continues without its answer.")
                return None
        except (Failure, OSError):
            return None
        if not reported:
            say(f"The authority's socket {path} is busy: asking again, for {BUSY_S:g} s.")
            reported = True
        time.sleep(random.uniform(*BUSY_POLL_S))


def _state(path: Path, identity: bytes, study: str, authority: bytes, say: Say) -> str | None:
    nonce = os.urandom(STANDING_NONCE_BYTES)
    question = {"want": "state", "identity": identity.hex(), "nonce": nonce.hex()}
    with _connected(path, lambda _: None, 0, TELLS_S) as connection:
        answer = _ask(connection, path, question)
    state = str(answer.get("state"))
    with contextlib.suppress(ValueError):
        statement = standing_statement(study, identity, state, nonce)
        if verify_signature(authority, bytes.fromhex(str(answer.get("signature"))), statement):
            return state
    say(f"The socket {path} isn't that of this participant's authority: its answer is ignored.")
    return None


@contextlib.contextmanager
def _connected(path: Path, say: Say, patience_s: float, answers_s: float = ANSWERS_S) -> Iterator[socket.socket]:
    ends, reported = time.monotonic() + patience_s, False
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(answers_s)
            try:
                connection.connect(str(path))
            except BlockingIOError as error:
                if time.monotonic() >= ends:
                    raise _Busy(
                        f"too many processes wait at the authority's socket {path}: run the same command again."
                    ) from error
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() >= ends:
                    raise NetworkFailure(
                        f"nothing listens at the authority's socket {path}: is `sordino authority run DIR --desk "
                        f"{path}` running, and is its folder there?"
                    ) from error
            except OSError as error:
                raise InputFailure(
                    f"--desk {path} can't be opened ({error.strerror or error}): name the authority's socket."
                ) from error
            else:
                yield connection
                return
        if not reported:
            say(f"Waiting for the authority's socket {path}, for {patience_s:g} s.")
            reported = True
        time.sleep(OPENS_POLL_S)


def _ask(connection: socket.socket, path: Path, question: dict[str, Any]) -> dict[str, Any]:
    data = b""
    try:
        connection.sendall(json.dumps(question).encode() + b"\n")
        while not data.endswith(b"\n") and len(data) <= _LONGEST_LINE:
            part = connection.recv(_LONGEST_LINE)
            if not part:
                break
            data += part
        answer = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        kind = NetworkFailure if data else _Busy  # an overloaded socket disconnects some clients without an answer
        raise kind(f"the authority's socket {path} gave no answer: run the same command again.") from error
    if type(answer) is not dict:
        raise InputFailure(f"--desk {path}: that is not an authority's local enrolment socket.")
    if answer.get("refused") == "busy":
        raise _Busy(f"the authority's socket {path} is busy: run the same command again.")
    if "refused" in answer:
        raise InputFailure(f"the authority gives no code: {peer_text(str(answer['refused']))}.")
    return answer
