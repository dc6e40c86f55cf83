"""Functions on arrays: NumPy arrays and CPU tensors go in without a copy, and the same kind comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from . import _core
from ._core import Error


def _numpy(array: Any, name: str, dtypes: tuple[str, ...] = ("float32",)) -> np.ndarray:
    """The array's memory as NumPy sees it. Says what is wrong with one that the core cannot take."""
    if hasattr(array, "detach"):  # a tensor of torch
        array = array.detach()
        if array.device.type != "cpu":
            raise Error(f"{name} is on {array.device}: only CPU tensors are accepted")
        if str(array.dtype).removeprefix("torch.") not in dtypes:
            raise Error(f"{name} is {array.dtype}: accepted is {' or '.join(dtypes)}")
        array = array.numpy()
    elif not isinstance(array, np.ndarray):
        array = np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    if array.dtype.name not in dtypes:
        raise Error(f"{name} is {array.dtype.name}: accepted is {' or '.join(dtypes)}")
    if not array.flags.c_contiguous:
        raise Error(f"{name} is not contiguous: pass a contiguous copy of it")
    return array


def _like(result: np.ndarray, model: Any) -> Any:
    """The result as a tensor, if the argument was one."""
    if not hasattr(model, "detach"):
        return result
    import torch

    return torch.from_numpy(result)


def mask(w: Any, pattern: str = "2:4", *, transposable: bool = False, solver: str = "") -> Any:
    """The N:M mask that keeps the most magnitude: a boolean array of the shape of ``w``.

    ``w`` is [outs, ins] or [outs, ins, kernel_h, kernel_w], float32 or float64; groups run along
    inputs. A ``transposable`` mask is N:M along outputs too. ``solver`` is one of `weft solvers`.

    >>> w = np.array([[3, 1, 2, 4]], dtype=np.float32)
    >>> mask(w, "2:4").tolist()
    [[True, False, False, True]]
    """
    array = _numpy(w, "w", ("float32", "float64"))
    return _like(_core.mask(array, pattern, transposable, solver), w)


@dataclass(frozen=True)
class Check:
    """What `check` found. It is true if the weights obey the pattern."""

    pattern: str
    groups: int
    short_groups: int  # cut short by the edge of the matrix
    violations: int
    first_violation: Optional[tuple[int, int, int]]  # (out, in, tap)

    def __bool__(self) -> bool:
        return self.violations == 0


def check(w: Any, pattern: str = "2:4", *, axis: str = "in") -> Check:
    """Whether the non-zeros of ``w`` obey a pattern along ``axis``: "in", "out" or "both".

    >>> bool(check(np.array([[1, 0, 2, 0]], dtype=np.float32)))
    True
    >>> check(np.array([[1, 3, 2, 0]], dtype=np.float32)).first_violation
    (0, 2, 0)
    """
    if axis not in ("in", "out", "both"):
        raise Error(f"axis '{axis}' is not known: it can be in, out or both")
    array = _numpy(w, "w", ("float32", "float64", "bool"))
    found = [
        _core.count_groups(array != 0, pattern, along_outputs)
        for along_outputs, wanted in ((False, ("in", "both")), (True, ("out", "both")))
        if axis in wanted
    ]
    return Check(
        pattern,
        sum(one["groups"] for one in found),
        sum(one["short_groups"] for one in found),
        sum(one["violations"] for one in found),
        next((one["first_violation"] for one in found if one["first_violation"]), None),
    )


@dataclass(frozen=True)
class Diversity:
    """log2 of the number of masks that each structure admits."""

    log2_unstructured: float
    log2_nm: float
    log2_transposable: float
    log2_transposable_paper: float  # the formula of Hubara et al. 2021, which over-counts
    transposable_exact: bool  # False: an asymptotic estimate
    weights: int


def diversity(shape: tuple[int, ...], pattern: str = "2:4") -> Diversity:
    """How many masks a weight of this shape has (docs/masks.md).

    >>> round(diversity((4, 4), "2:4").log2_transposable, 3)  # log2 of 90
    6.492
    """
    if len(shape) not in (2, 4):
        raise Error(f"a shape of {len(shape)} dimensions: accepted are 2 (linear) and 4 (conv)")
    taps = shape[2] * shape[3] if len(shape) == 4 else 1
    return Diversity(**_core.diversity(shape[0], shape[1], taps, pattern))


def soft_threshold(w: Any, pattern: str = "2:4", *, beta: Optional[float] = None) -> tuple[Any, float]:
    """S-STE's continuous projection of ``w``, and its scale β: found from ``w``, or the given one.

    >>> values, beta = soft_threshold(np.array([[4, 1, 2, 3]], dtype=np.float32))
    >>> values.tolist(), round(beta, 3)
    ([[4.400000095367432, 0.0, 0.0, 2.200000047683716]], 2.2)
    """
    values, scale = _core.soft_threshold(_numpy(w, "w"), pattern, beta)
    return _like(values, w), scale


def sample(
    g: Any,
    pattern: str = "2:4",
    *,
    sampler: str = "mvue",
    seed: int = 0,
    step: int = 0,
    layer: int = 0,
    call: int = 0,
    first_group: int = 0,
) -> Any:
    """A minimum-variance unbiased N:M sample of a gradient [tokens, outs], along its tokens.

    The same arguments give the same sample, whatever the number of threads.
    """
    array = _numpy(g, "g")
    return _like(_core.sample(array, pattern, sampler, seed, step, layer, call, first_group), g)


def round_fp8(x: Any, format: str = "e4m3") -> Any:
    """``x`` as an FP8 tensor with one scale would hold it: e4m3 or e5m2, dequantised.

    >>> round_fp8(np.array([1.0, 0.3, 448.0], dtype=np.float32)).tolist()
    [1.0, 0.3125, 448.0]
    """
    return _like(_core.round_fp8(_numpy(x, "x"), format), x)


