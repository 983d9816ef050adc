"""Reasons of dropouts and aborted attempts as fixed classes, for readers who must not see text of a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER: Final = "other"

# Of every class what it is called, and the phrases that tell it: the first class of which one is found.
_Classes = dict[str, tuple[str, tuple[str, ...]]]
_DROPOUTS: Final[_Classes] = {
    "deadline": ("silent until the deadline", ("did not answer before the deadline",)),
    "policy": (
        "the round breaks its policy",
        ("refused: the round breaks its policy", "refused: one more round would pass"),
    ),
    "distrust": ("a message of the coordinator failed its checks", ("refused: a message of the coordinator",)),
    "restarted": ("skips the attempt after a restart", ("sits this attempt out",)),
    "failed": ("failed on its own side", ("failed on its own side",)),
    "refused": ("refused without a reason", ("refused",)),
    "stopped": ("stopped on purpose", ("stopped on purpose",)),
    "revoked": ("revoked", ("revoked",)),
    "replaced": ("replaced by a newer connection", ("replaced by a newer connection",)),
    "slow_upload": ("the upload was too slow", ("nothing arrived for", "it arrived at less than")),
    "connection": ("the connection broke off", ("connection", "the session is over")),
    "overran": (
        "more than an attempt allows",
        ("more messages than", "more bytes than", "larger than all of an attempt"),
    ),
    "upload": ("the upload broke off", ("upload failed", "the vector", "a vector was offered before")),
    "invalid": (
        "a message that no honest participant sends",
        (
            *("public key", "not signed", "shares must go", "sealed share", "kind of share", "commitment", "signature"),
            *("the upload ", "there must be", "share of", "symbol outside", "must have", "without keys", "an empty"),
            *("not a message", "a message that an open session", "not expected in this phase", "bytes long"),
            *("is empty", "its shares", "sorted", "bits", "length", "can't have received"),
        ),
    ),
}
DROPOUTS: Final = (*_DROPOUTS, OTHER)
"""Every class of a participant's reason."""

_ABORTS: Final[_Classes] = {
    "too_few": ("too few participants", ("participants, ", "participants are connected")),
    "inconsistent_shares": ("the sum can't be opened: a participant cheated", ("shares rebuild no secret",)),
}
ABORTS: Final = (*_ABORTS, OTHER)
"""Every class of an aborted attempt's reason."""

WORDS: Final[Mapping[str, str]] = {
    **{name: words for name, (words, _) in (_DROPOUTS | _ABORTS).items()},
    OTHER: "another reason, which is in the log",
}
"""Of every class."""


def class_of_dropout(reason: str) -> str:
    """One of `DROPOUTS`, for what an event says of a participant that was dropped or whose session ended."""
    return _first(_DROPOUTS, reason)


def class_of_abort(reason: str) -> str:
    """One of `ABORTS`, for what an event says of an attempt that was aborted."""
    return _first(_ABORTS, reason)


def _first(classes: _Classes, reason: str) -> str:
    said = reason[:300].lower()  # a peer's text may be long
    return next((name for name, (_, phrases) in classes.items() if any(one in said for one in phrases)), OTHER)
