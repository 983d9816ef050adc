"""Bounds on calls that are open at the same time, before any of their content is trusted.

gRPC counts a call against `maximum_concurrent_rpcs` from its headers on, and hands a unary call to its handler once
its message is there: a caller that sends headers and no message would hold a place without limit. So every unary method
is served as a stream of one message, which is the same on the wire: the handler begins at once, knows the caller, and
waits for the message for a few seconds only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError

log = structlog.get_logger()

FIRST_MESSAGE_S: Final = 20.0  # longest wait for the one message of a unary call; thousands at once are read that late
MOST_PEERS: Final = 10_000  # with a remembered rate
WRITE_S: Final = 60.0  # longest wait until the caller takes one message of a streamed answer


@dataclass(frozen=True)
class Caller:
    """The name that a call is counted under, and the most calls at the same time."""

    name: Hashable
    most: int


class CallRefused(Exception):
    """A call that isn't begun or answered: the status and one sentence, which is safe to send."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


Admit = Callable[[Any, str], Caller]
"""From a call's context and method to its caller; raises `CallRefused`."""


class OpenCalls(grpc.aio.ServerInterceptor):
    """Stands before all methods of a server."""

    def __init__(self, admit: Admit, on_refused: Callable[[], None] = lambda: None) -> None:
        """Args: on_refused: called for every call that wasn't begun."""
        self._admit, self._on_refused = admit, on_refused
        self._open: Counter[Hashable] = Counter()
        self._guarded: dict[str, Any] = {}

    @property
    def total(self) -> int:
        """Calls that are open now, of all callers."""  # no __len__: gRPC skips an interceptor that is false
        return self._open.total()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:  # no such method: gRPC says so itself
            return None
        if details.method not in self._guarded:
            self._guarded[details.method] = self._guard(handler, details.method)
        return self._guarded[details.method]

    async def _begin(self, context: Any, method: str) -> None:
        try:
            caller = self._admit(context, method)
            if self._open[caller.name] >= caller.most:
                raise CallRefused(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls of yours are open: end some first"
                )
        except CallRefused as error:
            log.debug("call refused", peer=context.peer(), method=method, reason=str(error))
            self._on_refused()
            await context.abort(error.status, str(error))
        self._open[caller.name] += 1

        def ended(_: Any) -> None:
            self._open[caller.name] -= 1
            if not self._open[caller.name]:
                del self._open[caller.name]

        context.add_done_callback(ended)

    async def _only_message(self, requests: AsyncIterator[bytes], context: Any, read: Callable[[bytes], Any]) -> Any:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                raw = await anext(aiter(requests))
            return read(raw)
        except TimeoutError:
            self._on_refused()
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's message didn't come in time")
        except (StopAsyncIteration, DecodeError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a message of this protocol")

    async def _answer(self, context: Any, answers: AsyncIterator[Any]) -> None:
        async with contextlib.aclosing(answers):  # type: ignore[type-var]  # a generator
            async for answer in answers:
                try:
                    async with asyncio.timeout(WRITE_S):
                        await context.write(answer)
                except TimeoutError:
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the answer wasn't taken in time")

    def _guard(self, handler: Any, method: str) -> Any:
        behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        read = handler.request_deserializer or bytes
        yields = inspect.isasyncgenfunction(behaviour)

        async def request_of(requests: Any, context: Any) -> Any:
            await self._begin(context, method)
            return requests if handler.request_streaming else await self._only_message(requests, context, read)

        async def single(requests: Any, context: Any) -> Any:
            return await behaviour(await request_of(requests, context), context)

        async def streamed(requests: Any, context: Any) -> None:
            request = await request_of(requests, context)
            if yields:
                await self._answer(context, behaviour(request, context))
            else:
                await behaviour(request, context)

        as_before = handler.request_deserializer if handler.request_streaming else None
        make, call = (
            (grpc.stream_stream_rpc_method_handler, streamed)
            if handler.response_streaming
            else (grpc.stream_unary_rpc_method_handler, single)
        )
        return make(call, request_deserializer=as_before, response_serializer=handler.response_serializer)


def address_of(peer: str) -> str:
    """The address that a rate is counted for, of a gRPC peer such as ``ipv4:192.0.2.7:50312``.

    An IPv6 network of /64 counts as one: the holder of one address has all of them.
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    if kind not in ("ipv4", "ipv6"):
        return peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class PeerRates:
    """A bucket of tokens for each address; the memory for them is bounded."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            per_s: calls a second, in the long run.
            burst: calls at once, after a pause.
        """
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> tokens, at that time

    def __len__(self) -> int:
        return len(self._buckets)

    def allow(self, address: str) -> bool:
        """Whether one more call of this address is within its rate; counts it if so."""
        now = self._clock()
        tokens, since = self._buckets.pop(address, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        allowed = tokens >= 1
        self._buckets[address] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MOST_PEERS:  # the one that has been silent for longest has the fullest bucket
            self._buckets.popitem(last=False)
        return allowed
