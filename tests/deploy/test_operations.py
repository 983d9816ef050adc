"""What docs/operations.md says that can go stale."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.failure import ExitCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()


def test_every_exit_code_has_its_remedy() -> None:
    table = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
    assert table == [(str(int(code)), code.short, code.remedy) for code in ExitCode]


def test_the_variables_of_the_compose_file_are_told_with_their_defaults() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    for name, default in re.findall(r"\$\{(SORDINO_\w+):-([^}]*)\}", compose):
        line = next((line for line in PAGE.splitlines() if line.startswith("| `SORDINO") and f"`{name}`" in line), "")
        assert line, f"{name} is in docker-compose.yml, and not on the page"
        assert default in line, f"{name} is {default} by default"


def test_codes_that_are_left_at_that_are_told() -> None:
    script = (ROOT / "deploy" / "supervised.sh").read_text()
    [codes] = re.findall(r"^\s+([\d |]+)\)$", script, re.M)
    [told] = re.findall(r"never after ([\d, and]+)", PAGE)
    assert set(re.findall(r"\d+", codes)) == set(re.findall(r"\d+", told)) - {"130"}
