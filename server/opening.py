"""Reads and checks everything that a study needs, before any port is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificates

from learning.make_task import make_task
from learning.own_data import check_form, load_test
from learning.task import Task
from learning.task_names import trained_task
from mechanisms.plan import Plan
from runtime.address import ports_from, split_address, split_addresses
from runtime.durable import replace_durably
from runtime.failure import ExitCode, Failure, InputFailure
from runtime.settings_file import ConfigurationError
from secagg.roster import NONE, Roster
from secagg.sharing import CURIOUS
from server.events import Event
from server.journal import Journal
from server.membership import SignedRoster
from server.study import Study
from server.study_file import StudyConfiguration
from wire.authority_statements import Card, InvalidCard, verify_card
from wire.certificates import UNREADABLE
from wire.join_code import fingerprint
from wire.records.transcript_files import (
    FOLDER,
    PUBLISHED,
    TranscriptError,
    Transcripts,
    are_published,
    card_and_key,
    check_publishing,
)
from wire.study import TERMS_FILE, StudyDocument, check_roster_fits, read_draws

log = structlog.get_logger()


def open_study(
    configuration: StudyConfiguration,
    on_event: Callable[[Event], None] | None = None,
    between_attempts: Callable[[], None] | None = None,
    task: Task | None = None,
) -> tuple[Study, Journal]:
    """Read and check a study; the callables are for `Study`.

    ``task``: by default the one that the study names.

    Raises Failure, OSError, InfeasiblePlan, InvalidRoster: a file, an option or the plan can't be used.
    """
    files = configuration.roster_file()
    found = files.read()
    roster = found.roster
    task = task or make_task(configuration.study.task, dict(configuration.task))
    document = configuration.document(len(roster))
    plan = document.plan
    check_roster_fits(plan, roster)
    draws = read_draws(roster, found.lottery_file, plan)
    check_hosts(roster, plan.colluders, configuration.coordinator.one_machine)
    check_terms_signed(configuration, document, roster)
    data, trained = configuration.data, trained_task(configuration.study.task, configuration.task)
    held_out = load_test(data.dataset, data.test, trained)
    if data.test:
        check_form(task, held_out, Path(data.test))
    transcripts, public = open_transcripts(configuration, document.to_bytes(), plan)
    journal = Journal(configuration.coordinator.state)
    signed = SignedRoster(roster, found.roster_file, draws)
    study = Study(
        configuration, document, signed, task, held_out, journal, files, on_event, between_attempts, transcripts, public
    )
    return study, journal


def check_terms_signed(configuration: StudyConfiguration, document: StudyDocument, roster: Roster) -> None:
    """Participants take no other terms than those that the authority signed with the roster.

    Without any, a study whose participants can enrol waits for them. Raises InputFailure: the authority signed others.
    """
    if roster.terms == document.digest():
        return
    place = configuration.coordinator.roster.parent
    replace_durably(place / TERMS_FILE, document.to_bytes())
    fixed = ("SORDINO_STUDY__", "SORDINO_TASK__", "SORDINO_PRIVACY__")
    by = ", ".join(name for name in os.environ if name.upper().startswith(fixed))
    keys = "its (fixed) keys" + (f" (the environment sets {by})" if by else "")
    undo = "" if roster.terms == NONE else f"undo changes of {keys}, or "
    told = (
        f"the study's authority hasn't signed the terms of study.toml: {undo}run `sordino authority terms "
        f"DIR {TERMS_FILE} --offline --out FOLDER` where DIR is the authority's folder, and copy the files in FOLDER "
        f"to {place}, where {TERMS_FILE} is"
    )
    if roster.terms != NONE or not configuration.coordinator.enrolment_listen:
        raise InputFailure(told)
    log.warning(told)


def check_client_ca(configuration: StudyConfiguration) -> None:
    """Whether participants' certificates are checked against the TLS authority that they have theirs from.

    Where there is no card, or one that can't be read, there is nothing to compare with: what needs it says so.

    Raises Failure: the study's card names another.
    """
    table = configuration.coordinator
    try:
        known = load_pem_x509_certificates(table.client_ca.read_bytes())
    except (OSError, *UNREADABLE):
        return
    card = _card(configuration)
    if card is not None and card.tls_ca not in [one.public_bytes(Encoding.PEM) for one in known]:
        raise InputFailure(
            f"{table.client_ca} isn't the TLS authority that {table.card} names: copy tls/ca.pem of the authority's "
            "folder there"
        )


def check_gateways(configuration: StudyConfiguration) -> None:
    """Whether participants know all gateways; a warning where the study's card names fewer addresses.

    Raises Failure: the port for enrolment is one of theirs.
    """
    table, count = configuration.coordinator, configuration.engine.gateways
    theirs = {split_address(one)[1] for one in ports_from(table.listen, count)} if count else set()
    if table.enrolment_listen and split_address(table.enrolment_listen)[1] in theirs - {0}:
        raise InputFailure(
            f"coordinator.enrolment_listen = {table.enrolment_listen} is a port of the {count} gateways, which begin "
            f"at {table.listen}: serve with fewer, or make the study with `sordino init --gateways {count}`"
        )
    card = _card(configuration)
    if card is not None and len(split_addresses(card.address)) < count:
        log.warning(
            f"participants know {card.address} alone: of {count} gateways the others hold no sessions, unless that "
            f"is a load balancer. `sordino init --gateways {count}` puts all of them on the card"
        )


def _card(configuration: StudyConfiguration) -> Card | None:
    """The study's card, if there is one that can be read."""
    try:
        data = configuration.coordinator.card.read_bytes()
        return verify_card(data, fingerprint(configuration.read_authority_public_key()))
    except (OSError, InvalidCard, ConfigurationError):
        return None


def check_hosts(roster: Roster, colluders: int, one_machine: bool) -> None:
    """Participants of one process fall together, so A must cover the largest host.

    Raises Failure: it doesn't, and the study doesn't say that all parts are on one machine anyway.
    """
    largest = roster.largest_host()
    if colluders < largest and not one_machine:
        raise Failure(
            ExitCode.INFEASIBLE,
            f"the plan assumes {colluders} colluding participants, but one host runs {largest}: raise "
            f"privacy.adversarial to {largest / len(roster):.3g} or more, spread the participants over more hosts, "
            "or set coordinator.one_machine = true for a trial on one machine",
        )


def open_transcripts(configuration: StudyConfiguration, study: bytes, plan: Plan) -> tuple[Transcripts | None, bool]:
    """What a study's settings say about transcripts.

    Returns:
        Where they are kept, None where they aren't; and whether cohorts are public, by these settings or earlier ones.

    Raises:
        InfeasiblePlan: they are public, and the plan assumes that they are secret.
        TranscriptError, ConfigurationError: key, card or the authority's key can't be used.
    """
    table = configuration.coordinator
    public = table.publish_transcripts or are_published(table.state)
    if public:
        check_publishing(plan)
    if table.transcripts == "off":
        return None, public
    if plan.adversary == CURIOUS:  # no participant signs who is in a sum: there is nothing to prove
        if table.publish_transcripts:
            raise TranscriptError("against a curious coordinator nothing is signed: set publish_transcripts = false")
        return None, public
    if not (table.card.exists() or table.transcript_key.exists() or table.publish_transcripts):
        log.warning("no transcripts are kept: the study has no card and no transcript key", card=str(table.card))
        return None, public
    card, key = card_and_key(table.card, table.transcript_key, configuration.read_authority_public_key())
    published = table.state.with_name(PUBLISHED) if table.publish_transcripts else None
    return Transcripts(table.state.with_name(FOLDER), card, key, study, published=published), public
