"""Options of clips and coding that ``plan`` and ``init`` share; their defaults are in sordino.planning.options."""

from __future__ import annotations

import typer

PANEL = "Clips and coding"

SKETCH_ROWS = typer.Option(
    "--sketch-rows",
    help="Send a count-mean sketch of so many rows, such as 15; the clip is then the sketch's. 0: no sketch.",
    rich_help_panel=PANEL,
)
SKETCH_RATIO = typer.Option(
    "--sketch-ratio",
    help="Values of the update for each of its sketch.",
    show_default="10 with rows",
    rich_help_panel=PANEL,
)
CLIP_SCALING = typer.Option(
    "--clip-scaling",
    metavar="NAME",
    help="How noise is spread over layers: uniform, proportional (to their clips) or least-noise.",
    rich_help_panel=PANEL,
)
CLIP_UPDATE = typer.Option(
    "--clip-update",
    metavar="NAME",
    help="fixed, or geometric or linear: clips then follow a quantile of the norms.",
    rich_help_panel=PANEL,
)
CLIP_QUANTILE = typer.Option(
    "--clip-quantile",
    help="Share of norms that clips that adapt keep below them.",
    show_default="0.5",
    rich_help_panel=PANEL,
)
CLIP_RATE = typer.Option("--clip-rate", help="Step of clips that adapt.", show_default="0.3", rich_help_panel=PANEL)
CLIP_BIT_WEIGHT = typer.Option(
    "--clip-bit-weight",
    help="Size of the coordinate that clips that adapt add, over the clip.",
    show_default="0.3",
    rich_help_panel=PANEL,
)
