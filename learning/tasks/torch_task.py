"""Models in torch: say what the module is, and the rest is here. Import this only where such a task is used.

A user's own task takes some twenty lines::

    @dataclass(frozen=True, kw_only=True)
    class Options(TrainingOptions):
        hidden: int = 64
        initial_seed: int = 0

    class Perceptron(TorchTask):
        Options = Options
        classes = 10
        example_shape = (28, 28)

        def module(self) -> nn.Module:
            return nn.Sequential(
                nn.Flatten(), nn.Linear(784, self.options.hidden), nn.ReLU(), nn.Linear(self.options.hidden, 10)
            )

`learning.tasks.torch_images` has those that ship.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from learning.datasets import Dataset
from learning.device import CPU, on_threads
from learning.local_training import Arrays, Batch, Gradient, batches_of_all, blocks, local_change, steps
from learning.options import BLUR_LUS, DP_FEDSGD, LUS
from learning.parameters import Parameters, check_shapes
from learning.public_random import Shuffler
from learning.tasks.dropout import Masks, dropouts
from learning.tasks.shared_step import Share, share
from learning.tasks.torch_module import IGNORED, TorchModule, tensors_of

__all__ = ["IGNORED", "TorchTask"]

_R = TypeVar("_R")

_NUMBERS_SIDE_BY_SIDE: Final = 1 << 27  # of all models trained at once on an accelerator: 512 MB, some five times over

_ROWS_TOGETHER: Final = 80
# Values of a model whose steps cost the processor more in calls than in arithmetic.
_SMALL: Final = 1 << 15
# Participants of one call: each thread holds the activations of so many batches at once.
_SMALL_SIDE_BY_SIDE: Final = 16


class TorchTask(TorchModule):
    """A classifier in torch. A subclass gives ``Options``, ``example_shape``, ``classes`` and `module`.

    It may also give `inputs`, `counted`, `credited` and `loss`, and ``initial_seed`` among its options. Making one sets
    torch to a single thread in this process: several participants share a machine, and sums split over threads would
    differ from run to run. Simulations have threads over participants instead, see `learning.device.use_threads`.
    """

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Train by the method of the options and return new minus old, as `learning.task.Task.local_update`.

        The change is that of `learning.local_training.local_change`; NaN or infinite where training diverged. ``rng``
        also seeds the masks of dropout; torch's generators are neither read nor moved.
        """
        update = np.empty(self.dim, dtype=np.float32)
        self._check(parameters, data)
        self._train(tensors_of(parameters, self.training_device()), data, rng, l2_clip, update)
        self._check_fixed()
        return self._cut(update)

    def local_updates(
        self,
        parameters: Parameters,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float = inf,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """What `local_update` returns for each participant, flat and up to rounding: float32 (participants, dim).

        Written into ``out`` if given: the first touch of fresh memory costs as much as a third of a small network's
        step. On the processor participants are spread over threads; those that take a single step from the same
        weights go through the network together (`learning.tasks.shared_step`), and small models stand side by side. On
        an accelerator all do, and ``out`` may be a tensor of that device.
        """
        for one in data:
            self._check(parameters, one)
        device = self.training_device()
        start = tensors_of(parameters, device)
        updates = np.empty((len(data), self.dim), dtype=np.float32) if out is None else out
        if device.type != CPU:
            at_once = max(1, _NUMBERS_SIDE_BY_SIDE // self.dim)
            for begin in range(0, len(data), at_once):
                chunk = slice(begin, begin + at_once)
                self._train_side_by_side(start, data[chunk], rngs[chunk], l2_clip, updates[chunk])
        elif self._shareable is not None and self._one_step(data):
            template = self._shareable
            on_threads(
                lambda places: self._step_together(template, start, data, rngs, places, updates), _groups(data), _alone
            )
        elif self.vectorized and self.dim <= _SMALL:
            # Those of like size take about as many steps, and wait little for one another.
            by_size = sorted(range(len(data)), key=lambda place: len(data[place]))

            def train_some(begin: int) -> None:
                places = by_size[begin : begin + _SMALL_SIDE_BY_SIDE]
                found = np.empty((len(places), self.dim), np.float32)
                self._train_side_by_side(
                    start, [data[one] for one in places], [rngs[one] for one in places], l2_clip, found
                )
                updates[places] = found

            on_threads(train_some, range(0, len(data), _SMALL_SIDE_BY_SIDE), _alone)
        else:

            def train(place: int) -> None:
                self._train(start, data[place], rngs[place], l2_clip, updates[place])

            on_threads(train, range(len(data)), _alone)
        self._check_fixed()
        return updates

    def _train(self, start: Arrays, data: Dataset, rng: Shuffler, l2_clip: float, update: NDArray[np.float32]) -> None:
        """Train one participant; its change is written to ``update``, (dim,)."""
        device = next(iter(start.values())).device
        module = self._taken(self._template, self._spare)
        trained = torch.from_numpy(update) if device.type == CPU else torch.empty(self.dim, device=device)
        local_change(
            start,
            _written_into(trained, start),
            self.options,
            l2_clip,
            (Batch(torch.from_numpy(rows)) for rows in steps(self.options, len(data), rng)),
            lambda: (Batch(torch.from_numpy(rows)) for rows in blocks(self.options, len(data))),
            self.gradient(module, data, Masks(dropouts(module), rng)),
        )
        if device.type != CPU:
            update[:] = trained.cpu().numpy()
        self._spare.append(module)

    def gradient(self, module: nn.Module, data: Dataset, masks: Masks) -> Gradient:
        """The gradient of one participant's loss, by the weights that each call hands to a module of its own."""
        features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)

        def gradient(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, int]:
            self.set_training(module, training)
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in model.items()}
            device = next(iter(leaves.values())).device
            drawn = masks.draw(len(batch.rows)) if training else {}
            masks_there = {name: mask.to(device) for name, mask in drawn.items()}
            given = self._in_fast_order(leaves) | masks_there | self._fixed_on(device)
            of_batch = labels[batch.rows].to(device)
            inputs = self.inputs(features[batch.rows].to(device))
            loss = self.checked_loss(functional_call(module, given, (inputs,)), of_batch)
            slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return _own(dict(zip(leaves, slopes, strict=True))), int(self.counted(of_batch).sum())

        return gradient

    def _in_fast_order(self, weights: Arrays) -> Arrays:
        """In the order of axes in which a processor is fastest, as measured, at convolutions and pooling; it costs a
        copy of the convolutions' weights. Only of shareable modules: they have no group normalisation, which is slower.
        """
        if self._shareable is None or next(iter(weights.values())).device.type != CPU:
            return weights
        return {
            name: tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
            for name, tensor in weights.items()
        }

    def _one_step(self, data: Sequence[Dataset]) -> bool:
        """Whether every change is that of one step from the weights that all begin with.

        There FedProx and BLUR have nothing to draw back: the one step begins where the round does.
        """
        options = self.options
        if options.method in (LUS, BLUR_LUS):  # they look at the loss once more afterwards
            return False
        if options.frozen:
            return False
        whole = max(map(len, data)) <= options.batch_size
        if options.method == DP_FEDSGD:
            return whole
        return options.local_steps == 1 or (whole and options.local_steps == 0 and options.local_epochs == 1)

    def _step_together(
        self,
        template: nn.Module,
        start: Arrays,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        places: Sequence[int],
        updates: NDArray[np.float32],
    ) -> None:
        """The one step of those at some places of ``data``."""
        module = self.set_training(self._taken(template, self._spare_shareable), True)
        features, labels, drawn, shares, end = [], [], [], [], 0
        for place in places:
            masks = Masks(dropouts(module), rngs[place])
            if self.options.method == DP_FEDSGD:
                rows = np.arange(len(data[place]))
            else:
                (rows,) = steps(self.options, len(data[place]), rngs[place])
            drawn.append(masks.draw(len(rows)))
            features.append(data[place].features[rows])
            labels.append(torch.from_numpy(data[place].labels[rows]))
            updates[place] = 0
            gradients = {name: torch.from_numpy(part) for name, part in self._cut(updates[place]).items()}
            shares.append(Share(slice(end, end := end + len(rows)), gradients))
        share(module, shares)
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in self._in_fast_order(start).items()}
        masks_of_all = {name: torch.cat([one[name] for one in drawn]) for name in drawn[0]}
        inputs = self.inputs(torch.from_numpy(np.concatenate(features)))
        outputs = functional_call(module, leaves | masks_of_all | self._fixed, (inputs,))
        losses = [self.checked_loss(outputs[one.rows], of_one) for one, of_one in zip(shares, labels, strict=True)]
        total = torch.stack(losses).sum().mul(-self.options.client_rate)
        total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        share(module, ())
        self._spare_shareable.append(module)

    def _train_side_by_side(
        self,
        start: Arrays,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float,
        updates: NDArray[np.float32],
    ) -> None:
        """Train several at once, on whatever device ``start`` lies; changes are written to ``updates``."""
        module = self._taken(self._template, self._spare)
        of_each = [Masks(dropouts(module), rng) for rng in rngs]
        device = next(iter(start.values())).device
        fixed = self._fixed_on(device)
        features = torch.from_numpy(np.concatenate([one.features for one in data])).to(device)
        labels = torch.from_numpy(np.concatenate([one.labels for one in data])).to(device)

        def loss(model: Arrays, masks: Arrays, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self.checked_loss(functional_call(module, model | masks | fixed, (self.inputs(features),)), labels)

        slopes_of_each = vmap(grad(loss))

        def gradient(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, torch.Tensor]:
            self.set_training(module, training)
            of_batch = labels[batch.rows]
            if batch.counted is not None:
                of_batch[~batch.counted] = IGNORED
            drawn = {}
            if training:
                examples = [batch.rows.shape[1]] * len(data) if batch.counted is None else batch.counted.sum(1).tolist()
                drawn = _padded([masks.draw(count) for masks, count in zip(of_each, examples, strict=True)])
            masks = {name: mask.to(device) for name, mask in drawn.items()}
            slopes = slopes_of_each(model, masks, features[batch.rows], of_batch)
            return _own(slopes), self.counted(of_batch).flatten(1).sum(1).float()

        def on_device(batches: Iterator[Batch]) -> Iterator[Batch]:
            for batch in batches:
                counted = None if batch.counted is None else torch.from_numpy(batch.counted).to(device)
                yield Batch(torch.from_numpy(batch.rows).to(device), counted)

        trained = torch.empty(len(data), self.dim, device=device)
        model = _written_into(trained, start)
        of_steps, of_all = batches_of_all(self.options, [len(one) for one in data], rngs)
        local_change(start, model, self.options, l2_clip, on_device(of_steps), lambda: on_device(of_all()), gradient)
        torch.as_tensor(updates).copy_(trained)
        self._spare.append(module)

    # -------------------------------------------------------------------------------------- its figures

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean loss in nats (NaN for a diverged model), each over what it counts.

        Raises ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, self.contribution_shapes)
        self.check(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")

        def judged(labels: NDArray[np.int64], outputs: torch.Tensor) -> tuple[float, ...]:
            known = torch.from_numpy(labels).to(outputs.device)
            credited, counted = self.credited(known), int(self.counted(known).sum())
            correct = int(((outputs.argmax(dim=-1) == known) & credited).sum())
            return correct, int(credited.sum()), float(self.checked_loss(outputs, known)) * counted, counted

        found = self._blockwise(parameters, data.features, data.labels, judged)
        correct, credited, loss, counted = (sum(column) for column in zip(*found, strict=True))
        return {"accuracy": correct / max(credited, 1), "loss": loss / max(counted, 1)}

    def predict(self, parameters: Parameters, examples: NDArray[Any]) -> NDArray[np.int64]:
        """As `learning.task.Classifier.predict`; of equal scores the first class."""
        check_shapes(parameters, self.contribution_shapes)

        def best(labels: NDArray[Any], outputs: torch.Tensor) -> NDArray[np.int64]:
            return outputs.argmax(dim=-1).cpu().numpy()

        found = self._blockwise(parameters, examples, examples, best)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _blockwise(
        self,
        parameters: Parameters,
        features: NDArray[Any],
        labels: NDArray[Any],
        judged: Callable[[NDArray[Any], torch.Tensor], _R],
    ) -> list[_R]:
        device = self.training_device()
        model = self._in_fast_order(tensors_of(parameters, device)) | self._fixed_on(device)

        def of_block(start: int) -> _R:
            module = self._taken(self._template, self._spare).eval()
            block = slice(start, start + self.rows_a_block)
            with torch.no_grad():
                inputs = self.inputs(torch.from_numpy(features[block]).to(device))
                outputs = functional_call(module, model, (inputs,))
            self._spare.append(module)
            return judged(labels[block], outputs)

        starts = range(0, len(features), self.rows_a_block)
        return on_threads(of_block, starts, _alone) if device.type == CPU else [of_block(start) for start in starts]


def _alone() -> None:
    """What this thread computes, it computes by itself."""
    torch.set_num_threads(1)


def _groups(data: Sequence[Dataset]) -> list[list[int]]:
    """Places of the participants that step together: some 80 examples, whose values stay near the processor."""
    groups: list[list[int]] = []
    room = 0
    for place, one in enumerate(data):
        if room <= 0:
            groups.append([])
            room = _ROWS_TOGETHER
        groups[-1].append(place)
        room -= len(one)
    return groups


def _written_into(flat: torch.Tensor, start: Arrays) -> Arrays:
    """The model as views of a flat tensor (dim,) or (participants, dim), each a copy of ``start``."""
    model, place = {}, 0
    for name, tensor in start.items():
        part = flat[..., place : place + tensor.numel()]
        part.copy_(tensor.reshape(-1).expand(part.shape))
        model[name] = part.view((*part.shape[:-1], *tensor.shape))
        place += tensor.numel()
    return model


def _own(slopes: Arrays) -> Arrays:
    """Gradients that may be written to: autograd may hand out one array twice, or one that is spread over many."""
    seen: set[int] = set()
    for name, slope in slopes.items():
        if slope.data_ptr() in seen or 0 in slope.stride():
            slopes[name] = slope.clone(memory_format=torch.contiguous_format)
        seen.add(slope.data_ptr())
    return slopes


def _padded(masks: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Masks of all participants, (participants, examples, ...), ones where a participant has fewer examples."""
    return {
        name: nn.utils.rnn.pad_sequence([one[name] for one in masks], batch_first=True, padding_value=1.0)
        for name in masks[0]
    }
