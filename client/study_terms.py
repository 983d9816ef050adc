"""The study document and the roster of a client process: fetched, verified and accepted once for all participants."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Final

import structlog

from client.connection import Session
from client.journal import ClientJournal
from client.log_lines import RoundLines
from client.policy import PolicyRefusal, check_agreed, check_roster, check_study, digests
from client.settings import HostSettings
from learning.task import Task
from mechanisms.clip_rule import ClipRule
from runtime.durable import StorageError
from runtime.failure import InputFailure
from secagg.roster import InvalidRoster, Roster, RosterHead, verify_roster
from wire.guarantee import trust_of
from wire.roster_history import NewestRoster, read_history, verify_newest
from wire.round_model import apply_step, model_bytes
from wire.study import LARGEST_DOCUMENT, InvalidStudy, StudyDocument, check_roster_fits

LARGEST_GROWTH: Final = 4  # of a roster over the plan's population
ROSTER_BYTES: Final = 256  # most per participant in a roster's file, which is read before it can be verified
_ROUNDS_HELD: Final = 2
_SIGNATURES: Final = 3  # of each member in a round: keys, dealing, survivor sets

_read_document = lru_cache(maxsize=4)(StudyDocument.from_bytes)  # for participants that are made for each message

log = structlog.get_logger()


@dataclass(frozen=True)
class StudyTerms:
    """What the process fetched, checked and accepted."""

    document: StudyDocument
    roster: Roster
    study_sha256: bytes
    roster_sha256: bytes


@dataclass(frozen=True)
class HostProcess:
    """What all participants of a process use.

    Attributes:
        executor: for the protocol's arithmetic, so that the event loop stays free.
        data_names: identity -> its data's name in the ledger; see `client.held_data`.
    """

    settings: HostSettings
    journal: ClientJournal
    executor: Executor
    data_names: Mapping[bytes, str]


class StudyAcceptance:
    """Accepts a study and its rosters for all participants of a process, and holds the model of a round for them.

    Attributes: terms: None before the first session; lines: reports the end of each attempt.
    """

    def __init__(self, process: HostProcess, task: Task, keep_roster: Callable[[Roster], Roster]) -> None:
        """``keep_roster``: replaces a verified roster by the object to hold."""
        self._settings, self._journal, self._executor = process.settings, process.journal, process.executor
        self._data_names, self._task, self._keep_roster = process.data_names, task, keep_roster
        self.terms: StudyTerms | None = None
        self.lines = RoundLines(self.spent)
        self._accepting, self._fetching = asyncio.Lock(), asyncio.Lock()
        self._model = b"", b""  # the SHA-256 of the last one, and its bytes
        self._newest: tuple[bytes, NewestRoster] | None = None  # the last statement, verified

    async def fetch_model(self, session: Session, sha256: bytes, dim: int, rule: ClipRule) -> bytes:
        """The model of a round, downloaded once for all participants: as a step, where the one before is held.

        Raises as `client.connection.Session.download`.
        """
        async with self._fetching:
            if sha256 != self._model[0]:
                self._model = sha256, await self._download_model(session, sha256, dim, rule)
            return self._model[1]

    async def _download_model(self, session: Session, sha256: bytes, dim: int, rule: ClipRule) -> bytes:
        (held, before), largest = self._model, model_bytes(dim, rule)
        if held:
            model = await session.model(sha256, largest, held)
            if len(model) < largest:
                loop = asyncio.get_running_loop()
                with contextlib.suppress(ValueError):
                    model = await loop.run_in_executor(self._executor, apply_step, before, model, dim, rule)
            if hashlib.sha256(model).digest() == sha256:
                return model
            log.warning("the step to the round's model makes another one: the whole model is fetched")
        return await session.download(sha256, largest)

    async def accept(self, session: Session) -> StudyTerms:
        """Fetch, verify and accept the study document and the roster that a session begins with.

        Raises Failure if one can't be used or the policy refuses it, and as `client.connection.Session.download`.
        """
        # Not the whole welcome: it holds the session's token, and a report with all locals would show it.
        study_sha256, roster_sha256 = session.welcome.study_sha256, session.welcome.roster_sha256
        async with self._accepting:
            terms = self.terms
            if terms is not None and (terms.study_sha256, terms.roster_sha256) == (study_sha256, roster_sha256):
                return terms
            try:
                check_agreed(self._settings, study_sha256)  # first: the policy may allow more
                document = _read_document(await session.download(study_sha256, LARGEST_DOCUMENT))
                check_study(self._settings, document, study_sha256, self._journal.ledger.totals)
                self._check_data(study_sha256)
                if document.plan.dim != self._task.dim:
                    raise InvalidStudy(f"the plan is for {document.plan.dim} values, the task has {self._task.dim}")
                if document.plan.evaluation and not getattr(self._task, "judged", ()):
                    raise InvalidStudy("participants are to evaluate, and the task has no model that they could judge")
                roster = await self._fetch_roster(session, document, study_sha256, roster_sha256)
            except StorageError as error:
                raise InputFailure(f"nothing can be written down, so nothing is sent: {error}") from error
            except PolicyRefusal as error:
                raise InputFailure(f"refused by this host's policy: {error}") from error
            except ValueError as error:  # InvalidRoster and InvalidStudy among them
                raise InputFailure(f"{self._settings.coordinator.address}: {error}") from error
            _log_accepted(document, study_sha256, roster)
            self.terms = StudyTerms(document, roster, study_sha256, roster_sha256)
            return self.terms

    async def accept_roster(self, session: Session, sha256: bytes) -> StudyTerms:
        """The terms with the roster of a round, which may be later than the session's first one.

        Raises as `client.connection.Session.download`, and InvalidRoster (older than an accepted one, or unfit for this
        study and plan), PolicyRefusal, or `runtime.durable.StorageError` from the journal.
        """
        async with self._accepting:
            terms = self.terms
            if terms is None:
                raise InvalidRoster("no study was accepted yet")
            if terms.roster_sha256 != sha256:
                try:
                    roster = await self._fetch_roster(session, terms.document, terms.study_sha256, sha256)
                except InvalidRoster:
                    raise
                except ValueError as error:
                    raise InvalidRoster(str(error)) from error
                log.info("a later roster", roster_version=roster.version, participants=len(roster))
                terms = self.terms = replace(terms, roster=roster, roster_sha256=sha256)
            return terms

    async def _fetch_roster(
        self, session: Session, document: StudyDocument, study_sha256: bytes, sha256: bytes
    ) -> Roster:
        """A roster, checked against the authority's key, the plan, the policy and all versions seen before."""
        plan = document.plan
        # Bounded by the plan: otherwise a malicious coordinator could fill this process's memory.
        most = (1 << 16) + ROSTER_BYTES * LARGEST_GROWTH * max(plan.clients, plan.population)
        data = await session.download(sha256, most)
        public = self._settings.study.authority_public_key_bytes
        roster = await asyncio.get_running_loop().run_in_executor(self._executor, verify_roster, data, public)
        if roster.study != document.study:
            raise InvalidRoster(f"the roster is that of another study, {roster.study!r}")
        if roster.terms != study_sha256:
            raise InvalidRoster(
                f"unsigned-terms: the authority signed version {roster.version} of the roster with the terms "
                f"{roster.terms.hex()}, the coordinator shows {study_sha256.hex()}"
            )
        check_roster_fits(plan, roster)
        check_roster(self._settings, document, roster)
        seen = self._journal.seen(document.study)
        heads: tuple[RosterHead, ...] = ()
        if 0 < seen[0] < roster.version and roster.previous != seen[1]:
            heads = read_history(await session.history(seen[0]))
        agreed = self._settings.study.sha256 == study_sha256.hex()
        await self._journal.accept_study(study_sha256, roster, heads, agreed=agreed)
        return self._keep_roster(roster)

    async def check_newest(self, terms: StudyTerms, statement: bytes) -> bytes:
        """The authority's statement that the roster of a round is the newest, checked; empty where the terms want none.

        Raises InvalidRoster: it isn't, by this machine's clock and all statements that were seen before.
        """
        valid_s, public = terms.document.roster_valid_s, self._settings.study.authority_public_key_bytes
        if not valid_s:
            return b""
        newest = self._newest
        if newest is None or newest[0] != statement:
            newest = self._newest = statement, verify_newest(statement, public)
        newest[1].check(terms.roster, valid_s, time.time(), self._journal.stated(terms.document.study))
        await self._journal.note_statement(newest[1])
        return statement

    def _check_data(self, study_sha256: bytes) -> None:
        """Raises ValueError if an identity has other data than the ledger charged it for in this study."""
        study = self._journal.ledger.totals.studies.get(study_sha256.hex())
        for identity, name in self._data_names.items():
            spent = None if study is None else study.spent.get(identity.hex())
            if spent is not None and spent.data != name:
                raise ValueError(
                    f"according to the ledger, the identity {identity.hex()[:8]} took part in this study with other "
                    "data than host.toml names now: change [data] and the participant's part back"
                )

    def spent(self) -> dict[str, float]:
        """The epsilon spent on this process's data in this study, and its limit, the lower of plan and policy."""
        study = None if self.terms is None else self._journal.ledger.totals.studies.get(self.terms.study_sha256.hex())
        if self.terms is None or study is None:
            return {}
        most = max(study.epsilon_of_data(name) for name in self._data_names.values())
        limit = min(self._settings.policy.max_epsilon, self.terms.document.plan.budget_coordinator)
        return {"epsilon": round(most, 3), "max_epsilon": limit}


