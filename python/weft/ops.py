"""The operators torch.ops.weft.*: the three products of a layer, as functions of their arguments.

    prepare(weight, scores, clock!, layer, training)           begins a pass: masks that are due
    linear(x, weight, bias, scores, key, layer) -> y           and conv2d
    linear_backward(g, x, weight, scores, key, layer, ...) -> dx, dw, ds
    packed_linear(x, bias, layer, outs) -> y                   of a packed layer; no backward

``layer`` names the engine that has the masks and packs of a module. ``key`` is a copy of the clock
after `prepare`: seed, step, call and first token, which choose the sample of the gradient, and the
stamp of the masks. The first token is that of the rank, which the backward pass fills in. A product
with any other key than that of the last `prepare` begins a pass of its own, without training. With
the same arguments an operator gives the same result; what the engine keeps (packs) only saves work.

Modules call `begin` and `product`: where nothing traces or intercepts, these run the functions behind
the operators themselves, because torch's dispatch of a custom operator takes 0.2 ms a call.

fp32 on the CPU runs on weft's kernels; so do bfloat16 activations of a linear layer with an fp32
weight, under autocast, where the CPU has a unit for them. Other dtypes and devices run the same
formulas on torch's operators with masked operands (`_Plain`).
"""

# torch reads the types of the operators off these functions; 2.4 does not know list[int], nor
# annotations that are strings.
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import _core
from ._core import Error
from .engine import Engine, engine_of


def _address(tensor: Optional[Tensor]) -> int:
    return 0 if tensor is None else tensor.data_ptr()


_functions: Dict[Any, Callable[..., Any]] = {}  # of the operators


def _operator(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    def register(function: Callable[..., Any]) -> Any:
        operator = torch.library.custom_op(name, **{"mutates_args": (), **options})(function)
        _functions[operator] = function
        return operator

    return register


def _is_ordinary(arguments: Tuple[Any, ...]) -> bool:
    """Whether a call needs no operator: no graph is made, and no dispatch mode is to see it."""
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and all(type(a) in (Tensor, torch.nn.Parameter) for a in arguments if isinstance(a, Tensor))
    )


@_operator("weft::prepare", mutates_args={"clock"})
def prepare(
    weight: Tensor, scores: Optional[Tensor], clock: Tensor, layer: int, training: bool
) -> None:
    engine = engine_of(layer)
    engine.begin_pass(weight, scores, training)
    clock.copy_(torch.tensor(engine.open_pass(), dtype=torch.int64))


@prepare.register_fake
def _(weight: Tensor, scores: Optional[Tensor], clock: Tensor, layer: int, training: bool) -> None:
    pass


def begin(
    weight: Tensor, scores: Optional[Tensor], clock: Tensor, layer: int, training: bool
) -> None:
    """`prepare`, for a module."""
    arguments = weight, scores, clock, layer, training
    if not _is_ordinary(arguments):
        return prepare(*arguments)
    with torch.no_grad():
        _functions[prepare](*arguments)


_products: Dict[Any, Any] = {}  # of the operators with a gradient: the same as autograd functions


def product(operator: Any, *arguments: Any) -> Tensor:
    """`linear` or `conv2d`, for a module."""
    return (_products[operator].apply if _is_ordinary(arguments) else operator)(*arguments)


def _register_gradient(operator: Any, gradient: Callable[..., Any]) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            _save(ctx, arguments, None)
            return _functions[operator](*arguments)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradient(ctx, *gradients)

    operator.register_autograd(gradient, setup_context=_save)
    _products[operator] = Product


def _call(operator: Any, *arguments: Any) -> Any:
    return (_functions[operator] if _is_ordinary(arguments) else operator)(*arguments)


# ---- weft's kernels, or torch's operators: each in one place


def _fp8(x: Tensor, format: str) -> Tensor:
    host = Engine.host(x)
    return torch.from_numpy(_core.round_fp8(host.numpy(), format)).to(x.device, x.dtype)


class _Plain:
    """The formulas on torch's operators, for dtypes and devices that weft's kernels do not take."""

    def __init__(self, engine: Engine, weight: Tensor) -> None:
        self.engine, self.weight = engine, weight
        self.fp8 = engine.core.fp8

    def operand(self) -> Tensor:
        w = self.engine.effective(self.weight)
        return _fp8(w, "e4m3") if self.fp8 else w

    def backward_operand(self) -> Tensor:
        w = self.engine.effective(self.weight)
        mask = self.engine.mask(w, backward=True)
        w = w if mask is None else w * mask
        return _fp8(w, "e5m2") if self.fp8 else w

    def gradient(self, g: Tensor, key: List[int]) -> Tensor:
        """The sample of g that dW is made of."""
        host = Engine.host(g)
        scales = torch.empty_like(host)
        sizes = list(g.shape) if g.dim() == 4 else host.numel() // max(1, g.shape[-1])
        if self.engine.core.sample_scales(host.data_ptr(), sizes, key[:4], scales.data_ptr()):
            g = g * scales.to(g.device, g.dtype)
        return _fp8(g, "e5m2") if self.fp8 else g

    def input(self, x: Tensor, format: str) -> Tensor:
        return _fp8(x, format) if self.fp8 else x

    def keep(self, dw: Tensor) -> Tensor:
        """Of a masked gradient, what the mask keeps."""
        mask = self.engine.mask(dw) if self.engine.core.masks_gradient else None
        return dw if mask is None else dw * mask


