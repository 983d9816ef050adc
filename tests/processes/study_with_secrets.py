"""Whole studies in one process, with everything that can go wrong, at the lowest log level.

    python study_with_secrets.py OUT [KIND]

In one process, since that is the only place where all secrets of a run can be collected: every byte that the operating
system's randomness gave, every value that was derived from it, every update and vector on its way to the coordinator.
They go to ``OUT/secrets``; everything that is told goes to stdout and stderr, and what was caught at a boundary, events
and public files are in ``OUT/told``, one file for each, for the test to search. The process is one of its own, so that
what the interpreter and gRPC say at its very end is told as well.

With KIND one secret of that kind is logged in the midst of the study, as a careless line of code would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["SORDINO_TRACEBACK"] = "1"
# Not its trace of HTTP: that is a record of what is sent, in the clear, tokens included.
os.environ |= {"GRPC_VERBOSITY": "DEBUG", "GRPC_TRACE": "connectivity_state,server_channel"}
_system_randomness = os.urandom

import numpy as np  # noqa: E402  # the lines above come first
import structlog  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: E402
from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: E402

import client.participant_host  # noqa: E402
import client.process  # noqa: E402
import mechanisms.encoder  # noqa: E402
import secagg.client_phases  # noqa: E402
import secagg.keys  # noqa: E402
import secagg.masking  # noqa: E402
import server.coordinator  # noqa: E402
import server.journal  # noqa: E402
import server.sessions  # noqa: E402
import server.study  # noqa: E402
import wire.records.ledger  # noqa: E402
from client.journal import ClientJournal  # noqa: E402
from client.training import LocalTraining  # noqa: E402
from runtime.durable import StorageError  # noqa: E402
from runtime.failure import ExitCode, Failure  # noqa: E402
from runtime.logs import configure_logs  # noqa: E402
from secagg.encoding import digest  # noqa: E402
from secagg.keys import IdentityKey  # noqa: E402
from secagg.packing import packed_size, unpack  # noqa: E402
from server.events import to_json  # noqa: E402
from server.journal import read_events  # noqa: E402
from tests.processes.secret_search import Secrets, planted  # noqa: E402
from tests.support.databases import query  # noqa: E402
from tests.support.host_in_process import host, ledger_of, settings_of  # noqa: E402
from tests.support.study_in_process import coordinator, make_folder  # noqa: E402
from wire import coordinator_pb2 as pb  # noqa: E402
from wire.enrolment import EnrolmentRequest, make_csr, make_request, read_request  # noqa: E402
from wire.join_code import InvalidCode, JoinCode, code_mac  # noqa: E402

SECRETS = Secrets()
OUT = Path()
_numbers = itertools.count()


def make_study() -> Path:
    hybrid = {"key_agreement": "x25519-mlkem768"}
    return make_folder(OUT / "study", rounds=3, bits=28, epsilon=8.0, delta=1e-5, **hybrid)


def tell(name: str, content: str | bytes) -> None:
    """For the search: a text or a file that people may see."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    (OUT / "told" / f"{next(_numbers):03d}-{name}").write_bytes(data)


def boundary(name: str, error: BaseException) -> None:
    """An exception that reaches a shell's boundary, as a careful reporter would write it: with all locals of all
    frames, and of those of its causes.
    """
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    tell(name, "".join(report.format()) + repr(error) + str(getattr(error, "args", "")))


# ---------------------------------------------------------------- what is secret


