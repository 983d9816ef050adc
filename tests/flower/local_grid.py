"""A Flower grid in this process: each node is a ClientApp with a context of its own, made anew for each message."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Make = Callable[[], ClientApp]


class LocalGrid(Grid):
    """``nodes``: node -> its configuration. ``send``: may be replaced, to lose or change messages."""

    def __init__(self, make: Make, nodes: dict[int, dict[str, Any]], run_config: dict[str, Any] | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self._make, self._threads = make, ThreadPoolExecutor(4)
        self.contexts = {
            node: Context(
                run_id=1, node_id=node, node_config=dict(one), state=RecordDict(), run_config=run_config or {}
            )
            for node, one in nodes.items()
        }
        self._run: Any = None
        self._answers: dict[str, Future[Message]] = {}
        self._names = (str(number) for number in itertools.count(1))

    def visit(self, node: int, message: Message) -> Message:
        """One ClientApp's life. Its state is kept as a framework would: by value."""
        context = copy.deepcopy(self.contexts[node])
        try:
            answer = self._make()(message, context)
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
        self.contexts[node] = context
        return answer

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = next(self._names)
            message.metadata.__dict__["_message_id"] = name
            self._answers[name] = self._threads.submit(self.visit, message.metadata.dst_node_id, message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        done = [one for one in message_ids if one in self._answers and self._answers[one].done()]
        return [self._answers.pop(one).result() for one in done]

    def settle(self) -> None:
        """Wait until no node is at work any more: a round doesn't wait for the slow ones."""
        wait(self._answers.values())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        names = self.push_messages(messages)
        return [self._answers.pop(one).result(timeout) for one in names]

    def get_node_ids(self) -> list[int]:
        return sorted(self.contexts)

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, *_: Any, **more: Any) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, **more)
