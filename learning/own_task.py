"""Tasks by name: finds their classes, and reports mistakes in a user's own class with file and line.

Sordino's code calls such a class from many places. So the class gets a subclass that turns every error inside it into
one `TaskMistake`, wherever it is called from.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import linecache
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError
from learning.datasets import Dataset
from learning.options import OptionError, TaskOptions, shown_value
from learning.task import Task
from learning.task_names import BUILT_IN, FLOWER, FLOWER_TASK, check_task_name
from runtime.failure import InputFailure

_GUARDED: Final = ("__init__", "initial_parameters", "local_update", "local_updates", "learner", "evaluate", "predict")
_JUDGING: Final = ("local_update", "local_updates", "evaluate", "predict")
_NEEDED: Final = ("initial_parameters", "local_update", "learner")
_PLACE: Final = "_sordino_place"  # of an error; not a note, since the class's author may add notes with data in them
_RULES: Final = "docs/your_own_model.md has the rules"
_ROOMS: Final = Path(__file__).resolve().parent.parent
_OURS: Final = tuple(str(_ROOMS / room) + "/" for room in ("learning", "mechanisms", "server", "client", "sordino"))
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name).rstrip("/") + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class TaskUnavailable(InputFailure, ImportError):
    """The task exists, but something it needs is not installed."""


class TaskMistake(OptionError):
    """A user's own class is wrong: the message names module, class, file and line, and what to change.

    Attributes:
        place: ``FILE, line N, in FUNCTION``; without the error's text, which may contain data.
    """

    in_user_code = True
    place: str = ""


class RuleBroken(TypeError):
    """A class breaks one of Sordino's rules; one sentence without the place.

    ``method``: of the class, where to look.
    """

    def __init__(self, message: str, method: str | None = None) -> None:
        super().__init__(message)
        self.method = method


class TaskClass(Protocol):
    """A class of tasks, as `learning.make_task` uses it."""

    __name__: str
    Options: type[TaskOptions]

    def __call__(self, options: Any, /) -> Task:
        """Make a task from an instance of ``Options``."""


def task_class(name: str) -> TaskClass:
    """The class behind a task's name, checked to be one.

    Raises TaskUnavailable: no task has such a name, there is no such module, or it needs torch or Flower, which is not
    installed; TaskMistake: the module can't be imported, or what it has under that name is no task.
    """
    if name.startswith(FLOWER):
        module, class_name = FLOWER_TASK
        app: type = getattr(importlib.import_module(module), class_name)
        return cast("TaskClass", _told_with_its_line(name, app))
    try:
        module, class_name = BUILT_IN.get(name) or check_task_name(name).split(":")
    except ValueError as error:
        raise TaskUnavailable(f"task {shown_value(name)} {error}") from None
    found = imported(name, module)
    kind = getattr(found, class_name, None)
    if name not in BUILT_IN:
        kind = _told_with_its_line(name, _checked_class(name, found, class_name, kind))
    return cast("TaskClass", kind)


Examples = Dataset | tuple[NDArray[Any], NDArray[Any]]
"""What a ``read`` returns: a data set, or features and labels."""


def own_reader(name: str) -> Callable[[Path], Examples] | None:
    """The ``read`` of a user's own class, which reads a participant's file or folder; None where it has none.

    Types and lengths of arrays are as the class made them. An error in it is a `TaskMistake` with its place and its
    kind, without its text, which may contain data.

    Raises TaskUnavailable, TaskMistake: as `task_class`.
    """
    if name in BUILT_IN or not name:
        return None
    kind = task_class(name)
    read = getattr(kind, "read", None)
    if read is None:
        return None

    def reader(path: Path) -> Examples:
        with mistakes_told(name, kind, of_file=path):
            made = read(path)
            if isinstance(made, Dataset):
                return made
            found = type(made).__name__
            if isinstance(made, tuple):
                if len(made) == 2 and all(isinstance(one, np.ndarray) for one in made):
                    return made
                found = f"({', '.join(type(one).__name__ for one in made)})"
            expected = "a sordino.Dataset, or features and labels as two arrays of numpy"
            raise RuleBroken(f"read returns {found}; it must return {expected}", "read")

    return reader


@contextmanager
def mistakes_told(
    name: str, kind: type | TaskClass, *, judges_examples: bool = False, of_file: Path | None = None
) -> Iterator[None]:
    """Report an error in a user's own class as a `TaskMistake`; those of a task that ships stay as they are.

    Args:
        judges_examples: a ValueError then says that examples don't fit, and stays one, with its origin as its
            `place_of`.
        of_file: being read. The error's text may contain data then, and is left out.
    """
    if name in BUILT_IN:
        yield
        return
    try:
        yield
    except (OptionError, TaskUnavailable, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # sys.exit in a class would end the process, without a word
        if "allocate memory" in str(error):  # torch's word for it, a RuntimeError
            raise
        place = _place_in_own(kind, error)
        if judges_examples and isinstance(error, ValueError):
            if place:  # else Sordino's own check of examples says it
                error.__dict__[_PLACE] = place  # whatever the class of the error does with attributes
            raise
        if of_file is not None and isinstance(error, DatasetError):  # of `sordino.read_table`, without data
            raise
        said, change = _said(error), "; correct it there"
        if judges_examples:
            change += ", or take other data if these don't fit"
        if isinstance(error, RuleBroken):  # which says what to change
            place, change = place or _beginning(getattr(kind, error.method or "", kind)), ""
        elif of_file is not None and not isinstance(error, ImportError):
            said = f"{type(error).__name__} at data file {of_file}"
        place = place or _beginning(kind)
        mistake = TaskMistake(f"{_failing(name, kind)}: {place}: {said}{change}")
        mistake.place = place
        raise mistake from error


def with_place(error: Exception) -> str:
    """An error about examples, with file and line of the user's own class that raised it."""
    place = place_of(error)
    return f"{error} ({place})" if place else str(error)


