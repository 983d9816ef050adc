"""Options of a task: a frozen dataclass made from the plain mapping of a study file, refused by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


class OptionError(ValueError):
    """An option of a task is unknown, of the wrong kind, or outside its range; the message names it."""


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Raise ``OptionError`` naming ``option`` unless ``holds``."""
    if not holds:
        raise OptionError(f"option {option!r} is {value!r}; it must be {expected}")


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of any task: a subclass adds fields with defaults, and checks them when it is made."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """Read options from a plain mapping; what is left out takes its default.

        Whole numbers are accepted where a fraction is expected, never the reverse, and a bool is no number.

        Raises:
            OptionError: an unknown name, a value of the wrong kind, or one outside its range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                raise OptionError(f"unknown option {name!r}; known options: {', '.join(sorted(known))}")
            if isinstance(known[name].default, float):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                require(number, name, value, "a number")
                try:
                    values[name] = float(value)  # type: ignore[arg-type]  # checked on the line above
                except OverflowError:
                    raise OptionError(f"option {name!r} is too large for a number") from None
            else:
                require(isinstance(value, int) and not isinstance(value, bool), name, value, "a whole number")
                values[name] = value
        return cls(**values)

    def to_mapping(self) -> dict[str, int | float]:
        """Return every option with its value, ready for a study file; ``from_mapping`` reads it back."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(TaskOptions):
    """How one participant trains within one round.

    Attributes:
        client_rate: step size of minibatch gradient descent, finite and > 0.
        batch_size: examples a step, 1 to 65,536; the last step of an epoch takes what is left.
        local_epochs: passes over the participant's data, 1 to 1,000. The upper bounds keep a study file
            from tying a participant's machine up for good.
    """

    client_rate: float = 0.5
    batch_size: int = 20
    local_epochs: int = 3

    def __post_init__(self) -> None:
        rate = self.client_rate
        require(math.isfinite(rate) and rate > 0, "client_rate", rate, "a finite number above 0")
        require(1 <= self.batch_size <= 65_536, "batch_size", self.batch_size, "from 1 to 65536")
        require(1 <= self.local_epochs <= 1_000, "local_epochs", self.local_epochs, "from 1 to 1000")
