"""What goes into the layers of a model: hooks, passes over batches, and Gram matrices.

    with evaluating(model), watching({layer: inputs.add}):
        for batch in batches:
            run_batch(model, batch)

Forward pre-hooks see the input x of every layer; of that only sums are kept, in float64:

    Inputs   x xᵀ and x                     [cols, cols], [cols]; cols = ins, or ins * kh * kw
    Drift    (x − x') x'ᵀ and x − x'        x of the dense model, x' of a partly converted one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import nn
from ._core import Error

# ---- Gram matrices


_CHUNK = 1 << 22  # elements of float64 inputs at a time


def _rows(module: torch.nn.Module, x: Tensor) -> Iterator[Tensor]:
    """What the rows of the weight are multiplied with: [samples, cols], in pieces."""
    x = x.detach()
    if isinstance(module, torch.nn.Conv2d):
        images = x if x.dim() == 4 else x.unsqueeze(0)
        own = nn.Conv2d._geometry(module)  # type: ignore[arg-type]
        assert own.kernel is not None
        cols, area = own.ins * own.taps, images.shape[2] * images.shape[3]
        for part in images.split(max(1, _CHUNK // max(1, cols * area))):
            taken = F.unfold(part.float(), own.kernel, own.dilation, own.padding, own.stride)
            yield taken.transpose(1, 2).reshape(-1, cols)
    else:
        rows = x.reshape(-1, x.shape[-1])
        yield from rows.split(max(1, _CHUNK // max(1, x.shape[-1])))


class Inputs:
    """Of one layer: sums of x xᵀ and x, and their number."""

    def __init__(self, cols: int) -> None:
        self.second = torch.zeros(cols, cols, dtype=torch.float64)
        self.first = torch.zeros(cols, dtype=torch.float64)
        self.samples = 0

    def add(self, module: torch.nn.Module, x: Tensor) -> None:
        for part in _rows(module, x):
            rows = part.to("cpu", torch.float64)
            self.second.addmm_(rows.t(), rows)
            self.first += rows.sum(0)
            self.samples += rows.shape[0]


class Drift:
    """Of one layer: sums of (x − x') x'ᵀ and x − x', x of the dense model and x' of this one."""

    def __init__(self, cols: int) -> None:
        self.cross = torch.zeros(cols, cols, dtype=torch.float64)
        self.first = torch.zeros(cols, dtype=torch.float64)
        self.comparable = True  # False: a layer was called otherwise in the dense model

    def add(self, module: torch.nn.Module, dense: list[Tensor], now: list[Tensor]) -> None:
        if [x.shape for x in dense] != [x.shape for x in now]:
            self.comparable = False
            return
        for x_dense, x in zip(dense, now):
            for part_dense, part in zip(_rows(module, x_dense), _rows(module, x)):
                rows = part.to("cpu", torch.float64)
                change = part_dense.to("cpu", torch.float64) - rows
                self.cross.addmm_(change.t(), rows)
                self.first += change.sum(0)

    def target(
        self, weight: Tensor, inputs: Inputs, free_bias: bool, damping: float
    ) -> tuple[Tensor, Optional[Tensor]]:
        """W*, and what the bias changes by for it if it is free. weight: [outs, ...], float64"""
        w = weight.flatten(1)
        gram, cross = inputs.second / inputs.samples, self.cross / inputs.samples
        mean, change = inputs.first / inputs.samples, self.first / inputs.samples
        if free_bias:
            gram, cross = gram - torch.outer(mean, mean), cross - torch.outer(change, mean)
        # Without damping, directions that few samples have would get large weights.
        gram.diagonal().add_(damping * gram.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(gram)
        if failed:
            return weight, None
        moved = w + torch.cholesky_solve((w @ cross).t(), factor).t()
        moved[w == 0] = 0  # a weight that is zero stays zero
        bias_change = w @ (mean + change) - moved @ mean if free_bias else None
        return moved.view_as(weight).contiguous(), bias_change


def count_rows(module: torch.nn.Module, x: Tensor) -> int:
    """Rows of `_rows`."""
    if not isinstance(module, torch.nn.Conv2d):
        return x.numel() // max(1, x.shape[-1])
    own = nn.Conv2d._geometry(module)  # type: ignore[arg-type]
    assert own.kernel is not None
    count = x.shape[0] if x.dim() == 4 else 1
    for axis in (0, 1):
        reach = own.dilation[axis] * (own.kernel[axis] - 1) + 1
        space = x.shape[axis - 2] + 2 * own.padding[axis] - reach
        count *= space // own.stride[axis] + 1
    return count


# ---- running the model


class Enough(BaseException):
    """Ends a forward pass whose rest nobody needs. No Exception: models may catch those."""


def run_batch(model: torch.nn.Module, batch: Any) -> None:
    try:
        if isinstance(batch, Tensor):
            model(batch)
        elif isinstance(batch, Mapping):
            model(**batch)
        elif isinstance(batch, (tuple, list)):
            model(*batch)
        else:
            raise Error(
                f"a batch is a {type(batch).__name__}: accepted are tensors, tuples or lists "
                "(model(*batch)) and dicts (model(**batch))"
            )
    except Enough:
        pass


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """In eval() and without gradients; every module gets its mode back.

    Without the fast path of torch's encoder layers, which reads weights and calls no layer: torch
    2.4 takes it though there are hooks.
    """
    modes = [(module, module.training) for module in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, mode in modes:
            module.training = mode


Watcher = Callable[[torch.nn.Module, Tensor], None]


@contextmanager
def watching(watchers: Mapping[torch.nn.Module, Watcher]) -> Iterator[None]:
    """Calls each module's watcher with its input, before it computes."""

    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watchers[module](module, args[0] if args else kwargs["input"])

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in watchers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
