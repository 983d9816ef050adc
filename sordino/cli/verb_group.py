"""How verbs with verbs of their own are made: ``sordino budget show``."""

from __future__ import annotations

import typer


def verb_group(name: str, help_text: str) -> typer.Typer:
    """An empty group; its help is shown when it is called alone."""
    return typer.Typer(
        name=name,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        help=help_text,
    )
