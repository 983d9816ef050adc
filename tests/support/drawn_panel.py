"""The panel of a study as it stands on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from server.study_view import StudyView
from sordino.reporting.panel import StudyPanel


def drawn(view: StudyView, without_noise: list[float] | None = None, width: int = 100, height: int = 30) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    panel = StudyPanel(clock=lambda: view.last_at)
    panel.view, panel.without_noise = view, without_noise or []
    console.print(panel)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()
