"""A single step of several participants from the same weights: one pass, and gradients of the weights for each of them.

Participants that begin at the same model and take one step share it: their examples go through the network together,
and back, and only the products that give the weights' gradients are separated, and written where they are needed. For
networks whose trained weights all lie in linear layers and convolutions; the idea is that of per-example gradients in
private training ([Goo15]), with a participant in the place of an example.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Share:
    """One participant's part of a pass: its rows of the batch, and where its gradients of each parameter go."""

    rows: slice
    gradients: dict[str, torch.Tensor]


def shareable(template: nn.Module) -> nn.Module | None:
    """A copy whose linear layers and convolutions separate participants.

    None where other layers have weights that are trained, or only some of theirs, where two layers share one such
    weight, or where batch norm mixes examples.
    """
    module = copy.deepcopy(template)
    trained = [one for _, one in module.named_parameters(remove_duplicate=False) if one.requires_grad]
    if len(trained) != len(set(trained)):
        return None
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
            return None
        own = {one.requires_grad for one in part.parameters(recurse=False)}
        if True not in own:
            continue
        if False in own:
            return None
        if isinstance(part, nn.Linear):
            layer: nn.Module = _Linear(name, part)
        elif isinstance(part, nn.Conv2d) and part.padding_mode == "zeros" and not isinstance(part.padding, str):
            layer = _Convolution(name, part)
        else:
            return None
        if not name:
            return None
        parent, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(parent), leaf, layer)
    return module


def share(module: nn.Module, shares: Sequence[Share]) -> None:
    """Set the participants of the next pass of a `shareable` module. Gradients are added to what is there."""
    for part in module.modules():
        if isinstance(part, _Shared):
            part.shares = [(one.rows, one.gradients[part.names[0]], one.gradients.get(part.names[1])) for one in shares]


class _Shared(nn.Module):
    """Weight, bias and the shares of a layer."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, name: str, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.names = (f"{name}.weight", f"{name}.bias")
        self.weight, self.bias = layer.weight, layer.bias
        self.shares: list[tuple[slice, torch.Tensor, torch.Tensor | None]] = []


class _Linear(_Shared):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _LinearOfEach.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            values, self.weight, self.bias, self.shares
        )
        return result


class _Convolution(_Shared):
    def __init__(self, name: str, layer: nn.Conv2d) -> None:
        super().__init__(name, layer)
        self.form = (layer.stride, layer.padding, layer.dilation, layer.groups)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _ConvolutionOfEach.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            values, self.weight, self.bias, self.form, self.shares
        )
        return result


class _LinearOfEach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: Any, shares: Any) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        ctx.shares = shares
        return functional.linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        for rows, of_weight, of_bias in ctx.shares:
            mine = slopes[rows].flatten(0, -2)
            of_weight.addmm_(mine.t(), values[rows].flatten(0, -2))
            if of_bias is not None:
                of_bias += mine.sum(0)
        return (slopes @ weight if ctx.needs_input_grad[0] else None), None, None, None


class _ConvolutionOfEach(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: Any, form: Any, shares: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        ctx.form, ctx.shares = form, shares
        return functional.conv2d(values, weight, bias, *form)

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.form

        def back(slopes: torch.Tensor, values: torch.Tensor, wanted: list[bool]) -> Any:
            return torch.ops.aten.convolution_backward(
                slopes, values, weight, [len(weight)], stride, padding, dilation, False, [0, 0], groups, wanted
            )

        for rows, of_weight, of_bias in ctx.shares:
            _, by_weight, by_bias = back(slopes[rows], values[rows], [False, True, of_bias is not None])
            of_weight += by_weight
            if of_bias is not None:
                of_bias += by_bias
        by_values = back(slopes, values, [True, False, False])[0] if ctx.needs_input_grad[0] else None
        return by_values, None, None, None, None
