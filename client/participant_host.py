"""The client process: hosts one or more participants, keeps them connected, ends when the study ends."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import structlog

from client.conditions import Gate, Machine, NotNow
from client.connection import Channels, DocumentMismatch, DocumentUnavailable, Session, open_session
from client.credentials import ClientCertificate, load_certificate, load_identity, shown
from client.enrolment import EnrolmentRefused, EnrolmentUnavailable
from client.held_data import check_forms, held_data
from client.journal import ClientJournal
from client.log_lines import RoundLines
from client.participant import Participant, StudyTerms
from client.policy import PolicyRefusal, check_agreed, check_roster, check_study, digests
from client.renewal import Renewal
from client.service_notify import Notifier
from client.settings import Conditions, HostSettings
from client.shared_roster import SharedRoster
from client.unreachable import (
    Trouble,
    WebProxy,
    is_connected,
    trouble_of,
    trouble_of_silence,
    trouble_told,
    web_proxy_of,
)
from learning.make_task import make_task
from runtime.durable import StorageError
from runtime.failure import ExitCode, Failure, InputFailure, NetworkFailure
from runtime.processes import has_aes, run_event_loop
from runtime.text import peer_text
from secagg.masking import choose_keystream
from secagg.roster import InvalidRoster, Roster, verify_roster
from wire.certificates import CertificateError
from wire.guarantee import trust_of
from wire.study import LARGEST_DOCUMENT, InvalidStudy, StudyDocument, check_roster_fits

log = structlog.get_logger()

LARGEST_GROWTH = 4  # over the population that a lottery's plan draws from at least
ROSTER_BYTES = 256  # most that one participant takes in a roster's file, whose signature is checked once it is read
AT_ONCE_S = 0.2  # longest wait before the first attempt to connect again
RETRY_S = (0.5, 10.0)  # longest wait before the second one, and before any
STEADY_S = 1.0  # a session that lasts this long was worth opening
# The stream is refused for good: trying again changes nothing.
FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)

FINISHED = ("rounds done", "budget reached")  # what a coordinator says at the end of a study that can't go on


def join(configuration: HostSettings, service: Notifier | None = None) -> int:
    """Take part in a study until it ends.

    Args:
        service: told that the process is ready, lives and ends, where it runs as a system service.

    Returns:
        0 when the study ended or the process was told to stop by SIGTERM, 130 after Ctrl-C.

    Raises:
        Failure: a file can't be used, the study breaks the policy, or the coordinator can't be reached.
    """
    way = choose_keystream(time.perf_counter)
    if has_aes() is False:
        log.info("this processor has no AES instructions: masks are made without, which takes longer", mode=way)
    try:
        journal = ClientJournal(configuration.host.journal, configuration.host.ledger)
    except StorageError as error:  # a changed ledger included: the code of one is for verbs that verify ledgers
        raise InputFailure(str(error)) from error
    # Two threads each: one participant's work beside another's, and no more memory than that.
    threads = min(2, os.cpu_count() or 1)
    executor = ThreadPoolExecutor(threads, thread_name_prefix="participant")
    trainer = ThreadPoolExecutor(threads, thread_name_prefix="training")
    try:
        host = ParticipantHost(configuration, journal, executor, trainer)
        return run_event_loop(host.run() if service is None else service.around(host.run()))
    finally:
        for one in (executor, trainer):
            one.shutdown(wait=False, cancel_futures=True)
        journal.close()


@dataclass
class _Documents:
    """Public documents by digest, fetched once for all participants of the process."""

    held: dict[bytes, bytes] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def fetch(self, session: Session, sha256: bytes, largest: int) -> bytes:
        async with self.lock:
            if sha256 not in self.held:
                if len(self.held) >= 2:  # the model of the last round goes
                    self.held.pop(next(iter(self.held)))
                self.held[sha256] = await session.download(sha256, largest)
            return self.held[sha256]


class ParticipantHost:
    """Several participants over one channel."""

    def __init__(
        self,
        configuration: HostSettings,
        journal: ClientJournal,
        executor: ThreadPoolExecutor,
        trainer: ThreadPoolExecutor | None = None,
    ) -> None:
        """
        Args:
            executor, trainer: for arithmetic and for training; see `client.participant.Participant`.

        Raises:
            Failure: a key, the data or the task can't be used.
        """
        self._configuration, self._journal, self._documents = configuration, journal, _Documents()
        self._terms: StudyTerms | None = None
        self._reachable, self._told = True, -1
        self._ended: set[str] = set()
        self._terms_lock = asyncio.Lock()
        self._executor, self._trainer = executor, trainer
        self._lines = RoundLines(self._spent)
        self._machine = Machine()
        self._gate = Gate(self._why_not if configuration.conditions != Conditions() else None)
        try:
            self._task = make_task(configuration.study.task, dict(configuration.task))
            self._participants = self._make_participants()
            coordinator = configuration.coordinator
            self._ca = _read_ca(coordinator.ca)
            self._certificate = load_certificate(coordinator.certificate, coordinator.key)
            self._channels: Channels | None = None
            if self._certificate.not_after > time.time() or not coordinator.enrolment:  # else it is renewed first
                self._certificate.check_time(time.time())
        except OSError as error:
            raise InputFailure(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:
            if isinstance(error, Failure):
                raise
            raise InputFailure(str(error)) from error

    def _make_participants(self) -> list[Participant]:
        """All participants with their keys and their parts of the data.

        Raises:
            OSError, ValueError: a key or the data can't be used.
        """
        configuration = self._configuration
        held = held_data(configuration)
        check_forms(configuration, held, self._task)
        return [
            Participant(
                configuration,
                load_identity(entry.key),
                self._task,
                examples,
                name,
                self._journal,
                self._executor,
                self._documents.fetch,
                self._accept_roster,
                self._trainer,
                self._lines,
            )
            for entry, (examples, name) in zip(configuration.participants, held, strict=True)
        ]

    def _spent(self) -> dict[str, Any]:
        """What the dearest of the data here has cost in this study, beside what may be: the less of plan and policy."""
        terms = self._terms
        study = None if terms is None else self._journal.ledger.totals.studies.get(terms.study_sha256.hex())
        if terms is None or study is None:
            return {}
        most = max(study.epsilon_of_data(one.data_name) for one in self._participants)
        limit = min(self._configuration.policy.max_epsilon, terms.document.plan.budget_coordinator)
        return {"epsilon": round(most, 3), "max_epsilon": limit}

    async def _why_not(self) -> dict[str, str]:
        """What stands in the way of taking part now.

        The policy's hours and rounds a day aren't among it: whoever left for them would tell them to the coordinator,
        to which one refusal looks like another.
        """
        return await asyncio.to_thread(self._machine.why_not, self._configuration.conditions)

    async def run(self) -> int:
        """Until every participant's study has ended, or the process is told to stop."""
        return await run_until_told(self.stay())

    async def stay(self) -> None:
        """Keep the participants connected until every one's study has ended.

        Raises:
            Failure: why one of them could not take part, once the others have ended: somebody who is revoked must
                not end the part of those beside her.
        """
        renewal = Renewal(
            self._configuration, self._participants[0].identity, self._ca, self._certificate, self._use_certificate
        )
        if self._certificate.not_after <= time.time():
            await self._renew_expired(renewal)
        channel = self._channels = self._open_channel()
        tasks = [asyncio.create_task(self._stay(channel, one)) for one in self._participants]
        background = asyncio.gather(renewal.run(), self._gate.run())
        failures: list[Failure] = []
        try:
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
            for task in (*tasks, background):
                task.cancel()
            await asyncio.gather(*tasks, background, return_exceptions=True)
            await channel.close(grace=1.0)
            self._tell_failures()

    def _tell_failures(self) -> None:
        """At the end, to whoever runs this process: what she took part in without saying anything.

        The exit code says nothing of it: where a failed process is started again, everybody would see who comes back.
        """
        failed, trained = (sum(getattr(one, name) for one in self._participants) for name in ("failed", "trained"))
        if not failed:
            return
        how = next(one.last_failure for one in reversed(self._participants) if one.failed)
        whose = "your training" if len(self._participants) == 1 else f"training of {len(self._participants)} here"
        log.error(f"{whose} failed in {failed} of {trained} rounds ({how}): zeros were sent, and charged")

    async def _renew_expired(self, renewal: Renewal) -> None:
        log.info("the certificate has expired, a new one is asked for", path=str(self._certificate.path))
        try:
            await renewal.renew(self._configuration.coordinator.give_up_s or None)
        except (EnrolmentRefused, EnrolmentUnavailable, CertificateError) as error:
            raise Failure(
                error.code,
                f"the certificate {self._certificate.path} expired on {shown(self._certificate.not_after)} (this "
                f"machine's clock says {shown(time.time())}) and can't be renewed: {error}. Unless the clock is wrong, "
                "ask the study's authority for a new join code and join again into a new folder, with --ledger "
                f"{self._configuration.host.ledger}: the new identity goes on spending the same budget",
            ) from error

    def _use_certificate(self, certificate: ClientCertificate) -> None:
        """From the next session on."""
        self._certificate = certificate
        if self._channels is not None:
            self._channels.renew(certificate)

    def _open_channel(self) -> Channels:
        return Channels(self._configuration.coordinator.address, self._ca, self._certificate)

    async def _stay(self, channel: Channels, participant: Participant) -> None:
        """Keep one participant connected until the study ends."""
        participant.may_begin = self._gate.is_open
        try:
            await self._stay_connected(channel, participant)
        finally:
            await participant.close()

    async def _stay_connected(self, channel: Channels, participant: Participant) -> None:
        address, give_up_s = self._configuration.coordinator.address, self._configuration.coordinator.give_up_s
        away_since, failures = time.monotonic(), 0
        told = Trouble(-1, "")  # what says most since the coordinator was last there
        while True:
            if self._gate.is_overdue():
                await participant.close()  # else an attempt that a coordinator never ends would pass her by the gate
            # The time at the gate isn't one in which nobody answered; who is in an attempt goes on with it first.
            if not participant.under_way and await self._gate.opened():
                away_since = time.monotonic()
            connection, connected = channel.current(), False
            try:
                connected = await is_connected(connection)
                session = await open_session(connection, participant.identity, self._configuration.study.name)
                try:
                    terms = await self._gate.within(self._accept(session), lambda: participant.under_way)
                    self._reachable, told, began = True, Trouble(-1, ""), time.monotonic()
                    try:
                        work = participant.take_part(session, terms)
                        reason = await self._gate.within(work, lambda: participant.under_way)
                    finally:
                        away_since = time.monotonic()  # from the end of the session, however it ends
                        if away_since - began >= STEADY_S:  # else it is one of those that break at once
                            failures = 0
                finally:
                    session.close()
                if reason is not None:
                    if reason not in self._ended:  # said once for all participants of the process
                        log.info("the study ended", reason=reason)
                        self._ended.add(reason)
                    if reason not in FINISHED:
                        raise Failure(
                            ExitCode.STUDY,
                            f"the coordinator gave up ({reason}), and the study can go on when it is served again: "
                            "start this again then",
                        )
                    return
                trouble = Trouble(0, "it closed the connection")
            except NotNow:  # away of its own accord: nothing is wrong
                continue
            except grpc.aio.AioRpcError as error:
                details = error.details() or error.code().name
                if error.code() in FINAL:
                    raise InputFailure(f"{address}: {peer_text(details)}") from error
                trouble = self._trouble(details, connected)
            except DocumentUnavailable as error:
                trouble = Trouble(0, str(error))
            except TimeoutError:
                trouble = trouble_of_silence(None if connected else self._web_proxy())
            except DocumentMismatch as error:
                raise NetworkFailure(f"{address}: {error}") from error
            # Said once for all participants of the process, and again when more is known.
            if self._reachable or trouble.tells > max(self._told, 1):
                longest = f"for {give_up_s:g} s" if give_up_s else "until it is stopped"
                log.info(f"coordinator away, trying again {longest}", address=address, reason=trouble.words)
                self._told = trouble.tells
            self._reachable = False
            told = max(told, trouble, key=lambda one: one.tells)
            failures += 1
            if give_up_s and time.monotonic() - away_since > give_up_s:
                expired = self._certificate.not_after <= time.time()
                when = f"; the certificate expired on {shown(self._certificate.not_after)}" if expired else ""
                advice = ": check the address and that it runs, or raise coordinator.give_up_s"
                raise NetworkFailure(
                    f"{address} can't be reached since {give_up_s:g} s: {told.words}{when}"
                    f"{'' if told.tells > 1 else advice}"
                )
            await participant.rest(_backoff_s(failures))

    def _trouble(self, details: str, connected: bool) -> Trouble:
        if connected:
            return trouble_told(details)
        coordinator = self._configuration.coordinator
        files = {"ca": str(coordinator.ca), "certificate": str(self._certificate.path)}
        return trouble_of(details, proxy=self._web_proxy(), **files)

    def _web_proxy(self) -> WebProxy | None:
        return web_proxy_of(self._configuration.coordinator.address, os.environ)

    async def _accept(self, session: Session) -> StudyTerms:
        """Fetch, verify and accept the study document and the roster; once for the process."""
        # Not the whole welcome: it holds the session's token, and a report with all locals would show it.
        study_sha256, roster_sha256 = session.welcome.study_sha256, session.welcome.roster_sha256
        async with self._terms_lock:
            terms = self._terms
            if terms is not None and (terms.study_sha256, terms.roster_sha256) == (study_sha256, roster_sha256):
                return terms
            try:
                check_agreed(self._configuration, study_sha256)  # before anything else: the policy may allow more
            except PolicyRefusal as error:
                raise InputFailure(f"refused by this host's policy: {error}") from error
            study_bytes = await session.download(study_sha256, LARGEST_DOCUMENT)
            try:
                document = StudyDocument.from_bytes(study_bytes)
                check_study(self._configuration, document, study_sha256, self._journal.ledger.totals)
                self._check_data(study_sha256)
                if document.plan.dim != self._task.dim:
                    raise InvalidStudy(f"the plan is for {document.plan.dim} values, the task has {self._task.dim}")
                roster = await self._fetched(session, document, study_sha256, roster_sha256)
            except StorageError as error:
                raise InputFailure(f"nothing can be written down, so nothing is sent: {error}") from error
            except PolicyRefusal as error:
                raise InputFailure(f"refused by this host's policy: {error}") from error
            except (InvalidRoster, InvalidStudy, ValueError) as error:
                raise InputFailure(f"{self._configuration.coordinator.address}: {error}") from error
            plan = document.plan
            log.info(
                "study accepted",
                study=document.study,
                roster_version=roster.version,
                participants=len(roster),
                mechanism=plan.mechanism,
                trusts=trust_of(plan.mechanism, plan.adversary).words.partition(":")[0],
                adversary=plan.adversary,
                epsilon=plan.budget_coordinator,  # what policy.max_epsilon is held against
                delta=plan.delta,
                adjacency=plan.adjacency.partition(":")[0],
                rounds=plan.rounds,
                A=plan.colluders,
                h_min=plan.h_min,
                **digests(document, study_sha256),  # what a policy may pin
            )
            self._terms = StudyTerms(document, roster, study_sha256, roster_sha256)
            return self._terms

    def _check_data(self, study_sha256: bytes) -> None:
        """Whether each identity still has the data that the ledger charged it for in this study.

        Raises:
            ValueError: it has other data.
        """
        study = self._journal.ledger.totals.studies.get(study_sha256.hex())
        for one in self._participants:
            spent = None if study is None else study.spent.get(one.identity.public.hex())
            if spent is not None and spent.data != one.data_name:
                raise ValueError(
                    f"the identity {one.identity.public.hex()[:8]} took part in this study with other data than "
                    "host.toml names now, by the ledger: put [data] and its part back as they were"
                )

    async def _accept_roster(self, session: Session, sha256: bytes) -> StudyTerms:
        """The terms with another roster than those of the session's beginning; once for the process.

        Raises:
            InvalidRoster: it goes back, or isn't one of this study under its plan.
            PolicyRefusal: it breaks the policy.
            runtime.durable.StorageError: it can't be remembered.
        """
        async with self._terms_lock:
            terms = self._terms
            if terms is None:
                raise InvalidRoster("no study was accepted yet")
            if terms.roster_sha256 != sha256:
                try:
                    roster = await self._fetched(session, terms.document, terms.study_sha256, sha256)
                except InvalidRoster:
                    raise
                except ValueError as error:
                    raise InvalidRoster(str(error)) from error
                log.info("a later roster", roster_version=roster.version, participants=len(roster))
                terms = self._terms = StudyTerms(terms.document, roster, terms.study_sha256, sha256)
            return terms

    async def _fetched(self, session: Session, document: StudyDocument, study_sha256: bytes, sha256: bytes) -> Roster:
        """A roster, held against the authority's key, the plan, the policy and every version seen before."""
        loop, plan = asyncio.get_running_loop(), document.plan
        # Bounded by the plan: a coordinator that lies could else have this process read until its memory is full.
        most = (1 << 16) + ROSTER_BYTES * LARGEST_GROWTH * max(plan.clients, plan.population)
        roster_bytes = await session.download(sha256, most)
        public = self._configuration.study.authority_public_key_bytes
        roster = await loop.run_in_executor(self._executor, verify_roster, roster_bytes, public)
        if roster.study != document.study:
            raise InvalidRoster(f"the roster is that of another study, {roster.study!r}")
        check_roster_fits(plan, roster)
        check_roster(self._configuration, document, roster)
        await self._journal.accept_study(document.study, study_sha256, roster.version, roster.digest())
        return self._kept(roster)

    def _kept(self, roster: Roster) -> Roster:
        """A roster that was verified, as it is held from here on."""
        return SharedRoster.of(roster) if len(self._participants) > 1 else roster