def place_of(error: BaseException) -> str:
    """Where in a user's own class an error arose, without the error's text; empty where that isn't known."""
    return error.place if isinstance(error, TaskMistake) else str(error.__dict__.get(_PLACE, ""))


# ---------------------------------------------------------------- finding it


def imported(name: str, module: str) -> types.ModuleType:
    """The module that a task's name states. Raises as `task_class`."""
    here = str(Path.cwd())
    if name not in BUILT_IN and here not in sys.path:
        sys.path.append(here)  # last: a file there never hides an installed module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] == "torch":
            raise TaskUnavailable(
                f"task {name!r} trains with torch, which is not installed: pip install '.[torch]' in the checkout"
            ) from missing
        if name in BUILT_IN:
            raise
        if missing.name is None or not (module + ".").startswith(missing.name + "."):
            raise _not_imported(name, module, missing, f"; install {missing.name}") from missing
        if module.endswith(".py"):
            raise TaskUnavailable(f"task {name!r}: write {name.replace('.py:', ':')}, without .py") from missing
        raise TaskUnavailable(
            f"task {name!r}: there is no module {module!r}; install it, or run the command in the folder that holds "
            f"{module.split('.')[0]}.py"
        ) from missing
    except (Exception, SystemExit) as error:
        if name in BUILT_IN:
            raise
        change = "; correct it there"
        if isinstance(error, SystemExit):
            change = "; a module of a task is imported, not run: put what it runs under if __name__ == '__main__'"
        raise _not_imported(name, module, error, change) from error


def _not_imported(name: str, module: str, error: BaseException, change: str) -> TaskMistake:
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if _is_somebodys(one.filename)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else f"module {module}"
    return TaskMistake(f"task {name!r}: its module {module!r} can't be imported: {where}: {_said(error)}{change}")


def _checked_class(name: str, module: types.ModuleType, class_name: str, kind: object) -> type:
    """Return ``kind``. Raises TaskMistake: it isn't there, or no task."""
    file = module.__file__ or ", ".join(getattr(module, "__path__", ())) or module.__name__
    if not isinstance(kind, type):
        classes = {key: one for key, one in vars(module).items() if isinstance(one, type)}
        tasks = [
            key for key, one in classes.items() if one.__module__ == module.__name__ and hasattr(one, "local_update")
        ]
        message = f"task {name!r}: module {module.__name__!r} has no class {class_name!r}; it was imported from {file}"
        beside = Path.cwd() / f"{module.__name__.split('.')[0]}.py"
        if beside.is_file() and module.__file__ and beside.resolve() != Path(module.__file__).resolve():
            raise TaskMistake(
                f"{message}, which hides {beside}: give yours another name, as an installed module comes first"
            )
        named = f"name one of its tasks after the colon: {', '.join(tasks)}" if tasks else f"write it; {_RULES}"
        raise TaskMistake(f"{message}: {named}")
    where = _beginning(kind)
    if any(base.__module__.split(".")[0] == "torch" for base in kind.__mro__) and not hasattr(kind, "local_update"):
        raise TaskMistake(
            f"task {name!r}: class {class_name} ({where}) is a module of torch, no task: name a class derived from "
            f"sordino.TorchTask whose module() returns one; {_RULES}"
        )
    lacking = [one for one in _NEEDED if not hasattr(kind, one)]
    lacking += sorted(set(getattr(kind, "__abstractmethods__", ())) - set(lacking))
    if not isinstance(inspect.getattr_static(kind, "read", staticmethod(id)), staticmethod | classmethod):
        lacking.append("@staticmethod before its read(path)")
    options = getattr(kind, "Options", None)
    if not (isinstance(options, type) and issubclass(options, TaskOptions)):
        lacking.append("Options, a dataclass derived from sordino.TaskOptions or TrainingOptions")
    else:
        lacking += _wrong_options(options)
    if lacking:
        base = "" if hasattr(kind, "local_update") else "; derive it from sordino.TorchTask or sordino.ModelTask"
        raise TaskMistake(
            f"task {name!r}: class {class_name} ({where}) is no task yet: it lacks {', '.join(lacking)}{base}; {_RULES}"
        )
    return kind


