"""A study whose sessions run through a Flower grid instead of a port.

Everything between the sessions and the sum is `server.study.Study`, on an event loop in a thread of its own. Only the
thread of Flower's strategy uses the grid: it asks for a round, and carries messages both ways while that is under way.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from client.behaviour import chunks_of
from client.resuming import COUNTED
from client.visits import answer_statement
from learning.tasks.external import External
from runtime.failure import InputFailure
from secagg.keys import session_statement
from secagg.masking import choose_keystream
from secagg.signatures import verify_signature
from server.events import AttemptAborted, Event, RoundCompleted
from server.opening import open_study
from server.service import receive
from server.sessions import STOPPED, Session, SessionRefused, TooManySessions
from server.study import Outcome
from server.study_file import STUDY_FILE, load
from sordino.flower.messages import MESSAGE_TYPE, RECORD, Down, Up
from wire import coordinator_pb2 as pb
from wire.ending import ABORTED
from wire.study import round_parameters
from wire.transport import NONCE_BYTES

TURN_S: Final = (0.01, 0.5)  # shortest and longest time between two looks at the grid
PATIENT: Final = 0.1  # of the time in which nothing came, which is as long as the next look waits
NODES_S: Final = 1.0  # between two looks for new nodes
RETURN_S: Final = 10.0  # before a round, for nodes that were asked once
CHALLENGE_S: Final = 60.0  # after which a node that is silent gets another one

log = structlog.get_logger()


@dataclass
class _Node:
    """Attributes: nonce: of the challenge that it hasn't answered yet; packed: its upload, until the attempt asks."""

    nonce: bytes = b""
    opening: bool = False  # its proof is being checked
    challenges: int = 0  # since it last answered
    due: float = 0.0  # when it may get the next one, monotonic
    told: str = ""  # why it didn't answer, as logged last
    session: Session | None = None
    packed: bytes = b""

    @property
    def away(self) -> bool:
        return self.session is None or self.session.closed


