"""The node's side: a mod for an existing ClientApp.

The app trains as before, and what it returns never leaves the node as it is: the change of the model is clipped, noised
and masked first. Everything else that a ServerApp asks, evaluation included, is refused, since no noise protects it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import structlog
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from client.visits import Home, Visit, answer, prove
from runtime.failure import InputFailure
from sordino.flower.arrays import Vector, same_form, to_arrays, to_vector
from sordino.flower.messages import RECORD, Down, Kept, Up

HOME_KEY: Final = "sordino-home"
STUDY_KEY: Final = "sordino-study"

log = structlog.get_logger()


def secure_aggregation_mod(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Take part in secure aggregation; for ``ClientApp(mods=[secure_aggregation_mod])``.

    The participant's home is named by ``sordino-home`` in the node's configuration. In a simulation ``sordino-study``
    in the run's names the study's folder, whose hosts are the partitions.
    """
    if not structlog.is_configured():  # Flower's log is enough, but for warnings
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        down = Down.read(message.content)
        if down is None:
            raise InputFailure(
                f"this node answers only in secure aggregation, not to {message.metadata.message_type!r}: wrap the "
                "ServerApp's strategy in sordino.flower.SecureAggregation"
            )
        home = _opened(home_of(context))
        if down.nonce:
            opened, proof = prove(home, down.nonce)
            up = Up(opened=opened, proof=proof)
        else:
            up = _answered(home, down, message, context, call_next)
    except (ValueError, OSError) as error:  # InputFailure, SpentState and InvalidStudy among them
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"sordino: {error}"), reply_to=message)
    return Message(RecordDict({RECORD: up.to_record()}), reply_to=message)


def home_of(context: Context) -> Path:
    """The folder of this node's participant. Raises InputFailure: none is named, or there is no such partition."""
    own = context.node_config.get(HOME_KEY)
    if own:
        return Path(str(own)).expanduser()
    study, partition = context.run_config.get(STUDY_KEY), context.node_config.get("partition-id")
    if not study or partition is None:
        raise InputFailure(
            f"the node has no participant: name its home, as flower-supernode --node-config '{HOME_KEY}=\"FOLDER\"', "
            f'or for a simulation the study, {STUDY_KEY} = "FOLDER" under [tool.flwr.app.config]'
        )
    hosts = Path(str(study)).expanduser() / "hosts"
    found = sorted(one for one in hosts.iterdir() if one.is_dir())
    number = int(partition)
    if number >= len(found):
        raise InputFailure(f"{hosts} has {len(found)} homes, and this is partition {number}: make one for each node")
    return found[number]


@cache
def _opened(folder: Path) -> Home:
    return Home.open(folder)


def _answered(home: Home, down: Down, message: Message, context: Context, call_next: Any) -> Up:
    given = dict(message.content.array_records)
    like = next(iter(given.values())) if len(given) == 1 else None
    kept = Kept.read(context.state) or Kept()
    context.state.pop(RECORD, None)
    visit = Visit(
        message=down.message,
        study_sha256=down.study_sha256,
        roster_sha256=down.roster_sha256,
        documents=down.documents,
        history=down.history,
        model=None if like is None else to_vector(like),
        clips=tuple(down.clips),
    )

    def train(model: Vector) -> Vector:
        assert like is not None  # noqa: S101  # else there is no model to begin from
        content = RecordDict({name: one for name, one in message.content.items() if name != RECORD})
        content[next(iter(given))] = to_arrays(model, like)
        message.content = content
        done = call_next(message, context)
        if done.has_error():
            raise ValueError("the app answered with an error")
        made = list(done.content.array_records.values())
        if len(made) != 1 or not same_form(made[0], like):
            log.error("the app returned other arrays than it was given, so zeros are sent: it must keep their shapes")
            raise ValueError("other arrays")
        return to_vector(made[0])

    found = answer(home, visit, kept.start, kept.sealed, train)
    if found.sealed:
        context.state[RECORD] = Kept(start=found.start, sealed=found.sealed).to_record()
    return Up(messages=list(found.messages), upload=found.upload)
