"""Why a coordinator can't be reached, in plain words, and what is logged of it; gRPC's words for an unknown cause."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from client.connection import HANDSHAKE_S, open_channel
from client.credentials import ClientCertificate
from runtime.address import split_address
from runtime.failure import NetworkFailure
from runtime.text import duration, peer_text

log = structlog.get_logger()

REACH_S: Final = 8.0  # for `sordino doctor`
REMIND_S: Final = 60.0  # after this absence a line repeats it, and again after 60 times as long


@dataclass(frozen=True, order=True)
class Trouble:
    """Why one attempt to connect failed.

    Attributes:
        tells: how specific it is. If a name has several addresses, gRPC reports only the last that failed: one may show
            a wrong certificate while nothing listens at the others.
        words: a clause without a full stop, and what to change.
    """

    tells: int
    words: str


ANSWERED: Final = 3
"""From this `Trouble.tells` on something answered that can't be this study's coordinator."""

_KNOWN: Final[tuple[tuple[int, tuple[str, ...], str], ...]] = (
    (
        4,
        ("is not in peer certificate", "Hostname Verification"),
        "its certificate isn't for this name: use the name or address that the study's owner gave you",
    ),
    (
        4,
        ("CERTIFICATE_VERIFY_FAILED", "self signed", "self-signed", "unknown authority"),
        "its certificate isn't signed by this study's authority: another study is served there, or {ca} isn't this "
        "study's",
    ),
    (3, ("WRONG_VERSION_NUMBER", "Trying to connect an http1.x server"), "what answers there isn't a coordinator"),
    (
        2,
        ("Socket closed", "Connection reset", "CERTIFICATE_REQUIRED", "alert", "Tls handshake failed"),
        "it closed the connection: it may not know this host's certificate ({certificate}), be starting, or be no port "
        "for sessions",
    ),
    (1, ("Domain name not found", "lookup error", "DNS resolution failed"), "there is no machine of this name"),
    (1, ("Connection refused",), "nothing listens there; the coordinator may not be started yet"),
    (1, ("No route to host", "Network is unreachable", "network unreachable"), "there is no way to that machine"),
    (1, ("timed out", "Timeout", "DEADLINE_EXCEEDED"), "it doesn't answer"),
)
_PROXY_REFUSED: Final = re.compile(r"HTTP proxy returned response code ([0-9]{3})")


async def is_connected(channel: grpc.aio.Channel, within_s: float = HANDSHAKE_S) -> bool:
    """Whether gRPC has a connection, once it has made one or failed to. Raises TimeoutError: neither, for so long.

    gRPC reports its own words and those of the other side in the same field. A call on a connection may end with
    either; a call for which no connection could be made ends with gRPC's.
    """
    async with asyncio.timeout(within_s):
        while True:
            state = channel.get_state(try_to_connect=True)
            if state not in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                return state is grpc.ChannelConnectivity.READY
            await channel.wait_for_state_change(state)


def trouble_told(details: str) -> Trouble:
    """On a connection: the words may be the coordinator's, so they are quoted and nothing is concluded from them."""
    return Trouble(0, f'it ended the session ("{peer_text(details)}")')


def trouble_of(details: str, *, ca: str, certificate: str, proxy: WebProxy | None = None) -> Trouble:
    """The meaning of gRPC's words in a `grpc.aio.AioRpcError` for which no connection could be made.

    ``ca`` and ``certificate`` name this host's files, ``proxy`` is the one that the connection uses.
    """
    refused = _PROXY_REFUSED.search(details)
    if proxy is not None and refused is not None:
        return _refused_by(proxy, int(refused[1]))
    for tells, parts, words in _KNOWN:
        if any(part in details for part in parts):
            known = Trouble(tells, words.format(ca=ca, certificate=certificate))
            return known if proxy is None else _over(proxy, known)
    return Trouble(0, peer_text(details))


def trouble_of_silence(proxy: WebProxy | None = None) -> Trouble:
    """No answer within the time of a handshake."""
    silent = Trouble(1, "it doesn't answer")
    return silent if proxy is None else _over(proxy, silent)


def _over(proxy: WebProxy, known: Trouble) -> Trouble:
    """The same over a proxy: this machine looked up, and connected to, only the proxy."""
    if known.tells > 1:  # the answer may be the proxy's
        return Trouble(
            known.tells, f"{known.words}; or {proxy}, named by the variable {proxy.variable}, must pass TLS on unread"
        )
    return Trouble(
        2,
        f"{proxy}, which the variable {proxy.variable} names, can't be reached: correct it, or name the coordinator's "
        f"host in {proxy.exceptions}",
    )


def _refused_by(proxy: WebProxy, code: int) -> Trouble:
    if code == 407:
        says = "asks for a name and a password, which belong in its URL"
    elif code >= 500:
        says = "can't reach the coordinator: check the address, and that the coordinator runs"
    else:
        says = (
            "doesn't let this host connect: ask for permission (CONNECT, with this port), or name the coordinator's "
            f"host in {proxy.exceptions}"
        )
    return Trouble(2, f"{proxy}, which the variable {proxy.variable} names, answers with HTTP {code}; it {says}")


