"""Sordino compared with other systems: the same work, alternating, in one run.

Both sides run as separate processes with one BLAS thread: the peers with the Python of `.venv-peers`, ours with the one
that runs this. A ratio is the peer's figure over ours, so above 1 ours is quicker. It is taken pair by pair; one run of
each side before the first pair isn't counted.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from sordino.lab.bench.timing import Spread

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[3]
ENVIRONMENT: Final = ".venv-peers"
REQUIREMENTS: Final = HERE / "requirements.txt"
OURS: Final = (sys.executable, "-m", "sordino")
TIMEOUT_S: Final = 600.0
_BITS: Final = 20  # of a value in our round
_SPREAD: Final = ("law_ok", "spread_ok")  # ours and OpenDP's
SIDES: Final = {
    "secagg": (
        (
            "signs every key and verifies every signature on both sides",
            "checks that all survivors received the same sets, with signatures",
            "binds every upload to its participant with a signed digest",
            "masks with AES-128, all 128 bits of a key unknown to others, and packs B bits a value",
            "starts from integers: clipping, rounding and noise are not included",
        ),
        (
            "signs nothing, and has no check that survivors received the same sets",
            "masks with numpy's Mersenne twister; seeds have 32 bits for a participant's own mask and 28 for a pair's",
            "shares a P-384 key as its PEM text, 20 blocks of 16 bytes, in pure Python: most of its time",
            "uploads 64-bit words, modulus 2^32",
            "starts from float32: clipping, stochastic rounding and the vector's bytes are included, a few ms a vector",
        ),
    ),
    "round": (
        (
            "runs the same app with the mod and the strategy of sordino.flower: signatures, shares, consistency check",
            "clips, rotates, rounds, adds noise; writes charges, keys and signed sets to disk before it answers",
        ),
        (
            "trains the same in Flower's legacy API, with its SecAgg+ workflow and mod: no noise, nothing durable",
            "FedAvg without either takes setting.plain_s",
        ),
    ),
    "noise": (
        (
            "draws from integer tables fed by AES-128; the law is met within a total-variation distance of 2^-140",
            "adds to a numpy vector; building the tables is apart, in setup_ms",
        ),
        (
            "draws with rejection on big rationals, exactly, from a cryptographic generator",
            "takes a numpy vector and returns a list; making the list is included, under 1 % of its time",
            "is measured on at most 100 000 values, fastest of its calls: a sample's cost doesn't depend on the length",
        ),
    ),
}


class PeersMissing(RuntimeError):
    """The environment of the peers was not built."""


class PeerFailed(RuntimeError):
    """A run ended without figures, with a wrong result, or too late."""


Figures: TypeAlias = dict[str, Any]
"""All that one run printed; a peer's name stands under ``peer``."""
_COMPARED: Final = {  # rounds are taken from one run, which checks them
    "secagg": ("CPU s", "cpu_s", ("sum_ok",)),
    "noise": ("ns a sample", "ns_per_sample", _SPREAD),
}
"""Work -> unit and name of the figure that is compared, and names under which a side says that its result is right."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ours and one peer on the same work."""

    work: str  # "secagg" or "noise"
    peer: str
    unit: str  # "CPU s" or "ns a sample"
    setting: dict[str, Any]
    ours: Spread
    peers: Spread
    ratio: Spread  # the peer's over ours, of each pair
    versions: dict[str, str]  # of the peer's environment
    last: tuple[Figures, Figures] = field(repr=False)  # ours and the peer's of the last pair

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]], **about: Any) -> Self:
        """``pairs``: figures of ours and the peer's; ``about``: the other fields."""
        ours, peers = zip(*pairs, strict=True)
        ratio = Spread.of([other / one for one, other in pairs])
        return cls(ours=Spread.of(ours), peers=Spread.of(peers), ratio=ratio, **about)

    def to_json(self) -> dict[str, Any]:
        """All fields, under their names, and what each side does and leaves out."""
        return asdict(self) | {
            "includes": dict(zip(("ours", "peer"), SIDES[self.work], strict=True)),
            "last": dict(zip(("ours", "peer"), self.last, strict=True)),
        }


