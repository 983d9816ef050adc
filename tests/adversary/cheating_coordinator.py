"""A coordinator that sends any message to any participant, over real gRPC with mutual TLS, to the deployed client; two
participants collude with it.

    @in_attempt("What must happen.", naive("a check"))    # RoundStart; all have advertised
    async def name_of_the_script(attempt: Attempt) -> Seen:
        '''What it does.'''
        cohort = await attempt.show()                     # CohortKeys; all deal
        await attempt.tell_u2(cohort)                     # NeighbourShares; all upload
        signed = await attempt.ask_to_sign(cohort, sets)  # SurvivorSets
        await attempt.ask_to_unmask(cohort, sets, signed) # UnmaskingRequest
        return attempt.verdict(never="unmasking")

Each step can go to some participants only, or differ between them; later steps skip participants that have refused.
`twist` changes the bytes of any outgoing message. Everything that arrives is recorded (`Notes`), with what was sealed
for the colluders. At the end `broken_promises` tries to open everything with it and names what should have stayed
closed. The clients run in this process, so each step ends exactly when they have handled its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.context import RoundConfig
from secagg.lottery import Ticket
from secagg.roster import InvalidRoster, sign_roster, verify_roster
from server.service import handlers
from server.session_port import SERVER_OPTIONS
from server.sessions import Session, Sessions
from tests.adversary.attempt_in_hand import Attempt
from tests.adversary.script import COORDINATOR, Naive, Places, Run, Seen, scripted
from tests.adversary.served_study import STUDIES, Public, public_of
from tests.adversary.watched_clients import Client, joined, why_it_left
from tests.support.card_of_a_study import authority_of
from tests.support.host_in_process import ledger_of, rows_of
from tests.support.signed_rosters import published
from tests.support.study_in_process import identities
from wire import codec, coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED
from wire.roster_history import write_history
from wire.study import round_parameters
from wire.transport import unframe

PATIENCE_S = 30.0  # for what takes milliseconds
COLLUDERS = 2
_identities = functools.cache(identities)  # of a folder that many scripts are played in


class CheatingCoordinator:
    """The service behind `server.service.handlers`, and everything it can find out."""

    def __init__(self, public: Public, colluders: int) -> None:
        self.public, self.roster = public, public.roster
        keys = _identities(public.folder)
        size = len(public.roster)
        self.colluders = frozenset(range(size - colluders, size))
        self.honest = frozenset(range(size - colluders))
        self.keys = {who: keys[who] for who in range(size)}
        self.clients = {who: Client(who) for who in self.honest}
        self.documents = {public.study_sha256: public.study_bytes}
        self.roster_sha256 = self.add(public.roster_bytes)
        self.model_sha256 = self.add(public.model)
        self.study_sha256 = public.study_sha256
        self.twist: dict[str, Callable[[int, Any], Any]] = {}
        self.while_uploading: Callable[[int], Awaitable[None]] | None = None
        self.attempts: list[Attempt] = []
        self.logs: list[Any] = []
        self.journal = Path()  # of the client
        self.address = ""
        self.client_task: asyncio.Task[int] | None = None
        self.left = ""  # why the client ended by itself
        self.changed = asyncio.Event()
        self.sessions = Sessions(public.document.study, public.roster, self._session_lost)

    def add(self, document: bytes) -> bytes:
        """Serve a document; return its digest."""
        digest = hashlib.sha256(document).digest()
        self.documents[digest] = document
        return digest

    # ------------------------------------------------------------ for the service

    def opened(self, session: Session) -> None:
        digests = {"study_sha256": self.study_sha256, "roster_sha256": self.roster_sha256}
        session.send(codec.message(welcome=pb.Welcome(session_token=session.token, **digests)))

    async def requested(self, session: Session, request: pb.DocumentRequest) -> bytes | None:
        return write_history([]) if request.history_after else self.documents.get(request.sha256)

    def downloaded(self, session: Session, size: int) -> None:
        pass

    async def room(self) -> None:
        pass

    def session_ready(self, session: Session, message: pb.Ready) -> None:
        """Let a client that was cut off in an attempt resume it; the coordinator need not allow this."""
        self.sessions.set_ready(session)
        if message.HasField("resume"):
            number = message.resume.round, message.resume.attempt
            said = self.clients[session.participant].kinds(number)
            received = len([kind for kind in said if kind not in ("refusal", "upload")])
            resumed = pb.Resumed(round=number[0], attempt=number[1], received=received, uploaded="upload" in said)
            session.send(pb.CoordinatorMessage(resumed=resumed).SerializeToString())

    def phase_message(self, session: Session, message: pb.PhaseMessage, size: int) -> None:
        kind = message.WhichOneof("message") or "nothing"
        self._heard(session, (message.round, message.attempt), kind, getattr(message, kind, None))

    def refusal(self, session: Session, message: pb.Refusal, size: int) -> None:
        self._heard(session, (message.round, message.attempt), "refusal", message.code)

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes:
        packed = b"".join([bytes(unframe(chunk)) async for chunk in chunks])
        client = self.clients[session.participant]
        number = next(one for one, kind, _ in reversed(client.said) if kind != "refusal")
        client.said.append((number, "upload", packed))
        self.changed.set()
        if self.while_uploading is not None:
            await self.while_uploading(session.participant)
        return hashlib.sha256(packed).digest()

    def _heard(self, session: Session, number: tuple[int, int], kind: str, content: Any) -> None:
        client = self.clients[session.participant]
        client.said.append((number, kind, content))
        client.arrived += 1
        self.changed.set()

    def _session_lost(self, session: Session, reason: str) -> None:
        self.clients[session.participant].lost += 1
        self.changed.set()

    # ------------------------------------------------------------ telling

    def disconnect(self, who: int) -> None:
        """Cut one participant's stream."""
        session = self.sessions.get(who)
        assert session is not None
        self.sessions.lost(session, "cut")

    async def ready(self, who: Iterable[int] | None = None) -> None:
        """Wait until these participants, by default all honest ones, have a session."""
        wanted = self.honest if who is None else frozenset(who)
        await self._until(lambda: wanted <= self.sessions.ready(), self.sessions.changed)

    async def until_left(self) -> None:
        """Wait until no client is connected."""
        await self._until(lambda: not len(self.sessions), self.sessions.changed)

    async def tell(self, messages: Mapping[int, Any]) -> None:
        """Send each client a message, several or raw bytes; wait until all have answered or lost the session."""
        waits: list[tuple[Client, int, int]] = []
        for who, content in messages.items():
            client, session = self.clients[who], self.sessions.get(who)
            if session is None:
                continue
            sent = list(self._twisted(who, content))
            waits.append((client, client.handled + len(sent), client.lost))
            for one in sent:
                session.send(one if isinstance(one, bytes) else one.SerializeToString())
        await self._until(
            lambda: all(
                client.lost > lost or (client.handled >= wanted and client.arrived >= client.sent)
                for client, wanted, lost in waits
            ),
            self.changed,
        )

    def _twisted(self, who: int, content: Any) -> Iterable[Any]:
        for message in content if isinstance(content, list) else [content]:
            kind = "raw" if isinstance(message, bytes) else message.WhichOneof("message")
            if kind not in self.twist:
                yield message
                continue
            other = pb.CoordinatorMessage()
            other.CopyFrom(message)
            instead = self.twist[kind](who, getattr(other, kind))
            if instead is None:  # changed in place
                yield other
            else:
                yield from instead if isinstance(instead, list) else [instead]

    async def _until(self, condition: Callable[[], bool], changed: asyncio.Event) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                changed.clear()
                await changed.wait()

    def sign_terms(self, document: bytes, **changes: Any) -> None:
        """Let the authority sign the roster with these terms, and serve both."""
        key = authority_of(self.public.folder)
        roster = dataclasses.replace(self.roster, terms=hashlib.sha256(document).digest(), **changes)
        signed = sign_roster(roster, key)
        self.public = dataclasses.replace(self.public, study_bytes=document, roster=roster, roster_bytes=signed)
        self.roster, self.study_sha256, self.roster_sha256 = roster, self.add(document), self.add(signed)

    def statement(
        self, roster: bytes | None = None, signed_by: Ed25519PrivateKey | None = None, **changes: float
    ) -> bytes:
        """Return the authority's statement that a roster is the newest; the study's own for one that it didn't sign."""
        key = authority_of(self.public.folder)
        found = self.roster
        with contextlib.suppress(InvalidRoster):
            found = verify_roster(roster or b"", key.public_key().public_bytes_raw())
        return published(found, signed_by or key, **changes).newest_file

    async def begin(
        self,
        round_: int = 1,
        attempt: int = 1,
        *,
        to: Iterable[int] | None = None,
        model: bytes | None = None,
        ticket: Ticket | None = None,
        roster: bytes | None = None,
        newest: bytes | None = None,
    ) -> Attempt:
        """Announce an attempt; all participants that take part advertise."""
        model_sha256 = self.model_sha256 if model is None else self.add(model)
        newest = self.statement(roster) if newest is None else newest
        config = RoundConfig(
            roster=self.roster,
            round=round_,
            attempt=attempt,
            study_digest=self.public.study_sha256,
            model_digest=model_sha256,
            parameters=round_parameters(self.public.document.plan),
            ticket=ticket,
            newest=newest,
        )
        start = pb.RoundStart(
            round=round_,
            attempt=attempt,
            model_sha256=model_sha256,
            study_sha256=self.study_sha256,
            roster_sha256=self.roster_sha256 if roster is None else self.add(roster),
            ticket=codec.write_ticket(ticket),
            newest=newest,
        )
        one = Attempt(self, config)
        self.attempts.append(one)
        audience = sorted(self.honest if to is None else to)
        await self.tell({who: pb.CoordinatorMessage(round_start=start) for who in audience})
        one.collect_advertisements(audience)
        return one

    # ------------------------------------------------------------ what came of it

    def gone(self) -> Seen | None:
        """Return the outcome if the client has ended by itself."""
        task = self.client_task
        if task is None or not task.done():
            return None
        said = sorted({kind for one in self.clients.values() for kind in one.kinds()})
        assert not said, f"it left after it had sent {said}"
        return Seen("leaves", why_it_left(task))

    def reasons(self) -> list[str]:
        """Return why clients refused, by their logs; each reason once."""
        found = [str(entry["reason"]) for entry in self.logs if str(entry.get("event", "")).startswith("refused")]
        return list(dict.fromkeys(found))

    def came_out(self, outcome: str, detail: str = "") -> Seen:
        """Return the outcome, with every promise that was broken."""
        return Seen(outcome, detail or "; ".join(self.reasons()[:2]), tuple(self.broken_promises()))

    def broken_promises(self) -> list[str]:
        """Return what the coordinator opened or received and should not have."""
        secrets = [one for attempt in self.attempts for one in attempt.lost()]
        return [*secrets, *self._two_answers(), *(dict.fromkeys(self._uncharged()) if self.journal.exists() else ())]

    def _two_answers(self) -> Iterator[str]:
        for who, client in self.clients.items():
            answers: dict[Any, set[bytes]] = defaultdict(set)
            for number, kind, content in client.said:
                if kind not in ("refusal", "nothing"):
                    answers[number, kind].add(content if kind == "upload" else content.SerializeToString())
            for (_, kind), given in answers.items():
                if len(given) > 1:
                    yield f"participant {who} gave two different answers: {kind}"

    def _uncharged(self) -> Iterator[str]:
        ledger = rows_of(ledger_of(self.journal))
        rows = [(self.roster.positions[bytes.fromhex(row.identity or "")], row) for row in ledger]
        charged = {(who, row.round, row.attempt) for who, row in rows if row.kind == CHARGE}
        exact = {(who, row.round, row.attempt) for who, row in rows if row.kind == EXACT}
        for who, row in rows:
            cohorts = [
                cohort for one in self.attempts if one.number == (row.round, row.attempt) for cohort in one.cohorts
            ]
            if row.kind == EXCLUDED and any(who in sum_ for one in cohorts for sum_ in one.openable(self.honest)):
                yield f"participant {who} takes back the charge for a sum that holds its input"
        for who, client in self.clients.items():
            for number, kind, _ in client.said:
                if kind in ("masked_input", "upload", "unmasking") and (who, *number) not in charged:
                    yield f"participant {who} sent its input and was not charged"
                if kind == "unmasking" and (who, *number) not in exact:
                    yield f"participant {who} opened a sum that its ledger doesn't hold"


