"""Rewrite the table of docs/study_file.md: ``python -m tests.server.study_docs``."""

from __future__ import annotations

from pathlib import Path

from runtime.settings_keys import settings_markdown
from server.study_file import StudyConfiguration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "study_file.md"


def page() -> str:
    """The page as it must be."""
    begin, end = "<!-- begin -->\n", "<!-- end -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    return before + begin + settings_markdown(StudyConfiguration) + end + rest.partition(end)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
