"""Closing a version of the roster: its participants and terms, the lottery's seeds, the signature, answers to new
members; and the statement that it is the newest.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence

from authority.folder import AuthorityError, AuthorityFolder
from authority.invitations import check_clock
from authority.requests import accept, newest_roster
from authority.store import AuthorityStore, Version, admitted
from runtime.durable import Statement
from secagg.encoding import RandomBytes
from secagg.lottery import Draws
from secagg.roster import NONE, InvalidRoster, Roster, RosterEntry, RosterHead, sign_roster, verify_roster
from wire.authority_statements import Answer, Package, sign_answer
from wire.certificates import CertificateError
from wire.roster_history import NewestRoster, check_descent, read_history, sign_newest, write_history
from wire.study import InvalidStudy, StudyDocument, write_draws


def begin(
    store: AuthorityStore,
    entries: Sequence[RosterEntry],
    now: float,
    random_bytes: RandomBytes = os.urandom,
    terms: bytes | None = None,
) -> None:
    """Sign version 1 with the participants that were made with the study; they get the first places, in this order.

    ``terms``: the study document, where there is one already. Raises AuthorityError: there is already a version.
    """
    if store.newest() is not None:
        raise AuthorityError(f"{store.folder.path} has signed rosters already")
    members = [admitted(entry.identity, entry.host, False, now) for entry in entries]
    listed = tuple(sorted(entries, key=lambda entry: entry.identity))
    if terms is not None:
        accept_terms(store, terms, now)
    _close(store, None, listed, now, random_bytes, members)


def accept_terms(store: AuthorityStore, document: bytes, now: float) -> None:
    """Make a study document the terms of the next version of the roster; idempotent. Raises as `read_terms`."""
    check_clock(store, now)
    read_terms(store.folder, document)
    if store.terms() != document:
        store.write(_in_force(store, document, now))


def _in_force(store: AuthorityStore, document: bytes, now: float) -> Statement:
    """Those accepted last are in force, so they are accepted later than all others, whatever the clocks have said."""
    later = max(now, store.last_written() + 0.001)
    return (
        "INSERT INTO terms (sha256, document, accepted) VALUES (?, ?, ?) "
        "ON CONFLICT (sha256) DO UPDATE SET accepted = excluded.accepted",
        (hashlib.sha256(document).digest(), document, later),
    )


def read_terms(folder: AuthorityFolder, document: bytes) -> StudyDocument:
    """Read and check a study document. Raises AuthorityError: it doesn't hold, or is another study's."""
    try:
        terms = StudyDocument.from_bytes(document)
    except InvalidStudy as error:
        raise AuthorityError(f"these terms can't be signed: {error}") from error
    if terms.study != folder.settings.study:
        raise AuthorityError(
            f"these are the terms of the study {terms.study!r}, this is the authority of {folder.settings.study!r}"
        )
    return terms


def sign_next(store: AuthorityStore, now: float, *, random_bytes: RandomBytes = os.urandom) -> Version | None:
    """Sign the next version, and answer the requests that waited for it.

    Everything is durable before this returns, and nothing is published here: a stored version is the only one with its
    number, even if this process crashes. Returns None if the last version is still right.

    Raises AuthorityError: the clock has gone back, or there are as many versions as there may be; StorageError: nothing
    was signed.
    """
    check_clock(store, now)
    last = newest_roster(store)
    members = {member.identity: member for member in store.members()}
    entries = tuple(RosterEntry(member.identity, member.host) for member in members.values() if member.revoked is None)
    version = 1 if last is None else last.version + 1
    terms = _terms_digest(store)
    changed = last is None or (last.entries, last.terms) != (entries, terms)
    answers: list[Statement] = []
    for request in store.waiting():
        member = members[request.identity]
        if member.revoked is not None:
            refusal = Answer(request.id, False, "this identity was revoked before it was listed", "", b"", version - 1)
            answer = sign_answer(refusal, store.folder.keys.signing)
        else:
            try:
                answer = accept(store, request.id, request.identity, request.csr, version, now, member)
            except CertificateError:  # the request keeps waiting; revocations must be signed nevertheless
                continue
        answers.append(("UPDATE requests SET answer = ? WHERE id = ?", (answer, request.id)))
    if not changed:
        if answers:
            store.write(*answers)
        return None
    _close(store, last, entries, now, random_bytes, answers)
    return store.newest()


def adopt(
    store: AuthorityStore, roster_file: bytes, history_file: bytes, now: float, document: bytes | None = None
) -> Roster:
    """Go on from a later roster that this authority signed, after its folder was restored from an older copy.

    Members become those of the roster: admitted, or revoked; open invitations, which may have been used since, are
    withdrawn; its terms are those in force. ``document``: of its terms, if this folder doesn't hold them. Returns the
    roster.

    Raises AuthorityError: it isn't later, not signed by this authority, its history isn't that of this folder, or its
    terms are missing.
    """
    check_clock(store, now)
    last = newest_roster(store)
    seen = (0, NONE) if last is None else (last.version, last.digest())
    try:
        roster, heads = verify_roster(roster_file, store.folder.keys.public), read_history(history_file)
        if roster.study != store.folder.settings.study or roster.version <= seen[0]:
            raise InvalidRoster(f"it isn't a later one of the study {store.folder.settings.study!r}")
        check_descent(seen, roster, heads)
    except InvalidRoster as error:
        raise AuthorityError(f"nothing can go on from that roster: {error}") from error
    held = store.terms(roster.terms)
    if roster.terms != NONE and held is None:
        if document is None or hashlib.sha256(document).digest() != roster.terms:
            raise AuthorityError(
                f"that roster has the terms {roster.terms.hex()}, which this folder doesn't hold: carry the "
                "coordinator's terms.json beside it"
            )
        read_terms(store.folder, held := document)
    here = {member.identity: member for member in store.members()}
    left = [one for one in here if one not in roster.positions and here[one].revoked is None]
    added = "INSERT INTO versions (version, signed, participants, roster, head, published) VALUES (?, ?, ?, ?, ?, 1)"
    between = [head for head in heads if seen[0] < head.version < roster.version]
    store.write(
        ("UPDATE invitations SET withdrawn = ? WHERE identity IS NULL AND withdrawn IS NULL", (now,)),
        *([] if held is None else [_in_force(store, held, now)]),
        *(admitted(one.identity, one.host, True, now) for one in roster.entries if one.identity not in here),
        *(("UPDATE members SET revoked = ? WHERE identity = ?", (now, one)) for one in left),
        *((added, (head.version, now, 0, b"", write_history([head]))) for head in between),
        (added, (roster.version, now, len(roster), roster_file, write_history([roster.head]))),
    )
    return roster


def _terms_digest(store: AuthorityStore) -> bytes:
    document = store.terms()
    return NONE if document is None else hashlib.sha256(document).digest()


def _close(
    store: AuthorityStore,
    last: Roster | None,
    entries: tuple[RosterEntry, ...],
    now: float,
    random_bytes: RandomBytes,
    statements: Sequence[Statement],
) -> None:
    study, rounds = store.folder.settings.study, store.folder.settings.draws
    version, previous = (1, NONE) if last is None else (last.version + 1, last.digest())
    # Cohorts are drawn only now that the list is closed, so no request can be made in order to be in one of them.
    draws = Draws.draw(study, version, rounds, random_bytes) if rounds else None
    try:
        lottery = None if draws is None else draws.lottery
        roster = Roster(study, version, entries, lottery, _terms_digest(store), previous)
    except InvalidRoster as error:
        raise AuthorityError(f"no further version can be signed: {error}") from error
    store.write(
        *statements,
        # Old seeds are useless; deleted in this transaction, so that the file never holds two sets.
        ("UPDATE versions SET lottery = NULL WHERE lottery IS NOT NULL", ()),
        # The number is the key: a second roster with this number can't be stored, so it is never sent.
        (
            "INSERT INTO versions (version, signed, participants, roster, head, lottery) VALUES (?, ?, ?, ?, ?, ?)",
            (
                version,
                now,
                len(entries),
                sign_roster(roster, store.folder.keys.signing),
                write_history([roster.head]),
                None if draws is None else write_draws(draws),
            ),
        ),
    )


def history(store: AuthorityStore) -> list[RosterHead]:
    """What was signed of all versions, ascending. Raises InvalidRoster: the store is damaged."""
    return [head for data in store.heads() for head in read_history(data)]


def validity_s(store: AuthorityStore, version: Version) -> int:
    """How long a statement that this version is the newest holds (`StudyDocument.roster_valid_s` of its terms)."""
    [head] = read_history(version.head)
    document = store.terms(head.terms)
    return 0 if document is None else StudyDocument.from_bytes(document).roster_valid_s


def stated_until(store: AuthorityStore) -> int:
    """When the last statement of the newest version ends; 0: none was made, or the terms want none."""
    newest = store.newest()
    if newest is None or not newest.stated:
        return 0
    valid_s = validity_s(store, newest)
    return math.floor(newest.stated) + valid_s if valid_s else 0


def state_newest(store: AuthorityStore, newest: Version, now: float) -> bytes:
    """Sign that this version is the newest, for its `validity_s`.

    Raises AuthorityError: this machine's clock is behind.
    """
    check_clock(store, now)
    [head] = read_history(newest.head)
    signed = math.floor(now)
    store.write(("UPDATE versions SET stated = ? WHERE version = ?", (now, head.version)))
    until = signed + validity_s(store, newest)
    return sign_newest(
        NewestRoster(head.study, head.version, head.digest(), head.terms, signed, until), store.folder.keys.signing
    )


def package_of(
    store: AuthorityStore, now: float, answers: Sequence[bytes] = ()
) -> tuple[Package, int, list[bytes]] | None:
    """The newest roster with all answers that no coordinator has confirmed, and further ``answers``, such as refusals,
    which aren't stored.

    Returns the package, the roster's version and the ids of the stored requests in it; None before the first version.
    """
    newest, stored = store.newest(), store.unpublished()
    if newest is None:
        return None
    every = tuple(dict.fromkeys([answer for _, answer in stored] + list(answers)))
    files = (newest.roster, state_newest(store, newest, now), write_history(history(store)), newest.lottery)
    return Package(*files, every), newest.version, [request_id for request_id, _ in stored]


def mark_published(store: AuthorityStore, version: int, request_ids: Sequence[bytes]) -> None:
    """Record that the coordinator has confirmed them."""
    store.write(
        ("UPDATE versions SET published = 1 WHERE version = ?", (version,)),
        *(("UPDATE requests SET published = 1 WHERE id = ?", (request_id,)) for request_id in request_ids),
    )
