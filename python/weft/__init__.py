"""weft: N:M sparse training.

N:M sparsity keeps at most N of every M consecutive weights. On arrays and files::

    >>> import numpy as np, weft
    >>> w = np.arange(8, dtype=np.float32).reshape(2, 4)
    >>> weft.mask(w, "2:4").astype(int).tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]

and in PyTorch (2.4 or newer), in place, on any ``nn.Module``::

    report = weft.sparsify_(model, recipe="s-ste", pattern="2:4")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weft.attach(model, optimizer)
    ...  # the training loop as it was
    weft.densify_(model)

NumPy is all that the first half needs; torch is imported when the second half is used.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._core import Error, isa, recipes, set_threads, threads
from ._core import version as __version__
from .arrays import (
    PackedMatrix,
    check,
    convert_layer,
    diversity,
    mask,
    pack,
    plan,
    round_fp8,
    sample,
    soft_threshold,
)
from .files import check_file, convert_file, pack_file, prune_file, unpack_file

# What needs torch, and the module that has it.
_NEEDS_TORCH = {
    "nn": None,
    "Attachment": "optimizer",
    "LayerReport": "sparsify",
    "Method": "method",
    "Report": "sparsify",
    "attach": "optimizer",
    "calibrate_and_convert_": "convert",
    "dense_state_dict": "sparsify",
    "densify_": "sparsify",
    "load_packed_": "packed_files",
    "pack_": "packing",
    "save_packed": "packed_files",
    "sparsify_": "sparsify",
    "telemetry": "sparsify",
    "weights_changed": "sparsify",
}

__all__ = [
    "Error",
    "PackedMatrix",
    "__version__",
    "check",
    "check_file",
    "convert_file",
    "convert_layer",
    "diversity",
    "isa",
    "mask",
    "pack",
    "pack_file",
    "plan",
    "prune_file",
    "recipes",
    "round_fp8",
    "sample",
    "set_threads",
    "soft_threshold",
    "threads",
    "unpack_file",
    *_NEEDS_TORCH,
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    try:
        import torch
    except ImportError as problem:
        raise ImportError(
            f"weft.{name} needs PyTorch 2.4 or newer, which is not installed: pip install torch"
        ) from problem
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 4):
        raise ImportError(f"weft.{name} needs PyTorch 2.4 or newer; this is {torch.__version__}")
    module = importlib.import_module(f".{_NEEDS_TORCH[name] or name}", __name__)
    return module if _NEEDS_TORCH[name] is None else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
