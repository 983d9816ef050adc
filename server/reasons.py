"""Reasons of dropouts and aborted attempts as fixed classes, for readers who must not see text of a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER: Final = "other"

# In this order: the first class of which a phrase is found.
_DROPOUTS: Final = (
    ("deadline", ("did not answer before the deadline",)),
    ("policy", ("refused: the round breaks its policy", "refused: one more round would pass")),
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


WORDS: Final[Mapping[str, str]] = {
    "deadline": "silent until the deadline",
    "policy": "the round breaks its policy",
    "distrust": "a message of the coordinator failed its checks",
    "restarted": "skips the attempt after a restart",
    "failed": "failed on its own side",
    "refused": "refused without a reason",
    "stopped": "stopped on purpose",
    "revoked": "revoked",
    "replaced": "replaced by a newer connection",
    "slow_upload": "the upload was too slow",
    "connection": "the connection broke off",
    "overran": "more than an attempt allows",
    "upload": "the upload broke off",
    "invalid": "a message that no honest participant sends",
    "too_few": "too few participants",
    "inconsistent_shares": "the sum can't be opened: a participant cheated",
    OTHER: "another reason, which is in the log",
}
"""Of every class."""


def class_of_dropout(reason: str) -> str:
    """One of `DROPOUTS`, for what an event says of a participant that was dropped or whose session ended."""
    return _first(_DROPOUTS, reason)


def class_of_abort(reason: str) -> str:
    """One of `ABORTS`, for what an event says of an attempt that was aborted."""
    return _first(_ABORTS, reason)


def _first(classes: tuple[tuple[str, tuple[str, ...]], ...], reason: str) -> str:
    said = reason[:300].lower()  # a peer's text may be long
    return next((name for name, phrases in classes if any(phrase in said for phrase in phrases)), OTHER)