class PackedMatrix:
    """An N:M weight [outs, ins] without its zeros, and the three products of a linear layer with it.

    Arrays are float32; sums are float32 whatever ``values`` are stored as.
    """

    def __init__(self, core: _core.PackedMatrix) -> None:
        self._core = core

    outs = property(lambda self: self._core.outs)
    ins = property(lambda self: self._core.ins)
    pattern = property(lambda self: self._core.pattern)
    layout = property(lambda self: self._core.layout)
    values = property(lambda self: self._core.value_type)
    density = property(lambda self: self._core.density)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with what products have prepared so far."""
        return self._core.nbytes

    def forward(self, x: Any, bias: Any = None) -> Any:
        """y = x Wᵀ + bias. x: [tokens, ins]"""
        bias_array = None if bias is None else _numpy(bias, "bias")
        return _like(self._core.forward(_numpy(x, "x"), bias_array), x)

    def backward_data(self, g: Any) -> Any:
        """dx = g W. g: [tokens, outs]"""
        return _like(self._core.backward_data(_numpy(g, "g")), g)

    def backward_weight(self, g: Any, x: Any) -> Any:
        """dw = gᵀ x where the mask keeps it, zero elsewhere."""
        return _like(self._core.backward_weight(_numpy(g, "g"), _numpy(x, "x")), g)

    def dense(self) -> np.ndarray:
        """[outs, ins], with its zeros."""
        return self._core.dense()

    def mask(self) -> np.ndarray:
        return self._core.mask()

    def to_bytes(self) -> bytes:
        """As docs/format.md draws it."""
        return self._core.to_bytes()

    @staticmethod
    def from_bytes(data: bytes) -> "PackedMatrix":
        """Every byte that is not a value is checked."""
        return PackedMatrix(_core.PackedMatrix.from_bytes(data))

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles
        return PackedMatrix.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return (
            f"PackedMatrix([{self.outs}, {self.ins}], {self.pattern}, {self.layout}, "
            f"{self.values}, {self.nbytes} bytes)"
        )


def pack(
    w: Any, mask: Any = None, pattern: str = "2:4", *, values: str = "fp32", layout: str = "panel"
) -> PackedMatrix:
    """Packs what ``mask`` keeps of ``w`` [outs, ins]; without a mask, the largest weights.

    ``values`` is fp32 or bf16. ``layout`` is "panel", for products, or "stream", which is the
    smallest and the fastest for few tokens.

    >>> w = np.array([[3, 1, 2, 4]], dtype=np.float32)
    >>> pack(w).forward(np.ones((1, 4), dtype=np.float32)).tolist()
    [[7.0]]
    """
    if layout not in ("panel", "stream"):
        raise Error(f"layout '{layout}' is not known: it can be panel or stream")
    weights = _numpy(w, "w")
    bits = _core.mask(weights, pattern, False, "") if mask is None else _numpy(mask, "mask", ("bool",))
    if bits.shape != weights.shape:
        raise Error(f"a mask of {list(bits.shape)} for a weight of {list(weights.shape)}")
    return PackedMatrix(_core.PackedMatrix(weights, bits, pattern, values, layout == "stream"))


@dataclass(frozen=True)
class ProductPlan:
    product: str  # fwd, bwd_x, bwd_w
    path: str  # dense, sparse, sparse stream
    ratio: float  # dense time / (sparse time + packing)
    reason: str


def plan(
    tokens: int,
    ins: int,
    outs: int,
    pattern: str = "2:4",
    *,
    transposable: bool = False,
    masked_gradient: bool = False,
    products_per_pack: int = 1,
) -> list[ProductPlan]:
    """Dense or sparse, for each product of a linear layer on this machine. Measures what it must."""
    rows = _core.plan(tokens, ins, outs, pattern, transposable, masked_gradient, products_per_pack)
    return [ProductPlan(**row) for row in rows]


@dataclass(frozen=True)
class ConvertedLayer:
    weight: Any  # zero outside the mask
    mask: Any
    bias_change: Any  # to be added to the bias; None: it stays
    error_before: Optional[float]  # of the mask alone: ‖W'X − WX‖² / ‖WX‖²
    error_after: Optional[float]


def convert_layer(
    w: Any,
    gram: Any = None,
    pattern: str = "2:4",
    method: str = "adaprune",
    *,
    mean: Any = None,
    samples: int = 0,
    support: str = "",
    transposable: bool = False,
    damping: float = 0.01,
    tolerance: float = 1e-3,
    iterations: int = 200,
) -> ConvertedLayer:
    """Prunes one trained layer so that what it puts out changes least.

    ``gram`` is the mean of x xᵀ over the layer's inputs, ``mean`` that of x (with it the bias takes
    part of the error), both float64. ``method`` and ``support`` as in `weft convert`.
    """
    weights = _numpy(w, "w", ("float32", "float64"))
    done = _core.convert_layer(
        np.ascontiguousarray(weights, dtype=np.float64),
        None if gram is None else _numpy(gram, "gram", ("float64",)),
        None if mean is None else _numpy(mean, "mean", ("float64",)),
        samples,
        pattern,
        transposable,
        method,
        support,
        mean is not None and method == "adaprune",
        damping,
        tolerance,
        iterations,
    )
    change = done["bias_change"]
    return ConvertedLayer(
        _like(done["weight"].astype(weights.dtype), w),
        _like(done["mask"], w),
        None if change.size == 0 else _like(change, w),
        done["error_before"],
        done["error_after"],
    )