def _wrong_options(options: type[TaskOptions]) -> list[str]:
    if "__dataclass_fields__" not in vars(options) and vars(options).get("__annotations__"):
        return ["@dataclass(frozen=True, kw_only=True) before its Options"]
    return [
        f"a default for {field.name} in its Options"
        for field in dataclasses.fields(options)
        if field.default is dataclasses.MISSING
    ]


# ---------------------------------------------------------------- what goes wrong inside it


@lru_cache(maxsize=64)
def _told_with_its_line(name: str, kind: type) -> type:
    """A subclass whose methods raise TaskMistake for every error but complaints about examples or options."""
    checks = {"initial_parameters": _wrong_parameters, "evaluate": _wrong_figures}
    methods = {
        method: _guarded(name, kind, method, getattr(kind, method), checks.get(method))
        for method in _GUARDED
        if hasattr(kind, method)
    }
    about = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "name": name}
    return types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(about | methods))


def _guarded(
    name: str, kind: type, method: str, written: Callable[..., Any], wrong: Callable[[object], str | None] | None
) -> Callable[..., Any]:
    @wraps(written)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        with mistakes_told(name, kind, judges_examples=method in _JUDGING):
            result = written(self, *arguments, **named)
        found = None if wrong is None else wrong(result)
        if found is not None:
            raise TaskMistake(f"{_failing(name, kind)}: {_beginning(written)}: {method} {found}")
        # NumPy's numbers can't be written as JSON, where a round is recorded.
        return {key: float(one) for key, one in result.items()} if wrong is _wrong_figures else result

    return called


def _wrong_parameters(result: object) -> str | None:
    if not isinstance(result, Mapping) or not result:
        return f"returns {type(result).__name__}; it must return names with their arrays, in a dict that isn't empty"
    for key, array in result.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
            kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            return f"gives {key!r} as {kind}; it must be an array of numpy, float32"
        if not isinstance(key, str) or not np.isfinite(array).all():
            return f"gives {key!r}; a name must be a text, and its values finite"
    return None


def _wrong_figures(result: object) -> str | None:
    if isinstance(result, Mapping) and all(
        isinstance(key, str) and isinstance(one, int | float | np.floating | np.integer) for key, one in result.items()
    ):
        accuracy = float(result.get("accuracy", 0))
        if accuracy < 0 or accuracy > 1:  # not NaN, which says that it isn't known
            return f"gives accuracy {accuracy:g}; it must be a share, from 0 to 1"
        return None
    return "returns no figures; it must return a dict such as {'accuracy': 0.9, 'loss': 0.3}, plain numbers"


def _failing(name: str, kind: type | TaskClass) -> str:
    return f"task {name!r} fails" if name.startswith(FLOWER) else f"task {name!r}: its class {kind.__name__} fails"


def _said(error: BaseException) -> str:
    """The error as Python shows it, in one line."""
    if isinstance(error, RuleBroken):
        return str(error)
    return " ".join("".join(traceback.format_exception_only(error)[-1:]).split())


def _place_in_own(kind: type | TaskClass, error: BaseException) -> str:
    """``FILE, line N, in FUNCTION``: where in the author's code an error arose; empty where none of it ran."""
    file, seen = _file_of(kind), error
    frames = [*traceback.extract_tb(seen.__traceback__)]
    while seen.__cause__ is not None:  # the outermost error first
        seen = seen.__cause__
        frames += traceback.extract_tb(seen.__traceback__)
    own = [one for one in frames if one.filename == file or _is_somebodys(one.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}" if own else ""


def _is_somebodys(file: str) -> bool:
    """Whether a file belongs neither to Sordino nor to Python nor to an installed library."""
    return not file.startswith(("<", *_OURS, *_LIBRARIES))


def _file_of(thing: Any) -> str:
    return str(getattr(sys.modules.get(thing.__module__), "__file__", None) or "")


def _beginning(thing: Any) -> str:
    """``FILE, line N``: where a class or a function begins."""
    file = _file_of(thing)
    linecache.checkcache(file)
    try:
        return f"{file}, line {inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):  # no source
        return file or f"module {thing.__module__}"
