"""pack_: the N:M layers of a PyTorch model without their zeros, for inference.

    weft.pack_(model)                              # in place; memory shrinks
    with torch.no_grad():
        y = model(x)
    weft.save_packed(model, "model.safetensors")   # what `weft check` and `weft unpack` read
    weft.load_packed_(another, "model.safetensors")

A packed layer holds its weight once, in one of two layouts. Of a 2:4 weight, beside dense fp32:

    layout   fp32   bf16   best for
    stream   0.53   0.28   up to 16 tokens per call; more are multiplied 16 at a time
    panel    0.76   0.51   more
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import arrays, ops
from ._core import Error
from .arrays import PackedMatrix
from .files import pack_file, unpack_file
from .nn import SparseLayer
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

FEW_TOKENS = 16  # where the core's kernels for streams end

_LAYOUTS = ("auto", "stream", "panel", "both")
_VALUES = ("fp32", "bf16")
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
            matrix = _with_layout(matrix, wanted)
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
            self.matrix = _with_layout(self.matrix, "panel")
        elif many and self.layout == "stream":
            # All at once the core would make panels beside the stream, and keep them.
            parts = [self.matrix.forward(part, bias) for part in x.split(FEW_TOKENS)]
            return torch.cat(parts)
        return self.matrix.forward(x, bias)

    # ---- saving, loading, copies

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "packed"] = _as_bytes(self.matrix)

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
        host = _host(weight)
        problem = _too_full(host, self.pattern)
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


def _with_layout(matrix: PackedMatrix, layout: str) -> PackedMatrix:
    return arrays.pack(
        matrix.dense(), matrix.mask(), matrix.pattern, values=matrix.values, layout=layout
    )


def _host(weight: Tensor) -> Tensor:
    return weight.detach().to("cpu", torch.float32).contiguous()


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


def _bytes_of(model: torch.nn.Module) -> int:
    tensors = itertools.chain(model.parameters(), model.buffers())
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    packs = sum(m.nbytes for m in model.modules() if isinstance(m, PackedLinear))
    return sum(memory.values()) + packs


# ---- which layers, and how


# Least density first, and of equal densities the smaller group.
_PATTERNS = (
    "1:16", "1:8", "2:16", "1:4", "2:8", "4:16", "1:2", "2:4", "4:8", "8:16",
)  # fmt: skip


def _too_full(weight: Tensor, pattern: str) -> str:
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


def _obeyed(weight: Tensor, pattern: Optional[str]) -> tuple[str, str]:
    """The pattern that a weight is packed with, or why there is none."""
    if pattern is None:
        for one in _PATTERNS:
            group = int(one.partition(":")[2])
            if group <= weight.shape[1] and not _too_full(weight, one):
                return one, ""
        dense = float((weight != 0).float().mean())
        return "", f"it is no N:M weight: {dense:.0%} of it are non-zero"
    problem = _too_full(weight, pattern)
    if not problem:
        return pattern, ""
    plain = pattern.partition("x")[0]  # rows that share by an order of their own are N:M each
    if plain != pattern and not _too_full(weight, plain):
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
class _Request:
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
    model: torch.nn.Module, request: _Request
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
        pattern, problem = _obeyed(_host(weight), request.pattern_of(name, module))
        yield name, module, problem or _Job(name, module, pattern, request.values_of(name, weight))


def _pack_one(job: _Job, request: _Request) -> PackedLayerReport:
    module, kind = job.module, _kind(job.module)
    weight = module._parameters["weight"]
    assert weight is not None
    before = weight.numel() * weight.element_size()
    outs, ins = weight.shape
    layout, reason = _chosen_layout(request.layout, request.tokens, ins, outs, job.pattern)
    first = "panel" if layout == "panel" else "stream"
    matrix = arrays.pack(_host(weight), None, job.pattern, values=job.values, layout=first)
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


def _pack_layers(model: torch.nn.Module, request: _Request) -> PackReport:
    report = PackReport()
    report.nbytes_before = _bytes_of(model)
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
    report.nbytes = _bytes_of(model)
    return report


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
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
    _check_choice("values", values, _VALUES)
    _check_choice("layout", layout, _LAYOUTS)
    if tokens is not None and tokens < 1:
        raise Error(f"tokens is {tokens}: it must be at least 1")
    if pattern is not None:
        arrays.diversity((4, 4), pattern)  # it must exist
    patterns = {name: layer.pattern for name, layer in layers_of(model)}
    return _pack_layers(
        model,
        _Request(
            lambda name, module: pattern or patterns.get(name),
            lambda name, weight: "bf16" if weight.dtype == torch.bfloat16 else values,
            filter or (lambda name, module: True),
            layout,
            tokens,
        ),
    )


# ---- files


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as problem:
        raise ImportError("packed files need safetensors: pip install safetensors") from problem
    return safetensors


def _packed_layers(model: torch.nn.Module) -> dict[str, PackedLinear]:
    """By the name of the weight in a dense checkpoint."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if isinstance(module, PackedLinear)
    }


def _prefix(weight_name: str) -> str:
    """"fc1." of "fc1.weight"."""
    return weight_name.removesuffix("weight")


