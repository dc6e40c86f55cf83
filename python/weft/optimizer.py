"""attach: the decay of the recipes, their counters and masks follow an optimizer's steps.

The decay λ(1 − m)w joins the gradient once per optimizer step, after clipping: in the optimizer's
step hook, or, if step() is given a closure, when the closure has made the gradients.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import nn
from ._core import Error
from .sparsify import layers_of


class Attachment:
    """What `attach` returns. `detach()` takes the hooks away."""

    def __init__(
        self, layers: list[tuple[str, nn.SparseLayer]], optimizer: torch.optim.Optimizer
    ) -> None:
        self._layers = layers
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        for _, layer in layers:
            layer._weft.attached = True

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for _, layer in self._layers:
            layer._weft.attached = False

    # ---- hooks

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Optional[tuple[tuple[Any, ...], dict[str, Any]]]:
        # Hooks of a method get the optimizer as the first argument too.
        own = args[1:] if args and args[0] is optimizer else args
        closure = own[0] if own else kwargs.get("closure")
        if closure is None:
            self._add_decay(optimizer)
            return None

        def with_decay() -> Any:
            loss = closure()
            self._add_decay(optimizer)
            return loss

        if own:
            return (*args[: len(args) - len(own)], with_decay, *own[1:]), kwargs
        return args, {**kwargs, "closure": with_decay}

    def _after(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if _was_skipped(optimizer):
            return
        for _, layer in self._layers:
            layer._weft.count_step()
            if layer.scores is not None and not layer._weft.core.trains_scores:
                # Nothing is left to learn: momentum is not to move the scores on by itself.
                layer.scores.grad = None
                layer.scores.requires_grad_(False)

    @torch.no_grad()
    def _add_decay(self, optimizer: torch.optim.Optimizer) -> None:
        if _was_skipped(optimizer):
            return
        scale = getattr(optimizer, "grad_scale", None)  # fused optimizers unscale gradients themselves
        for group in optimizer.param_groups:
            members = {id(p) for p in group["params"]}
            rate = float(group.get("lr", 0.0))
            for _, layer in self._layers:
                if id(layer.weight) in members and layer.weight.grad is not None:
                    _decay(layer, rate, None if scale is None else float(scale))


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """By a GradScaler that found an infinity, in a fused optimizer."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and float(found) > 0


def _decay(layer: nn.SparseLayer, rate: float, scale: Optional[float]) -> None:
    core = layer._weft.core
    if not core.decays or not core.sparse:
        return
    assert layer.weight.grad is not None
    weight, gradient = layer._matrix(layer.weight), layer._matrix(layer.weight.grad)
    wide = weight.dtype != torch.float32
    dtype = torch.float64 if wide else torch.float32

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", dtype).contiguous()

    values = own(weight)
    added = own(gradient) if scale is None else torch.zeros_like(values)
    core.add_decay(values.data_ptr(), added.data_ptr(), rate, wide)
    if values.data_ptr() != weight.data_ptr():
        weight.copy_(values)
    if scale is not None:
        gradient.add_(added.to(gradient.device, gradient.dtype), alpha=scale)
    elif added.data_ptr() != gradient.data_ptr():
        gradient.copy_(added)


def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Attachment:
    """Makes masks, decay and schedules of a sparsified model follow ``optimizer.step()``.

    Once, after sparsify_ and after the optimizer is made. Gradient accumulation, several parameter
    groups, LR schedulers, closures and GradScaler work as usual; a step that GradScaler skips does
    not count.
    """
    layers = layers_of(model)
    if not layers:
        raise Error("the model has no sparse layer: call weft.sparsify_ first")
    if any(layer._weft.attached for _, layer in layers):
        raise Error("the model is attached to an optimizer already: detach() that one first")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Error("LBFGS evaluates its closure several times per step: attach another optimizer")
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = [(name, layer) for name, layer in layers if id(layer.weight) in trained]
    if not own:
        raise Error("the optimizer holds none of the model's sparse weights: make it from the model")
    for name, layer in own:
        if layer.scores is not None and id(layer.scores) not in trained:
            raise Error(
                f"{name}: the optimizer trains the weights and not the scores of "
                f"'{layer.recipe}': make it after sparsify_, from all parameters of the model"
            )
    return Attachment(own, optimizer)