@contextlib.asynccontextmanager
async def serving(
    places: Places, study: str = "nine", *, colluders: int = COLLUDERS, **tables: dict[str, Any]
) -> AsyncIterator[CheatingCoordinator]:
    """Serve a study without clients; ``tables`` change study.toml."""
    folder = places.study(study, **STUDIES[study])
    coordinator = CheatingCoordinator(public_of(folder, **tables), colluders)
    coordinator.journal = places.work() / "journal.sqlite"
    grpc_server = grpc.aio.server(options=SERVER_OPTIONS)
    grpc_server.add_generic_rpc_handlers((handlers(coordinator),))  # type: ignore[arg-type]
    port = grpc_server.add_secure_port("127.0.0.1:0", coordinator.public.credentials)
    coordinator.address = f"localhost:{port}"
    await grpc_server.start()
    try:
        yield coordinator
    finally:
        coordinator.sessions.close_all()
        await grpc_server.stop(None)


@contextlib.asynccontextmanager
async def cheating(
    places: Places, study: str = "nine", *, colluders: int = COLLUDERS, **settings: dict[str, Any]
) -> AsyncIterator[CheatingCoordinator]:
    """Serve a study and start the honest participants' client; ``settings`` change tables of host.toml."""
    async with serving(places, study, colluders=colluders) as coordinator, joined(coordinator, **settings):
        yield coordinator


