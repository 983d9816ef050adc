"""Which tests share a worker when several run side by side (`make test` starts three).

Tests are handed out one by one, but for these groups, whose tests follow one another in one worker:
- those marked slow, which start real processes by the dozen: two at once would wait for one another;
- those that share a fixture of their module, which would otherwise be made in every worker.

A test that says something else with `pytest.mark.xdist_group` is left alone: those of the group "commands" start one
process at a time, and may run beside the others.
"""

from __future__ import annotations

from typing import Any

import pytest

PROCESSES = "processes"


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = _group(item)
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: Any) -> str | None:
    if item.get_closest_marker("slow") is not None:
        return PROCESSES
    definitions = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    if any(one.scope in ("module", "class") for found in definitions for one in found):
        return str(item.path.relative_to(item.config.rootpath).as_posix())
    return None
