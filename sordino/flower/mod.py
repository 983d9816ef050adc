"""The node's side: a mod for an existing ClientApp.

The app trains as before, and what it returns never leaves the node as it is: the change of the model is clipped, noised
and masked first. Everything else that a ServerApp asks, evaluation included, is refused, since no noise protects it.
Why a node refuses is said in its own log alone: a policy, or what other studies have spent, is nobody else's business.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from client.host_file import HOST_FILE
from client.visits import Home, Visit, answer, prove, sign_answer
from learning.parameters import flatten
from learning.tasks.external import bound
from learning.tasks.flower_arrays import arrays_of, check_arrays
from runtime.failure import InputFailure
from sordino.flower.messages import (
    MESSAGE_TYPE,
    RECORD,
    Down,
    Kept,
    Up,
    Vector,
    digest_beside,
    forms,
    set_round,
    to_record,
)
from wire import coordinator_pb2 as pb

HOME_KEY: Final = "sordino-home"
STUDY_KEY: Final = "sordino-study"
NO_ANSWER: Final = "sordino: no answer; the node's log says why"

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
        if down is None or message.metadata.message_type != MESSAGE_TYPE:
            raise InputFailure(
                f"this node answers only in secure aggregation, not to {message.metadata.message_type!r}: wrap the "
                "ServerApp's strategy in sordino.flower.SecureAggregation"
            )
        folder = home_of(context)
        home = _opened(folder, (folder / HOST_FILE).stat().st_mtime_ns)
        if down.nonce:
            opened, proof = prove(home, down.nonce)
            up = Up(opened=opened, proof=proof)
        else:
            up = _answered(home, down, message, context, call_next)
            up.signature = sign_answer(home, down.message, up.parts())
    except Exception as error:  # whatever it is: its text stays here
        log.error("no answer", reason=f"{type(error).__name__}: {error}")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, NO_ANSWER), reply_to=message)
    return Message(RecordDict({RECORD: up.to_record()}), reply_to=message)


def home_of(context: Context) -> Path:
    """The folder of this node's participant. Raises InputFailure: none is named, or there is no such partition."""
    own = context.node_config.get(HOME_KEY)
    if own:
        return Path(str(own)).expanduser()
    study, partition = context.run_config.get(STUDY_KEY), context.node_config.get("partition-id")
    # Who starts a run writes its configuration: only in a simulation is that the owner of the homes.
    if not study or partition is None or not _simulated():
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


def _simulated() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@lru_cache(maxsize=64)
def _opened(folder: Path, changed: int) -> Home:
    """``changed``: when host.toml was, so that a policy counts from the next message on."""
    return Home.open(folder)


def _answered(home: Home, down: Down, message: Message, context: Context, call_next: Any) -> Up:
    kept, model = Kept.read(context.state) or Kept(), None
    content = RecordDict({name: one for name, one in message.content.items() if name != RECORD})
    if content:
        key, arrays = arrays_of(content)
        check_arrays(arrays)
        model = np.concatenate([flatten(arrays), bound(digest_beside(content))])
        set_round(content, pb.CoordinatorMessage.FromString(down.message).neighbour_shares.round)
    visit = Visit(
        message=down.message,
        study_sha256=down.study_sha256,
        roster_sha256=down.roster_sha256,
        documents=down.documents,
        history=down.history,
        model=model,
        clips=tuple(down.clips),
    )
    # A training that outlasts its time goes on by itself, and must not touch what the framework reads meanwhile.
    asked, inner, finished = copy.copy(message), copy.deepcopy(context), []
    asked.__dict__.update(message.__dict__)

    def train(begun: Vector) -> Vector:
        content[key] = to_record(begun, arrays)
        asked.content = content
        done = call_next(asked, inner)
        if done.has_error():
            raise ValueError("the app answered with an error")
        _, made = arrays_of(done.content)
        if forms(made) != forms(arrays):
            log.error("the app returned other arrays than it was given, so zeros are sent: it must keep their shapes")
            raise ValueError("other arrays")
        finished.append(True)
        return flatten(made)

    found = answer(home, visit, kept.start, kept.sealed, train)
    if finished:
        context.state = inner.state
    context.state.pop(RECORD, None)
    if found.sealed:
        context.state[RECORD] = Kept(start=found.start, sealed=found.sealed).to_record()
    return Up(messages=list(found.messages), upload=found.upload)
