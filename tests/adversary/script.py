"""What a script of the adversary suite is, where all of them are found, and how a check is switched off for one.

A script lets one side cheat, with everything else real: gRPC with mutual TLS, the client as `sordino join` runs it, the
coordinator as `sordino serve` does. It says what has to happen and which checks see to it. With one of those checks
switched off (a `Naive` client or coordinator) it must come out differently: what a check is worth is what happens
without it.

    @scripted(name="both-kinds-of-share", cheat="coordinator", does="...", must="...", outcome="refused",
              check=(Naive("secagg.client_phases", without=("fewer than min_survivors",)),))
    async def both_kinds(places: Places) -> Seen:
        ...

Modules named ``coordinator_scripts*.py`` and ``participant_scripts*.py`` in this folder register theirs when they are
imported; `scripts` imports them.
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
from typing import Any

from tests.support import naive_variants

COORDINATOR, PARTICIPANT = "coordinator", "participant"
_WRAPPERS = (property, cached_property, classmethod, staticmethod)


@dataclass(frozen=True)
class Seen:
    """How a script came out.

    Attributes:
        outcome: a few words from a small set, as "refused", "aborts", "sum", "sum of the others", "completes".
        detail: one sentence for whoever reads the table: what was said, or what was lost.
        broken: promises that did not hold, each a short clause as "the input of participant 3 is exposed".
    """

    outcome: str
    detail: str = ""
    broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naive:
    """A module with some of its checks switched off.

    Attributes:
        module: dotted name, as ``secagg.client_phases``.
        without: fragments of source, each of which fits exactly one ``if`` of the module that only refuses
            (`tests.support.naive_variants.without`); all of them are taken out.
        changed: pieces of source and what stands in their place (`tests.support.naive_variants.changed`), for checks
            that are no such ``if``.
        also: further modules of the same naive side, for what is checked in two places.
        shows: what the naive side must come out as, a piece of its outcome, detail or broken promises; empty: anything
            but what the script states.
    """

    module: str
    without: tuple[str, ...] = ()
    changed: tuple[tuple[str, str], ...] = ()
    also: tuple[Naive, ...] = ()
    shows: str = ""

    def load(self) -> ModuleType:
        """The module as this side runs it."""
        return naive_variants.variant(importlib.import_module(self.module), self.without, self.changed)

    def patient(self) -> Naive | None:
        """The same side with more time until it counts as hanging, where it has little."""
        return None

    @contextlib.contextmanager
    def switched_off(self) -> Iterator[None]:
        """Let every function and method of the real module run the naive one's code, for a while.

        Classes and functions stay the same objects, so it doesn't matter who has imported them, or when.
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
    """Module and fragment of everything that a naive side is without."""
    for fragment in (*naive.without, *(old for old, _ in naive.changed)):
        yield naive.module, fragment
    for other in naive.also:
        yield from taken_out(other)


def _functions(module: ModuleType) -> dict[str, FunctionType]:
    """Functions and methods that a module defines, by their qualified names."""
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
    """Study folders, each made once with its keys and certificates, and fresh folders for the files of one run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._studies: dict[str, Path] = {}
        self._runs = 0

    def study(self, name: str = "seven", /, **options: Any) -> Path:
        """A study folder (`tests/server/study_in_process.make_folder`); the name stands for its options."""
        from tests.support.study_in_process import make_folder

        if name not in self._studies:
            self._studies[name] = make_folder(self._root / "studies" / name, **{"name": name, **options})
        return self._studies[name]

    def work(self) -> Path:
        """An empty folder: journals, ledgers and databases of one run."""
        self._runs += 1
        folder = self._root / "runs" / str(self._runs)
        folder.mkdir(parents=True)
        return folder


Run = Callable[[Places], Awaitable[Seen]]


@dataclass(frozen=True)
class Script:
    """One way to cheat.

    Attributes:
        name: words joined by hyphens.
        cheat: who cheats: "coordinator" or "participant".
        does: one sentence: what the cheat does.
        must: one sentence: what has to happen.
        outcome: `Seen.outcome` on the real code.
        check: each a naive side on which the script has to come out otherwise; none for what no single check stops, as
            for what is documented as possible.
        documented_as_possible: the cheat succeeds, and docs/threat_model.md says so.
        heavy: too slow for `make test`; runs in `make adversary`.
    """

    name: str
    cheat: str
    does: str
    must: str
    outcome: str
    check: tuple[Naive, ...]
    run: Run = field(repr=False)
    documented_as_possible: bool = False
    heavy: bool = False

    async def perform(self, places: Places, naive: Naive | None = None) -> Seen:
        """Run it once, on the real code or on a naive side; again where that one shows nothing in little time."""
        with contextlib.nullcontext() if naive is None else naive.switched_off():
            seen = await self.run(places)
        if naive is not None and (patient := naive.patient()) and self.undetected(naive, seen):
            return await self.perform(places, patient)
        return seen

    def wrong(self, seen: Seen) -> str | None:
        """What is wrong with a run on the real code; None when all is as stated."""
        if seen.broken:
            return f"{self.name}: {'; '.join(seen.broken)} ({seen.outcome}: {seen.detail})"
        if seen.outcome != self.outcome:
            return f"{self.name}: {seen.outcome!r}, not {self.outcome!r}: {seen.detail}"
        return None

    def undetected(self, naive: Naive, seen: Seen) -> str | None:
        """What is wrong with a run on a naive side; None when it came out otherwise, as it must."""
        what = f"{self.name} without {naive.without + naive.changed} of {naive.module}"
        if not seen.broken and seen.outcome == self.outcome:
            return f"{what} comes out the same: {seen.outcome}: {seen.detail}"
        if naive.shows not in " ".join((seen.outcome, seen.detail, *seen.broken)):
            return f"{what} doesn't show {naive.shows!r}: {seen}"
        return None


_scripts: dict[str, Script] = {}


def register(script: Script) -> Script:
    """Add a script to the suite."""
    assert script.name not in _scripts, f"two scripts are called {script.name}"
    assert script.cheat in (COORDINATOR, PARTICIPANT)
    _scripts[script.name] = script
    return script


def scripted(**fields: Any) -> Callable[[Run], Run]:
    """Register the function below as a script with these fields."""

    def decorate(run: Run) -> Run:
        register(Script(run=run, **fields))
        return run

    return decorate


@cache
def _load(cheat: str) -> None:
    for path in sorted(Path(__file__).parent.glob(f"{cheat}_scripts*.py")):
        importlib.import_module(f"tests.adversary.{path.stem}")


def scripts(*cheats: str) -> list[Script]:
    """The scripts of one side, or of both, in the order of the modules and within them."""
    cheats = cheats or (COORDINATOR, PARTICIPANT)
    for cheat in cheats:
        _load(cheat)
    return [script for script in _scripts.values() if script.cheat in cheats]
