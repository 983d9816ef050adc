"""Scripts of the adversary suite, and naive sides on which one check is switched off.

In a script one side cheats and everything else is real: gRPC with mutual TLS, the client as `sordino join` runs it, the
coordinator as `sordino serve` runs it. A script states what must happen and which checks ensure it. With one of these
checks switched off (a `Naive` client or coordinator) it must come out differently, which shows what the check is worth.

Scripts are registered by `scripted`, mostly through the shorter forms of each side: `coordinator_script`,
`with_coordinator` and `in_attempt` (`cheating_coordinator`), `study_script` (`participant_verdict`). Their argument
``script`` is "name-of-the-script: what the cheat does". `scripts` imports the modules ``coordinator_scripts*.py`` and
``participant_scripts*.py`` of this folder, which register theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Self

from tests.support import naive_variants

COORDINATOR, PARTICIPANT = "coordinator", "participant"
_WRAPPERS = (property, cached_property, classmethod, staticmethod)


@dataclass(frozen=True)
class Seen:
    """How a script came out."""

    outcome: str  # a key of `table.ENDS`, or what a naive side came to, as "goes on"
    detail: str = ""  # one sentence for the table: what was said or lost
    broken: tuple[str, ...] = ()  # promises that did not hold, as "the input of participant 3 is exposed"


@dataclass(frozen=True)
class Naive:
    """A module with some of its checks switched off, by `tests.support.naive_variants.variant`."""

    module: str  # dotted name, as ``secagg.client_phases``
    without: tuple[str, ...] = ()  # fragments of source: each fits exactly one ``if`` that only refuses and is removed
    changed: Mapping[str, str] = field(default_factory=dict)  # pieces of source, each with its replacement
    also: tuple[Naive, ...] = ()  # further modules of the same naive side, for what is checked in two places
    shows: str = ""  # a piece of the naive outcome, detail or broken promises; empty: anything but the same outcome

    @classmethod
    def lacking(cls, module: str, *fragments: str, also: tuple[Naive, ...] = (), shows: str = "") -> Self:
        """Make a side that lacks these checks of a module."""
        return cls(module, without=fragments, also=also, shows=shows)

    @classmethod
    def instead(cls, module: str, old: str, new: str, *, also: tuple[Naive, ...] = (), shows: str = "") -> Self:
        """Make a side that runs one piece of a module's source in place of another."""
        return cls(module, changed={old: new}, also=also, shows=shows)

    def load(self) -> ModuleType:
        """Return the module as this side runs it."""
        return naive_variants.variant(importlib.import_module(self.module), self.without, tuple(self.changed.items()))

    def patient(self) -> Naive | None:
        """Return the same side with more time until it counts as hanging; None if it has enough."""
        return None

    @contextlib.contextmanager
    def switched_off(self) -> Iterator[None]:
        """Let every function and method of the real module run the naive code until the block ends.

        Classes and functions stay the same objects, so earlier imports of them are affected too.
        """
        real, naive = _functions(importlib.import_module(self.module)), _functions(self.load())
        assert real.keys() == naive.keys(), f"a naive {self.module} defines other functions"
        kept = {name: function.__code__ for name, function in real.items()}
        with contextlib.ExitStack() as others:
            try:
                for name, function in real.items():
                    function.__code__ = naive[name].__code__
                for one in self.also:
                    others.enter_context(one.switched_off())
                yield
            finally:
                others.close()
                for name, code in kept.items():
                    real[name].__code__ = code


def taken_out(naive: Naive) -> Iterator[tuple[str, str]]:
    """Yield module and fragment of every check that a naive side lacks."""
    for fragment in (*naive.without, *naive.changed):
        yield naive.module, fragment
    for other in naive.also:
        yield from taken_out(other)


@cache
def checks_of(cheat: str) -> dict[str, list[str]]:
    """Return the fragments of the checks that each script of this side runs without, by the script's name."""
    return {one.name: [part for naive in one.check for _, part in taken_out(naive)] for one in scripts(cheat)}


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """Return a module's own functions and methods by qualified name."""
    found: dict[str, FunctionType] = {}

    def visit(prefix: str, members: Mapping[str, Any]) -> None:
        for name, member in members.items():
            for part in ("fget", "func", "__func__"):  # property, cached_property, classmethod and staticmethod
                member = getattr(member, part, member) if isinstance(member, _WRAPPERS) else member
            member = inspect.unwrap(member) if callable(member) and not isinstance(member, type) else member
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if isinstance(member, FunctionType):
                found[prefix + name] = member
            elif isinstance(member, type) and not prefix:
                visit(f"{name}.", vars(member))

    visit("", vars(module))
    return found


