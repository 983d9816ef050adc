"""Ray, as everything here starts it: bound by a token, without reports to its makers, quiet."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import tempfile
from functools import cache
from typing import Any, Final

from runtime.failure import InputFailure

# One of these means a cluster with its own rules.
_ADDRESSED: Final = frozenset({"RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"})


class RayUnavailable(InputFailure):
    """Ray isn't installed, or doesn't start."""


def cluster_address(address: str = "") -> str:
    """HOST:PORT of the cluster that `start_ray` joins; empty: it starts one."""
    return address or os.environ.get("RAY_ADDRESS", "")


@cache
def _private_folder() -> str:
    """Holds Ray's own folder until this process ends: Ray makes that one writable for every user of the machine."""
    # Where Ray would put it: names of sockets may not be longer.
    folder = tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # before Ray registers its own end, which so comes first
    return folder


def start_ray(cpus: int, address: str = "") -> tuple[Any, bool]:
    """Ray's module, connected; and whether it was connected here, and is to be shut down again.

    Args:
        cpus: of a cluster that is started here: as many tasks and actors of one CPU run at once.
        address: of a cluster that runs; empty: what RAY_ADDRESS names, else one of this machine alone, started here.

    Raises RayUnavailable: it isn't installed, or doesn't start.
    """
    # Read when Ray is first imported, and only by default: usage isn't reported; and a cluster started here takes
    # orders only with its token, which is in no file.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if cluster_address(address):
        # A process that drives a cluster ends, by default, when the head has been away for a minute.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "3600")
    if "ray" not in sys.modules and not address and not any(map(os.environ.get, _ADDRESSED)):
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    there = cluster_address(address)
    where: dict[str, Any] = {"address": there} if there else {"num_cpus": cpus, "_temp_dir": f"{_private_folder()}/r"}
    try:
        import ray
    except ModuleNotFoundError as missing:
        raise RayUnavailable(
            "the engine \"ray\" needs Ray, which isn't installed: pip install '.[ray]' in the checkout, or use the "
            "engine without it"
        ) from missing
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, **where)
    except (RuntimeError, ValueError, ConnectionError, OSError) as error:
        raise RayUnavailable(f"Ray doesn't start: {error}") from error
    return ray, True
