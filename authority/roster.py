"""Closing a version of the roster: its participants, the lottery's seeds, the signature, and answers to new members."""

from __future__ import annotations

import os
from collections.abc import Sequence

from authority.folder import AuthorityError, AuthorityFolder
from authority.invitations import check_clock
from authority.requests import accept, newest_roster
from authority.store import AuthorityStore, Version, admitted
from runtime.durable import Statement
from secagg.encoding import RandomBytes
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, Roster, RosterEntry, sign_roster
from wire.authority_statements import Answer, sign_answer, write_package
from wire.certificates import CertificateError
from wire.study import write_draws


def begin(
    folder: AuthorityFolder,
    store: AuthorityStore,
    entries: Sequence[RosterEntry],
    now: float,
    random_bytes: RandomBytes = os.urandom,
) -> Version:
    """Sign version 1 with the participants that were made with the study; they get the first places, in this order.

    Raises AuthorityError: there is already a version.
    """
    if store.newest() is not None:
        raise AuthorityError(f"{folder.path} has signed rosters already")
    members = [admitted(entry.identity, entry.host, False, now) for entry in entries]
    _close(folder, store, 1, tuple(sorted(entries, key=lambda entry: entry.identity)), now, random_bytes, members)
    newest = store.newest()
    assert newest is not None  # noqa: S101  # just written
    return newest


def sign_next(
    folder: AuthorityFolder,
    store: AuthorityStore,
    now: float,
    *,
    after: int = 0,
    random_bytes: RandomBytes = os.urandom,
) -> Version | None:
    """Sign the next version, numbered above ``after``, and answer the requests that waited for it.

    Everything is durable before this returns, and nothing is published here: a stored version is the only one with its
    number, even if this process crashes. Returns None if the last version is still right.

    Raises AuthorityError: the clock has gone back, or there are as many versions as there may be; StorageError: nothing
    was signed.
    """
    check_clock(store, now)
    last = newest_roster(folder, store)
    members = {member.identity: member for member in store.members()}
    entries = tuple(RosterEntry(member.identity, member.host) for member in members.values() if member.revoked is None)
    version = max(after, 0 if last is None else last.version) + 1
    changed = last is None or last.entries != entries or after > last.version
    answers: list[Statement] = []
    for request in store.waiting():
        member = members[request.identity]
        if member.revoked is not None:
            refusal = Answer(request.id, False, "this identity was revoked before it was listed", "", b"", version - 1)
            answer = sign_answer(refusal, folder.keys.signing)
        else:
            try:
                answer = accept(folder, store, request.id, request.identity, request.csr, version, now, member)
            except CertificateError:  # the request keeps waiting; revocations must be signed nevertheless
                continue
        answers.append(("UPDATE requests SET answer = ? WHERE id = ?", (answer, request.id)))
    if not changed:
        if answers:
            store.write(*answers)
        return None
    _close(folder, store, version, entries, now, random_bytes, answers)
    return store.newest()


def _close(
    folder: AuthorityFolder,
    store: AuthorityStore,
    version: int,
    entries: tuple[RosterEntry, ...],
    now: float,
    random_bytes: RandomBytes,
    statements: Sequence[Statement],
) -> None:
    study, rounds = folder.settings.study, folder.settings.draws
    # Cohorts are drawn only now that the list is closed, so no request can be made in order to be in one of them.
    draws = Draws.draw(study, version, rounds, random_bytes) if rounds else None
    try:
        roster = Roster(study, version, entries, None if draws is None else draws.lottery)
    except InvalidRoster as error:
        raise AuthorityError(f"no further version can be signed: {error}") from error
    store.write(
        *statements,
        # Old seeds are useless; deleted in this transaction, so that the file never holds two sets.
        ("UPDATE versions SET lottery = NULL WHERE lottery IS NOT NULL", ()),
        # The number is the key: a second roster with this number can't be stored, so it is never sent.
        (
            "INSERT INTO versions (version, signed, participants, roster, lottery) VALUES (?, ?, ?, ?, ?)",
            (
                version,
                now,
                len(entries),
                sign_roster(roster, folder.keys.signing),
                None if draws is None else write_draws(draws),
            ),
        ),
    )


def package_of(store: AuthorityStore, answers: Sequence[bytes] = ()) -> tuple[bytes, int, list[bytes]] | None:
    """The newest roster with all answers that no coordinator has confirmed, and further ``answers``, such as refusals,
    which aren't stored.

    Returns the package, the roster's version and the ids of the stored requests in it; None before the first version.
    """
    newest, stored = store.newest(), store.unpublished()
    if newest is None:
        return None
    every = list(dict.fromkeys([answer for _, answer in stored] + list(answers)))
    return write_package(newest.roster, newest.lottery, every), newest.version, [request_id for request_id, _ in stored]


def mark_published(store: AuthorityStore, version: int, request_ids: Sequence[bytes]) -> None:
    """Record that the coordinator has confirmed them."""
    store.write(
        ("UPDATE versions SET published = 1 WHERE version = ?", (version,)),
        *(("UPDATE requests SET published = 1 WHERE id = ?", (request_id,)) for request_id in request_ids),
    )
