"""`sordino serve` with a record: the real coordinator, which reports to its parent what it receives and asks.

    python -m tests.crashes.recorded_study STUDY PARENT

`watch` wraps the entry points of a `server.study.Study`. Before the study acts, it notes a digest of every phase
message and of every upload, with identity, round and attempt, and every question that is sent. As a process it prints
each fact as a line of JSON on standard output; the output of `sordino serve` goes to standard error.

Its network replays: each unmasking request is sent twice, and a participant that opens a new session first gets again,
unchanged, all messages of the last attempt it was invited to. An honest client answers the first with the same bytes
and refuses the second.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import server.coordinator
import server.opening
from runtime.failure import Failure
from runtime.logs import configure_logs
from runtime.processes import end_with_parent
from secagg.messages import request_digest
from server.events import Event, to_json
from server.study import Study
from server.study_file import load
from wire import codec, coordinator_pb2 as pb
from wire.transport import unframe

Note = Callable[[dict[str, Any]], None]

QUESTIONS = (
    *("round_start", "cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request"),
    "survivor_proof",  # no question, but the reason to take back a charge
)
ANSWERS = ("advertise_keys", "share_keys", "masked_input", "consistency", "unmasking")


class Watch:
    """Note what a study receives and asks from now on.

    Args:
        note: called on the event loop with each fact: ``what``, ``who`` (identity, hexadecimal), ``at`` (monotonic
            seconds, the same clock for all processes), and further fields.
    """

    def __init__(self, study: Study, note: Note) -> None:
        self._study, self._note = study, note
        self._size = study._parameters.upload_size
        self._asked: dict[str, list[bytes]] = {}  # in the last attempt of each identity
        self._offered: dict[str, tuple[int, int]] = {}  # the attempt in which each identity offered a vector last
        self._unmasked: set[tuple[str, int, int]] = set()
        self._honest_send: dict[Any, Callable[[bytes], None]] = {}
        sessions = study.sessions
        self._phase_message, self._refusal, self._upload = study.phase_message, study.refusal, study.upload
        self._open, self._set_ready, self._lost = sessions.open, sessions.set_ready, sessions.lost
        study.phase_message = self._on_phase  # type: ignore[method-assign]
        study.refusal = self._on_refusal  # type: ignore[method-assign]
        study.upload = self._on_upload  # type: ignore[method-assign]
        sessions.open = self._on_open  # type: ignore[method-assign]
        sessions.set_ready = self._on_ready  # type: ignore[method-assign]
        sessions.lost = self._on_lost  # type: ignore[method-assign]

    def _who(self, session: Any) -> str:
        return self._study._membership.roster.identity(session.participant).hex()

    def _tell(self, what: str, session: Any, **more: Any) -> None:
        self._note({"what": what, "who": self._who(session), "at": time.monotonic(), **more})

    # ------------------------------------------------------------ sessions

    def _on_open(self, participant: int) -> Any:
        session = self._open(participant)
        self._honest_send[session] = session.send
        session.send = lambda message: self._send(session, message)  # type: ignore[method-assign]
        self._tell("opened", session)
        return session

    def _on_ready(self, session: Any) -> None:
        if session.ready:
            return
        self._set_ready(session)
        self._tell("ready", session)
        for message in self._asked.get(self._who(session), ()):
            self._ask(session, message, again=True)

    def _on_lost(self, session: Any, reason: str) -> None:
        if self._honest_send.pop(session, None) is not None:
            self._tell("lost", session)
        self._lost(session, reason)

    # ------------------------------------------------------------ what is asked

    def _send(self, session: Any, message: bytes) -> None:
        if self._ask(session, message) == "unmasking_request":
            self._ask(session, message, again=True)

    def _ask(self, session: Any, message: bytes, again: bool = False) -> str | None:
        parsed = pb.CoordinatorMessage.FromString(message)
        kind = parsed.WhichOneof("message")
        send = self._honest_send.get(session)
        if send is None:
            return kind
        if kind in (*QUESTIONS, "round_end"):
            content = getattr(parsed, kind)
            facts: dict[str, Any] = {"kind": kind, "round": content.round, "attempt": content.attempt, "again": again}
            if kind == "unmasking_request":
                facts["request"] = request_digest(codec.read_unmasking_request(content)).hex()
            if not again and kind in QUESTIONS:
                asked = self._asked.setdefault(self._who(session), [])
                if kind == "round_start":
                    asked.clear()
                asked.append(message)
            self._tell("asked", session, **facts)
        send(message)
        return kind

    # ------------------------------------------------------------ what arrives

    def _on_phase(self, session: Any, message: pb.PhaseMessage, size: int) -> None:
        kind = message.WhichOneof("message") or "nothing"
        facts: dict[str, Any] = {"kind": kind, "round": message.round, "attempt": message.attempt}
        facts["sha256"] = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
        who = self._who(session)
        if kind == "masked_input":
            facts["vector"] = message.masked_input.sha256.hex()
            self._offered[who] = (message.round, message.attempt)
        if kind == "consistency":
            facts["signature"] = message.consistency.signature.hex()
        self._tell("said", session, **facts)
        if kind == "unmasking":
            key = (who, message.round, message.attempt)
            if key in self._unmasked:
                return  # it was asked for twice; the protocol counts one
            self._unmasked.add(key)
        self._phase_message(session, message, size)

    def _on_refusal(self, session: Any, message: pb.Refusal, size: int) -> None:
        self._tell("refused", session, code=message.code, round=message.round, attempt=message.attempt)
        self._refusal(session, message, size)

    async def _on_upload(self, session: Any, chunks: AsyncIterator[bytes]) -> bytes:
        round_, attempt = self._offered.get(self._who(session), (0, 0))
        number = {"round": round_, "attempt": attempt}
        # The call itself counts as its first byte: its client is about to send the vector.
        self._tell("said", session, kind="upload", **number)
        content, count = hashlib.sha256(), 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal count
            async for chunk in chunks:
                data = unframe(chunk)
                if not count:
                    self._tell("chunk", session, **number)
                content.update(data)
                count += len(data)
                yield chunk

        try:
            return await self._upload(session, counted())
        finally:
            # A stream cut off by its sender's death can end like a complete one.
            vector = content.hexdigest() if count == self._size else None
            self._tell("upload", session, bytes=count, vector=vector, **number)


def tell(fact: dict[str, Any]) -> None:
    """Write a fact to standard output; waits while the pipe is full."""
    line = json.dumps(fact, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(sys.stdout.fileno(), line) :]


class RecordedStudy(Study):
    """The real study, watched from its beginning."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        Watch(self, tell)


def tell_event(happened: Event) -> None:
    """Write the events that begin or end an attempt."""
    fact = to_json(happened)
    if fact["kind"] in ("attempt_started", "attempt_resumed", "round_completed", "attempt_aborted", "study_finished"):
        kept = {name: fact[name] for name in ("round", "attempt", "u3", "reason", "phase", "seconds") if name in fact}
        tell({"what": "event", "event": fact["kind"], "at": time.monotonic(), **kept})


def main(arguments: list[str]) -> int:
    """Run the process: see the module."""
    folder, parent = arguments
    end_with_parent(int(parent))
    configure_logs()
    server.opening.Study = RecordedStudy  # type: ignore[misc]
    try:
        return server.coordinator.serve(load(Path(folder)), on_event=tell_event)
    except Failure as error:
        print(f"coordinator: {error}", file=sys.stderr)
        return int(error.code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