class GridCoordinator:
    """Runs the rounds of a study over a grid, each when it is asked for."""

    def __init__(self, folder: Path, task: External) -> None:
        """
        Args:
            folder: made by `sordino init --task external`.
            task: with the learner that takes the means.

        Raises Failure, OSError, InfeasiblePlan: the study can't be served; says what to change.
        """
        choose_keystream(time.perf_counter)
        self.configuration = load(folder / STUDY_FILE if folder.is_dir() else folder)
        if self.configuration.study.task != External.name:
            raise InputFailure(
                f"{folder}: the study's task is {self.configuration.study.task}, not {External.name}: make one with "
                f"--task {External.name} --task-option dim={task.dim} --dataset own"
            )
        stated = self.configuration.task.get("dim")
        if stated != task.dim:
            raise InputFailure(
                f"{folder}: the study's plan is for {stated} values, and the app's model has {task.dim}: make a study "
                f"with --task-option dim={task.dim}"
            )
        self._study, self._journal = open_study(self.configuration, self._note, task=task)
        if (most := self._study.roster.largest_host()) > 1:
            self._study.close()
            self._journal.close()
            raise InputFailure(
                f"{folder}: a host of the study has {most} participants, and a Flower node is one: make one with as "
                "many --hosts as --participants"
            )
        self._study.sessions.most_message_bytes = self._study.bounds.control_bytes
        self._upload_size = round_parameters(self._study.terms.plan).upload_size
        self._nodes: dict[int, _Node] = {}
        self._pending: dict[str, tuple[int, Session | None, bytes]] = {}  # message -> node, its session, what was sent
        self._down: queue.Queue[tuple[int, pb.CoordinatorMessage]] = queue.Queue()
        self._carried: tuple[tuple[bytes, bytes], list[bytes], bytes] = (b"", b""), [], b""
        self._looked_at = -NODES_S
        self._moved_at = 0.0  # when a message last went either way, monotonic
        self._last: Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._asked, self._idle = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="study", daemon=True)
        self._thread.start()
        try:
            self._call(self._study.restore()).result()
        except BaseException:
            self._stop()
            raise
        self._run = self._call(self._study.run("flower", before_round=self._between_rounds))

    # ------------------------------------------------------------ on the strategy's thread

    def one_round(self, grid: Grid, content: RecordDict) -> RoundCompleted:
        """Run the next round; ``content`` goes to the participants with the model.

        Raises Failure, or RuntimeError with the reason: the study is over, or the round failed too often.
        """
        while not (self._idle.wait(TURN_S[0]) or self._run.done()):  # the loop gets as far as this round
            pass
        self._check()
        self._gather(grid)
        self._idle.clear()
        self._last = None
        self._loop.call_soon_threadsafe(self._asked.set)
        while not (self._idle.is_set() or self._run.done()):
            self._challenge(grid)
            self._send(grid, content)
            for reply in grid.pull_messages(list(self._pending)) if self._pending else ():
                self._take(reply)
                self._moved_at = time.monotonic()
        # What nodes that were lost might still say is void.
        self._pending = {name: one for name, one in self._pending.items() if one[1] is None or not one[1].closed}
        if not isinstance(self._last, RoundCompleted):
            if isinstance(self._last, AttemptAborted):
                nobody = not any(one.session for one in self._nodes.values())
                hint = "; does the app have ClientApp(mods=[secure_aggregation_mod])?" if nobody else ""
                raise RuntimeError(f"the round has no sum: {self._last.phase}: {self._last.reason}{hint}")
            self._check()
            raise RuntimeError("the round has no sum")
        return self._last

    def _gather(self, grid: Grid) -> None:
        """Before a round, give nodes a moment that have just come, or whose last answer was lost."""
        until, self._looked_at = time.monotonic() + RETURN_S, -NODES_S
        while time.monotonic() < until:
            self._challenge(grid)
            for reply in grid.pull_messages(list(self._pending)) if self._pending else ():
                self._take(reply)
            if not any(one.challenges <= 1 and one.away for one in self._nodes.values()):
                break
            time.sleep(TURN_S[0])
        if len(self._nodes) < (needed := self._study.terms.plan.quorum):
            log.warning(
                f"the study needs {needed} nodes, and there are {len(self._nodes)}: start more, or for a simulation "
                "flwr federation simulation-config @none/default SUPERLINK --num-supernodes N"
            )

    def _check(self) -> None:
        if self._run.done():
            outcome: Outcome = self._run.result()
            if outcome.reason == ABORTED:
                raise RuntimeError("a round failed too often: another run over the same study goes on with that round")
            raise RuntimeError(f"the study is over: {outcome.reason}; more rounds need a new study")

    def _challenge(self, grid: Grid) -> None:
        """Greet the nodes that have no session."""
        if time.monotonic() - self._looked_at < NODES_S:
            return
        self._looked_at = time.monotonic()
        waiting = {node for node, _, _ in self._pending.values()}
        for node in grid.get_node_ids():
            known = self._nodes.setdefault(node, _Node())
            if known.away and node not in waiting and not known.opening and known.due <= self._looked_at:
                known.challenges += 1
                known.due = self._looked_at + min(2.0**known.challenges, CHALLENGE_S)
                known.nonce, known.session = secrets.token_bytes(NONCE_BYTES), None
                record = self._record(Down(nonce=known.nonce))
                self._push(grid, node, b"", RecordDict({RECORD: record}), ttl=CHALLENGE_S)

    def _send(self, grid: Grid, content: RecordDict) -> None:
        """Send what waits, after a moment in which more may come."""
        waits = PATIENT * (time.monotonic() - self._moved_at)
        try:
            node, message = self._down.get(timeout=min(max(waits, TURN_S[0]), TURN_S[1]))
            self._moved_at = time.monotonic()
            while True:
                kind = message.WhichOneof("message")
                down = Down(message=message.SerializeToString())
                with_model = kind == "neighbour_shares"
                if with_model:
                    down.clips = list(self._study.clips)
                record = {RECORD: self._record(down)}
                self._push(grid, node, down.message, RecordDict({**(dict(content) if with_model else {}), **record}))
                node, message = self._down.get_nowait()
        except queue.Empty:
            return

    def _record(self, down: Down) -> ConfigRecord:
        shown = self._study.shown
        if self._carried[0] != shown:  # read once for each roster, not for each message
            documents = [one for one in map(self._study.document, shown) if one is not None]
            self._carried = shown, documents, self._study.history(0)
        (down.study_sha256, down.roster_sha256), down.documents, down.history = self._carried
        return down.to_record()

    def _push(self, grid: Grid, node: int, sent: bytes, content: RecordDict, ttl: float | None = None) -> None:
        message = Message(content, dst_node_id=node, message_type=MESSAGE_TYPE, ttl=ttl)
        for name in grid.push_messages([message]):
            if name:
                self._pending[name] = node, self._nodes[node].session, sent

    def _take(self, reply: Message) -> None:
        """An answer of a node, or Flower's word that there is none."""
        node, session, sent = self._pending.pop(reply.metadata.reply_to_message_id, (None, None, b""))
        if node is None:
            return
        known, reason = self._nodes[node], reply.error.reason if reply.has_error() else "the record is missing"
        try:
            up = None if reply.has_error() else Up.read(reply.content)
        except ValueError as error:
            up, reason = None, str(error)
        if up is not None and up.proof and session is None:
            known.opening = True
            self._call(self._open(node, known, up)).add_done_callback(_told)
        elif up is not None and session is not None and self._is_its_own(session, sent, up):
            self._loop.call_soon_threadsafe(self._receive, known, session, up)
        else:
            if reason != known.told:
                log.warning("a node didn't answer", node=node, reason=reason)
            known.told = str(reason)
            self._loop.call_soon_threadsafe(self._lost, session)

    def _is_its_own(self, session: Session, sent: bytes, up: Up) -> bool:
        """Whether the participant signed this answer. Another one, or a longer vector, is nobody's fault."""
        if len(up.upload) not in (0, self._upload_size):
            return False
        statement = answer_statement(self._study.terms.study, session.identity, sent, up.parts())
        return verify_signature(session.identity, up.signature, statement)

    def close(self) -> None:
        """Stop: the rounds that are left can be run by another coordinator over the same folder."""
        if not self._run.done():
            self._run.cancel()
        self._call(self._end()).result()
        self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._study.close()
        self._journal.close()

    def _call(self, one: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(one, self._loop)

    # ------------------------------------------------------------ on the event loop

    def _note(self, event: Event) -> None:
        if isinstance(event, RoundCompleted | AttemptAborted):
            self._last = event

    async def _between_rounds(self, round_: int) -> None:
        self._asked.clear()
        self._idle.set()
        await self._asked.wait()

    async def _open(self, node: int, known: _Node, up: Up) -> None:
        try:
            await self._opened(node, known, up)
        finally:
            known.opening = False

    async def _opened(self, node: int, known: _Node, up: Up) -> None:
        sessions = self._study.sessions
        opened, proof = pb.Open.FromString(up.opened), pb.Proof.FromString(up.proof)
        identity, _, _ = sessions.challenge(opened)
        nonce, known.nonce = known.nonce, b""
        if not nonce:
            raise SessionRefused("no challenge of this coordinator was answered")
        statement = session_statement(self._study.terms.study, identity, opened.nonce, nonce)
        await self._study.sessions.check_proof(identity, statement, proof.signature)
        known.session = session = sessions.open(identity)
        known.challenges, known.due = 0, 0.0
        self._study.opened(session)
        self._start(self._write(node, known, session))
        self._study.session_ready(session, pb.Ready())

    async def _write(self, node: int, known: _Node, session: Session) -> None:
        while (raw := await session.outbox.get()) is not None:
            message = pb.CoordinatorMessage.FromString(raw)
            kind = message.WhichOneof("message")
            if kind in COUNTED:
                self._down.put((node, message))
            elif kind == "upload_credit":
                packed, known.packed = known.packed, b""
                self._start(self._upload(session, packed))

    async def _upload(self, session: Session, packed: bytes) -> None:
        try:
            await self._study.upload(session, chunks_of(packed))
        except Exception as error:  # it is told where a participant is dropped for it
            log.info("an upload isn't taken", reason=str(error))

    def _receive(self, known: _Node, session: Session, up: Up) -> None:
        known.packed = up.upload
        try:
            for raw in up.messages:
                receive(self._study, session, raw)
        except SessionRefused as error:
            self._study.sessions.lost(session, str(error))

    def _lost(self, session: Session | None) -> None:
        if session is not None:
            self._study.sessions.lost(session, STOPPED)

    def _start(self, one: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(one)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _told(done: Any) -> None:
    """A refused session is a matter of its node."""
    error = None if done.cancelled() else done.exception()
    if isinstance(error, SessionRefused | TooManySessions | ValueError):
        log.warning("a node's session is refused", reason=str(error))
    elif error is not None:
        log.error("a node's session failed", error=type(error).__name__)
