"""What `sordino authority` prints about requests, visits and the folder, as text and as JSON; never a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from authority.folder import AuthorityError
from authority.invitations import SHORTEST_BEGINNING
from authority.requests import Judgement, newest_roster
from authority.roster import stated_until
from authority.store import AuthorityStore, Invitation
from authority.visit import Visit
from runtime.text import counted, duration, minute
from wire.join_code import show_fingerprint

_VERDICTS: Final = {"accept": "accepted", "refuse": "refused", "known": "judged before", "later": "waits"}
_WOULD: Final = _VERDICTS | {"accept": "would be accepted", "refuse": "would be refused"}


def row(judgement: Judgement) -> dict[str, Any]:
    """A request and its judgement under stable JSON names."""
    request = judgement.request.request
    return {
        "request": judgement.request.id.hex(),
        "kind": request.kind,
        "identity": request.identity.hex(),
        "wish": request.host,
        "host": judgement.host,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
    }


def line(judgement: Judgement, *, preview: bool = False) -> str:
    """The same for people, with the beginnings of both ids, which `approve` and `revoke` accept; ``preview``: undecided
    yet.
    """
    verdict = (_WOULD if preview else _VERDICTS)[judgement.verdict]
    request = judgement.request.request
    host = judgement.host or request.host
    wished = f" (wished {request.host})" if judgement.host and judgement.host != request.host else ""
    reason = f": {judgement.reason}" if judgement.reason else ""
    return (
        f"{judgement.request.id.hex()[:8]}  {request.kind:<5}  {host}{wished}  identity {request.identity.hex()[:16]}  "
        f"{verdict}{reason}"
    )


def signed(visit: Visit) -> dict[str, Any]:
    """What was signed and published, under stable JSON names."""
    return {
        "signed": None if visit.signed is None else {"version": visit.signed[0], "participants": visit.signed[1]},
        "published": visit.published,
    }


def signed_lines(visit: Visit, *, always: bool = False) -> list[str]:
    """The same for people; ``always``: also report that nothing was signed."""
    found = []
    if visit.signed is not None:
        found.append(f"Signed version {visit.signed[0]} of the roster: {counted(visit.signed[1], 'participant')}.")
    elif always:
        found.append("Nothing has changed since the last version, so none was signed.")
    if visit.published is not None:
        found.append(f"The coordinator has version {visit.published}.")
    return found


def news(visit: Visit) -> list[Judgement]:
    """What was judged for the first time."""
    return [one for one in visit.judgements if one.verdict in ("accept", "refuse")]


def chosen(seen: Sequence[Judgement], beginnings: Sequence[str]) -> set[bytes] | None:
    """Ids of the requests whose id, or whose identity, begins as given; None for all requests.

    Raises AuthorityError: no waiting request begins so, or several do.
    """
    if not beginnings:
        return None
    wanted: set[bytes] = set()
    for text in beginnings:
        beginning = re.sub(r"\s", "", text).lower()
        found = [
            one
            for one in seen
            if one.request.id.hex().startswith(beginning) or one.request.request.identity.hex().startswith(beginning)
        ]
        if not found or len(beginning) < SHORTEST_BEGINNING:
            raise AuthorityError(f"no request that waits begins with {text}: `approve --list` shows them")
        if len({one.request.request.identity for one in found}) > 1:
            raise AuthorityError(f"{text} is how several requests begin: name more of the id")
        wanted |= {one.request.id for one in found}
    return wanted


def overview(store: AuthorityStore, now: float) -> dict[str, Any]:
    """Stable JSON names; times in seconds since 1970."""
    roster = newest_roster(store)
    listed = {} if roster is None else roster.positions
    return {
        "study": store.folder.settings.study,
        "fingerprint": store.folder.keys.fingerprint.hex(),
        "authority_public_key": store.folder.keys.public.hex(),
        "coordinator": store.folder.settings.coordinator,
        "at": now,
        "until": stated_until(store),
        "members": [
            {
                "identity": member.identity.hex(),
                **{name: getattr(member, name) for name in ("host", "place", "joined", "by_code", "revoked")},
                "listed": member.identity in listed,
            }
            for member in sorted(store.members(), key=lambda one: one.place)
        ],
        "invitations": [
            {
                "id": one.code_id.hex(),
                "name": one.name,
                "made": one.made,
                "expires": one.expires,
                "state": _state(one, now),
                "identity": None if one.identity is None else one.identity.hex(),
            }
            for one in store.invitations()
        ],
        "versions": [
            {"version": version, "signed": signed, "participants": participants, "published": published}
            for version, signed, participants, published in store.versions()
        ],
    }


def _state(invitation: Invitation, now: float) -> str:
    if invitation.identity is not None:
        return "used"
    if invitation.withdrawn is not None:
        return "withdrawn"
    return "open" if now < invitation.expires else "expired"


def overview_lines(found: dict[str, Any]) -> list[str]:
    now, members = found["at"], found["members"]
    revoked = sum(member["revoked"] is not None for member in members)
    result = [
        f"study        {found['study']}",
        f"fingerprint  {show_fingerprint(bytes.fromhex(found['fingerprint']))}",
        f"coordinator  {found['coordinator'] or 'none: by hand'}",
        *([f"stated       that the roster is the newest, until {minute(found['until'])}"] if found["until"] else []),
        "",
        f"members ({len(members)}" + (f", {revoked} of them revoked)" if revoked else ")"),
    ]
    for member in members:
        if member["revoked"] is not None:
            state = f"revoked {minute(member['revoked'])}" + (", still listed: sign" if member["listed"] else "")
        else:
            state = "" if member["listed"] else "not listed yet: sign"
        joined = minute(member["joined"])
        place = f"{member['place']:>4}"
        result.append(f"  {place}  {member['identity'][:16]}  {member['host']:<24}  {joined}  {state}".rstrip())
    hosts = {member["identity"]: member["host"] for member in members}
    result += ["", "invitations"]
    for one in found["invitations"]:
        state = one["state"]
        if state == "open":
            state = f"open for {duration(one['expires'] - now)}, until {minute(one['expires'])}"
        elif state == "used":
            state = f"used by {hosts.get(one['identity'], 'a participant')}, identity {one['identity'][:16]}"
        elif state == "expired":
            state = f"expired {minute(one['expires'])}"
        result.append(f"  {one['id'][:8]}  {one['name'] or '-':<24}  {minute(one['made'])}  {state}")
    result += ["", "versions"]
    # The coordinator's version replaces all earlier ones.
    has = max((version["version"] for version in found["versions"] if version["published"]), default=0)
    for version in found["versions"][-10:]:
        published = "" if version["version"] <= has else "not confirmed by the coordinator yet"
        participants = counted(version["participants"], "participant")
        result.append(f"  {version['version']:>4}  {minute(version['signed'])}  {participants}  {published}".rstrip())
    return result
