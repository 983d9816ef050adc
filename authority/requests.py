"""Judging requests to join or to renew. The coordinator, which carries them, may replay, reorder, withhold or flood.

A request to join needs a MAC under an open invitation, one to renew the identity's place on the roster; the coordinator
can forge neither. Each request is judged separately and once: it is stored with its answer if it is accepted, or
refused although it proves a code or a place. Refusals of requests that prove nothing are computed anew each time, so
that a flood of them doesn't fill the disk.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from authority.folder import AuthorityError
from authority.invitations import check_clock, name_for
from authority.store import AuthorityStore, Invitation, Judged, Member, admitted
from runtime.durable import Statement, StorageError
from runtime.text import duration
from secagg.roster import Roster, verify_roster
from wire.authority_statements import Answer, sign_answer, verify_answer
from wire.certificates import CertificateError, host_uri, identity_uri, key_of_request
from wire.enrolment import EnrolmentRequest, InvalidRequest, SignedRequest, read_request

REQUESTS_A_DAY: Final = 24
"""For one identity; more must wait. A process that renews needs one every few weeks."""

Verdict = Literal["accept", "refuse", "known", "later"]


@dataclass(frozen=True)
class Judgement:
    """The decision on one request."""

    request: SignedRequest
    verdict: Verdict  # ``known``: it was judged before; ``later``: it can't be judged now, and waits
    reason: str = ""  # one sentence, unless it is accepted
    host: str = ""  # the participant's host name; empty if refused
    proven: bool = False  # whether it proves a code or a place
    answer: bytes | None = None  # signed, to be published; None until the next roster version is signed


def newest_roster(store: AuthorityStore) -> Roster | None:
    """The last roster that was signed.

    Raises AuthorityError: the store belongs to another authority than the keys beside it.
    """
    newest, folder = store.newest(), store.folder
    if newest is None:
        return None
    try:
        roster = verify_roster(newest.roster, folder.keys.public)
    except ValueError as error:
        raise AuthorityError(
            f"{folder.state} was written with other keys than {folder.path} holds: restore both from one copy"
        ) from error
    if roster.study != folder.settings.study:
        raise AuthorityError(
            f"{folder.state} is that of the study {roster.study!r}, authority.toml names {folder.settings.study!r}"
        )
    return roster


def read_requests(datas: Sequence[bytes]) -> list[SignedRequest]:
    """Those that can be read, each once; anything else is skipped."""
    found: dict[bytes, SignedRequest] = {}
    for data in datas:
        try:
            signed = read_request(data)
        except InvalidRequest:
            continue
        found[signed.id] = signed
    return list(found.values())


def look(store: AuthorityStore, signed: SignedRequest, roster: Roster | None, now: float) -> Judgement:
    """How a request would be judged under ``roster`` (of `newest_roster`); changes nothing. ``now`` is the authority's
    clock, the only one that decides whether a code has expired.
    """
    request = signed.request
    before = store.judged(signed.id)
    if before is not None:
        return _known(store, signed, before)
    if request.study != store.folder.settings.study:
        return Judgement(signed, "refuse", f"this is the authority of the study {store.folder.settings.study}")
    member = store.member(request.identity)
    if request.kind == "renew":
        refused, proven = _refuse_renewal(member, roster), member is not None
    else:
        invitation = store.invitation(request.code_id)
        proven = invitation is not None and signed.mac_is(invitation.secret)
        refused = _refuse_join(invitation, request, member, proven=proven, now=now)
    if refused:
        return Judgement(signed, "refuse", refused, proven=proven)
    if store.judged_since(request.identity, now - 86_400) >= REQUESTS_A_DAY:
        return Judgement(signed, "later", f"more than {REQUESTS_A_DAY} requests of one identity in a day", proven=True)
    if member is not None:
        return Judgement(signed, "accept", host=member.host, proven=True)
    places = store.folder.settings.places
    if places and store.present() >= places:
        return Judgement(signed, "refuse", f"all {places} places of the study are taken", proven=True)
    assert invitation is not None  # noqa: S101  # else it was refused
    host = name_for(store, invitation, request.host, request.identity, now)
    return Judgement(signed, "accept", host=host, proven=True)


def _known(store: AuthorityStore, signed: SignedRequest, before: Judged) -> Judgement:
    if before.answer is None:
        member = store.member(before.identity)
        return Judgement(signed, "known", "it waits for the next version", member.host if member else "", proven=True)
    answer = verify_answer(before.answer, store.folder.keys.public)
    return Judgement(signed, "known", answer.reason, answer.host, proven=True, answer=before.answer)


def _refuse_renewal(member: Member | None, roster: Roster | None) -> str:
    if member is None or roster is None or (member.revoked is None and member.identity not in roster.positions):
        return "this identity is not on the study's roster"
    return "" if member.revoked is None else "this identity was revoked"


def _refuse_join(
    invitation: Invitation | None, request: EnrolmentRequest, member: Member | None, *, proven: bool, now: float
) -> str:
    """The sentence for the participant; without a proof it reveals nothing about invitations."""
    if invitation is None or not proven:
        return "no invitation of this study has this join code: ask for a new one"
    if invitation.identity not in (None, request.identity):
        return "the join code was used by another participant: ask for a new one"
    if invitation.withdrawn is not None:
        return "the join code was withdrawn: ask for a new one"
    if now >= invitation.expires:
        late = duration(now - invitation.expires)
        return f"the join code had expired {late} before the authority saw the request: ask for a new one"
    if member is not None and member.revoked is not None:
        return "this identity was revoked: join with a new one, in a new folder, and keep the ledger (--ledger)"
    return ""


def judge(
    store: AuthorityStore,
    requests: Sequence[SignedRequest],
    now: float,
    chosen: Callable[[SignedRequest], bool] = lambda _: True,
) -> list[Judgement]:
    """Decide on the ``chosen`` requests and store the decisions; accepted participants are on the next signed version.

    Raises AuthorityError: the clock has gone back, or the folder's files don't belong together; StorageError: a
    decision couldn't be stored; earlier ones are, and none is sent.
    """
    check_clock(store, now)
    roster = newest_roster(store)
    done = []
    for signed in requests:
        if not chosen(signed):
            continue
        try:
            done.append(_judge_one(store, signed, roster, now))
        except CertificateError as error:  # a fault of this folder: the request waits until it is corrected
            done.append(Judgement(signed, "later", str(error)))
        except (StorageError, AuthorityError):
            raise
        except Exception as error:  # an odd request must not prevent the others from being judged
            done.append(Judgement(signed, "later", f"it can't be judged: {type(error).__name__}"))
    return done


def _judge_one(store: AuthorityStore, signed: SignedRequest, roster: Roster | None, now: float) -> Judgement:
    request, found = signed.request, look(store, signed, roster, now)
    if found.verdict in ("known", "later"):
        return found
    version = 0 if roster is None else roster.version
    if found.verdict == "refuse":
        refusal = sign_answer(Answer(signed.id, False, found.reason, "", b"", version), store.folder.keys.signing)
        if found.proven:
            store.write(_stored(signed, now, refusal))
        return Judgement(signed, "refuse", found.reason, proven=found.proven, answer=refusal)
    answer = None
    if roster is not None and request.identity in roster.positions:
        answer = accept(store, signed.id, request.identity, request.csr, version, now)
    statements = [_stored(signed, now, answer)]
    if request.kind == "join":
        # Repeating an identity with its code changes nothing.
        statements += [
            ("UPDATE invitations SET identity = ? WHERE code_id = ?", (request.identity, request.code_id)),
            admitted(request.identity, found.host, True, now),
        ]
    store.write(*statements)
    return Judgement(signed, "accept", host=found.host, proven=True, answer=answer)


def _stored(signed: SignedRequest, now: float, answer: bytes | None) -> Statement:
    request = signed.request
    return (
        "INSERT INTO requests (id, kind, identity, csr, judged, answer) VALUES (?, ?, ?, ?, ?, ?)",
        (signed.id, request.kind, request.identity, request.csr, now, answer),
    )


def accept(
    store: AuthorityStore,
    request_id: bytes,
    identity: bytes,
    csr: bytes,
    version: int,
    now: float,
    member: Member | None = None,
) -> bytes:
    """A certificate for a ``member`` (default: as stored), in a signed answer; ``version``: the first roster that lists
    it, or the newest one.
    """
    found = member or store.member(identity)
    assert found is not None  # noqa: S101  # only members are accepted
    # A host that was made with the study may have several identities behind one certificate.
    uri = identity_uri(identity) if found.by_code else host_uri(found.host)
    when = datetime.datetime.fromtimestamp(math.floor(now), datetime.UTC)
    certificate = store.folder.keys.tls.issue_client(key_of_request(csr), uri, when, store.folder.settings.client_days)
    answer = Answer(request_id, True, "", found.host, certificate, version, found.place)
    return sign_answer(answer, store.folder.keys.signing)