# ---------------------------------------------------------------- scripts


def coordinator_script(must: str, *check: Naive, outcome: str = "refused", script: str = "") -> Callable[[Run], Run]:
    """Register the function below as a script of a cheating coordinator, by default with its name and docstring."""

    def decorate(run: Run) -> Run:
        said = script or f"{run.__name__.replace('_', '-')}: {' '.join(str(run.__doc__).split())}"
        return scripted(COORDINATOR, said, must, outcome, *check)(run)

    return decorate


Lie = Callable[[CheatingCoordinator], Awaitable[Seen]]


def with_coordinator(
    must: str, *check: Naive, outcome: str = "refused", script: str = "", **setting: Any
) -> Callable[[Lie], Lie]:
    """As `coordinator_script`, for a function of `cheating(**setting)`."""

    def decorate(lie: Lie) -> Lie:
        @coordinator_script(must, *check, outcome=outcome, script=script)
        @functools.wraps(lie)
        async def run(places: Places) -> Seen:
            async with cheating(places, **setting) as coordinator:
                return await lie(coordinator)

        return lie

    return decorate


def in_attempt(*texts_and_checks: Any, **setting: Any) -> Callable[[Callable[[Attempt], Awaitable[Seen]]], Lie]:
    """As `with_coordinator`, for a function of the coordinator's first attempt, in which all have advertised."""

    def decorate(lie: Callable[[Attempt], Awaitable[Seen]]) -> Lie:
        @with_coordinator(*texts_and_checks, **setting)
        @functools.wraps(lie)
        async def begun(coordinator: CheatingCoordinator) -> Seen:
            return await lie(await coordinator.begin())

        return begun

    return decorate


# What participants answer to each message of an attempt, and must not send if they refuse it.
ANSWERS = {
    "cohort_keys": "share_keys",
    "neighbour_shares": "masked_input",
    "survivor_sets": "consistency",
    "unmasking_request": "unmasking",
}


def one_message_changed(
    kind: str, *texts_and_checks: Any, **setting: Any
) -> Callable[[Callable[[int, Any], None]], Lie]:
    """Register a script of an honest attempt in which the function below changes each message of a kind.

    ``kind``: a field of `CoordinatorMessage`; the function gets the receiver and the message.
    """

    def decorate(change: Callable[[int, Any], None]) -> Lie:
        @in_attempt(*texts_and_checks, **setting)
        @functools.wraps(change)
        async def changed(attempt: Attempt) -> Seen:
            attempt.coordinator.twist[kind] = change
            await attempt.run()
            return attempt.verdict(never=ANSWERS[kind])

        return changed

    return decorate
