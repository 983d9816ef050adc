"""Third-party packages that only some verbs need, and the extras of this package that bring them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

EXTRAS: Final = {
    "grpc_health": "server",
    "grpc_reflection": "server",
    "matplotlib": "server",
    "dp_accounting": "server",
    "torch": "torch",
    "ray": "ray",
}


def check_extra(extra: str) -> None:
    """Whether all of an extra is installed, without loading any of it.

    Raises:
        ModuleNotFoundError: a package is missing; its ``name`` says which.
    """
    for package, of in EXTRAS.items():
        if of == extra and find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
