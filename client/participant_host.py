"""The client process: hosts one or more participants, keeps them connected, ends when the study ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from client.behaviour import HONEST, Behaviour
from client.conditions import Gate, Left, Machine, NotNow, running
from client.connection import Channels, DocumentMismatch, DocumentUnavailable, open_session
from client.credentials import ClientCertificate, load_certificate, load_identity
from client.enrolment import EnrolmentRefused, EnrolmentUnavailable
from client.held_data import check_forms, held_data
from client.journal import ClientJournal
from client.owners_word import hear_owner, nothing_left, watch_owner
from client.participant import Participant, Resting
from client.renewal import Renewal
from client.settings import Conditions, HostSettings
from client.study_terms import HostProcess, SharedRoster, StudyAcceptance, StudyTerms
from client.training import LocalTraining, failure_summary
from client.unreachable import (
    ANSWERED,
    Absence,
    Trouble,
    WebProxy,
    is_connected,
    trouble_of,
    trouble_of_silence,
    trouble_told,
    web_proxy_of,
)
from learning.datasets import Dataset
from learning.make_task import make_task
from runtime.durable import StorageError
from runtime.failure import ExitCode, Failure, InputFailure, NetworkFailure
from runtime.processes import has_aes, run_event_loop, stop_signals
from runtime.service_notify import Notifier
from runtime.text import minute, peer_text
from secagg.masking import choose_keystream
from secagg.roster import Roster
from wire.certificates import CertificateError
from wire.ending import OVER

log = structlog.get_logger()

AT_ONCE_S: Final = 0.2  # longest wait before the first reconnection
RETRY_S: Final = (0.5, 2.0)  # longest wait before the second one, and before any while the absence is short
QUICK_S: Final = 60.0  # an absence is short until then: the coordinator may only be restarting
PART_OF_ABSENCE: Final = 0.05  # longest wait afterwards, and so how much later the coordinator's return is noticed
LONGEST_S: Final = 3600.0  # longest wait before any
REST_LEAST_S: Final = 0.05  # shorter ones would keep this process busy
REST_MOST_S: Final = 3600.0  # longest time for which a participant leaves because it isn't needed
OPENING_AT_ONCE: Final = 100  # sessions of this process; thousands would all be half open, at the coordinator too
STEADY_S: Final = 1.0  # a session that lasts this long resets the waits
GAVE_UP: Final = "it gave up ({reason}); the study continues when it is served again"
FINAL: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)  # trying again changes nothing


def join(
    settings: HostSettings,
    service: Notifier | None = None,
    *,
    behaviours: Callable[[bytes], Behaviour] = lambda identity: HONEST,
) -> int:
    """Take part in a study until it ends; returns 0, also after SIGTERM, or 130 after Ctrl-C.

    Returns at once where the study is over for this host, by its journal or its owner's word.

    Args:
        service: reports to a supervisor that the process is ready, is alive and ends.
        behaviours: as `ParticipantHost`.

    Raises Failure: a file can't be used, the study breaks the policy, or the coordinator can't be reached.
    """
    if said := nothing_left(settings):
        if service is not None:
            service.tell(READY="1")  # else systemd takes the end for a failed start
        log.info(said)
        return ExitCode.OK
    with opened_host(settings, behaviours=behaviours) as host:
        return run_event_loop(host.run() if service is None else service.around(host.run()))


@contextlib.contextmanager
def opened_host(
    settings: HostSettings, *, behaviours: Callable[[bytes], Behaviour] = lambda identity: HONEST
) -> Iterator[ParticipantHost]:
    """The host of a process, with its journal and its threads; ``behaviours`` and errors as of `ParticipantHost`."""
    way = choose_keystream(time.perf_counter)
    if has_aes() is False:
        log.info("this processor has no AES instructions: masks take longer to compute", mode=way)
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    # Two threads each: two participants can work in parallel, with limited memory.
    threads = min(2, os.cpu_count() or 1)
    executor = ThreadPoolExecutor(threads, thread_name_prefix="participant")
    trainer = ThreadPoolExecutor(threads, thread_name_prefix="training")
    try:
        yield ParticipantHost(settings, journal, executor, trainer, behaviours=behaviours)
    finally:
        for one in (executor, trainer):
            one.shutdown(wait=False, cancel_futures=True)
        journal.close()


class ParticipantHost:
    """Several participants of one process."""

    def __init__(
        self,
        settings: HostSettings,
        journal: ClientJournal,
        executor: Executor,
        trainer: Executor | None = None,
        *,
        held: Sequence[tuple[Dataset, str]] | None = None,
        keep_roster: Callable[[Roster], Roster] | None = None,
        behaviours: Callable[[bytes], Behaviour] = lambda identity: HONEST,
    ) -> None:
        """
        Args:
            executor: for the protocol's arithmetic.
            trainer: for training, which may last minutes; by default ``executor``.
            held: the participants' data, by default from `client.held_data.held_data`.
            keep_roster: replaces a verified roster by the object to hold; by default a `SharedRoster` if there are
                several participants.
            behaviours: identity -> its hooks, for tests and `sordino.lab`.

        Raises Failure: a key, the data or the task can't be used.
        """
        self._settings, self._journal = settings, journal
        self._absence = Absence(settings.coordinator.address, settings.coordinator.give_up_s)
        self._calls = 0  # participants that have a session, or are opening one
        self._opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self._ended: set[str] = set()
        # Not the policy's hours and rounds per day: a participant that disconnected for them would reveal them to the
        # coordinator, for which all refusals look alike.
        why_not = partial(asyncio.to_thread, Machine().why_not, settings.conditions)
        self._gate = Gate(why_not if settings.conditions != Conditions() else None)
        try:
            task = make_task(settings.study.task, dict(settings.task))
            if held is None:
                held = held_data(settings)
                check_forms(settings, held, task)
            identities = [load_identity(entry.key) for entry in settings.participants]
            self._ca = _read_ca(settings.coordinator.ca)
            self._certificate = load_certificate(settings.coordinator.certificate, settings.coordinator.key)
            if self._certificate.not_after > time.time() or not settings.coordinator.enrolment:  # else renewed first
                self._certificate.check_time(time.time())
        except OSError as error:
            raise InputFailure(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            if isinstance(error, Failure):
                raise
            raise InputFailure(str(error)) from error
        self._channels: Channels | None = None
        names = {identity.public: name for identity, (_, name) in zip(identities, held, strict=True)}
        if keep_roster is None:
            keep_roster = SharedRoster.of if len(identities) > 1 else lambda roster: roster
        process = HostProcess(settings, journal, executor, names)
        self._study = StudyAcceptance(process, task, keep_roster)
        self._participants = [
            Participant(
                identity,
                process,
                self._study,
                LocalTraining(task, examples, trainer or executor, log.bind(participant=identity.public.hex()[:8])),
                may_begin=self._gate.is_open,
                behaviour=behaviours(identity.public),
            )
            for identity, (examples, _) in zip(identities, held, strict=True)
        ]

    async def run(self) -> int:
        """Run until the study has ended for every participant or the process is stopped; returns the exit code."""
        return await run_until_stopped(self.stay())

    async def stay(self) -> None:
        """Keep the participants connected until the study has ended for each of them.

        Raises Failure: the first reason why one couldn't take part, after all have ended: the revocation of one
        participant must not stop another.
        """
        renewal = Renewal(
            self._settings, self._participants[0].identity, self._ca, self._certificate, self._use_certificate
        )
        if self._certificate.not_after <= time.time():
            await self._renew_expired(renewal)
        home = self._settings.host.journal.parent
        hear_owner(home, self._gate)
        channels = self._channels = Channels(self._settings.coordinator.address, self._ca, self._certificate)
        failures: list[Failure] = []
        try:
            async with (
                running(*(self._attend(channels, one) for one in self._participants)) as tasks,
                running(renewal.run(), self._gate.run(), watch_owner(home, self._gate)),
            ):
                for done in asyncio.as_completed(tasks):
                    try:
                        await done
                    except Failure as error:
                        failures.append(error)
                        if len(failures) == 1 and len(tasks) > 1 and error.code != ExitCode.STUDY:
                            log.error("a participant of this host can't take part", reason=str(error))
            if failures:
                raise failures[0]
        finally:
            await channels.close(grace=1.0)
            # Only in the log: where a failed process is restarted, others could observe an exit code.
            if summary := failure_summary([one.training for one in self._participants]):
                log.error(summary)

    async def _renew_expired(self, renewal: Renewal) -> None:
        log.info("the certificate has expired, requesting a new one", path=str(self._certificate.path))
        try:
            await renewal.renew(self._settings.coordinator.give_up_s or None)
        except (EnrolmentRefused, EnrolmentUnavailable, CertificateError) as error:
            raise Failure(
                error.code,
                f"the certificate {self._certificate.path} expired on {minute(self._certificate.not_after)} (this "
                f"machine's clock says {minute(time.time())}) and can't be renewed: {error}. Unless the clock is "
                "wrong, ask the study's authority for a new join code and join again into a new folder, with --ledger "
                f"{self._settings.host.ledger}: the new identity continues with the same budget",
            ) from error

    def _use_certificate(self, certificate: ClientCertificate) -> None:
        """Use it from the next session on."""
        self._certificate = certificate
        if self._channels is not None:
            self._channels.renew(certificate)

    async def _attend(self, channels: Channels, participant: Participant) -> None:
        """Keep one participant connected until the study ends."""

        async def stay() -> None:
            try:
                with contextlib.suppress(Left):
                    await self._stay_connected(channels, participant)
            finally:
                await participant.close()

        await participant.behaviour.attend(stay, channels.cut)

    async def _stay_connected(self, channels: Channels, participant: Participant) -> None:
        study, give_up_s = self._settings.study.name, self._settings.coordinator.give_up_s
        turn = channels.first_turn(study, participant.identity.public)
        away_since, failures = time.monotonic(), 0
        likeliest = Trouble(-1, "")  # the most specific one since the coordinator was last reachable
        while True:
            if self._gate.is_overdue():
                await participant.close()  # else a coordinator that never ends an attempt would keep the gate open
            # Time at the gate doesn't count as time without an answer. A participant finishes its attempt first.
            if not participant.under_way and await self._gate.opened():
                away_since = time.monotonic()
            connection, connected, opened = channels.current(turn), False, False
            address = channels.address(turn)
            resting_s: float | None = None
            self._calls += 1
            try:
                connected = await is_connected(connection, channels.patience_s(failures))
                async with self._opening:
                    session = await open_session(connection, participant.identity, study)
                opened = True
                try:
                    terms = await self._gate.within(self._study.accept(session), lambda: participant.under_way)
                    self._absence.over()
                    likeliest, began = Trouble(-1, ""), time.monotonic()
                    try:
                        work = participant.take_part(session, terms)
                        reason = await self._gate.within(work, lambda: participant.under_way)
                    finally:
                        away_since = time.monotonic()  # from the end of the session, however it ends
                        if away_since - began >= STEADY_S:  # else sessions break at once, and waits must grow
                            failures = 0
                finally:
                    session.close()
                if reason in OVER:
                    await self._note_end(terms, reason)
                    return
                if reason is not None and give_up_s:
                    raise Failure(
                        ExitCode.STUDY,
                        f"the coordinator gave up ({reason}). The study can continue when it is served again: then "
                        "start this again",
                    )
                trouble = Trouble(0, GAVE_UP.format(reason=reason) if reason else "it closed the connection")
            except NotNow:  # this participant left on purpose
                continue
            except Resting as rest:
                resting_s = _spread(_within(rest.seconds))
            except grpc.aio.AioRpcError as error:
                details = error.details() or error.code().name
                if error.code() in FINAL:
                    raise InputFailure(f"{address}: {peer_text(details)}") from error
                files = {"ca": str(self._settings.coordinator.ca), "certificate": str(self._certificate.path)}
                trouble = trouble_told(details) if connected else trouble_of(details, proxy=self._web_proxy(), **files)
                participant.behaviour.away(trouble.words)
            except DocumentUnavailable as error:
                trouble = Trouble(0, str(error))
            except TimeoutError:
                trouble = trouble_of_silence(None if connected else self._web_proxy())
            except DocumentMismatch as error:
                raise NetworkFailure(f"{address}: {error}") from error
            finally:
                self._calls -= 1
            if resting_s is not None:
                await self._rest(participant, resting_s)
                away_since = time.monotonic()
                continue
            self._absence.note(trouble)
            likeliest = max(likeliest, trouble, key=lambda one: one.tells)
            failures, turn = failures + 1, turn + (not opened)
            away_s = time.monotonic() - away_since
            if give_up_s and away_s > give_up_s:
                expired = self._certificate.not_after <= time.time()
                when = f"; the certificate expired on {minute(self._certificate.not_after)}" if expired else ""
                advice = (
                    ". Check the address and that it runs, or raise give_up_s in the table [coordinator] of host.toml "
                    "(0: keep trying)"
                )
                away = f"could not be reached for {give_up_s:g} s"
                state = away if likeliest.tells < ANSWERED else "answers, but can't be used"
                raise NetworkFailure(
                    f"{address} {state}: {likeliest.words}{when}{'' if likeliest.tells > 1 else advice}"
                )
            wait_s = _backoff_s(failures, away_s)
            if wait_s > RETRY_S[1] and not self._calls:
                await channels.cut()  # gRPC would try every two seconds by itself
            await self._rest(participant, wait_s, self._absence.ended.wait())

    async def _rest(self, participant: Participant, seconds: float, *sooner: Coroutine[Any, Any, Any]) -> None:
        """Until the next try; shorter if one of ``sooner`` is done, or this participant may not take part."""
        sooner = sooner if participant.under_way else (*sooner, self._gate.shut())
        async with running(participant.rest(seconds), *sooner) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()

    async def _note_end(self, terms: StudyTerms, reason: str) -> None:
        """So that a later start doesn't wait for a coordinator that has gone."""
        if reason not in self._ended:  # once for all participants of the process
            self._ended.add(reason)
            log.info("the study ended", reason=reason)
            try:
                await self._journal.end_study(terms.study_sha256, terms.document.study, reason)
            except StorageError as error:
                log.warning("the end of the study isn't written down, so a later start looks for it", reason=str(error))

    def _web_proxy(self) -> WebProxy | None:
        return web_proxy_of(self._settings.coordinator.address, os.environ)


