"""Checks of a large cohort: a participant's own other than signatures, and a transcript, without running the round."""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.client_phases import AdvertiseKeys, ShareKeys
from secagg.context import RoundConfig, cohort_context, survivor_statement, winners
from secagg.keys import AgreementKey, IdentityKey, advertisement_statement
from secagg.lottery import Draws
from secagg.messages import Advertisement, CohortKeys
from secagg.parameters import RoundParameters
from secagg.roster import Roster, RosterEntry, sign_roster, verify_roster
from wire.authority_statements import Card, sign_card
from wire.certificates import CertificateAuthority
from wire.records.ledger import Row, row_hash
from wire.records.ledger_rows import make_entry
from wire.records.transcript import transcript_of, write_transcript
from wire.study import StudyDocument, plan_study, round_parameters

ROUNDS = 30
STUDY = "bench"


class _Unsigned(Roster):
    """A roster that accepts every signature; signature checks are measured separately."""

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        return True


def cohort_checks(cohort: int, population: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the timed calls: those per roster version, and those per attempt.

    ``cohort``: participants of the round, drawn by the lottery from ``population``. Returns reading and checking the
    roster's file; and from the round's beginning to a checked u1.
    """
    authority, identity = Ed25519PrivateKey.generate(), IdentityKey.generate(os.urandom)
    public = authority.public_key().public_bytes_raw()
    identities = sorted([identity.public, *(os.urandom(32) for _ in range(population - 1))])
    entries = tuple(RosterEntry(one, f"host-{at:06d}") for at, one in enumerate(identities))
    draws = Draws.draw(STUDY, 1, ROUNDS, os.urandom)
    data = sign_roster(Roster(STUDY, 1, entries, draws.lottery), authority)
    roster = _Unsigned(STUDY, 1, entries, draws.lottery)
    me = roster.positions[identity.public]
    # The first round for which the lottery draws the participant; if there is none, another lottery is drawn.
    lucky = (one for one in range(1, ROUNDS + 1) if me in winners(roster, one, draws.ticket(one), cohort))
    round_ = next(lucky, None)
    if round_ is None:
        return cohort_checks(cohort, population)
    colluders = cohort // 20
    fewest = (cohort + colluders) // 2 + 1
    parameters = RoundParameters(
        cohort=cohort, colluders=colluders, min_survivors=fewest, quorum=fewest, bits=16, dim=1000
    )
    ticket = draws.ticket(round_)
    others = {
        who: Advertisement(os.urandom(32), os.urandom(32), os.urandom(64))
        for who in sorted(winners(roster, round_, ticket, cohort))
    }

    def read() -> object:
        return verify_roster(data, public)

    def check() -> object:
        config = RoundConfig(
            roster=roster,
            round=round_,
            attempt=1,
            study_digest=bytes(32),
            model_digest=bytes(32),
            parameters=parameters,
            ticket=ticket,
        )
        phase, mine = AdvertiseKeys(config, identity, os.urandom).advertise()
        assert isinstance(phase, ShareKeys)  # noqa: S101
        return phase._check(CohortKeys(tuple((others | {me: mine}).items())))

    return read, check


def make_transcript(clients: int) -> tuple[bytes, bytes]:
    """Make the transcript of a round in which a tenth of the participants dropped out before their upload, all
    signatures valid.

    Returns the file, and the authority's public key (32 bytes).
    """
    authority, coordinator = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    keys = sorted((IdentityKey.generate(os.urandom) for _ in range(clients)), key=lambda key: key.public)
    entries = tuple(RosterEntry(key.public, f"host-{at:04d}") for at, key in enumerate(keys))
    plan = plan_study(
        clients=clients,
        dim=100_000,
        bits=16,
        clip=1.0,
        epsilon=6.0,
        delta=1e-6,
        rounds=30,
        max_dropout=0.3,
        adversarial=0.05,
    )
    study = StudyDocument(study=STUDY, task="synthetic", task_options={}, plan=plan).to_bytes()
    study_sha256, parameters = hashlib.sha256(study).digest(), round_parameters(plan)
    roster = Roster(STUDY, 1, entries, terms=study_sha256)
    config = RoundConfig(
        roster=roster, round=1, attempt=1, study_digest=study_sha256, model_digest=bytes(32), parameters=parameters
    )
    round_context = config.round_context()
    advertisements: dict[int, Advertisement] = {}
    for at, key in enumerate(keys):
        pair = [AgreementKey(os.urandom(32)).public for _ in range(2)]
        statement = advertisement_statement(round_context, key.public, pair[0], pair[1])
        advertisements[at] = Advertisement(pair[0], pair[1], key.sign(statement))
    listed = [(key.public, advertisements[at].digest()) for at, key in enumerate(keys)]
    u2, u3 = frozenset(range(clients)), frozenset(range(clients - clients // 10))
    signed = survivor_statement(config, cohort_context(round_context, listed), u2, u3)
    entry = make_entry(plan, study=STUDY, study_sha256=study_sha256, round=1, attempt=1, participants=u3)
    card = Card(
        STUDY,
        authority.public_key().public_bytes_raw(),
        CertificateAuthority.make(STUDY, datetime.datetime.now(datetime.UTC)).pem,
        coordinator.public_key().public_bytes_raw(),
        "localhost:8443",
    )
    whole = transcript_of(
        card=sign_card(card, authority),
        roster=sign_roster(roster, authority),
        study=study,
        config=config,
        advertisements=advertisements,
        u2=u2,
        u3=u3,
        signatures=[(at, keys[at].sign(signed)) for at in range(parameters.signatures_needed(clients))],
        row=Row(1, bytes(32), row_hash(bytes(32), 1, entry.to_bytes()), entry),
    )
    data = write_transcript(whole, coordinator, sum_sha256=bytes(32), next_model_sha256=bytes(32), previous=None)
    return data, card.authority_public
