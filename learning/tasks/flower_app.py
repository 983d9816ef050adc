"""A Flower app as a task: an unchanged ClientApp trains, and its change of the model is the contribution.

Import this only where such a task is used: it loads Flower, and then the app. Of the app only the ClientApp runs: a
study's rounds, cohorts and averaging are Sordino's.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import random
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, Self

import numpy as np

from learning.datasets import Dataset
from learning.learner import Learner, ModelLearner, State
from learning.options import OptionError, TaskOptions, in_kind_of, require, shown_value
from learning.own_task import TaskMistake, imported
from learning.parameters import Parameters, Shapes, check_shapes, shapes_of
from learning.progress import JUDGED
from learning.public_random import Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task import ModelTask
from learning.task_names import FLOWER
from learning.tasks.flower_arrays import ROUND_KEY, Arrays, arrays_of, check_arrays
from runtime.text import did_you_mean, dotted

# After flower_arrays, which says whether it is there.
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict  # isort: skip
from flwr.clientapp import ClientApp  # isort: skip

Option = bool | int | float | str
_MESSAGE: Final = "config."  # begins an option that goes into the message's configuration
_METRICS: Final = {
    "accuracy": ("accuracy", "eval_accuracy", "acc", "eval_acc"),
    "loss": ("loss", "eval_loss"),
    "examples": ("num_examples",),
}
"""Figures by the names under which apps return them; - may stand for _."""


@dataclass(frozen=True, kw_only=True)
class FlowerOptions(TaskOptions):
    """Options of a Flower app.

    Attributes:
        initial_model: what the app's module calls its model: called without arguments it returns a module of torch, a
            model with ``get_weights``, or arrays in a list or a dict.
        initial_seed: of the generators that draw its values, >= 0; public.
        judged: which figures its ``evaluate`` returns: "accuracy,loss", "accuracy" or "loss".
        app: all others by name: those that begin with ``config.`` go into the configuration of each message, the rest
            is the app's ``run_config``.
    """

    _OWN: ClassVar[tuple[str, ...]] = ("initial_model", "initial_seed", "judged")

    initial_model: str = "Net"
    initial_seed: int = 0
    judged: str = ",".join(JUDGED)
    app: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(0 <= self.initial_seed < 2**32, "initial_seed", self.initial_seed, "from 0 to 4294967295")
        known = (",".join(JUDGED), *JUDGED)
        require(self.judged in known, "judged", self.judged, " or ".join(known))
        for name, value in self.app.items():
            plain = isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
            require(plain, name, value, "a text, a switch or a finite number")
            require(name != f"{_MESSAGE}{ROUND_KEY}", name, value, "left out: it is the number of the round")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """As `TaskOptions.from_mapping`; names that Sordino doesn't know are the app's."""
        own = cls._OWN
        made = super().from_mapping({name: options[name] for name in own if name in options})
        others: dict[str, Any] = {name: value for name, value in options.items() if name not in own}
        return replace(made, app=others)

    def to_mapping(self) -> dict[str, Option]:
        return {name: getattr(self, name) for name in self._OWN} | dict(self.app)

    def completed(self, usual: Mapping[str, Option]) -> Self:
        """With the app's own values where none is chosen. Raises OptionError: an option is unknown to it."""
        found = dict(usual)
        for name, value in self.app.items():
            if usual and name not in usual and not name.startswith(_MESSAGE):
                known = (*self._OWN, *usual)
                raise OptionError(
                    f"unknown option {shown_value(name)}.{did_you_mean(name, known)} Known options: "
                    f"{', '.join(sorted(known))}, and {_MESSAGE}NAME for what the server writes into messages"
                )
            found[name] = in_kind_of(usual[name], name, value) if name in usual else value
        return replace(self, app=found)