def find_environment(root: Path | None = None) -> Path:
    """The python of the peers' environment.

    ``root``: folder that holds `.venv-peers`; None means the repository.

    Raises PeersMissing: it isn't there, or holds other versions than `sordino/lab/bench/peers/requirements.txt`.
    """
    environment = (ROOT if root is None else root) / ENVIRONMENT
    python = environment / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise PeersMissing(f"{environment} is missing: the peers have their own environment. Run: make bench-peers")
    for name, pinned in pins().items():
        if not list(environment.glob(f"lib/python*/site-packages/{name}-{pinned}.dist-info")):
            raise PeersMissing(f"{environment} does not hold {name} {pinned}. Run: make bench-peers")
    return python


def pins() -> dict[str, str]:
    """Version of each peer that the requirements name."""
    lines = (line.strip().partition("==") for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines())
    return {name: version for name, _, version in lines if name in ("flwr", "opendp")}


def run_peer(python: Path, script: str, *, timeout_s: float = TIMEOUT_S, **options: float | None) -> Figures:
    """The figures of a peer: `flower_secagg`, one round of Flower's SecAgg+, or `opendp_noise`, a vector of noise.

    Args:
        python: from `find_environment`.
        timeout_s: wall-clock limit.
        options: of the script.

    Raises PeerFailed: no figures, or too late.
    """
    return _run((str(python), "-I", str(HERE / f"{script}.py"), *_arguments(options)), timeout_s)


