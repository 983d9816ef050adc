"""Both sides of a served study in Python: awaited in an event loop, or as calls that block."""

from __future__ import annotations

from asyncio import CancelledError


def show_as_sentence(error: BaseException | None) -> None:
    """Have IPython show an interruption as one sentence and not as the way through our code."""
    if isinstance(error, CancelledError):
        said = "Interrupted. Nothing is lost: run this again, and it continues."
        error._render_traceback_ = lambda: [said]  # type: ignore[attr-defined]  # where IPython looks for it
