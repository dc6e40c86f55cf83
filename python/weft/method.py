"""Method: a training method whose mask, and operand if wanted, are Python functions of the weight.

The core trains it like a recipe of its own. It runs a *base* recipe, which lends the gradient, the
decay and the dense phases, and the masks that the base would find are replaced by those of the
function (engine.py, `_ask_method`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _core
from ._core import Error

# The base never comes to look for a mask of its own after the first. Not 0: that is a fixed mask,
# with which the core refuses decay.
_NEVER = 2**40


@dataclass(frozen=True)
class Method:
    """A recipe of your own, for ``weft.sparsify_(model, recipe=Method(...))``.

    Args:
        mask: called with a weight [outs, ins] or [outs, ins, kernel_h, kernel_w]; returns a bool
            tensor of that shape, true for the weights to keep. It must obey the pattern. The weight
            is a copy; what it needs besides (scores, a step count) it can hold itself.
        every: optimizer steps between two calls of ``mask``; 0: it is called once. It is called
            before the first pass, and then before training passes only. An evaluation uses the mask
            of the last training pass.
        base: the recipe that lends everything else: "ste" (dense gradient), "sr-ste" (decay on
            pruned weights), "transposable" or "t-sr-ste" (the mask must be N:M along outputs too),
            with parts: "sr-ste+lambda=1e-4+gradient=mvue".
        operand: called with weight and mask; returns what the products multiply with in place of
            the weight, of its shape and dtype. What the mask drops is not looked at. It is called
            after every optimizer step. The gradient of the operand is taken for that of the weight.
        name: for reports; by default the name of ``mask``.

    >>> import weft
    >>> weft.Method(mask=lambda w: weft.mask(w, "2:4"), base="sr-ste", name="mine")
    mine (base sr-ste)
    """

    mask: Callable[[Tensor], Tensor]
    every: int = 1
    base: str = "ste"
    operand: Optional[Callable[[Tensor, Tensor], Tensor]] = None
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.mask) or not (self.operand is None or callable(self.operand)):
            raise Error("Method: mask and operand are functions")
        if not isinstance(self.every, int) or self.every < 0:
            raise Error(f"Method: every={self.every}: accepted is a number of steps, or 0 for once")
        for part in ("mask_every", "order_every"):  # both make the base look for masks
            if part in self.base:
                raise Error(f"Method: base '{self.base}': say {part} with every=, not in the base")
        _core.recipe(self.base)  # it must exist
        self._require_masks_from_outside()
        if not self.name:
            own = getattr(self.mask, "__name__", type(self.mask).__name__)
            object.__setattr__(self, "name", own)

    def _require_masks_from_outside(self) -> None:
        probe = _core.LinearLayer(8, 8)
        try:
            probe.configure(
                self.core_recipe + "+dense_head=0", "2:4", 1, 0, 0, "", 1, 0, 1, False,
                _core.Planner("dense"),
            )  # fmt: skip
            probe.give_mask(torch.zeros(8, 8, dtype=torch.bool).numpy())
        except Error:
            accepted = "ste, sr-ste, transposable and t-sr-ste, with parts"
            if self.every == 0:
                accepted = "static and ste, with parts"
            raise Error(
                f"Method: base '{self.base}' with every={self.every} takes no mask from outside: "
                f"accepted are {accepted}"
            ) from None

    @property
    def core_recipe(self) -> str:
        """What the core runs."""
        return f"{self.base}+mask_every={_NEVER if self.every else 0}"

    def __repr__(self) -> str:
        return f"{self.name} (base {self.base})"

    # ---- for the engine

    def is_due(self, last: int, step: int) -> bool:
        """Whether ``mask``, last called at step ``last``, is to be called again."""
        return self.every > 0 and step // self.every > last // self.every

    def find_mask(self, weight: Tensor, label: str) -> Tensor:
        with torch.no_grad():
            found = self.mask(_copy(weight))
        where = f"{label or 'a layer'}: the mask function of '{self.name}'"
        _require_tensor(found, weight.shape, torch.bool, where)
        return found.detach().cpu().contiguous()

    def find_operand(self, weight: Tensor, mask: Tensor, label: str) -> Tensor:
        if self.operand is None:
            return weight
        with torch.no_grad():
            found = self.operand(_copy(weight), mask)
        where = f"{label or 'a layer'}: the operand function of '{self.name}'"
        _require_tensor(found, weight.shape, weight.dtype, where)
        return found.detach().to(weight.device).contiguous()


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().clone(memory_format=torch.contiguous_format)


def _require_tensor(found: Any, shape: torch.Size, dtype: torch.dtype, where: str) -> None:
    got = (
        f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    )
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != dtype:
        raise Error(f"{where} returned {got}; wanted is {dtype} {list(shape)}")


Recipe = Union[str, Method]


def split(recipe: Recipe) -> tuple[str, Optional[Method]]:
    """The recipe that the core runs, and whose masks it gets from outside."""
    return (recipe.core_recipe, recipe) if isinstance(recipe, Method) else (recipe, None)
