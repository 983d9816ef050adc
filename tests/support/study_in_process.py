"""A real coordinator without its process: the study, its service and a gRPC server with TLS on a free port.

`Peer` is a participant on the protocol core alone: no training, no journal, and every outgoing message can be replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import server.attempt.attempt
from authority.new_study import make_local_study, new_study
from client.connection import SERVICE, open_channel, open_session
from client.credentials import load_certificate, load_identity
from client.host_file import load as load_host
from learning.task_names import BOUNDED
from mechanisms.encoder import Encoder
from secagg.client_phases import AdvertiseKeys
from secagg.context import RoundConfig
from secagg.keys import IdentityKey
from secagg.roster import Roster, verify_roster
from secagg.server_unmasking import Completed
from server.events import Event, to_json
from server.journal import Journal
from server.opening import open_study
from server.session_port import make_session_server, read_certificate
from server.study import Study
from server.study_file import StudyConfiguration, load as load_study
from tests.support.card_of_a_study import authority_of
from tests.support.near_gateways import COUNT, NearGateway, near_gateways
from wire import codec, coordinator_pb2 as pb
from wire.study import StudyDocument, round_parameters
from wire.transport import TOKEN_METADATA, frames

PARTICIPANTS = 7  # with two assumed to collude five must stay: two may misbehave
PATIENCE_S = 60.0  # for what takes milliseconds on an idle machine
QUICK = {  # a phase with a silent participant lasts this long
    "connect_s": 30.0,
    **dict.fromkeys(("advertise_keys_s", "share_keys_s", "masked_input_s"), 20.0),
    **dict.fromkeys(("consistency_check_s", "unmasking_s"), 20.0),
}


def make_folder(directory: Path, **options: Any) -> Path:
    """Make a study whose noise is so small (epsilon 1000) that single inputs show in its sums.

    Tests make keys and dealings by hand, so keys are X25519 alone; the studies of other folders have the default.
    """
    chosen: dict[str, Any] = {
        **{"key_agreement": "x25519", "name": "seven", "participants": PARTICIPANTS, "hosts": 1, "rounds": 2},
        **{"epsilon": 1000.0, "delta": 0.1, "min_survivors": 5, "quorum": 5},
        **({} if options.get("task") in BOUNDED else {"server_momentum": 0.0}),
        "listen": "127.0.0.1:1",  # only named in host.toml; tests listen on a free port
    } | options
    make_local_study(directory, new_study(**chosen))
    return directory


def roster_of(folder: Path) -> Roster:
    return verify_roster((folder / "roster.json").read_bytes(), authority_of(folder).public_key().public_bytes_raw())


@dataclass
class Coordinator:
    """A coordinator under test."""

    folder: Path
    study: Study
    journal: Journal
    addresses: list[str]
    events: list[dict[str, Any]]
    changed: asyncio.Event
    gateways: list[NearGateway] = field(default_factory=list)  # all that were started
    running: asyncio.Task[Any] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the sessions; of the gateways, in turns."""
        self.addresses.append(self.addresses.pop(0))
        return self.addresses[-1]

    def start(self) -> None:
        """Run the study's rounds."""
        self.running = asyncio.create_task(self.study.run(self.address))

    def tell_first(self, listener: Callable[[Event], None]) -> None:
        """Tell a listener of each event before it is recorded."""
        record = self.study._on_event
        assert record is not None

        def both(event: Event) -> None:
            listener(event)
            record(event)

        self.study._on_event = both

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the events of a kind that hold these values."""
        return [
            event
            for event in self.events
            if event["kind"] == kind and all(event.get(name) == value for name, value in wanted.items())
        ]

    async def wait_for(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """Wait for such an event; return the first."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.of(kind, **wanted):
                self.changed.clear()
                if self.running is not None and self.running.done():
                    self.running.result()
                    assert self.of(kind, **wanted), f"the study ended without {kind} {wanted}"
                await self.changed.wait()
        return self.of(kind, **wanted)[0]

    async def finish(self) -> Any:
        """Wait for the study's outcome."""
        assert self.running is not None
        async with asyncio.timeout(PATIENCE_S):
            return await self.running

    async def stop(self) -> None:
        """End the study's rounds as a request to stop does, if they run."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    def peers(self, twists: Mapping[int, dict[str, Twist]] | None = None) -> list[Peer]:
        """A peer for each participant, with the twists of its position."""
        return [Peer(self, key, (twists or {}).get(at, {})) for at, key in enumerate(identities(self.folder))]

    async def play(self, peers: Sequence[Peer] | None = None) -> Any:
        """Run the whole study, with honest peers unless others are given; its outcome."""
        async with playing(list(peers) if peers is not None else self.peers()):
            self.start()
            return await self.finish()

    def channel(self) -> grpc.aio.Channel:
        """Open a TLS channel as a client process does."""
        home = self.folder / "hosts" / "host-01"
        certificate = load_certificate(home / "tls" / "client.pem", home / "tls" / "client.key")
        return open_channel(self.address, (home / "ca.pem").read_bytes(), certificate)


def with_tables(configuration: StudyConfiguration, tables: Mapping[str, dict[str, Any]]) -> StudyConfiguration:
    """Override keys in tables of study.toml."""
    changed = {name: getattr(configuration, name).model_copy(update=table) for name, table in tables.items()}
    return configuration.model_copy(update=changed)


@contextlib.asynccontextmanager
async def coordinator(
    folder: Path, state: Path, *, connections: int = 64, port: int = 0, gateways: int = COUNT, **tables: dict[str, Any]
) -> AsyncIterator[Coordinator]:
    """Serve the study of ``folder`` with its state elsewhere; ``tables`` override keys of study.toml. Port 0: any.

    ``gateways``: in this process; 0: the study's own port, as always where a port is named.
    """
    overrides: dict[str, dict[str, Any]] = {"coordinator": {"state": state}, "deadlines": dict(QUICK)}
    for name, table in tables.items():
        overrides.setdefault(name, {}).update(table)
    configuration = with_tables(load_study(folder), overrides)
    events: list[dict[str, Any]] = []
    changed = asyncio.Event()

    def note(event: Event) -> None:
        events.append(to_json(event))
        changed.set()

    study, journal = open_study(configuration, note)
    near: list[NearGateway] = []
    several = near_gateways(study, configuration, gateways, connections, near) if gateways and not port else None
    try:
        await study.restore()
    except BaseException:
        study.close()
        journal.close()
        raise
    if several is None:
        grpc_server = make_session_server(study, connections)
        number = grpc_server.add_secure_port(
            f"127.0.0.1:{port}", read_certificate(configuration.coordinator).credentials()
        )
        await grpc_server.start()
        addresses = [f"localhost:{number}"]
    else:
        addresses = (await several.open()).address.replace("127.0.0.1", "localhost").split(",")
    one = Coordinator(folder, study, journal, addresses, events, changed, near)
    try:
        yield one
    finally:
        await one.stop()
        await (grpc_server.stop(2.0) if several is None else several.stop())
        study.close()
        journal.close()


async def document_of(folder: Path, state: Path) -> StudyDocument:
    """The study document of a folder."""
    async with coordinator(folder, state) as where:
        return StudyDocument.from_bytes(where.study._study_bytes)


def identities(folder: Path) -> list[IdentityKey]:
    """Return the participants' keys by their position in the roster."""
    keys = [
        load_identity(entry.key)
        for home in sorted((folder / "hosts").iterdir())
        for entry in load_host(home).participants
    ]
    return sorted(keys, key=lambda key: key.public)