class FlowerApp(ModelTask):
    """The app that the task's name states: ``flower:module:attribute``.

    It is called as Flower does it, with a context of its own for each call, whose state is empty. Metrics of its
    training stay here. Its ``evaluate`` is called where the study has participants evaluate.
    """

    divides_itself: Final = True
    name: str
    Options: ClassVar[type[TaskOptions]] = FlowerOptions

    def __init__(self, options: FlowerOptions) -> None:
        """Raises OptionError: there is no such app or model, or an option that it doesn't know; as `imported`."""
        module_name, attribute = self.name.removeprefix(FLOWER).split(":")
        module = imported(self.name, module_name)
        app, factory = getattr(module, attribute, None), getattr(module, options.initial_model, None)
        if not isinstance(app, ClientApp):
            raise OptionError(f"task {self.name!r}: {attribute} in {module.__file__} is no flwr.clientapp.ClientApp")
        try:
            inspect.signature(factory).bind()  # type: ignore[arg-type]  # of None: TypeError
        except (TypeError, ValueError):
            raise OptionError(
                f"task {self.name!r}: {module.__file__} has no {options.initial_model!r} that makes the first model "
                "without arguments: name a class or function there, initial_model=NAME"
            ) from None
        home = getattr(factory, "__module__", None) or ""
        if home.split(".")[0] != module_name.split(".")[0]:  # a stranger's terms may name it
            raise OptionError(
                f"task {self.name!r}: initial_model {options.initial_model!r} comes from {home or 'nowhere'}, not from "
                f"{module_name.split('.')[0]}: define what makes the model in the app's own package"
            )
        self._app: ClientApp = app
        self._factory: Any = factory
        self._legacy = getattr(app, "_call", None) is not None  # made from a client_fn
        functions = getattr(app, "_registered_funcs", ("evaluate.default",))
        evaluates = self._legacy or any(one.startswith("evaluate.") for one in functions)
        self.judged = tuple(options.judged.split(",")) if evaluates else ()
        self.options = options.completed(_usual_config(module))
        self._run_config: dict[str, Option] = {}
        self._config: dict[str, Option] = {}  # of each message
        for name, value in self.options.app.items():
            held = self._config if name.startswith(_MESSAGE) else self._run_config
            held[name.removeprefix(_MESSAGE)] = value
        self._like = self._made()
        try:
            check_arrays(self._like)
        except ValueError as error:
            raise OptionError(f"task {self.name!r}: {error}") from None

    def initial_parameters(self) -> Parameters:
        """Return the model as the app makes it, and the number of its round, shape (1,)."""
        return {name: one.astype(np.float32) for name, one in self._like.items()} | {ROUND_KEY: np.ones(1, np.float32)}

    @property
    def contribution_shapes(self) -> Shapes:
        return shapes_of(self._like)

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Let the app train, and return new minus old, float32.

        The generators that most apps draw from begin with a seed from ``rng``.

        Args:
            data: of `learning.own_data.app_partition`.

        Raises TaskMistake: the app returns other arrays than it was given; whatever the app raises.
        """
        begun = {name: parameters[name] for name in self.contribution_shapes}
        check_shapes(begun, self.contribution_shapes)
        with _seeded(int.from_bytes(hashlib.sha256(rng.permutation(64).tobytes()).digest()[:4])):
            trained = self._trained(self._reply("train", begun, parameters, data))
        return {name: trained[name].astype(np.float32) - one for name, one in begun.items()}

    def _reply(self, kind: str, begun: Parameters, parameters: Parameters, data: Dataset) -> RecordDict:
        node = dict(zip(data.columns, map(int, data.features[0]), strict=True))
        context = Context(1, 1 + node["partition-id"], node, RecordDict(), dict(self._run_config))
        reply = self._app(self._message(kind, begun, int(parameters[ROUND_KEY][0])), context)
        if reply.has_error():
            raise ValueError("the app answered with an error")
        return reply.content

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        initial = self.initial_parameters()
        del initial[ROUND_KEY]
        return _CountingLearner(initial, optimizer)

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """What the app's ``evaluate`` says of a model on its own data: ``accuracy``, ``loss`` and ``examples``.

        They are found under these names and `_METRICS`; what is missing is left out. Raises whatever the app raises.
        """
        begun = {name: parameters[name] for name in self.contribution_shapes}
        with _seeded(self.options.initial_seed):
            content = self._reply("evaluate", begun, parameters, data)
        records = [*content.metric_records.values(), *content.config_records.values()]
        said = {name.replace("-", "_"): value for one in records for name, value in one.items()}
        return {
            figure: float(said[name])
            for figure, names in _METRICS.items()
            for name in reversed(names)
            if isinstance(said.get(name), int | float)
        }

    def _made(self) -> Arrays:
        with _seeded(self.options.initial_seed):
            model = self._factory()
            if hasattr(model, "state_dict"):
                return {name: one.detach().cpu().numpy().copy() for name, one in model.state_dict().items()}
            found = model.get_weights() if hasattr(model, "get_weights") else model
            pairs = found.items() if isinstance(found, Mapping) else enumerate(found)
            return {str(name): np.asarray(one) for name, one in pairs}

    def _message(self, kind: str, begun: Parameters, round_: int) -> Message:
        """As Flower's server sends it to such an app."""
        arrays = ArrayRecord({name: Array(one.astype(self._like[name].dtype)) for name, one in begun.items()})
        config = ConfigRecord({ROUND_KEY: round_, **self._config})
        legacy = {"train": "fitins", "evaluate": "evaluateins"}[kind]
        keys = (f"{legacy}.parameters", f"{legacy}.config") if self._legacy else ("arrays", "config")
        about = Metadata(
            run_id=1,
            message_id="1",
            src_node_id=2,
            dst_node_id=1,
            reply_to_message_id="",
            group_id=str(round_),
            created_at=time.time(),
            ttl=3600.0,
            message_type=kind,
        )
        return Message(content=RecordDict(dict(zip(keys, (arrays, config), strict=True))), metadata=about)

    def _trained(self, content: RecordDict) -> Arrays:
        """The arrays of an app's reply, by their names in the model. Raises TaskMistake: others."""
        _, made = arrays_of(content)
        if self._legacy and len(made) == len(self._like):  # without names
            made = dict(zip(self._like, made.values(), strict=True))
        for name in (*self._like, *made):
            got, expected = _form(made, name), _form(self._like, name)
            if got != expected:
                told = f"the app returns {got} for array {name!r}, expected {expected}"
                mistake = TaskMistake(
                    f"task {self.name!r}: {told}: it must keep the names and shapes of the model in all rounds"
                )
                mistake.place = told
                raise mistake
        return made


