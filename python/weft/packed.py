"""PackedLinear: a linear layer that holds an N:M weight without its zeros, for inference.

The weight is there once, in one of two layouts. Of a 2:4 weight, beside dense fp32:

    layout   fp32   bf16   best for
    stream   0.53   0.28   up to 16 tokens per call; more are multiplied 16 at a time
    panel    0.76   0.51   more

packing.py makes a model of these, packed_files.py saves and loads it.
"""

from __future__ import annotations

import itertools
from typing import Any, Optional

import torch
from torch import Tensor

from . import arrays, ops
from ._core import Error
from .arrays import PackedMatrix

FEW_TOKENS = 16  # where the core's kernels for streams end

_handles = itertools.count(1)


class PackedLinear(torch.nn.Module):
    """A linear layer that holds a packed weight: no Parameter, no gradient, CPU only.

    ``bias`` stays a Parameter. In the state dict the weight is ``packed``: its bytes as
    docs/format.md draws them, a uint8 tensor made when asked for. A dense ``weight`` that obeys the
    pattern can be loaded too.
    """

    bias: Optional[Tensor]

    def __init__(
        self, matrix: PackedMatrix, bias: Optional[Tensor] = None, *, layout: str = "auto"
    ) -> None:
        super().__init__()
        self.register_parameter("bias", None if bias is None else torch.nn.Parameter(bias.detach()))
        self._hold(matrix, layout, "")

    def _hold(self, matrix: PackedMatrix, layout: str, label: str) -> None:
        self.in_features: int = matrix.ins
        self.out_features: int = matrix.outs
        self.layout = layout  # what was asked for; matrix.layout is what there is
        self._label = label
        self._register()
        self._take(matrix)

    def _register(self) -> None:
        self._handle = next(_handles)
        ops.packed_layers[self._handle] = self

    def _take(self, matrix: PackedMatrix) -> None:
        """The matrix, in the layout that this layer is to have."""
        wanted = "panel" if self.layout == "panel" else "stream"
        if self.layout != "auto" and matrix.layout != wanted:
            matrix = with_layout(matrix, wanted)
        if self.layout == "both":  # the core makes panels beside a stream when many tokens come
            matrix.forward(torch.zeros(FEW_TOKENS + 1, self.in_features))
        self.matrix = matrix

    # ---- what users ask for

    pattern = property(lambda self: self.matrix.pattern)
    values = property(lambda self: self.matrix.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self.matrix.nbytes

    def dense_weight(self) -> Tensor:
        """[outs, ins] with its zeros, as a new tensor."""
        return torch.from_numpy(self.matrix.dense())

    # ---- the product

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        bias = None if self.bias is None else self.bias.detach()
        y = torch.ops.weft.packed_linear(x, bias, self._handle, self.out_features)
        if torch.is_autocast_enabled("cpu"):
            return y.to(torch.get_autocast_dtype("cpu"))
        return y

    def _check(self, x: Tensor) -> None:
        name = self._label or "PackedLinear"
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise Error(
                f"{name}: an input of {list(x.shape)} for a layer of {self.in_features} features"
            )
        if x.device.type != "cpu":
            raise Error(f"{name}: the input is on {x.device}: packed layers compute on the CPU")
        if torch.is_grad_enabled() and x.requires_grad:
            raise Error(
                f"{name}: packed layers are for inference and have no gradient: call the model "
                "under torch.no_grad()"
            )

    def _product(self, x: Tensor, bias: Optional[Tensor]) -> Tensor:
        """x: [tokens, ins], fp32"""
        many = x.shape[0] > FEW_TOKENS and self.matrix.layout == "stream"
        if many and self.layout == "auto":
            self.matrix = with_layout(self.matrix, "panel")
        elif many and self.layout == "stream":
            # All at once the core would make panels beside the stream, and keep them.
            parts = [self.matrix.forward(part, bias) for part in x.split(FEW_TOKENS)]
            return torch.cat(parts)
        return self.matrix.forward(x, bias)

    # ---- saving, loading, copies

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "packed"] = as_bytes(self.matrix)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        unexpected: list[str] = []
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected, error_msgs
        )
        packed, dense = prefix + "packed", prefix + "weight"
        unexpected_keys.extend(key for key in unexpected if key not in (packed, dense))
        try:
            if packed in state_dict:
                self._load(PackedMatrix.from_bytes(state_dict[packed].cpu().numpy().tobytes()))
            elif dense in state_dict:
                self._load(self._packed_like_this(state_dict[dense]))
            else:
                missing_keys.append(packed)
        except Error as problem:
            error_msgs.append(f"{packed if packed in state_dict else dense}: {problem}")

    def _load(self, matrix: PackedMatrix) -> None:
        if (matrix.outs, matrix.ins) != (self.out_features, self.in_features):
            raise Error(
                f"a packed [{matrix.outs}, {matrix.ins}] for a layer of "
                f"[{self.out_features}, {self.in_features}]"
            )
        self._take(matrix)

    def _packed_like_this(self, weight: Tensor) -> PackedMatrix:
        host = on_host(weight)
        problem = too_full(host, self.pattern)
        if problem:
            raise Error(problem)
        return arrays.pack(
            host, None, self.pattern, values=self.values, layout=self.matrix.layout
        )

    def __setstate__(self, state: dict[str, Any]) -> None:  # of copies and pickles
        super().__setstate__(state)
        self._register()
        self._take(self.matrix)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, pattern={self.pattern}, values={self.values}, "
            f"layout={self.matrix.layout}"
        )


def with_layout(matrix: PackedMatrix, layout: str) -> PackedMatrix:
    return arrays.pack(
        matrix.dense(), matrix.mask(), matrix.pattern, values=matrix.values, layout=layout
    )


def on_host(weight: Tensor) -> Tensor:
    return weight.detach().to("cpu", torch.float32).contiguous()


def too_full(weight: Tensor, pattern: str) -> str:
    """Why a weight does not obey a pattern; empty: it does."""
    if not torch.isfinite(weight).all():
        return "it has weights that are not finite"
    found = arrays.check(weight, pattern)
    if found:
        return ""
    return (
        f"{found.violations} groups have more non-zeros than {pattern} keeps; the first at "
        f"(out, in) = {found.first_violation[:2] if found.first_violation else ''}"
    )


def as_bytes(matrix: PackedMatrix) -> Tensor:
    return torch.frombuffer(bytearray(matrix.to_bytes()), dtype=torch.uint8)
