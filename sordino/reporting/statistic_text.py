"""A released statistic in words: for the panel, plain lines, the end of a study, and the report.

What it reads is `learning.learner.Learner.released`, as the event of a round holds it; of a task of one's own, too, and
so nothing in it is taken for granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.text import counted, several

Released = Mapping[str, Any]
Row = tuple[str, str, str]

_AT_ONCE: Final = 3
_WITHHELD: Final = {
    "noise": (
        "lost in the noise",
        "The noise is too large for so few participants: it hides whether any of them answered, so no value is "
        "released, although all may have had one. More participants or a larger epsilon would have been needed.",
    ),
    "few answered": (
        "too few answered",
        "Too few of the participants had a value: their number can't be distinguished from 0 in the noise, so no "
        "value is released.",
    ),
}
"""By ``why`` of a value that isn't released (`learning.tasks.statistic.why_withheld`): in short, and a sentence."""
HISTOGRAM: Final = "histogram"
QUANTILE: Final = "quantile"


def figure_words(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    """Named figures of a model: ``("mean absolute error", "3.21")``."""
    return [(name.replace("_", " "), f"{value:.4g}") for name, value in figures.items()]


def values_of(released: Released) -> list[Mapping[str, Any]]:
    """The tables of ``values``, those that have a name."""
    values = released.get("values")
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    return [value for value in values if isinstance(value, Mapping) and "name" in value]


def title(released: Released) -> str:
    """What was found: ``Median``, ``Mean``, ``Histogram``; empty where nothing was."""
    values = values_of(released)
    if released.get("statistic") == "quantile" and len(values) == 1:
        return str(values[0]["name"]).capitalize()
    if released.get("statistic") == "quantile":
        return "Quantiles"
    name = str(released.get("statistic") or "")
    return name[:1].upper() + name[1:] if values else ""


def figure_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """A value, and how exactly it is known: ``48.12``, ``± 0.66``; ``50.4``, ``49.4 to 51.3``."""
    number = _finite(value.get("value"))
    if number is None:
        return _WITHHELD.get(str(value.get("why")), ("not known",))[0], ""
    error, low, high = (_finite(value.get(name)) for name in ("standard_error", "low", "high"))
    if error is not None:
        places = decimals(error)
        return _rounded(number, places), f"± {error:.{places}f}"
    if low is not None and high is not None:
        places = decimals((high - low) / 2)
        return _rounded(number, places), f"{_rounded(low, places)} to {_rounded(high, places)}"
    return f"{number:.6g}", ""


def _rounded(number: float, places: int) -> str:
    return f"{round(number, places) + 0.0:.{places}f}"  # never -0.0


def decimals(error: float) -> int:
    """Decimal places that show two digits of an error; 0 to 12."""
    if not (math.isfinite(error) and error > 0):
        return 3
    return min(max(1 - math.floor(math.log10(error)), 0), 12)


def known(released: Released) -> bool:
    """Whether any value is released."""
    return any(_finite(value.get("value")) is not None for value in values_of(released))


def asked_rows(released: Released) -> list[tuple[str, str]]:
    """(option, value) of all that was asked of the participants; empty where it wasn't recorded."""
    asked = released.get("asked")
    return [(str(name), str(value)) for name, value in asked.items()] if isinstance(asked, Mapping) else []


def what_counts(released: Released) -> str:
    """One participant's value, as an axis names it: ``days, mean of a participant's rows``; empty if not recorded."""
    asked = dict(asked_rows(released))
    column, reduce = asked.get("column", ""), asked.get("reduce", "")
    if not column:
        return ""
    name = f"column {column}" if column[0].isdigit() else column
    return name if reduce in ("", "spread") else f"{name}, {reduce} of a participant's rows"


def in_words(value: Mapping[str, Any]) -> str:
    """``48.12 ± 0.66``, or ``50.4 (49.4 to 51.3)``."""
    number, error = figure_of(value)
    if not error:
        return number
    return f"{number} {error}" if error.startswith("±") else f"{number} ({error})"


def headline(released: Released) -> str:
    """The statistic in one short line; empty where nothing was released."""
    values = values_of(released)
    if not values:
        labelled, queries = released.get("labelled"), released.get("queries")
        if isinstance(labelled, int) and isinstance(queries, int):
            return f"{labelled} of {queries} queries labelled by votes"
        return ""
    name = str(released.get("statistic") or "statistic")
    if len(values) == 1:
        return f"{str(values[0]['name']) if name == 'quantile' else name} {in_words(values[0])}"
    if name == HISTOGRAM:
        known = [value for value in values if _finite(value.get("value")) is not None]
        if known:
            most = max(known, key=lambda value: float(value["value"]))
            return f"most in {most['name']}: {in_words(most)}"
    return several([f"{value['name']} {in_words(value)}" for value in values], _AT_ONCE)


def table_rows(released: Released) -> list[Row]:
    """(name, value, how exactly it is known) of each value."""
    return [(str(value["name"]), *figure_of(value)) for value in values_of(released)]


def about(released: Released) -> list[str]:
    """What the figures are over and what they mean, sentences."""
    parts, values = [], values_of(released)
    participants, rounds = released.get("participants"), released.get("rounds")
    if isinstance(participants, int) and isinstance(rounds, int):
        all_of = counted(rounds, "round") + (" together" if rounds > 1 else "")
        parts.append(f"From {all_of}; {counted(participants, 'participant')} in the last sum.")
    for share, error in sorted(_answered(released))[:1]:
        if share < 1 - 2 * error:  # else all may have answered
            parts.append(f"About {100 * share:.0f} % of the participants had a value, ± {100 * error:.2g} %.")
    if released.get("note"):
        parts.append(str(released["note"]))
    reasons = {value.get("why") for value in values if _finite(value.get("value")) is None}
    parts += [sentence for why, (_, sentence) in _WITHHELD.items() if why in reasons]
    if any(_finite(value.get("standard_error")) is not None for value in values):
        parts.append(
            "± is one standard error of the noise that the privacy plan adds; sampling of participants isn't in it."
        )
    elif any(_finite(value.get("low")) is not None for value in values):
        parts.append(
            "The interval holds what the noise of the privacy plan leaves open, at 95 %; sampling isn't in it."
        )
    return parts


def _answered(released: Released) -> list[tuple[float, float]]:
    """Shares of participants who had a value, each with its standard error."""
    found = []
    for table in (released, *values_of(released)):
        share, error = _finite(table.get("answered")), _finite(table.get("answered_error"))
        if share is not None:
            found.append((share, error or 0.0))
    return found


def _finite(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None  # type: ignore[arg-type]  # checked on the line above