async def run_until_told(work: Coroutine[Any, Any, None]) -> int:
    """Run to the end, or until SIGTERM or SIGINT; returns the exit code, having let the work clean up."""
    stopped: list[int] = []
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work)

    def stop(code: int) -> None:
        stopped.append(code)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop, ExitCode.OK)
    loop.add_signal_handler(signal.SIGINT, stop, ExitCode.INTERRUPTED)
    try:
        await task
        return ExitCode.OK
    except asyncio.CancelledError:
        if not stopped:
            raise
        log.info("stopped on request")
        return stopped[0]


def _read_ca(path: Path) -> bytes:
    """Certificates in PEM. gRPC would take anything, and then never reach anybody."""
    content = path.read_bytes()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InputFailure(
            f"{path} holds no certificate in PEM: copy ca.pem from the study's folder tls again"
        ) from error
    return content


def _backoff_s(failures: int) -> float:
    """Soon for the first time, since a place in an attempt is kept for a moment only; then exponential.

    With jitter, over three quarters and then over the upper half: a thousand participants must not return together.
    """
    least, most = 0.25, min(AT_ONCE_S, RETRY_S[1])
    if failures > 1:
        least, most = 0.5, min(RETRY_S[1], RETRY_S[0] * 2 ** min(failures - 2, 10))
    return most * (least + (1 - least) * int.from_bytes(os.urandom(2), "little") / 65536)
