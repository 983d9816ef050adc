"""How figures of errors, audits and experiments look. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

INK, MUTED, GRID = "#22303c", "#66737f", "#e3e8ec"
BLUE, RED, OCHRE = "#3b7a9e", "#b3452c", "#b98a2c"
_STYLE: Final = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlecolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "sordino",  # the same figures give the same file
}


@contextmanager
def styled() -> Iterator[None]:
    """Colours and fonts, for whatever is made and saved inside."""
    import matplotlib as mpl

    style: Any = _STYLE
    with mpl.rc_context(style):
        yield


def bare(axes: Any, *sides: str) -> None:
    """Take the frame away at some sides, and put the grid behind the curves."""
    axes.set_axisbelow(True)
    for side in sides:
        axes.spines[side].set_visible(False)


def save(figure: Any, file: Path, note: str = "") -> None:
    """Write the figure, with a note below, as SVG or PNG by the file's ending; no SVG holds the date."""
    figure.text(0.012, -0.012, note, fontsize=8, color=MUTED, va="top", wrap=True)
    metadata: Any = {"Date": None} if file.suffix.lower() == ".svg" else {}
    figure.savefig(file, dpi=130, bbox_inches="tight", metadata=metadata, facecolor="white")
