"""attach: the decay of the recipes, their counters and masks follow an optimizer's steps.

The decay λ(1 − m)w joins the gradient once per optimizer step, after clipping: in the optimizer's
step hook, or, if step() is given a closure, when the closure has made the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from . import _core, nn
from ._core import Error
from .distributed import (
    ORDER,
    Ranks,
    describe_draws,
    follow_batch_sizes,
    is_sharded,
    local_part,
    refuse_fsdp1,
    require_equal_states,
)
from .sparsify import layers_of


@dataclass
class _Followed:
    """A layer, and its Parameters as the optimizer has them: under FSDP2, sharded ones."""

    name: str
    layer: nn.SparseLayer
    weight: Tensor
    scores: Optional[Tensor]

    def require_same_weight(self) -> None:
        now = self.layer.weight
        if now is self.weight or (is_sharded(self.weight) and not is_sharded(now)):  # gathered
            return
        raise Error(
            f"{self.name}: its weight is another Parameter than at weft.attach: the order is "
            f"{ORDER}"
        )


class Attachment:
    """What `attach` returns. `detach()` takes the hooks away; printed, it says how ranks sample."""

    def __init__(
        self,
        layers: list[tuple[str, nn.SparseLayer]],
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        check_masks_every: int,
    ) -> None:
        self._layers = [
            _Followed(name.removeprefix("module."), layer, layer.weight, layer.scores)  # of DDP
            for name, layer in layers
        ]
        self._ranks = ranks
        self._check_every = check_masks_every
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        for _, layer in layers:
            layer._weft.attached = True
            layer._weft.ranks = ranks

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        for one in self._layers:
            one.layer._weft.attached = False
            one.layer._weft.ranks = None

    def __str__(self) -> str:
        tokens = {
            one.name: (one.layer._weft.tokens, one.layer._weft.unit)
            for one in self._layers
            if _core.recipe(one.layer.recipe)["samples_gradient"]
        }
        return (
            f"{len(self._layers)} sparse layers, {self._ranks.size} ranks: "
            f"{describe_draws(self._ranks, tokens)}"
        )

    # ---- hooks

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Optional[tuple[tuple[Any, ...], dict[str, Any]]]:
        # Hooks of a method get the optimizer as the first argument too.
        own = args[1:] if args and args[0] is optimizer else args
        closure = own[0] if own else kwargs.get("closure")
        if closure is None:
            self._change_gradients(optimizer)
            return None

        def with_decay() -> Any:
            loss = closure()
            self._change_gradients(optimizer)
            return loss

        if own:
            return (*args[: len(args) - len(own)], with_decay, *own[1:]), kwargs
        return args, {**kwargs, "closure": with_decay}

    def _after(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if _was_skipped(optimizer):
            return
        for one in self._layers:
            one.layer._weft.count_step(is_sharded(one.weight))
        step = self._layers[0].layer.step
        if self._check_every > 0 and step % self._check_every == 0:
            self.check_masks()

    def check_masks(self) -> None:
        """Compares masks, permutations and β of the ranks; all of them must call.

        The first layer that differs is an Error, on every rank, which names it and the rank. If the
        ranks are found to have batches of different sizes, a warning says so, and from then on each
        draws its own samples of gradients.
        """
        engines = {one.name: one.layer._weft for one in self._layers}
        states = {name: engine.core.state() for name, engine in engines.items()}
        require_equal_states(self._ranks, states, self._layers[0].layer.step)
        follow_batch_sizes(self._ranks, {name: engine.tokens for name, engine in engines.items()})

    @torch.no_grad()
    def _change_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if _was_skipped(optimizer):
            return
        scale = getattr(optimizer, "grad_scale", None)  # fused optimizers unscale gradients themselves
        for one in self._layers:
            one.require_same_weight()
            if one.scores is not None and not one.layer._weft.core.trains_scores:
                # Nothing is left to learn: momentum is not to move the scores on by itself. They
                # still require a gradient: DDP and FSDP2 wait for one of every Parameter they know.
                one.scores.grad = None
        for group in optimizer.param_groups:
            members = {id(p) for p in group["params"]}
            rate = float(group.get("lr", 0.0))
            for one in self._layers:
                if id(one.weight) in members and one.weight.grad is not None:
                    _decay(one, rate, None if scale is None else float(scale))


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """By a GradScaler that found an infinity, in a fused optimizer."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and float(found) > 0


