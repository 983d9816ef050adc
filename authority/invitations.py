"""Invitations and revocations: join codes, names of hosts, places."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from authority.folder import AuthorityError
from authority.store import AuthorityStore, Invitation, Member, desk_codes_forgotten
from runtime.text import duration, several
from secagg.encoding import RandomBytes
from wire.authority_statements import HOST_NAME
from wire.join_code import LONGEST_VALID_S, JoinCode

SHORTEST_VALID_S: Final = 60
CLOCK_SLACK_S: Final = 600.0
EXPIRED_KEPT_S: Final = 3600.0
"""How long an expired, unused code from the socket is kept, so that a late request is refused with this reason."""
SHORTEST_BEGINNING: Final = 4


def check_clock(store: AuthorityStore, now: float) -> None:
    """Check that the clock hasn't gone back, which would make expired codes valid again.

    Raises AuthorityError: the last decision lies in the future.
    """
    ahead = store.last_written() - now
    if ahead > CLOCK_SLACK_S:
        raise AuthorityError(
            f"this machine's clock is behind: the last decision in this folder was made {duration(ahead)} from now. "
            "Set the clock; nothing was decided"
        )


def invite(
    store: AuthorityStore, *, name: str, valid_s: float, now: float, random_bytes: RandomBytes, from_desk: bool = False
) -> JoinCode:
    """A new join code, stored before it is returned; ``name``: of the participant's host, empty if the participant
    chooses.

    A new code from the socket (``from_desk``) deletes unused earlier ones from the store; otherwise a client that
    requests codes and goes away would fill it. The new one is the youngest, so the time of the last decision remains
    known. The authority must see the request within ``valid_s``.

    Raises AuthorityError: the name is in use, the time is out of range, or all places are taken.
    """
    check_clock(store, now)
    if not SHORTEST_VALID_S <= valid_s <= LONGEST_VALID_S:
        raise AuthorityError("a join code is valid for a minute at least and for 366 days at most")
    if name and not HOST_NAME.fullmatch(name):
        raise AuthorityError(
            f"{name!r} can't be a host's name: it has 1 to 64 letters, digits, dots, dashes and underscores"
        )
    if name and name.casefold() in taken_names(store, now):
        raise AuthorityError(f"the name {name} is or was a participant's, or promised to one: choose another")
    places = store.folder.settings.places
    if places and store.present() >= places:
        raise AuthorityError(f"all {places} places of the study are taken: revoke a participant first")
    document = store.terms()
    if document is None:
        raise AuthorityError(
            "this authority has signed no terms yet, and a join code names them: run `sordino authority terms DIR`"
        )
    terms = hashlib.sha256(document).digest()
    code = JoinCode.new(store.folder.keys.public, terms, now + valid_s, random_bytes)
    store.write(
        (
            "INSERT INTO invitations (code_id, secret, name, made, expires, from_desk) VALUES (?, ?, ?, ?, ?, ?)",
            (code.code_id, code.secret, name, now, code.expires, from_desk),
        ),
        *([desk_codes_forgotten(now, now - EXPIRED_KEPT_S)] if from_desk else []),
    )
    return code


def without_place(store: AuthorityStore, now: float) -> int:
    """How many of the open codes would get no place if all were used; 0 if the number of places isn't limited."""
    if not store.folder.settings.places:
        return 0
    invited, _ = store.open_codes(now)
    return min(invited, max(0, -open_places(store, now)))


def open_places(store: AuthorityStore, now: float) -> int:
    """Of a limited number of places, those without a member or an open code; below 0: too many open codes."""
    invited, _ = store.open_codes(now)
    return store.folder.settings.places - store.present() - invited


def places_of_desk(store: AuthorityStore, now: float) -> int:
    """Places given through the socket: members that joined with its codes, and its open codes."""
    _, of_desk = store.open_codes(now)
    return store.present_by_desk() + of_desk


def taken_names(store: AuthorityStore, now: float) -> set[str]:
    """Names, in lower case, that no new host may have: those of all members ever, and of open invitations.

    A revoked host's name is never reused, since a certificate for it may still be valid.
    """
    promised = {one.name.casefold() for one in store.open_invitations(now) if one.name}
    return {host.casefold() for host in store.hosts()} | promised


def name_for(store: AuthorityStore, invitation: Invitation, wish: str, identity: bytes, now: float) -> str:
    """The host's name for a new identity: the invitation's, else the wish, else the wish and the identity's beginning.

    Never a name that another identity has or had, nor one that is promised to another participant.
    """
    if invitation.name:
        return invitation.name  # reserved while the invitation is open
    taken = taken_names(store, now)
    name, digits = wish, 6
    while name.casefold() in taken:
        name, digits = f"{wish[: 63 - digits]}-{identity.hex()[:digits]}", digits + 2
    return name


def find_members(store: AuthorityStore, who: str, *, whole_host: bool = False) -> list[Member]:
    """The member with this host name, or with an identity that begins so (at least four hexadecimal digits); with
    ``whole_host`` all members of the host. Empty if none matches.

    Raises AuthorityError: several match.
    """
    members = store.members()
    found = [member for member in members if member.host == who]
    every = ", or all of them with --whole-host" if found else ""
    beginning = re.sub(r"[\s:]", "", who).lower()
    if not found and len(beginning) >= SHORTEST_BEGINNING and re.fullmatch(r"[0-9a-f]{4,64}", beginning):
        found = [member for member in members if member.identity.hex().startswith(beginning)]
        whole_host = False
    if len(found) > 1 and not whole_host:
        shown = several([f"{member.identity.hex()[:12]} ({member.host})" for member in found], 5)
        one = "Name one by how its identity begins"
        raise AuthorityError(f"{who} means {len(found)} identities: {shown}. {one}{every}")
    return found


def revoke(store: AuthorityStore, who: str, now: float, *, whole_host: bool = False) -> list[Member]:
    """Remove members from the next version of the roster.

    Raises AuthorityError: no member or several match, or they were revoked before.
    """
    check_clock(store, now)
    found = find_members(store, who, whole_host=whole_host)
    if not found:
        raise AuthorityError(f"no member of the roster is called {who}: `sordino authority show` lists them")
    present = [member for member in found if member.revoked is None]
    if not present:
        raise AuthorityError(f"{who} was revoked before: sign a roster version if the coordinator doesn't have it yet")
    store.write(*(("UPDATE members SET revoked = ? WHERE identity = ?", (now, member.identity)) for member in present))
    return present


def withdraw(store: AuthorityStore, who: str, now: float) -> Invitation | None:
    """Withdraw an open invitation, by its name or the beginning of its id; None if there is none.

    Raises AuthorityError: several match.
    """
    wanted = who.lower()
    found = [
        one
        for one in store.open_invitations(now)
        if one.name == who or (len(wanted) >= SHORTEST_BEGINNING and one.code_id.hex().startswith(wanted))
    ]
    if len(found) > 1:
        raise AuthorityError(f"{who} means {len(found)} invitations: name one by more of its id")
    if not found:
        return None
    store.write(("UPDATE invitations SET withdrawn = ? WHERE code_id = ?", (now, found[0].code_id)))
    return found[0]
