"""Documents point at things that exist: links, files, names in files, make targets, papers, codes, settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.failure import ExitCode
from sordino import cli
from sordino.cli.verbs import respelled

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
]
ROOMS = ["secagg", "mechanisms", "wire", "learning", "server", "client", "sordino", "tests", "proto"]
# [BIK+17], [KLS21]: letters, perhaps a plus, two digits; and standards by their numbers.
TAG = re.compile(r"\[([A-Z][A-Za-z]*\+?\d{2}|RFC \d+|FIPS [\d-]+|SP 800-\w+)\]")


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of every document and every source file."""
    for path in DOCUMENTS:
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in {".py", ".proto"} and "_pb2" not in path.name:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (document.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_exist(document: Path) -> None:
    name = rf"`((?:{'|'.join(ROOMS)}|docs)/[\w./-]+\.\w+)`"
    named = re.findall(name, document.read_text(encoding="utf-8"))
    assert not sorted({name for name in named if not (ROOT / name).exists()})


def test_the_index_lists_every_page_once() -> None:
    """The site's contents are made from these tables; examples and decisions have indexes of their own."""
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), re.M)
    pages = [f"../{path.name}" for path in ROOT.glob("*.md")] + [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(rows) == sorted({*pages, "decisions/README.md", "../examples/README.md"} - {"README.md"})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_have_the_options_that_are_shown(document: Path) -> None:
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^ *(?:\$ )?sordino ((?!: |.*\[)[a-z].*)", text, re.MULTILINE):
        given = shlex.split(line, comments=True)
        command, _ = cli._command_of(given)
        if command is None:
            continue  # a group, or prose
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        words = respelled(given, cli._command_of)
        assert not {word.partition("=")[0] for word in words if word.startswith("--")} - known, line


def test_a_fuzzers_finding_is_replayed_where_it_was_made() -> None:
    """`make fuzz` builds an environment of its own and no other."""
    page = (ROOT / "docs" / "fuzzing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^(\S+)/bin/python -m tests\.fuzz", page, flags=re.MULTILINE)) == {".venv-fuzz"}


def test_the_paper_map_names_what_the_code_has() -> None:
    """Behind a file's name stand names that the file defines."""
    table = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    cells = re.findall(r"\|([^|\n]*`[\w/]+\.py` `[^|\n]*)\|", table)
    assert cells
    for cell in cells:
        source = ""
        for word in re.findall(r"`([^`]+)`", cell):
            if word.endswith(".py"):
                source = (ROOT / word).read_text(encoding="utf-8")
            else:
                assert re.search(rf"^\s*(?:class|def) {word}\b", source, re.MULTILINE), cell


def test_every_paper_that_is_cited_is_listed_once() -> None:
    table = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([^\]]+)\] \|", table, flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    for name, text in texts():
        unknown = set(TAG.findall(text)) - set(listed)
        assert not unknown, f"{name} cites {sorted(unknown)}, which docs/references.md does not list"


def test_the_readme_names_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for words in re.findall(r"^make ((?:[a-z-]+ ?)+)", readme, flags=re.MULTILINE):
        assert set(words.split()) <= set(phony.group(1).split())


# ---------------------------------------------------------------- what docs/operations.md says that can go stale

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_every_exit_code_has_its_remedy() -> None:
    table = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", OPERATIONS, re.M)
    assert table == [(str(int(code)), code.short, code.remedy) for code in ExitCode]


def test_the_variables_of_the_compose_file_are_told_with_their_defaults() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    for name, default in re.findall(r"\$\{(SORDINO_\w+):-([^}]*)\}", compose):
        line = next(
            (line for line in OPERATIONS.splitlines() if line.startswith("| `SORDINO") and f"`{name}`" in line), ""
        )
        assert line, f"{name} is in docker-compose.yml, and not on the page"
        assert default in line, f"{name} is {default} by default"


def test_codes_that_are_left_at_that_are_told() -> None:
    script = (ROOT / "deploy" / "supervised.sh").read_text()
    [codes] = re.findall(r"^\s+([\d |]+)\)$", script, re.M)
    [told] = re.findall(r"never after ([\d, and]+)", OPERATIONS)
    assert set(re.findall(r"\d+", codes)) == set(re.findall(r"\d+", told)) - {"130"}
