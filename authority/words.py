"""What the command says of requests and visits, as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from authority.folder import AuthorityError
from authority.requests import Judgement
from authority.visit import Visit
from runtime.plurals import counted

_VERDICTS: Final = {"accept": "accepted", "refuse": "refused", "known": "judged before", "later": "waits"}
_WOULD: Final = _VERDICTS | {"accept": "would be accepted", "refuse": "would be refused"}
_SHORTEST_BEGINNING: Final = 4


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
    """The same for people: the beginnings of both ids are what `approve` and `revoke` take.

    Args:
        preview: nothing has been decided yet.
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
    """The same for people; ``always`` also says that nothing was signed."""
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
    """Ids of the requests that are meant, by how the request or its identity begins; None for all.

    Raises:
        AuthorityError: nothing that waits begins so, or several do.
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
        if not found or len(beginning) < _SHORTEST_BEGINNING:
            raise AuthorityError(f"no request that waits begins with {text}: `approve --list` shows them")
        if len({one.request.request.identity for one in found}) > 1:
            raise AuthorityError(f"{text} is how several requests begin: name more of the id")
        wanted |= {one.request.id for one in found}
    return wanted
