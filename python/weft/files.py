"""The commands on files as functions: paths in, a report out. Files appear whole or not at all."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Union

from . import _core

Path = Union[str, "os.PathLike[str]"]
Progress = Optional[Callable[[int, int], None]]  # bytes done, bytes in all


def prune_file(
    source: Path,
    out: Path,
    pattern: str = "2:4",
    *,
    transposable: bool = False,
    solver: str = "",
    masks: Optional[Path] = None,
    include: str = "",
    exclude: str = "",
    in_place: bool = False,
    progress: Progress = None,
) -> dict[str, Any]:
    """`weft mask`: a safetensors checkpoint with its weights pruned to N:M."""
    return _core.prune_file(
        os.fspath(source), os.fspath(out), pattern, transposable, solver,
        None if masks is None else os.fspath(masks), include, exclude, in_place, progress,
    )  # fmt: skip


def check_file(
    file: Path,
    pattern: str = "",
    *,
    axis: str = "",
    strict: bool = False,
    include: str = "",
    exclude: str = "",
) -> dict[str, Any]:
    """`weft check`: whether a file obeys a pattern; without one, what the file itself promises."""
    return _core.check_file(os.fspath(file), pattern, axis, strict, include, exclude)


def convert_file(
    source: Path,
    out: Path,
    pattern: str = "2:4",
    method: str = "adaprune",
    *,
    support: str = "",
    calibration: Optional[Path] = None,
    transposable: bool = False,
    include: str = "",
    exclude: str = "",
    in_place: bool = False,
    progress: Progress = None,
) -> dict[str, Any]:
    """`weft convert`: a trained checkpoint becomes N:M, layer by layer, with little loss."""
    return _core.convert_file(
        os.fspath(source), os.fspath(out), method, support, pattern,
        None if calibration is None else os.fspath(calibration),
        transposable, include, exclude, in_place, progress,
    )  # fmt: skip


def pack_file(
    source: Path,
    out: Path,
    pattern: str = "",
    *,
    by_magnitude: bool = False,
    include: str = "",
    exclude: str = "",
    in_place: bool = False,
) -> dict[str, Any]:
    """`weft pack`: a checkpoint that stores its N:M weights without their zeros."""
    return _core.pack_file(
        os.fspath(source), os.fspath(out), pattern, by_magnitude, include, exclude, in_place
    )


def unpack_file(source: Path, out: Path, *, in_place: bool = False) -> dict[str, Any]:
    """`weft unpack`: the dense checkpoint of a packed one."""
    return _core.unpack_file(os.fspath(source), os.fspath(out), in_place)
