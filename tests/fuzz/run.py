"""Fuzz every decoder and every phase for a while, guided by coverage, and keep what is new.

    python -m tests.fuzz.run --seconds 60                   each target for a minute
    python -m tests.fuzz.run --seconds 600 roster card      two of them
    python -m tests.fuzz.run --replay roster FILE           one input, with its traceback
    python -m tests.fuzz.run --keep roster FILE             into the corpus, once the fault is gone
    python -m tests.fuzz.run --tidy                         leave out of the corpus what reaches nothing of its own

Needs atheris (libFuzzer for Python); `make fuzz` makes an environment that has it. Each target runs in a process of its
own, with our packages instrumented and nothing else. An input that crashes, hangs or takes too much memory is kept in
build/fuzz/TARGET, and the exit code is 1. New inputs go to tests/fuzz/corpus/TARGET where they reach something new.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fuzz import corpus
from tests.fuzz.corpus import ROOT
from tests.fuzz.target import Dice, Target, targets

CRASHES: Final = ROOT / "build" / "fuzz"
_HANG_S: Final = 20  # on a machine that does other things as well
_MEMORY_MB: Final = 1536
_MEMORY_FOLDER: Final = "/dev/shm"


@dataclass
class Report:
    """What came of one target."""

    name: str
    executions: int
    per_second: float
    coverage: tuple[int, int]  # libFuzzer's edges: with the corpus alone, and at the end
    memory_mb: int  # most that the process had, with all that is loaded
    kept: int
    crashes: list[Path]


def main() -> int:
    """The command."""
    options = _options()
    if options.fuzz:
        return _fuzz_here(options.fuzz, options.arguments)
    known = targets()
    names = options.arguments or list(known)
    if options.replay or options.keep:
        chosen = options.replay or options.keep
        if chosen not in known:
            return _refuse_target(chosen, known)
        if not options.arguments:
            print(f"a file is missing: {'--keep' if options.keep else '--replay'} {chosen} FILE", file=sys.stderr)
            return 2
        target = known[chosen]
        for file in options.arguments:
            try:
                data = Path(file).read_bytes()
            except OSError as error:
                print(f"{file} can't be read: {error.strerror}", file=sys.stderr)
                return 2
            target.run(data)
            print(f"{target.name}: {len(data)} bytes, no finding")
            if options.keep:
                print(corpus.keep(target, data))
        return 0
    unknown = [name for name in names if name not in known]
    if unknown:
        return _refuse_target(unknown[0], known)
    if options.tidy:
        for name in names:
            _tidy(name)
        return 0
    try:
        import atheris  # noqa: F401  # each target's process uses it
    except ImportError:
        print("atheris is missing: run `make fuzz`, which makes an environment with it", file=sys.stderr)
        return 2
    print(f"{len(names)} targets, {options.seconds} s each", flush=True)
    reports = []
    for name in names:
        reports.append(_fuzz(name, options.seconds))
        print(_line(reports[-1]), flush=True)
    crashed = [path for report in reports for path in report.crashes]
    executions, kept = sum(report.executions for report in reports), sum(report.kept for report in reports)
    end = f"{len(crashed)} crashing inputs in {CRASHES.relative_to(ROOT)}" if crashed else "no crash"
    print(f"{executions} executions, {kept} inputs kept, {end}")
    for path in crashed:
        print(f"  python -m tests.fuzz.run --replay {path.parent.name} {path.relative_to(ROOT)}")
    return 1 if crashed else 0


def _refuse_target(name: str, known: Iterable[str]) -> int:
    names = textwrap.fill(", ".join(known), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    print(f"there is no target {name}; these are:\n{names}", file=sys.stderr)
    return 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arguments", nargs="*", help="names of targets (default: all), or files")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--replay", metavar="TARGET", help="run files, and show the traceback of a finding")
    parser.add_argument("--keep", metavar="TARGET", help="the same, and add them to the corpus")
    parser.add_argument("--tidy", action="store_true", help="leave out of the corpus what reaches nothing of its own")
    parser.add_argument("--fuzz", help=argparse.SUPPRESS)
    return parser.parse_args()


def _line(report: Report) -> str:
    before, after = report.coverage
    end = "" if not report.crashes else "  CRASHED"
    return (
        f"{report.name:<34} {report.executions:>9} executions {report.per_second:>8.0f}/s  "
        f"edges {before:>5} + {after - before:<4} {report.memory_mb:>4} MB {report.kept:>3} inputs kept{end}"
    )


# ---------------------------------------------------------------- one target, from outside


def _fuzz(name: str, seconds: int) -> Report:
    target = targets()[name]
    crashes = CRASHES / name
    crashes.mkdir(parents=True, exist_ok=True)
    known = set(crashes.iterdir())
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None  # some targets write a file each time
    with tempfile.TemporaryDirectory(prefix="sordino-fuzz-", dir=memory) as scratch:
        found, begin, tokens = Path(scratch, "found"), Path(scratch, "begin"), Path(scratch, "tokens")
        for folder in (found, begin):
            folder.mkdir()
        for data in corpus.begin(target):
            (begin / corpus.name_of(data)).write_bytes(data)
        tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens), encoding="ascii")
        arguments = [
            *(str(found), str(begin), f"-max_total_time={seconds}", f"-max_len={target.largest}"),
            *(f"-artifact_prefix={crashes}/", f"-timeout={_HANG_S}", f"-rss_limit_mb={_MEMORY_MB}"),
            *("-print_final_stats=1", "-verbosity=1", *([f"-dict={tokens}"] if target.tokens else [])),
        ]
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.run", "--fuzz", name, "--", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": scratch, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            check=False,
        )
        took = time.monotonic() - began
        said = (ended.stdout + ended.stderr).decode("utf-8", "replace")
        crashed = sorted(set(crashes.iterdir()) - known)
        if ended.returncode and not crashed:
            (crashes / "output.txt").write_text(said, encoding="utf-8")
            crashed = [crashes / "output.txt"]
        for path in crashed:
            print(said[-3000:] if path == crashed[0] else path, file=sys.stderr)
        chosen = [] if crashed else _kept(target, [path.read_bytes() for path in found.iterdir()])
    edges = [int(number) for number in re.findall(r"\bcov: (\d+)", said)]
    count = re.findall(r"number_of_executed_units:\s*(\d+)", said) or re.findall(r"^#(\d+)", said, re.MULTILINE)
    executions = int(count[-1]) if count else 0
    coverage = (edges[0], edges[-1]) if edges else (0, 0)
    peak = re.findall(r"peak_rss_mb:\s*(\d+)", said)
    return Report(
        name, executions, executions / max(took, 1), coverage, int(peak[-1]) if peak else 0, len(chosen), crashed
    )


def _kept(target: Target, new: list[bytes]) -> list[bytes]:
    room = corpus.ROOM - sum(map(len, corpus.inputs(target)))
    chosen = corpus.fewest(target, new, corpus.reached_by(target, corpus.begin(target)), room)
    for data in chosen:
        corpus.keep(target, data)
    return chosen


def _tidy(name: str) -> None:
    target = targets()[name]
    before = corpus.inputs(target)
    reached = corpus.reached_by(target, target.seeds())
    chosen = set(corpus.fewest(target, before, reached, corpus.ROOM))
    for data in set(before) - chosen:
        (corpus.CORPUS / name / corpus.name_of(data)).unlink()
    print(f"{name:<34} {len(before)} -> {len(chosen)} inputs, {sum(map(len, chosen))} bytes", flush=True)


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


# ---------------------------------------------------------------- one target, from inside


def _fuzz_here(name: str, arguments: list[str]) -> int:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=list(corpus.PACKAGES), enable_loader_override=False):
        target = targets()[name]  # imports the packages
    form = target.mutate

    def mutate(data: bytes, largest: int, seed: int) -> bytes:
        if form is None or seed % 3 == 0:
            return bytes(atheris.Mutate(data, largest))
        return form(bytes(data), Dice(seed))[:largest]

    options: dict[str, Any] = {} if form is None else {"custom_mutator": mutate}
    atheris.Setup([sys.argv[0], *arguments], target.run, **options)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
