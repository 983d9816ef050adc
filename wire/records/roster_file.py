"""The roster on disk, with its history, its lottery and the statement that it is the newest.

They are read at the start and replaced by what the authority publishes; files that an operator replaces by hand are
noticed. The authority signs a roster anywhere; here it is only held against the study. Several files can't be replaced
at once: what is published is therefore kept whole in another one first, from which all are written again after a crash
in between.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from runtime.durable import replace_durably
from secagg.roster import InvalidRoster, Roster, RosterHead, verify_roster
from wire.authority_statements import InvalidPackage, Package, read_package, write_package
from wire.roster_history import HISTORY_FILE, NEWEST_FILE, NewestRoster, read_history, verify_newest

log = structlog.get_logger()

ENROLMENT_FOLDER: Final = "enrolment"
UNDER_WAY: Final = "roster.under-way"
"""In the folder of enrolment: a roster with its lottery that is being written."""
_HELD: Final = 4  # statements


@dataclass(frozen=True)
class RosterFiles:
    """A roster as it was read, with the bytes it was read from."""

    roster: Roster
    roster_file: bytes
    lottery_file: bytes | None


class RosterFile:
    """The files ``roster.json`` and ``lottery.json`` of one study."""

    def __init__(self, roster: Path, lottery: Path, work: Path, *, study: str, authority_public: bytes) -> None:
        """
        Args:
            roster, lottery: the two files; the second is there only where cohorts are drawn.
            work: a folder for what is under way; made when it is needed.
            authority_public: the key that signs rosters, 32 bytes.
        """
        self._roster, self._lottery, self._under_way = roster, lottery, work / UNDER_WAY
        self._study, self._authority_public = study, authority_public
        self._seen: tuple[object, ...] = ()
        self._refused: tuple[object, ...] = ()
        self._newest: Roster | None = None
        self._history, self._statement = roster.with_name(HISTORY_FILE), roster.with_name(NEWEST_FILE)
        self.statement_file = b""
        self.statement: NewestRoster | None = None
        self._stated: dict[bytes, tuple[bytes, float]] = {}  # by digest of its roster
        self._heads: tuple[RosterHead, ...] = ()
        self._writing = threading.Lock()  # no one reads half-written files

    def check(self, roster_file: bytes) -> Roster:
        """Whether the authority signed this roster, and for this study. Plan and lottery are the caller's to check.

        Raises InvalidRoster: it didn't.
        """
        roster = verify_roster(roster_file, self._authority_public)
        if roster.study != self._study:
            raise InvalidRoster(
                f"{self._roster} is the roster of the study {roster.study!r}, study.toml names {self._study!r}: use "
                "the roster of this study"
            )
        return roster

    def read(self) -> RosterFiles:
        """The roster in the files; finishes what a crash left half done.

        Raises InvalidRoster: it isn't this study's, or not signed by its authority; OSError: they can't be read.
        """
        self._finish()
        self._seen = self._stamps()
        files = self._load()
        self._newest = files.roster
        return files

    @property
    def newest(self) -> Roster:
        """As it was last read or published; perhaps not in use yet."""
        assert self._newest is not None  # noqa: S101  # the files are read first
        return self._newest

    def stated(self, in_use: Roster) -> tuple[bytes, float]:
        """The last statement about the roster in use, and when it ends: the files may have a later roster already."""
        return self._stated.get(in_use.digest(), (b"", 0.0))

    def heads(self, after: int, until: int) -> list[RosterHead]:
        """What the authority signed of the versions after one and up to another, as far as it is known here."""
        return [one for one in self._heads if after < one.version <= until]

    def check_beside(self, roster: Roster, newest_file: bytes, history_file: bytes) -> None:
        """Check and hold what belongs to a roster; raises InvalidRoster, and holds nothing then."""
        statement, heads = verify_newest(newest_file, self._authority_public), read_history(history_file)
        if (statement.version, statement.roster) != (roster.version, roster.digest()):
            raise InvalidRoster(f"{NEWEST_FILE} is the statement of another roster than version {roster.version}")
        if not heads or heads[-1].digest() != roster.digest():
            raise InvalidRoster(f"{HISTORY_FILE} doesn't end with version {roster.version} of the roster")
        self.statement_file, self.statement, self._heads = newest_file, statement, heads
        self._stated = dict([*self._stated.items(), (roster.digest(), (newest_file, float(statement.until)))][-_HELD:])

    def _load(self) -> RosterFiles:
        roster_file = self._roster.read_bytes()
        roster, lottery_file = self.check(roster_file), None
        self.check_beside(roster, self._statement.read_bytes(), self._history.read_bytes())
        if roster.lottery is not None:
            with contextlib.suppress(FileNotFoundError):
                lottery_file = self._lottery.read_bytes()
        return RosterFiles(roster, roster_file, lottery_file)

    def changed(self) -> tuple[bytes, bytes | None] | None:
        """The files' contents if they were replaced since they were last read or published, else None.

        Two calls of stat where nothing has changed. A roster that can't be used, because half of it was copied or
        because it isn't this study's, is logged once and left alone until it changes again.
        """
        with self._writing:
            stamps = self._stamps()
            if stamps in (self._seen, self._refused):
                return None
            try:
                files = self._load()
            except (InvalidRoster, OSError) as error:
                log.warning("the roster file was replaced by one that can't be used", reason=str(error))
                self._refused = stamps
                return None
            self._seen = stamps
            if files.roster.digest() == self.newest.digest():
                return None  # only the statement that it is the newest was renewed
            if files.roster.version > self.newest.version:
                self._newest = files.roster
            return files.roster_file, files.lottery_file

    def publish(self, roster: Roster, package: Package) -> None:
        """Make checked contents those of the files, all or none after any crash; durable when this returns.

        ``roster``: what the roster file holds.

        Raises InvalidRoster: what belongs to the roster isn't that of this one; OSError: the disk takes no writes. Then
        either nothing has changed, or the rest is done by the next call of `read`.
        """
        with self._writing:
            self.check_beside(roster, package.newest_file, package.history_file)
            self._under_way.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_durably(self._under_way, write_package(replace(package, answers=())))
            self._write(package)
            self._seen, self._newest = self._stamps(), roster

    def _write(self, package: Package) -> None:
        if package.lottery_file is not None:
            replace_durably(self._lottery, package.lottery_file)
        replace_durably(self._history, package.history_file)
        replace_durably(self._statement, package.newest_file)
        replace_durably(self._roster, package.roster_file)
        with contextlib.suppress(OSError):  # written twice is as good as once
            self._under_way.unlink()

    def _finish(self) -> None:
        try:
            data = self._under_way.read_bytes()
        except FileNotFoundError:
            return
        try:
            package = read_package(data)
            published = self.check(package.roster_file)
        except (InvalidPackage, InvalidRoster) as error:
            log.warning("what was left of a published roster can't be used", reason=str(error))
            return
        with contextlib.suppress(InvalidRoster, OSError):
            # By hand a later one may have come meanwhile.
            if verify_roster(self._roster.read_bytes(), self._authority_public).version > published.version:
                self._under_way.unlink()
                return
        self._write(package)
        log.info("a published roster was put in place after the last stop", version=published.version)

    def _stamps(self) -> tuple[object, ...]:
        return tuple(map(_stamp, (self._roster, self._lottery, self._statement, self._history)))


def _stamp(path: Path) -> object:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