def _score_gradient(engine: Engine, weight: Tensor, dw: Tensor, scores: Tensor) -> Tensor:
    if not engine.core.trains_scores:  # the optimizer will not see it
        return torch.zeros_like(scores)
    wide = weight.dtype == torch.float64
    dtype = torch.float64 if wide else torch.float32
    values = weight.detach().to("cpu", dtype).contiguous()
    gradient = dw.to("cpu", dtype).contiguous()
    out = torch.empty(scores.shape, dtype=dtype)
    engine.core.score_gradient(values.data_ptr(), gradient.data_ptr(), out.data_ptr(), wide)
    return out.to(scores.device, scores.dtype)


def _begin(layer: int, weight: Tensor, scores: Optional[Tensor], key: Tensor) -> Engine:
    engine = engine_of(layer)
    if not engine.enter_pass(key.tolist()):
        engine.begin_pass(weight, scores, False)
    engine.calls += 1
    return engine


# ---- linear


@_operator("weft::linear")
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
) -> Tensor:
    engine = _begin(layer, weight, scores, key)
    if not engine.is_packed(x, weight):
        plain = _Plain(engine, weight)
        return F.linear(plain.input(x, "e4m3"), plain.operand().to(x.dtype), bias)
    rows = x.contiguous()
    outs, ins = weight.shape
    y = x.new_empty((*x.shape[:-1], outs))
    engine.core.forward(
        _address(engine.values(weight)), _address(scores), _address(rows),
        rows.numel() // max(1, ins), _address(bias), _address(y), engine.is_narrow(x),
    )  # fmt: skip
    return y


@linear.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@_operator("weft::linear_backward")
def linear_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    needs_x: bool,
    needs_weight: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    engine, pass_key = engine_of(layer), key.tolist()
    engine.require_stamp(pass_key)
    pass_key[3] = engine.first_token(g)
    dx, dw, ds = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    outs, ins = weight.shape
    if engine.is_packed(x, weight) and g.dtype == x.dtype:
        narrow = engine.is_narrow(x)
        rows, gradient = x.contiguous(), g.contiguous()
        tokens = gradient.numel() // max(1, outs)
        common = _address(engine.values(weight)), _address(scores), _address(gradient)
        if needs_x:
            dx = torch.empty(x.shape, dtype=x.dtype)
            engine.core.backward_data(*common, tokens, _address(dx), narrow)
        if needs_weight:
            dw = torch.empty(weight.shape, dtype=weight.dtype)
            engine.core.backward_weight(
                *common, _address(rows), tokens, pass_key[:4], _address(dw), narrow
            )
    else:
        plain = _Plain(engine, weight)
        if needs_x:
            rounded = _fp8(g, "e5m2") if plain.fp8 else g
            dx = rounded @ plain.backward_operand().to(g.dtype)
        if needs_weight:
            sampled = plain.gradient(g, pass_key).reshape(-1, outs)
            rows = plain.input(x, "e5m2").reshape(-1, ins)
            dw = plain.keep((sampled.t() @ rows).to(weight.dtype))
    if needs_weight and scores is not None:
        ds = _score_gradient(engine, weight, dw, scores)
    return dx, dw, ds


@linear_backward.register_fake
def _(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    needs_x: bool,
    needs_weight: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if needs_x else 0),
        weight.new_empty(weight.shape if needs_weight else 0),
        weight.new_empty(scores.shape if needs_weight and scores is not None else 0),
    )


def _save(ctx: Any, inputs: Tuple[Any, ...], output: Optional[Tensor]) -> None:
    x, weight, bias, scores, key, layer = inputs[:6]
    ctx.save_for_backward(x, weight, scores, key)
    ctx.layer = layer
    ctx.geometry = inputs[6:]


def _linear_backward(ctx: Any, g: Tensor) -> Tuple[Any, ...]:
    x, weight, scores, key = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, needs_scores = ctx.needs_input_grad[:4]
    dx, dw, ds = _call(
        linear_backward, g, x, weight, scores, key, ctx.layer, needs_x, needs_weight or needs_scores
    )
    return (
        dx if needs_x else None,
        dw if needs_weight else None,
        g.reshape(-1, g.shape[-1]).sum(0, dtype=weight.dtype) if needs_bias else None,
        ds if needs_scores else None,
        None,
        None,
    )