def _dense_state(model: torch.nn.Module, layers: dict[str, PackedLinear]) -> dict[str, Tensor]:
    """The state dict of the model before pack_; every tensor with memory of its own."""
    state = model.state_dict()
    for name, layer in layers.items():
        del state[_prefix(name) + "packed"]
        weight = layer.dense_weight()
        state[name] = weight.bfloat16() if layer.values == "bf16" else weight
    seen: set[int] = set()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise Error(f"{name} is a {type(value).__name__}: safetensors hold tensors only")
        value = value.detach().contiguous()
        address = value.untyped_storage().data_ptr()
        state[name] = value.clone() if address in seen else value  # tied weights
        seen.add(address)
    return state


def save_packed(model: torch.nn.Module, path: Union[str, os.PathLike[str]]) -> dict[str, Any]:
    """Writes a packed model as `weft pack` does: safetensors with the names of the dense model.

    `weft check` tests the file, `weft unpack` makes a dense checkpoint of it. bf16 values are
    written as BF16 weights. The file appears whole or not at all. While it is written, the dense
    weights are in memory and beside the file. Returns the report of `weft.pack_file`.
    """
    layers = _packed_layers(model)
    if not layers:
        raise Error("the model has no packed layer: call weft.pack_(model) first")
    tensors = {name: {"pattern": layer.pattern, "axis": "in"} for name, layer in layers.items()}
    metadata = {"format": "pt", "weft.sparsity": json.dumps({"version": 1, "tensors": tensors})}
    path = Path(path)
    if not path.parent.is_dir():
        raise Error(f"{path}: {path.parent} is not a directory")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        dense = os.path.join(folder, "dense.safetensors")
        _safetensors().torch.save_file(_dense_state(model, layers), dense, metadata=metadata)
        return pack_file(dense, path)


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """What the file says of its packed tensors (docs/format.md), and the type of their values."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if "weft.packed" not in metadata:
                raise Error(f"{path} has no packed weights: load it as usual, and call weft.pack_")
            entries = json.loads(metadata["weft.packed"])["tensors"]
            for name, entry in entries.items():
                stored = file.get_slice(name + ".weft_values").get_dtype()
                entry["values"] = "bf16" if stored == "BF16" else "fp32"
    except (OSError, safetensors.SafetensorError) as problem:
        raise Error(f"{path}: {problem}") from problem
    return entries


def _read_dense(path: Path) -> dict[str, Tensor]:
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        dense = os.path.join(folder, "dense.safetensors")
        unpack_file(path, dense)  # checks every byte that is not a value
        return _safetensors().torch.load_file(dense)


def _as_bytes(matrix: PackedMatrix) -> Tensor:
    return torch.frombuffer(bytearray(matrix.to_bytes()), dtype=torch.uint8)


def _load_state(model: torch.nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """All of it, or an error of one line that names the first tensor that does not fit."""
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    extra = [name for name in state if name not in own]
    if missing:
        raise Error(f"{path} has no {missing[0]}, which the model has ({len(missing)} are missing)")
    if extra:
        raise Error(f"{path} has {extra[0]}, which the model has not ({len(extra)} are too many)")
    try:
        model.load_state_dict(state)
    except RuntimeError as problem:
        raise Error(f"{path}: {' '.join(str(problem).split())}") from problem


def load_packed_(
    model: torch.nn.Module,
    path: Union[str, os.PathLike[str]],
    *,
    tokens: Optional[int] = None,
    layout: str = "auto",
) -> PackReport:
    """Loads what `save_packed` or `weft pack` wrote, and packs the same layers, in place.

    ``model`` is dense, or packed already. ``tokens`` and ``layout`` as in `pack_`, for layers that
    are not packed yet. While it is loaded, the dense weights are in a temporary file.
    """
    _check_choice("layout", layout, _LAYOUTS)
    if layers_of(model):
        raise Error("the model is sparsified: load_packed_ takes a dense or a packed one")
    path = Path(path)
    state = _read_dense(path)
    entries = _entries(path)
    before = _bytes_of(model)
    loaded = {name: m for name, m in _packed_layers(model).items() if name in entries}
    for name, layer in loaded.items():
        pattern, values = entries[name]["pattern"], entries[name]["values"]
        matrix = arrays.pack(
            _host(state.pop(name)), None, pattern, values=values, layout=layer.matrix.layout
        )
        state[_prefix(name) + "packed"] = _as_bytes(matrix)
    _load_state(model, state, path)
    del state
    rest = {_prefix(name).removesuffix("."): e for name, e in entries.items() if name not in loaded}
    request = _Request(
        lambda name, module: rest[name]["pattern"],
        lambda name, weight: rest[name]["values"],
        lambda name, module: name in rest,
        layout,
        tokens,
    )
    report = _pack_layers(model, request) if rest else PackReport()
    report.extend(_loaded(_prefix(name).removesuffix("."), m) for name, m in loaded.items())
    report.nbytes_before, report.nbytes = before, _bytes_of(model)
    return report


def _loaded(name: str, layer: PackedLinear) -> PackedLayerReport:
    kind = f"linear {layer.in_features} -> {layer.out_features}"
    return PackedLayerReport(
        name, kind, layer.pattern, layer.values, layer.matrix.layout, layer.nbytes, layer.nbytes,
        "it was packed before",
    )  # fmt: skip