def _arguments(options: Mapping[str, float | None]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def compare_secagg(
    python: Path, *, clients: int, dim: int, drop: float, repeats: int, command: Sequence[str] = OURS
) -> Comparison:
    """Sordino's protocol beside Flower's: total CPU seconds.

    Flower gets the threshold that ours used. Its warm-up is a small round, since a whole one takes half a minute.

    ``command``: starts ours. Raises PeerFailed: a run failed, or the two sides had not the same number of survivors.
    """
    work = {"clients": clients, "dim": dim, "drop": drop}

    def ours() -> Figures:
        arguments = [*_arguments(work), f"--bits={_BITS}", "--graph=complete", "--json"]
        return _run((*command, "bench", "secagg", *arguments), TIMEOUT_S)

    threshold = int(ours()["threshold"])  # and ours' warm-up
    run_peer(python, "flower_secagg", clients=5, dim=100, drop=0.2)
    setting = work | {"bits": _BITS, "graph": "complete", "threshold": threshold}
    flower = functools.partial(run_peer, python, "flower_secagg", threshold=threshold, **work)
    comparison = _compare("secagg", setting, ours, flower, repeats)
    mine, theirs = (figures["survivors"] for figures in comparison.last)
    if mine != theirs:
        raise PeerFailed(f"not the same work: {mine} survivors in ours, {theirs} in Flower's. Lower the dropouts")
    return comparison


def compare_noise(python: Path, *, stddev: float, dim: int, repeats: int) -> Comparison:
    """Sordino's discrete Gaussian beside OpenDP's: nanoseconds of CPU time a sample.

    Raises PeerFailed: a run failed.
    """
    work = {"stddev": stddev, "dim": dim}

    def ours() -> Figures:
        return _run((*OURS, "bench", "noise", "--law=gaussian", *_arguments(work), "--json"), TIMEOUT_S)

    ours()
    run_peer(python, "opendp_noise", stddev=stddev, dim=1000)
    opendp = functools.partial(run_peer, python, "opendp_noise", **work)
    return _compare("noise", {"law": "gaussian"} | work, ours, opendp, repeats)


def compare_rounds(python: Path, *, repeats: int) -> Comparison:
    """A round of ten nodes in Flower's simulation with sordino.flower, with SecAgg+ and, in ``setting``, with neither.

    Raises PeerFailed: a round had no sum.
    """
    found = _run((str(python), str(HERE / "flower_rounds.py"), f"--repeats={repeats}"), TIMEOUT_S)
    seconds = found["seconds"]
    setting = {"nodes": found["nodes"], "dim": found["dim"], "plain_s": Spread.of(seconds["plain"]).median}
    return Comparison.of(
        list(zip(seconds["sordino"], seconds["secagg+"], strict=True)),
        work="round",
        peer="flower",
        unit="s",
        setting=setting | {"ours_over_plain": found["sordino_over_plain"]},
        versions=found["versions"],
        last=(found, found),
    )


def _compare(
    work: str, setting: dict[str, Any], ours: Callable[[], Figures], peer: Callable[[], Figures], repeats: int
) -> Comparison:
    pairs = []
    for _ in range(repeats):
        last = ours(), peer()
        pairs.append((_compared(work, last[0]), _compared(work, last[1])))
    about = {name: last[1][name] for name in ("peer", "versions")}
    return Comparison.of(pairs, work=work, unit=_COMPARED[work][0], setting=setting, last=last, **about)


def _compared(work: str, figures: Figures) -> float:
    """The figure that is compared. Raises PeerFailed: it is missing, or the run's result is wrong."""
    _, name, checks = _COMPARED[work]
    side, right = figures.get("peer", "sordino"), [bool(figures[one]) for one in checks if one in figures]
    try:
        found = float(figures[name])
    except (KeyError, TypeError, ValueError):
        right = []
    if not right:
        raise PeerFailed(f"{side}: no {name} or {' or '.join(checks)} among the figures: {sorted(figures)}")
    if not all(right):
        raise PeerFailed(f"{side}: the result is wrong, so its time says nothing: {figures}")
    return found


def _run(command: Sequence[str], timeout_s: float) -> Figures:
    """The JSON object that a command prints. One that finds a wrong sum exits with 1 and prints it all the same."""
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    name = " ".join(Path(part).name if os.sep in part else part for part in command)
    try:
        done = subprocess.run(
            list(command),
            cwd=ROOT,
            env={**os.environ, **threads},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{name}: still running after {timeout_s:g} s, stopped") from error
    except OSError as error:
        raise PeerFailed(f"{name}: cannot be started: {error.strerror}") from error
    try:
        details = json.loads(done.stdout)
    except ValueError:
        details = None
    if not isinstance(details, dict) or done.returncode not in (0, 1):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing was printed").splitlines()[-1]
        raise PeerFailed(f"{name}: ended with {done.returncode}: {said}")
    return details


def compare_all(
    *, clients: int, dim: int, drop: float, stddev: float, repeats: int
) -> tuple[dict[str, Comparison], dict[str, tuple[str, str]]]:
    """The three comparisons; and of each what the work is, and whose the peer is.

    Raises PeersMissing, PeerFailed, ValueError: as each of them.
    """
    python = find_environment()
    found = {
        "flower_secagg": compare_secagg(python, clients=clients, dim=dim, drop=drop, repeats=repeats),
        "opendp_noise": compare_noise(python, stddev=stddev, dim=1_000_000, repeats=repeats),
        "flower_round": compare_rounds(python, repeats=repeats),
    }
    plain = found["flower_round"].setting
    names = {
        "flower_secagg": (f"one attempt, n = {clients}, d = {dim:,}, {drop:.0%} leave", "Flower SecAgg+"),
        "opendp_noise": (f"discrete Gaussian, standard deviation {stddev:g}", "OpenDP"),
        "flower_round": (
            f"a round of ten Flower nodes, {plain['ours_over_plain']:.2f} times plain FedAvg's",
            "Flower SecAgg+",
        ),
    }
    return found, names
