"""Why a participant left, or an attempt was aborted, as one of a few words: for metrics.

The events say it in sentences, some of them a participant's own, with numbers in them. As labels those would be new
time series without an end, and whoever reads metrics would be told what peers wrote.
"""

from __future__ import annotations

from typing import Final

OTHER: Final = "other"

# In this order: the first class of which a phrase is found.
_DROPOUTS: Final = (
    ("deadline", ("did not answer before the deadline",)),
    ("policy", ("refused: the round breaks its policy",)),
    ("distrust", ("refused: a message of the coordinator",)),
    ("restarted", ("sits this attempt out",)),
    ("failed", ("failed on its own side",)),
    ("refused", ("refused",)),
    ("stopped", ("stopped on purpose",)),
    ("revoked", ("revoked",)),
    ("replaced", ("replaced by a newer connection",)),
    ("slow_upload", ("nothing arrived for", "it arrived at less than")),
    ("connection", ("connection", "the session is over")),
    ("overran", ("more messages than", "more bytes than", "larger than all of an attempt")),
    ("upload", ("upload failed", "the vector", "a vector was offered before")),
    (
        "invalid",
        (
            *("public key", "not signed", "shares must go", "sealed share", "kind of share", "commitment", "signature"),
            *("the upload ", "there must be", "share of", "symbol outside", "must have", "without keys", "an empty"),
            *("not a message", "a message that an open session", "not expected in this phase", "bytes long"),
            *("is empty", "its shares", "sorted", "bits", "length", "can't have received"),
        ),
    ),
)
DROPOUTS: Final = (*(name for name, _ in _DROPOUTS), OTHER)
"""Every class of a participant's reason."""

_ABORTS: Final = (
    ("too_few", ("participants, ", "participants are connected")),
    ("inconsistent_shares", ("shares rebuild no secret",)),
)
ABORTS: Final = (*(name for name, _ in _ABORTS), OTHER)
"""Every class of an aborted attempt's reason."""


def of_dropout(reason: str) -> str:
    """One of `DROPOUTS`, for what an event says of a participant that was dropped or whose session ended."""
    return _first(_DROPOUTS, reason)


def of_abort(reason: str) -> str:
    """One of `ABORTS`, for what an event says of an attempt."""
    return _first(_ABORTS, reason)


def _first(classes: tuple[tuple[str, tuple[str, ...]], ...], reason: str) -> str:
    said = reason[:300].lower()  # a peer's text may be long
    return next((name for name, phrases in classes if any(phrase in said for phrase in phrases)), OTHER)