def instead(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """The decorated function takes the place of ``owner.name``; it gets the original first."""
    original = getattr(owner, name)

    def put(function: Callable[..., Any]) -> None:
        setattr(owner, name, lambda *given, **named: function(original, *given, **named))

    return put


def watch(owner: Any, name: str, kind: str) -> None:
    instead(owner, name)(lambda original, *given, **named: SECRETS.note(kind, original(*given, **named)))


def watch_made(owner: Any, note: Callable[..., None]) -> None:
    """Note what a class's constructor is given or makes."""
    original = owner.__init__

    def made(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        note(self, *arguments, **named)

    owner.__init__ = made


def collect() -> None:
    """From here on everything secret is noted."""
    os.urandom = lambda count: SECRETS.note("randomness", _system_randomness(count))
    # The number of a ledger is there to be shown.
    wire.records.ledger.os = SimpleNamespace(**vars(os) | {"urandom": _system_randomness})
    phases = secagg.client_phases
    watch(secagg.keys, "mask_private_key", "mask key")
    watch(phases, "pair_seed", "pair seed")
    watch(phases, "unwrap_seed", "pair seed")
    watch(secagg.keys.AgreementKey, "decapsulate", "encapsulated secret")
    watch(phases, "self_mask_seed", "self-mask seed")
    watch(phases, "self_mask_key", "self mask")
    watch(phases, "pairwise_mask_key", "pairwise mask")
    watch(secagg.keys.AgreementKey, "agree", "agreement")

    def note_key(_: Any, private: bytes, kem_seed: bytes = b"") -> None:
        SECRETS.note("agreement key", private)
        SECRETS.note("ML-KEM key", kem_seed)

    watch_made(secagg.keys.AgreementKey, note_key)
    watch_made(secagg.keys.ShareChannel, lambda self, *_: SECRETS.note("share channel", self._key))

    def note_salts(self: Any) -> None:
        for one in (self.mask_key, self.self_mask_seed):
            SECRETS.note("salt", one.salt)

    watch_made(phases.HeldShare, lambda self, *_: note_salts(self))

    @instead(phases.shamir, "split")
    def watched_split(split: Any, *arguments: Any) -> Any:
        shares = split(*arguments)
        for row in arguments[0]:
            SECRETS.note("shared secret", row)
        for row in shares.reshape(-1, secagg.shamir.SYMBOLS):
            SECRETS.note("share", row)
        return shares

    @instead(mechanisms.encoder, "conditional_round")
    def watched_round(rounding: Any, values: Any, *others: Any, **keep: Any) -> Any:
        SECRETS.note_vector("rotated update", values)
        return SECRETS.note_vector("rounded update", rounding(values, *others, **keep)).copy()

    @instead(mechanisms.encoder.Encoder, "_noised")
    def watched_noise(noised: Any, self: Any, values: Any, *randomness: Any) -> Any:
        before = values.copy()
        words = noised(self, values, *randomness)
        unused = 64 - self.plan.bits
        noise = ((words.astype(np.int64) - before) << unused) >> unused
        SECRETS.note_vector("noise", noise)
        return SECRETS.note_vector("encoded update", words)

    @instead(mechanisms.encoder.Encoder, "_clipped")
    def watched_clip(clipped: Any, self: Any, update: Any, judged: Any) -> Any:
        found = clipped(self, update, judged)  # what stands in for a missing update is the same for all, and no secret
        return SECRETS.note_vector("clipped update", found) if np.ptp(update) else found

    @instead(secagg.client_phases.Masking, "mask")
    def watched_mask(mask: Any, self: Any, vector: Any) -> Any:
        following, masked = mask(self, vector)
        SECRETS.note("masked update", masked.packed)
        parameters = self.cohort.config.parameters
        shape = parameters.dim, parameters.bits
        for seed in self.noise_seeds:
            SECRETS.note("noise seed", seed)
        SECRETS.note_vector("masked words", unpack(masked.packed[: packed_size(*shape)], *shape))
        return following, masked

    @instead(server.sessions.Sessions, "open")
    def watched_open(opened: Any, self: Any, *arguments: Any, **named: Any) -> Any:
        session = opened(self, *arguments, **named)
        SECRETS.note("session token", session.token)
        return session


def note_key_files(folder: Path) -> None:
    """The private numbers of every key in a study's folder."""
    for path in folder.rglob("*.key"):
        private = load_pem_private_key(path.read_bytes(), None)
        if isinstance(private, ec.EllipticCurvePrivateKey):
            SECRETS.note("TLS key", private.private_numbers().private_value.to_bytes(32, "big"))
        else:
            assert isinstance(private, Ed25519PrivateKey)
            kind = "identity key" if path.parent.name == "keys" else "signing key"
            SECRETS.note(kind, private.private_bytes_raw())


# ---------------------------------------------------------------- what goes wrong


class Failing:
    """A task whose training raises, and quotes what it was given."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def local_update(self, parameters: Any, data: Any, order: Any, l2_clip: float) -> Any:
        raise ValueError(f"bad example: {parameters}")


_updates, _encodings = itertools.count(), itertools.count()
_failures = {"training": 1, "encoding": 1, "signing": 1}  # how often


def once(what: str) -> bool:
    _failures[what] -= 1
    return _failures[what] == 0


def plant_updates_and_failures(careless: str | None) -> None:
    @instead(LocalTraining, "contribution")
    def local_update(training: Any, self: Any, *arguments: Any) -> Any:
        number = next(_updates)
        if number == 2 and once("training"):
            with patch.object(self, "_task", Failing(self._task.dim)):
                return training(self, *arguments)
        trained = training(self, *arguments)
        SECRETS.note_vector("trained update", trained.update)
        update = planted(trained.update.shape, -17 if number % 2 else 17, number)
        SECRETS.note_vector("update", update)
        return replace(trained, update=update)

    @instead(mechanisms.encoder.Encoder, "encode")
    def sometimes(encode: Any, self: Any, update: Any, *randomness: Any) -> Any:
        words = encode(self, update, *randomness)
        if next(_encodings) == 8 and once("encoding"):
            raise mechanisms.encoder.InvalidUpdate(f"not finite: {update}")
        return words

    @instead(ClientJournal, "sign")
    async def disk_full(sign: Any, self: Any, *arguments: Any) -> None:
        if arguments[2] == 3 and once("signing"):
            raise StorageError("journal.sqlite: database or disk is full")
        await sign(self, *arguments)

    @instead(server.sessions.Session, "send")
    def lie(honest: Any, session: server.sessions.Session, data: bytes) -> None:
        """To one participant in round 2; another one is thrown out in round 1, and comes back."""
        message = pb.CoordinatorMessage.FromString(data)
        kind = message.WhichOneof("message")
        round_ = getattr(getattr(message, kind), "round", 0)
        if (kind, session.participant, round_) == ("survivor_sets", 1, 2):
            message.survivor_sets.ClearField("u2")
        if (kind, session.participant, round_) == ("cohort_keys", 2, 1):
            session.close()
        if (kind, session.participant, round_) == ("round_end", 0, 2) and careless is not None:
            for one in careless.split():
                log_carelessly(one)
        honest(session, message.SerializeToString())


def log_carelessly(kind: str) -> None:
    """What a line left over from a search for a fault would write."""
    if kind in SECRETS.data:
        secret = sorted(SECRETS.data[kind])[0]
        structlog.get_logger().debug("careless", value=secret[:8].hex() if len(kind) % 2 else list(secret[:16]))
    else:
        vectors = SECRETS.integers.get(kind) or SECRETS.floats[kind]
        logging.getLogger("careless").debug("%s", vectors[0])


async def study(
    folder: Path, work: Path, name: str, until: str = "host coordinator", **settings: dict[str, Any]
) -> None:
    """Until these sides have ended; what escapes is told as a boundary would."""
    state, journal = work / f"{name}-state.sqlite", work / f"{name}.sqlite"
    async with coordinator(folder, state, coordinator={"max_attempts": 1}) as where:
        where.start()
        assert where.running is not None
        async with host(settings_of(folder, journal, where.address, **settings)) as task:
            # Three seconds of work; a machine that is busy with something else may take much longer.
            sides = {"host": task, "coordinator": where.running}
            async with asyncio.timeout(120):
                for error in await asyncio.gather(*(sides[one] for one in until.split()), return_exceptions=True):
                    if isinstance(error, BaseException):
                        boundary(name, error)
    tell(f"{name}-events", "\n".join(map(str, where.events)))
    tell(f"{name}-journaled-events", "\n".join(map(repr, map(to_json, read_events(state)))))
    tell(f"{name}-event-table", repr(query(state, "SELECT * FROM events")))
    for file in (journal, ledger_of(journal), state.with_name("ledger.sqlite")):
        for path in sorted(file.parent.glob(file.name + "*")):
            tell(path.name, path.read_bytes())
    for path in sorted(work.rglob("*.transcript")):
        tell(path.name, path.read_bytes())
    for path in (*work.glob("*.sqlite*"), *work.rglob("*.transcript")):
        path.unlink()


# ---------------------------------------------------------------- the runs


def refused_by_policy(folder: Path, work: Path) -> None:
    asyncio.run(study(folder, work, "policy", "host", policy={"max_epsilon": 1e-3}), debug=True)


def coordinators_disk_is_full(folder: Path, work: Path) -> None:
    """Between the frozen survivors and their charge."""

    async def full(self: Any, *arguments: Any) -> Any:
        raise StorageError("state.sqlite: database or disk is full")

    with patch.object(server.journal.Journal, "charge", full):
        asyncio.run(study(folder, work, "full", "coordinator"), debug=True)


def another_document(folder: Path, work: Path) -> None:
    with patch.object(server.study.Study, "document", lambda self, sha256, held=b"": b"another"):
        asyncio.run(study(folder, work, "document", "host"), debug=True)


def join_codes() -> None:
    """A code that is used, and codes that can't be: nothing repeats them."""
    identity = IdentityKey.generate(os.urandom)
    SECRETS.note("identity key", identity._private.private_bytes_raw())
    code = JoinCode.new(os.urandom(32), bytes(32), 1_800_000_000, os.urandom)
    SECRETS.note("join code", code.secret)
    SECRETS.note("join code's MAC key", digest("sordino/v1/join-code-mac", code.secret))
    tls = ec.generate_private_key(ec.SECP256R1())
    SECRETS.note("TLS key", tls.private_numbers().private_value.to_bytes(32, "big"))
    request = EnrolmentRequest("join", "seven", identity.public, "laptop", make_csr(tls), 1_790_000_000.0, code.code_id)
    signed = read_request(make_request(request, identity, code))
    log = structlog.get_logger()
    log.debug("a request", code=code, request=request, signed=signed, known=signed.mac_is(code.secret))
    assert len(code_mac(code.secret, b"")) == 32
    text = code.to_text()
    slip = text[:20] + ("A" if text[20] != "A" else "B") + text[21:]
    for broken in (text[:-1], text + "A", slip, "?" + text[1:], ""):
        try:
            JoinCode.from_text(broken)
        except InvalidCode as error:
            log.error("refused", reason=str(error), error=error)
            tell("code", "".join(traceback.format_exception(error)) + repr(error))


def fault(folder: Path) -> None:
    """A fault that nobody foresaw reaches the end of a client process, with SORDINO_TRACEBACK set: Python shows it."""
    settings = settings_of(folder, OUT / "unused.sqlite")

    async def deep(self: Any) -> int:
        participant = self._participants[0]
        raise RuntimeError(f"not foreseen: {participant!r} {self!r} {participant.identity} {self._settings}")

    client.participant_host.ParticipantHost.run = deep  # type: ignore[method-assign]
    with tempfile.TemporaryFile() as file:
        file.write(b"00" + settings.to_json().encode())
        file.seek(0)
        client.process.main(os.dup(file.fileno()))


def log_everything() -> None:
    """Our own configuration, at the lowest level, with the whole event beside each line; and the standard library's."""
    configure_logs(lowest=logging.DEBUG)
    processors = structlog.get_config()["processors"]

    def whole(_: Any, __: str, event: Any) -> Any:
        print(repr(event), file=sys.stderr)
        return event

    structlog.configure(processors=[whole, structlog.processors.format_exc_info, *processors])
    # Beside the handler of configure_logs, which takes warnings alone, and leaves arguments out.
    everything = logging.StreamHandler(sys.stderr)
    everything.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(args)s"))
    logging.getLogger().addHandler(everything)
    logging.getLogger().setLevel(logging.DEBUG)


def main(out: str, careless: str | None = None) -> None:
    global OUT
    OUT = Path(out)
    (OUT / "told").mkdir(parents=True)
    log_everything()
    folder, work = make_study(), OUT / "work"
    work.mkdir()
    note_key_files(folder)
    collect()
    plant_updates_and_failures(careless)
    client.participant_host.RETRY_S = (0.01, 0.01)  # type: ignore[misc]
    try:
        asyncio.run(study(folder, work, "study"), debug=True)
        if careless is None:
            refused_by_policy(folder, work)
            coordinators_disk_is_full(folder, work)
            another_document(folder, work)
            join_codes()
            for error in (Failure(ExitCode.INPUT, "one sentence"), StorageError("full")):
                boundary("shell", error)
    finally:
        os.urandom = _system_randomness
        SECRETS.save(OUT / "secrets")
        (OUT / "failures").write_text(json.dumps(_failures))
    if careless is None:
        fault(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
