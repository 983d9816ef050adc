"""From the options of a verb that makes or simulates a study to `StudyOptions`; every mistake is one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from authority.study_data import fitted
from authority.study_options import StudyOptions
from learning.data_names import OWN
from runtime.failure import ExitCode, Failure
from sordino.cli import task_options

TRAINING: Final = ("method", "client_rate", "batch_size", "local_epochs")
"""Options of the task that have an option of their own; ``--task-option`` takes the others."""
_COMPARED: Final = {
    "binomial": "planned only (sordino plan)",
    "randomised-response": "compared only (mechanisms.registry.MECHANISMS in Python)",
}
"""Mechanisms of docs/methods.md of which no study is made."""


def study_options(
    given: Mapping[str, Any], *, mechanisms: Collection[str], samplings: Collection[str], **settled: Any
) -> StudyOptions:
    """What was chosen, names and ranges checked; what is None takes its default.

    Args:
        given: options by their names in Python, fields of `StudyOptions` among them; others count for nothing.
        mechanisms, samplings: that the verb knows.
        settled: fields that don't come as given.

    Raises:
        Failure: a value that can't be, with its option.
    """
    from learning.server_optimizers import SERVER_OPTIMIZERS
    from secagg.parameters import GRAPHS
    from secagg.sharing import CURIOUS, MALICIOUS, SEMI_MALICIOUS
    from sordino.planning.options import (
        ROTATIONS,
        SCALINGS,
        check_adapting,
        check_ranges,
        check_sketch,
        graph_name,
        one_of,
    )

    if given["mechanism"] in _COMPARED:
        raise Failure(
            ExitCode.INPUT,
            f"--mechanism {given['mechanism']} is {_COMPARED[given['mechanism']]}, neither served nor simulated. Use "
            "ddgauss or skellam.",
        )
    one_of("--mechanism", given["mechanism"], tuple(mechanisms))
    one_of("--sampling", given["sampling"], tuple(samplings))
    one_of("--server-optimizer", given["server_optimizer"], SERVER_OPTIMIZERS)
    one_of("--rotation", given["rotation"], ("auto", *ROTATIONS))
    if given["adversary"] == SEMI_MALICIOUS:
        raise Failure(
            ExitCode.INPUT,
            "--adversary semi-malicious is for comparison only (sordino plan, graph, bench): a study is served under "
            "malicious or curious.",
        )
    one_of("--adversary", given["adversary"], (MALICIOUS, CURIOUS))
    one_of("--clip-scaling", given["clip_scaling"], SCALINGS)
    check_adapting(given["clip_update"], given["clip_quantile"], given["clip_rate"], given["clip_bit_weight"])
    check_sketch(given["sketch_rows"], given["sketch_ratio"])
    _check_effect(given)
    if given["sketch_rows"] and given["clip_by_layer"]:
        raise Failure(ExitCode.INPUT, "a sketch mixes the layers: use either --clip-by-layer or --sketch-rows.")
    ranged = ("epsilon", "delta", "clip", "bits", "max_dropout", "adversarial", "beta", "k_stddevs")
    ranged += ("server_rate", "server_momentum", "server_second_momentum", "server_adaptivity")
    check_ranges(**{name: given[name] for name in ranged})
    if given["test"] is not None and not Path(given["test"]).is_file():
        raise Failure(ExitCode.INPUT, f"--test {given['test']}: there is no such file.")
    names = {field.name for field in dataclasses.fields(StudyOptions)}
    chosen = {name: value for name, value in given.items() if name in names and value is not None}
    chosen["graph"] = graph_name(given["graph"], ("auto", *GRAPHS))
    training = {name: given[name] for name in TRAINING}
    chosen["task_options"] = task_options.options_of(given["task_option"], **training)
    return fitted(StudyOptions(**chosen | settled))


def _check_effect(given: Mapping[str, Any]) -> None:
    """Raises Failure: an option that was chosen, and that nothing would come of as the others are."""
    optimizer, adaptive = given["server_optimizer"], ("fedadam", "fedyogi", "fedadagrad")
    dirichlet, cut = given["partition"] == "dirichlet", given["dataset"] != OWN
    for name, has_effect, needs in (
        ("clip_scaling", given["clip_by_layer"], "clips of layers: add --clip-by-layer"),
        ("alpha", dirichlet and cut, "a data set that is cut by --partition dirichlet"),
        ("shards", given["partition"] == "shards" and cut, "a data set that is cut by --partition shards"),
        ("server_adaptivity", optimizer in adaptive, f"--server-optimizer {', '.join(adaptive[:2])} or {adaptive[2]}"),
        ("server_second_momentum", optimizer in adaptive[:2], f"--server-optimizer {' or '.join(adaptive[:2])}"),
    ):
        if given[name] != getattr(StudyOptions, name) and not has_effect:
            raise Failure(ExitCode.INPUT, f"--{name.replace('_', '-')} {given[name]} needs {needs}; or leave it out.")
