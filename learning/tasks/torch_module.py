"""The part of a task in torch that states its module, and the trial of that module before training."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import nn
from torch.nn import functional

from learning.device import AUTO, CPU, CUDA, chosen_device
from learning.local_training import Arrays
from learning.options import TrainingOptions
from learning.own_task import RuleBroken, TaskUnavailable
from learning.parameters import Parameters, Shapes, views
from learning.tasks.backbone import BackboneOptions
from learning.tasks.dropout import replace_dropout
from learning.tasks.inputs import TrainedTask
from learning.tasks.shared_step import shareable
from runtime.text import several

IGNORED: Final = -100
"""Label of what fills up a batch: it counts nowhere."""


class TorchModule(TrainedTask):
    """The half of `learning.tasks.torch_task.TorchTask` that its authors see: what they state, and its defaults."""

    name: str
    Options: ClassVar[type[TrainingOptions]]
    example_dtype: ClassVar[DTypeLike] = np.float32
    """What `inputs` is tried with."""
    rows_a_block: ClassVar[int] = 250
    """Examples evaluated at once: what they need in memory beside the model."""
    vectorized: ClassVar[bool] = False
    """Whether simulations on a processor train several small models of this class in one call, by `torch.func.vmap`. It
    saves time where a step consists of many small operations, and takes the memory of several batches at once."""

    def __init__(self, options: TrainingOptions) -> None:
        """
        ``options``: an instance of ``Options``.

        Raises learning.own_task.RuleBroken: the module can't be trained here; it says why. TaskUnavailable: the
        backbone's file is missing, or is another one.
        """
        self.options = options.settled() if isinstance(options, BackboneOptions) else options
        torch.set_num_threads(1)
        module = self._made()
        self._resting = [name for name, part in module.named_modules() if not part.training]
        self._template, self._fixed = _tried(module, self)
        self._fixed_elsewhere: dict[torch.device, Arrays] = {}
        self._spare: list[nn.Module] = []
        self._shareable = shareable(self._template)
        self._spare_shareable: list[nn.Module] = []

    @abstractmethod
    def module(self) -> nn.Module:
        """Return a new module that maps what `inputs` gives to scores (n, classes).

        Its initial weights may be drawn from torch's generator, which is seeded with ``options.initial_seed`` (0 where
        there is none) around the call and put back afterwards. Parameters that require no gradient and buffers stay as
        they are here: no update carries them. Training may write to neither; so batch norm is refused, unless it is
        left in ``eval()``: what is left so stays so.
        """

    def backbone(self) -> dict[str, torch.Tensor]:
        """The tensors of the file that ``options.backbone`` names, by their names in it, for `module` to take.

        They are mapped from the file, so processes of one machine share them where `module` takes them as they are:
        ``load_state_dict(self.backbone(), assign=True)``.

        Raises OptionError: it is no safetensors file, or the options name none; TaskUnavailable: safetensors is not
        installed.
        """
        if not isinstance(self.options, BackboneOptions):
            raise RuleBroken("its Options have no backbone: derive them from sordino.BackboneOptions", "module")
        return self.options.tensors()

    def inputs(self, features: torch.Tensor) -> torch.Tensor:
        """What the module takes for examples (n, *example_shape): bytes as float32 in 0..1, all else as it is."""
        return features.float() / 255 if features.dtype == torch.uint8 else features

    def counted(self, labels: torch.Tensor) -> torch.Tensor:
        """Which labels count in the loss: bool, shaped as they are."""
        return labels != IGNORED

    def credited(self, labels: torch.Tensor) -> torch.Tensor:
        """Which labels count in the accuracy: bool, shaped as they are."""
        return self.counted(labels)

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the labels that count, in nats; 0 where none does.

        Args:
            outputs: (..., classes) scores before softmax.
            labels: int64 (...), with ``IGNORED`` among them.
        """
        counted = self.counted(labels)
        losses = functional.cross_entropy(
            outputs.flatten(0, -2), labels.clamp(min=0).flatten(), reduction="none"
        ).reshape(labels.shape)
        return torch.where(counted, losses, 0).sum() / counted.sum().clamp(min=1)

    def checked_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """As `loss`. Of several numbers a sum would be taken here and there without a word: RuleBroken."""
        found = self.loss(outputs, labels)
        if not isinstance(found, torch.Tensor) or found.ndim:
            given = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            wanted = "one number, the mean over the labels that count"
            raise RuleBroken(f"loss() gives {given}; it must give {wanted}", "loss")
        return found

    # -------------------------------------------------------------------------------------- the model

    def initial_parameters(self) -> Parameters:
        """The weights of a new `module` that are trained: the same in every process, whatever torch drew before."""
        return {name: tensor.detach().numpy().copy() for name, tensor in _trained(self._made()).items()}

    @cached_property
    def contribution_shapes(self) -> Shapes:
        """Those of the module's parameters that require gradients."""
        return {name: tuple(tensor.shape) for name, tensor in _trained(self._template).items()}

    @classmethod
    def stated_shapes(cls, options: TrainingOptions) -> Shapes:
        """`contribution_shapes` of the task that has these options, without memory for a single weight.

        ``module`` is called on an object that was not initialised, and may look at its options alone.
        """
        bare = cls.__new__(cls)
        bare.options = options
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return {name: tuple(tensor.shape) for name, tensor in _trained(bare.module()).items()}

    def _made(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(getattr(self.options, "initial_seed", 0))
            module = self.module()
        if not isinstance(module, nn.Module):
            raise RuleBroken(f"module() returns {type(module).__name__}; it must return a torch.nn.Module", "module")
        return module

    # -------------------------------------------------------------------------------------- beside

    @staticmethod
    def _taken(template: nn.Module, spare: list[nn.Module]) -> nn.Module:
        """A module of this call's own, since torch puts a call's weights into it; several threads may be at work."""
        try:
            return spare.pop()
        except IndexError:
            return copy.deepcopy(template)  # names and no weights

    def set_training(self, module: nn.Module, training: bool) -> nn.Module:
        """As ``module.train(training)``, but what `module` left in ``eval()`` stays there."""
        module.train(training)
        for name in self._resting:
            module.get_submodule(name).training = False
        return module

    def _fixed_on(self, device: torch.device) -> Arrays:
        """Frozen parameters and buffers, one copy for each device."""
        if device.type == CPU:
            return self._fixed
        if device not in self._fixed_elsewhere:
            self._fixed_elsewhere[device] = {name: tensor.to(device) for name, tensor in self._fixed.items()}
        return self._fixed_elsewhere[device]

    def _check_fixed(self) -> None:
        """Raises RuleBroken: training has written to what no update carries, which the trial didn't show."""
        for fixed in (self._fixed, *self._fixed_elsewhere.values()):
            _check_unwritten([name for name, tensor in fixed.items() if tensor._version])

    def _cut(self, flat: NDArray[np.float32]) -> Parameters:
        """Views of a flat vector, not copies: the first touch of a large model's memory costs as much as a step."""
        return views(flat, self.contribution_shapes, writable=True)

    def training_device(self) -> torch.device:
        """What `learning.device.use_device` chose. Raises TaskUnavailable: torch doesn't find it."""
        chosen = chosen_device()
        if chosen == AUTO:
            chosen = CUDA if torch.cuda.is_available() else CPU
        if chosen == CUDA and not torch.cuda.is_available():
            raise TaskUnavailable(f"task {self.name!r} is to compute on cuda, and torch finds none: choose cpu or auto")
        return torch.device(chosen)


def _tried(module: nn.Module, task: TorchModule) -> tuple[nn.Module, Arrays]:
    """The module as a template: dropout replaced, tried once, and without the memory of its weights.

    Returns it, and the frozen parameters and buffers that it had.
    """
    for attribute, such_as in (("example_shape", "(28, 28)"), ("classes", "10")):
        if not hasattr(task, attribute):
            raise RuleBroken(f"it doesn't say its {attribute}: add a line such as {attribute} = {such_as}")
    shape = task.example_shape
    if isinstance(shape, list):
        task.example_shape = shape = tuple(shape)
    if not (isinstance(shape, tuple | list) and all(isinstance(one, int) for one in shape)):
        meant = f"({shape},)" if isinstance(shape, int) else "a tuple of whole numbers, such as (28, 28)"
        raise RuleBroken(f"its example_shape is {shape!r}: write {meant}")
    _check_trained(_trained(module))
    buffers = dict(module.named_buffers())
    frozen = {name: tensor for name, tensor in module.named_parameters() if not tensor.requires_grad}
    # Each with a count of writes of its own, from 0: a file's weights were written when they were taken.
    fixed = {name: tensor.data for name, tensor in (frozen | buffers).items()}
    copies = {name: fixed[name].clone() for name in buffers}
    replace_dropout(module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        features = torch.from_numpy(np.zeros((2, *task.example_shape), dtype=task.example_dtype))
        try:
            outputs = task.set_training(module, True)(task.inputs(features))
        except Exception as error:
            raise RuleBroken(
                f"the module can't take what inputs() gives for two examples of example_shape {task.example_shape}: "
                f"{type(error).__name__}: {error}",
                "module",
            ) from error
        drew = not torch.equal(torch.get_rng_state(), before)
    if drew:
        raise RuleBroken(
            "the module draws from torch's generator when it runs, so that no run could be repeated: take modules "
            "nn.Dropout for dropout, not functions, nor options of other layers",
            "module",
        )
    if not isinstance(outputs, torch.Tensor):
        raise RuleBroken(f"the module gives {type(outputs).__name__}; it must give one tensor of scores", "module")
    if outputs.ndim < 2 or outputs.shape[0] != 2 or outputs.shape[-1] != task.classes:
        raise RuleBroken(
            f"the module gives scores {tuple(outputs.shape)} for two examples, and classes is {task.classes}: its last "
            f"layer must give {task.classes} for each, (2, ..., {task.classes})",
            "module",
        )
    tried = dict(module.named_buffers())
    changed = [name for name, copy in copies.items() if name not in tried or not torch.equal(tried[name], copy)]
    _check_unwritten(changed)
    bare: dict[torch.Tensor, torch.Tensor] = {  # one for two that are one
        tensor: nn.Parameter(tensor.to("meta"), tensor.requires_grad) for tensor in module.parameters()
    }
    bare |= {tensor: tensor.to("meta") for tensor in buffers.values()}
    for part in list(module.modules()):
        for name, tensor in [
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
        ]:
            if tensor in bare:  # not the empty mask of a dropout
                setattr(part, name, bare[tensor])
    return module, fixed


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that an update carries, in its order."""
    return {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}


def _check_trained(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raises RuleBroken: there is nothing to train, or a parameter that an update can't carry."""
    if not parameters:
        raise RuleBroken("the module must have parameters that require gradients: there is nothing to train", "module")
    others = [f"{name} is {tensor.dtype}" for name, tensor in parameters.items() if tensor.dtype != torch.float32]
    if others:
        raise RuleBroken(
            f"the module has parameters that aren't float32 ({several(others, 3)}): write .float() behind what makes "
            "them",
            "module",
        )


def _check_unwritten(names: Sequence[str]) -> None:
    """Raises RuleBroken: training wrote to buffers or frozen parameters of these names."""
    if names:
        raise RuleBroken(
            f"training changes what no update carries ({several(names, 3)}), and statistics of examples would be in "
            "it: take nn.GroupNorm for batch norm, or track_running_stats=False, or leave a frozen one in eval()",
            "module",
        )


def tensors_of(parameters: Parameters, device: torch.device) -> Arrays:
    """The parameters on a device; on the processor they share memory with the arrays where those can be written to."""
    return {name: torch.from_numpy(_writable(array)).to(device) for name, array in parameters.items()}


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """An array that torch may look into: it takes none that can't be written to."""
    return np.ascontiguousarray(array) if array.flags.writeable else array.copy()
