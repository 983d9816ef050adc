"""Options of a task: a frozen dataclass made from the plain mapping of a study file, refused by name."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, cast

from runtime.failure import InputFailure
from runtime.text import did_you_mean


class OptionError(InputFailure, ValueError):
    """An option of a task is unknown, of the wrong kind, or outside its range; the message names it."""

    option = ""  # its name, where it is one option


_LONGEST_SHOWN: Final = 200
SEEDS: Final = (0, 2**63 - 1)
"""Of initial weights: public, part of the study's configuration."""


def shown_value(value: object) -> str:
    """A value for a message, cut where it is long: it may come from a stranger."""
    shown = repr(value[: _LONGEST_SHOWN + 1] if isinstance(value, str) else value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _wrong(option: str, message: str) -> OptionError:
    error = OptionError(message)
    error.option = option
    return error


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Raise ``OptionError`` naming ``option`` unless ``holds``."""
    if not holds:
        raise _wrong(option, f"option {option!r} is {shown_value(value)}; it must be {expected}")


def in_kind_of(default: object, option: str, value: object) -> Any:
    """Return ``value`` in the type of ``default``. Raises OptionError: it is of another kind."""
    kind = type(default)
    value = cast(Any, value).item() if getattr(value, "ndim", 1) == 0 else value  # NumPy's numbers
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            raise _wrong(option, f"option {option!r} is too large for a number") from None
    expected = {float: "a number", bool: "true or false", str: "a text"}.get(kind, "a whole number")
    require(type(value) is (kind if kind in (float, bool, str) else int), option, value, expected)
    return value


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of any task: a subclass adds fields with defaults, and checks them when it is made."""

    _ranges: ClassVar[Mapping[str, tuple[int, int]]] = {}
    """Least and greatest value of whole numbers, by name; those of base classes count too."""

    def __post_init__(self) -> None:
        tables = [vars(kind).get("_ranges", {}) for kind in type(self).__mro__]
        for name, (least, most) in dict(ChainMap(*tables)).items():
            shown = "2^63 - 1" if (least, most) == SEEDS else most
            require(least <= getattr(self, name) <= most, name, getattr(self, name), f"from {least} to {shown}")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """Read options from a plain mapping; a missing option takes its default.

        Whole numbers are accepted where a fraction is expected, never the reverse, and a bool is no number. Raises
        OptionError: an unknown name, a value of the wrong kind, or one outside its range.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in known:
                names = did_you_mean(name, known) or f" Known options: {', '.join(sorted(known))}"
                raise _wrong(name, f"unknown option {shown_value(name)}.{names}")
            values[name] = in_kind_of(known[name].default, name, value)
        return cls(**values)

    def to_mapping(self) -> dict[str, bool | int | float | str]:
        """Return every option that counts with its value, for a study file; ``from_mapping`` reads it back."""
        left_out = self._left_out()
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}

    def _left_out(self) -> set[str]:
        """Options that `to_mapping` leaves out, since they have no effect beside the others."""
        return set()

    def is_usual(self, name: str) -> bool:
        """Whether an option has its default."""
        return bool(getattr(self, name) == getattr(type(self), name))

    def for_one_step(self) -> dict[str, bool | int | float | str]:
        """As `to_mapping`, changed so that one contribution takes as little work as possible: for a trial."""
        return self.to_mapping()

    @property
    def example_shape(self) -> tuple[int, ...] | None:
        """Shape of one example; None where the options don't state it."""
        return None


CONSTANT, LINEAR, COSINE = "constant", "linear", "cosine"
SCHEDULES: Final = (CONSTANT, LINEAR, COSINE)


def scheduled(schedule: str, done: float) -> float:
    """What a step size is multiplied with once a share ``done`` of the rounds, in [0, 1), is over.

    Source of cosine: [LH17] Eq. 5 without restarts, down to 0.
    """
    if schedule == CONSTANT:
        return 1.0
    return 1 - done if schedule == LINEAR else (1 + math.cos(math.pi * done)) / 2


DP_FEDAVG, DP_FEDSGD, FEDPROX, BLUR, LUS, BLUR_LUS = "dp-fedavg", "dp-fedsgd", "fedprox", "blur", "lus", "blur-lus"
_VOTES: Final = "ae-dpfl"  # a method in earlier releases
METHODS: Final = (DP_FEDAVG, DP_FEDSGD, FEDPROX, BLUR, LUS, BLUR_LUS)
_COUNTS_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "local_epochs": tuple(method for method in METHODS if method != DP_FEDSGD),
    "local_steps": tuple(method for method in METHODS if method != DP_FEDSGD),
    "blur_weight": (BLUR, BLUR_LUS),
    "sparsity": (LUS, BLUR_LUS),
    "proximal_weight": (FEDPROX,),
}
OF_UPDATES: Final = ("method", "client_schedule", "weight_cap", "weight_mean", "personal")
"""Options that count where a change of the round's model is sent."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(TaskOptions):
    """Local training of one participant within one round. All methods are private for all data of a participant.

    Attributes:
        method: ``dp-fedavg``: minibatch gradient descent, the change of the model is sent [MRTZ18]. ``dp-fedsgd``: one
            step along the mean gradient over all its data [MRTZ18]. ``fedprox``: as dp-fedavg, drawn back to the
            round's model [LSZ+20]. ``blur``: as dp-fedavg, drawn back where the change is longer than the clip [CWZC22]
            Eq. 5 and 7. ``lus``: as dp-fedavg, and in each array the values that matter least to its loss are sent as
            zeros [CWZC22] Eq. 11, 14 and 15. ``blur-lus``: both.
        client_rate: step size of minibatch gradient descent, finite and > 0.
        batch_size: examples a step, 1 to 65,536; the last step of an epoch takes what is left. Gradients over all data
            are computed in blocks of this size.
        local_epochs: passes over the participant's data, 1 to 1,000. The upper bounds keep a study file from blocking a
            participant's machine.
        local_steps: steps in a round, whatever the number of examples, through as many passes as that takes, at most
            100,000; 0: ``local_epochs`` counts.
        blur_weight: lambda of BLUR, above 0 and below 1 / client_rate (Lemma 2).
        sparsity: share c of each array's values that LUS zeroes, in [0, 1).
        proximal_weight: mu of FedProx, finite and >= 0.
        client_schedule: how client_rate goes on over the study's rounds, one of ``SCHEDULES``.
        weight_cap: a participant with n examples weighs min(n, weight_cap) / weight_mean; 0: all weigh 1.
        weight_mean: public estimate of the participants' mean of min(n, weight_cap), above 0 and at most that; then the
            mean update is that of weighted federated averaging. 0: weight_cap.
        personal: names of arrays or layers that never travel (`learning.tasks.personal`), with commas between.
    """

    method: str = DP_FEDAVG
    client_rate: float = 0.5
    batch_size: int = 20
    local_epochs: int = 3
    local_steps: int = 0
    blur_weight: float = 0.4
    sparsity: float = 0.7
    proximal_weight: float = 0.1
    client_schedule: str = CONSTANT
    weight_cap: int = 0
    weight_mean: float = 0.0
    personal: str = ""
    frozen: ClassVar[frozenset[str]] = frozenset()
    """Arrays that training leaves as they are; see `freezing`."""
    _ranges: ClassVar = {
        "batch_size": (1, 65_536),
        "local_epochs": (1, 1_000),
        "local_steps": (0, 100_000),
        "weight_cap": (0, 1_000_000_000),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.client_rate
        require(self.method in METHODS, "method", self.method, f"one of {', '.join(METHODS)}")
        require(math.isfinite(rate) and rate > 0, "client_rate", rate, "a finite number above 0")
        require(0 <= self.sparsity < 1, "sparsity", self.sparsity, "at least 0 and below 1")
        weight = self.proximal_weight
        require(math.isfinite(weight) and weight >= 0, "proximal_weight", weight, "a finite number of at least 0")
        if self.method in _COUNTS_FOR["blur_weight"]:
            allowed = f"above 0 and below 1 / client_rate = {1 / rate:g}"
            require(0 < self.blur_weight < 1 / rate, "blur_weight", self.blur_weight, allowed)
        schedule, mean = self.client_schedule, self.weight_mean
        require(schedule in SCHEDULES, "client_schedule", schedule, f"one of {', '.join(SCHEDULES)}")
        require(0 <= mean <= self.weight_cap, "weight_mean", mean, f"from 0 to weight_cap = {self.weight_cap}")
        if self.method in _COUNTS_FOR["blur_weight"]:  # it compares the unweighted change with the clip
            require(self.weight_cap == 0, "weight_cap", self.weight_cap, f"0 with the method {self.method}")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """As `TaskOptions.from_mapping`; an option that counts for other methods only is refused."""
        if options.get("method") == _VOTES:
            raise OptionError(
                f"method {_VOTES!r} is now the task votes, whose option 'of' names the classifier: "
                "--task votes --task-option of=NAME"
            )
        made = super().from_mapping(options)
        for name, methods in _COUNTS_FOR.items():
            if name in options and made.method not in methods:
                raise OptionError(
                    f"option {name!r} counts for the method {', '.join(methods)} only, and method is "
                    f"{made.method!r}: leave it out, or change the method"
                )
        return made

    def _left_out(self) -> set[str]:
        of_others = {name for name, methods in _COUNTS_FOR.items() if self.method not in methods}
        return of_others | {name for name in ("local_steps", *OF_UPDATES) if name != "method" and self.is_usual(name)}

    def at(self, done: float) -> Self:
        """Those of a round, once a share ``done`` of the rounds is over."""
        rate = self.client_rate * scheduled(self.client_schedule, done)
        return dataclasses.replace(self, client_rate=rate, client_schedule=CONSTANT)

    def freezing(self, names: Iterable[str]) -> Self:
        """These, for training that leaves some arrays as they are."""
        made = copy.copy(self)
        object.__setattr__(made, "frozen", frozenset(names))
        return made

    def weight(self, examples: int) -> float:
        """Factor of a participant's change, before it is clipped.

        Deviation: [MRTZ18] Algorithm 1 weights clipped changes, by at most 1. The bound on what is sent, and so its
        cost, are the same; here changes of participants with few examples are cut less.
        """
        return min(examples, self.weight_cap) / (self.weight_mean or self.weight_cap) if self.weight_cap else 1.0

    def for_one_step(self) -> dict[str, bool | int | float | str]:
        """One step; dp-fedsgd takes one in any case."""
        return self.to_mapping() if self.method == DP_FEDSGD else self.to_mapping() | {"local_steps": 1}


OPTION_HELP: Final[Mapping[str, str]] = {
    "of": "the task that votes: a classifier",
    "method": "dp-fedavg, dp-fedsgd, fedprox, blur, lus, blur-lus",
    "queries": "public examples that participants vote on in a round",
    "pool": "share of the coordinator's examples that may be asked about; the rest judge the model",
    "confidence": "least share of votes that labels an example; 0 takes all",
    "server_epochs": "passes of the global model over what was labelled",
    "server_rate": "its step size; 0: client_rate",
    "server_batch_size": "its examples in one step; 0: batch_size",
    "column": "number of a column from 0, or label; several with commas",
    "low": "public lower bound of a value, in the column's units",
    "high": "public upper bound; values beyond count as the bound",
    "reduce": "what a participant's rows become",
    "count": "whether a participant may have no value; false is less noisy",
    "bins": "of equal width between the bounds, or classes from 0",
    "quantiles": "shares, with commas between; more of them cost nothing",
    "local_steps": "steps in a round, whatever the number of examples",
    "blur_weight": "lambda of BLUR: how hard a change longer than the clip is drawn back",
    "sparsity": "share of each array that LUS zeroes",
    "proximal_weight": "mu of FedProx",
    "client_schedule": "how client_rate goes on over the rounds: constant, linear or cosine",
    "weight_cap": "a participant weighs as many examples as it has, at most these; 0: all weigh the same",
    "personal": "arrays or layers that never travel, with commas between; each participant fits its own",
    "weight_mean": "public estimate of the mean of those weights; 0: weight_cap",
    "client_rate": "step size of local training",
    "batch_size": "examples in one step",
    "local_epochs": "passes over the participant's own data in a round",
    "pooling": "side of the square of pixels averaged into one feature",
    "pixel_scale": "a feature is pixel_scale x pixel + pixel_offset",
    "pixel_offset": "",
    "features": "numbers in one example; 0: examples are images",
    "classes": "labels are 0 to classes - 1",
    "side": "of the images, in pixels",
    "channels": "of the images: 1 is grey, 3 are colours",
    "hidden": "units of the hidden layer, or of the LSTM; of a regression 0 is none",
    "initial_seed": "of the initial weights; public",
    "initial_model": "what the app's module calls its model",
    "groups": "of channels that are normalised together",
    "vocabulary": "words, besides the four special ones",
    "length": "words of one example",
    "embedding": "numbers that stand for one word",
    "backbone": "file of the frozen weights, in the folder where the command runs",
    "backbone_sha256": "its digest",
}
"""What each option of a task means, by name: comments of study.toml and host.toml."""
