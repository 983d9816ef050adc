"""What is installed: packages that only some verbs need, with the extras that bring them, and our own packages."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from runtime.failure import InputFailure

EXTRAS: Final = {
    "grpc_health": "server",
    "grpc_reflection": "server",
    "jinja2": "server",
    "starlette": "server",
    "uvicorn": "server",
    "prometheus_client": "server",
    "matplotlib": "server",
    "dp_accounting": "server",
    "torch": "torch",
    "ray": "ray",
}
_ROOMS: Final = ("authority", "client", "learning", "mechanisms", "runtime", "secagg", "server", "wire")


def check_extra(extra: str) -> None:
    """Check that all packages of an extra are installed, without loading any of them.

    Raises ModuleNotFoundError: a package is missing; ``name`` is its name.
    """
    for package, of in EXTRAS.items():
        if of == extra and find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing(error: ModuleNotFoundError) -> InputFailure | None:
    """Return what to install for a package of an extra that can't be imported; None for any other package."""
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None:
        return None
    run = f"{sys.executable} -m pip install '.[{extra}]'"
    return InputFailure(f"{error.name} isn't installed. In the checkout of Sordino, run {run}")


def check_rooms() -> None:
    """Check that no file beside the user's script hides one of our packages.

    Our packages have plain names (``client``, ``server``, ...). Python looks beside the running script first, so a file
    ``client.py`` there is imported instead of ours.

    Raises ImportError: naming the file to rename.
    """
    home = Path(__file__).resolve().parent.parent
    for room in _ROOMS:
        try:
            found = find_spec(room)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ImportError(f"sordino's package {room!r} isn't installed. Install sordino again.")
        origin = Path(found.origin).resolve() if found.origin else None
        if origin is None or origin != home / room / "__init__.py":
            where = origin or Path(next(iter(found.submodule_search_locations or ["?"])))
            raise ImportError(
                f"{where} hides sordino's own package {room!r}. Rename it, or run the script from another folder."
            )
