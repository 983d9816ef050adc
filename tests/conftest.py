"""Where tests write, which of them share a worker (`make test` starts three), and how coroutine functions run.

Tests write to memory where there is room: what they make durable is flushed a hundred times a second, and a disk that
serves all of them would be most of what they wait for. PYTEST_DEBUG_TEMPROOT=/tmp has them write there.

Tests are handed out one by one, but for these groups, whose tests follow one another in one worker:
- those marked slow, which start real processes by the dozen: two at once would wait for one another;
- those that share a fixture of their module, which would otherwise be made in every worker.

A test that says something else with `pytest.mark.xdist_group` is left alone: those of the group "commands" start one
process at a time, and may run beside the others.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytest_plugins = ["tests.support.fixtures"]

PROCESSES = "processes"
MEMORY: Final = Path("/dev/shm")
THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ROOM: Final = 2 << 30  # bytes; the largest run takes a tenth of it, and folders of tests that pass are removed


for _name in THREADS:  # before numpy is loaded: threads of several workers and of what they start only wait for others
    os.environ.setdefault(_name, "1")
gc.disable()  # until everything is loaded and collected


def pytest_configure() -> None:
    """Before the first folder is made; the workers' folders lie in that of the process that starts them.

    No test depends on which data sets this machine's user has prepared.
    """
    os.environ["SORDINO_DATA_FOLDER"] = "/nothing/is/prepared"
    if _has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _has_room() -> bool:
    try:
        about = os.statvfs(MEMORY)
    except OSError:
        return False
    takes_programs = not about.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return takes_programs and os.access(MEMORY, os.W_OK) and about.f_bavail * about.f_frsize >= _ROOM


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = _group(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """What is loaded and collected stays: the garbage collector needn't look through it again and again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_teardown() -> None:
    """Logs that a test has set up, as a command does for its process, are not those of the next one."""
    if (structlog := sys.modules.get("structlog")) is not None and structlog.is_configured():
        structlog.reset_defaults()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function; ``timeout`` in pyproject.toml ends one that hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def _group(item: Any) -> str | None:
    if item.get_closest_marker("slow") is not None:
        return PROCESSES
    definitions = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    if any(one.scope in ("module", "class") for found in definitions for one in found):
        return str(item.path.relative_to(item.config.rootpath).as_posix())
    return None
