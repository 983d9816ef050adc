"""Whether gRPC connects to an address over a web proxy, by the variables of the environment that it obeys."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runtime.address import split_address

# In gRPC's order, and in small letters only: the first that is set counts, an empty one too, which means none.
PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTION_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")
_USUAL_PORT: Final = 443
# Nothing but a name or address and a port: what a URL has besides may be a user's password.
_AUTHORITY: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?\s*")


@dataclass(frozen=True)
class WebProxy:
    """The proxy that a connection takes.

    Attributes:
        variable: that names it.
        exceptions: the variable whose hosts are connected to without it.
        place: HOST:PORT; empty where the URL isn't plain enough to be sure that no password is shown.
    """

    variable: str
    exceptions: str
    place: str

    def __str__(self) -> str:
        return f"the web proxy {self.place}".rstrip()


def web_proxy_of(address: str, environment: Mapping[str, str]) -> WebProxy | None:
    """The proxy over which gRPC connects to ``HOST:PORT``; None where it connects directly.

    Source: gRPC's "Default HTTP Proxy Mapper User Guide", and grpcio 1.85 by trial.
    """
    variable = next((name for name in PROXY_VARIABLES if name in environment), None)
    if variable is None:
        return None
    scheme, separator, rest = environment[variable].partition("://")
    authority, *beyond = re.split(r"[/?#]", rest, maxsplit=1)
    if not separator or scheme.lower() != "http" or not authority:
        return None  # gRPC can't use it, and goes without
    exceptions = next((name for name in EXCEPTION_VARIABLES if name in environment), EXCEPTION_VARIABLES[-1])
    if _is_excepted(address, environment.get(exceptions, "")):
        return None
    plain = _AUTHORITY.fullmatch(authority.rpartition("@")[2])
    # An unescaped "/" or "#" in a password ends the authority early, and then this isn't the proxy's name.
    if plain is None or any("@" in part for part in beyond):
        return WebProxy(variable, exceptions, "")
    return WebProxy(variable, exceptions, f"{plain[1]}:{plain[2] or _USUAL_PORT}")


def _is_excepted(address: str, hosts: str) -> bool:
    """Whether a list with commas names the host, a domain that it is in, or a network that its address is in."""
    try:
        host, _ = split_address(address)
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
