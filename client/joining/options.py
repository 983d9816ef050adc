"""The options of a join by code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class JoinOptions:
    """What she chose at the command.

    Attributes:
        home: her folder; None for one named after the study.
        name: of her process on the roster; None for one made of the code.
        dataset, partition, alpha, shards, seed: of her data; None takes those of `client.joining.data.USUAL_DATA`.
        data: a file of her own, in the place of a part of a set.
        task: module:Class on her machine, where the study's task is none that Sordino brings.
        part, parts: her part of the data, from 1; None for one made of the code, of as many as the plan has;
            `client.joining.home.BY_PLACE` for the one that her place on the roster decides.
        policy_file: None: the plan that she is shown, once accepted, becomes her policy.
        agreed: don't ask.
        ledger: None for one in the folder.
        kept: is called as soon as her folder is there, before anything is asked for.
    """

    address: str
    code: str = field(repr=False)
    home: Path | None
    policy_file: Path | None = None
    agreed: bool = False
    name: str | None = None
    dataset: str | None = None
    partition: str | None = None
    alpha: float | None = None
    shards: int | None = None
    seed: int | None = None
    part: int | str | None = None
    parts: int | None = None
    data: Path | None = None
    task: str | None = None
    ledger: Path | None = None
    kept: Callable[[], None] = lambda: None