def _log_accepted(document: StudyDocument, study_sha256: bytes, roster: Roster) -> None:
    plan = document.plan
    log.info(
        "study accepted",
        study=document.study,
        roster_version=roster.version,
        participants=len(roster),
        mechanism=plan.mechanism,
        trusts=trust_of(plan.mechanism, plan.adversary).words.partition(":")[0],
        adversary=plan.adversary,
        epsilon=plan.budget_coordinator,  # which policy.max_epsilon limits
        delta=plan.delta,
        adjacency=plan.adjacency.partition(":")[0],
        rounds=plan.rounds,
        A=plan.colluders,
        h_min=plan.h_min,
        **digests(document, study_sha256),  # what a policy may pin
    )


_changing = threading.Lock()  # participants compute in several threads


class SharedRoster(Roster):
    """A roster that remembers valid signatures, for several participants of one process.

    All members of a cohort check the same signatures. Participants of one process trust that process, so a signature
    that was verified for one of them needs no check for the others.
    """

    @classmethod
    def of(cls, roster: Roster) -> SharedRoster:
        """The same roster with a new memory."""
        return cls(**{field.name: getattr(roster, field.name) for field in fields(roster)})

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        """As `Roster.verify`; remembers only valid signatures, by a digest of identity, signature and message."""
        length = len(signature).to_bytes(4, "little")
        name = hashlib.sha256(self.identity(participant) + length + signature + message).digest()
        valid = self._valid
        if name in valid:
            return True
        if not super().verify(participant, signature, message):
            return False
        with _changing:
            valid[name] = None
            if len(valid) > _ROUNDS_HELD * _SIGNATURES * len(self):
                valid.pop(next(iter(valid)))  # the oldest
        return True

    @cached_property
    def _valid(self) -> dict[bytes, None]:
        return {}
