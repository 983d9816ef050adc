"""Options of joining: how a place in a study is got, and over which data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import Field

from runtime.settings_file import Table
from runtime.settings_keys import key

CODE: Final = "Joining by code"
_code, _data = (partial(key, None, panel=panel) for panel in (CODE, "Data, when joining by code"))


class JoinOptions(Table):
    """What `sordino join` and `sordino.Participant` take to get a place in a study; None for a default.

    Attributes:
        address, code: may be empty for `client.joining.joining.get_place`.
        home: the participant's folder; by default named after the study.
        policy_file: by default the shown plan becomes the policy once it is accepted.
        agreed: join without asking.
        name: by default derived from the code.
        dataset, partition, alpha, shards, seed: by default `client.joining.checks.USUAL_DATA`.
        part: by default derived from the code; `BY_PLACE`: the place on the roster decides.
        parts: by default as many as the plan has participants; of data that an app loads, one.
        kept: called when the folder is written, before the request is sent.
    """

    address: str = ""
    code: str = Field(default="", repr=False)
    home: Path | None = None
    policy_file: Path | None = None
    agreed: bool = False
    kept: Callable[[], None] = lambda: None
    desk: Path | None = _code(
        "the authority's local enrolment socket, which gives a code; in place of --code", metavar="PATH"
    )
    homes: Path | None = _code(
        "folder of homes: take one that no other process has, or begin one; in place of --home", metavar="DIR"
    )
    name: str | None = _code(
        "name of this process on the roster, which all participants read", shown="drawn at random", metavar="HOST"
    )
    task: str | None = _code(
        "the study's task, where it isn't one of Sordino's: a module here that you have read and trust",
        metavar="MODULE:CLASS",
    )
    ledger: Path | None = _code(
        "ledger of what is spent: one for all studies over the same data", shown="in the folder", metavar="FILE"
    )
    dataset: str | None = _data("one of `sordino data list`, or FORMAT:PATH", shown="fashion-mnist-subset")
    data: Path | None = _data(
        "a file or folder of your own, in the place of a part of a set: see docs/your_own_data.md", metavar="FILE"
    )
    data_identity: str | None = _data(
        "where the task is a Flower app, which loads your data: a name for them, the same in all studies",
        metavar="NAME",
    )
    partition: str | None = _data(
        "how the set is divided: iid, dirichlet (uneven classes), shards, or natural", shown="dirichlet"
    )
    alpha: float | None = _data("Dirichlet only: small is uneven", shown="1.0")
    shards: int | None = _data("shards only: runs of one class for each", ge=1, shown="2")
    seed: int | None = _data("seed of the partition; public", shown="1")
    part: str | int | None = _data(  # a number in the words of the command stays text
        "your part, from 1; place: by your place on the roster", shown="drawn at random", metavar="K"
    )
    parts: int | None = _data("parts in all", ge=1, shown="as many as the plan has", metavar="N")
