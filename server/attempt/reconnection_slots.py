"""Which participants of an attempt have no connection now, and how long their places are kept.

A participant speaks and is spoken to on one session at a time. When that breaks it is away: nothing is sent to it, and
unless it comes back in time, on a new session that it opened with its identity, it is a dropout.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from server.sessions import CLOSED, Session

MOST_RETURNS: Final = 64
"""To one attempt: a connection that breaks more often than this is no use, and each return costs a message anew."""
MOST_UNREAD: Final = 2
"""Sessions of a participant that ended in the middle of a message: gRPC holds that until the connection ends, too."""


@dataclass(eq=False)
class ReconnectionSlots:
    """The places of one attempt."""

    spoken_on: dict[int, Session]  # on which each participant is spoken to, unless it is away
    resume_s: float  # how long a place is kept; 0 keeps none
    lost: Callable[[int, str], None]  # called with a participant whose time is over and the reason why it was away
    _coming: dict[int, Session] = field(default_factory=dict)
    _timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    _reasons: dict[int, str] = field(default_factory=dict)  # why it is away, or was
    _returns: Counter[int] = field(default_factory=Counter)
    _ended: dict[int, list[Session]] = field(default_factory=dict)  # their peers may not have read the last message
    _over: bool = False

    def get(self, participant: int) -> Session | None:
        """On which the participant is spoken to; None while it is away."""
        return self.spoken_on.get(participant)

    def speaks(self, session: Session) -> bool:
        """Whether what is said on a session counts: it is the one of its participant's place."""
        return self.spoken_on.get(session.participant) is session

    def away(self, session: Session, reason: str, *, keep: bool = True) -> None:
        """A session ended. One that no place depends on changes nothing.

        ``keep``: the place, for a while: it may be back.
        """
        who = session.participant
        if session.writing:
            self._ended.setdefault(who, []).append(session)
        for sessions in (self.spoken_on, self._coming):
            if sessions.get(who) is session:
                del sessions[who]
                if keep:
                    self.expect(who, reason)
                else:
                    self.lost(who, reason)

    def expect(self, participant: int, reason: str, within_s: float = 0.0) -> None:
        """Start its reconnection deadline, unless one runs already or it is back already.

        The end of an old connection may be noticed only after the participant has returned. ``within_s``: where the
        participant has longer than usual.
        """
        if self._over or participant in self._timers or participant in self._coming:
            return
        self._reasons[participant] = reason
        if self.resume_s <= 0:
            self.lost(participant, reason)
            return
        loop = asyncio.get_running_loop()
        within_s = max(self.resume_s, within_s)
        self._timers[participant] = loop.call_later(within_s, self.lost, participant, reason)

    def give_up(self, participant: int) -> None:
        """It is back but can't continue: out, for the reason that it was away."""
        self.lost(participant, self._reasons.get(participant, CLOSED))

    def coming(self, session: Session) -> bool:
        """It is back, and gets its place again in its turn.

        Returns False when it has returned too often, or leaves too many messages unread.
        """
        who = session.participant
        self._returns[who] += 1
        unread = self._ended[who] = [one for one in self._ended.get(who, ()) if one.writing]
        if self._returns[who] > MOST_RETURNS or len(unread) > MOST_UNREAD:
            return False
        self._stop(who)
        self._coming[who] = session
        return True

    def returns(self, participant: int) -> int:
        """How often it has opened a new session."""
        return self._returns[participant]

    def back(self, session: Session) -> bool:
        """Its turn: from here on it is spoken to on this session. False when that broke meanwhile."""
        if self._coming.get(session.participant) is not session:
            return False
        self.spoken_on[session.participant] = self._coming.pop(session.participant)
        return True

    def forget(self, participant: int) -> None:
        """Out of the attempt: its deadline ends."""
        self._stop(participant)
        self.spoken_on.pop(participant, None)
        self._coming.pop(participant, None)

    def close(self) -> None:
        self._over = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _stop(self, participant: int) -> None:
        timer = self._timers.pop(participant, None)
        if timer is not None:
            timer.cancel()