async def run_until_stopped(work: Coroutine[Any, Any, None]) -> int:
    """Run until the end, SIGTERM or SIGINT; returns the exit code after the work has cleaned up."""
    stopped: list[int] = []
    task = asyncio.create_task(work)

    def stop(code: int) -> None:
        stopped.append(code)
        task.cancel()

    with stop_signals(stop):
        try:
            await task
            return ExitCode.OK
        except asyncio.CancelledError:
            if not stopped:
                raise
            log.info("stopped on request")
            return stopped[0]


def _read_ca(path: Path) -> bytes:
    """Certificates in PEM. gRPC would accept any bytes here, and then never connect."""
    content = path.read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InputFailure(
            f"{path} holds no certificate in PEM: copy ca.pem from the study's folder tls again"
        ) from error
    return content


def _within(seconds: float) -> float:
    """A rest as the coordinator wishes it, which may be any number, or none."""
    return min(seconds, REST_MOST_S) if seconds > REST_LEAST_S else REST_LEAST_S


def _spread(seconds: float) -> float:
    """Up to a tenth less or more: a thousand participants must not return together."""
    return seconds * (0.9 + 0.2 * int.from_bytes(os.urandom(2), "little") / 65536)


def _backoff_s(failures: int, away_s: float) -> float:
    """Short the first time, since a reconnection slot lasts only a moment; then exponential; after `QUICK_S` in
    proportion to the absence.

    Jitter covers three quarters, then the upper half: a thousand participants must not return together.
    """
    least, most = 0.25, min(AT_ONCE_S, RETRY_S[1])
    if failures > 1:
        soon = min(RETRY_S[1], RETRY_S[0] * 2 ** min(failures - 2, 10))
        least, most = 0.5, max(soon, min(LONGEST_S, PART_OF_ABSENCE * (away_s - QUICK_S)))
    return most * (least + (1 - least) * int.from_bytes(os.urandom(2), "little") / 65536)
