"""``HOST:PORT``, as settings files, cards and commands name it."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port``. Raises ValueError: no host, no port, or a port outside 0..65535."""
    host, separator, port_text = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not separator or not bare or (":" in bare and bare == host):
        raise ValueError("must read HOST:PORT, such as localhost:8443 or [::1]:8443")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError("must end in a port between 0 and 65535, such as localhost:8443")
    return bare, int(port_text)


def split_addresses(addresses: str) -> tuple[str, ...]:
    """Each ``HOST:PORT`` of a list with commas. Raises ValueError: as `split_address`, or a port is 0."""
    found = tuple(one.strip() for one in addresses.split(","))
    if any(split_address(one)[1] == 0 for one in found):
        raise ValueError("must be HOST:PORT and name the port that the coordinator listens on, such as localhost:8443")
    return found


def ports_from(address: str, count: int) -> tuple[str, ...]:
    """``HOST:PORT`` and the ports after it, ``count`` in all; port 0 stays. Raises ValueError: there aren't so many."""
    host, port = split_address(address)
    if port and port + count > 65_536:
        raise ValueError(f"must leave room for {count} ports")
    return tuple(join_address(host, port + number if port else 0) for number in range(max(1, count)))


def join_address(host: str, port: int | str) -> str:
    """``host:port``, or ``[ipv6]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
