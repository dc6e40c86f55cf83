"""pack_: the N:M layers of a PyTorch model become packed ones, for inference.

    weft.pack_(model)                              # in place; memory shrinks
    with torch.no_grad():
        y = model(x)

packed.py is the layer, packed_files.py saves and loads such models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional, Union

import torch
from torch import Tensor

from . import arrays
from ._core import Error
from .nn import SparseLayer
from .packed import FEW_TOKENS, PackedLinear, on_host, too_full
from .sparsify import (
    _cannot_compute,
    _kind,
    _leave_fast_paths,
    _places,
    _TiedWeights,
    densify_,
    layers_of,
)
from .tables import table

LAYOUTS = ("auto", "stream", "panel", "both")
_VALUES = ("fp32", "bf16")

# ---- the report


@dataclass(frozen=True)
class PackedLayerReport:
    name: str  # "blocks.0.fc1"
    kind: str  # "linear 768 -> 3072"
    pattern: str  # "2:4"; empty if the layer is not packed
    values: str  # "fp32", "bf16"; empty likewise
    layout: str  # "stream", "panel", "both"; empty likewise
    nbytes_before: int  # of the weight
    nbytes: int
    reason: str

    @property
    def packed(self) -> bool:
        return bool(self.pattern)


class PackReport(list[PackedLayerReport]):
    """What became of every module with a matrix. Prints as a table."""

    nbytes_before = 0  # of all parameters, buffers and packed weights of the model
    nbytes = 0

    @property
    def packed(self) -> list[PackedLayerReport]:
        return [layer for layer in self if layer.packed]

    def __str__(self) -> str:
        header = ("layer", "kind", "pattern", "values", "layout", "bytes before", "bytes", "why")
        rows = [
            (r.name, r.kind, r.pattern, r.values, r.layout, str(r.nbytes_before), str(r.nbytes),
             r.reason)
            for r in self
        ]  # fmt: skip
        share = self.nbytes / self.nbytes_before if self.nbytes_before else 1.0
        return "\n".join([
            *table(header, rows),
            f"{len(self.packed)} of {len(self)} layers are packed: "
            f"{self.nbytes_before} -> {self.nbytes} bytes in all ({share:.2f})",
        ])  # fmt: skip


def bytes_of(model: torch.nn.Module) -> int:
    tensors = itertools.chain(model.parameters(), model.buffers())
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    packs = sum(m.nbytes for m in model.modules() if isinstance(m, PackedLinear))
    return sum(memory.values()) + packs


# ---- which layers, and how


# Least density first, and of equal densities the smaller group.
_PATTERNS = (
    "1:16", "1:8", "2:16", "1:4", "2:8", "4:16", "1:2", "2:4", "4:8", "8:16",
)  # fmt: skip


def _obeyed(weight: Tensor, pattern: Optional[str]) -> tuple[str, str]:
    """The pattern that a weight is packed with, or why there is none."""
    if pattern is None:
        for one in _PATTERNS:
            group = int(one.partition(":")[2])
            if group <= weight.shape[1] and not too_full(weight, one):
                return one, ""
        dense = float((weight != 0).float().mean())
        return "", f"it is no N:M weight: {dense:.0%} of it are non-zero"
    problem = too_full(weight, pattern)
    if not problem:
        return pattern, ""
    plain = pattern.partition("x")[0]  # rows that share by an order of their own are N:M each
    if plain != pattern and not too_full(weight, plain):
        return plain, ""
    return "", problem


@lru_cache(maxsize=None)
def _planned(tokens: int, ins: int, outs: int, pattern: str) -> arrays.ProductPlan:
    return arrays.plan(tokens, ins, outs, pattern, products_per_pack=0)[0]


def _chosen_layout(
    layout: str, tokens: Optional[int], ins: int, outs: int, pattern: str
) -> tuple[str, str]:
    """The layout of a layer and the reason."""
    if layout != "auto":
        return layout, "the layout of the call"
    if tokens is None:
        return layout, f"panels from the first call of more than {FEW_TOKENS} tokens"
    plan = _planned(tokens, ins, outs, pattern)
    if plan.path == "dense":  # faster, and larger
        layout = "stream" if tokens <= FEW_TOKENS else "panel"
        return layout, f"{tokens} tokens: no faster than dense, {plan.reason}"
    return ("stream" if "stream" in plan.path else "panel"), f"{tokens} tokens: {plan.reason}"


@dataclass(frozen=True)
class _Job:
    name: str
    module: torch.nn.Module
    pattern: str
    values: str


@dataclass(frozen=True)
class Request:
    pattern_of: Callable[[str, torch.nn.Module], Optional[str]]  # None: the one that it obeys
    values_of: Callable[[str, Tensor], str]
    filter: Callable[[str, torch.nn.Module], bool]
    layout: str
    tokens: Optional[int]


def _cannot_pack(module: torch.nn.Module) -> str:
    """Why the weight of a linear layer stays as it is; empty: it need not."""
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed from other parameters"
    if weight.device.type != "cpu":
        return f"it is on {weight.device}: packed layers compute on the CPU"
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"its weight is {weight.dtype}: packed are float32, bfloat16 and float16"
    return ""


def _jobs(
    model: torch.nn.Module, request: Request
) -> Iterator[tuple[str, torch.nn.Module, Union[_Job, str]]]:
    """Every module with a matrix, and what it is packed as, or why it is not. Changes nothing."""
    parents = dict(model.named_modules())
    tied = _TiedWeights(model)
    for name, module in _places(model):
        sparse = isinstance(module, SparseLayer)
        problem = "" if sparse else _cannot_compute(name, module, parents)
        if not problem and isinstance(module, torch.nn.Conv2d):
            problem = "a convolution: packed layers are linear"
        problem = problem or _cannot_pack(module)
        other = "" if problem else tied.other_owner(module)
        if other:
            problem = f"tied: shares its weight with {other}"
        if not problem and not request.filter(name, module):
            problem = "the filter leaves it out"
        if problem:
            yield name, module, problem
            continue
        weight = module.effective_weight() if isinstance(module, SparseLayer) else module.weight
        assert isinstance(weight, Tensor)
        pattern, problem = _obeyed(on_host(weight), request.pattern_of(name, module))
        yield name, module, problem or _Job(name, module, pattern, request.values_of(name, weight))


def _pack_one(job: _Job, request: Request) -> PackedLayerReport:
    module, kind = job.module, _kind(job.module)
    weight = module._parameters["weight"]
    assert weight is not None
    before = weight.numel() * weight.element_size()
    outs, ins = weight.shape
    layout, reason = _chosen_layout(request.layout, request.tokens, ins, outs, job.pattern)
    first = "panel" if layout == "panel" else "stream"
    matrix = arrays.pack(on_host(weight), None, job.pattern, values=job.values, layout=first)
    if matrix.nbytes >= before:
        reason = f"packed it would have {matrix.nbytes} bytes"
        return PackedLayerReport(job.name, kind, "", "", "", before, before, reason)
    del module._parameters["weight"], weight
    module.__class__ = PackedLinear
    assert isinstance(module, PackedLinear)
    module._hold(matrix, layout, job.name)
    shown = "both" if layout == "both" else matrix.layout
    return PackedLayerReport(
        job.name, kind, job.pattern, job.values, shown, before, module.nbytes, reason
    )


def pack_layers(model: torch.nn.Module, request: Request) -> PackReport:
    report = PackReport()
    report.nbytes_before = bytes_of(model)
    found = list(_jobs(model, request))
    if not any(isinstance(what, _Job) for _, _, what in found):
        why = next((f": {name or 'the model'}: {what}" for name, _, what in found), "")
        raise Error(f"the model has no layer to pack{why}")
    densify_(model)
    for name, module, what in found:
        if isinstance(what, _Job):
            report.append(_pack_one(what, request))
            continue
        size = sum(p.numel() * p.element_size() for p in module.parameters(False) if p.dim() >= 2)
        report.append(PackedLayerReport(name, _kind(module), "", "", "", size, size, what))
    _leave_fast_paths(model, PackedLinear)
    report.nbytes = bytes_of(model)
    return report


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise Error(f"{name} '{value}' is not known: it can be {', '.join(known)}")


def pack_(
    model: torch.nn.Module,
    pattern: Optional[str] = None,
    values: str = "fp32",
    *,
    filter: Optional[Callable[[str, torch.nn.Module], bool]] = None,
    tokens: Optional[int] = None,
    layout: str = "auto",
) -> PackReport:
    """Packs the ``nn.Linear`` of a model whose weights are N:M, in place, for inference.

    The model was trained with `sparsify_`, densified, converted, or loaded with its zeros. A weight
    that does not obey the pattern stays as it is, and the report says why; so do convolutions.

    Args:
        pattern: ``"2:4"``. None: that of the recipe, or the sparsest up to 8:16 that is obeyed.
        values: how weights are stored: ``"fp32"``, or ``"bf16"``, rounded. bfloat16 weights are
            stored as bf16 in any case. Sums are float32.
        filter: called with name and module; true for the layers to pack.
        tokens: rows of x per call. The planner measures which layout is faster for that many, and
            the layer keeps it: ``tokens=1`` to generate text. None: streams, and a layer that
            gets more than 16 tokens becomes panels at that call, for good.
        layout: ``"stream"`` or ``"panel"`` forces one. ``"both"`` is the fastest for any number of
            tokens, and with fp32 larger than the dense weight.

    Returns a report with ``nbytes_before`` and ``nbytes`` of the model and of each layer.

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.mul_(arrays.mask(model[0].weight, "2:4"))
    >>> report = pack_(model)
    >>> report[0].pattern, report.nbytes < report.nbytes_before
    ('2:4', True)
    """
    check_choice("values", values, _VALUES)
    check_choice("layout", layout, LAYOUTS)
    if tokens is not None and tokens < 1:
        raise Error(f"tokens is {tokens}: it must be at least 1")
    if pattern is not None:
        arrays.diversity((4, 4), pattern)  # it must exist
    patterns = {name: layer.pattern for name, layer in layers_of(model)}
    return pack_layers(
        model,
        Request(
            lambda name, module: pattern or patterns.get(name),
            lambda name, weight: "bf16" if weight.dtype == torch.bfloat16 else values,
            filter or (lambda name, module: True),
            layout,
            tokens,
        ),
    )