class _CountingLearner(ModelLearner):
    """A model that is sent with the number of the round."""

    def __init__(self, initial: Parameters, optimizer: ServerOptimizer) -> None:
        super().__init__(initial, optimizer, lambda _: {})
        self._round = 1

    def broadcast(self) -> Parameters:
        return super().broadcast() | {ROUND_KEY: np.full(1, self._round, np.float32)}

    def learn(self, mean: Any, survivors: int, stddev: float = 0.0) -> None:
        super().learn(mean, survivors, stddev)
        self._round += 1

    def step(self) -> None:
        """The number isn't on the model's grid."""

    def state(self) -> tuple[Parameters, State]:
        model, state = super().state()
        del model[ROUND_KEY]
        return model, state | {ROUND_KEY: np.full(1, self._round, np.float64)}

    def load_state(self, parameters: Parameters, state: Mapping[str, Any]) -> None:
        super().load_state(parameters, {name: one for name, one in state.items() if name != ROUND_KEY})
        self._round = int(state[ROUND_KEY][0])


def _form(arrays: Arrays, name: str) -> str:
    if name not in arrays:
        return "nothing"
    kind = arrays[name].dtype
    return f"shape {list(arrays[name].shape)}" + ("" if np.issubdtype(kind, np.floating) else f" of {kind}")


def _usual_config(module: ModuleType) -> dict[str, Option]:
    """What pyproject.toml, in the folder of the app's outermost package, states as the app's ``run_config``."""
    file = Path(str(module.__file__)).parents[module.__name__.count(".")] / "pyproject.toml"
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, LookupError):
        return {}
    return dotted(config)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Generators from which apps draw begin with a seed, and are as before afterwards. No noise comes from them."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state()
    with nullcontext() if torch is None else torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
