"""What the other side of a session sends: protobuf messages, chunks, and what gRPC says of a certificate."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf.message import DecodeError

import server.service
from secagg.messages import NOISE_SEED_BYTES, SALT_BYTES, SHARE_BYTES, CohortKeys, NeighbourShares, UnmaskingReply
from server.peer_certificate import CertificateHolders, check_certificate
from server.sessions import SessionRefused, Sessions
from tests.fuzz.mutations import message_mutation
from tests.fuzz.played import reference_round
from tests.fuzz.target import Target, must
from tests.support.comparable import freeze
from tests.support.message_codecs import CODECS, Codec
from wire import codec, coordinator_pb2 as pb
from wire.certificates import HOST_URI, IDENTITY_URI
from wire.open_calls import Caller, CallRefused
from wire.transport import CHUNK_BYTES, InvalidChunk, frame, unframe

BY_FIELD: Final = {one.field: one for one in CODECS.values()}
TICKET: Final = Codec("ticket", pb.LotteryTicket, codec.write_ticket, codec.read_ticket)


def read_participant_message(data: bytes) -> None:
    """What the coordinator does with the bytes of a session."""
    try:
        message = pb.ParticipantMessage.FromString(data)
    except DecodeError:
        return
    name = message.phase.WhichOneof("message")
    if message.WhichOneof("message") == "phase" and name in BY_FIELD:
        _there_and_back(BY_FIELD[name], getattr(message.phase, name))


def read_coordinator_message(data: bytes) -> None:
    """What a participant does with the bytes of a session."""
    try:
        message = pb.CoordinatorMessage.FromString(data)
    except DecodeError:
        return
    name = message.WhichOneof("message")
    if name == "round_start" and message.round_start.HasField("ticket"):
        _there_and_back(TICKET, message.round_start.ticket)
    elif name in BY_FIELD:
        read = _there_and_back(BY_FIELD[name], getattr(message, name))
        if isinstance(read, CohortKeys) and len(dict(read.members)) == len(read.members):
            whole = codec.message(cohort_keys=codec.write_cohort_keys(1, 1, read))
            must(codec.CohortKeysWriter(1, 1).write(read) == whole, "u1 put together from parts is another message")
        if isinstance(read, NeighbourShares):
            whole = codec.message(neighbour_shares=codec.write_neighbour_shares(1, 1, read))
            must(
                codec.NeighbourSharesWriter(1, 1).write(read) == whole,
                "shares put together from parts are another message",
            )


def _there_and_back(travels: Codec, message: Any) -> Any:
    try:
        found = travels.read(message)
    except codec.MalformedMessage:
        return None
    must(freeze(travels.passed(found)) == freeze(found), "what was read is written otherwise")
    if isinstance(found, UnmaskingReply):
        lengths = {(len(one.share), len(one.salt)) for one in found.shares if one is not None}
        must(lengths <= {(SHARE_BYTES, SALT_BYTES)}, "a share of another length was read")
        must({*map(len, found.noise_seeds)} <= {NOISE_SEED_BYTES}, "a noise seed of another length was read")
    return found


def hear_session(data: bytes) -> None:
    """One message of an open session, and as the first of one: taken, or `SessionRefused`."""
    roster = reference_round().config.roster
    sessions = Sessions(roster.study, roster, lambda *_: None)
    handed_on: list[tuple[Any, ...]] = []
    study = SimpleNamespace(
        sessions=sessions,
        phase_message=lambda *one: handed_on.append(one),
        refusal=lambda *one: handed_on.append(one),
        session_ready=lambda *one: handed_on.append(one),
    )
    session = sessions.open(roster.identity(0))
    with contextlib.suppress(SessionRefused):
        server.service.receive(study, session, data)  # type: ignore[arg-type]
        must(len(handed_on) + session.outbox.qsize() == 1, "one message was taken for several")
    try:
        message = pb.ParticipantMessage.FromString(data)
    except DecodeError:
        return
    with contextlib.suppress(SessionRefused):
        identity, nonce, _ = sessions.challenge(message.open)
        must(message.WhichOneof("message") == "open", "what is no Open was answered")
        must(identity in roster.positions and len(nonce) == 32, "a stranger was given a challenge")


def session_seeds() -> Iterator[bytes]:
    yield from participant_seeds()
    roster = reference_round().config.roster
    first = pb.Open(protocol_version=1, identity=roster.identity(1), study=roster.study, nonce=bytes(32))
    yield pb.ParticipantMessage(open=first).SerializeToString()
    yield pb.ParticipantMessage(heartbeat=pb.Heartbeat()).SerializeToString()


def participant_seeds() -> Iterator[bytes]:
    """What participants send in an attempt, and around it."""
    *_, with_noise = reference_round("ring").steps.values()
    for step in (*reference_round().steps.values(), with_noise):
        message = next(iter(step.up.values()))
        travels = CODECS[type(message)]
        phase = pb.PhaseMessage(round=1, attempt=1, **{travels.field: travels.write(message)})
        yield pb.ParticipantMessage(phase=phase).SerializeToString()
    for one in (
        pb.ParticipantMessage(open=pb.Open(protocol_version=1, identity=bytes(32), study="s", nonce=bytes(32))),
        pb.ParticipantMessage(proof=pb.Proof(signature=bytes(64))),
        pb.ParticipantMessage(ready=pb.Ready()),
        pb.ParticipantMessage(ready=pb.Ready(resume=pb.Resume(round=1, attempt=1, received=2))),
        pb.ParticipantMessage(leaving=pb.Leaving()),
        pb.ParticipantMessage(refusal=pb.Refusal(round=1, attempt=1, code=2)),
    ):
        yield one.SerializeToString()


def coordinator_seeds() -> Iterator[bytes]:
    """What the coordinator sends in an attempt, and around it."""
    steps = (*reference_round().steps.values(), *reference_round("ring").steps.values())
    told = [next(iter(step.down.values())) for step in steps if step.down]
    for message in (*told, (told[-2], told[-1])):  # the last proves that its receiver is in no sum
        travels = CODECS[type(message)]
        yield pb.CoordinatorMessage(**{travels.field: travels.write(message)}).SerializeToString()
    ticket = pb.LotteryTicket(seed=bytes(32), path=[bytes(32)] * 3)
    start = pb.RoundStart(round=1, attempt=1, model_sha256=bytes(32), study_sha256=bytes(32), ticket=ticket)
    yield pb.CoordinatorMessage(round_start=start).SerializeToString()
    yield pb.CoordinatorMessage(resumed=pb.Resumed(round=1, attempt=1, received=1, uploaded=True)).SerializeToString()
    yield pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=1, attempt=1, offset=64)).SerializeToString()


def read_chunk(data: bytes) -> None:
    """A hand-read frame is what protobuf reads; a frame that we write is taken."""
    try:
        found = bytes(unframe(data))
    except InvalidChunk:
        if 1 <= len(data) <= CHUNK_BYTES:
            must(bytes(unframe(frame(data))) == data, "a frame isn't read back")
        return
    must(1 <= len(found) <= CHUNK_BYTES, "an empty or oversize chunk was taken")
    must(pb.Chunk.FromString(data).data == found, "protobuf reads another chunk")


def chunk_seeds() -> Iterator[bytes]:
    """Lengths of one, two and three bytes."""
    for size in (1, 127, 128, 300, 16_384):
        yield frame(bytes(size))
    yield b"\x0a\x81\x00x"  # protobuf takes a length with a byte too many


# ---------------------------------------------------------------- whose certificate it is

_IDENTITY = hashlib.sha256(b"identity").digest()


class _Context:
    def __init__(self, names: list[bytes]) -> None:
        self._names = names

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {"x509_subject_alternative_name": self._names, "transport_security_type": [b"ssl"]}


def read_certificate_names(data: bytes) -> None:
    """Names in a peer's certificate, one a line: only the exact identity or host opens a session."""
    names = data.split(b"\n")
    context = _Context(names)
    roster = reference_round().config.roster
    entry = roster.entries[0]
    wanted = {f"{IDENTITY_URI}{entry.identity.hex()}".encode(), f"{HOST_URI}{entry.host}".encode()}
    try:
        check_certificate(context.auth_context(), entry.identity, entry.host)
        must(not wanted.isdisjoint(names), "a session was opened with another certificate")
    except SessionRefused:
        must(wanted.isdisjoint(names), "the certificate of this very host was refused")
    try:
        caller = CertificateHolders(lambda: roster)(context, "/sordino.v1.Coordinator/Session")
        must(isinstance(caller, Caller) and caller.most > 0, "a caller without calls")
    except CallRefused:
        must(wanted.isdisjoint(names), "somebody on the roster was refused")


def certificate_seeds() -> Iterator[bytes]:
    entry = reference_round().config.roster.entries[0]
    yield f"{IDENTITY_URI}{entry.identity.hex()}".encode()
    yield f"{HOST_URI}{entry.host}".encode()
    yield f"{IDENTITY_URI}{_IDENTITY.hex().upper()}\n{HOST_URI}nobody\n\xff".encode("latin-1")


TARGETS: Final = (
    Target("participant_message", read_participant_message, participant_seeds, message_mutation(pb.ParticipantMessage)),
    Target("coordinator_message", read_coordinator_message, coordinator_seeds, message_mutation(pb.CoordinatorMessage)),
    Target("session", hear_session, session_seeds, message_mutation(pb.ParticipantMessage)),
    Target("chunk", read_chunk, chunk_seeds, largest=20_000),
    Target(
        "certificate_names",
        read_certificate_names,
        certificate_seeds,
        largest=2048,
        tokens=(IDENTITY_URI.encode(), HOST_URI.encode(), b"host-0", b"\n"),
    ),
)