_register_gradient(linear, _linear_backward)


# ---- convolution. geometry: stride, padding, dilation (two numbers each), groups


@_operator("weft::conv2d")
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
) -> Tensor:
    engine = _begin(layer, weight, scores, key)
    if not engine.is_packed(x, weight):
        plain = _Plain(engine, weight)
        operand = plain.operand().to(x.dtype)
        return F.conv2d(plain.input(x, "e4m3"), operand, bias, stride, padding, dilation, groups)
    y = torch.empty(engine.core.out_sizes(list(x.shape)), dtype=x.dtype)
    engine.core.forward(
        _address(engine.values(weight)), _address(scores), _address(x), list(x.shape),
        list(x.stride()), _address(bias), _address(y),
    )  # fmt: skip
    return y


@conv2d.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
) -> Tensor:
    sizes = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i]
        + 1
        for i in range(2)
    ]
    return x.new_empty((x.shape[0], weight.shape[0], *sizes))


@_operator("weft::conv2d_backward")
def conv2d_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
    needs_x: bool,
    needs_weight: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    engine, pass_key = engine_of(layer), key.tolist()
    engine.require_stamp(pass_key)
    pass_key[3] = engine.first_token(g)
    dx, dw, ds = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if engine.is_packed(x, weight) and g.dtype == torch.float32:
        common = _address(engine.values(weight)), _address(scores), _address(g), list(g.stride())
        if needs_x:
            dx = torch.empty(x.shape, dtype=x.dtype)
            engine.core.backward_data(*common, _address(dx), list(x.shape))
        if needs_weight:
            dw = torch.empty(weight.shape, dtype=weight.dtype)
            engine.core.backward_weight(
                *common, _address(x), list(x.shape), list(x.stride()), pass_key[:4], _address(dw)
            )
    else:
        plain = _Plain(engine, weight)

        def gradients(gradient: Tensor, input: Tensor, w: Tensor, which: List[bool]) -> Any:
            return torch.ops.aten.convolution_backward(
                gradient, input, w, None, stride, padding, dilation, False, [0, 0], groups, which
            )

        if needs_x:
            rounded = _fp8(g, "e5m2") if plain.fp8 else g
            operand = plain.backward_operand().to(g.dtype)
            dx = gradients(rounded, x, operand, [True, False, False])[0]
        if needs_weight:
            sampled = plain.gradient(g.contiguous(), pass_key)
            rows = plain.input(x, "e5m2")
            dw = gradients(sampled, rows, weight.detach().to(g.dtype), [False, True, False])[1]
            dw = plain.keep(dw.to(weight.dtype))
    if needs_weight and scores is not None:
        ds = _score_gradient(engine, weight, dw, scores)
    return dx, dw, ds


@conv2d_backward.register_fake
def _(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    scores: Optional[Tensor],
    key: Tensor,
    layer: int,
    stride: List[int],
    padding: List[int],
    dilation: List[int],
    groups: int,
    needs_x: bool,
    needs_weight: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if needs_x else 0),
        weight.new_empty(weight.shape if needs_weight else 0),
        weight.new_empty(scores.shape if needs_weight and scores is not None else 0),
    )


def _conv2d_backward(ctx: Any, g: Tensor) -> Tuple[Any, ...]:
    x, weight, scores, key = ctx.saved_tensors
    needs_x, needs_weight, needs_bias, needs_scores = ctx.needs_input_grad[:4]
    dx, dw, ds = _call(
        conv2d_backward, g, x, weight, scores, key, ctx.layer, *ctx.geometry,
        needs_x, needs_weight or needs_scores,
    )  # fmt: skip
    return (
        dx if needs_x else None,
        dw if needs_weight else None,
        g.sum((0, 2, 3)) if needs_bias else None,
        ds if needs_scores else None,
        *[None] * 6,
    )


_register_gradient(conv2d, _conv2d_backward)


# ---- packed layers, for inference (packed.py)

# By number, which is all that a graph can hold.
packed_layers: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


@torch.library.custom_op("weft::packed_linear", mutates_args=())
def packed_linear(x: Tensor, bias: Optional[Tensor], layer: int, outs: int) -> Tensor:
    """y = x Wᵀ + bias in float32; y in the dtype of x. x: [..., ins], y: [..., outs]"""
    module = packed_layers.get(layer)
    if module is None:
        raise Error("the module of this packed layer is gone: keep the model while its graph is in use")
    rows = x.detach().reshape(-1, x.shape[-1]).to(torch.float32).contiguous()
    own = None if bias is None else bias.detach().to(torch.float32).contiguous()
    return module._product(rows, own).to(x.dtype).reshape(*x.shape[:-1], outs)


@packed_linear.register_fake
def _(x: Tensor, bias: Optional[Tensor], layer: int, outs: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], outs)
