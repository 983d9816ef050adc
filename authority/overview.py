"""What an authority's folder holds, for people: members, invitations, versions. Never a secret."""

from __future__ import annotations

import time
from typing import Any

from authority.folder import AuthorityFolder
from authority.invitations import duration
from authority.requests import newest_roster
from authority.store import AuthorityStore, Invitation
from runtime.plurals import counted
from wire.join_code import show_fingerprint


def overview(folder: AuthorityFolder, store: AuthorityStore, now: float) -> dict[str, Any]:
    """Stable JSON names; times in seconds since 1970."""
    roster = newest_roster(folder, store)
    listed = {} if roster is None else roster.positions
    return {
        "study": folder.settings.study,
        "fingerprint": folder.keys.fingerprint.hex(),
        "authority_public_key": folder.keys.public.hex(),
        "coordinator": folder.settings.coordinator,
        "at": now,
        "members": [
            {
                "identity": member.identity.hex(),
                "host": member.host,
                "place": member.place,
                "joined": member.joined,
                "by_code": member.by_code,
                "revoked": member.revoked,
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


def lines(found: dict[str, Any]) -> list[str]:
    """The overview as text."""
    now = found["at"]
    result = [
        f"study        {found['study']}",
        f"fingerprint  {show_fingerprint(bytes.fromhex(found['fingerprint']))}",
        f"coordinator  {found['coordinator'] or 'none: by hand'}",
        "",
        _headline(found["members"]),
    ]
    for member in found["members"]:
        if member["revoked"] is not None:
            state = f"revoked {_minute(member['revoked'])}" + (", still listed: sign" if member["listed"] else "")
        else:
            state = "" if member["listed"] else "not listed yet: sign"
        joined = _minute(member["joined"])
        place = f"{member['place']:>4}"
        result.append(f"  {place}  {member['identity'][:16]}  {member['host']:<24}  {joined}  {state}".rstrip())
    hosts = {member["identity"]: member["host"] for member in found["members"]}
    result += ["", "invitations"]
    for one in found["invitations"]:
        state = one["state"]
        if state == "open":
            state = f"open for {duration(one['expires'] - now)}, until {_minute(one['expires'])}"
        elif state == "used":
            state = f"used by {hosts.get(one['identity'], 'a participant')}, identity {one['identity'][:16]}"
        elif state == "expired":
            state = f"expired {_minute(one['expires'])}"
        result.append(f"  {one['id'][:8]}  {one['name'] or '-':<24}  {_minute(one['made'])}  {state}")
    result += ["", "versions"]
    # A later one that the coordinator has takes the place of all before.
    has = max((version["version"] for version in found["versions"] if version["published"]), default=0)
    for version in found["versions"][-10:]:
        published = "" if version["version"] <= has else "not confirmed by the coordinator yet"
        participants = counted(version["participants"], "participant")
        result.append(f"  {version['version']:>4}  {_minute(version['signed'])}  {participants}  {published}".rstrip())
    return result


def _headline(members: list[dict[str, Any]]) -> str:
    """With as many members as there are rows."""
    revoked = sum(member["revoked"] is not None for member in members)
    return f"members ({len(members)}" + (f", {revoked} of them revoked)" if revoked else ")")


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
