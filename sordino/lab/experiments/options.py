"""Options of the experiments without a study, ``dme`` and ``audit``, and the settings that they ask for."""

from __future__ import annotations

import secrets
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from runtime.failure import InputFailure
from runtime.option_values import check_folder, check_picture, check_ranges, one_of
from runtime.settings_file import Table
from runtime.settings_keys import key
from server.study_file import StudyConfiguration
from sordino.planning.options import numbers

if TYPE_CHECKING:
    from sordino.lab.experiments import audit, dme

_MOST_CANARIES: Final = 65_536
_SEEDS: Final = 1 << 53
_option = partial(key, panel="Options")
_MECHANISMS: Final = {"help": "of ddgauss, skellam, gaussian and local-gaussian", "metavar": "NAME,..."}
_FIGURE: Final = {"help": "draw as .svg or .png", "metavar": "FILE", "shown": "no figure"}


def _mechanism_names(text: str) -> list[str]:
    """What ``--mechanisms`` lists, each once. Raises Failure: a name that isn't one."""
    from mechanisms.statement import VECTOR_MECHANISMS

    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        one_of("--mechanisms", name, VECTOR_MECHANISMS)
    return names


class DmeOptions(Table):
    """Options of ``dme``; lists are crossed."""

    clients: str = _option("100", "participants", metavar="N,N,...")
    dim: int = _option(250, "values of a vector", ge=1)
    epsilons: str = _option("0.75,1,2,3,4,5,6", "targets of one round", metavar="E,E,...")
    bits: str = _option("10,12,14,16,18,20", "bits of one value", metavar="B,B,...")
    mechanisms: str = _option("ddgauss,skellam", **_MECHANISMS)
    trials: int = _option(80, "of each setting; 0 for closed forms alone", within=(0, 100_000))
    delta: float = _option(1e-5, "chance that the guarantee fails")
    clip: float = _option(10.0, "radius of the sphere, and L2 clip")
    k_stddevs: float = _option(4.0, "standard deviations before a sum could wrap around")
    data: Literal["sphere", "equal"] = _option(
        "sphere", "sphere: independent vectors; equal: all hold the same one, which wraps most", metavar="HOW"
    )
    seed: int = _option(1, "of vectors and rotations; noise is always fresh", within=(0, 2**63))
    workers: int = _option(1, "processes", within=(1, 64))
    csv: Path | None = _option(None, "write one row a setting", metavar="FILE", shown="no file")
    figure: Path | None = _option(None, **_FIGURE)


def dme_settings(own: DmeOptions) -> list[dme.Setting]:
    """One setting for each combination. Raises Failure: an option can't be."""
    names = _mechanism_names(own.mechanisms)
    if own.csv is not None:
        check_folder("--csv", own.csv)
    if own.figure is not None:
        check_picture("--figure", own.figure)
    sizes = sorted(set(numbers("--clients", own.clients, int, "whole numbers")))
    targets = sorted(set(numbers("--epsilons", own.epsilons, float, "numbers")))
    widths = sorted(set(numbers("--bits", own.bits, int, "whole numbers")))
    check_ranges(StudyConfiguration, delta=own.delta, clip=own.clip, k_stddevs=own.k_stddevs)
    for width in widths:
        check_ranges(StudyConfiguration, bits=width)
    for target in targets:
        check_ranges(StudyConfiguration, "--epsilons", epsilon=target)
    if sizes[0] < 3:
        raise InputFailure(f"--clients {sizes[0]} is too few. Use at least 3.")

    from sordino.lab.experiments.dme import Setting

    same = own.model_dump(include={"dim", "delta", "clip", "k_stddevs", "data", "seed"})
    return [
        Setting(clients=count, mechanism=name, bits=width, epsilon=target, **same)
        for count, name, width, target in product(sizes, names, widths, targets)
    ]


# Canaries, which are as many as values of a vector, and rounds.
_SCALES: Final = {"small": (8192, 2), "paper": (16384, 3)}


class AuditOptions(Table):
    """Options of ``audit``; mechanisms and divisors are crossed."""

    scale: Literal["small", "paper"] = _option(
        "small", "small: 8192 canaries, 2 rounds. paper: 16384 canaries, 3 rounds"
    )
    mechanisms: str = _option("ddgauss,skellam,gaussian,local-gaussian", **_MECHANISMS)
    noise_divided_by: str = _option(
        "1",
        "self-test: the deviation of the noise that is really drawn, that many times less than claimed",
        metavar="X,X,...",
    )
    epsilon: float = _option(2.0, "target of the plan, over all rounds")
    delta: float = _option(1e-6, "far less than 1 / canaries: the bound pays for it")
    canaries: int | None = _option(None, "participants", shown="the scale's", within=(10, _MOST_CANARIES))
    dim: int | None = _option(None, "values of a vector, at least as many as canaries", shown="the scale's", le=1 << 20)
    rounds: int | None = _option(None, "rounds of the plan", shown="the scale's", within=(1, 100))
    bits: int = _option(24, "bits of one value")
    clip: float = _option(1.0, "L2 clip")
    max_dropout: float = _option(0.1, "share that may leave, by the plan")
    leaving: float = _option(0.05, "share that is missing in each round")
    confidence: float = _option(0.999, "of each lower bound", ge=0.5, lt=1)
    seed: int | None = _option(
        None,
        "of coins, canaries, rotations and who leaves; noise is always fresh",
        shown="drawn",
        within=(0, _SEEDS - 1),
    )
    figure: Path | None = _option(None, **_FIGURE)


def audit_settings(own: AuditOptions) -> list[audit.Setting]:
    """One setting for each combination. Raises Failure: an option can't be."""
    names = _mechanism_names(own.mechanisms)
    divisors = list(dict.fromkeys(numbers("--noise-divided-by", own.noise_divided_by, float, "numbers")))
    usual, usual_rounds = _SCALES[own.scale]
    people = usual if own.canaries is None else own.canaries
    values = max(usual, people) if own.dim is None else own.dim
    check_ranges(StudyConfiguration, **own.model_dump(include={"epsilon", "delta", "bits", "clip", "max_dropout"}))
    for option, number, least, most in (
        *(("--noise-divided-by", one, 1, 1000) for one in divisors),
        ("--dim", values, people, 1 << 20),
        ("--leaving", own.leaving, 0, own.max_dropout),
    ):
        if not least <= number <= most:
            raise InputFailure(f"{option} {number:.10g} is out of range. Use {least:,} to {most:,}.")
    if own.figure is not None:
        check_picture("--figure", own.figure)

    from sordino.lab.experiments.audit import Setting

    same = own.model_dump(include={"bits", "epsilon", "delta", "clip", "max_dropout", "leaving"}) | {
        "canaries": people,
        "dim": values,
        "rounds": usual_rounds if own.rounds is None else own.rounds,
        "error": 1 - own.confidence,
        "seed": secrets.randbelow(_SEEDS) if own.seed is None else own.seed,
    }
    return [Setting(mechanism=name, noise_divided_by=divisor, **same) for divisor, name in product(divisors, names)]