# In gRPC's order, and in lower case only: the first that is set counts; an empty one means no proxy.
PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTION_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")
_USUAL_PORT: Final = 443
# Only a name or address and a port: the rest of a URL may be a password.
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?\s*")


@dataclass(frozen=True)
class WebProxy:
    """The proxy that a connection uses.

    Attributes:
        variable: the variable that names it.
        exceptions: the variable with the hosts that are connected to directly.
        place: HOST:PORT; empty where the URL might show a password.
    """

    variable: str
    exceptions: str
    place: str

    def __str__(self) -> str:
        return f"the web proxy {self.place}".rstrip()


def web_proxy_of(address: str, environment: Mapping[str, str]) -> WebProxy | None:
    """The proxy through which gRPC connects to ``HOST:PORT``; None where it connects directly.

    Source: gRPC's "Default HTTP Proxy Mapper User Guide", and grpcio 1.85 by trial.
    """
    variable = next((name for name in PROXY_VARIABLES if name in environment), None)
    if variable is None:
        return None
    scheme, separator, rest = environment[variable].partition("://")
    authority, *beyond = re.split(r"[/?#]", rest, maxsplit=1)
    if not separator or scheme.lower() != "http" or not authority:
        return None  # gRPC can't use it, and connects directly
    exceptions = next((name for name in EXCEPTION_VARIABLES if name in environment), EXCEPTION_VARIABLES[-1])
    if _is_excepted(address, environment.get(exceptions, "")):
        return None
    plain = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    # An unescaped "/" or "#" in a password ends the authority early, and then this isn't the proxy's name.
    if plain is None or any("@" in part for part in beyond):
        return WebProxy(variable, exceptions, "")
    return WebProxy(variable, exceptions, f"{plain[1]}:{plain[2] or _USUAL_PORT}")


def _is_excepted(address: str, hosts: str) -> bool:
    """Whether a comma-separated list names the host, its domain, or a network that holds its address."""
    try:
        host, _ = split_address(address.partition(",")[0])
    except ValueError:
        return False
    return any(_covers(entry.strip().lower(), host.lower()) for entry in hosts.split(","))


def _covers(entry: str, host: str) -> bool:
    domain = entry.removeprefix(".")
    if domain and (host == domain or host.endswith(f".{domain}")):
        return True
    try:
        return "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


# ------------------------------------------------------------ what people hear of it


class Absence:
    """The coordinator's absence, said once for all participants of a process.

    ``ended`` is set while the coordinator answers one of them.
    """

    def __init__(self, address: str, give_up_s: float) -> None:
        self._address = address
        self._longest = f"for {give_up_s:g} s" if give_up_s else "until it is stopped"
        self.ended = asyncio.Event()
        self._since: float | None = None
        self._likeliest, self._remind_s = -1, REMIND_S

    def note(self, trouble: Trouble) -> None:
        """A participant could not reach it; logged the first time, when more is known, and rarely after that."""
        self.ended.clear()
        now, state = time.monotonic(), "coordinator away"
        if trouble.tells >= ANSWERED:
            state = "no coordinator of this study there"
        told = {"address": self._address, "reason": trouble.words}
        if self._since is None or trouble.tells > max(self._likeliest, 1):
            self._since = self._since or now
            self._likeliest = trouble.tells
            log.info(f"{state}, trying again {self._longest}", **told)
        elif now - self._since >= self._remind_s:
            # A warning: a program of somebody else, such as a notebook, shows no other line of this.
            log.warning(f"{state} for {duration(now - self._since)}, trying again {self._longest}", **told)
            self._remind_s *= 60

    def over(self) -> None:
        """It answers a participant."""
        if self._since is not None:
            log.info("the coordinator is back", away=duration(time.monotonic() - self._since))
        self._since, self._likeliest, self._remind_s = None, -1, REMIND_S
        self.ended.set()


def reached(address: str, ca: Path, certificate: ClientCertificate | None = None) -> str:
    """Raises NetworkFailure: no TLS connection to the coordinator can be made, with the reason."""
    return asyncio.run(_reach(address, ca, certificate))


async def _reach(address: str, ca: Path, certificate: ClientCertificate | None) -> str:
    proxy = web_proxy_of(address, os.environ)
    async with open_channel(address, ca.read_bytes(), certificate) as channel:
        try:
            call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")  # any answer to it shows that it is there
            await call(b"", timeout=REACH_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise NetworkFailure(f"{address}: {trouble_of_silence(proxy).words}.") from None
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                own = "none" if certificate is None else str(certificate.path)
                words = trouble_of(error.details() or "", ca=str(ca), certificate=own, proxy=proxy).words
                raise NetworkFailure(f"{address}: {words}.") from None
    return f"{address} answers, with a certificate of {ca.name}"
