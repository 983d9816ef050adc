"""What somebody may have meant by a name that nothing has."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """`` Did you mean mnist?`` with the blank before it; empty where no name is near."""
    import difflib  # only once something is wrong

    near = difflib.get_close_matches(str(given)[:80].lower(), list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""
