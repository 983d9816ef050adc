"""The site: `make docs` builds it from the pages as they are, and its reference from the docstrings of `sordino`.

Sphinx's source folder is the checkout, so links between pages, README.md and examples/ hold as they stand. A link to
any other file leads to the repository.
"""

from __future__ import annotations

import re
import tomllib
from inspect import isclass, isroutine
from pathlib import Path
from typing import Any

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer

import sordino

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

project = "Sordino"
version = release = sordino.__version__
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**.md", "examples/**.md"]
exclude_patterns = [".*", "build", "dist", "tests", "examples/*/run-*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"  # `X` in docstrings
highlight_language = "none"
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": "model_config"}
autodoc_preserve_defaults = True
autodoc_mock_imports = ["torch"]  # most of the environment would be torch
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!sordino\.[A-Za-z_]+$).*")]  # what is no public name of ours

html_theme = "furo"
html_title = f"Sordino {release}"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "top_of_page_buttons": ["view"]}

LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
ROW = re.compile(r"^(\| \[)[^]]*(\]\(([^)#:]+)\.md\))", re.MULTILINE)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """A page as the site needs it: its links, and what follows from other files."""

    def target(link: re.Match[str]) -> str:
        path = (ROOT / page).parent.joinpath(link[1]).resolve()
        if not path.exists() or path.suffix == ".svg" or app.env.path2doc(str(path)) in app.env.found_docs:
            return link[1]
        return f"{REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}"

    def with_contents(section: re.Match[str]) -> str:
        """A section of an index: its table names pages by their titles, and they are entries of the site's contents."""
        pages = "\n".join(row[3] for row in ROW.finditer(section[0]))
        contents = f"```{{toctree}}\n:hidden:\n:caption: {section[1]}\n\n{pages}\n```\n\n"
        return ROW.sub(r"\1\2", section[0]) + contents * bool(pages)

    source[0] = LINK.sub(target, source[0])
    if page == "docs/reference":
        source[0] += "\n".join(["```{eval-rst}", *map(directive, sorted(sordino._PUBLIC, key=str.lower)), "```"])
    elif page != "README" and page.endswith("README"):
        source[0] = re.sub(r"^#+ ([^:\n]*)(?:(?!^#).)*", with_contents, source[0], flags=re.DOTALL | re.MULTILINE)


def directive(name: str) -> str:
    with mock(autodoc_mock_imports):
        public = getattr(sordino, name)
    if isclass(public) or isroutine(public):
        return f".. auto{'class' if isclass(public) else 'function'}:: sordino.{name}"
    lines = ModuleAnalyzer.for_module(sordino._PUBLIC[name]).find_attr_docs()["", name]
    return "\n   ".join([f".. data:: sordino.{name}", "", *lines])


def signature(_app: Sphinx, _what: str, _name: str, public: Any, *_rest: Any) -> tuple[str, str] | None:
    """Tables of settings: docs/study_file.md has their keys."""
    return ("(**tables)", "") if isclass(public) and issubclass(public, BaseModel) else None


def by_public_name(app: Sphinx, env: Any, node: Any, shown: nodes.Element) -> nodes.Node | None:
    """A type that an annotation names by its room is documented under its public name, if it has one."""
    room, _, name = node.get("reftarget", "").rpartition(".")
    if node.get("refdomain") != "py" or sordino._PUBLIC.get(name) != room:
        return None
    python = env.get_domain("py")
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", f"sordino.{name}", node, shown)


def index(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        to_front = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={root_doc}.html"><title>Sordino</title>'
        (Path(app.outdir) / "index.html").write_text(to_front, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", by_public_name)
    app.connect("build-finished", index)