Twist = Callable[["Peer", Any], Iterable[pb.ParticipantMessage] | None]  # -> the messages to send instead, or None


def refuses(code: int = 0) -> Twist:
    """A refusal in place of the message."""
    return lambda peer, _: [
        pb.ParticipantMessage(refusal=pb.Refusal(round=peer.number[0], attempt=peer.number[1], code=code))
    ]


@dataclass
class Peer:
    """One participant."""

    where: Coordinator
    identity: IdentityKey
    twists: dict[str, Twist] = field(default_factory=dict)  # by field of `PhaseMessage`, in rounds of `misbehaves`
    uploader: Callable[[Peer, bytes], Awaitable[Any]] | None = None  # replaces the upload in these rounds
    misbehaves: frozenset[int] = frozenset({1})
    value: float = 0.0  # of every coordinate of its update
    session: Any = None  # once it is connected, a `Session`
    seen: list[Any] = field(default_factory=list)
    number: tuple[int, int] = (0, 0)
    phase: Any = None
    packed: bytes = b""
    channel: Any = None  # as above, of gRPC
    upload_error: grpc.aio.AioRpcError | None = None

    async def connect(self) -> None:
        """Open the session and fetch the study document and the roster."""
        self.channel = self.dial()
        configuration = load_host(self.where.folder / "hosts" / "host-01")
        self.session = await open_session(self.channel, self.identity, configuration.study.name)
        self.document = StudyDocument.from_bytes(await self.download(self.session.welcome.study_sha256))
        authority = bytes.fromhex(configuration.study.authority_public_key)
        self.roster = verify_roster(await self.download(self.session.welcome.roster_sha256), authority)
        self.position = self.roster.positions[self.identity.public]
        await self.session.send(pb.ParticipantMessage(ready=pb.Ready()))

    def dial(self) -> grpc.aio.Channel:
        return self.where.channel()

    async def download(self, sha256: bytes) -> bytes:
        return await self.session.download(sha256, 1 << 24)

    async def play(self) -> str | None:
        """Answer until the study ends; return its reason, or None if the stream ended."""
        async for message in self.session.messages():
            kind = message.WhichOneof("message")
            content = getattr(message, kind)
            self.seen.append(message)
            if kind == "study_end":
                return content.reason
            if kind == "round_start":
                self.number, self.phase = (content.round, content.attempt), None
            if (getattr(content, "round", 0), getattr(content, "attempt", 0)) != self.number:
                continue
            await getattr(self, f"on_{kind}", _ignore)(content)
        return None

    # ------------------------------------------------------------ honest answers

    async def on_round_start(self, message: pb.RoundStart) -> None:
        config = RoundConfig(
            roster=self.roster,
            round=message.round,
            attempt=message.attempt,
            study_digest=message.study_sha256,
            model_digest=message.model_sha256,
            parameters=round_parameters(self.document.plan),
            newest=message.newest,
        )
        self.phase, answer = AdvertiseKeys(config, self.identity, os.urandom).advertise()
        await self.say("advertise_keys", codec.write_advertisement(answer))

    async def on_cohort_keys(self, message: pb.CohortKeys) -> None:
        self.phase, answer = self.phase.receive(codec.read_cohort_keys(message))
        await self.say("share_keys", codec.write_sealed_shares(answer))

    async def on_neighbour_shares(self, message: pb.NeighbourShares) -> None:
        masking = self.phase.receive(codec.read_neighbour_shares(message))
        encoder = Encoder(self.document.plan, masking.cohort.context)
        vector = encoder.encode(
            np.full(self.document.plan.dim, self.value, np.float32), os.urandom, masking.noise_seeds
        )
        self.phase, masked = masking.mask(vector)
        self.packed = masked.packed
        await self.say("masked_input", pb.MaskedInputOffer(sha256=masked.sha256, signature=masked.signature))

    async def on_upload_credit(self, _: pb.UploadCredit) -> None:
        try:
            if self.uploader is not None and self.number[0] in self.misbehaves:
                await self.uploader(self, self.packed)
            else:
                await self.upload(frames(self.packed))
        except grpc.aio.AioRpcError as error:
            self.upload_error = error

    async def on_survivor_sets(self, message: pb.SurvivorSets) -> None:
        self.phase, answer = self.phase.receive(codec.read_survivor_sets(message))
        if round_parameters(self.document.plan).signed:
            await self.say("consistency", codec.write_consistency(answer))
        else:
            await self.say("unmasking", codec.write_unmasking_reply(answer))

    async def on_unmasking_request(self, message: pb.UnmaskingRequest) -> None:
        self.phase, answer = self.phase.receive(codec.read_unmasking_request(message))
        await self.say("unmasking", codec.write_unmasking_reply(answer))

    # ------------------------------------------------------------ sending

    async def say(self, kind: str, content: Any) -> None:
        """Send the message, or do what the twist for this kind does."""
        messages: Iterable[pb.ParticipantMessage] | None = [self.wrap(**{kind: content})]
        if kind in self.twists and self.number[0] in self.misbehaves:
            messages = self.twists[kind](self, content)
        for message in messages or ():
            await self.session.send(message)

    def wrap(self, **content: Any) -> pb.ParticipantMessage:
        """Make a phase message of the current attempt."""
        return pb.ParticipantMessage(phase=pb.PhaseMessage(round=self.number[0], attempt=self.number[1], **content))

    async def upload(
        self, messages: Iterable[bytes] | AsyncIterator[bytes], token: bytes | None = None, channel: Any = None
    ) -> bytes:
        """Call Upload with raw messages, on its own channel unless another is given."""
        call = (channel or self.channel).stream_unary(
            SERVICE + "Upload", request_serializer=None, response_deserializer=pb.UploadReceipt.FromString
        )(
            messages if hasattr(messages, "__aiter__") else _each(messages),
            metadata=((TOKEN_METADATA, self.session.welcome.session_token if token is None else token),),
        )
        return bytes((await call).sha256)

    async def upload_unread(self, messages: Iterable[bytes], token: bytes | None = None) -> bytes:
        """As `upload` where nothing of it is read; repeated if gRPC lost the answer with a failed write."""
        again = list(messages)
        for _ in range(3):
            try:
                return await self.upload(again, token)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INTERNAL:
                    raise
            except asyncio.CancelledError:  # from gRPC, unless this task is cancelled
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
        return await self.upload(again, token)

    def heard(self, kind: str) -> list[Any]:
        """Return the coordinator's messages of a kind."""
        return [getattr(message, kind) for message in self.seen if message.WhichOneof("message") == kind]

    async def close(self) -> None:
        if self.session is not None:
            self.session.close()
        if self.channel is not None:
            await self.channel.close()


def sums_of(monkeypatch: pytest.MonkeyPatch) -> list[Completed]:
    """The sums that coordinators open from now on."""
    found: list[Completed] = []
    honest = server.attempt.attempt.Unmasking.close

    def close(phase: Any, parallel: Any) -> Completed:
        found.append(honest(phase, parallel))
        return found[-1]

    monkeypatch.setattr(server.attempt.attempt.Unmasking, "close", close)
    return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def _ignore(_: Any) -> None:
    pass


async def _each(items: Iterable[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


@contextlib.asynccontextmanager
async def playing(peers: list[Peer]) -> AsyncIterator[list[asyncio.Task[str | None]]]:
    """Connect all, then let them play."""
    await asyncio.gather(*(peer.connect() for peer in peers))
    tasks = [asyncio.create_task(peer.play()) for peer in peers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in peers))


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return errors in the log, except calls that were cancelled at the end."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR
        and not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
    ]