class Places:
    """Study folders, each made once with its keys and certificates, and an empty folder for the files of each run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._studies: dict[str, Path] = {}
        self._runs = 0

    def study(self, name: str = "seven", /, **options: Any) -> Path:
        """Return a study folder (`study_in_process.make_folder`); a name always has the same options."""
        from tests.support.study_in_process import make_folder

        if name not in self._studies:
            self._studies[name] = make_folder(self._root / "studies" / name, **{"name": name, **options})
        return self._studies[name]

    def work(self) -> Path:
        """Return an empty folder for the journals, ledgers and databases of one run."""
        self._runs += 1
        folder = self._root / "runs" / str(self._runs)
        folder.mkdir(parents=True)
        return folder


Run = Callable[[Places], Awaitable[Seen]]


@dataclass(frozen=True)
class Script:
    """One way to cheat. It must come out differently on each naive side of ``check``; there is none where no single
    check stops the cheat.
    """

    cheat: str  # the side that cheats: "coordinator" or "participant"
    name: str  # words joined by hyphens
    does: str  # one sentence: what the cheat does
    must: str  # one sentence: what must happen
    outcome: str  # `Seen.outcome` on the real code
    check: tuple[Naive, ...]
    run: Run = field(repr=False)
    documented_as_possible: bool = False  # the cheat succeeds, and docs/threat_model.md says so

    async def perform(self, places: Places, naive: Naive | None = None) -> Seen:
        """Run it on the real code or on a naive side; a naive side that shows nothing gets a second, longer run."""
        with contextlib.nullcontext() if naive is None else naive.switched_off():
            seen = await self.run(places)
        if naive is not None and (patient := naive.patient()) and self.undetected(naive, seen):
            return await self.perform(places, patient)
        return seen

    def wrong(self, seen: Seen) -> str | None:
        """Return what is wrong with a run on the real code; None if all is as stated."""
        if seen.broken:
            return f"{self.name}: {'; '.join(seen.broken)} ({seen.outcome}: {seen.detail})"
        if seen.outcome != self.outcome:
            return f"{self.name}: {seen.outcome!r}, not {self.outcome!r}: {seen.detail}"
        return None

    def undetected(self, naive: Naive, seen: Seen) -> str | None:
        """Return what is wrong with a run on a naive side; None if it came out differently, as it must."""
        what = f"{self.name} without {(*naive.without, *naive.changed)} of {naive.module}"
        if not seen.broken and seen.outcome == self.outcome:
            return f"{what} comes out the same: {seen.outcome}: {seen.detail}"
        if naive.shows not in " ".join((seen.outcome, seen.detail, *seen.broken)):
            return f"{what} doesn't show {naive.shows!r}: {seen}"
        return None


_scripts: dict[str, Script] = {}


def scripted(
    cheat: str, script: str, must: str, outcome: str, *check: Naive, possible: bool = False
) -> Callable[[Run], Run]:
    """Register the function below as a script with these fields of `Script`; ``script``: "name: what it does"."""
    assert cheat in (COORDINATOR, PARTICIPANT)
    name, _, does = script.partition(": ")
    assert name not in _scripts, f"two scripts are called {name}"

    def decorate(run: Run) -> Run:
        _scripts[name] = Script(cheat, name, does, must, outcome, check, run, possible)
        return run

    return decorate


@cache
def _load(cheat: str) -> None:
    for path in sorted(Path(__file__).parent.glob(f"{cheat}_scripts*.py")):
        importlib.import_module(f"tests.adversary.{path.stem}")


def scripts(*cheats: str) -> list[Script]:
    """Return the scripts of these sides, by default of both, in the order of the modules and within them."""
    cheats = cheats or (COORDINATOR, PARTICIPANT)
    for cheat in cheats:
        _load(cheat)
    return [script for script in _scripts.values() if script.cheat in cheats]
