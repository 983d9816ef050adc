"""The panel of a study as it stands on a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from server.study_view import StudyView
from sordino.reporting.panel import StudyPanel


def drawn(view: StudyView, width: int = 100, height: int = 30, *, without_noise: Sequence[float] = ()) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    panel = StudyPanel(clock=lambda: view.last_at)
    panel.view, panel.without_noise = view, list(without_noise)
    console.print(panel)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()
