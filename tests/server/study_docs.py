"""Rewrite the table of docs/study_file.md: ``python -m tests.server.study_docs``."""

from __future__ import annotations

from pathlib import Path

from runtime.settings_keys import settings_keys, toml_value
from server.study_file import StudyConfiguration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "study_file.md"


def table() -> str:
    """A row for each key of study.toml."""
    lines = ["| key | default | range | meaning |", "|---|---|---|---|"]
    for one in settings_keys(StudyConfiguration).values():
        default = one.about.shown or ("" if one.default in (None, {}) else f"`{toml_value(one.default)}`")
        allowed = ", ".join(f"`{name}`" for name in one.choices) or one.range
        unit = f" ({one.about.unit})" if one.about.unit else ""
        lines.append(f"| `{one.dotted}` | {default} | {allowed} | {one.about.help}{unit} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page as it must be."""
    begin, end = "<!-- begin -->\n", "<!-- end -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    return before + begin + table() + end + rest.partition(end)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
