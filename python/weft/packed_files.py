"""save_packed and load_packed_: packed models as safetensors.

    weft.save_packed(model, "model.safetensors")   # what `weft check` and `weft unpack` read
    weft.load_packed_(another, "model.safetensors")
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import arrays
from ._core import Error
from .files import pack_file, unpack_file
from .packed import PackedLinear, as_bytes, on_host
from .packing import (
    LAYOUTS,
    PackedLayerReport,
    PackReport,
    Request,
    bytes_of,
    check_choice,
    pack_layers,
)
from .sparsify import layers_of


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
    check_choice("layout", layout, LAYOUTS)
    if layers_of(model):
        raise Error("the model is sparsified: load_packed_ takes a dense or a packed one")
    path = Path(path)
    state = _read_dense(path)
    entries = _entries(path)
    before = bytes_of(model)
    loaded = {name: m for name, m in _packed_layers(model).items() if name in entries}
    for name, layer in loaded.items():
        pattern, values = entries[name]["pattern"], entries[name]["values"]
        matrix = arrays.pack(
            on_host(state.pop(name)), None, pattern, values=values, layout=layer.matrix.layout
        )
        state[_prefix(name) + "packed"] = as_bytes(matrix)
    _load_state(model, state, path)
    del state
    rest = {_prefix(name).removesuffix("."): e for name, e in entries.items() if name not in loaded}
    request = Request(
        lambda name, module: rest[name]["pattern"],
        lambda name, weight: rest[name]["values"],
        lambda name, module: name in rest,
        layout,
        tokens,
    )
    report = pack_layers(model, request) if rest else PackReport()
    report.extend(_loaded(_prefix(name).removesuffix("."), m) for name, m in loaded.items())
    report.nbytes_before, report.nbytes = before, bytes_of(model)
    return report


def _loaded(name: str, layer: PackedLinear) -> PackedLayerReport:
    kind = f"linear {layer.in_features} -> {layer.out_features}"
    return PackedLayerReport(
        name, kind, layer.pattern, layer.values, layer.matrix.layout, layer.nbytes, layer.nbytes,
        "it was packed before",
    )  # fmt: skip