def _decay(one: _Followed, rate: float, scale: Optional[float]) -> None:
    """The core adds the decay, on its own copy where it cannot do so in place."""
    core = one.layer._weft.core
    if not core.decays or not core.sparse:
        return
    assert one.weight.grad is not None
    wide = one.weight.dtype != torch.float32
    dtype = torch.float64 if wide else torch.float32
    whole_from, part_of = _places(one)
    values = whole_from(one.weight, dtype)
    gradient = whole_from(one.weight.grad, dtype)
    added = gradient if scale is None else torch.zeros_like(values)
    core.add_decay(values.data_ptr(), added.data_ptr(), rate, wide)
    part_of(values, one.weight)
    if scale is not None:
        added = gradient + scale * added
    part_of(added, one.weight.grad)


def _places(one: _Followed) -> tuple[Callable[..., Tensor], Callable[[Tensor, Tensor], None]]:
    """How a parameter or its gradient becomes what the core takes, outputs first; and back.

    Of a sharded one, this rank's part goes to its places in the whole, which is zero elsewhere: the
    decay of a weight depends on no other.
    """
    matrix = one.layer._matrix

    def whole_from(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return matrix(tensor.detach()).to("cpu", dtype).contiguous()

    def part_of(values: Tensor, tensor: Tensor) -> None:
        if values.data_ptr() != tensor.data_ptr():
            matrix(tensor).copy_(values)

    if not is_sharded(one.weight):
        return whole_from, part_of
    numbers = torch.arange(one.weight.numel()).view(matrix(one.weight).shape)
    device = one.weight.to_local().device  # type: ignore[attr-defined]
    own = local_part(matrix(numbers).contiguous().to(device), one.weight).cpu()

    def whole_from_shard(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        values = torch.zeros(numbers.numel(), dtype=dtype)
        values[own.reshape(-1)] = tensor.to_local().detach().reshape(-1).to("cpu", dtype)  # type: ignore[attr-defined]
        return values

    def shard_of(values: Tensor, tensor: Tensor) -> None:
        tensor.to_local().copy_(values[own.reshape(-1)].view(own.shape))  # type: ignore[attr-defined]

    return whole_from_shard, shard_of


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    process_group: Any = None,
    equal_batches: bool = True,
    check_masks_every: int = 0,
) -> Attachment:
    """Makes masks, decay and schedules of a sparsified model follow ``optimizer.step()``.

    Once, after sparsify_ and after the optimizer is made. Gradient accumulation, several parameter
    groups, LR schedulers, closures and GradScaler work as usual; a step that GradScaler skips does
    not count.

    With DDP or FSDP2 the order is: sparsify_, ``fully_shard`` or ``DistributedDataParallel``, the
    optimizer, attach; the rest of the script stays. Every rank calls sparsify_ with the same
    arguments. Masks, permutations and β are those of the whole weight, equal on all ranks.

    Args:
        process_group: the data-parallel ranks; None: all of them.
        equal_batches: for recipes that sample gradients (``t-sr-ste``, ``s-ste``). True: the ranks
            have batches of equal sizes, as ``DistributedSampler`` makes them; then they draw what
            one process would draw from their batches in rank order. Nobody asks the other ranks:
            if sizes differ after all, gradients are still unbiased, but the draws of the ranks are
            no longer independent. False: every rank draws on its own. So it also does in a layer
            whose tokens per rank are not a multiple of the pattern's group. ``print(attachment)``
            says which it is.
        check_masks_every: compare a hash of the masks, permutations and β of all ranks after every
            so many steps, and the sizes of their batches; 0: never. See `Attachment.check_masks`.
    """
    for name, module in model.named_modules():
        refuse_fsdp1(name or "the model", module)
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
        raise Error(
            "the optimizer holds none of the model's sparse weights: make it from the model's "
            f"parameters; the order is {ORDER}"
        )
    for name, layer in own:
        if layer.scores is not None and id(layer.scores) not in trained:
            raise Error(
                f"{name}: the optimizer trains the weights and not the scores of "
                f"'{layer.recipe}': make it after sparsify_, from all parameters of the model"
            )
    return Attachment(own, optimizer, Ranks(process_group, equal_batches), check_masks_every)
