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


def join_address(host: str, port: int | str) -> str:
    """``host:port``, or ``[ipv6]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
