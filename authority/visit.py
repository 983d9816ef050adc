"""One visit to the coordinator: judge the waiting requests, sign the next roster, publish the decisions.

The folder is locked only during decisions, never while waiting for the network, so that invitations can be made beside
a running authority. The next visit completes a visit that was interrupted at any point.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from authority.folder import AuthorityError, AuthorityFolder
from authority.link import Link, LinkError
from authority.local_enrolment import LocalEnrolmentSocket
from authority.requests import Judgement, judge, look, newest_roster, read_requests
from authority.roster import accept_terms, mark_published, package_of, read_terms, sign_next, validity_s
from authority.store import WAIT_S, AuthorityStore, locked
from client.policy import PolicyRefusal, check_terms
from client.policy_file import PolicyTable
from runtime.failure import InputFailure
from runtime.health_file import EVERY_S
from secagg.encoding import RandomBytes
from wire.authority_statements import write_package
from wire.enrolment import SignedRequest

_SOON_S: Final = 0.3


@dataclass(frozen=True)
class Visit:
    judgements: list[Judgement] = field(default_factory=list)  # of the chosen requests
    signed: tuple[int, int] | None = None  # the signed version and its number of participants; None if none was signed
    published: int | None = None  # the version that the coordinator has now; None if there was nothing to publish
    waiting: int = 0  # accepted requests that wait for the next version


def preview(folder: AuthorityFolder, link: Link) -> list[Judgement]:
    """The requests at the coordinator, and how they would be judged; changes nothing."""
    requests = read_requests(link.pending().requests)
    with locked(folder) as store:
        roster = newest_roster(store)
        return [look(store, signed, roster, time.time()) for signed in requests]


def attend(
    folder: AuthorityFolder,
    link: Link,
    *,
    sign: bool,
    chosen: Callable[[SignedRequest], bool] = lambda _: True,
    clock: Callable[[], float] = time.time,
    random_bytes: RandomBytes = os.urandom,
    wait_s: float = WAIT_S,
) -> Visit:
    """Fetch, judge the ``chosen`` requests (the others keep waiting), sign the next version if wanted, publish.

    What the coordinator has is published again once its statement of the newest roster is half over.

    Raises LinkError: the coordinator can't be reached, and decisions are kept for the next visit; AuthorityError: as
    `judge` and `sign_next`; StorageError: nothing of the last decision is stored.
    """
    pending = link.pending()
    requests = read_requests(pending.requests)
    signed = None
    with locked(folder, wait_s) as store:
        check_not_behind(store, pending.roster_version)
        judgements = judge(store, requests, clock(), chosen)
        if sign:
            version = sign_next(store, clock(), random_bytes=random_bytes)
            signed = None if version is None else (version.version, version.participants)
        # A request that was judged before and still waits at the coordinator: its answer was lost.
        lost = [one.answer for one in judgements if one.answer is not None]
        newest, waiting = store.newest(), len(store.waiting())
        wanted = bool(lost or store.unpublished()) or (newest is not None and newest.version > pending.roster_version)
        if newest is not None and not wanted:  # nothing is signed that isn't published
            wanted = max(pending.newest_until - clock(), 0) < validity_s(store, newest) / 2
        package = package_of(store, clock(), lost) if wanted else None
        if newest is not None and not newest.published and newest.version == pending.roster_version:
            mark_published(store, newest.version, ())  # by hand
    published = None
    if package is not None:
        data, number, request_ids = package
        try:
            published = link.publish(write_package(data))
        except LinkError as error:
            what = "the decisions are" if signed is None else f"version {number} is signed and will be"
            raise LinkError(f"{error}. Nothing is lost: {what} published by the next visit") from error
        with locked(folder, wait_s) as store:
            mark_published(store, number, request_ids)
    return Visit(judgements, signed, published, waiting)


def check_not_behind(store: AuthorityStore, coordinator_version: int) -> None:
    """Check that the coordinator doesn't claim a later version than was ever signed here.

    If it does, it lies, or this folder was restored from an older copy; then a number would be signed twice.

    Raises AuthorityError: it claims a later version.
    """
    newest = store.newest()
    known = 0 if newest is None else newest.version
    if coordinator_version > known:
        raise AuthorityError(
            f"the coordinator says it has version {coordinator_version} of the roster, but this folder has signed only "
            f"{known}: it was restored from an older copy, or the coordinator lies. If it was restored, carry "
            "roster.json and history.json from the coordinator here, and go on from them with `sordino authority sign "
            "DIR --after FOLDER`"
        )


def sign_first(folder: AuthorityFolder, link: Link, policy: PolicyTable) -> None:
    """Accept the terms that the coordinator serves, unless there are some already.

    Raises InputFailure: the policy refuses them; those of `Link.document` and `authority.roster.read_terms`.
    """
    with locked(folder) as store:
        if store.terms() is not None:
            return
    document = link.document()
    try:
        check_terms(policy.to_policy(), read_terms(folder, document), hashlib.sha256(document).digest())
    except PolicyRefusal as error:
        refused = f"the policy of --first-terms refuses the study's terms ({error}). Nothing was signed."
        raise InputFailure(refused) from None
    with locked(folder) as store:
        accept_terms(store, document, time.time())


def rest(
    stop: threading.Event, pause_s: float, socket: LocalEnrolmentSocket | None, alive: Callable[[], None] = lambda: None
) -> None:
    """Wait for the next visit, with signs of life; a short time if a request with a new code is about to come."""
    ends = time.monotonic() + pause_s
    while (left := ends - time.monotonic()) > 0:
        alive()
        if stop.wait(min(left, EVERY_S if socket is None else _SOON_S)) or (socket is not None and socket.busy()):
            return
