"""What is asked at an authority's desk on this machine: a join code, and whether somebody still has her place.

The desk is a Unix socket of ``sordino authority run --desk``; `authority.local_enrolment` says what is spoken there.
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

from runtime.failure import ExitCode, Failure
from runtime.text import peer_text
from secagg.signatures import verify_signature
from wire.authority_statements import STANDING_NONCE_BYTES, standing_statement

OPENS_S, OPENS_POLL_S = 60.0, 0.25
"""How long a desk that isn't open yet is waited for: containers start in any order."""
ANSWERS_S: Final = 60.0  # when many ask at the same time they get their codes one after the other
TELLS_S: Final = 20.0  # who was revoked, that is; it may have to wait for a version that is being signed
BUSY_S: Final = 20.0
"""How long a desk that has too many visitors is asked again: a flood takes most of its answers, not all."""
BUSY_POLL_S: Final = (0.05, 0.35)
"""From one such question to the next, at random: visitors that were sent away together don't come back together."""
_LONGEST_LINE: Final = 4096

Say = Callable[[str], None]


class _Busy(Failure):
    """The desk is there, and may answer later."""


@dataclass(frozen=True)
class DeskCode:
    """A code that the desk takes back unless `keep` is called."""

    code: str = field(repr=False)
    keep: Callable[[], None]


@contextlib.contextmanager
def code_from_desk(path: Path, say: Say) -> Iterator[DeskCode]:
    """A fresh join code, for as long as this lasts or until it is kept.

    Raises:
        Failure: no desk opens there, or it gives no code.
    """
    with _visit(path, say, OPENS_S) as desk:
        answer = _ask(desk, path, {"want": "code"})
        if type(answer.get("code")) is not str:
            raise Failure(ExitCode.INPUT, f"--desk {path}: what listens there is no authority's desk.")

        def keep() -> None:
            with contextlib.suppress(OSError):  # an authority that has ended leaves its codes as they are
                desk.sendall(b'{"kept": true}\n')

        yield DeskCode(answer["code"], keep)


def state_at_desk(path: Path, identity: bytes, *, study: str, authority: bytes, say: Say) -> str | None:
    """What the authority says of an identity: ``member``, ``revoked`` or ``unknown``.

    A desk that is busy is asked again: else a flood of questions would have a home used that was revoked.

    Args:
        authority: public key (32 bytes) that the answer must be signed with.

    Returns:
        None where nobody answers, or answers with that signature: an authority may be switched off, and anybody who can
        write to the socket's folder may have put another one in its place.
    """
    ends, told = time.monotonic() + BUSY_S, False
    while True:
        try:
            return _state(path, identity, study, authority, say)
        except _Busy:
            if time.monotonic() >= ends:
                say(f"The authority's desk {path} is busy still: this goes on without its word.")
                return None
        except (Failure, OSError):
            return None
        if not told:
            say(f"The authority's desk {path} is busy: it is asked again, for {BUSY_S:g} s.")
            told = True
        time.sleep(random.uniform(*BUSY_POLL_S))


def _state(path: Path, identity: bytes, study: str, authority: bytes, say: Say) -> str | None:
    nonce = os.urandom(STANDING_NONCE_BYTES)
    question = {"want": "state", "identity": identity.hex(), "nonce": nonce.hex()}
    with _visit(path, lambda _: None, 0, TELLS_S) as desk:
        answer = _ask(desk, path, question)
    state = str(answer.get("state"))
    with contextlib.suppress(ValueError):
        statement = standing_statement(study, identity, state, nonce)
        if verify_signature(authority, bytes.fromhex(str(answer.get("signature"))), statement):
            return state
    say(f"What listens at {path} isn't the authority of this participant: it isn't believed.")
    return None


@contextlib.contextmanager
def _visit(path: Path, say: Say, patience_s: float, answers_s: float = ANSWERS_S) -> Iterator[socket.socket]:
    ends, told = time.monotonic() + patience_s, False
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as desk:
            desk.settimeout(answers_s)
            try:
                desk.connect(str(path))
            except BlockingIOError as error:
                if time.monotonic() >= ends:
                    raise _Busy(
                        ExitCode.NETWORK, f"the desk {path} has too many visitors: run the same command again."
                    ) from error
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if time.monotonic() >= ends:
                    raise Failure(
                        ExitCode.NETWORK,
                        f"nobody listens at the desk {path}: is `sordino authority run DIR --desk {path}` running, "
                        "and is its folder there?",
                    ) from error
            except OSError as error:
                raise Failure(
                    ExitCode.INPUT, f"--desk {path} can't be opened ({error.strerror or error}): name a desk's socket."
                ) from error
            else:
                yield desk
                return
        if not told:
            say(f"Waiting for the authority's desk {path}, for {patience_s:g} s.")
            told = True
        time.sleep(OPENS_POLL_S)


def _ask(desk: socket.socket, path: Path, question: dict[str, Any]) -> dict[str, Any]:
    data = b""
    try:
        desk.sendall(json.dumps(question).encode() + b"\n")
        while not data.endswith(b"\n") and len(data) <= _LONGEST_LINE:
            part = desk.recv(_LONGEST_LINE)
            if not part:
                break
            data += part
        answer = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        kind = Failure if data else _Busy  # a desk that has too many visitors sends some away without a word
        raise kind(ExitCode.NETWORK, f"the desk {path} gave no answer: run the same command again.") from error
    if type(answer) is not dict:
        raise Failure(ExitCode.INPUT, f"--desk {path}: what listens there is no authority's desk.")
    if answer.get("refused") == "busy":
        raise _Busy(ExitCode.NETWORK, f"the desk {path} is busy: run the same command again.")
    if "refused" in answer:
        raise Failure(ExitCode.INPUT, f"the authority's desk gives no code: {peer_text(str(answer['refused']))}.")
    return answer
